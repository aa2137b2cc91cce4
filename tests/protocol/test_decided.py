"""The `decided` position of each object, and the lost records that it reveals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import FencedError, InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import read_front
from sparkwal.protocol.view import LENIENT
from sparkwal.reading.floor import LOOK_TTL_MS
from sparkwal.reading.log_range import LogRange
from sparkwal.store.base import LogStore, Page
from sparkwal.testing.memory import MemoryStore
from tests.appender.faulty_store import PREFIX, FaultyStore
from tests.logs import rows, until
from tests.protocol.query import Query, StoppedClock, hints_in

WINDOW = 1000


def key(position: int) -> str:
    return keys.key(PREFIX, keys.slot(position, WINDOW))


def decided(store: MemoryStore) -> dict[int, int]:
    """Number → the `decided` of the object with this number; newest first."""
    log = LogStore(store, PREFIX)
    found = {}
    for name in sorted(store.objects):
        number = keys.decode(name.rpartition("/")[2])
        if number is not None:
            opened = read_front(log, number, WINDOW)
            found[number] = opened.header.decided
    return found


def again(store: MemoryStore, position: int, **changes: object) -> None:
    """Rewrite the record at a position with other fields."""
    opened = arrowfile.open_front(store.objects[key(position)], "here")
    header = replace(opened.header, inline=(), bytes=0, rows=0, **changes)  # type: ignore[call-arg]
    store.objects[key(position)] = arrowfile.encode(header, opened.spark_schema)


@pytest.fixture
def faulty() -> Iterator[FaultyStore]:
    """Eight in flight at most; positions 1 to 9 are acknowledged."""
    found = FaultyStore(MemoryStore(concurrency=8))
    with found.appender(maxInFlightRequests=8) as wal:
        for value in range(1, 10):
            wal.append(rows(value)).result()
    yield found


def test_objects_of_the_sink_say_that_all_before_them_is_decided(tmp_path: Path) -> None:
    store = MemoryStore()
    query = Query(store, hints_in(tmp_path))
    for batch in range(2):
        query.microbatch(batch, (batch,), (batch,))
    query.restarted().microbatch(2, (2,))
    found = decided(store)
    assert len(found) == 10
    assert found == {number: keys.position(number, WINDOW) - 1 for number in found}


def test_an_appenders_record_has_the_last_acknowledged_position() -> None:
    faulty = FaultyStore()
    with faulty.appender(maxInFlightRequests=4) as wal:
        wal.append(rows(1)).result()
        faulty.hold(2)
        tickets = [wal.append(rows(value)) for value in (2, 3, 4)]
        until(lambda: {key(3), key(4)} <= set(faulty.inner.objects))
        faulty.release(2)
        for ticket in tickets:
            ticket.result()
        wal.append(rows(5)).result()
    with faulty.appender():
        pass
    found = {keys.position(number, WINDOW): says for number, says in decided(faulty.inner).items()}
    # A leader record, four sent before the second was decided, one after; a leader and its seals.
    assert found == {0: -1, 1: 0, 2: 1, 3: 1, 4: 1, 5: 4, 6: 5, 7: 5, 8: 5, 9: 5}


def test_one_get_more_is_paid_where_records_lie_after_the_gap_and_nowhere_else(
    faulty: FaultyStore,
) -> None:
    def requests(*, thorough: bool = False) -> dict[str, int]:
        faulty.inner.counts.clear()
        find_head(LogStore(faulty.inner, PREFIX), thorough=thorough)
        return dict(faulty.inner.counts)

    without = requests()
    assert without["LIST"] == 1 and requests(thorough=True) == without
    with faulty.appender(maxInFlightRequests=8) as wal:
        wal.append(rows(1)).result()
        gap = faulty.gap()
        full = requests()
        assert full["LIST"] == 1
        faulty.hold(gap)
        tickets = [wal.append(rows(value)) for value in range(4)]
        until(lambda: {key(gap + n) for n in (1, 2, 3)} <= set(faulty.inner.objects))
        assert requests() == {**full, "GET": full["GET"] + 1}
        assert requests(thorough=True) == {**full, "GET": full["GET"] + 3}
        faulty.release(gap)
        for ticket in tickets:
            ticket.result()


def test_a_leader_does_not_seal_what_it_has_read(faulty: FaultyStore) -> None:
    with faulty.appender(maxInFlightRequests=8) as wal:
        wal.append(rows(1)).result()
        gap = faulty.gap()
        faulty.hold(gap)
        tickets = [wal.append(rows(value)) for value in range(3)]
        until(lambda: {key(gap + n) for n in (1, 2)} <= set(faulty.inner.objects))
        newcomer = FaultyStore(faulty.inner)
        with newcomer.appender(maxInFlightRequests=1):
            pass
        assert sorted(p for p in newcomer.arrived if p >= 0) == [gap, *range(gap + 3, gap + 8)]
        faulty.release(gap)
        for ticket in tickets:
            with pytest.raises(FencedError):
                ticket.result()


@pytest.mark.parametrize("lost", [2, 5, 8])
def test_a_later_record_reveals_a_lost_one(faulty: FaultyStore, lost: int) -> None:
    faulty.inner.delete(key(lost))
    before = dict(faulty.inner.objects)
    with pytest.raises(InvalidLogError, match=f"position {lost} is missing"):
        faulty.appender()
    assert faulty.inner.objects == before


def test_a_record_without_decided_reveals_nothing(faulty: FaultyStore) -> None:
    faulty.inner.delete(key(8))
    again(faulty.inner, 9, decided=-1)
    assert find_head(LogStore(faulty.inner, PREFIX)).position == 7


def test_a_record_after_the_gap_that_cannot_be_read_is_not_taken_for_silent(
    faulty: FaultyStore,
) -> None:
    faulty.inner.delete(key(7))
    body = bytearray(faulty.inner.objects[key(9)])
    body[200] ^= 1
    faulty.inner.objects[key(9)] = bytes(body)
    with pytest.raises(InvalidLogError, match=f"{keys.encode(keys.slot(9, WINDOW))}.*CRC-32"):
        find_head(LogStore(faulty.inner, PREFIX))
    # Tolerant readers use the record before it.
    assert find_head(LogStore(faulty.inner, PREFIX), damage=LENIENT).position == 8


def test_a_record_of_a_former_log_after_the_gap_is_named(faulty: FaultyStore) -> None:
    faulty.inner.delete(key(8))
    again(faulty.inner, 9, log_id="former")
    named = f"{keys.encode(keys.slot(9, WINDOW))} lies after the end .* another, former"
    with pytest.raises(InvalidLogError, match=named):
        find_head(LogStore(faulty.inner, PREFIX))


def test_a_list_that_misses_what_comes_while_it_runs_shows_no_loss(faulty: FaultyStore) -> None:
    missed = [key(8), key(7)]

    class Lagging(MemoryStore):
        def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
            page = super().list(prefix, limit, after)
            hidden = {missed.pop()} if missed else set()
            return Page([e for e in page.entries if e.key not in hidden], page.more)

    store = Lagging()
    for name, body in faulty.inner.objects.items():
        store.put(name, body)
    assert find_head(LogStore(store, PREFIX)).position == 9 and not missed


def stream(faulty: FaultyStore, **options: str) -> tuple[LogRange, StoppedClock]:
    """One that has read up to position 4."""
    clock, later = StoppedClock(), {}
    for position in range(5, 10):
        later[key(position)] = faulty.inner.get(key(position))
        faulty.inner.delete(key(position))
    given = parse(SourceOptions, {"path": "memory", **options})
    found = LogRange(given, "default", LogStore(faulty.inner, PREFIX), clock)
    assert found.refresh() == 5
    for name, body in later.items():
        faulty.inner.put(name, body)
    return found, clock


def test_a_stream_that_probes_beyond_a_lost_record_raises(faulty: FaultyStore) -> None:
    found, _ = stream(faulty)
    faulty.inner.delete(key(6))  # asked for together with 7
    with pytest.raises(InvalidLogError, match="position 6 is missing"):
        found.refresh()


def test_a_tolerant_stream_skips_a_lost_record(faulty: FaultyStore) -> None:
    found, _ = stream(faulty, failOnDataLoss="false")
    faulty.inner.delete(key(6))
    assert found.refresh() == 10


def test_a_stream_that_waits_at_a_lost_record_notices_with_its_next_look_at_the_floor(
    faulty: FaultyStore,
) -> None:
    found, clock = stream(faulty)
    faulty.inner.delete(key(5))
    assert found.refresh() == 5
    clock.wall_ms += LOOK_TTL_MS
    clock.since_boot_ms += LOOK_TTL_MS
    with pytest.raises(InvalidLogError, match="position 5 is missing"):
        found.refresh()
