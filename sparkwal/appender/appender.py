"""The writer for any Python process: it appends rows and reports when they are durable.

    with sparkwal.Appender("s3://bucket/wal", schema, producer_id="gateway-1") as wal:
        ticket = wal.append([{"id": 1, "name": "Ada"}])
        position = ticket.result()  # the rows are durable

The appender joins appends into batches, and each batch is one object. It sends up to
`maxInFlightRequests` of them at once, and acknowledges strictly in the order of the appends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from multiprocessing.util import Finalize
from typing import Self, Unpack

import pyarrow as pa

from sparkwal.appender.backend import Backend
from sparkwal.appender.batches import CheckedRows, Ticket
from sparkwal.appender.context import AppenderContext, Subscribers
from sparkwal.appender.journal_backend import JournalBackend
from sparkwal.appender.rows import Rows, RowSchema
from sparkwal.appender.salvage import Incident
from sparkwal.appender.sender import MemoryBackend
from sparkwal.errors import OptionError, SparkWalError
from sparkwal.events import Event
from sparkwal.format.header import ANONYMOUS
from sparkwal.journal.storage import Folder
from sparkwal.options.keywords import AppenderKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.writing import AppenderOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.store.base import LogStore

__all__ = ["Appender", "Ticket"]

_logger = logging.getLogger("sparkwal")

# The time limit of closing at the interpreter's end: about as long as the retries of a dead store.
_EXIT_SECONDS = 60.0


class Appender:
    """Writes a log without Spark: leads one log and appends rows to it; thread-safe.

    Opening takes the log over from its former writer and fences that writer. It costs 1 LIST, a
    bounded number of GETs, a conditional PUT of the leader record, and the PUTs of its seals.

    **Rejected rows.** An append is written as a whole or not at all. `append` raises OptionError
    at once if the rows are malformed or their columns do not fit. A single value of a dict is
    checked later, when its batch is encoded. If it does not fit, the appender leaves out that
    append and continues with the others. It reports the rejection three times:

    - `Ticket.result` of that append raises OptionError, which names the row and the column.
    - The event `rejected` goes to each subscriber and to the logger "sparkwal", as a warning.
    - The next `flush` or `close` raises one OptionError for all rejections that no ticket has
      raised.

    Examples:
        >>> with sparkwal.Appender("s3://bucket/wal", schema, producer_id="gateway-1") as wal:
        ...     ticket = wal.append([{"id": 1, "name": "Ada"}])
        ...     position = ticket.result()

    Args:
        path: s3://bucket/prefix, file:///folder or a folder; or an open log, as in tests.
        schema: the columns of every append. A column that is not nullable takes no null.
        producer_id: names the sender of the rows over restarts. The log holds its last sequence.
        on_event: the first subscriber; see `subscribe`.
        clock: replaces the system's clock, as in tests.
        folder: replaces the journal's folder on the disk, as in tests.
        **options: the options of an appender (docs/options.md) as keywords, such as
            maxInFlightRequests=50.

    Raises:
        OptionError: an argument or option is wrong, the store cannot hold a log, or the journal
            belongs to another log or producer.
        StoreUnavailableError: the store did not answer.
        FencedError: another writer took the log over during the opening.
        InvalidLogError: the log's end is damaged.
        JournalError: the journal's disk failed.
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
        **options: Unpack[AppenderKeywords],
    ) -> None:
        settings = from_keywords(AppenderOptions, path, options)
        log = path if isinstance(path, LogStore) else open_log(settings, fail_fast=True)
        _check_producer(producer_id)
        self._log = log
        self.options = settings
        self._rows = RowSchema(schema)
        self._is_closing = False
        self._subscribers = Subscribers()
        if on_event is not None:
            self._subscribers.add(on_event)
        context = AppenderContext(
            log, settings, self._rows, producer_id, self._subscribers, clock or SYSTEM
        )
        self._backend: Backend
        try:
            if settings.journal is None:
                self._backend = MemoryBackend(context)
            else:
                self._backend = JournalBackend(context, folder)
        except BaseException:
            self._subscribers.close()
            raise
        self._intake = self._backend.intake
        self._enter = self._intake.callbacks.enter
        # This runs also at the end of a multiprocessing child, and not in a fork of this process.
        self._at_exit = Finalize(None, self._close_at_exit, exitpriority=0)

    def append(self, rows: Rows, block: bool = True) -> Ticket:
        """Accept rows and return at once; the ticket completes when they are durable.

        If the process dies, accepted rows may be lost: after a restart append again the rows after
        `last_sequence`. With a journal `append` returns when the rows are on this machine's disk;
        from there they reach the log exactly once.

        The appender copies dicts, their values and pandas frames: you may change them afterwards.
        It does not copy the memory of a RecordBatch, which Arrow never changes. If that memory
        belongs to another object (pa.array(ndarray) shares the array's), do not change it before
        the ticket is done.

        Args:
            rows: a RecordBatch or Table, a list of dicts, or a pandas or polars frame.
            block: wait while `maxBufferedBytes`, the journal or `hardLimitBytes` is full. False:
                raise BackPressureError instead.

        Returns:
            The ticket of this append.

        Raises:
            OptionError: the rows do not fit the schema or are malformed, the appender is closed, or
                this process is a fork of the appender's.
            BackPressureError: with `block=False`: append again later.
            FencedError: another writer leads the log, so the appender has stopped.
            OutcomeUnknownError: a request got no answer, so the appender has stopped.
            JournalError: the journal's disk failed.
        """
        return self._intake.append(self._rows.accept(rows), block=block)

    def check(self, rows: Rows) -> CheckedRows:
        """Check and copy rows: the first half of `append`.

        Args:
            rows: as for `append`.

        Returns:
            The rows for `admit_unsynced`.

        Raises:
            OptionError: the rows do not fit the schema or are malformed.
        """
        return self._rows.accept(rows)

    def admit_unsynced(self, rows: CheckedRows) -> Ticket:
        """Accept checked rows: the second half of `append`, with `block=False`.

        With a journal the rows are accepted only after `wait_accepted` has returned.

        Args:
            rows: the result of `check`.

        Returns:
            The ticket of this append.

        Raises:
            BackPressureError: append again later.
            OptionError: the appender is closed, or this process is a fork of the appender's.
            SparkWalError: as `append`: the appender has stopped.
        """
        return self._backend.append_unsynced(rows)

    def wait_accepted(self, ticket: Ticket) -> None:
        """Wait until the rows of a ticket are on the journal's disk; without a journal return.

        Args:
            ticket: the result of `admit_unsynced`.

        Raises:
            JournalError: the disk failed.
        """
        self._backend.wait_accepted(ticket)

    @property
    def last_sequence(self) -> int:
        """The newest durable sequence of this producer; −1 if there is none.

        With a journal: the newest sequence on its disk. Each append up to it is decided: durable,
        or rejected because of a value that does not fit. After a crash only the event `rejected`
        has reported a rejection.
        """
        return self._intake.last_sequence

    @property
    def lost(self) -> range:
        """The sequences that the journal accepted and whose rows are damaged on its disk.

        If the number of these appends is unknown, the range holds the highest possible number: see
        `Incident.unknown`. It is empty without damage, and without a journal. See `resend_lost`.
        """
        return self._backend.lost

    def resend_lost(self, unreadable: Callable[[int], Rows]) -> list[int]:
        """Append the lost appends of the journal again, in order and with their old sequences.

        Call it before any other append. You may repeat it, also after a crash.

        Args:
            unreadable: a function that gets the sequence of an unreadable append and returns its
                rows. An empty list gives them up. If the number of lost appends is unknown, the
                function is called until it returns an empty list.

        Returns:
            The sequences that were passed to `unreadable`.

        Raises:
            OptionError: another append came first, or the rows do not fit.
            JournalReadError: a file in quarantine is unreadable.
            SparkWalError: as `append`: the appender has stopped.
        """
        return self._backend.resend_lost(lambda sequence: self._rows.accept(unreadable(sequence)))

    def incidents(self) -> list[Incident]:
        """List each damage of the journal, the oldest first.

        Returns:
            The lost appends and the remaining files of each damage; empty without a journal.

        Raises:
            JournalReadError: a file in quarantine is unreadable.
        """
        return self._backend.incidents()

    @property
    def has_journal(self) -> bool:
        """Whether the appender was opened with a journal."""
        return self._backend.has_journal

    @property
    def url(self) -> str:
        """The log's URL, without secrets."""
        return self._log.url

    @property
    def journal_bytes(self) -> int:
        """The size of the journal's files; 0 without a journal. The log may have their rows."""
        return self._backend.journal_bytes

    @property
    def is_store_away(self) -> bool:
        """Whether the store failed the last request, while the journal still accepts rows."""
        return self._backend.is_store_away

    @property
    def in_flight(self) -> int:
        """The number of records that are sent and not acknowledged."""
        return self._backend.in_flight

    @property
    def buffered_bytes(self) -> int:
        """About how many bytes of memory the accepted rows take until they are sent."""
        return self._backend.memory

    @property
    def error(self) -> SparkWalError | None:
        """The error that stopped the appender, or None while it runs."""
        failure = self._intake.failure
        return None if failure is None else failure.error

    @property
    def is_open(self) -> bool:
        """Whether the appender accepts rows: it has neither stopped nor been closed."""
        return self.error is None and not self._is_closing

    def flush(self, timeout: float | None = None) -> None:
        """Send all accepted rows now, and wait until they are durable.

        Args:
            timeout: seconds to wait, or None for no limit.

        Raises:
            OptionError: appends were rejected, and no ticket has reported it.
            TimeoutError: some rows are not durable yet.
            SparkWalError: the error that stopped the appender.
        """
        self._enter(self._intake.flush, timeout)

    def wait_room(self, timeout: float) -> None:
        """Wait, after a BackPressureError, until there is room for that append.

        Args:
            timeout: seconds to wait at most.
        """
        self._enter(self._intake.wait_room, timeout)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call a function with each event of this appender, in order and in a separate thread.

        The events are batch_sent (not durable yet), durable, rejected, retried, fenced, size_limit
        and stopped. A slow callback delays nothing: if 10,000 events wait, it misses the oldest.

        Args:
            callback: gets each event.

        Returns:
            A function that unsubscribes the callback.
        """
        return self._enter(self._subscribers.add, callback)

    def close(self, timeout: float | None = None) -> None:
        """Send all accepted rows and wait until they are durable. You may repeat it.

        A callback may call it too. A signal handler that interrupted a call of this appender must
        not: let it set a flag, and close the appender after that call. The end of the interpreter
        closes an open appender, but os._exit and kill leave no time for that. If the oldest request
        failed, `close` may return before a later PUT ends: the next takeover decides that record.

        Args:
            timeout: seconds to wait, or None for no limit.

        Raises:
            OptionError: appends were rejected, and no ticket has reported it.
            TimeoutError: some rows are not durable yet. The appender continues to send, and another
                `close` waits for that.
            SparkWalError: the error that stopped the appender, unless a call has raised it.
        """
        self._enter(self._close, timeout)
        self._intake.raise_unreported()

    def _close(self, timeout: float | None) -> None:
        self._is_closing = True
        try:
            self._backend.close(timeout)
        except TimeoutError:
            # The caller gets the error, so do not report it again at exit.
            self._at_exit.cancel()
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
        """The number of appends that are accepted and not known to be durable."""
        return self._intake.unacknowledged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Raise the error that ended the block: it is the cause, or matters as much.
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
