"""The appender for asyncio: callers await room and durability, and never block the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, Self, TypeVar, Unpack

import pyarrow as pa

from sparkwal.appender.appender import Appender, Ticket
from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.rows import Rows
from sparkwal.errors import BackPressureError, SparkWalError
from sparkwal.events import Event
from sparkwal.journal.safe_threading import Flag
from sparkwal.options.keywords import AppenderKeywords
from sparkwal.store.threads import run_in_thread

# The limit of appends that are accepted before the journal is synced.
_MAX_UNSYNCED = 1000

P = ParamSpec("P")
R = TypeVar("R")

_Accepted = asyncio.Future[Ticket]
_Results = list[tuple[_Accepted, Ticket | BaseException]]


class AsyncAppender:
    """An `Appender` for one event loop: you await its methods.

    Entering the block takes the log over. If the entry is cancelled, it waits for the running
    requests and leaves no appender open. Rejected rows are reported as by `Appender`.

    Examples:
        >>> async with sparkwal.AsyncAppender(path, schema, producer_id="gateway-1") as wal:
        ...     position = await wal.append(rows)

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        schema: the columns of every append. A column that is not nullable takes no null.
        producer_id: names the sender of the rows over restarts.
        on_event: the first subscriber; see `subscribe`.
        **options: as for `Appender`.

    Raises:
        SparkWalError: as `Appender`, when you enter the block.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        *,
        producer_id: str,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[AppenderKeywords],
    ) -> None:
        self._open: Callable[[], Appender] = partial(
            Appender, path, schema, producer_id=producer_id, on_event=on_event, **options
        )
        self._appender: Appender | None = None
        # The event loop must not wait for a disk, so another thread accepts appends that wait for
        # room or for a journal, in order.
        self._waiting: deque[tuple[CheckedRows, bool, _Accepted]] = deque()
        # The first waiting append waits for room.
        self._is_full = False
        # Only the event loop uses these: a thread is at work; the number of waiting calls.
        self._is_accepting = False
        self._in_turn = 0

    @property
    def appender(self) -> Appender:
        """The `Appender` in use.

        Raises:
            RuntimeError: the block is not entered.
        """
        if self._appender is None:
            raise RuntimeError("use `async with sparkwal.AsyncAppender(…) as wal:`")
        return self._appender

    async def __aenter__(self) -> Self:
        cancelled = Flag()

        def open_it() -> Appender:
            appender = self._open()
            if cancelled.is_set():
                appender.close()
            return appender

        opening = _in_thread(open_it)
        try:
            self._appender = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Wait for the requests in flight: they could fence the next appender that opens this
            # log.
            cancelled.set()
            await asyncio.wait([opening])
            with suppress(SparkWalError):
                await _in_thread(opening.result().close)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with nullcontext() if error is None else suppress(SparkWalError):
            await self.close()

    async def append(self, rows: Rows) -> int:
        """Append rows, and wait until they are durable. It waits for room first.

        Appends are in the order in which their calls begin. A call that is cancelled after its rows
        were accepted still writes them.

        Args:
            rows: as for `Appender.append`.

        Returns:
            The log's position that holds the rows.

        Raises:
            OptionError: the rows do not fit the schema; sparkwal wrote none of them.
            SparkWalError: the appender has stopped.
        """
        return await durable(await self.accept(rows))

    async def accept(self, rows: Rows, block: bool = True) -> Ticket:
        """Accept rows as `Appender.append` does: wait for room, and for the journal's disk.

        Args:
            rows: as for `Appender.append`.
            block: wait for room. False: raise BackPressureError instead.

        Returns:
            The ticket of this append; await `sparkwal.durable(ticket)` to wait for the log.

        Raises:
            OptionError: the rows do not fit the schema, or the appender is closed.
            BackPressureError: with `block=False`: append again later.
            SparkWalError: the appender has stopped.
        """
        appender = self.appender
        checked = appender.check(rows)
        # If the appender is not open, `admit_unsynced` raises the reason.
        if not (self._in_turn or appender.has_journal) or not appender.is_open:
            try:
                return appender.admit_unsynced(checked)
            except BackPressureError:
                if not block:
                    raise
        if not block and (self._is_full or not appender.has_journal):
            raise BackPressureError("others wait for room already: try again later")
        done: _Accepted = asyncio.get_running_loop().create_future()
        self._waiting.append((checked, block, done))
        if not self._is_accepting:
            self._deliver()
        self._in_turn += 1
        try:
            return await done
        finally:
            self._in_turn -= 1

    def _deliver(self, accepted: asyncio.Future[_Results] | None = None) -> None:
        """Complete the futures of accepted appends, and let the thread accept more."""
        for done, result in () if accepted is None else accepted.result():
            if done.done():
                # The call was cancelled. Its rows are accepted all the same.
                continue
            if isinstance(result, BaseException):
                done.set_exception(result)
            else:
                done.set_result(result)
        self._is_accepting = bool(self._waiting)
        if self._is_accepting:
            _in_thread(self._accept_some).add_done_callback(self._deliver)

    def _accept_some(self) -> _Results:
        """Accept waiting appends while there is room, and sync a journal once for all of them."""
        if self._is_full:
            self.appender.wait_room(1.0)
        results: _Results = []
        while self._waiting and len(results) < _MAX_UNSYNCED:
            checked, block, done = self._waiting[0]
            try:
                if not done.cancelled():
                    results.append((done, self.appender.admit_unsynced(checked)))
                    self._is_full = False
            except BackPressureError as error:
                if block:
                    self._is_full = True
                    break
                results.append((done, error))
            except BaseException as error:
                results.append((done, error))
            self._waiting.popleft()
        # While an append waits for room, refuse one with `block=False`: it would wait behind the
        # other.
        self._is_full &= bool(self._waiting)
        # Wait for the last ticket first: its sync serves all.
        for index, (done, result) in reversed(list(enumerate(results))):
            if isinstance(result, Ticket):
                try:
                    self.appender.wait_accepted(result)
                except SparkWalError as error:
                    results[index] = done, error
        return results

    @property
    def last_sequence(self) -> int:
        """As `Appender.last_sequence`."""
        return self.appender.last_sequence

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call a function with each event, as `Appender.subscribe`: in a separate thread.

        Args:
            callback: gets each event.

        Returns:
            A function that unsubscribes the callback.
        """
        return self.appender.subscribe(callback)

    async def flush(self, timeout: float | None = None) -> None:
        """Send all accepted rows now, and wait until they are durable.

        Args:
            timeout: seconds to wait, or None for no limit.

        Raises:
            OptionError: appends were rejected, and no ticket has reported it.
            TimeoutError: some rows are not durable yet.
            SparkWalError: the error that stopped the appender.
        """
        await _in_thread(self.appender.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Send all accepted rows and wait until they are durable, as `Appender.close`.

        Args:
            timeout: seconds to wait, or None for no limit.

        Raises:
            OptionError: appends were rejected, and no ticket has reported it.
            TimeoutError: some rows are not durable yet.
            SparkWalError: the error that stopped the appender, unless a call has raised it.
        """
        await _in_thread(self.appender.close, timeout)


def _in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """As `asyncio.to_thread`, also after the main thread has ended."""
    return asyncio.wrap_future(
        run_in_thread(partial(copy_context().run, function, *args, **kwargs))
    )


async def durable(ticket: Ticket) -> int:
    """Wait in an event loop until the rows of a ticket are durable.

    Args:
        ticket: the result of `AsyncAppender.accept` or `Appender.append`.

    Returns:
        The log's position that holds the rows.

    Raises:
        OptionError: the rows do not fit the schema; sparkwal wrote none of them.
        SparkWalError: the appender has stopped, as `Ticket.result`.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def from_thread() -> None:
        # A closed loop refuses the call, and no task awaits the ticket any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set)

    if not ticket.done():
        ticket.when_done(from_thread)
        await done.wait()
    return ticket.result(0)
