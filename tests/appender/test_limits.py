"""Limits of the log's size: events, waits, cost, and no lost row."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sparkwal import Appender
from sparkwal.appender import limits
from sparkwal.errors import BackPressureError, InvalidLogError, OptionError, OutcomeUnknownError
from sparkwal.events import Event, SizeLimit
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import DONE, FLOOR, Target
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import read_slot
from sparkwal.store.base import LogStore, Page
from sparkwal.testing.memory import MemoryStore
from tests.appender import inside
from tests.appender.faulty_store import PREFIX, FaultyStore, stored
from tests.chains import beginning, newest, put_next
from tests.logs import rows, until
from tests.protocol.query import StoppedClock


class Limited(FaultyStore):
    """A log whose life a test moves on."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.clock = StoppedClock()
        self.log = LogStore(self.inner, PREFIX)
        self.reported: list[SizeLimit] = []
        self.looks = 0  # reads of the lifecycle by appenders

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        self.looks += prefix == keys.lifecycle_prefix(PREFIX)
        return self.inner.list(prefix, limit, after)

    def open(self, **options: Any) -> Appender:
        return self.appender(on_event=self.record, clock=self.clock, **options)

    def record(self, event: Event) -> None:
        if isinstance(event, SizeLimit):
            self.reported.append(event)

    def one(self) -> int:
        """Bytes of one commit of one row."""
        with self.appender("measure") as wal:
            record = read_slot(self.log, wal.append(rows(-1)).result(), 1000)
        assert record is not None
        size: int = record.header.bytes  # type: ignore[union-attr]
        self.compacted()
        return size

    def move(self, kind: str, **changes: Any) -> None:
        live = find_head(self.log).live
        assert live is not None
        head = newest(self.log) or beginning(live.header.log_id, "default", 0)
        assert put_next(self.log, head, kind, self.clock, "host", **changes)

    def compacted(self, to: int | None = None) -> None:
        """The table has all before `to`."""
        to = self.gap() if to is None else to
        self.move(DONE, cut=to, to=to, target=Target("t"))

    def minute(self, wal: Appender) -> None:
        """A minute goes by."""
        self.clock.since_boot_ms += limits.LOOK_MS
        watch = inside.size_watch(wal)
        assert watch is not None
        watch.wake()
        # Its look, if there is one, is over: it could not see a later minute.
        until(lambda: inside.looks_later(watch))

    def options(self) -> list[str]:
        return [event.option for event in self.reported]


@pytest.fixture
def faulty() -> Limited:
    return Limited()


def test_without_limits_the_lifecycle_costs_no_request(faulty: Limited) -> None:
    faulty.one()
    counts: list[dict[str, int]] = []
    for options in ({}, {"softLimitBytes": "1gb"}):
        faulty.inner.counts.clear()
        with faulty.open(**options) as wal:
            for value in range(20):
                wal.append(rows(value)).result()
        assert faulty.looks == len(counts)
        counts.append(dict(faulty.inner.counts))
    bare, limited = counts
    # With a limit: one look, which finds everything in the table up to the last writer.
    assert limited["LIST"] == bare["LIST"] + 1 and limited["PUT"] == bare["PUT"]


def test_below_the_limits_an_appender_looks_once_when_it_opens(faulty: Limited) -> None:
    faulty.one()
    with faulty.open(softLimitBytes="1gb", hardLimitBytes="2gb") as wal:
        for value in range(20):
            wal.append(rows(value)).result()
            faulty.minute(wal)
    assert faulty.looks == 1
    assert faulty.reported == []


def test_at_the_soft_limit_appends_continue_after_one_event(faulty: Limited) -> None:
    size = faulty.one()
    with faulty.open(softLimitBytes=size * 5) as wal:
        for value in range(20):
            wal.append(rows(value)).result()
        until(lambda: faulty.options() == ["softLimitBytes"])
        assert faulty.reported[0].bytes == size * 5 == faulty.reported[0].limit
        # Compaction catches up, falls behind again: that is another crossing.
        faulty.compacted()
        faulty.minute(wal)
        until(lambda: inside.size_watch(wal).size == 0)
        for value in range(20, 40):
            wal.append(rows(value)).result()
    assert faulty.options() == ["softLimitBytes"] * 2
    assert stored(faulty.inner) == [-1, *range(40)]


