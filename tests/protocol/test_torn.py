"""Torn records: the store kept a part of a slot's record, and nobody acknowledged it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparkwal
from sparkwal import events
from sparkwal.errors import InvalidLogError, OutcomeUnknownError, StoreUnavailableError
from sparkwal.events import Event
from sparkwal.format import arrowfile, keys
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.liveness import last_live, live_until
from sparkwal.protocol.records import live_records, newer
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import SlotRecord, TornRecord, read_slot
from sparkwal.protocol.view import LENIENT, DamagePolicy, LogView
from sparkwal.reading.history import walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore, Transient
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.testing.memory import MemoryStore
from tests.logs import rows
from tests.protocol.query import LIMITS, Query, hints_in, replace

LOG = "wal"


class Tearing(MemoryStore):
    """Keeps `kept` bytes of the next PUT at a position, without an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.tears: dict[str, int] = {}

    def tear(self, position: int, kept_bytes: int = 0) -> None:
        self.tears[slot_key(position)] = kept_bytes

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if key in self.tears:
            super().put_if_absent(key, body[: self.tears.pop(key)])
            raise Transient("the connection broke off")
        return super().put_if_absent(key, body)


def slot_key(position: int) -> str:
    return keys.key(LOG, keys.slot(position, 1000))


def cut(store: MemoryStore, position: int, kept_bytes: int = 0) -> None:
    store.objects[slot_key(position)] = store.objects[slot_key(position)][:kept_bytes]


@pytest.fixture
def store() -> Tearing:
    return Tearing()


@pytest.fixture
def log(store: Tearing) -> LogStore:
    return LogStore(store, LOG)


@pytest.fixture
def query(store: Tearing, tmp_path: Path) -> Query:
    retrying = RetryingStore(store, RetryPolicy(max_retry_attempts=2), sleep=lambda _: None)
    return Query(retrying, hints_in(tmp_path), limits=replace(LIMITS, inline_threshold=2**20))


def seen(log: LogStore, start: int = 0, end: int | None = None) -> list[int]:
    """The positions of the live records."""
    head = find_head(log)
    records = live_records(LogView(log, head.window), start, head.gap if end is None else end)
    return [record.header.position for record in records]


def torn_at_2(query: Query, store: Tearing, kept_bytes: int = 0) -> None:
    """Position 0: leader, 1: commit, 2: torn."""
    query.microbatch(0, (1,))
    store.tear(2, kept_bytes)
    with pytest.raises(OutcomeUnknownError):
        query.microbatch(1, (2,))


@pytest.mark.parametrize("kept_bytes", [0, 5, 14, 16, 400])
def test_readers_end_before_a_torn_record(
    query: Query, store: Tearing, log: LogStore, kept_bytes: int
) -> None:
    torn_at_2(query, store, kept_bytes)
    head = find_head(log)
    assert (head.position, head.gap, head.free) == (1, 2, 3)
    assert [each.position for each in head.torn] == [2]
    assert seen(log) == [0, 1]
    assert [*newer(LogView(log, 1000), 2)] == []


@pytest.mark.parametrize("kept_bytes", [0, 14, 400])
@pytest.mark.proves("torn-passed-by-leader")
def test_the_next_leader_passes_over_a_torn_record(
    query: Query, store: Tearing, log: LogStore, kept_bytes: int
) -> None:
    torn_at_2(query, store, kept_bytes)
    heard: list[Event] = []
    stop = events.subscribe(heard.append)
    try:
        assert query.restarted().microbatch(1, (2,)) == 4
    finally:
        stop()
    passed = [each for each in heard if isinstance(each, events.TornRecordPassed)]
    assert [(each.position, each.size) for each in passed] == [(2, kept_bytes)]
    head = find_head(log)
    assert head.live is not None and (head.position, head.torn) == (4, ())
    assert head.live.header.txns["query"][0] == 1
    for start in range(5):
        assert seen(log, start) == [each for each in (0, 1, 3, 4) if each >= start]
    assert [record.header.position for record in newer(LogView(log, 1000), 2)] == [3, 4]


def test_several_torn_records_are_passed_over_together(
    query: Query, store: Tearing, log: LogStore
) -> None:
    torn_at_2(query, store)
    # The leader records of two attempts are torn too; the third lands.
    store.tear(3, 30)
    store.tear(4, 0)
    assert query.restarted().microbatch(1, (2,)) == 6
    assert seen(log) == [0, 1, 5, 6]
    report = verify_store(log, LOG)
    assert report.ok and len(report.torn) == 3, str(report)


