"""The relations of a log: `log`, `current`, `records` and `consumers`."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format.header import SEAL, CommitHeader, LeaderHeader, SlotHeader, host_of
from sparkwal.protocol.recovery import Head
from sparkwal.reading.history import Collected, walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import METADATA
from sparkwal.reading.rows import RUN_SIZE
from sparkwal.sql.database import Relation
from sparkwal.sql.needs import Needs
from sparkwal.sql.rows import OWN, bounds, known_columns, narrowed, rows
from sparkwal.store.base import PART_SIZE
from sparkwal.store.log_store import LogStore

TIME = pa.timestamp("us", "UTC")
# The last moment that a calendar knows; later ones count as it: a clock was wrong.
CALENDAR_MS = 253_402_300_799_999
# The default of the option multipartThreshold: no record holds another.
_MULTIPART = 16 * 2**20


def _log(logs: Sequence[LogRange]) -> Relation:
    """`log`: the rows of logs, and where each came from."""
    known = known_columns(log.spark_schema for log in logs)
    hidden = [*METADATA, *OWN.names]
    # What costs least first.
    schema = pa.schema(
        [*(known.field(n) for n in hidden), *(f for f in known if f.name not in hidden)]
    )

    def read(needs: Needs) -> Iterator[pa.RecordBatch]:
        wanted = schema.names if needs.columns is None else needs.columns
        target = [each for each in schema if each.name in wanted] or [schema.field(0)]
        return rows(logs, pa.schema(target), needs)

    return Relation(schema, known.names, read)


RECORDS = pa.schema([
    ("position", pa.int64()), ("time", TIME), ("kind", pa.string()), ("term", pa.int64()),
    ("leader", pa.string()), ("host", pa.string()), ("reason", pa.string()),
    ("query", pa.string()), ("query_id", pa.string()), ("batch", pa.int64()), ("rows", pa.int64()),
    ("bytes", pa.int64()), ("objects", pa.int64()), ("in_flight", pa.int64()),
    ("retries", pa.int64()), ("write_ms", pa.float64()), ("last_put_ms", pa.float64()),
    ("decided", pa.int64()), ("puts", pa.int64()), ("gets", pa.int64()), ("lists", pa.int64()),
    ("read_gets", pa.int64()), ("sequencer", pa.string()),
])  # fmt: skip


# Its position was written, and is read.
_DAMAGED = {"kind": "damaged", "puts": 1, "gets": 0, "lists": 0, "read_gets": 1}


def in_batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(rows, 1024)):
        yield pa.RecordBatch.from_pylist(chunk, schema=schema)


def record_rows(log: LogRange, needs: Needs) -> Iterator[dict[str, Any]]:
    """One row for each live record. Where `passed_over` of the log gets what cannot be read, a row
    says of it no more than its position; else that is an error."""
    first, after = bounds(log)
    narrow = narrowed(log, first, after, needs, "position", "time")
    before: SlotHeader | None = None
    for found in walk(log, *narrow, newest_first=False, seals=True):
        if isinstance(found, Collected):
            log.floor.check(found.start)
        elif isinstance(found, InvalidLogError):
            if log.passed_over is not None:
                log.passed_over(found)
                yield {**_DAMAGED, "position": found.position, "sequencer": log.name}
            elif not log.options.tolerant:
                raise found
        else:
            header = found.header
            if before is None and isinstance(header, LeaderHeader):
                before = _before(log, first, header.position)
            yield _row(header, before, log.name)
            before = header


def _before(log: LogRange, first: int, position: int) -> SlotHeader | None:
    """The live record before a leader's, on which depends what a takeover looked at."""
    for each in range(position - 1, first - 1, -1):
        for found in walk(log, each, each + 1, newest_first=False, seals=True):
            if not isinstance(found, InvalidLogError | Collected):
                return found.header
    return None


