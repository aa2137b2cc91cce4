"""The part of a checkpoint that a record carries, and the repeated microbatches it identifies."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal import DivergedCheckpointError, OptionError, events
from sparkwal.checkpoints import carry, folder, packing
from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.checkpoints.packing import pack
from sparkwal.format.content import Content
from sparkwal.format.header import HERE, NOWHERE, REMOTE, STATEFUL, to_json
from sparkwal.protocol.recovery import find_head
from sparkwal.testing.memory import MemoryStore
from tests.checkpoints.conftest import Room
from tests.checkpoints.stream import COMPACT_EVERY
from tests.protocol.query import Query, hints_in, rows


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def packed(files: dict[str, bytes], known: dict[str, tuple[int, int]], limit: int = 2**20):  # type: ignore[no-untyped-def]
    sizes = {name: len(data) for name, data in files.items()}
    return pack(sizes, files.__getitem__, known, limit)


COMPACT = "sources/0/9.compact"
SMALL = {"offsets/9": b"v1", "sources/0/10": b"10"}


def test_a_compacted_list_is_carried_once_and_named_from_then_on() -> None:
    files = {**SMALL, COMPACT: b"list"}
    first = packed(files, {})
    assert packing.decode(first.block, "") == files
    assert first.files == {COMPACT: (HERE, 4)}
    second = packed(files, {COMPACT: (7, 4)})
    assert packing.decode(second.block, "") == SMALL
    assert second.files == {COMPACT: (7, 4)}


def test_a_compacted_list_of_another_size_is_another() -> None:
    again = packed({COMPACT: b"other"}, {COMPACT: (7, 4)})
    assert again.files == {COMPACT: (HERE, 5)}


def test_files_other_than_compacted_lists_are_carried_again() -> None:
    again = packed(SMALL, {name: (7, len(data)) for name, data in SMALL.items()})
    assert packing.decode(again.block, "") == SMALL and not again.files


def test_without_room_the_largest_file_is_left_out_first() -> None:
    files = {"offsets/9": noise(100), COMPACT: noise(5000, 1), "sources/0/10": noise(2000, 2)}
    for limit, nowhere in ((9000, {COMPACT}), (1500, {COMPACT, "sources/0/10"})):
        carried = packed(files, {}, limit)
        assert len(carried.block) <= limit
        assert carried.files == {name: (NOWHERE, len(files[name])) for name in nowhere}
        assert packing.decode(carried.block, "").keys() == files.keys() - nowhere


def test_a_file_that_was_too_large_is_not_read_again() -> None:
    carried = pack({COMPACT: 10**9}, lambda name: pytest.fail(name), {COMPACT: (NOWHERE, 10**9)}, 9)
    assert carried.files == {COMPACT: (NOWHERE, 10**9)}


def test_a_file_that_no_reader_would_accept_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_FILE_BYTES", 100)
    sizes = {COMPACT: 101, "offsets/9": 2}
    carried = pack(sizes, {"offsets/9": b"v1"}.__getitem__, {}, 2**20)
    assert carried.files == {COMPACT: (NOWHERE, 101)}
    assert packing.decode(carried.block, "") == {"offsets/9": b"v1"}


def test_a_limit_below_every_file_leaves_out_all_files() -> None:
    carried = packed({**SMALL, COMPACT: b"list"}, {}, 1)
    assert packing.decode(carried.block, "") == {} and len(carried.files) == 3


@pytest.mark.proves("carry-whole-folder")
def test_a_record_carries_all_that_its_folder_needs(room: Room) -> None:
    """Over two compactions, with what earlier records carry."""
    stream = room.stream(room.checkpoint())
    for number in range(2 * COMPACT_EVERY + 3):
        stream.run(range(number + 1))
        needed = {
            name: (stream.place / name).read_bytes()
            for name in folder.microbatch_files(stream.place, number)
        }
        header = room.commits()[-1]
        entry = header.checkpoints[stream.query_id]
        assert (entry.position, entry.rows) == (header.position, 1)
        found = packing.read_block(room.log, header.window, stream.query_id, entry.position)
        for name, (position, size) in entry.files.items():
            assert name.endswith(".compact") and position <= header.position
            there = packing.read_block(room.log, header.window, stream.query_id, position)
            assert len(there[name]) == size
            found[name] = there[name]
        assert found == needed
    carriers = [h for h in room.commits() if h.position in {p for p, _ in entry.files.values()}]
    assert len(carriers) == 1


def test_two_queries_of_one_log_carry_their_own(room: Room) -> None:
    for number in range(1, 4):
        first = room.stream(room.checkpoint("first", "ck1"))
        first.run(range(number))
        second = room.stream(room.checkpoint("second", "ck2"))
        second.run(range(100, 100 + number))
    last = room.commits()[-1].checkpoints
    assert last.keys() == {first.query_id, second.query_id}
    shutil.rmtree(first.place)
    shutil.rmtree(second.place)
    room.stream(room.checkpoint("first", "ck1")).run(range(5))
    room.stream(room.checkpoint("second", "ck2")).run(range(100, 105))
    assert sorted(room.values()) == [*range(5), *range(100, 105)]


def test_a_checkpoint_elsewhere_is_said_to_be_remote(room: Room) -> None:
    stream = room.stream(room.tmp / "ck")
    stream.run(range(1))
    for location in ("s3a://bucket/ck", "", str(room.tmp / "another"), "hdfs:///ck"):
        carried = StreamCheckpoint(location, stream.query_id, 2**20).capture(0, None)
        assert (carried.block, carried.reason) == (b"", REMOTE)
    # On this disk, but another query's: Spark's default file system is another.
    carried = StreamCheckpoint(str(stream.place), "another", 2**20).capture(0, None)
    assert (carried.block, carried.reason) == (b"", REMOTE)
    assert StreamCheckpoint(str(stream.place), stream.query_id, 2**20).capture(0, None).block


def test_a_folder_that_another_start_replaced_is_not_said_to_be_remote(room: Room) -> None:
    """The log would carry nothing, and no machine could rebuild the query any more."""
    stream = room.stream(room.checkpoint())
    stream.run(range(2))
    stream.plan(2, range(3), each=1)
    shutil.rmtree(stream.place)
    room.checkpoint()
    with pytest.raises(DivergedCheckpointError, match="another start"):
        stream.commit(2, [2])
    room.stream(room.checkpoint()).run(range(4))
    assert room.values() == [0, 1, 2, 3]


def test_a_query_whose_state_is_elsewhere_is_refused_only_where_more_was_promised(
    room: Room,
) -> None:
    """Each executor of a cluster keeps the state of its partitions on its own disk."""
    own = room.stream(room.tmp / "own")
    (own.place / "state/0/0").mkdir(parents=True)
    own.run(range(1))
    entry = room.commits()[-1].checkpoints[own.query_id]
    assert (entry.reason, entry.bytes, entry.rows) == (STATEFUL, 0, 1)
    made = room.stream(room.checkpoint())
    (made.place / "state/0/0").mkdir(parents=True)
    with pytest.raises(OptionError, match="state/0/0 is missing.*sparkwal wrote nothing"):
        made.run(range(1))
    assert len(room.commits()) == 1


def test_a_folder_that_spark_does_not_use_is_reported_at_once(room: Room) -> None:
    """If Spark's default file system is no disk, a plain path is a path on it."""
    place = room.checkpoint()
    with pytest.raises(OptionError, match="fs.defaultFS.*put file:// before"):
        StreamCheckpoint(str(place), "the query's id", 2**20).capture(0, None)
    for elsewhere in ("s3a://bucket/ck", str(room.tmp)):
        carried = StreamCheckpoint(elsewhere, "the query's id", 2**20).capture(0, None)
        assert carried.reason == REMOTE