def test_above_the_soft_limit_it_looks_once_a_minute(faulty: Limited) -> None:
    size = faulty.one()
    with faulty.open(softLimitBytes=size * 2) as wal:
        for value in range(10):
            wal.append(rows(value)).result()
        for looks in range(2, 5):
            faulty.minute(wal)
            assert faulty.looks == looks
            wal.append(rows(0)).result()
        inside.size_watch(wal).wake()
        wal.append(rows(0)).result()
    assert faulty.looks == 4
    assert faulty.options() == ["softLimitBytes"]


def test_at_the_hard_limit_append_raises_until_compaction_catches_up(
    faulty: Limited,
) -> None:
    size = faulty.one()
    with faulty.open(softLimitBytes=size * 2, hardLimitBytes=size * 3) as wal:
        for value in range(3):
            wal.append(rows(value)).result()
        message = (
            "compaction is behind. This append was not accepted.*by themselves within a minute"
        )
        with pytest.raises(BackPressureError, match=message):
            wal.append(rows(9), block=False)
        # A look that finds nothing new changes nothing.
        faulty.minute(wal)
        assert faulty.looks == 2
        with pytest.raises(BackPressureError):
            wal.append(rows(9), block=False)
        faulty.compacted()
        faulty.minute(wal)
        wal.append(rows(3)).result()
        assert wal.last_sequence == 3
    assert faulty.options() == ["softLimitBytes", "hardLimitBytes"]
    assert stored(faulty.inner) == [-1, 0, 1, 2, 3]


def test_a_blocked_append_is_accepted_once_the_log_is_below_the_hard_limit(faulty: Limited) -> None:
    size = faulty.one()
    with faulty.open(hardLimitBytes=size * 2) as wal:
        for value in range(2):
            wal.append(rows(value)).result()
        blocked = threading.Thread(target=lambda: wal.append(rows(2)))
        blocked.start()
        until(lambda: inside.waits_for_room(wal))
        faulty.compacted()
        faulty.minute(wal)
        blocked.join(30)
        wal.flush()
    assert stored(faulty.inner) == [-1, 0, 1, 2]


def test_waiting_for_room_waits_for_compaction(faulty: Limited) -> None:
    size = faulty.one()
    with faulty.open(hardLimitBytes=size) as wal:
        wal.append(rows(0)).result()
        with pytest.raises(BackPressureError):
            wal.append(rows(1), block=False)
        waiting = threading.Thread(target=wal.wait_room, args=(60,))
        waiting.start()
        until(lambda: inside.waits_for_room(wal))
        faulty.compacted()
        faulty.minute(wal)
        waiting.join(30)
        wal.append(rows(1), block=False).result()


def test_rows_accepted_before_the_hard_limit_are_written(faulty: Limited) -> None:
    size = faulty.one()
    with faulty.open(hardLimitBytes=size * 2, maxInFlightRequests=1) as wal:
        first = faulty.gap()
        faulty.hold(first)
        tickets = [wal.append(rows(value)) for value in range(9)]
        faulty.release(first)
        assert [ticket.result() for ticket in tickets] == list(range(first, first + 9))
        with pytest.raises(BackPressureError):
            wal.append(rows(9), block=False)
    assert stored(faulty.inner) == [-1, *range(9)]


def test_closing_ends_an_append_that_waits_for_compaction(faulty: Limited) -> None:
    size = faulty.one()
    wal = faulty.open(hardLimitBytes=size)
    wal.append(rows(0)).result()
    errors: list[BaseException] = []

    def append() -> None:
        try:
            wal.append(rows(1))
        except OptionError as error:
            errors.append(error)

    blocked = threading.Thread(target=append)
    blocked.start()
    until(lambda: inside.waits_for_room(wal))
    wal.close()
    blocked.join(30)
    assert "closed" in str(errors[0])
    assert stored(faulty.inner) == [-1, 0]


def test_an_appender_that_opens_after_a_crash_counts_the_existing_bytes(faulty: Limited) -> None:
    size = faulty.one()
    crashed = faulty.open(hardLimitBytes=size * 1000)
    for value in range(100):
        crashed.append(rows(value)).result()
    # Its successors have no memory of their own, only the log.
    for limit, accepts in ((size * 130, True), (size * 70, False)):
        with faulty.open(producer=str(limit), hardLimitBytes=limit) as wal:
            if accepts:
                wal.append(rows(100)).result()
            else:
                with pytest.raises(BackPressureError):
                    wal.append(rows(101), block=False)
                faulty.compacted()
                faulty.minute(wal)
                wal.append(rows(101)).result()
    crashed.close()
    assert stored(faulty.inner) == [-1, *range(102)]


