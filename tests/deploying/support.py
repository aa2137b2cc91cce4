"""The support of each Spark as data: the report of `whole_life.py` under it.

python -m tests.deploying.support     runs it under the PySpark of this Python and writes that down
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SUPPORT = Path(__file__).parent / "support.json"


def reported(printed: str) -> dict[str, bool]:
    """Each step, and whether this Spark did it or lacks it."""
    lines = [line.partition(" ") for line in printed.splitlines()]
    return {
        step.partition(":")[0]: what == "did" for what, _, step in lines if what in ("did", "lacks")
    }


def table() -> str:
    """One row for each step, one column for each Spark."""
    known: dict[str, dict[str, bool]] = json.loads(SUPPORT.read_text())
    steps = dict.fromkeys(step for done in known.values() for step in done)
    lines = [f"| Spark | {' | '.join(known)} |", "|---" * (len(known) + 1) + "|"]
    for step in steps:
        cells = ("yes" if done.get(step) else "no" for done in known.values())
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    import pyspark

    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).parent / "whole_life.py"
        command = [sys.executable, str(script), f"{folder}/logs", folder]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        sys.exit(done.stdout + done.stderr[-6000:])
    print(done.stdout)
    known = json.loads(SUPPORT.read_text()) if SUPPORT.exists() else {}
    known[pyspark.__version__] = reported(done.stdout)
    SUPPORT.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
