"""`sparkwal.checkpoint`: the folder is used where it agrees with the log, else made from it."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import sparkwal
from sparkwal import InvalidLogError, OptionError, StoreUnavailableError, events
from sparkwal.checkpoints import folder
from sparkwal.format import keys
from sparkwal.format.header import NOWHERE
from sparkwal.protocol.hint import Hints
from sparkwal.store.base import Page
from tests.checkpoints.conftest import Room
from tests.checkpoints.stream import COMPACT_EVERY, FileStream
from tests.protocol.query import Query


def content(place: Path) -> dict[str, bytes]:
    return {
        file.relative_to(place).as_posix(): file.read_bytes()
        for file in place.rglob("*")
        if file.is_file()
    }


def test_a_query_under_another_name_is_warned_before_it_repeats_its_rows(room: Room) -> None:
    room.stream(room.checkpoint("orders", "one")).run(range(2))
    room.checkpoint("orders", "two")
    assert not [event for event in room.reported if isinstance(event, events.AnotherQuery)]
    room.checkpoint("orders-v2", "three")
    (event,) = [event for event in room.reported if isinstance(event, events.AnotherQuery)]
    assert (event.query, event.other, event.position) == ("orders-v2", "orders", 2)
    assert "sparkwal.checkpoint(path, 'orders')" in event.advice


def test_a_new_querys_folder_keeps_its_id_and_is_not_rebuilt(room: Room) -> None:
    place = room.checkpoint()
    assert room.why() == "there is no checkpoint of this query"
    assert content(place).keys() == {"metadata", "sparkwal.json"}
    # It keeps the name that it drew for the log, and so its query's id.
    assert room.checkpoint() == place and room.why() is None
    query = folder.query_of(place)
    stream = room.stream(place)
    stream.run(range(3))
    assert room.checkpoint() == place and room.why() is None
    assert room.made().batch_id == 2
    assert stream.query_id == query == room.commits()[-1].query_id
    owner = folder.owner_of(place)
    assert owner is not None and room.commits()[-1].log_id == owner.log_id


def test_every_machine_gives_a_query_the_same_id(room: Room) -> None:
    room.stream(room.checkpoint("orders", "one")).run(range(2))
    one, two = room.checkpoint("orders", "one"), room.checkpoint("orders", "two")
    assert folder.query_of(one) == folder.query_of(two)
    assert folder.query_of(room.checkpoint("bills", "three")) != folder.query_of(one)


@pytest.mark.proves("rebuild-from-last", "rebuild-offsets", "rebuild-commit")
@pytest.mark.parametrize("microbatches", [1, 2, 9, 10, 11, 12, 19, 20, 21, 23])
def test_a_lost_folder_is_rebuilt_unchanged(room: Room, microbatches: int) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(microbatches))
    last = microbatches - 1
    names = [*folder.microbatch_files(place, last), f"commits/{last}", "metadata", "sparkwal.json"]
    before = content(place)
    names += [name for name in before if folder.is_compact(name) and name not in names]
    shutil.rmtree(place)
    assert room.checkpoint() == place and room.why() == "there is no checkpoint of this query"
    assert content(place) == {name: before[name] for name in names}
    assert room.checkpoint() == place and room.why() is None
    room.stream(place).run(range(microbatches + 12))
    assert room.values() == list(range(microbatches + 12))


@pytest.mark.parametrize("lost_after", [1, 3, 4, 5, 6, 7, 12])
def test_files_in_any_grouping_arrive_once_whenever_the_folder_is_lost(
    room: Room, lost_after: int
) -> None:
    place = room.checkpoint()
    for number in range(14):
        files = range(3 * number + 2)
        room.stream(place).run(files, each=2)
        if number == lost_after:
            shutil.rmtree(place)
        room.checkpoint()
    assert room.values() == list(files)


# Every reason to rebuild a folder. The log's last microbatch is 4.


def behind(stream: FileStream) -> None:
    for name in ("offsets/4", "commits/4", "sources/0/4", "offsets/3", "commits/3", "sources/0/3"):
        (stream.place / name).unlink()


def behind_by_one(stream: FileStream) -> None:
    for name in ("offsets/4", "commits/4", "sources/0/4"):
        (stream.place / name).unlink()


def planned_otherwise(stream: FileStream) -> None:
    behind_by_one(stream)
    stream.plan(4, range(6), each=2)


def planned_otherwise_and_done(stream: FileStream) -> None:
    planned_otherwise(stream)
    (stream.place / "commits/4").write_text("v1\n{}")


def went_on_otherwise(stream: FileStream) -> None:
    planned_otherwise_and_done(stream)
    stream.plan(5, range(7), each=1)


def other_beginning(stream: FileStream) -> None:
    file = stream.place / "sources/0/0"
    file.write_text(file.read_text().replace("000000", "000007"))


def cut(name: str, size: int = 0) -> Callable[[FileStream], None]:
    def tear(stream: FileStream) -> None:
        file = stream.place / name
        file.write_bytes(file.read_bytes()[:size])

    return tear


def without(*names: str) -> Callable[[FileStream], None]:
    def remove(stream: FileStream) -> None:
        for name in names:
            file = stream.place / name
            shutil.rmtree(file) if file.is_dir() else file.unlink()

    return remove


def ahead(stream: FileStream) -> None:
    for number in (5, 6):
        stream.plan(number, range(number + 1), each=1)
        (stream.place / f"commits/{number}").write_text("v1\n{}")


def planned_twice(stream: FileStream) -> None:
    for number in (5, 6):
        stream.plan(number, range(number + 1), each=1)


def done_too_early(stream: FileStream) -> None:
    stream.plan(5, range(6), each=1)
    (stream.place / "commits/5").write_text("v1\n{}")


def no_note_before_the_next(stream: FileStream) -> None:
    stream.plan(5, range(6), each=1)
    (stream.place / "commits/4").unlink()


def of_another_query(stream: FileStream) -> None:
    (stream.place / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))


OTHER = "it gave the number of a microbatch in the log to other input"
REASONS = [
    (behind, "the log is ahead of it"),
    (behind_by_one, "the log is ahead of it"),
    (without("offsets", "commits"), "the log is ahead of it"),
    (without("commits"), "the log is ahead of it"),
    (without("commits/3", "commits/4"), "the log is ahead of it"),
    (planned_otherwise, OTHER),
    (planned_otherwise_and_done, OTHER),
    (went_on_otherwise, OTHER),
    (other_beginning, OTHER),
    (cut("offsets/4"), "it is incomplete: offsets/4"),
    (cut("offsets/4", 2), "it is incomplete: offsets/4"),
    (cut("offsets/4", 60), "it is incomplete: offsets/4"),
    (cut("offsets/3"), "it is incomplete: offsets/3"),
    (cut("sources/0/2", 10), OTHER),
    (without("sources"), "it is incomplete: sources/0"),
    (ahead, "it is ahead of the log"),
    (planned_twice, "it is ahead of the log"),
    (done_too_early, "it is ahead of the log"),
    (no_note_before_the_next, "it lacks a commit"),
    (without("commits/4"), "it lacks the commit of its last microbatch, which is in the log"),
    (without("metadata"), "it is incomplete: metadata"),
    (cut("metadata", 5), "it is incomplete: metadata"),
    (of_another_query, "it belongs to another log"),
]


@pytest.mark.parametrize("change, reason", REASONS, ids=lambda x: getattr(x, "__name__", "-"))
def test_a_folder_that_contradicts_the_log_is_rebuilt(
    room: Room, change: Callable[[FileStream], None], reason: str
) -> None:
    stream = room.stream(room.checkpoint())
    stream.run(range(5))
    change(stream)
    assert room.checkpoint() == stream.place and room.why() == reason
    again = room.stream(room.checkpoint())
    assert room.why() is None
    again.run(range(9))
    assert room.values() == list(range(9))


def as_it_is(stream: FileStream) -> None: ...


def planned_the_next(stream: FileStream) -> None:
    stream.plan(5, range(7), each=2)


def listed_the_next(stream: FileStream) -> None:
    """Spark stopped between a file source's list and the offsets."""
    stream.plan(5, range(7), each=2)
    (stream.place / "offsets/5").unlink()