def test_rows_that_reach_the_table_no_longer_count_against_the_limit(faulty: Limited) -> None:
    size = faulty.one()
    with faulty.open(hardLimitBytes=size * 10) as wal:
        at = [wal.append(rows(value)).result() for value in range(10)]
        faulty.compacted(at[4])
        faulty.minute(wal)
        more = 0
        while True:
            try:
                wal.append(rows(10 + more), block=more == 0).result()
            except BackPressureError:
                break
            more += 1
    assert more == 4
    assert stored(faulty.inner) == [-1, *range(14)]


def test_without_a_table_what_is_above_the_floor_counts(faulty: Limited) -> None:
    faulty.appender("measure").close()
    with faulty.open(hardLimitBytes=1) as wal:
        wal.append(rows(0)).result()
        with pytest.raises(BackPressureError):
            wal.append(rows(1), block=False)
        faulty.move(FLOOR, floor=faulty.gap())
        faulty.minute(wal)
        wal.append(rows(1)).result()
    assert stored(faulty.inner) == [0, 1]


def test_the_chain_of_another_log_does_not_count(faulty: Limited) -> None:
    size = faulty.one()
    head = newest(faulty.log)
    assert head is not None
    changes = {"log_id": "another", "cut": 10**6, "to": 10**6}
    assert put_next(faulty.log, head, DONE, faulty.clock, "host", **changes)
    with faulty.open(hardLimitBytes=size) as wal, pytest.raises(BackPressureError):
        wal.append(rows(0), block=False)


def test_after_a_compaction_appends_continue_below_the_limit_without_an_event(
    faulty: Limited,
) -> None:
    size = faulty.one()
    with faulty.open(softLimitBytes=size * 4, hardLimitBytes=size * 4) as wal:
        for value in range(3):
            wal.append(rows(value)).result()
        faulty.compacted()
        faulty.minute(wal)
        for value in range(3, 6):
            wal.append(rows(value), block=False).result()
    assert faulty.reported == []


def test_a_look_that_fails_keeps_the_count_and_the_next_one_sees_more(
    faulty: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = faulty.one()
    with faulty.open(hardLimitBytes=size) as wal:
        wal.append(rows(0)).result()
        faulty.compacted()
        failed = []

        def fails(*_: object) -> None:
            failed.append(1)
            raise RuntimeError("not what was expected")

        with monkeypatch.context() as patch:
            patch.setattr(limits, "newest_lifecycle", fails)
            faulty.minute(wal)
            until(lambda: bool(failed))
            with pytest.raises(BackPressureError):
                wal.append(rows(1), block=False)
        faulty.minute(wal)
        wal.append(rows(1)).result()


def test_opening_an_appender_reports_a_damaged_lifecycle(faulty: Limited) -> None:
    faulty.one()
    (key,) = [key for key in faulty.inner.objects if "lifecycle" in key]
    faulty.inner.objects[key] = b"no record"
    with pytest.raises(InvalidLogError, match="lifecycle"):
        faulty.open(softLimitBytes=1)
    faulty.open().close()


def test_an_async_append_waits_for_compaction_without_blocking_its_loop(faulty: Limited) -> None:
    size = faulty.one()

    async def run() -> None:
        wal = faulty.async_appender(clock=faulty.clock, hardLimitBytes=size)
        async with wal:
            await wal.append(rows(0))
            with pytest.raises(BackPressureError):
                await wal.accept(rows(1), block=False)
            waiting = asyncio.ensure_future(wal.append(rows(1)))
            await asyncio.sleep(0)
            assert not waiting.done()
            faulty.compacted()
            faulty.minute(wal.appender)
            await waiting

    asyncio.run(run())
    assert stored(faulty.inner) == [-1, 0, 1]


def test_threads_end_with_their_appender(faulty: Limited) -> None:
    def watching() -> bool:
        return any(thread.name == "sparkwal-size" for thread in threading.enumerate())

    wal = faulty.open(softLimitBytes="1mb")
    assert watching()
    wal.close()
    until(lambda: not watching())
    wal = faulty.open(softLimitBytes="1mb", retries=0)
    faulty.faults[faulty.gap()] = ["refused"]
    wal.append(rows(0))
    until(lambda: wal.error is not None and not watching())
    with pytest.raises(OutcomeUnknownError):
        wal.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softLimitBytes": "2mb", "hardLimitBytes": "1mb"}, "above hardLimitBytes"),
        ({"hardLimitBytes": 0}, "must be greater than 0"),
        ({"softLimitBytes": "much"}, "a size such as 1mb"),
    ],
)
def test_wrong_limits_are_named(faulty: Limited, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        faulty.open(**options)
