"""Many slots in flight, decided in any order, acknowledged in order. No threads: callers send."""

import pyarrow as pa

from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.clock import next_timestamp
from sparkwal.protocol.commit_record import encode_record, with_txn
from sparkwal.protocol.leader import Leadership


class Pipeline:
    """The slots of one session of an appender, which has its own `plan_id`; not thread-safe."""

    def __init__(
        self, leadership: Leadership, plan_id: str, producer_id: str, codec: str | None
    ) -> None:
        self._lead, self._plan_id = leadership, plan_id  # after what was sent
        self._producer_id, self._codec = producer_id, codec
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
        lead, rows = self._lead, sum(batch.num_rows for batch in batches)
        timestamp_ms = next_timestamp(now_ms, lead.timestamp_ms)
        header = CommitHeader(
            # SAFETY(decided-not-in-flight) §4: a record claims no position that is still in flight
            # SAFETY(decided-all-known) §4: a record claims all that its writer knows decided
            **lead.fields(self._plan_id, self._undecided - 1),
            number=keys.slot(lead.next_position, lead.window),
            timestamp_ms=timestamp_ms,
            query_id=self._producer_id,
            batch_id=sequence,
            rows=rows,
            bytes=0,
            batches=(),
            inline=(),
            # If this record is live, so are the undecided ones before it: theirs are included.
            txns=with_txn(lead.txns, self._producer_id, sequence, timestamp_ms),
            checkpoints=lead.checkpoints,
            # SAFETY(appender-names-archive) §5: each record of an appender names the archive
            txns_archive=lead.txns_archive,
            metrics={"in_flight": self.in_flight + 1, **metrics},
        )
        # SAFETY(appender-inlines-rows) §7: an appender's record holds all rows of its batch
        inlined = [(0, rows, batches)] if rows else []
        record = encode_record(header, inlined, lead.spark_schema, self._codec)
        self._lead = lead.after(header)
        return record

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
