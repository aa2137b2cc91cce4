"""The interfaces between an appender, its backend and the sessions of that backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sparkwal import events
from sparkwal.appender.batches import Callbacks, CheckedRows, Failure, Ticket
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.salvage import Incident
from sparkwal.errors import SparkWalError


class AppendIntake(Protocol):
    """Accepts the appends of users' threads."""

    callbacks: Callbacks

    @property
    def last_sequence(self) -> int: ...

    @property
    def unacknowledged(self) -> int: ...

    @property
    def failure(self) -> Failure | None: ...

    def append(self, rows: CheckedRows, *, block: bool) -> Ticket: ...

    def flush(self, timeout: float | None) -> None: ...

    def wait_room(self, timeout: float) -> None: ...

    def raise_unreported(self) -> None: ...


class Backend(Protocol):
    """Holds the accepted rows until the log has them: in memory, or in a journal."""

    has_journal: bool

    @property
    def intake(self) -> AppendIntake: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def memory(self) -> int: ...

    @property
    def lost(self) -> range: ...

    @property
    def journal_bytes(self) -> int: ...

    @property
    def is_store_away(self) -> bool: ...

    def append_unsynced(self, rows: CheckedRows) -> Ticket: ...

    def wait_accepted(self, ticket: Ticket) -> None: ...

    def resend_lost(self, unreadable: Callable[[int], CheckedRows]) -> list[int]: ...

    def incidents(self) -> list[Incident]: ...

    def close(self, timeout: float | None) -> None: ...


class SessionListener(Protocol):
    """Gets the outcomes of a session.

    The threads that send call it, so it must return quickly and must not take their locks.
    """

    def decided(self, sequence: int, position: int) -> None:
        """All appends up to `sequence` are decided, the new ones at `position` (−1: unknown)."""

    def changed(self) -> None:
        """The log takes no more rows, or takes rows again."""

    def stopped(self, error: SparkWalError) -> None:
        """The session sends no more rows."""


class StopReporter:
    """The listener of an appender without a journal: it reports the error that stopped it."""

    def __init__(self, context: AppenderContext) -> None:
        self._context = context

    def decided(self, sequence: int, position: int) -> None:
        pass

    def changed(self) -> None:
        pass

    def stopped(self, error: SparkWalError) -> None:
        kind = type(error).__name__
        stopped = events.Stopped(self._context.log.url, kind, str(error))
        self._context.subscribers.publish(stopped)
