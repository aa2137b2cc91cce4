"""Appends of an event loop to a journal: one thread accepts them, and syncs once for all."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from sparkwal.appender.appender import Appender, Ticket
from sparkwal.appender.rows import Accepted
from sparkwal.errors import BackPressureError, SparkWalError

# Accepted before the disk is synced, at most.
_MOST = 1000

_Waiting = tuple[Accepted, bool, "asyncio.Future[Ticket]"]
_Told = list[tuple["asyncio.Future[Ticket]", "Ticket | BaseException"]]


class Acceptor:
    """For one event loop. The loop never waits for the disk: even to write may begin a segment."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._thread = ThreadPoolExecutor(1, "sparkwal-accept")
        self._waiting: deque[_Waiting] = deque()
        self._is_running = False  # known to the loop only
        self._is_full = self._is_closed = False

    async def accept(self, accepted: Accepted, block: bool) -> Ticket:
        """In the order of the calls. Raises as `Appender.append`."""
        if self._is_closed:
            self._appender.admit(accepted, False)  # raises why nothing is accepted any more
        if not block and self._is_full:
            raise BackPressureError("others wait for room already: try again later")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Ticket] = loop.create_future()
        self._waiting.append((accepted, block, done))
        if not self._is_running:
            self._is_running = True
            self._thread.submit(self._accept_all, loop)
        return await done

    def close(self) -> None:
        """Once the appender is closed: what still waits is refused."""
        self._is_closed = True
        if not self._is_running:
            self._thread.shutdown(wait=False)

    # The thread.

    def _accept_all(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            told = self._accept_some()
            if told:
                loop.call_soon_threadsafe(_tell, told)
            if self._is_full:
                self._appender.wait_room(1.0)
        loop.call_soon_threadsafe(self._go_on, loop)

    def _accept_some(self) -> _Told:
        told: _Told = []
        while self._waiting and len(told) < _MOST:
            accepted, block, done = self._waiting[0]
            try:
                if not done.cancelled():
                    told.append((done, self._appender.admit_unsynced(accepted)))
                    self._is_full = False
            except BackPressureError as error:
                if block:
                    self._is_full = True
                    break
                told.append((done, error))
            except BaseException as error:
                told.append((done, error))
            self._waiting.popleft()
        # Until then who does not wait is refused: it would wait behind the first.
        self._is_full &= bool(self._waiting)
        return [(done, self._synced(each)) for done, each in reversed(told)][::-1]

    def _synced(self, each: Ticket | BaseException) -> Ticket | BaseException:
        """Of the last one first: that syncs for all."""
        if isinstance(each, Ticket):
            try:
                self._appender.wait_accepted(each)
            except SparkWalError as error:
                return error
        return each

    # The loop.

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_running = bool(self._waiting)
        if self._is_running:
            self._thread.submit(self._accept_all, loop)
        elif self._is_closed:
            self._thread.shutdown(wait=False)


def _tell(told: _Told) -> None:
    for done, each in told:
        if done.done():
            continue  # cancelled: it is accepted all the same
        if isinstance(each, BaseException):
            done.set_exception(each)
        else:
            done.set_result(each)
