"""The log for any Python process: append rows, learn when they are durable.

    with sparkwal.Appender("s3://bucket/wal", schema, producer_id="gateway-1") as wal:
        ticket = wal.append([{"id": 1, "name": "Ada"}])
        position = ticket.result()  # durable from here on

Appends are joined into batches; each batch is one object, up to `maxInFlightRequests` of
them are on their way at once and are acknowledged strictly in the order of the appends.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from sparkwal.appender import exits
from sparkwal.appender.batches import Ticket
from sparkwal.appender.buffer import Buffer
from sparkwal.appender.intake import Intake
from sparkwal.appender.limits import Limits, SizeWatch
from sparkwal.appender.persistence import Persistence, Target
from sparkwal.appender.rows import Accepted, RowSchema
from sparkwal.appender.subscribers import Subscribers
from sparkwal.appender.verdicts import fenced
from sparkwal.appender.workers import Callbacks
from sparkwal.errors import FencedError, OptionError, SparkWalError
from sparkwal.events import Event
from sparkwal.format.memory import ANONYMOUS
from sparkwal.open import open_log
from sparkwal.options.appender import AppenderOptions
from sparkwal.options.parsing import from_keywords
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.claim_age import ClaimAge
from sparkwal.protocol.clock import Clock, SystemClock
from sparkwal.protocol.handover import Lookout
from sparkwal.protocol.leader import Leadership
from sparkwal.protocol.leadership import Claim, lead
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.pipeline import Pipeline
from sparkwal.store.conditional_put import prove_put_if_absent

if TYPE_CHECKING:
    from sparkwal.appender.rows import Rows

__all__ = ["Appender", "Ticket"]


class Appender:
    """Leads one log and appends to it; thread-safe.

    Opening takes the log over from its former writer and fences that writer: 1
    LIST, a bounded number of GETs, a conditional PUT into the first gap, and the seals.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        schema: the columns of every append; one that is not nullable takes no null.
        producer_id: names the sender of these rows over restarts; the log remembers how
            far it came.
        on_event: the first subscriber; see `subscribe`.
        options: by their names in docs/options.md, such as maxInFlightRequests=50.

    Raises OptionError, StoreUnavailableError, FencedError, InvalidLogError.
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
        settings = from_keywords(AppenderOptions, path, options)
        log = open_log(settings, fail_fast=True)
        self._start(log, settings, schema, producer_id, on_event, SystemClock())

    def _start(
        self,
        log: LogStore,
        settings: AppenderOptions,
        schema: pa.Schema,
        producer_id: str,
        on_event: Callable[[Event], None] | None,
        clock: Clock,
    ) -> None:
        _check_producer(producer_id)
        self._rows = RowSchema(schema)
        self._ends = threading.Lock()  # held by the call that ends the threads, for good
        self._subscribers = Subscribers()
        if on_event is not None:
            self._subscribers.add(on_event)
        try:
            self._persistence = self._lead(log, settings, producer_id, clock)
        except BaseException:
            self._subscribers.close()
            raise
        exits.add(self)

    def _lead(
        self,
        log: LogStore,
        settings: AppenderOptions,
        producer_id: str,
        clock: Clock,
    ) -> Persistence:
        prove_put_if_absent(log.store, log.prefix)
        # One for each incarnation: its own records, and no others, are ours on a read-back.
        plan_id = uuid.uuid4().hex
        host = socket.gethostname()
        claim = Claim(
            leader_id=f"{host}:{os.getpid()}:{plan_id[:12]}",
            host=host,
            plan_id=plan_id,
            spark_schema=self._rows.spark_schema,
            merge_schema=settings.merge_schema,
            window=settings.window_size,
            in_flight_limit=settings.max_in_flight,
            reason="appender",
        )
        self._subscribers.enter_thread()
        try:
            looked_ms = clock.boot_ms()
            leadership = lead(log, claim, clock, settings.plan_ttl_ms)
        except FencedError as error:
            raise fenced(error) from None
        finally:
            self._subscribers.leave_thread()
        limit = settings.max_in_flight
        age = ClaimAge(
            log, clock, settings.plan_ttl_ms, leadership.began, limit, looked_ms=looked_ms
        )
        last = last_batch(lambda: log, leadership, producer_id)
        lookout = Lookout(log, leadership.log_id, leadership.term, clock)
        pipeline = Pipeline(log, leadership, plan_id, producer_id, settings.codec)
        timeout = settings.batch_timeout_ms / 1000
        watch = self._watch(log, leadership, settings, clock)
        self._callbacks = Callbacks()
        buffer = Buffer(
            settings.batch_size, timeout, settings.max_buffered, last + 1, self._callbacks
        )
        self._intake = Intake(buffer, self._callbacks)
        return Persistence(
            Target(log, producer_id, pipeline, age, lookout, limit),
            self._rows,
            self._intake,
            clock,
            self._subscribers,
            watch,
        )

    def _watch(
        self, log: LogStore, leadership: Leadership, settings: AppenderOptions, clock: Clock
    ) -> SizeWatch | None:
        """None, and no request, without limits of the log's size."""
        if settings.soft_limit is None and settings.hard_limit is None:
            return None
        return SizeWatch(
            log,
            leadership.log_id,
            leadership.window,
            leadership.next_position,
            Limits(settings.soft_limit, settings.hard_limit),
            clock,
            self._subscribers.publish,
        )

    def append(self, rows: Rows, block: bool = True) -> Ticket:
        """Accept rows: a RecordBatch or Table, a list of dicts, a pandas or polars frame.

        Returns at once; the ticket tells when they are durable. Accepted rows may still be
        lost when the process dies: resend what comes after `last_sequence`.

        Dicts, what they hold and pandas frames are copied: they may change afterwards.
        The memory of a RecordBatch is kept, not copied: Arrow's never changes. Where it is
        someone else's (pa.array(ndarray) shares the array's) nothing may write to it before
        the ticket is done.

        Args:
            block: wait while `maxBufferedBytes` are waiting, or the log is at `hardLimitBytes`;
                False: raise BackPressureError.

        Raises:
            OptionError: the rows do not fit the schema or are malformed, the appender is
                closed, or this is a fork of its process.
            BackPressureError: try again later.
            FencedError, OutcomeUnknownError: it has stopped.
        """
        return self._intake.append(self._rows.accept(rows), block)

    def check(self, rows: Rows) -> Accepted:
        """The first half of `append`: rows checked and copied, nothing is accepted yet."""
        return self._rows.accept(rows)

    def admit(self, accepted: Accepted, block: bool = True) -> Ticket:
        """The second half of `append`."""
        return self._intake.append(accepted, block)

    @property
    def last_sequence(self) -> int:
        """The newest durable sequence of this producer; −1 if there is none.

        Each append up to it is decided: durable, or rejected because of a value that does
        not fit. Of a rejection the append's ticket tells, else `flush` and `close` raise;
        where the process died before that, only the event `rejected` in its log does.
        """
        return self._persistence.last_sequence

    @property
    def in_flight(self) -> int:
        """Records that are sent and not acknowledged."""
        return self._persistence.in_flight

    @property
    def buffered_bytes(self) -> int:
        """About how much memory is held by what is accepted and waits to be sent."""
        return self._intake.held

    @property
    def error(self) -> SparkWalError | None:
        """Why the appender has stopped; None while it goes on."""
        failure = self._intake.failure
        return None if failure is None else failure.error

    def flush(self, timeout: float | None = None) -> None:
        """Send what was accepted at once, and wait until all of it is durable.

        Raises why the appender has stopped; OptionError when appends were rejected and no
        ticket has told it yet; TimeoutError after `timeout` seconds.
        """
        self._intake.flush(timeout)

    def wait_room(self, timeout: float) -> None:
        """After a BackPressureError: wait for room for that append, at most `timeout` seconds."""
        self._intake.wait_room(timeout)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Tell `callback`, in a thread of its own and in order, what happens here.

        accepted (a batch is sent), durable, rejected, retried, fenced, size_limit, stopped. A slow
        callback delays nothing; one that has 10,000 events waiting misses the oldest.
        Returns the unsubscriber.
        """
        return self._subscribers.add(callback)

    def close(self, timeout: float | None = None) -> None:
        """Send everything accepted and wait until it is durable. Harmless when repeated.

        A callback or a signal's handler may call it too. An appender that is still open
        when the interpreter ends is closed then; os._exit and kill leave no time for that.

        Raises why the appender has stopped, if nothing has raised it yet; OptionError when
        appends were rejected and no ticket has told it; TimeoutError after `timeout`
        seconds: rows are still being sent then, and another `close` waits for them.
        """
        try:
            self._persistence.close(timeout)
        except TimeoutError:
            exits.remove(self)  # its user knows
            raise
        if self._ends.acquire(blocking=False):
            self._callbacks.stop()
            self._subscribers.close()
            exits.remove(self)
        self._intake.tell_rest()

    @property
    def pid(self) -> int:
        """The process that it was opened in, the only one that may use it."""
        return self._callbacks.pid

    @property
    def unacknowledged(self) -> int:
        """How many appends are accepted and not known to be durable."""
        return self._persistence.unacknowledged

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except SparkWalError:
            # The error that ended the block is the cause, or as important.
            if error is None:
                raise


def _check_producer(producer_id: object) -> None:
    if not isinstance(producer_id, str):
        raise OptionError(f"producer_id is a {type(producer_id).__name__}; a str is expected")
    if not producer_id.strip() or producer_id.startswith(ANONYMOUS):
        raise OptionError(f"producer_id must not be empty or begin with {ANONYMOUS!r}")
    try:
        producer_id.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"producer_id {ascii(producer_id)} cannot be written as UTF-8; leave its lone "
            "surrogates out"
        ) from None


def appender_over(
    log: LogStore,
    schema: pa.Schema,
    *,
    producer_id: str,
    on_event: Callable[[Event], None] | None = None,
    clock: Clock | None = None,
    **options: object,
) -> Appender:
    """An appender over a given store, which must retry transient failures itself."""
    appender = Appender.__new__(Appender)
    settings = from_keywords(AppenderOptions, log.prefix or "log", options)
    appender._start(log, settings, schema, producer_id, on_event, clock or SystemClock())
    return appender