def forgot_what_spark_forgets(stream: FileStream) -> None:
    for name in ("offsets/0", "offsets/1", "commits/0", "commits/1"):
        (stream.place / name).unlink()


@pytest.mark.parametrize(
    "change",
    [
        as_it_is,
        planned_the_next,
        listed_the_next,
        forgot_what_spark_forgets,
    ],
)
def test_a_folder_that_agrees_with_the_log_is_not_changed(
    room: Room, change: Callable[[FileStream], None]
) -> None:
    stream = room.stream(room.checkpoint())
    stream.run(range(5))
    change(stream)
    before = content(stream.place)
    room.store.counts.clear()
    assert room.checkpoint() == stream.place and room.why() is None
    assert room.store.counts == {"LIST": 1, "GET": 2}
    assert content(stream.place) == before
    room.stream(stream.place).run(range(9))
    assert room.values() == list(range(9))


@pytest.mark.proves("rebuild-interval")
@pytest.mark.parametrize("interval", [COMPACT_EVERY, 2 * COMPACT_EVERY])
def test_spark_finds_its_compacted_lists_in_each_rebuilt_folder(room: Room, interval: int) -> None:
    """Spark derives their interval from the lists that it finds."""
    stream = room.stream(room.checkpoint(folder="of the first life"))
    # A log of an earlier version has other intervals: a rebuilt folder had one compacted list.
    stream.interval = interval
    for life, files in enumerate((27, 38, 56, 59, 79, 100, 119, 131)):
        stream.run(range(files))
        stream = room.stream(room.checkpoint(folder=f"life {life}"))
    stream.run(range(140))
    assert room.values() == list(range(140))


