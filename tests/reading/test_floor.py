"""Reading a log whose older positions were collected, or are while it is read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from reading.collected import DAY_MS, LIMITS, Query, collect, copied, move_floor, written

from sparkwal import log as log_module
from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.format import keys, schema
from sparkwal.log import Log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.floor import LOOK_TTL_MS, Looked
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.planning import ReadTask, StreamedLog, read_tasks, task_rows
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import SCHEMA, StoppedClock

COMMITS = 1100
FLOOR = 1050
HEAD = COMMITS + 1
TARGET = schema.to_arrow(SCHEMA)
Make = Callable[..., LogRange]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    return written(tmp_path_factory.mktemp("hints"), COMMITS)


@pytest.fixture(scope="module")
def longer(whole: MemoryStore, tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    """The same log, 1,100 commits later."""
    store = copied(whole)
    query = Query(store, Hints("wal", tmp_path_factory.mktemp("hints")), query_id="q2")
    for batch_id in range(1100):
        query.microbatch(batch_id, (batch_id,))
    return store


@pytest.fixture
def store(whole: MemoryStore) -> MemoryStore:
    return copied(whole)


@pytest.fixture
def log(store: MemoryStore) -> LogStore:
    """The floor is FLOOR, and what is below was collected."""
    found = LogStore(store, "wal")
    move_floor(found, FLOOR)
    collect(found, FLOOR)
    store.counts.clear()
    return found


def reader(log: LogStore, clock: StoppedClock | None = None, **options: str) -> StreamedLog:
    given = parse(SourceOptions, {"path": "memory", **options})
    found = StreamedLog(given, "default", log, clock or StoppedClock())
    found.refresh()
    return found


def values(log: LogRange, tasks: list[ReadTask]) -> list[int]:
    found: list[int] = []
    for task in tasks:
        task = pickle.loads(pickle.dumps(task))
        for batch in task_rows(log.log.store, task, TARGET, log.options):
            found += batch.column("v").to_pylist()
    return found


def test_a_log_begins_at_its_floor(log: LogStore) -> None:
    found = reader(log)
    assert found.start() == FLOOR and found.end() == HEAD
    assert values(found, read_tasks(found, FLOOR, HEAD, None, 2)) == list(range(FLOOR, HEAD))
    assert reader(log, startingPosition="earliest").entry() == FLOOR


@pytest.mark.proves("new-log-from-0")
def test_a_log_that_is_new_to_its_reader_begins_at_0(log: LogStore) -> None:
    with pytest.raises(CollectedError, match="a log that began after the stream: position 0 of"):
        reader(log).entry()
    assert reader(log, failOnDataLoss="false").entry() == FLOOR


def test_the_first_look_costs_one_list_and_one_get_more(log: LogStore, store: MemoryStore) -> None:
    found = reader(log)
    assert store.counts == {"LIST": 2, "GET": 2}
    store.counts.clear()
    found.refresh()
    found.start()
    assert store.counts == {"GET": 1}


def test_a_log_without_a_lifecycle_costs_one_list_more(store: MemoryStore) -> None:
    found = reader(LogStore(store, "wal"))
    assert found.start() == 0
    assert store.counts == {"LIST": 2, "GET": 1}


def test_waiting_for_a_log_is_one_list_each_time() -> None:
    store = MemoryStore()
    found = reader(LogStore(store, "wal"))
    store.counts.clear()
    found.refresh()
    assert store.counts == {"LIST": 1}


def test_a_start_below_the_floor_was_collected(log: LogStore) -> None:
    found = reader(log, startingPosition="1049")
    with pytest.raises(CollectedError, match=r"startingPosition: position 1049 .*floor, 1050") as e:
        found.start()
    assert e.value.floor == FLOOR
    assert reader(log, startingPosition="1050").start() == FLOOR
    assert reader(log, startingPosition="1049", failOnDataLoss="false").start() == FLOOR


def test_an_end_below_the_floor_was_collected(log: LogStore) -> None:
    found = reader(log, endingPosition="1049")
    with pytest.raises(CollectedError, match="endingPosition: position 1049"):
        found.end()
    found = reader(log, endingPosition="1049", failOnDataLoss="false")
    assert values(found, read_tasks(found, found.start(), found.end(), None, 2)) == []


# Each record of this log has the time of the stopped clock.
BEFORE, SINCE = "1999-12-31", "2100-01-01"


def test_a_time_whose_rows_were_collected_is_refused_as_their_positions_are(log: LogStore) -> None:
    with pytest.raises(CollectedError, match="startingTimestamp: position 1049 .*floor, 1050"):
        reader(log, startingTimestamp=BEFORE).start()
    lossy = reader(log, startingTimestamp=BEFORE, failOnDataLoss="false")
    assert lossy.start() == FLOOR
    # Commands that show records begin at the floor.
    assert reader(log, startingTimestamp=BEFORE).start(from_floor=True) == FLOOR


def test_an_end_before_the_floor_by_time_was_collected(log: LogStore) -> None:
    with pytest.raises(CollectedError, match="endingTimestamp: position 1049 .*floor, 1050"):
        reader(log, endingTimestamp=BEFORE).end()
    assert reader(log, endingTimestamp=BEFORE, failOnDataLoss="false").end() == FLOOR
    assert reader(log, endingTimestamp=BEFORE).end(from_floor=True) == FLOOR
    assert reader(log, endingTimestamp=SINCE).end() == HEAD


def timed(folder: Path, floor: int) -> LogStore:
    """Value n at position n, a day after the one before; position 0 is the first day's too."""
    clock = StoppedClock()
    query = Query(MemoryStore(concurrency=4), Hints("wal", folder), clock=clock)
    for value in range(1, 7):
        query.microbatch(value, (value,))
        clock.wall_ms += DAY_MS
    found = LogStore(query.store, query.prefix)
    move_floor(found, floor)
    return found


