"""Ctrl-C at any instant of a call: the appender still closes, and no other call waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from sparkwal import Appender
from sparkwal.errors import BackPressureError
from tests.appender.away import OutageStore
from tests.appender.faulty_store import stored
from tests.appender.interrupts import raised
from tests.journal.disk import MemoryFolder
from tests.logs import rows

pytestmark = pytest.mark.long


class Interrupted(BaseException):
    """As KeyboardInterrupt, which pytest takes for its own."""


def in_memory(faulty: OutageStore) -> Appender:
    return faulty.appender()


def full(faulty: OutageStore) -> Appender:
    """A few bytes wait already, and no more may."""
    wal = faulty.appender(maxBufferedBytes=1, maxInFlightRequests=1, batchTimeoutMs="1min")
    wal.append(rows(1))
    return wal


def journaled(faulty: OutageStore) -> Appender:
    return faulty.journaled(MemoryFolder())


def full_journal(faulty: OutageStore) -> Appender:
    wal = faulty.journaled(MemoryFolder(), journalSlots=1)
    wal.append(rows(1))
    return wal


def refused(wal: Appender) -> None:
    """Wait for room in the queue."""
    with suppress(BackPressureError):
        wal.append(rows(2), block=False)
    wal.wait_room(20)


CALLS: dict[str, Callable[[Appender], object]] = {
    "append": lambda wal: wal.append(rows(2)),
    "result": lambda wal: wal.append(rows(2)).result(20),
    "wait_room": refused,
    "flush": lambda wal: (wal.append(rows(2)), wal.flush(20)),
    "subscribe": lambda wal: wal.subscribe(lambda event: None)(),
    "close": lambda wal: (wal.append(rows(2)), wal.close(20)),
}
OPENED = {
    "in_memory": in_memory,
    "full": full,
    "journaled": journaled,
    "full_journal": full_journal,
}
# Every instant takes minutes.
EACH = pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])


# A callback of a weak reference is interrupted too, and Python passes over that.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@EACH
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("opened", OPENED)
def test_an_appender_closes_wherever_an_interrupt_came(opened: str, call: str, step: int) -> None:
    came = True
    skip = 0
    while came:
        faulty = OutageStore()
        wal = OPENED[opened](faulty)
        ended = threading.Event()

        def act(wal: Appender = wal, skip: int = skip, ended: threading.Event = ended) -> None:
            nonlocal came
            came = raised(lambda: CALLS[call](wal), skip, Interrupted)
            wal.close(20)
            ended.set()

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join(60)
        assert ended.is_set(), f"close failed or hangs after an interrupt at instant {skip}"
        assert stored(faulty.inner) in ([], [1], [2], [1, 2]), skip
        skip += step
    assert skip > 3 * step
