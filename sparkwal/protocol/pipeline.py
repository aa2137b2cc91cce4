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
        self._lead, self._plan_id = leadership, plan_id
        self._producer_id, self._codec = producer_id, codec
        self._txns, self._timestamp_ms = leadership.txns, leadership.timestamp_ms
        self._next = leadership.next_position
        self._undecided = leadership.next_position  # the oldest slot not known to be durable
        self._durable: set[int] = set()  # later slots, durable before their turn

    @property
    def in_flight(self) -> int:
        """Slots from the oldest undecided to the newest sent."""
        return self._next - self._undecided

    def has_room(self) -> bool:
        """Whether one more slot may be sent. A slot in backoff holds its place, and a writer that
        takes over looks no further than the limit after the first gap."""
        # SAFETY(in-flight-span) §7: in flight is a span, not a count
        return self._next - self._undecided < self._lead.in_flight_limit

    def send(
        self, batches: list[pa.RecordBatch], sequence: int, now_ms: int, metrics: dict[str, float]
    ) -> tuple[CommitHeader, bytes]:
        """The record of a batch whose last append is `sequence`, in the next slot, if it
        `has_room`. These same bytes are sent again until the slot is decided."""
        assert self.has_room()
        lead, rows = self._lead, sum(batch.num_rows for batch in batches)
        self._timestamp_ms = next_timestamp(now_ms, self._timestamp_ms)
        # If this record is live, so are the undecided ones before it: include their transactions.
        self._txns = with_txn(self._txns, self._producer_id, sequence, self._timestamp_ms)
        header = CommitHeader(
            # SAFETY(decided-not-in-flight) §4: a record claims no position that is still in flight
            # SAFETY(decided-all-known) §4: a record claims all that its writer knows decided
            **lead.fields(self._plan_id, self._next, self._undecided - 1),
            number=keys.slot(self._next, lead.window),
            timestamp_ms=self._timestamp_ms,
            query_id=self._producer_id,
            batch_id=sequence,
            rows=rows,
            bytes=0,
            batches=(),
            inline=(),
            txns=self._txns,
            checkpoints=lead.checkpoints,
            # SAFETY(appender-names-archive) §5: each record of an appender names the archive
            txns_archive=lead.txns_archive,
            metrics={"in_flight": self.in_flight + 1, **metrics},
        )
        # SAFETY(appender-inlines-rows) §7: an appender's record holds all rows of its batch
        inlined = [(0, rows, batches)] if rows else []
        record = encode_record(header, inlined, lead.spark_schema, self._codec)
        self._next += 1
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
