"""An appender makes segments of the blocks that it wrote, and other makers make the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwal import Appender, events
from sparkwal.appender import own_segments
from sparkwal.errors import OptionError
from sparkwal.events import Event
from sparkwal.format import keys
from sparkwal.testing.memory import MemoryStore
from tests.appender import inside
from tests.appender.faulty_store import FaultyStore
from tests.logs import SCHEMA, rows
from tests.reading.segmented import (
    BLOCK,
    everything,
    log_of,
    segmented,
    segments_in,
    without_segments,
)
from tests.reading.segmented import short_blocks as short_blocks

pytestmark = pytest.mark.usefixtures("short_blocks")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_segments, "_DRAIN_SECONDS", 60.0)


def filled(store: FaultyStore, appends: int, **options: Any) -> FaultyStore:
    """A log of one appender that makes segments, with one append in each record."""
    with store.appender(makeSegments=True, **options) as wal:
        for value in range(appends):
            wal.append(rows(*range(value, value + 1 + value % 5)))
            # One segment is made at a time.
            wal.flush()
            inside.finish_segments(wal)
    return store


def test_its_segments_are_those_of_every_other_maker() -> None:
    store = filled(FaultyStore(), 5 * BLOCK + 4).inner
    # The first block begins with the leader record, which the session did not send.
    own = segments_in(store)
    assert len(own) == 4
    plain = without_segments(store)
    made = segmented(plain)
    assert [plain.objects[key] for key in own] == [store.objects[key] for key in own]
    assert made.blocks == [0, 1, 2, 3, 4]
    assert segmented(store).blocks == [0]
    assert everything(store) == everything(without_segments(store))


def test_a_segment_costs_one_put_and_no_get() -> None:
    one, other = FaultyStore(), FaultyStore()
    filled(one, 3 * BLOCK + 4)
    with other.appender() as wal:
        for value in range(3 * BLOCK + 4):
            wal.append(rows(value))
    made = len(segments_in(one.inner))
    assert made == 2
    assert one.inner.counts["PUT"] == other.inner.counts["PUT"] + made
    assert one.inner.counts["GET"] == other.inner.counts["GET"]


def test_with_many_records_in_flight_and_in_any_order() -> None:
    store = FaultyStore()
    with store.appender(makeSegments=True) as wal:
        for first in range(0, 6 * BLOCK, 4):
            held = [position for position in range(first + 1, first + 4, 2) if position > 2]
            store.hold(*held)
            tickets = [wal.append(rows(value)) for value in range(first, first + 4)]
            store.release(*held)
            for ticket in tickets:
                ticket.result(30)
            inside.finish_segments(wal)
    own = segments_in(store.inner)
    plain = without_segments(store.inner)
    segmented(plain)
    # The last record is a witness of the fifth block if the one before it was acknowledged first.
    assert len(own) in (4, 5)
    assert {key: plain.objects[key] for key in own} == {
        key: store.inner.objects[key] for key in own
    }


def test_a_block_of_two_sessions_is_left_to_others() -> None:
    store = FaultyStore()
    filled(store, BLOCK // 2)
    filled(store, BLOCK)
    filled(store, 2 * BLOCK + 4)
    own = segments_in(store.inner)
    blocks = [keys.position(int(key.rpartition("/")[2]), 1000) // BLOCK for key in own]
    made = segmented(store.inner).blocks
    # Each session but the first begins inside a block.
    assert blocks and sorted(blocks + made) == [*range(blocks[-1] + 1)]
    assert {0, 1} <= {*made}


@pytest.mark.parametrize("fault", ["refused", OptionError("no right to write segments/")])
def test_a_failed_put_of_a_segment_harms_no_append(fault: str | BaseException) -> None:
    seen: list[Event] = []
    store = FaultyStore()
    inner = store.put_if_absent

    def refuse(key: str, body: bytes) -> bool:
        if "/segments/" in key:
            store.faults[-1] = [fault]
            key = "none"
        return inner(key, body)

    store.put_if_absent = refuse  # type: ignore[method-assign]
    with store.appender(makeSegments=True, on_event=seen.append) as wal:
        tickets = [wal.append(rows(value)) for value in range(3 * BLOCK + 4)]
        positions = [ticket.result(30) for ticket in tickets]
    assert positions == [*range(1, 3 * BLOCK + 5)]
    assert segments_in(store.inner) == []
    assert any(isinstance(event, events.SegmentsNotMade) for event in seen)


def test_a_block_of_large_records_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_segments, "_MOST_BYTES", 2000)
    assert segments_in(filled(FaultyStore(), 3 * BLOCK + 4).inner) == []
    monkeypatch.undo()
    monkeypatch.setattr(keys, "BLOCK", BLOCK)
    monkeypatch.setattr(own_segments, "_MOST_UNPACKED", 10)
    assert segments_in(filled(FaultyStore(), 3 * BLOCK + 4).inner) == []


def test_an_appender_makes_none_without_the_option() -> None:
    store = FaultyStore()
    with store.appender() as wal:
        for value in range(3 * BLOCK + 4):
            wal.append(rows(value))
    assert segments_in(store.inner) == []


def test_with_a_journal(tmp_path: Path) -> None:
    store = MemoryStore()
    options = {"maxInFlightRequests": 2, "journal": str(tmp_path), "makeSegments": True}
    with Appender(log_of(store), SCHEMA, producer_id="p", **options) as wal:
        for value in range(3 * BLOCK + 4):
            wal.append(rows(value)).result(30)
            inside.finish_segments(wal)
    assert len(segments_in(store)) == 2
    assert everything(store) == everything(without_segments(store))
