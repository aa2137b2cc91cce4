"""The notebooks run, prove what they say, and are committed with what they showed then."""

from __future__ import annotations

import getpass
import re
import socket
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks import running

PROVEN = {
    "explore": r"336,776 flights, .* minutes of delay: the same in polars, duckdb and pandas",
    "operate": r"12,500 flights by the stream, 25 commits; 200 by the gateway: sound",
    "lake": r"events of 842 flights: each in the table once",
}
AGAIN = "run `python -m tests.notebooks.running`"


def texts(notebook: Any) -> list[str]:
    """All that the outputs say in words."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            found += [output["text"]] if "text" in output else []
            found += [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
    return found


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook: Any) -> list[list[str]]:
    """The kinds of each cell's outputs; printed text may be one piece or several."""
    return [[kind for kind, _ in groupby(o.output_type for o in c.outputs)] for c in code(notebook)]


@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.parametrize("name", running.NAMES)
def test_the_notebook_runs_and_its_assertions_hold(name: str) -> None:
    notebook, mark = running.run(name)
    # The last cell prints this only if its assertions hold.
    assert re.search(PROVEN[name], code(notebook)[-1].outputs[-1].text)
    committed = nbformat.read(running.path_of(name), as_version=4)
    assert kinds(notebook) == kinds(committed), running_again(name)
    deadline = time.monotonic() + 60
    while left := running.started_by(mark):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)


def running_again(name: str) -> str:
    return f"{name}: {AGAIN} {name}"


def test_every_notebook_is_tested() -> None:
    assert sorted(path.stem for path in running.FOLDER.glob("*.ipynb")) == sorted(running.NAMES)
    assert set(PROVEN) == set(running.NAMES)


@pytest.mark.parametrize("name", running.NAMES)
def test_the_outputs_belong_to_the_source(name: str) -> None:
    notebook = nbformat.read(running.path_of(name), as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.get("sparkwal") == {"sources": running.sources(notebook)}, (
        running_again(name)
    )
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert re.search(PROVEN[name], cells[-1].outputs[-1].text)


def test_a_changed_cell_makes_the_outputs_stale() -> None:
    notebook = nbformat.read(running.path_of("explore"), as_version=4)
    before = running.sources(notebook)
    notebook.cells[-1].source += "\n"
    assert running.sources(notebook) != before


@pytest.mark.parametrize("name", running.NAMES)
def test_the_outputs_are_small_and_of_no_machine(name: str) -> None:
    path = running.path_of(name)
    assert path.stat().st_size < 400_000
    notebook = nbformat.read(path, as_version=4)
    for cell in code(notebook):
        for output in cell.outputs:
            assert output.output_type in ("stream", "display_data", "execute_result")
            assert output.get("name") != "stderr", output.get("text")
    said = "\n".join(texts(notebook))
    private = [str(Path.home()) + "/", "/tmp", str(running.FOLDER.parent), socket.gethostname()]
    if getpass.getuser() != "root":
        private.append(getpass.getuser())
    assert [word for word in [*private, "WARN"] if word in said] == []
    ports = re.findall(r"127\.0\.0\.1:(\d+)|localhost:(\d+)", said)
    assert set(ports) <= {("9000", "")}