@pytest.mark.parametrize(
    ("day", "start", "end"),
    [(-1, None, 3), (0, None, None), (1, None, None), (2, 3, 4), (3, 4, 5), (9, 7, 7)],
)
def test_a_time_is_refused_only_if_rows_of_it_were_collected(
    tmp_path: Path, day: int, start: int | None, end: int | None
) -> None:
    """Positions 0, 1 and 2 are below the floor; they are of the days 0, 0 and 1."""
    log = timed(tmp_path, 3)
    moment = str(StoppedClock().wall_ms + day * DAY_MS)
    for option, expected in (("startingTimestamp", start), ("endingTimestamp", end)):
        found = reader(log, **{option: moment})
        bound = found.start if option == "startingTimestamp" else found.end
        if expected is None:
            with pytest.raises(CollectedError, match=f"{option}: position 2 "):
                bound()
        else:
            assert bound() == expected


def test_a_leader_record_below_the_floor_is_no_row_of_a_time(tmp_path: Path) -> None:
    log = timed(tmp_path, 3)
    clock = StoppedClock()
    clock.wall_ms += 9 * DAY_MS
    Query(log.store, Hints("wal", tmp_path / "next"), query_id="q2", clock=clock).plan()
    move_floor(log, 8)
    moment = str(StoppedClock().wall_ms + 8 * DAY_MS)
    assert reader(log, startingTimestamp=moment).start() == 8


def test_a_stream_that_resumes_below_the_floor_raises(log: LogStore) -> None:
    found = reader(log)
    found.check_offset(1000, found.log_id)
    with pytest.raises(CollectedError, match="the stream.s offset: position 1000"):
        found.advance(1000, HEAD, None)
    with pytest.raises(CollectedError):
        found.first(1000)
    assert found.advance(FLOOR, HEAD, None) == HEAD


def test_with_fail_on_data_loss_false_a_stream_continues_at_the_floor(log: LogStore) -> None:
    found = reader(log, failOnDataLoss="false")
    assert found.advance(1000, HEAD, None) == HEAD
    first = found.first(1000)
    assert values(found, read_tasks(found, first, HEAD, None, 2)) == list(range(FLOOR, HEAD))


def test_a_stream_that_waits_for_a_time_raises_for_collected_rows(
    store: MemoryStore, tmp_path: Path
) -> None:
    clock = StoppedClock()
    log = LogStore(store, "wal")
    found = reader(log, clock, startingTimestamp="2100-01-01")
    begin = found.start()
    assert begin == HEAD
    Query(store, Hints("wal", tmp_path), query_id="q2").microbatch(0, (1,))
    move_floor(log, HEAD + 2)
    clock.since_boot_ms += LOOK_TTL_MS
    with pytest.raises(CollectedError):
        found.advance(begin, found.refresh(), None)


# Events between a look at the floor and a delivery.


def move_on(log: LogStore, floor: int) -> None:
    move_floor(log, floor)
    collect(log, floor)


