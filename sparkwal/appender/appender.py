"""The log for any Python process: append rows, learn when they are durable.

    with sparkwal.Appender("s3://bucket/wal", schema, producer_id="gateway-1") as wal:
        ticket = wal.append([{"id": 1, "name": "Ada"}])
        position = ticket.result()  # durable from here on

Appends are joined into batches; each batch is one object, up to `maxInFlightRequests` of
them are on their way at once and are acknowledged strictly in the order of the appends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from sparkwal.appender import exits
from sparkwal.appender.batches import CheckedRows, Ticket
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.journal_backend import JournalBackend
from sparkwal.appender.rows import RowSchema
from sparkwal.appender.salvage import Incident
from sparkwal.appender.session import Session, open_session
from sparkwal.appender.subscribers import Subscribers
from sparkwal.errors import OptionError, SparkWalError
from sparkwal.events import Event
from sparkwal.format.memory import ANONYMOUS
from sparkwal.journal.storage import Folder
from sparkwal.options.appender import AppenderOptions
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.protocol.clock import Clock, SystemClock
from sparkwal.store.log_store import LogStore

if TYPE_CHECKING:
    from sparkwal.appender.rows import Rows

__all__ = ["Appender", "Ticket"]


@dataclass(frozen=True)
class Place:
    """Where an appender works, of parts that are there.

    Attributes:
        log: its store retries transient failures itself.
        folder: of the journal, instead of the one on the local disk that the option names.
    """

    log: LogStore
    clock: Clock = field(default_factory=SystemClock)
    folder: Folder | None = None


class Appender:
    """Leads one log and appends to it; thread-safe.

    Opening takes the log over from its former writer and fences that writer: 1
    LIST, a bounded number of GETs, a conditional PUT into the first gap, and the seals.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder; or a `Place`.
        schema: the columns of every append; one that is not nullable takes no null.
        producer_id: names the sender of these rows over restarts; the log remembers how
            far it came.
        on_event: the first subscriber; see `subscribe`.
        options: by their names in docs/options.md, such as maxInFlightRequests=50.

    Raises OptionError, StoreUnavailableError, FencedError, InvalidLogError.
    """

    def __init__(
        self,
        path: str | Place,
        schema: pa.Schema,
        *,
        producer_id: str,
        on_event: Callable[[Event], None] | None = None,
        **options: object,
    ) -> None:
        name = path.log.prefix or "log" if isinstance(path, Place) else path
        settings = from_keywords(AppenderOptions, name, options)
        place = path if isinstance(path, Place) else Place(open_log(settings, fail_fast=True))
        _check_producer(producer_id)
        self._log, self._settings = place.log, settings
        self._rows = RowSchema(schema)
        self._is_closing = False
        self._subscribers = Subscribers()
        if on_event is not None:
            self._subscribers.add(on_event)
        context = AppenderContext(
            place.log, settings, self._rows, producer_id, self._subscribers, place.clock
        )
        # What keeps the rows until the log has them: memory, or the journal.
        self._backend: Session | JournalBackend
        self._journaled: JournalBackend | None = None
        try:
            if settings.journal is None:
                self._backend = open_session(context)
            else:
                self._backend = self._journaled = JournalBackend(context, place.folder)
        except BaseException:
            self._subscribers.close()
            raise
        self._intake = self._backend.intake
        self._enter = self._intake.callbacks.enter
        exits.add(self)

    def append(self, rows: Rows, block: bool = True) -> Ticket:
        """Accept rows: a RecordBatch or Table, a list of dicts, a pandas or polars frame.

        Returns at once; the ticket shows when they are durable. Accepted rows may still be
        lost when the process dies: resend what comes after `last_sequence`.

        With a journal it returns once they are on this machine's disk: then they will be in
        the log exactly once, by this process or by the next that opens the journal.

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
            FencedError, OutcomeUnknownError, JournalError: it has stopped.
        """
        return self._intake.append(self._rows.accept(rows), block)

    def check(self, rows: Rows) -> CheckedRows:
        """The first half of `append`: rows checked and copied, nothing is accepted yet."""
        return self._rows.accept(rows)

    def admit(self, rows: CheckedRows, block: bool = True) -> Ticket:
        """The second half of `append`."""
        return self._intake.append(rows, block)

    @property
    def last_sequence(self) -> int:
        """The newest durable sequence of this producer; −1 if there is none. With a journal the
        newest that is on the disk, of which an append may have returned.

        Each append up to it is decided: durable, or rejected because of a value that does
        not fit. A rejection is raised by its ticket, or else by `flush` or `close`;
        where the process died before that, only the event `rejected` in its log does.
        """
        return self._intake.last_sequence

    @property
    def lost(self) -> range:
        """Sequences that a journal had accepted and that are damaged on the disk: see
        `resend_lost`. Empty without damage, and without a journal."""
        return self._backend.lost

    def resend_lost(self, unreadable: Callable[[int], Rows]) -> list[int]:
        """Append again what damage took from the journal, in order: each gets its sequence again.
        Before anything else is appended. Harmless when repeated, also after a crash.

        Args:
            unreadable: gives the rows of an append (its sequence) of which nothing is left; an
                empty list gives them up.

        Returns the sequences of these. Raises as `append`; OptionError where something else was
        appended meanwhile; JournalReadError where the disk does not give a file in quarantine.
        """
        if self._journaled is None:
            return []
        return self._journaled.resend_lost(lambda sequence: self._rows.accept(unreadable(sequence)))

    def incidents(self) -> list[Incident]:
        """What damage took from the journal so far, the oldest first, and what is left of it; until
        its files in `quarantine/` are removed. Reads them. Raises JournalReadError."""
        return [] if self._journaled is None else self._journaled.incidents()

    def admit_unsynced(self, rows: CheckedRows) -> Ticket:
        """As `admit`, and never waits: with a journal the rows are accepted once
        `wait_accepted` has returned."""
        if self._journaled is None:
            return self.admit(rows, False)
        return self._enter(self._journaled.intake.begin, rows, False)

    def wait_accepted(self, ticket: Ticket) -> None:
        """Wait until rows are on the disk; without a journal at once. Raises JournalError."""
        if self._journaled is not None:
            self._enter(self._journaled.journal.wait, ticket.sequence)

    @property
    def has_journal(self) -> bool:
        """Whether accepted means on this machine's disk."""
        return self._journaled is not None

    @property
    def url(self) -> str:
        """Of the log; holds no secret."""
        return self._log.url

    @property
    def buffer_limit(self) -> int:
        """maxBufferedBytes: what may wait in memory."""
        return self._settings.max_buffered

    @property
    def journal_limit(self) -> int:
        """What appends may fill of a journal: journalMaxBytes without one file."""
        return self._settings.journal_max - self._settings.journal_segment

    @property
    def journal_bytes(self) -> int:
        """Bytes of a journal's files, of which the log may have some already; 0 without one."""
        return 0 if self._journaled is None else self._journaled.journal.size

    @property
    def is_store_away(self) -> bool:
        """Whether a journal accepts without the store, which did not answer last."""
        return self._journaled is not None and self._journaled.sender.is_away

    @property
    def in_flight(self) -> int:
        """Records that are sent and not acknowledged."""
        return self._backend.in_flight

    @property
    def buffered_bytes(self) -> int:
        """About how much memory is held by what is accepted and waits to be sent."""
        return self._backend.held

    @property
    def error(self) -> SparkWalError | None:
        """Why the appender has stopped; None while it goes on."""
        failure = self._intake.failure
        return None if failure is None else failure.error

    @property
    def is_open(self) -> bool:
        """Whether it accepts rows: it has not stopped, and nobody has closed it."""
        return self.error is None and not self._is_closing

    def flush(self, timeout: float | None = None) -> None:
        """Send what was accepted at once, and wait until all of it is durable.

        Raises why the appender has stopped; OptionError when appends were rejected and no
        ticket has reported it yet; TimeoutError after `timeout` seconds.
        """
        self._enter(self._intake.flush, timeout)

    def wait_room(self, timeout: float) -> None:
        """After a BackPressureError: wait for room for that append, at most `timeout` seconds."""
        self._enter(self._intake.wait_room, timeout)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` with each event of this appender, in a thread of its own and in order.

        batch_sent (not durable yet), durable, rejected, retried, fenced, size_limit, stopped. A
        slow callback delays nothing; one that has 10,000 events waiting misses the oldest.
        Returns the unsubscriber.
        """
        return self._enter(self._subscribers.add, callback)

    def close(self, timeout: float | None = None) -> None:
        """Send everything accepted and wait until it is durable. Harmless when repeated.

        A callback may call it too. A signal's handler that interrupted a call of this appender
        may not: it sets a flag, and the appender is closed after that call. An appender that is
        still open when the interpreter ends is closed then; os._exit and kill leave no time for
        that.

        Raises why the appender has stopped, if nothing has raised it yet; OptionError when
        appends were rejected and no ticket has reported it; TimeoutError after `timeout`
        seconds: rows are still being sent then, and another `close` waits for them.
        """
        self._enter(self._close, timeout)
        self._intake.raise_rest()

    def _close(self, timeout: float | None) -> None:
        self._is_closing = True
        try:
            self._backend.close(timeout)
        except TimeoutError:
            exits.remove(self)  # its user knows
            raise
        self._subscribers.close()
        exits.remove(self)

    @property
    def pid(self) -> int:
        """The process that it was opened in, the only one that may use it."""
        return self._intake.callbacks.pid

    @property
    def unacknowledged(self) -> int:
        """How many appends are accepted and not known to be durable."""
        return self._intake.unacknowledged

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
    folder: Folder | None = None,
    **options: object,
) -> Appender:
    """An appender over the parts of a `Place`."""
    place = Place(log, clock or SystemClock(), folder)
    return Appender(place, schema, producer_id=producer_id, on_event=on_event, **options)