class ReadTwice(FileStream):
    """A query that joins a stream with itself: Spark plans one source twice, which has one list."""

    def write_offsets(self, number: int, entry: int) -> None:
        super().write_offsets(number, entry)
        plan = (self.place / f"offsets/{number}").read_text()
        self.write(f"offsets/{number}", plan + "\n" + plan.splitlines()[-1])


def test_a_folder_whose_query_reads_one_source_twice_is_used(room: Room) -> None:
    hints = Hints("wal", room.tmp / "hints")
    stream = ReadTwice(room.log, room.checkpoint(), hints)
    stream.run(range(5))
    stream.plan(5, range(6), each=1)
    assert room.checkpoint() == stream.place and room.why() is None


def test_files_that_another_machine_wrote_and_archived_are_not_read_again(room: Room) -> None:
    room.stream(room.checkpoint(folder="one")).plan(0, range(1), each=1)
    room.stream(room.checkpoint(folder="two")).run(range(1))
    assert folder.latest(room.checkpoint(folder="one"), "commits") == 0


def test_a_query_whose_log_was_deleted_begins_again_with_another_id(room: Room) -> None:
    stream = room.stream(room.checkpoint())
    first = stream.query_id
    stream.run(range(3))
    for key in list(room.store.objects):
        room.store.delete(key)
    again = room.stream(room.checkpoint())
    assert room.why() == "its log was deleted" and again.query_id != first
    again.run(range(4))
    assert room.values() == [0, 1, 2, 3]


def test_a_list_that_is_empty_by_mistake_empties_no_folder(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(3))
    before = content(place)
    monkeypatch.setattr(room.store, "list", lambda *_: Page([], False))
    with pytest.raises(StoreUnavailableError, match="shows no record"):
        room.checkpoint()
    assert content(place) == before


def test_a_log_that_was_only_planned_is_not_reported_as_deleted(room: Room) -> None:
    stream = room.stream(room.checkpoint())
    stream.plan(0, range(3), each=2)
    room.checkpoint()
    assert room.why() is None
    room.stream(stream.place).run(range(5))
    assert room.values() == list(range(5))


def test_a_folder_of_a_recreated_log_is_refused_and_then_rebuilt(room: Room) -> None:
    """Deleted, and recreated by someone else."""
    stream = room.stream(room.checkpoint("orders", "old"))
    stream.run(range(3))
    for key in list(room.store.objects):
        room.store.delete(key)
    room.stream(room.tmp / "other").run(range(100, 102))
    before = dict(room.store.objects)
    with pytest.raises(sparkwal.DivergedCheckpointError, match=r"deleted and recreated"):
        room.stream(stream.place).run(range(5))
    assert room.store.objects == before
    again = room.stream(room.checkpoint("orders", "old"))
    assert room.why() == "it belongs to another log"
    again.run(range(3))
    assert room.values() == [100, 101, 0, 1, 2]


def test_a_folder_of_a_log_that_another_writer_began_is_refused_and_then_rebuilt(
    room: Room,
) -> None:
    place = room.checkpoint()
    room.stream(room.tmp / "other").run(range(100, 102))
    with pytest.raises(sparkwal.DivergedCheckpointError, match="another writer began it first"):
        room.stream(place).run(range(3))
    room.stream(room.checkpoint()).run(range(3))
    assert room.values() == [100, 101, 0, 1, 2]


# Microbatches without rows are in no log.


def test_microbatches_without_rows_at_the_end_are_not_read_again(room: Room) -> None:
    hidden = frozenset({2, 3, 6, 7})
    place = room.checkpoint()
    for files in (4, 6, 8, 9, 12):
        room.stream(place, hidden=hidden).run(range(files))
        room.checkpoint()
        assert room.why() is None
    assert room.values() == [0, 1, 4, 5, 8, 9, 10, 11]


@pytest.mark.parametrize("lost_after", range(1, 10))
def test_a_folder_is_lost_among_microbatches_without_rows(room: Room, lost_after: int) -> None:
    hidden = frozenset({0, 1, 4, 5, 7})
    place = room.checkpoint()
    for files in range(1, 11):
        room.stream(place, hidden=hidden).run(range(files))
        if files == lost_after:
            shutil.rmtree(place)
            room.checkpoint()
    assert room.values() == [2, 3, 6, 8, 9]