@pytest.mark.proves("floor-look-expires")
def test_a_look_is_repeated_when_it_is_old_and_not_before(
    log: LogStore, store: MemoryStore
) -> None:
    clock = StoppedClock()
    found = reader(log, clock)
    begin = found.advance(FLOOR, found.refresh(), None)
    for _ in range(3):
        store.counts.clear()
        clock.since_boot_ms += DAY_MS // 8
        assert found.advance(begin, found.refresh(), None) == begin
        assert store.counts == {"GET": 1}
    clock.since_boot_ms += DAY_MS // 8
    store.counts.clear()
    found.refresh()
    # At the chain, and at the head: the record that the stream waits for may be lost.
    assert store.counts == {"LIST": 2, "GET": 3}
    # A clock of another boot does not count, nor does one that was set.
    for change in ("boot", "wall_ms"):
        setattr(clock, change, {"boot": "next", "wall_ms": clock.wall_ms + DAY_MS}[change])
        store.counts.clear()
        found.refresh()
        assert store.counts["LIST"] == 2


def test_a_shorter_grace_shortens_the_trust(store: MemoryStore) -> None:
    log, clock = LogStore(store, "wal"), StoppedClock()
    move_floor(log, FLOOR, grace_ms=10_000)
    found = reader(log, clock)
    store.counts.clear()
    clock.since_boot_ms += 4_999
    found.floor.check(FLOOR)
    assert store.counts == {}
    clock.since_boot_ms += 1
    found.floor.check(FLOOR)
    assert store.counts == {"LIST": 1, "GET": 1}


def stray(log: LogStore, position: int, whole: MemoryStore) -> None:
    """A late PUT of the record that was once sent there fills a slot that is free again."""
    key = log.key(keys.slot(position, 1000))
    log.store.delete(key)
    assert log.store.put_if_absent(key, whole.objects[key])


@pytest.mark.parametrize("free", [True, False], ids=["free", "stray"])
def test_a_stream_that_slept_at_the_head_detects_later_records(
    store: MemoryStore, longer: MemoryStore, free: bool
) -> None:
    """Its slot answers 404 for ever, or holds a record that was never acknowledged."""
    log, clock = LogStore(store, "wal"), StoppedClock()
    found = reader(log, clock)
    assert found.gap == HEAD
    store.objects = dict(longer.objects)
    head = find_head(log).gap
    whole = copied(store)
    move_on(log, head)
    key = log.key(keys.slot(HEAD, 1000))
    assert key not in store.objects
    if not free:
        stray(log, HEAD, whole)
    clock.since_boot_ms += 3 * LOOK_TTL_MS
    assert found.refresh() == head
    with pytest.raises(CollectedError):
        found.advance(HEAD, head, None)


class Sleeping(MemoryStore):
    """After `sleeps` GETs its reader sleeps, and `meanwhile` happens."""

    sleeps = -1
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def get(self, key: str) -> bytes:
        if "/batches/" in key:
            self.sleeps -= 1
            if self.sleeps == 0:
                self.meanwhile()
        return super().get(key)


def sleeping(whole: MemoryStore) -> tuple[Sleeping, LogStore, StoppedClock]:
    store = Sleeping(concurrency=1)
    for key, body in whole.objects.items():
        store.put_if_absent(key, body)
    return store, LogStore(store, "wal"), StoppedClock()


def gone(log: LogStore, clock: StoppedClock, floor: int) -> Callable[[], None]:
    def happen() -> None:
        clock.since_boot_ms += 2 * LOOK_TTL_MS
        clock.wall_ms += 2 * LOOK_TTL_MS
        move_on(log, floor)

    return happen


@pytest.mark.proves("floor-after-read")
@pytest.mark.parametrize("sleeps", [1, 2, 40])
def test_records_that_were_read_while_the_reader_slept_are_not_delivered(
    whole: MemoryStore, sleeps: int
) -> None:
    store, log, clock = sleeping(whole)
    found = reader(log, clock)
    store.sleeps, store.meanwhile = sleeps, gone(log, clock, HEAD)
    delivered = []
    with pytest.raises(CollectedError):
        for record in found.records(0, HEAD, at_once=1):
            delivered.append(record.header.position)
    # No record of the chunk in which it slept.
    assert len(delivered) < sleeps


