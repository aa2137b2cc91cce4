"""When a batch closes, and how much waits to be sent. Has no thread and no clock."""

from __future__ import annotations

from collections import deque

from sparkwal.appender.batches import Batch, Rejections, Ticket
from sparkwal.appender.rows import Accepted
from sparkwal.appender.workers import Callbacks


class Buffer:
    """Accepted appends that have not been sent, cut into batches.

    A batch closes when it reaches `size` bytes, the append that crosses included, or
    `timeout` seconds after its first append; while nothing is in flight at once.

    Args:
        capacity: bytes of memory that may be held, what it costs to keep each append
            included: of small ones it is most.
    """

    def __init__(
        self, size: int, timeout: float, capacity: int, next_sequence: int, caller: Callbacks
    ) -> None:
        self._size, self._timeout, self._capacity = size, timeout, capacity
        self._caller, self.rejections = caller, Rejections()
        self._waiting: deque[Batch] = deque()  # in order; the last one may be open
        self._taken: Batch | None = None  # the last that does not wait any more
        self._first_sequence = next_sequence

    # Derived from what the batches hold: there is nothing to keep in step with it.

    @property
    def newest(self) -> Batch | None:
        """The last batch that was begun; it is done last."""
        try:  # it may be taken between a look and an access
            return self._waiting[-1]
        except IndexError:
            return self._taken

    @property
    def next_sequence(self) -> int:
        """Of the next append."""
        newest = self.newest
        return self._first_sequence if newest is None else newest.next_sequence

    @property
    def held(self) -> int:
        """Bytes of memory that wait."""
        try:
            oldest, newest = self._waiting[0], self._waiting[-1]
        except IndexError:
            return 0
        return newest.first_held + newest.held - oldest.first_held

    def has_room(self, held: int) -> bool:
        """Whether `held` more bytes may come. Anything may when nothing waits."""
        waits = self.held
        return not waits or waits + held <= self._capacity

    def makes_due(self, size: int) -> bool:
        """Whether adding so much may change the next `due`: it begins a batch, or closes one."""
        batch = self.newest
        return batch is None or batch.count is not None or batch.weight + size >= self._size

    def add_to_open(self, accepted: Accepted) -> Ticket | None:
        """The ticket of an append that the open batch takes and that changes no `due`.

        None, and nothing is added, where that is not certain. It is `has_room`, `makes_due` and
        `add` in one, because nearly every small append comes here and goes no further.
        """
        try:
            batch = self._waiting[-1]
        except IndexError:
            return None
        # Before the look whether it is open: see `Batch.next_sequence`.
        added = len(batch.appends)
        payload, size, held = accepted
        size += batch.weight
        held += batch.held
        if batch.count is not None or size >= self._size or held > batch.room:
            return None
        # In the order of `add`, for its reasons.
        ticket = Ticket(batch, batch.first_sequence + added)
        batch.weight, batch.held = size, held
        batch.appends.append(payload)
        return ticket

    def add(self, accepted: Accepted, now: float) -> Ticket:
        """The append's ticket.

        A signal's handler may close the appender between any two of these steps, or raise.
        """
        payload, size, held = accepted
        batch = self.newest
        if batch is None or batch.count is not None:
            before = 0 if batch is None else batch.first_held + batch.held
            batch = Batch(self.next_sequence, before, now, self._caller, self.rejections)
            self._waiting.append(batch)
        # What waits before it becomes less, never more.
        batch.room = self._capacity - (self.held - batch.held)
        ticket = Ticket(batch, batch.next_sequence)
        # First: what is added is counted. A handler that raises here leaves a few bytes too
        # many, until the batch is sent.
        batch.weight += size
        batch.held += held
        # The one step that adds it. Of an append that is not in, no sequence may be used up:
        # the log could not tell it from a durable one.
        batch.appends.append(payload)
        if batch.weight >= self._size:
            self.close_batch()
        return ticket

    def holds(self, ticket: Ticket) -> bool:
        """Whether an append came before its batch was closed.

        It did, unless a signal's handler closed the appender in the middle of `add`.
        """
        batch = ticket._batch
        return batch.count is None or ticket.sequence - batch.first_sequence < batch.count

    @property
    def waits(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._waiting)

    def close_batch(self) -> None:
        """Send what has come as soon as there is room. May be interrupted by itself."""
        newest = self.newest
        if newest is not None:
            newest.close()

    def due(self, now: float, *, idle: bool) -> float | None:
        """Seconds until a batch is to be sent, at most 0 for now; None: there is none."""
        if not self._waiting:
            return None
        oldest = self._waiting[0]
        if idle or oldest.count is not None:
            return 0.0
        return oldest.opened + self._timeout - now

    def take(self) -> Batch:
        """The oldest batch. Only while one is due."""
        self._taken = self._waiting[0]
        # Safety (§7): "batches are sent newest first"
        batch = self._waiting.popleft()
        batch.close()
        return batch

    def take_all(self) -> list[Batch]:
        """Everything that waits, in order."""
        self.close_batch()
        batches = list(self._waiting)
        self._taken = self.newest
        self._waiting.clear()
        return batches