# Queries that were started without sparkwal.checkpoint.


def test_a_query_continues_by_its_id_in_its_folder(room: Room) -> None:
    stream = room.stream(room.tmp / "ck")
    stream.run(range(12))
    given = stream.query_id
    for name in (given, given.upper(), f"{{{given}}}"):
        place = room.checkpoint(name, f"new {name}")
        assert folder.query_of(place) == given
    again = room.stream(room.checkpoint(given.upper(), "ck"))
    again.run(range(14))
    assert again.query_id == given and room.values() == list(range(14))


@pytest.mark.parametrize("others", [True, False], ids=["a log of others", "no log"])
def test_the_folder_of_a_query_that_the_log_does_not_know_is_left_alone(
    room: Room, others: bool
) -> None:
    """The path has a typo in it, and the folder is all there is of that query."""
    stream = room.stream(room.tmp / "ck")
    stream.run(range(3))
    for key in list(room.store.objects):
        room.store.delete(key)
    if others:
        room.stream(room.tmp / "other").run(range(1))
    before = content(stream.place)
    with pytest.raises(OptionError, match=r"holds no microbatch of query .* check the path"):
        room.checkpoint(stream.query_id, "ck")
    assert content(stream.place) == before


def test_a_query_whose_checkpoint_was_elsewhere_is_explained(room: Room) -> None:
    stream = room.stream(room.tmp / "ck")
    stream.run(range(2))
    (stream.place / "state/0/0").mkdir(parents=True)
    stream.run(range(3))
    with pytest.raises(OptionError, match="the query is stateful.*checkpointLocation that it had"):
        room.checkpoint(stream.query_id, "new")
    assert not (room.tmp / "new").exists()
    with pytest.raises(OptionError, match="the query is stateful"):
        room.checkpoint(stream.query_id, "ck")
    assert (stream.place / "state").is_dir()


def test_a_checkpoint_that_was_too_large_is_explained(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place, max_bytes=50).run(range(3))
    # On its own machine it continues.
    room.stream(room.checkpoint(), max_bytes=50).run(range(5))
    assert room.why() is None or room.values() == list(range(5))
    with pytest.raises(OptionError, match="larger than checkpointMaxBytes.*a larger checkpointMax"):
        room.checkpoint("orders", "new")
    assert not (room.tmp / "new").exists()
    room.stream(room.checkpoint()).run(range(7))
    room.stream(room.checkpoint("orders", "new")).run(range(9))
    assert room.values() == list(range(9))


def test_a_compacted_list_that_was_too_large_is_carried_when_there_is_room(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(COMPACT_EVERY - 1))
    room.stream(place, max_bytes=150).run(range(COMPACT_EVERY))
    query_id = folder.query_of(place) or ""
    entry = room.commits()[-1].checkpoints[query_id]
    assert entry.files["sources/0/9.compact"][0] == NOWHERE
    with pytest.raises(OptionError, match="9.compact was larger"):
        room.checkpoint("orders", "new")
    # Each run tries it again once, and reports that it is still too large.
    room.stream(place, max_bytes=150).run(range(COMPACT_EVERY + 3))
    reports = [each for each in room.reported if isinstance(each, events.CheckpointTooLarge)]
    assert [each.file for each in reports].count("sources/0/9.compact") == 2
    room.stream(place).run(range(COMPACT_EVERY + 5))
    first, second = (commit.checkpoints[query_id].files for commit in room.commits()[-2:])
    assert first == second and first["sources/0/9.compact"][0] == room.commits()[-2].position
    room.stream(room.checkpoint("orders", "new")).run(range(25))
    assert room.values() == list(range(25))


def test_a_rebuild_costs_a_few_requests_however_long_the_log_is(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(2 * COMPACT_EVERY + 5))
    last = room.commits()[-1]
    # A thousand of another query.
    query = Query(room.store, Hints("wal", room.tmp / "hints"))
    for number in range(1010):
        query.microbatch(number, (number,))
    room.store.counts.clear()
    room.checkpoint("orders", "new")
    # The head, the query's last record, and the one that carries the compacted list.
    assert room.store.counts == {"LIST": 1, "GET": 3}
    room.store.counts.clear()
    room.checkpoint("orders", "new")
    assert room.why() is None
    assert room.store.counts == {"LIST": 1, "GET": 2}
    # If one of them is missing, no incomplete folder is made.
    ((carrier, _),) = last.checkpoints[last.query_id].files.values()
    room.store.delete(room.log.key(keys.slot(carrier, 1000)))
    expected = rf"position {carrier} is missing .* It holds the checkpoint"
    with pytest.raises(InvalidLogError, match=expected):
        room.checkpoint("orders", "other")
    assert not (room.tmp / "other").exists()
    room.checkpoint()
    assert room.why() is None