def test_a_log_whose_first_record_is_torn_begins_after_it(
    query: Query, store: Tearing, log: LogStore
) -> None:
    store.tear(0)
    assert query.microbatch(0, (1,)) == 2
    assert seen(log) == [1, 2]
    assert verify_store(log, LOG).ok
    assert query.restarted().microbatch(1, (2,)) == 4


def test_a_torn_record_that_a_later_one_counts_as_decided_is_damage(
    query: Query, store: Tearing, log: LogStore
) -> None:
    for batch in range(3):
        query.microbatch(batch, (batch,))
    cut(store, 2)
    with pytest.raises(InvalidLogError, match="position 2.*is cut off.*restore") as caught:
        seen(log)
    assert caught.value.position == 2
    assert not verify_store(log, LOG).ok
    # The records around it are read with an end or a start of their own.
    assert seen(log, 0, 2) == [0, 1]
    assert seen(log, 3) == [3]
    damage: list[InvalidLogError] = []
    records = live_records(LogView(log, 1000, damage=DamagePolicy(report=damage.append)), 0, 4)
    assert [record.header.position for record in records] == [0, 1, 3]
    assert [error.position for error in damage] == [2]


def test_a_read_that_ends_at_a_cut_off_record_raises(
    query: Query, store: Tearing, log: LogStore
) -> None:
    for batch in range(3):
        query.microbatch(batch, (batch,))
    cut(store, 2)
    with pytest.raises(InvalidLogError, match="is cut off"):
        seen(log, 0, 3)


def damaged(store: MemoryStore, position: int) -> None:
    """All bytes are there, but not those that were sent."""
    store.objects[slot_key(position)] = b"<html>" * 1000


@pytest.mark.parametrize("decides", [False, True])
def test_a_read_that_continues_after_damage_ends_at_a_torn_record_before_it(
    query: Query, store: Tearing, log: LogStore, decides: bool
) -> None:
    """The range ends with a torn record. The leader record after it is damaged, and a commit after
    that decides, or nothing does.
    """
    torn_at_2(query, store)
    query.restarted().microbatch(1, (2,))
    damaged(store, 3)
    if not decides:
        del store.objects[slot_key(4)]
    damage: list[InvalidLogError] = []
    records = live_records(LogView(log, 1000, damage=DamagePolicy(report=damage.append)), 0, 3)
    assert [record.header.position for record in records] == [0, 1]
    assert [error.position for error in damage] == [2]
    with pytest.raises(InvalidLogError) as caught:
        seen(log, 0, 3)
    assert caught.value.position == (2 if decides else 3)


def test_a_damaged_record_before_the_leader_that_passes_over_a_torn_one_decides_nothing(
    query: Query, store: Tearing, log: LogStore
) -> None:
    torn_at_2(query, store)
    store.tear(3, 30)
    assert query.restarted().microbatch(1, (2,)) == 5
    damaged(store, 3)
    assert seen(log, 0, 3) == [0, 1]


@pytest.mark.proves("torn-planned-damage")
def test_a_cut_off_head_with_data_in_the_next_window_is_damage(
    query: Query, store: Tearing
) -> None:
    query.limits = LIMITS
    query.microbatch(0, (1,))
    query.task(query.plan(), 1, 0, *range(500))
    cut(store, 1)
    with pytest.raises(InvalidLogError, match="is cut off"):
        query.restarted().plan()


@pytest.mark.parametrize("at", [13, 14, 700])
def test_a_flipped_bit_in_a_whole_record_is_damage(
    query: Query, store: Tearing, log: LogStore, at: int
) -> None:
    query.microbatch(0, (1,))
    query.microbatch(1, (2,))
    body = bytearray(store.objects[slot_key(2)])
    body[at] ^= 64
    store.objects[slot_key(2)] = bytes(body)
    with pytest.raises(InvalidLogError):
        query.restarted().plan()
    with pytest.raises(InvalidLogError):
        find_head(log)


def test_bytes_that_no_writer_sent_are_damage(query: Query, store: Tearing) -> None:
    query.microbatch(0, (1,))
    store.objects[slot_key(2)] = b"<html>"
    with pytest.raises(InvalidLogError, match="not an Arrow IPC file"):
        query.restarted().plan()


