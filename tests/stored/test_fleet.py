"""A former state of the library and this one take turns at one log: they write, read, compact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparkwal
from tests.deploying.building import build
from tests.deploying.environments import ROOT, run

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]
# The state before which no stored byte was a promise. A release replaces it by its own commit.
FORMER = "f32b2cfb"
THIS = Path(sparkwal.__file__).parents[1]
TURN = Path(__file__).with_name("turn.py")
Turn = Callable[..., Any]


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the former state, installed from its wheel."""
    if subprocess.run(
        ["git", "-C", ROOT, "cat-file", "-e", f"{FORMER}^{{commit}}"], capture_output=True
    ).returncode:
        pytest.skip(f"commit {FORMER} is not here: this is no clone with its history")
    folder = tmp_path_factory.mktemp("former")
    archive = folder / "source.tar"
    subprocess.run(["git", "-C", ROOT, "archive", "-o", archive, FORMER], check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "source", filter="data")
    (folder / "wheel").mkdir()
    wheel = build(folder / "source", folder / "wheel", "wheel")
    target = folder / "installed"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", target]
    run(sys.executable, "-P", "-m", "pip", *install, wheel)
    return target


def turns(library: Path, log: Path) -> Turn:
    """Takes turns at a log with the library in a folder."""

    def turn(action: str, *arguments: object) -> Any:
        own = {**os.environ, "PYTHONPATH": str(library)}
        done = run(sys.executable, TURN, library, log, action, *arguments, env=own)
        return json.loads(done.stdout.splitlines()[-1])

    return turn


def test_a_mixed_fleet_loses_and_repeats_no_row(former: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = (turns(former, log), turns(THIS, log))
    written: list[int] = []
    cursor: list[str] = []
    floors = [0]

    def read(turn: Turn) -> list[int]:
        """The rows after the cursor, which the other state made; checks all that are held."""
        answer = turn("read", *cursor)
        assert answer["problems"] == []
        # Only rows below the floor left the log.
        held = answer["ids"]
        assert held == written[-len(held) :] and len(written) - len(held) <= floors[-1]
        cursor[:] = [answer["cursor"]]
        after: list[int] = answer["after"]
        return after

    for turn, other in (both, both[::-1]) * 2:
        written += turn("append", len(written))
        assert read(other) == written[-3:]
        # Each collects below a floor that the other moved.
        floors += [turn("collect"), other("collect")]
        assert read(turn) == []
    assert floors == sorted(floors) and floors[-1] > 0


def test_a_journal_of_one_state_is_sent_by_the_other(former: Path, tmp_path: Path) -> None:
    log, journal = tmp_path / "log", tmp_path / "journal"
    old, new = turns(former, log), turns(THIS, log)
    written = old("append", 0, journal)
    for accepting, sending in ((old, new), (new, old)):
        written += accepting("accept", len(written), journal)
        written += sending("append", len(written), journal)
        for reading in (old, new):
            assert reading("read") | {"cursor": ""} == {
                "ids": written,
                "after": written,
                "cursor": "",
                "problems": [],
            }
