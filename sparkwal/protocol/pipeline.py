"""Many slots in flight, decided in any order and acknowledged in order. It starts no threads."""

import pyarrow as pa

from sparkwal.format.header import CommitHeader
from sparkwal.protocol.commit_record import RecordContent, next_record
from sparkwal.protocol.leadership import Leadership


class Pipeline:
    """The slots of one session of an appender. Each session has its own `plan_id`. Not
    thread-safe."""

    def __init__(
        self, leadership: Leadership, plan_id: str, producer_id: str, codec: str | None
    ) -> None:
        # The leadership after the newest record sent.
        self._lead = leadership
        self._plan_id = plan_id
        self._producer_id = producer_id
        self._codec = codec
        # The oldest slot that is not decided.
        self._undecided = leadership.next_position
        # Later slots that became durable before their turn.
        self._durable: set[int] = set()

    @property
    def in_flight(self) -> int:
        """The number of slots from the oldest undecided one to the newest one sent."""
        return self._lead.next_position - self._undecided

    def has_room(self) -> bool:
        """Whether one more slot may be sent.

        A slot that waits for a retry keeps its place, because a writer that takes over looks only
        as far as the limit after the first gap.
        """
        # SAFETY(in-flight-span) §7: in flight is a span, not a count
        return self.in_flight < self._lead.in_flight_limit

    def send(
        self, batches: list[pa.RecordBatch], sequence: int, now_ms: int, metrics: dict[str, float]
    ) -> tuple[CommitHeader, bytes]:
        """Build the record of a batch for the next slot. Call it only if `has_room`.

        The same bytes are sent again until the slot is decided.

        Args:
            batches: the rows.
            sequence: the sequence of the last append.
            now_ms: the time now.
            metrics: for people.
        """
        assert self.has_room()
        lead, has_rows = self._lead, any(batch.num_rows for batch in batches)
        # SAFETY(appender-inlines-rows) §7: an appender's record holds all rows of its batch
        inlined = [(0, batches)] if has_rows else []
        metrics = {"in_flight": self.in_flight + 1, **metrics}
        # If this record is live, so are the undecided ones before it: their txns are included.
        content = RecordContent(self._producer_id, sequence, inlined, metrics)
        # If this record is live, so are the undecided ones before it, so it includes their txns.
        header, data = next_record(
            lead,
            self._plan_id,
            content,
            now_ms,
            self._codec,
            # SAFETY(decided-not-in-flight) §4: a record claims no position that is still in flight
            # SAFETY(decided-all-known) §4: a record claims all that its writer knows decided
            decided=self._undecided - 1,
        )
        self._lead = lead.after(header)
        return header, data

    def durable(self, position: int) -> range:
        """Note that a slot holds our record. Returns the positions to acknowledge now, in order.

        A record after an undecided slot must wait: a takeover could still find a gap before it, and
        then it would be dead.
        """
        self._durable.add(position)
        first = self._undecided
        while self._undecided in self._durable:
            self._durable.remove(self._undecided)
            self._undecided += 1
        # SAFETY(ack-after-predecessors) §7: a record is acknowledged only after all before it
        return range(first, self._undecided)
