"""A run that ended was not fenced; one that may still run gets the fencing writer in the error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import FencedError, OutcomeUnknownError
from sparkwal.format import keys
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


def test_a_run_continues_warm_after_a_run_that_ended(query: Query, ended: Path) -> None:
    query.microbatch(0, (1,))
    note_ended(ended, "run")
    # No leader record between the two.
    assert replace(query, run_id="second run").microbatch(1, (2,)) == 2


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_the_next_run_takes_over_from_a_writer_without_hints_here(
    query: Query, other: Query, ended: Path, tmp_path: Path, torn: bool
) -> None:
    """As an appender, or a query on another machine: neither leaves a note in the hints."""
    query.microbatch(0, (1,))
    note_ended(ended, "run")
    elsewhere = replace(other, hints=Hints("wal", tmp_path / "elsewhere"))
    elsewhere.microbatch(0, (2,))
    if torn:
        # The store keeps a part of a record that this writer did not report.
        store = query.store
        store.put_if_absent("wal/batches/" + keys.encode(keys.slot(4, 1000)), b"ARROW1")
    assert replace(query, run_id="second run").microbatch(1, (3,)) == (6 if torn else 5)
    # A run that has not ended is fenced as ever.
    with pytest.raises(OutcomeUnknownError if torn else FencedError):
        elsewhere.microbatch(1, (4,))


def test_a_run_that_may_still_run_does_not_take_the_log_back(
    query: Query, other: Query, tmp_path: Path
) -> None:
    query.microbatch(0, (1,))
    replace(other, hints=Hints("wal", tmp_path / "elsewhere")).microbatch(0, (2,))
    with pytest.raises(FencedError, match="host:1:1:y"):
        query.microbatch(1, (3,))