def test_one_event_names_a_file_that_is_too_large(room: Room) -> None:
    stream = room.stream(room.checkpoint(), max_bytes=50)
    stream.run(range(2))
    reported = [each for each in room.reported if isinstance(each, events.CheckpointTooLarge)]
    assert len(reported) == len({each.file for each in reported}) and reported
    assert all(each.limit == 50 and each.bytes > 0 for each in reported)


# Replays. The last record holds file 2, as microbatch 2.


@pytest.mark.parametrize("crash", [True, False], ids=["before the note", "the note lost"])
def test_a_replay_of_the_same_input_is_skipped_with_one_get(room: Room, crash: bool) -> None:
    stream = room.stream(room.tmp / "ck")
    stream.run(range(2))
    stream.step(range(3), crash=crash)
    (stream.place / "commits/2").unlink(missing_ok=True)
    again = room.stream(stream.place)
    find_head(room.log)
    room.store.counts.clear()
    again.step(range(3))
    # The cold start, and the record.
    assert room.store.counts == {"LIST": 1, "GET": 1 + 1, "PUT": 1}
    assert isinstance(room.reported[-1], events.SkippedReplay)
    again.run(range(5))
    assert room.values() == [0, 1, 2, 3, 4]


@pytest.mark.proves("same-offsets", "compare-source-files")
@pytest.mark.parametrize("at", [0, 1, 2], ids=lambda at: f"of microbatch {at}")
@pytest.mark.parametrize("last", [3, COMPACT_EVERY, COMPACT_EVERY + 1])
def test_a_backup_that_plans_other_files_is_refused_and_nothing_is_lost(
    room: Room, at: int, last: int
) -> None:
    place = room.checkpoint()
    stream = room.stream(place)
    for number in range(last + 1):
        stream.run(range(number + 1))
        if number == last - 1 - at:
            shutil.copytree(place, room.tmp / "backup")
    shutil.rmtree(place)
    shutil.copytree(room.tmp / "backup", place)
    before = len(room.commits())
    with pytest.raises(DivergedCheckpointError) as caught:
        room.stream(place).run(range(last + 3), each=100)
    assert "sparkwal.checkpoint" in str(caught.value) and "sparkwal wrote nothing" in str(
        caught.value
    )
    assert len(room.commits()) == before
    again = room.stream(room.checkpoint())
    again.run(range(last + 5), each=2)
    assert room.values() == list(range(last + 5))


