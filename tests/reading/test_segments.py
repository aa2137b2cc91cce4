"""Segments: readers get the same with them, without them and with damaged ones."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.events import Event
from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import SegmentHeader, crc_hex, to_json, to_metadata
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading import planning, segmenting
from sparkwal.reading.history import walk
from sparkwal.reading.planning import Budget, StreamedLog, read_tasks, task_rows
from sparkwal.reading.repair import give_up_record
from sparkwal.reading.segmenting import delete_damaged
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import Page, Refusal
from sparkwal.testing.memory import MemoryStore
from tests.appender.faulty_store import FaultyStore
from tests.logs import until
from tests.reading.collected import move_floor
from tests.reading.segmented import (
    BLOCK,
    INLINED,
    all_of,
    everything,
    ignored,
    log_of,
    looked,
    opened,
    query_in,
    random_log,
    segmented,
    segments_in,
    small_commits,
    small_parts,
    without_segments,
)
from tests.reading.segmented import short_blocks as short_blocks

pytestmark = pytest.mark.usefixtures("short_blocks")


@pytest.mark.parametrize(
    "seed", [1, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 30))]
)
def test_readers_get_the_same_with_and_without_segments(seed: int, tmp_path: Path) -> None:
    store = random_log(seed, tmp_path)
    plain = without_segments(store)
    made = segmented(store)
    assert made.blocks and not made.skipped
    assert len(segments_in(store)) == len(made.blocks)
    draw = random.Random(seed)
    gap = looked(store).gap
    for start in (None, draw.randrange(gap)):
        for end in (None, draw.randrange(start or 0, gap)):
            assert [*all_of(store, start, end)] == [*all_of(plain, start, end)], (start, end)


def test_two_makers_of_one_block_make_the_same_bytes(tmp_path: Path) -> None:
    store = random_log(1, tmp_path)
    plain = without_segments(store)
    segmented(store)
    segmented(plain)
    assert store.objects == plain.objects
    assert segmented(store).blocks == []


def test_a_scan_reads_each_segment_once(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 5 * BLOCK + 2)
    made = segmented(store)
    assert made.blocks == [0, 1, 2, 3, 4]
    store.counts.clear()
    assert opened(store).scan().read_all().num_rows == 5 * BLOCK + 1
    # The head, the floor and the segments; the head's record, each segment, one record after them,
    # and a witness for the first four segments and for the others.
    assert store.counts == {"LIST": 3, "GET": 1 + 5 + 1 + 2}
    store.counts.clear()
    assert len([*opened(store).records()]) == 5 * BLOCK + 2
    assert store.counts == {"LIST": 3, "GET": 1 + 5 + 1 + 2}
    store.counts.clear()
    (count,) = opened(store).sql("SELECT count(*) FROM records").read_all().to_pylist()
    assert [*count.values()] == [5 * BLOCK + 2]
    assert store.counts == {"LIST": 3, "GET": 1 + 5 + 1 + 2}


def test_a_walk_newest_first_reads_segments_after_the_first_thousand_records(
    tmp_path: Path,
) -> None:
    store = small_commits(tmp_path, 9 * BLOCK + 2)
    segmented(store)
    log = looked(store)
    store.counts.clear()
    newest = walk(log, 0, log.gap, newest_first=True, at_once=1)
    assert [next(newest).header.position for _ in range(3)] == [9 * BLOCK + 1, 9 * BLOCK, 71]
    assert "LIST" not in store.counts
    rest = [item.header.position for item in newest if isinstance(item, SlotRecord)]
    assert rest == [*range(70, -1, -1)]
    # The last thousand records but the head's; nine segments, and a witness for each group.
    assert store.counts == {"LIST": 1, "GET": BLOCK - 1 + 9 + 4}


def test_a_read_of_less_than_a_block_makes_the_requests_of_before(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)
    plain = without_segments(store)
    segmented(store)
    for each in (store, plain):
        each.counts.clear()
        opened(each).scan(2, BLOCK).read_all()
    assert store.counts == plain.counts
    for each in (store, plain):
        each.counts.clear()
        opened(each).scan(2, BLOCK + 2).read_all()
    assert store.counts["LIST"] == plain.counts["LIST"] == 3


@pytest.mark.parametrize("parallelism", [2, 5])
def test_the_tasks_of_a_batch_read_take_whole_segments(
    parallelism: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "PLANNED_RECORDS", 4)
    store = random_log(6, tmp_path)
    plain = without_segments(store)
    segmented(store)
    expected = opened(plain).scan(include_metadata=True).read_all()
    log = looked(store)
    tasks = read_tasks(log, log.start(), log.end(), None, parallelism)
    assert all(task.segmented and task.start % BLOCK == 0 for task in tasks)
    assert not any(task.segmented for task in read_tasks(looked(plain), 0, log.end(), None, 2))
    batches = [
        batch
        for task in pickle.loads(pickle.dumps(tasks))
        for batch in task_rows(store, task, expected.schema, log.options)
    ]
    assert pa.Table.from_batches(batches).to_pylist() == expected.to_pylist()


def test_large_rows_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmenting, "LARGEST_PART", 400)
    store = random_log(3, tmp_path)
    plain = without_segments(store)
    segmented(store)
    assert [*all_of(store)] == [*all_of(plain)]


def test_rows_in_several_frames_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch, frame=100, run=3000, front=1000)
    store = random_log(4, tmp_path)
    plain = without_segments(store)
    segmented(store)
    for start in (None, 3, 11):
        assert [*all_of(store, start)] == [*all_of(plain, start)]


@pytest.mark.parametrize("part", [0, 1, 3, 6, 9, 11])
def test_a_flipped_bit_anywhere_in_a_segment_is_one_event(
    part: int, tmp_path: Path, seen: list[Event]
) -> None:
    store = random_log(2, tmp_path)
    expected = everything(without_segments(store))
    segmented(store)
    key = segments_in(store)[1]
    body = bytearray(store.objects[key])
    body[len(body) * part // 12] ^= 0x40
    sound, store.objects[key] = store.objects[key], bytes(body)
    seen.clear()
    assert opened(store).scan(include_metadata=True).read_all().to_pylist() == expected[1]
    assert ignored(seen) in ([], [key])
    assert everything(store) == expected
    assert any(key in problem for problem in verify_store(log_of(store), "wal").problems)
    segmented(store)
    assert store.objects[key] == sound


@pytest.mark.parametrize("size", [0, 15, 500, -200])
def test_a_segment_that_is_cut_off_is_one_event(
    size: int, tmp_path: Path, seen: list[Event]
) -> None:
    store = random_log(2, tmp_path)
    expected = everything(without_segments(store))
    segmented(store)
    key = segments_in(store)[1]
    store.objects[key] = store.objects[key][:size]
    seen.clear()
    assert everything(store) == expected
    assert {*ignored(seen)} <= {key}
    if 0 <= size <= 500:
        assert ignored(seen) == [key, key]


def test_a_missing_segment_is_no_event(tmp_path: Path, seen: list[Event]) -> None:
    store = random_log(2, tmp_path)
    expected = everything(without_segments(store))
    segmented(store)
    del store.objects[segments_in(store)[2]]
    assert everything(store) == expected
    assert ignored(seen) == []
    assert segmented(store).blocks == [2]


def test_a_segment_under_the_key_of_another_is_one_event(tmp_path: Path, seen: list[Event]) -> None:
    store = random_log(2, tmp_path)
    expected = everything(without_segments(store))
    segmented(store)
    first, second, *_ = segments_in(store)
    store.objects[second] = store.objects[first]
    assert everything(store) == expected
    assert ignored(seen) == [second, second]


def test_a_header_that_lies_is_one_event(tmp_path: Path, seen: list[Event]) -> None:
    store = random_log(2, tmp_path)
    expected = everything(without_segments(store))
    segmented(store)
    key = segments_in(store)[1]
    front = arrowfile.open_front(store.objects[key], key)
    assert isinstance(front.header, SegmentHeader)
    lies = [
        {"records": front.header.records - 1},
        {"last": front.header.last._replace(position=front.header.last.position - 1)},
        {"frames": front.header.frames[1:]},
        {"frames": (*front.header.frames, front.header.frames[-1]._replace(offset=0))},
        {"witness": front.header.witness._replace(position=10**9)},
        {"log_id": "another"},
    ]
    body = store.objects[key][front.body :]
    for lie in lies:
        seen.clear()
        text = to_json(replace(front.header, **lie))
        metadata = to_metadata(text, crc_hex(text), front.spark_schema)
        schema_message = schema.to_arrow(front.spark_schema).with_metadata(metadata).serialize()
        store.objects[key] = arrowfile.MAGIC + bytes(schema_message) + body
        assert everything(store) == expected
        assert ignored(seen) == [key, key], lie


def test_a_log_made_again_at_the_path_ignores_the_segments_of_the_former(
    tmp_path: Path, seen: list[Event]
) -> None:
    former = small_commits(tmp_path / "former", 3 * BLOCK - 1)
    segmented(former)
    store = small_commits(tmp_path / "new", 4 * BLOCK - 1)
    expected = everything(store)
    left = {key: former.objects[key] for key in segments_in(former)}
    store.objects |= left
    assert everything(store) == expected
    assert {*ignored(seen)} == {*left}
    # Without a look at the others only the missing one is made.
    assert segmented(store, every=False).blocks == [2]
    made = segmented(store)
    assert made.blocks == made.replaced == [0, 1]
    assert everything(store) == expected


def test_a_restore_of_an_older_copy_leaves_segments_that_nobody_uses(
    tmp_path: Path, seen: list[Event]
) -> None:
    store = MemoryStore()
    query = query_in(store, tmp_path, limits=INLINED)
    for batch_id in range(2 * BLOCK + 3):
        query.microbatch(batch_id, (batch_id,))
    copy = dict(store.objects)
    for batch_id in range(2 * BLOCK + 3, 5 * BLOCK):
        query.microbatch(batch_id, (batch_id,))
    segmented(store)
    kept = {key: store.objects[key] for key in segments_in(store)}
    # The records are those of the older copy, and the log goes another way from there.
    store.objects = copy | kept
    query = query.restarted()
    for batch_id in range(2 * BLOCK + 3, 5 * BLOCK):
        query.microbatch(batch_id, (-batch_id,))
    expected = everything(without_segments(store))
    assert everything(store) == expected
    assert {*ignored(seen)} == {*segments_in(store)[2:]}
    made = segmented(store)
    assert made.blocks == made.replaced == [2, 3, 4][: len(made.blocks)]
    assert everything(store) == expected


def test_no_segment_is_made_of_what_is_not_decided() -> None:
    store = FaultyStore()
    with store.appender() as wal:
        # The last record of the block is built while another one is in flight.
        store.hold(BLOCK - 2)
        tickets = [wal.append([{"v": value}]) for value in range(BLOCK - 1)]
        until(lambda: BLOCK - 1 in store.arrived)
        store.release(BLOCK - 2)
        for ticket in tickets:
            ticket.result(30)
    head = find_head(log_of(store.inner))
    assert head.position == BLOCK - 1
    assert segmented(store.inner).blocks == []


def test_the_last_block_of_a_log_that_stopped_gets_a_segment(tmp_path: Path) -> None:
    """Its last record has decided all before it, and is its witness."""
    store = small_commits(tmp_path, 2 * BLOCK)
    expected = everything(store)
    assert segmented(store).blocks == [0, 1]
    assert segmented(store, every=True).others == 2
    assert verify_store(log_of(store), "wal").ok
    store.counts.clear()
    assert everything(store) == expected
    # For records and rows each: the head's record, two segments, and the witness of both.
    assert store.counts["GET"] == 2 * (1 + 2 + 1)


def test_a_log_goes_on_after_its_last_block_got_a_segment(
    tmp_path: Path, seen: list[Event]
) -> None:
    query = query_in(store := MemoryStore(), tmp_path, limits=INLINED)
    for batch_id in range(2 * BLOCK - 1):
        query.microbatch(batch_id, (batch_id,))
    assert segmented(store).blocks == [0, 1]
    for batch_id in range(2 * BLOCK - 1, 3 * BLOCK):
        query.microbatch(batch_id, (batch_id,))
    assert segmented(store).blocks == [2]
    assert everything(store) == everything(without_segments(store))
    assert verify_store(log_of(store), "wal").ok and not delete_damaged(looked(store), 1)
    assert ignored(seen) == []


def test_the_last_record_of_a_log_is_lost_and_written_again(
    tmp_path: Path, seen: list[Event]
) -> None:
    """The segment of its block is of no use: its witness is another record."""
    query = query_in(store := MemoryStore(), tmp_path, limits=INLINED)
    for batch_id in range(2 * BLOCK - 1):
        query.microbatch(batch_id, (batch_id,))
    segmented(store)
    del store.objects[log_of(store).key(keys.slot(2 * BLOCK - 1, 1000))]
    query = query.restarted()
    for batch_id in range(2 * BLOCK - 2, 2 * BLOCK + 2):
        query.microbatch(batch_id, (-batch_id,))
    assert everything(store) == everything(without_segments(store))
    newest, _ = segments_in(store)[::-1]
    assert {*ignored(seen)} == {newest}


def test_a_damaged_record_leaves_its_block_alone_without_a_segment(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)
    key = log_of(store).key(keys.slot(BLOCK + 3, 1000))
    store.objects[key] = store.objects[key][:500] + b"damaged" + store.objects[key][507:]
    made = segmented(store)
    assert made.blocks == [0, 2] and [*made.damaged] == [1]
    assert segmented(store, without={1}).damaged == {}


def test_a_maker_without_the_right_to_delete_leaves_damaged_segments(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)
    segmented(store)
    oldest, damaged, _ = segments_in(store)
    del store.objects[oldest]
    store.objects[damaged] = b"damaged"

    def refuse(key: str) -> None:
        raise Refusal("no right to delete")

    store.delete = refuse  # type: ignore[method-assign]
    made = segmented(store)
    assert made.blocks == [0] and not made.replaced
    assert "no right to delete" in made.skipped[1]


def test_a_limit_of_segments(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 5 * BLOCK + 2)
    assert segmented(store, most=2).blocks == [0, 1]
    assert segmented(store, every=False, most=2).blocks == [2, 3]


def test_no_segment_is_made_below_the_floor_and_the_floor_rules_over_segments(
    tmp_path: Path,
) -> None:
    store = small_commits(tmp_path, 4 * BLOCK - 1)
    segmented(store)
    move_floor(log_of(store), BLOCK + 2)
    plain = without_segments(store)
    assert everything(store) == everything(plain)
    with pytest.raises(CollectedError):
        opened(store).scan(BLOCK, None)
    assert segmented(plain).blocks == [2]


def test_a_record_is_given_up_only_after_its_segment(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)
    segmented(store)
    position = BLOCK + 3
    del store.objects[log_of(store).key(keys.slot(position, 1000))]
    with pytest.raises(InvalidLogError, match="it is not lost: sparkwal repair .* puts it back"):
        give_up_record(log_of(store), keys.slot(position, 1000))
    del store.objects[keys.segment_key("wal", 1, 1000)]
    give_up_record(log_of(store), keys.slot(position, 1000))
    assert opened(store).scan().read_all().num_rows == 3 * BLOCK
    assert segmented(store).blocks == [1]
    assert opened(store).scan().read_all().num_rows == 3 * BLOCK


def test_the_segment_of_the_last_block_goes_before_a_record_is_given_up(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 2 * BLOCK)
    segmented(store)
    position = BLOCK + 3
    del store.objects[log_of(store).key(keys.slot(position, 1000))]
    damaged = keys.segment_key("wal", 1, 1000)
    store.objects[damaged] = b"damaged"
    give_up_record(log_of(store), keys.slot(position, 1000))
    assert damaged not in store.objects
    assert segmented(store).blocks == [1]
    assert opened(store).scan().read_all().num_rows == 2 * BLOCK - 2


def test_a_reader_whom_a_policy_shows_no_segments_reads_the_records(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 3 * BLOCK)
    segmented(store)
    inner = store.list

    def refuse(prefix: str, limit: int = 1000, after: str = "") -> Page:
        if "/segments/" in prefix:
            raise Refusal("no right to list segments/")
        return inner(prefix, limit, after)

    store.list = refuse  # type: ignore[method-assign]
    assert opened(store).scan().read_all().num_rows == 3 * BLOCK - 1


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))]
)
def test_a_stream_plans_the_same_microbatches_with_and_without_segments(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(planning, "PLANNED_RECORDS", draw.choice((4, 20, 512)))
    store = random_log(seed, tmp_path)
    plain = without_segments(store)
    segmented(store)
    options = draw.choice(
        [
            {"maxRowsPerTrigger": "70"},
            {"maxBytesPerTrigger": "9000"},
            {"maxCommitsPerTrigger": "13"},
            {"onCorruption": "stop", "maxCommitsPerTrigger": "30"},
            {"failOnDataLoss": "false"},
        ]
    )
    assert [*microbatches(store, options)] == [*microbatches(plain, options)], options


def microbatches(store: MemoryStore, given: dict[str, str]) -> Iterator[tuple[int, int, object]]:
    """Each microbatch of a stream: its positions and its rows."""
    options = parse(SourceOptions, {"path": "memory", **given})
    log = StreamedLog(options, "default", log_of(store))
    log.refresh()
    assert log.spark_schema is not None
    fields = [pa.field("_wal_position", pa.int64()), *schema.to_arrow(log.spark_schema)]
    begin = log.start()
    while (end := log.advance(begin, log.refresh(), Budget(options))) > begin:
        tasks = read_tasks(log, begin, end, None, 2)
        batches = [
            each for task in tasks for each in task_rows(store, task, pa.schema(fields), options)
        ]
        yield begin, end, pa.Table.from_batches(batches, pa.schema(fields)).to_pylist()
        log.forget(end)
        begin = end