def test_a_record_after_a_dead_stray_is_not_delivered_as_if_nothing_was_lost(
    store: MemoryStore,
) -> None:
    """The record at the reader's position is dead and skipped; the former one was collected."""
    log, clock = LogStore(store, "wal"), StoppedClock()
    found = reader(log, clock)
    after_it = list(found.records(HEAD - 1, HEAD))
    assert list(found.floor.usable(HEAD - 2, HEAD, iter(after_it))) == after_it
    move_floor(log, HEAD - 1)
    clock.since_boot_ms += LOOK_TTL_MS
    with pytest.raises(CollectedError):
        next(found.floor.usable(HEAD - 2, HEAD, iter(after_it)))
    # Nor is a range of nothing but dead records an empty one.
    with pytest.raises(CollectedError):
        list(found.floor.usable(HEAD - 2, HEAD, iter([])))


@pytest.mark.parametrize("inline", [0, 2**20], ids=["objects", "inlined"])
def test_a_task_that_waited_looks_again_before_it_delivers(tmp_path: Path, inline: int) -> None:
    store = MemoryStore(concurrency=4)
    query = Query(store, Hints("wal", tmp_path))
    query.limits = type(LIMITS)(2**20, 1, inline, 16 * 2**20, "zstd")
    for value in range(20):
        query.microbatch(value, (value,))
    log = LogStore(store, "wal")
    found = reader(log, None)
    tasks = read_tasks(found, 0, found.gap, None, 2)
    move_on(log, 10)
    # By this machine's clock the plan is years old.
    with pytest.raises(CollectedError):
        values(found, tasks)


def test_a_task_of_a_recent_plan_makes_no_look(store: MemoryStore) -> None:
    clock = StoppedClock()
    found = reader(LogStore(store, "wal"), clock)
    (task,) = read_tasks(found, 1000, 1010, None, 1)
    store.counts.clear()
    clock.boot, clock.since_boot_ms = "of another machine", 5
    assert list(task_rows(store, task, TARGET, found.options, clock))
    assert store.counts["LIST"] == 0


@pytest.mark.proves("floor-after-read")
@pytest.mark.parametrize("count", [20, 700], ids=["pieces", "stretches"])
def test_a_task_that_sleeps_under_way_delivers_nothing_of_what_was_collected(
    whole: MemoryStore, count: int
) -> None:
    store, log, clock = sleeping(whole)
    found = reader(log, clock)
    task = read_tasks(found, 1, 1 + count, None, 1)[0]
    store.sleeps, store.meanwhile = 5, gone(log, clock, HEAD)
    delivered = []
    with pytest.raises(CollectedError):
        for batch in task_rows(store, task, TARGET, found.options, clock):
            delivered += batch.column("v").to_pylist()
    assert len(delivered) < 5


# sparkwal.Log


@pytest.fixture
def opened(log: LogStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Log]:
    monkeypatch.setattr(log_module, "open_log", lambda *args, **more: log)
    return lambda **options: Log("memory", **options)


def test_a_log_is_read_from_its_floor_on(opened: Callable[..., Log], store: MemoryStore) -> None:
    assert opened().to_pandas()["v"].tolist() == list(range(FLOOR, HEAD))
    assert [header.position for header in opened().records()] == list(range(FLOOR, HEAD))
    store.counts.clear()
    head = opened().head()
    assert head is not None and head.position == COMMITS
    assert store.counts == {"LIST": 1, "GET": 1}


def test_a_log_reports_its_collected_positions(opened: Callable[..., Log]) -> None:
    for read in (opened().scan, opened().to_pandas, lambda *a: list(opened().records(*a))):
        for bounds in ((FLOOR - 1,), (None, 5)):
            with pytest.raises(CollectedError):
                read(*bounds)
    tolerant = opened(failOnDataLoss=False)
    assert len(tolerant.to_pandas(5)) == HEAD - FLOOR
    assert len(tolerant.to_pandas(5, 9)) == 0


# Verification, and the head


def test_a_collected_log_is_sound(log: LogStore, store: MemoryStore, whole: MemoryStore) -> None:
    report = verify_store(log, "wal")
    assert report.ok and (report.floor, report.head, report.rows) == (FLOOR, COMMITS, HEAD - FLOOR)
    assert "positions 1050…1100" in str(report)
    # Stray records and objects that are not deleted yet do not count.
    stray(log, 3, whole)
    log.store.put_if_absent(log.key(keys.data(1049, 1000, 5)), b"")
    log.store.put_if_absent(log.key(keys.data(1051, 1000, 5)), b"")
    report = verify_store(log, "wal")
    assert report.ok and report.orphans == [log.key(keys.data(1051, 1000, 5))]
    log.store.delete(log.key(keys.slot(FLOOR, 1000)))
    assert not verify_store(log, "wal").ok


