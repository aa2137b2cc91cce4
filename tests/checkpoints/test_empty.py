"""Microbatches that write nothing: the folder notes them, and now and then a record carries it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sparkwal.checkpoints import folder, names
from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.protocol import commit
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from tests.checkpoints.conftest import Room
from tests.protocol.query import StoppedClock

HIDDEN = frozenset(range(1, 50))


def passing(room: Room, files: int, *, start: bool = True) -> Path:
    """A query whose filter passes over all files but the first, after so many."""
    place = room.checkpoint() if start else room.tmp / "ck"
    room.stream(place, hidden=HIDDEN).run(range(files))
    return place


def test_a_query_that_rarely_matches_reads_nothing_again(room: Room) -> None:
    place = passing(room, 6)
    before = folder.latest(place, "commits")
    room.store.counts.clear()
    assert room.checkpoint() == place and room.why() is None
    # No record is read: the note has the position after which the folder continues.
    assert room.store.counts == {"LIST": 1, "GET": 1}
    assert folder.latest(place, "commits") == before == 5
    room.stream(place, hidden=HIDDEN).run(range(53))
    assert room.values() == [0, 50, 51, 52]


def test_a_microbatch_without_rows_costs_no_request(room: Room) -> None:
    passing(room, 2)
    stream = room.stream(room.tmp / "ck", hidden=HIDDEN)
    stream.run(range(3))  # a cold start
    room.store.counts.clear()
    stream.run(range(9))
    assert room.store.counts == {}


@pytest.mark.parametrize("planned", ["planned", "planned and run"])
def test_a_crash_after_microbatches_without_rows_reads_nothing_again(
    room: Room, planned: str
) -> None:
    place = passing(room, 4)
    stream = room.stream(place, hidden=HIDDEN)
    if planned == "planned":
        stream.plan(4, range(5), 1)
    else:
        stream.step(range(5), crash=True)
    assert room.checkpoint() == place and room.why() is None
    room.stream(place, hidden=HIDDEN).run(range(51))
    assert room.values() == [0, 50]


def lose_the_last_record(room: Room) -> None:
    head = find_head(room.log)
    *_, last = (
        each
        for each in live_records(LogView(room.log, head.window), 0, head.gap)
        if each.header.kind == "commit"
    )
    numbers = [each.key for each in room.store.list("wal/batches/").entries]
    for key in numbers:
        if int(key.rpartition("/")[2]) <= last.header.number:
            room.store.delete(key)


def test_a_log_that_was_put_back_is_not_taken_for_one_without_rows(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(3))
    room.stream(place, hidden=frozenset({3, 4})).run(range(5))
    lose_the_last_record(room)
    assert room.checkpoint() == place and room.why() == "it is ahead of the log"
    room.stream(place, hidden=frozenset({3, 4})).run(range(6))
    assert room.values() == [0, 1, 2, 5]


def test_another_machine_continued_after_microbatches_without_rows(room: Room) -> None:
    place = passing(room, 4)
    other = room.checkpoint("orders", "other")
    room.stream(other).run(range(1), 1)
    room.stream(other, hidden=frozenset({2})).run(range(3), 2)
    assert room.checkpoint() == place and room.why() == "it is ahead of the log"


def edit(**changed: object):  # type: ignore[no-untyped-def]
    def change(place: Path) -> None:
        file = place / names.EMPTY
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **changed}))

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda place: (place / names.EMPTY).unlink(),
        lambda place: (place / names.EMPTY).write_bytes(bytes(30)),
        lambda place: (place / names.EMPTY).write_bytes(b"[]"),
        edit(batch_id="x"),
        edit(batch_id=2),
        edit(after=None),
        edit(after={}),
        edit(inputs=3),
        edit(inputs={"offsets/3": 1}),
    ],
)
def test_a_note_that_does_not_fit_is_not_believed(room: Room, change) -> None:  # type: ignore[no-untyped-def]
    place = passing(room, 4)
    change(place)
    assert room.checkpoint() == place and room.why() == "it is ahead of the log"
    assert not (place / names.EMPTY).exists()


def test_a_missing_note_is_not_written_later(room: Room) -> None:
    """Whether that microbatch wrote rows is not known any more."""
    place = passing(room, 4)
    (place / names.EMPTY).unlink()
    passing(room, 6, start=False)
    assert not (place / names.EMPTY).exists()
    assert room.checkpoint() == place and room.why() == "it is ahead of the log"


def test_the_first_microbatch_of_a_query_is_carried_though_it_has_no_rows(room: Room) -> None:
    """Only the checkpoint has the start of the query."""
    place = room.checkpoint()
    room.stream(place, hidden=frozenset({0, 1, 2})).run(range(3))
    assert [(each.batch_id, each.rows) for each in room.commits()] == [(0, 0)]
    shutil.rmtree(place)
    room.checkpoint()
    assert (place / "offsets/0").exists() and (place / "commits/0").exists()
    room.stream(place, hidden=frozenset({0, 1, 2})).run(range(5))
    assert room.values() == [3, 4]


def test_after_many_microbatches_without_rows_a_record_carries_the_checkpoint(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "FORWARD", 5)
    place = passing(room, 13)
    assert [(each.batch_id, each.rows) for each in room.commits()] == [(0, 1), (5, 0), (10, 0)]
    assert (
        folder.done(place, 10, room.commits()[-1].checkpoints[folder.query_of(place) or ""]) == 12
    )
    shutil.rmtree(place)
    assert room.checkpoint() == place and (place / "commits/10").exists()
    room.stream(place, hidden=HIDDEN).run(range(52))
    assert room.values() == [0, 50, 51]


@pytest.mark.parametrize("passed", [300_000, -1])
def test_after_minutes_a_record_carries_the_checkpoint(
    room: Room, monkeypatch: pytest.MonkeyPatch, passed: int
) -> None:
    """A clock that was put back is no reason to wait."""
    passing(room, 3)
    now = StoppedClock.now_ms
    monkeypatch.setattr(StoppedClock, "now_ms", lambda self: now(self) + passed)
    passing(room, 4)
    assert [(each.batch_id, each.rows) for each in room.commits()] == [(0, 1), (3, 0)]


def test_a_record_without_rows_is_a_replay_when_spark_repeats_it(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "FORWARD", 2)
    place = passing(room, 2)
    assert room.stream(place, hidden=HIDDEN).step(range(3), crash=True)
    room.stream(place, hidden=HIDDEN).run(range(3))
    assert [(each.batch_id, each.rows) for each in room.commits()] == [(0, 1), (2, 0)]


def test_a_disk_that_takes_no_note_makes_a_record(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamCheckpoint, "_save", lambda *_: False)
    passing(room, 3)
    assert [(each.batch_id, each.rows) for each in room.commits()] == [(0, 1), (1, 0), (2, 0)]


def test_a_folder_that_sparkwal_did_not_make_is_promised_nothing(room: Room) -> None:
    place = room.tmp / "own"
    room.stream(place, hidden=HIDDEN | {0}).run(range(3))
    assert room.commits() == [] and not (place / names.EMPTY).exists()


OFFSETS = b'v1\n{"batchTimestampMs":1}\n%s\n%s'


def test_positions_read_without_rows_are_held_for_each_source_log(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/4").write_bytes(
        OFFSETS % (b'{"logOffset":4}', b'{"a":7,"log_id:a":"A","log_id:b":"B"}')
    )
    (tmp_path / "offsets/9").write_bytes(
        OFFSETS % (b'{"logOffset":9}', b'{"a":12,"b":3,"log_id:a":"A","log_id:b":"B"}')
    )
    # A new sequencer begins at its start in a rebuilt checkpoint.
    assert folder.spans(tmp_path, 4, 9) == {"A": [(7, 12)], "B": [(0, 3)]}
    assert folder.spans(tmp_path, 4, 4) == {"A": [(7, 7)]}
    assert folder.spans(tmp_path, 3, 9) is None and folder.spans(tmp_path, 4, 10) is None
