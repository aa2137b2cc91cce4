"""The log for any Python process: append rows, learn when they are durable.

    with sparkwal.Appender("s3://bucket/wal", schema, producer_id="gateway-1") as wal:
        ticket = wal.append([{"id": 1, "name": "Ada"}])
        position = ticket.result()  # durable from here on

The appender joins appends into batches, and each batch is one object. Up to `maxInFlightRequests`
of them are in flight at once. It acknowledges strictly in the order of the appends.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from multiprocessing.util import Finalize
from typing import Self

import pyarrow as pa

from sparkwal.appender.batches import CheckedRows, Ticket
from sparkwal.appender.context import AppenderContext, Subscribers
from sparkwal.appender.journal_backend import JournalBackend
from sparkwal.appender.rows import Rows, RowSchema
from sparkwal.appender.salvage import Incident, incidents_of
from sparkwal.appender.sender import Session, open_session
from sparkwal.errors import OptionError, SparkWalError
from sparkwal.events import Event
from sparkwal.format.header import ANONYMOUS
from sparkwal.journal.storage import Folder
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.writers import AppenderOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.store.base import LogStore

__all__ = ["Appender", "Ticket"]

_logger = logging.getLogger("sparkwal")

# How long closing may take at the interpreter's end: usually as long as a dead store's retries.
_EXIT_SECONDS = 60.0


class Appender:
    """Leads one log and appends to it; thread-safe.

    Opening takes the log over from its former writer and fences that writer: 1 LIST, a bounded
    number of GETs, a conditional PUT into the first gap, and the seals.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder; or a log whose store retries itself.
        schema: the columns of every append; a column that is not nullable takes no null.
        producer_id: names the sender of the rows over restarts; the log has its last sequence.
        on_event: the first subscriber; see `subscribe`.
        clock, folder: a `Clock` and a journal's `Folder` instead of the system's, as in tests.
        options: by their names in docs/options.md, such as maxInFlightRequests=50.

    Raises OptionError, StoreUnavailableError, FencedError, InvalidLogError.
    """

    def __init__(
        self,
        path: str | LogStore,
        schema: pa.Schema,
        *,
        producer_id: str,
        on_event: Callable[[Event], None] | None = None,
        clock: Clock | None = None,
        folder: Folder | None = None,
        **options: object,
    ) -> None:
        name = path.prefix or "log" if isinstance(path, LogStore) else path
        settings = from_keywords(AppenderOptions, name, options)
        log = path if isinstance(path, LogStore) else open_log(settings, fail_fast=True)
        _check_producer(producer_id)
        self._log, self.options = log, settings
        self._rows = RowSchema(schema)
        self._is_closing = False
        self._subscribers = Subscribers()
        if on_event is not None:
            self._subscribers.add(on_event)
        context = AppenderContext(
            log, settings, self._rows, producer_id, self._subscribers, clock or SYSTEM
        )
        # Keeps the rows until the log has them: in memory, or in the journal.
        self._backend: Session | JournalBackend
        self._journaled: JournalBackend | None = None
        try:
            if settings.journal is None:
                self._backend = open_session(context)
            else:
                self._backend = self._journaled = JournalBackend(context, folder)
        except BaseException:
            self._subscribers.close()
            raise
        self._intake = self._backend.intake
        self._enter = self._intake.callbacks.enter
        # Runs also where a child of multiprocessing ends, and not in a fork of this process.
        self._at_exit = Finalize(None, self._close_at_exit, exitpriority=0)

    def append(self, rows: Rows, block: bool = True) -> Ticket:
        """Accept rows: a RecordBatch or Table, a list of dicts, a pandas or polars frame.

        Returns at once; the ticket shows when they are durable. Accepted rows may still be lost
        when the process dies: resend what comes after `last_sequence`. With a journal it returns
        once they are on this machine's disk, from which they reach the log exactly once.

        Dicts, their values and pandas frames are copied: you may change them afterwards. The memory
        of a RecordBatch is not copied: Arrow's own never changes. If it belongs to another object
        (pa.array(ndarray) shares the array's), do not write to it before the ticket is done.

        Args:
            block: wait at `maxBufferedBytes` or `hardLimitBytes`; else raise BackPressureError.

        Raises:
            OptionError: the rows do not fit or are malformed, the appender is closed, or in a fork.
            BackPressureError: try again later.
            FencedError, OutcomeUnknownError, JournalError: the appender has stopped.
        """
        return self._intake.append(self._rows.accept(rows), block)

    def check(self, rows: Rows) -> CheckedRows:
        """The first half of `append`: checks and copies rows."""
        return self._rows.accept(rows)

    def admit_unsynced(self, rows: CheckedRows) -> Ticket:
        """The second half of `append`, with `block=False`. With a journal the rows are accepted
        only once `wait_accepted` has returned."""
        if self._journaled is None:
            return self._intake.append(rows, False)
        return self._enter(self._journaled.intake.begin, rows, False)

    def wait_accepted(self, ticket: Ticket) -> None:
        """Wait until rows are on a journal's disk, if there is one. Raises JournalError."""
        if self._journaled is not None:
            self._enter(self._journaled.journal.wait, ticket.sequence)

    @property
    def last_sequence(self) -> int:
        """The newest durable sequence of this producer; −1 if there is none. With a journal: the
        newest that is on the disk and whose append may have returned.

        Each append up to it is decided: durable, or rejected because of a value that does not fit.
        Its ticket raises a rejection, or else `flush` or `close`; after a crash only the event
        `rejected` has reported it.
        """
        return self._intake.last_sequence

    @property
    def lost(self) -> range:
        """Sequences that a journal accepted and whose rows are damaged on the disk: see
        `resend_lost`. Empty without damage, and without a journal."""
        return range(0) if self._journaled is None else self._journaled.journal.lost

    def resend_lost(self, unreadable: Callable[[int], Rows]) -> list[int]:
        """Append again what damage took from the journal, in order and under the old sequences.
        Call it before any other append. Harmless when repeated, also after a crash.

        Args:
            unreadable: returns the rows of an append, given its sequence, of which nothing is left;
                an empty list gives them up.

        Returns the sequences that `unreadable` got. Raises as `append`; OptionError if something
        else was appended meanwhile; JournalReadError if a file in quarantine cannot be read.
        """
        if self._journaled is None:
            return []
        return self._journaled.resend_lost(lambda sequence: self._rows.accept(unreadable(sequence)))

    def incidents(self) -> list[Incident]:
        """What each damage took, the oldest first, and what is left. Raises JournalReadError."""
        kept = self._journaled
        return [] if kept is None else incidents_of(kept.quarantine, kept.journal.last)

    @property
    def has_journal(self) -> bool:
        return self._journaled is not None

    @property
    def url(self) -> str:
        """The log's URL, without secrets."""
        return self._log.url

    @property
    def journal_bytes(self) -> int:
        """Size of the journal's files, whose rows the log may have already; 0 without a journal."""
        return 0 if self._journaled is None else self._journaled.journal.size

    @property
    def is_store_away(self) -> bool:
        """Whether the store did not answer last, while the journal accepts without it."""
        return self._journaled is not None and self._journaled.sender.is_away

    @property
    def in_flight(self) -> int:
        """Records that are sent and not acknowledged."""
        return self._backend.in_flight

    @property
    def buffered_bytes(self) -> int:
        """About how many bytes of memory the accepted rows take that wait to be sent."""
        return self._backend.held

    @property
    def error(self) -> SparkWalError | None:
        """Why the appender has stopped."""
        failure = self._intake.failure
        return None if failure is None else failure.error

    @property
    def is_open(self) -> bool:
        """Whether the appender accepts rows: it has neither stopped nor been closed."""
        return self.error is None and not self._is_closing

    def flush(self, timeout: float | None = None) -> None:
        """Send all accepted rows now, and wait until they are durable, `timeout` seconds at most.
        Raises why the appender has stopped, TimeoutError, OptionError for unreported rejections."""
        self._enter(self._intake.flush, timeout)

    def wait_room(self, timeout: float) -> None:
        """After a BackPressureError: wait for room for that append, at most `timeout` seconds."""
        self._enter(self._intake.wait_room, timeout)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` with each event of this appender, in a thread of its own and in order.

        The events are batch_sent (not durable yet), durable, rejected, retried, fenced, size_limit,
        stopped. A slow callback delays nothing; if 10,000 events wait, it misses the oldest.
        Returns a function that unsubscribes.
        """
        return self._enter(self._subscribers.add, callback)

    def close(self, timeout: float | None = None) -> None:
        """Send everything accepted and wait until it is durable. Harmless when repeated.

        A callback may call it too. A signal handler that interrupted a call of this appender may
        not: let it set a flag, and close the appender after that call. The end of the interpreter
        closes an open appender; os._exit and kill leave no time for that. If the oldest request
        failed it may return while a later PUT is under way: the next takeover decides that record.

        Raises why the appender has stopped, if nothing has raised it yet; OptionError when appends
        were rejected and no ticket has reported it; TimeoutError after `timeout` seconds: the
        appender goes on sending, and another `close` waits for that.
        """
        self._enter(self._close, timeout)
        self._intake.raise_rest()

    def _close(self, timeout: float | None) -> None:
        self._is_closing = True
        try:
            self._backend.close(timeout)
        except TimeoutError:
            self._at_exit.cancel()  # its user knows
            raise
        self._subscribers.close()
        self._at_exit.cancel()

    def _close_at_exit(self) -> None:
        try:
            self.close(_EXIT_SECONDS)
        except Exception as error:
            _logger.error(
                "an appender was left open when the interpreter ended; %d appends were accepted "
                "and are %s: %s: %s",
                self.unacknowledged,
                "in its journal" if self.has_journal else "not known to be durable",
                type(error).__name__,
                error,
            )

    @property
    def unacknowledged(self) -> int:
        """Appends that are accepted and not known to be durable."""
        return self._intake.unacknowledged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # The error that ended the block is the cause, or matters as much.
        with nullcontext() if error is None else suppress(SparkWalError):
            self.close()


def _check_producer(producer_id: object) -> None:
    name = producer_id if isinstance(producer_id, str) else ""
    is_utf8 = name.encode(errors="replace").decode() == name
    if not name.strip() or name.startswith(ANONYMOUS) or not is_utf8:
        raise OptionError(
            f"producer_id is {producer_id!a}; a text is expected that is not empty, does not begin "
            f"with {ANONYMOUS!r} and holds no lone surrogates"
        )