def test_a_log_that_ends_before_its_floor_was_cut(log: LogStore) -> None:
    for position in range(FLOOR - 10, HEAD):
        log.store.delete(log.key(keys.data(position, 1000, 0)))
        log.store.delete(log.key(keys.slot(position, 1000)))
    with pytest.raises(InvalidLogError, match="before its floor 1050: it was cut"):
        reader(log)
    assert "it was cut" in str(verify_store(log, "wal"))


@pytest.mark.parametrize("strays", [(), (0,), (3, 40)], ids=str)
def test_a_log_with_only_its_last_thousand_slots_continues(
    store: MemoryStore, whole: MemoryStore, tmp_path: Path, strays: tuple[int, ...]
) -> None:
    log = LogStore(store, "wal")
    move_floor(log, HEAD)
    collect(log, HEAD)
    for position in strays:
        stray(log, position, whole)
    prefix = keys.batches_prefix("wal")
    assert sum(key.startswith(prefix) for key in store.objects) == 1000 + len(strays)
    assert find_head(log).position == COMMITS and find_head(log).oldest is None
    found = reader(log)
    assert (found.start(), found.end()) == (HEAD, HEAD)
    assert verify_store(log, "wal").ok
    # A new leader continues at the end of the log.
    query = Query(store, Hints("wal", tmp_path), query_id="q2")
    assert query.microbatch(0, (7,)) == HEAD + 1
    assert query.microbatch(1, (8,)) == HEAD + 2
    found.refresh()
    end = found.advance(HEAD, found.gap, None)
    assert values(found, read_tasks(found, HEAD, end, None, 2)) == [7, 8]
    assert verify_store(log, "wal").ok


def test_the_first_record_above_the_floor_may_be_dead(tmp_path: Path) -> None:
    from sparkwal.appender.appender import Appender

    log = LogStore(MemoryStore(), "wal")
    for producer in ("p", "q"):
        with Appender(
            log, pa.schema([("v", pa.int64())]), producer_id=producer, maxInFlightRequests=3
        ) as wal:
            for value in range(5):
                wal.append([{"v": value}]).result()
    for floor in range(find_head(log).gap):
        move_floor(log, floor)
        assert verify_store(log, "wal").ok
        found = reader(log)
        assert [r.header.position for r in found.records(floor, found.gap)] == list(
            range(floor, found.gap)
        )


def test_a_read_that_is_made_later_relies_on_its_plans_look(store: MemoryStore) -> None:
    """A DataFrame of table and log outlives the compactions after it, for half of the grace."""
    log, clock = LogStore(store, "wal"), StoppedClock()
    move_floor(log, 1)
    planned = reader(log, clock)
    seen = planned.floor.looked()
    assert Looked(**json.loads(json.dumps(vars(seen)))) == seen
    move_floor(log, HEAD - 1)

    def later(pinned: Looked) -> LogRange:
        settings = parse(SourceOptions, {"path": "s3://b/wal", "startingPosition": "3"})
        found = LogRange(settings, "default", log, clock, pinned=pinned)
        store.counts.clear()
        found.refresh()
        return found

    with pytest.raises(CollectedError):
        later(Looked(planned.log_id)).start()
    clock.since_boot_ms += DAY_MS // 3
    clock.wall_ms += DAY_MS // 3
    found = later(seen)
    assert store.counts["LIST"] == 1
    assert found.start() == 3
    assert [r.header.position for r in found.records(3, 6)] == [3, 4, 5]
    clock.since_boot_ms += DAY_MS // 3
    clock.wall_ms += DAY_MS // 3
    with pytest.raises(CollectedError):
        later(seen).start()


def test_a_read_that_is_made_later_is_of_the_log_that_it_was_planned_of(store: MemoryStore) -> None:
    for place in ("wal", "nothing"):
        settings = parse(SourceOptions, {"path": f"s3://b/{place}"})
        pinned = Looked("another")
        found = LogRange(settings, "default", LogStore(store, place), StoppedClock(), pinned=pinned)
        with pytest.raises(InvalidLogError, match="log another at .* was deleted or recreated"):
            found.refresh()
