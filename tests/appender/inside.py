"""What tests ask an appender that no method shows: only this module reads its private names."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sparkwal import Appender, AsyncAppender
from sparkwal.appender.batches import Ticket
from sparkwal.appender.limits import SizeWatch


def _backend(wal: Appender) -> Any:
    return wal._backend


def waits_for_room(wal: Appender) -> bool:
    """Whether a thread waits until the buffer has room."""
    return bool(_backend(wal).intake._room._gates)


def is_closing(wal: Appender) -> bool:
    """Whether an append is refused from now on."""
    return bool(_backend(wal).intake._closing)


def durable_early(wal: Appender) -> Collection[int]:
    """The positions that are durable while an earlier one is not."""
    positions: Collection[int] = _backend(wal)._pipeline._durable
    return positions


def size_watch(wal: Appender) -> Any:
    """The SizeWatch that measures the log for the limits, or None."""
    backend = _backend(wal)
    return (backend.sender.session if wal.has_journal else backend)._watch


def looks_later(watch: SizeWatch) -> bool:
    """Whether no look is due, and none runs."""
    return watch.size < watch._first or watch._seconds() > 0


def finish_segments(wal: Appender) -> None:
    """Wait until the segments of all complete blocks are written."""
    backend = _backend(wal)
    (backend.sender.session if wal.has_journal else backend)._segments.close(None)


def end_interpreter(wal: Appender) -> None:
    """Close the appender as the end of the interpreter does."""
    wal._at_exit()


# Of a journal.


def wants_room(wal: Appender) -> bool:
    """Whether an append was refused or waits, because the journal is full."""
    return bool(_backend(wal).journal.wants_room)


def takes_nothing(wal: Appender) -> bool:
    """Whether the store is away, or the log is at its hard limit."""
    return bool(_backend(wal).sender.takes_nothing())


def window_bytes(wal: Appender) -> int:
    """The memory of the rows that the sender need not read from the disk."""
    size: int = _backend(wal).intake.memory
    return size


def set_pauses(wal: Appender, pauses: Any) -> None:
    """Let the sender wait by `pauses`, instead of the event that ends it."""
    _backend(wal).sender._ending = pauses


def end_sender(wal: Appender) -> None:
    """Send nothing any more. The journal still takes rows."""
    _backend(wal).sender.end(None)


def tickets_in_memory(wal: Appender) -> int:
    return len(_backend(wal).intake._tickets)


def late_ticket(wal: Appender, sequence: int, rows: list[dict[str, Any]]) -> Ticket:
    """The ticket of a thread that slept between its write to the journal and its ticket."""
    ticket: Ticket = _backend(wal).intake._ticket(sequence, wal.check(rows))
    return ticket


# Of asyncio.


def queued(wal: AsyncAppender) -> int:
    """The number of appends that wait for a thread."""
    return len(wal._waiting)


def is_full(wal: AsyncAppender) -> bool:
    """Whether the first waiting append was refused for want of room."""
    return wal._is_full
