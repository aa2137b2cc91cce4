"""The notebooks: run from a fresh kernel, and saved with what they show.

python -m tests.notebooks.running [NAME…]     runs them and writes the tables into their pages
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

import sparkwal

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = ("explore", "operate", "lake")
# Ivy downloads Delta's jars the first time.
CELL_SECONDS = 900
# Names a run to everything that it starts.
MARK = "SPARKWAL_NOTEBOOK"


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.ipynb"


def sources(notebook: Any) -> str:
    """A hash of all cells of a notebook, to which its outputs belong."""
    reported = "\0".join(f"{cell.cell_type}\0{cell.source}" for cell in notebook.cells)
    return hashlib.sha256(reported.encode()).hexdigest()


def run(name: str) -> tuple[Any, str]:
    """A notebook with new outputs, and the mark of what it started. Raises for a cell that
    fails."""
    notebook = nbformat.read(path_of(name), as_version=4)
    mark = uuid.uuid4().hex
    # A kernel inherits the tested library, and no setting of a user.
    given = {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(sparkwal.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep),
        "TZ": "UTC",
        MARK: mark,
    }
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "SPARK_CONF"))}
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        # The output of the JVM and of Ivy is for a terminal.
        extra_arguments=["--IPKernelApp.capture_fd_output=False"],
    )
    with tempfile.TemporaryDirectory(prefix="sparkwal-ipython-") as folder:
        client.execute(env=environment | given | {"IPYTHONDIR": folder})
    for cell in notebook.cells:
        _settle(cell)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "sparkwal": {"sources": sources(notebook)},
    }
    return notebook, mark


def _settle(cell: Any) -> None:
    """Leave out what is of this machine and of this run."""
    cell.metadata = {}
    for output in cell.get("outputs", ()):
        if "text" in output:
            output.text = _neutral(output.text)
        data = output.get("data", {})
        for kind, text in data.items():
            if kind.startswith("text/"):
                data[kind] = _neutral(text)


def _neutral(text: str) -> str:
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+", "/data", text)
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host-1", text)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9000", text)


def started_by(mark: str) -> list[int]:
    """The processes that carry the mark of a run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (
                (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue  # it ended, or is another user's
    return found


def main(names: list[str]) -> None:
    for name in names or NAMES:
        notebook, _ = run(name)
        nbformat.write(notebook, path_of(name))
        print(f"wrote {path_of(name).relative_to(FOLDER.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