def _row(header: SlotHeader, before: SlotHeader | None, sequencer: str) -> dict[str, Any]:
    proved = made(header, before)
    found = {
        "position": header.position, "kind": header.kind, "term": header.term,
        "time": min(header.timestamp_ms, CALENDAR_MS) * 1000,
        "leader": header.leader_id, "host": host_of(header), "sequencer": sequencer,
        "decided": header.decided, "read_gets": to_read(header),
        "puts": proved["PUT"], "gets": proved["GET"], "lists": proved["LIST"],
    }  # fmt: skip
    if isinstance(header, LeaderHeader):
        return {**found, "reason": header.reason}
    retries, in_flight = header.metric("retries"), header.metric("in_flight")
    return {
        **found, "query": header.query, "query_id": header.query_id, "batch": header.batch_id,
        "rows": header.rows, "bytes": header.bytes, "objects": len(header.batches) + 1,
        "in_flight": None if in_flight is None else int(in_flight),
        "retries": None if retries is None else int(retries),
        # Without data objects it says nothing.
        "write_ms": header.metric("put_ms") if header.batches else None,
        "last_put_ms": header.metric("last_put_ms"),
    }  # fmt: skip


def made(header: SlotHeader, before: SlotHeader | None) -> Counter[str]:
    """The PUT of the record and of its data objects; of a leader record the look at the log before
    it, and the archive that it began. `before` is the live record before it, where it is known."""
    found = Counter(PUT=1)
    if isinstance(header, CommitHeader):
        for batch in header.batches:
            # One, or its parts, and what begins and ends them.
            parts = -(-batch.bytes // PART_SIZE)
            found["PUT"] += 1 if batch.bytes <= _MULTIPART else 2 + parts
    elif header.reason != SEAL:
        found["LIST"] += 1
        if header.prev_position >= 0:
            # The head, and before it what a writer with many slots in flight may have left.
            reach = before.in_flight_limit if before else 1
            found["GET"] += 1 + min(reach - 1, header.prev_position)
        if before is not None and header.txns_archive != before.txns_archive:
            found["PUT"] += 1
            found["GET"] += 1 if before.txns_archive else 0
    return found


def to_read(header: SlotHeader) -> int:
    """GETs that read this record and its rows."""
    if isinstance(header, LeaderHeader):
        return 1
    return 1 + sum(max(1, -(-batch.bytes // RUN_SIZE)) for batch in header.batches)


# Log, sequencer, head, expiry → consumers.
ConsumersOf = Callable[[LogStore, str, Head, int | None], Sequence[object]]
CONSUMERS = pa.schema([
    ("name", pa.string()), ("sequencer", pa.string()), ("position", pa.int64()),
    ("lag", pa.int64()), ("lag_ms", pa.int64()), ("age_ms", pa.int64()), ("host", pa.string()),
    ("expires_ms", pa.int64()), ("of_this_log", pa.bool_()), ("live", pa.bool_()),
])  # fmt: skip


class Current(Protocol):
    schema: pa.Schema

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The rows of these columns."""


def relations(
    logs: Sequence[LogRange], consumers_of: ConsumersOf, current: Callable[[], Current]
) -> Mapping[str, Callable[[], Relation]]:
    """All that may be asked of these logs, which have looked. Nothing else is read before a query's
    plan is known. Consumers have the fields of CONSUMERS."""

    def records(needs: Needs) -> Iterator[pa.RecordBatch]:
        return in_batches((row for log in logs for row in record_rows(log, needs)), RECORDS)

    def consumers(needs: Needs) -> Iterator[pa.RecordBatch]:
        for log in logs:
            assert log.head is not None
            found = consumers_of(log.log, log.name, log.head, None)
            yield pa.RecordBatch.from_pylist([vars(each) for each in found], schema=CONSUMERS)

    def now() -> Relation:
        found = current()
        names = found.schema.names

        def read(needs: Needs) -> Iterator[pa.RecordBatch]:
            columns = [name for name in names if needs.columns and name in needs.columns]
            return iter(found.reader(columns or None))

        return Relation(found.schema, names, read)

    return {
        "log": lambda: _log(logs),
        "records": lambda: Relation(RECORDS, RECORDS.names, records),
        "consumers": lambda: Relation(CONSUMERS, CONSUMERS.names, consumers),
        "current": now,
    }