@pytest.mark.proves("torn-two-looks")
def test_a_writer_does_not_pass_over_a_record_that_the_list_shows_larger(
    query: Query, store: Tearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.microbatch(0, (1,))
    whole, read = slot_key(1), MemoryStore.get_range

    def empty(self: MemoryStore, key: str, offset: int, length: int) -> bytes:
        return b"" if key == whole else read(self, key, offset, length)

    monkeypatch.setattr(MemoryStore, "get_range", empty)
    with pytest.raises(StoreUnavailableError, match="in the LIST"):
        query.restarted().plan()
    monkeypatch.undo()
    assert query.restarted().microbatch(1, (2,)) == 3


@pytest.mark.proves("damage-read-twice")
def test_damaged_bytes_are_read_once_more(
    query: Query, store: Tearing, log: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.microbatch(0, (1,))
    query.microbatch(1, (2,))
    read = MemoryStore.get_range
    asked: list[str] = []

    def flipped(self: MemoryStore, key: str, offset: int, length: int) -> bytes:
        asked.append(key)
        body = read(self, key, offset, length)
        return body if asked.count(key) > 1 else bytes(body[:100]) + b"?" + bytes(body[101:])

    monkeypatch.setattr(MemoryStore, "get_range", flipped)
    assert seen(log) == [0, 1, 2]


def test_verify_reports_a_torn_record_in_words(query: Query, store: Tearing, log: LogStore) -> None:
    torn_at_2(query, store)
    report = verify_store(log, LOG)
    assert report.ok and not report.orphans and report.head == 1
    assert "position 2): torn, 0 bytes" in str(report) and "next writer" in str(report)
    query.restarted().microbatch(1, (2,))
    report = verify_store(log, LOG)
    assert report.ok and report.head == 4
    assert "continues at position 3" in str(report)


def scanned(path: Path) -> list[int]:
    values: list[int] = sparkwal.Log(str(path)).scan().read_all().column("v").to_pylist()
    return values


def slot_file(path: Path, position: int) -> Path:
    return path / "batches" / f"{keys.slot(position, 1000):020d}"


@pytest.mark.parametrize("kept_bytes", [0, 600])
def test_every_kind_of_read_passes_over_a_torn_record(tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "wal"
    schema = pa.schema([("v", pa.int64())])
    with sparkwal.Appender(str(path), schema, producer_id="p") as wal:
        wal.append(rows(1)).result()
        wal.append(rows(2)).result()
    head = sparkwal.Log(str(path)).head()
    assert head is not None
    body = slot_file(path, head.position).read_bytes()
    slot_file(path, head.position + 1).write_bytes(body[:kept_bytes])
    assert scanned(path) == [1, 2]
    replay = sparkwal.Log(str(path)).replay()
    assert sum(len(batch) for entry in replay for batch in entry.rows) == 2
    assert replay.stopped is None
    cursor = replay.cursor
    with sparkwal.Appender(str(path), schema, producer_id="p") as wal:
        assert wal.last_sequence == 1
        wal.append(rows(3)).result()
    assert scanned(path) == [1, 2, 3]
    replay = sparkwal.Log(str(path)).replay(cursor)
    assert [v for e in replay for b in e.rows for v in b.column("v").to_pylist()] == [3]
    positions = [each.position for each in sparkwal.Log(str(path)).records()]
    assert head.position + 1 not in positions
    assert sparkwal.verify(str(path)).ok


@pytest.mark.parametrize("give_up", [False, True])
def test_a_torn_record_needs_no_repair(tmp_path: Path, give_up: bool) -> None:
    path = tmp_path / "wal"
    schema = pa.schema([("v", pa.int64())])
    with sparkwal.Appender(str(path), schema, producer_id="p") as wal:
        last = wal.append(rows(1)).result()
    slot_file(path, last + 1).write_bytes(b"")
    with pytest.raises(InvalidLogError, match="needs no repair"):
        sparkwal.repair(str(path), last + 1, give_up=give_up)
    # A record that was whole once does: the one after it shows that.
    with sparkwal.Appender(str(path), schema, producer_id="p") as wal:
        whole = wal.append(rows(2)).result()
        wal.append(rows(3)).result()
    slot_file(path, whole).write_bytes(b"")
    with pytest.raises(InvalidLogError, match="restore the object|delete it first"):
        sparkwal.repair(str(path), whole, give_up=give_up)


@pytest.mark.parametrize("in_flight", [2, 3])
@pytest.mark.proves("torn-ends-run")
def test_records_in_flight_after_a_torn_one_are_dead(tmp_path: Path, in_flight: int) -> None:
    """An appender sent three records together; the first was torn, the others arrived."""
    path = tmp_path / "wal"
    schema = pa.schema([("v", pa.int64())])
    options: dict[str, Any] = {"maxInFlightRequests": 4}
    with sparkwal.Appender(str(path), schema, producer_id="p", **options) as wal:
        first = wal.append(rows(0)).result()
    other = tmp_path / "other"
    with sparkwal.Appender(str(other), schema, producer_id="p", **options) as wal:
        assert wal.append(rows(9)).result() == first
    # Records of the same leader that claim no more than it knew.
    _in_flight(path, first, in_flight)
    slot_file(path, first + 1).write_bytes(b"")
    assert scanned(path) == [0]
    with sparkwal.Appender(str(path), schema, producer_id="p", **options) as wal:
        assert wal.last_sequence == 0
        wal.append(rows(1)).result()
    assert scanned(path) == [0, 1]
    for start in range(first + 1, first + 1 + in_flight):
        assert sparkwal.Log(str(path)).scan(start).read_all().column("v").to_pylist() == [1]
    report = sparkwal.verify(str(path))
    assert report.ok and report.dead == in_flight - 1, str(report)


def _in_flight(path: Path, first: int, count: int) -> None:
    from sparkwal.format.header import CommitHeader
    from sparkwal.protocol.commit_record import RecordContent, next_record
    from sparkwal.protocol.leadership import Leadership
    from sparkwal.store.local import LocalStore

    log = LogStore(LocalStore(path), "")
    live = find_head(log).live
    assert live is not None and isinstance(live.header, CommitHeader)
    header = live.header
    lead = Leadership(
        log_id=header.log_id,
        leader_id=header.leader_id,
        host="host",
        term=header.term,
        window=header.window,
        began=0,
        next_position=first + 1,
        in_flight_limit=header.in_flight_limit,
        timestamp_ms=header.timestamp_ms,
        spark_schema=live.spark_schema,
        txns=header.txns,
        checkpoints={},
        txns_archive="",
    )
    batch = pa.record_batch([pa.array([7], pa.int64())], names=["v"])
    for each in range(count):
        content = RecordContent("p", 1 + each, [(0, [batch])], {})
        sent, data = next_record(lead, header.plan_id, content, 0, None, decided=first)
        log.store.put_if_absent(log.key(sent.number), data)
        lead = lead.after(sent)


def with_late_knowledge(store: MemoryStore, log: LogStore, positions: range, decided: int) -> None:
    """Rewrite records as those of an appender that had them all in flight."""
    for position in positions:
        record = read_slot(log, position, 1000)
        assert record is not None
        header = replace(record.header, in_flight_limit=8, decided=decided)
        store.objects[slot_key(position)] = arrowfile.encode(header, record.spark_schema)


@pytest.mark.parametrize("end", ["a later record", "the log"])
def test_a_look_back_over_a_record_that_was_cut_off_later(
    query: Query, store: Tearing, log: LogStore, end: str
) -> None:
    """The records in flight beside it do not show that it was whole; only a later one does."""
    for number in range(9):
        query.microbatch(number, (number,))
    last = 9 if end == "a later record" else 7
    with_late_knowledge(store, log, range(4, 8), decided=3)
    for position in range(last + 1, 10):
        del store.objects[slot_key(position)]
    cut(store, 5, 14)
    record = read_slot(log, 6, 1000)
    assert record is not None
    if end == "the log":
        # Nobody knows that it was whole: the log ends before it.
        assert last_live(LogView(log, 1000), record).header.position == 4
        return
    with pytest.raises(TornRecord):
        last_live(LogView(log, 1000), record)
    with pytest.raises(TornRecord):
        live_until(LogView(log, 1000), 5)
    assert last_live(LogView(log, 1000, damage=LENIENT), record) is record
    reader = LogRange(SourceOptions(path=log.url, on_corruption="skip"), keys.ROOT, log)
    reader.refresh()
    found = [*walk(reader, 6, 10, newest_first=False)]
    assert [each.header.position for each in found if isinstance(each, SlotRecord)] == [6, 7, 8, 9]


def test_verify_counts_the_records_in_flight_beside_one_that_was_cut_off_later(
    query: Query, store: Tearing, log: LogStore
) -> None:
    for number in range(9):
        query.microbatch(number, (number,))
    with_late_knowledge(store, log, range(4, 8), decided=3)
    cut(store, 5, 14)
    report = verify_store(log, LOG)
    assert any("is cut off" in problem for problem in report.problems), str(report)
    assert (report.leaders, report.commits, report.dead) == (1, 8, 0)


@pytest.mark.parametrize("lost", [[7], [6, 7], [5, 7]], ids=str)
def test_a_torn_record_after_a_lost_one_does_not_hide_the_log(
    query: Query, store: Tearing, log: LogStore, lost: list[int]
) -> None:
    """A tolerant reader finds the newest intact record, however far before the torn one."""
    for number in range(8):
        query.microbatch(number, (number,))
    cut(store, 8)
    for position in lost:
        del store.objects[slot_key(position)]
    with pytest.raises(InvalidLogError):
        find_head(log)
    head = find_head(log, damage=LENIENT)
    assert head.live is not None
    assert head.position == head.live.header.position == max({*range(8)} - {*lost})
