"""Makes the histories of some seeds and checks each with both checkers.

python -m histories.run [--azure] [SEEDS] [FIRST]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .check import contradictions, load
from .generate import generate

HERE = Path(__file__).parent
SECONDS = 20.0


def built(folder: Path) -> Path | None:
    """Build the program that runs Porcupine; None without Go."""
    if shutil.which("go") is None:
        return None
    program = folder / "porcupine"
    command = ["go", "build", "-o", str(program), "."]
    subprocess.run(command, cwd=HERE / "porcupine", check=True)
    return program


def check(history: Path, porcupine: Path | None) -> list[str]:
    """The faults that both checkers find in a history."""
    found = list(contradictions(load(history)))
    if porcupine is not None:
        done = subprocess.run([porcupine, history], capture_output=True, text=True, check=False)
        if done.returncode:
            found.append(f"porcupine: {(done.stdout + done.stderr).strip()}")
    return found


def main(seeds: int, first: int, *, on_azure: bool = False) -> int:
    """Run the seeds; returns 1 if a history contradicts the guarantees."""
    folder = Path(tempfile.mkdtemp(prefix="histories-"))
    porcupine = built(folder)
    if porcupine is None:
        print("there is no Go here: Porcupine is left out")
    total: Counter[str] = Counter()
    failed = False
    for seed in range(first, first + seeds):
        history = folder / f"{seed}.jsonl"
        counted = generate(seed, history, SECONDS, on_azure=on_azure)
        total += counted
        found = check(history, porcupine)
        failed = failed or bool(found)
        print(f"seed {seed}: {len(found)} contradictions; {_shown(counted)}", flush=True)
        for line in found[:20]:
            print(f"  {line}")
    print(f"seeds {first} … {first + seeds - 1}: {_shown(total)}")
    if failed:
        print(f"the histories are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _shown(counted: Counter[str]) -> str:
    return ", ".join(f"{what} {number}" for what, number in sorted(counted.items()))


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:] if argument != "--azure"]
    sys.exit(main(*given, *(10, 0)[len(given) :], on_azure="--azure" in sys.argv))
