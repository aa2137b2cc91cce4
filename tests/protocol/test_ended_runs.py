"""A run that ended was not fenced; one that may still run gets the fencing writer in the error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import FencedError
from sparkwal.protocol.hint import Hints, note_ended
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import TTL_MS, Query


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    return tmp_path / "ended"


@pytest.fixture
def query(tmp_path: Path, ended: Path) -> Query:
    return Query(MemoryStore(), Hints("wal", tmp_path / "hints", ended))


@pytest.fixture
def other(query: Query) -> Query:
    return replace(query, query_id="other", leader_id="host:1:1:y", run_id="other")


def test_the_next_run_of_a_query_takes_over_from_a_writer_in_between(
    query: Query, other: Query, ended: Path
) -> None:
    query.microbatch(0, (1,))
    note_ended(ended, "run")
    other.microbatch(0, (2,))
    again = replace(query, run_id="second run")
    assert again.microbatch(1, (3,)) == 5
    # The other one has not ended.
    with pytest.raises(FencedError, match="host:1:1:x on host host"):
        other.microbatch(1, (4,))


@pytest.mark.proves("fenced-run-stops")
def test_a_run_that_others_fenced_one_after_the_other_learns_it_once(
    query: Query, other: Query, ended: Path
) -> None:
    query.microbatch(0, (1,))
    note_ended(ended, "another run")
    other.microbatch(0, (2,))
    replace(other, leader_id="host:1:1:z").microbatch(1, (2,))
    with pytest.raises(FencedError, match="host:1:1:z"):
        query.microbatch(1, (3,))
    assert query.microbatch(1, (3,)) is not None


def test_a_run_that_is_fenced_during_a_microbatch_without_rows_learns_it(
    query: Query, other: Query
) -> None:
    query.microbatch(0, (1,))
    results = [query.task(query.plan(), 1, 0)]
    other.microbatch(0, (2,))
    assert query.commit(results) is None
    with pytest.raises(FencedError, match="host:1:1:y"):
        query.plan()


def test_the_run_after_one_that_failed_in_a_microbatch_was_not_fenced(
    query: Query, other: Query
) -> None:
    query.plan()  # its tasks fail
    other.microbatch(0, (2,))
    assert query.microbatch(0, (1,)) == 4


def test_a_new_run_is_not_held_to_what_its_query_led_long_ago(
    query: Query, other: Query, ended: Path, tmp_path: Path
) -> None:
    query.microbatch(0, (1,))
    note_ended(ended, "run")
    elsewhere = Hints("wal", tmp_path / "other machine")
    replace(other, hints=elsewhere, leader_id="there:2:2:y").microbatch(0, (2,))
    query.clock.since_boot_ms += TTL_MS
    assert replace(query, run_id="second run").microbatch(1, (3,)) == 5


def test_a_fencing_note_instead_of_an_unreadable_hint_fences_a_running_run(
    query: Query, other: Query, ended: Path
) -> None:
    query.microbatch(0, (1,))
    note_ended(ended, "run")
    (file,) = query.hints.folder.iterdir()
    file.write_text("{")
    other.microbatch(0, (2,))
    with pytest.raises(FencedError):
        query.microbatch(1, (3,))


def test_a_session_remembers_the_newest_thousand_ends(query: Query, ended: Path) -> None:
    for number in range(1500):
        note_ended(ended, f"run-{number}")
    assert query.hints.has_ended("run-1499") and query.hints.has_ended("run-500")
    assert not query.hints.has_ended("run-1") and not query.hints.has_ended("")
    assert len(ended.read_text().split()) == 1001
