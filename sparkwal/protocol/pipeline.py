"""Many slots in flight, decided in any order, acknowledged in order. No threads: callers send."""

import pyarrow as pa

from sparkwal.format.header import CommitHeader
from sparkwal.protocol.commit_record import next_record
from sparkwal.protocol.leadership import Leadership


class Pipeline:
    """The slots of one session of an appender, which has its own `plan_id`; not thread-safe."""

    def __init__(
        self, leadership: Leadership, plan_id: str, producer_id: str, codec: str | None
    ) -> None:
        self._lead = leadership  # as it is after the newest record sent
        self._plan_id = plan_id
        self._producer_id = producer_id
        self._codec = codec
        self._undecided = leadership.next_position  # the oldest slot not known to be durable
        self._durable: set[int] = set()  # later slots, durable before their turn

    @property
    def in_flight(self) -> int:
        """Slots from the oldest undecided to the newest sent."""
        return self._lead.next_position - self._undecided

    def has_room(self) -> bool:
        """Whether one more slot may be sent. A slot in backoff holds its place, and a writer that
        takes over looks no further than the limit after the first gap."""
        # SAFETY(in-flight-span) §7: in flight is a span, not a count
        return self.in_flight < self._lead.in_flight_limit

    def send(
        self, batches: list[pa.RecordBatch], sequence: int, now_ms: int, metrics: dict[str, float]
    ) -> tuple[CommitHeader, bytes]:
        """The record of a batch whose last append is `sequence`, in the next slot, if it
        `has_room`. These same bytes are sent again until the slot is decided."""
        assert self.has_room()
        lead, has_rows = self._lead, any(batch.num_rows for batch in batches)
        # SAFETY(appender-inlines-rows) §7: an appender's record holds all rows of its batch
        inlined = [(0, batches)] if has_rows else []
        measured = {"in_flight": self.in_flight + 1, **metrics}
        # If this record is live, so are the undecided ones before it: their txns are included.
        header, data = next_record(
            lead,
            self._plan_id,
            self._producer_id,
            sequence,
            inlined,
            measured,
            now_ms,
            self._codec,
            # SAFETY(decided-not-in-flight) §4: a record claims no position that is still in flight
            # SAFETY(decided-all-known) §4: a record claims all that its writer knows decided
            decided=self._undecided - 1,
        )
        self._lead = lead.after(header)
        return header, data

    def durable(self, position: int) -> range:
        """Note that a slot holds our record. Returns the positions to acknowledge now, in order: a
        takeover could still find a gap, and what comes after it would be dead."""
        self._durable.add(position)
        first = self._undecided
        while self._undecided in self._durable:
            self._durable.remove(self._undecided)
            self._undecided += 1
        # SAFETY(ack-after-predecessors) §7: a record is acknowledged only after all before it
        return range(first, self._undecided)