def content(*values: int) -> Callable[[], Content]:
    return lambda: Content.of([rows(*values)])


@pytest.mark.proves("same-rows")
def test_a_remote_checkpoint_is_held_against_the_rows(room: Room) -> None:
    stream = room.stream(room.tmp / "ck")
    stream.run(range(6), each=3)
    leadership = leadership_of(room)
    remote = StreamCheckpoint("s3a://bucket/ck", stream.query_id, 2**20)
    remote.check_repeated(lambda: room.log, leadership, 1, content(5, 3, 4))
    for values in ((), (3, 4), (3, 4, 5, 6)):
        with pytest.raises(DivergedCheckpointError, match=f"{len(values)} rows now, but 3 at pos"):
            remote.check_repeated(lambda: room.log, leadership, 1, content(*values))
    with pytest.raises(DivergedCheckpointError, match="3 rows now as at position 2.*not the same"):
        remote.check_repeated(lambda: room.log, leadership, 1, content(3, 4, 6))
    with pytest.raises(DivergedCheckpointError, match="microbatches up to 1"):
        remote.check_repeated(lambda: room.log, leadership, 0, content(0, 1, 2))


def test_a_query_that_wrote_before_there_were_checkpoints_is_not_held_to_one(room: Room) -> None:
    stream = room.stream(room.tmp / "ck")
    stream.run(range(2))
    old = replace(leadership_of(room), checkpoints={})
    carrier = StreamCheckpoint(str(stream.place), stream.query_id, 2**20)
    room.store.counts.clear()
    carrier.check_repeated(lambda: pytest.fail("a request"), old, 0, content(99))


def test_without_room_for_the_offsets_the_rows_decide(room: Room) -> None:
    stream = room.stream(room.tmp / "ck", max_bytes=1)
    stream.run(range(4), each=2)
    (stream.place / "commits/1").unlink()
    room.stream(stream.place).run(range(4), each=2)
    assert room.values() == [0, 1, 2, 3]
    carrier = StreamCheckpoint(str(stream.place), stream.query_id, 1)
    with pytest.raises(DivergedCheckpointError, match="not the same ones"):
        carrier.check_repeated(lambda: room.log, leadership_of(room), 1, content(2, 4))


def leadership_of(room: Room):  # type: ignore[no-untyped-def]
    """As a task of the next microbatch would know it."""
    from sparkwal.protocol.leadership import Leadership

    head = find_head(room.log)
    assert head.live is not None
    header = head.live.header
    return Leadership(
        **{
            **dict.fromkeys(Leadership.__dataclass_fields__),
            "window": header.window,
            "txns": header.txns,
            "checkpoints": header.checkpoints,
        }
    )


