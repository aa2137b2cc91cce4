"""The appender for asyncio with a journal: one thread syncs for all, and never the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sparkwal.appender import journal_sender
from sparkwal.appender.aio import durable
from sparkwal.appender.batches import CheckedRows, Ticket
from sparkwal.errors import BackPressureError, OptionError, OutcomeUnknownError
from tests.appender import inside
from tests.appender.away import OutageStore, sound
from tests.appender.faulty_store import stored
from tests.appender.test_aio import run
from tests.journal.disk import MemoryFolder
from tests.logs import rows, until


class CountingFolder(MemoryFolder):
    """Counts writes and syncs, and can delay the next sync.

    Attributes:
        threads: the threads that changed a file.
        syncs: the number of syncs of files.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.syncs = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.syncing = threading.Event()

    def act(self, what: str) -> None:
        self.threads.add(threading.get_ident())
        if what == "sync":
            self.syncs += 1
            self.syncing.set()
            assert self.go_on.wait(30)
        super().act(what)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_sender, "_LAST_SECONDS", 0.05)


@pytest.fixture
def faulty() -> OutageStore:
    return OutageStore()


@pytest.fixture
def folder() -> CountingFolder:
    return CountingFolder()


def test_a_thousand_concurrent_appends_are_in_the_order_of_their_calls_and_share_syncs(
    faulty: OutageStore, folder: CountingFolder
) -> None:
    async def scenario() -> None:
        async with faulty.async_journaled(folder) as wal:
            before = folder.syncs
            folder.go_on.clear()
            tasks = [asyncio.create_task(wal.accept(rows(i))) for i in range(1000)]
            # All but those that the first sync is for wait by then.
            while not inside.queued(wal):
                await asyncio.sleep(0)
            folder.go_on.set()
            tickets = await asyncio.gather(*tasks)
            assert folder.syncs - before <= 3
            assert [ticket.sequence for ticket in tickets] == list(range(1000))
            assert wal.last_sequence == 999
            positions = [await durable(ticket) for ticket in tickets]
            assert positions == sorted(positions) and positions[0] >= 0

    run(scenario)
    assert stored(faulty.inner) == list(range(1000))
    sound(faulty)


def test_the_loop_never_touches_the_disk(faulty: OutageStore, folder: CountingFolder) -> None:
    """Not where an append begins a segment either, or lets one go for want of room."""

    async def scenario() -> None:
        small = {"journalSegmentBytes": "64kb", "journalMaxBytes": "256kb"}
        async with faulty.async_journaled(folder, **small) as wal:
            folder.threads.clear()
            await asyncio.gather(*(wal.append(rows(*[i] * 1000)) for i in range(200)))
            assert threading.get_ident() not in folder.threads
            assert "00000000000000000005.wal" in folder.names() or folder.syncs > 20

    run(scenario)
    assert stored(faulty.inner) == [i for i in range(200) for _ in range(1000)]


def test_during_a_sync_the_event_loop_runs_and_new_appends_share_the_next_sync(
    faulty: OutageStore, folder: CountingFolder
) -> None:
    async def scenario() -> None:
        async with faulty.async_journaled(folder) as wal:
            await wal.accept(rows(0))
            folder.go_on.clear()
            folder.syncing.clear()
            first = asyncio.create_task(wal.accept(rows(1)))
            await asyncio.to_thread(folder.syncing.wait, 30)
            before = folder.syncs
            later = [asyncio.create_task(wal.accept(rows(i))) for i in range(2, 100)]
            for _ in range(100):
                await asyncio.sleep(0)
            assert not first.done() and not any(each.done() for each in later)
            folder.go_on.set()
            await asyncio.gather(first, *later)
            assert folder.syncs - before <= 3

    run(scenario)
    assert stored(faulty.inner) == list(range(100))


def test_a_cancelled_append_is_accepted_or_not_and_shifts_no_other(
    faulty: OutageStore, folder: CountingFolder
) -> None:
    async def scenario() -> None:
        async with faulty.async_journaled(folder) as wal:
            folder.go_on.clear()
            folder.syncing.clear()
            under_way = asyncio.create_task(wal.accept(rows(0)))
            await asyncio.to_thread(folder.syncing.wait, 30)
            queued = [asyncio.create_task(wal.accept(rows(i))) for i in range(1, 10)]
            await asyncio.sleep(0)
            for task in (under_way, queued[3]):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            folder.go_on.set()
            tickets = await asyncio.gather(*(each for each in queued if each is not queued[3]))
            assert [ticket.sequence for ticket in tickets] == list(range(1, 9))
            await wal.flush(30)

    run(scenario)
    # The one under way was written already; the one that waited never was.
    assert stored(faulty.inner) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_back_pressure_in_an_outage_is_awaited_in_order(
    faulty: OutageStore, folder: CountingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with faulty.async_journaled(folder, journalSlots=10) as wal:
            faulty.is_away = True
            tasks = [asyncio.create_task(wal.accept(rows(i))) for i in range(100)]
            await asyncio.to_thread(until, lambda: inside.is_full(wal))
            with pytest.raises(BackPressureError):
                await wal.accept(rows(-1), block=False)
            await asyncio.to_thread(until, lambda: wal.last_sequence == 9)
            admit, full = wal.appender.admit_unsynced, []

            def watched(accepted: CheckedRows) -> Ticket:
                full.append(inside.is_full(wal))
                return admit(accepted)

            monkeypatch.setattr(wal.appender, "admit_unsynced", watched)
            await asyncio.to_thread(until, lambda: len(full) > 1)
            # An append that does not wait is refused, also while the first waiting one is retried.
            assert full == [True] * len(full)
            faulty.is_away = False
            tickets = await asyncio.gather(*tasks)
            assert [ticket.sequence for ticket in tickets] == list(range(100))

    run(scenario)
    assert stored(faulty.inner) == list(range(100))


def test_closing_in_an_outage_ends_every_wait_with_an_error(
    faulty: OutageStore, folder: CountingFolder
) -> None:
    async def scenario() -> None:
        wal = faulty.async_journaled(folder, journalSlots=5)
        async with wal:
            faulty.is_away = True
            waiting = [asyncio.create_task(wal.append(rows(i))) for i in range(10)]
            await asyncio.to_thread(until, lambda: inside.is_full(wal))
            await wal.close(30)
            ends: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
            # In the journal, or refused.
            assert [type(each) for each in ends] == [OutcomeUnknownError] * 5 + [OptionError] * 5
            with pytest.raises(OptionError, match="is closed"):
                await wal.append(rows(10))
        faulty.is_away = False

    run(scenario)
    with faulty.journaled(folder.after_kill()):
        pass
    assert stored(faulty.inner) == list(range(5))


def test_the_awaiting_task_gets_the_error_of_rows_that_do_not_fit(
    faulty: OutageStore, folder: CountingFolder
) -> None:
    async def scenario() -> None:
        async with faulty.async_journaled(folder) as wal:
            good = asyncio.create_task(wal.append(rows(1)))
            for bad in ([{"w": 1}], [{"v": "x"}]):
                with pytest.raises(OptionError):
                    await wal.append(bad)
            assert await good >= 0
            assert await wal.append(rows(2)) > 0

    run(scenario)
    assert stored(faulty.inner) == [1, 2]
