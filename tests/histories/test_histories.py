"""The checkers of histories notice each broken guarantee; ten seeds hold."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .check import History, contradictions, gathered
from .mutate import MUTATIONS, TABLE_MUTATIONS, Operations, mutated
from .recording import write_history
from .run import built, main

HERE = Path(__file__).parent


def _sample(name: str) -> tuple[dict[str, Any], Operations]:
    about, *operations = map(json.loads, (HERE / name).read_text().splitlines())
    return about, operations


# A history of seed 1 when that seed had no table.
ABOUT, SAMPLE = _sample("sample.jsonl")
# `python -m histories.generate 4 sample_with_table.jsonl --seconds 6 --early-rows 3`
TABLE_ABOUT, TABLE_SAMPLE = _sample("sample_with_table.jsonl")
FIRST_SEED = int(os.environ.get("SPARKWAL_SEED", "0"))

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="Porcupine is written in Go")


@pytest.fixture(scope="session")
def porcupine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs Porcupine."""
    program = built(tmp_path_factory.mktemp("porcupine"))
    assert program is not None
    return program


def test_the_samples_hold() -> None:
    assert list(contradictions(gathered(ABOUT, SAMPLE))) == []
    assert list(contradictions(gathered(TABLE_ABOUT, TABLE_SAMPLE))) == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_the_checker_notices_a_broken_guarantee(mutation: Callable[[Operations], None]) -> None:
    assert list(contradictions(gathered(ABOUT, mutated(SAMPLE, mutation))))


@pytest.mark.parametrize("mutation", TABLE_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_the_checker_notices_a_broken_table(mutation: Callable[[Operations], None]) -> None:
    assert list(contradictions(gathered(TABLE_ABOUT, mutated(TABLE_SAMPLE, mutation))))


def _with_table(*values: int, begin: int = 50) -> list[str]:
    """What contradicts two acknowledged appends and a last read of table and log as one."""
    appends = [
        {
            "process": "a",
            "number": number,
            "op": "append",
            "values": [number],
            "begin": number * 10,
            "end": number * 10 + 5,
            "outcome": "ok",
            "position": number,
        }
        for number in (1, 2)
    ]
    total = {
        "process": "t",
        "number": 0,
        "op": "total",
        "values": [*values],
        "begin": begin,
        "end": begin + 5,
        "outcome": "ok",
        "final": True,
    }
    return [each.partition(":")[0] for each in contradictions(_history([*appends, total]))]


def _history(operations: Operations) -> History:
    return gathered({"floor": True}, operations)


def test_table_and_log_as_one_hold_each_row_once() -> None:
    assert _with_table(1, 2) == []
    assert _with_table(1, 2, 2) == ["doubled"]
    assert _with_table(1, begin=12) == ["lost"]
    assert _with_table(2) == ["stale", "missing", "lost"]


def test_the_checker_needs_no_library() -> None:
    imported = {line.split()[1] for line in _imports((HERE / "check.py").read_text())}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def _imports(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("import ", "from "))]


@needs_go
@pytest.mark.process
@pytest.mark.slow
def test_porcupine_accepts_the_samples(porcupine: Path, tmp_path: Path) -> None:
    assert _porcupine(porcupine, tmp_path, ABOUT, SAMPLE) == 0
    assert _porcupine(porcupine, tmp_path, TABLE_ABOUT, TABLE_SAMPLE) == 0


@needs_go
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("about", "operations", "mutation"),
    [
        pytest.param(about, operations, mutation, id=mutation.__name__)
        for about, operations, mutations in (
            (ABOUT, SAMPLE, MUTATIONS),
            (TABLE_ABOUT, TABLE_SAMPLE, TABLE_MUTATIONS),
        )
        for mutation in mutations
    ],
)
def test_porcupine_notices_a_broken_guarantee(
    porcupine: Path,
    tmp_path: Path,
    about: dict[str, Any],
    operations: Operations,
    mutation: Callable[[Operations], None],
) -> None:
    assert _porcupine(porcupine, tmp_path, about, mutated(operations, mutation)) == 1


def _porcupine(program: Path, folder: Path, about: dict[str, Any], operations: Operations) -> int:
    history = folder / "history.jsonl"
    write_history(history, {"floor": about["floor"]}, operations)
    return subprocess.run([program, history], check=False).returncode


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_seeds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent), prepend=os.pathsep)
    assert main(10, FIRST_SEED) == 0
