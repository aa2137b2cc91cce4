"""The appender for asyncio: callers await room and durability, and the loop never blocks."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Self

import pyarrow as pa

from sparkwal.appender.appender import Appender, Ticket
from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.rows import Rows
from sparkwal.errors import BackPressureError, SparkWalError
from sparkwal.events import Event

# The most appends that are accepted before the disk is synced.
_MOST = 1000

_Waiting = tuple[CheckedRows, bool, "asyncio.Future[Ticket]"]
_Results = list[tuple["asyncio.Future[Ticket]", "Ticket | BaseException"]]


class AsyncAppender:
    """`Appender` for one event loop: its methods, awaited.

        async with sparkwal.AsyncAppender(path, schema, producer_id="gateway-1") as wal:
            position = await wal.append(rows)

    Args: as `Appender`. Entering the block takes the log over. If the entry is cancelled, it waits
    for the requests under way and leaves no appender open.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        *,
        producer_id: str,
        on_event: Callable[[Event], None] | None = None,
        **options: object,
    ) -> None:
        given: dict[str, Any] = {"producer_id": producer_id, "on_event": on_event, **options}
        self._open: Callable[[], Appender] = partial(Appender, path, schema, **given)
        self._appender: Appender | None = None
        # An append that waits for room goes before a later one: the lock's waiters take turns, and
        # no other append passes them.
        self._turn = asyncio.Lock()
        self._in_turn = 0
        self._acceptor: _Acceptor | None = None  # with a journal

    @property
    def appender(self) -> Appender:
        """The `Appender` in use, once the block is entered."""
        if self._appender is None:
            raise RuntimeError("use `async with sparkwal.AsyncAppender(…) as wal:`")
        return self._appender

    async def __aenter__(self) -> Self:
        opened: list[Appender] = []
        cancelled = threading.Event()

        def close_unused() -> None:
            with suppress(IndexError, SparkWalError):
                opened.pop().close()

        def open_it() -> None:
            opened.append(self._open())
            if cancelled.is_set():
                close_unused()

        opening = asyncio.ensure_future(asyncio.to_thread(open_it))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A request under way cannot be called back, and would fence the appender that opens the
            # log next. So wait until it is over.
            cancelled.set()
            await asyncio.wait([opening])
            await asyncio.to_thread(close_unused)
            raise
        self._appender = opened.pop()
        if self._appender.has_journal:
            self._acceptor = _Acceptor(self._appender)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except SparkWalError:
            if error is None:
                raise

    async def append(self, rows: Rows) -> int:
        """Accept rows, waiting for room if need be, and return their position once durable.

        Appends are in the order in which their calls begin. A call that is cancelled after its rows
        were accepted still writes them. Raises as `Appender.append` and `Ticket.result`, but no
        BackPressureError.
        """
        return await durable(await self.accept(rows))

    async def accept(self, rows: Rows, block: bool = True) -> Ticket:
        """As `Appender.append`: waits for room, and for a journal's disk. Use `durable` to wait for
        the log."""
        accepted = self.appender.check(rows)
        if self._acceptor is not None:
            return await self._acceptor.accept(accepted, block)
        return await self._admit(accepted, block)

    async def _admit(self, accepted: CheckedRows, block: bool) -> Ticket:
        if not self._in_turn:
            try:
                return self.appender.admit(accepted, False)
            except BackPressureError:
                if not block:
                    raise
        elif not block:
            raise BackPressureError("others wait for room already: try again later")
        self._in_turn += 1
        try:
            async with self._turn:
                while True:
                    try:
                        return self.appender.admit(accepted, False)
                    except BackPressureError:
                        await asyncio.to_thread(self.appender.wait_room, 1.0)
        finally:
            self._in_turn -= 1

    @property
    def last_sequence(self) -> int:
        return self.appender.last_sequence

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """The callback runs in a thread of its own."""
        return self.appender.subscribe(callback)

    async def flush(self, timeout: float | None = None) -> None:
        await asyncio.to_thread(self.appender.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        await asyncio.to_thread(self.appender.close, timeout)
        if self._acceptor is not None:
            self._acceptor.close()


async def durable(ticket: Ticket) -> int:
    """Await a ticket's `result`."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def arrived() -> None:
        if not done.done():
            done.set_result(None)

    def from_thread() -> None:
        # A closed loop refuses the call: nobody awaits the ticket any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(arrived)

    if not ticket.done():
        ticket.when_done(from_thread)
        await done
    return ticket.result(0)


class _Acceptor:
    """Appends of one event loop to a journal: one thread accepts them and syncs once for all.
    The loop never waits for the disk, not even for a write, which may begin a segment."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._thread = ThreadPoolExecutor(1, "sparkwal-accept")
        self._waiting: deque[_Waiting] = deque()
        self._is_running = False  # only the loop uses it
        self._is_full = self._is_closed = False

    async def accept(self, accepted: CheckedRows, block: bool) -> Ticket:
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
        """Call after the appender is closed: appends that still wait are refused."""
        self._is_closed = True
        if not self._is_running:
            self._thread.shutdown(wait=False)

    def _accept_all(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            if results := self._accept_some():
                loop.call_soon_threadsafe(_deliver, results)
            if self._is_full:
                self._appender.wait_room(1.0)
        loop.call_soon_threadsafe(self._go_on, loop)

    def _accept_some(self) -> _Results:
        results: _Results = []
        while self._waiting and len(results) < _MOST:
            accepted, block, done = self._waiting[0]
            try:
                if not done.cancelled():
                    results.append((done, self._appender.admit_unsynced(accepted)))
                    self._is_full = False
            except BackPressureError as error:
                if block:
                    self._is_full = True
                    break
                results.append((done, error))
            except BaseException as error:
                results.append((done, error))
            self._waiting.popleft()
        # While some wait for room, `block=False` is refused: it would wait behind them.
        self._is_full &= bool(self._waiting)
        return [(done, self._synced(each)) for done, each in reversed(results)][::-1]

    def _synced(self, each: Ticket | BaseException) -> Ticket | BaseException:
        """The last ticket comes first: its sync serves all."""
        if isinstance(each, Ticket):
            try:
                self._appender.wait_accepted(each)
            except SparkWalError as error:
                return error
        return each

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_running = bool(self._waiting)
        if self._is_running:
            self._thread.submit(self._accept_all, loop)
        elif self._is_closed:
            self._thread.shutdown(wait=False)


def _deliver(results: _Results) -> None:
    for done, each in results:
        if done.done():
            continue  # cancelled: its rows are accepted all the same
        if isinstance(each, BaseException):
            done.set_exception(each)
        else:
            done.set_result(each)