def test_folders_are_compared_where_the_checkpoint_moved(room: Room, tmp_path: Path) -> None:
    """The location of a checkpoint is not compared."""
    stream = room.stream(room.tmp / "ck")
    stream.run(range(3))
    (stream.place / "commits/2").unlink()
    shutil.move(stream.place, tmp_path / "moved")
    room.stream(tmp_path / "moved").run(range(5))
    assert room.values() == list(range(5))


def test_the_log_knows_a_query_by_its_name(room: Room) -> None:
    place = room.checkpoint("orders")
    stream = room.stream(place)
    stream.run(range(2))
    first, second = room.commits()
    assert first.query == second.query == "orders" != second.query_id
    # Also if the folder was lost and is rebuilt from the log.
    shutil.rmtree(place)
    room.stream(room.checkpoint("orders")).run(range(3))
    assert room.commits()[-1].query == "orders"


def test_a_query_without_a_name_is_known_by_its_id(room: Room) -> None:
    stream = room.stream(room.tmp / "plain")
    stream.run(range(1))
    (commit,) = room.commits()
    assert commit.query == commit.query_id == stream.query_id
    assert b'"name"' not in to_json(commit)


def test_a_new_checkpoint_on_a_log_of_another_query_is_reported_once(room: Room) -> None:
    reported: list[events.Event] = []
    unsubscribe = events.subscribe(reported.append)
    try:
        first = room.stream(room.tmp / "first")
        first.run(range(2))
        second = room.stream(room.tmp / "second")
        second.run(range(3))
        room.stream(first.place).run(range(4))
    finally:
        unsubscribe()
    (event,) = [each for each in reported if isinstance(each, events.AnotherQuery)]
    assert (event.query, event.other, event.position) == (second.query_id, first.query_id, 2)
    assert "in the log twice" in event.advice
    assert f"sparkwal.checkpoint(path, {first.query_id!r})" in event.advice


@pytest.mark.parametrize(
    "reason, advice",
    [
        (STATEFUL, "If that is lost, so is its state"),
        (REMOTE, "the checkpointLocation that query had"),
    ],
)
def test_the_advice_after_a_lost_checkpoint_fits_the_query(
    tmp_path: Path, reason: str, advice: str
) -> None:
    reported: list[events.Event] = []
    unsubscribe = events.subscribe(reported.append)
    place = tmp_path / "ck" if reason == STATEFUL else None
    if place is not None:
        (place / "state/0/0").mkdir(parents=True)
        (place / "offsets").mkdir()
        (place / "offsets/0").write_text('v1\n{}\n{"logOffset":0}')
        (place / "metadata").write_text('{"id":"query"}')
    carrier = StreamCheckpoint(str(place or "s3a://bucket/ck"), "query", 10**6)
    first = Query(MemoryStore(), hints_in(tmp_path), carrier=carrier)
    new = StreamCheckpoint("s3a://bucket/new", "new", 10**6)
    try:
        first.microbatch(0, (1,))
        replace(first, query_id="new", leader_id="host:1:1:y", carrier=new).microbatch(0, (1,))
    finally:
        unsubscribe()
    (event,) = [each for each in reported if isinstance(each, events.AnotherQuery)]
    assert event.other == "query" and advice in event.advice


def test_the_growing_list_of_a_source_is_reported_whenever_it_doubled(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tenth record carries the list of all files: the sum grows with their square."""
    monkeypatch.setattr(carry, "LARGE_LIST", 1000)
    place = room.checkpoint()
    for files in (45, 100):
        room.stream(place).run(range(files))
    sizes = [each.bytes for each in room.reported if isinstance(each, events.SourceListGrows)]
    lists = [
        size
        for commit in room.commits()
        for name, (at, size) in commit.checkpoints[commit.query_id].files.items()
        if at == commit.position
    ]
    assert len(lists) == 10
    powers = [(size // 1000).bit_length() for size in lists]
    before = [0, *powers[:-1]]
    passed = [size for size, now, then in zip(lists, powers, before, strict=True) if now > then]
    assert sizes == passed and len(sizes) == 3
