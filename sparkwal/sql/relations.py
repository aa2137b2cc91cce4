"""The relations of a log: `log`, `current`, `records` and `consumers`; and rows of logs with the
columns that say where each came from, in the logs' order."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Protocol

import pyarrow as pa

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import schema
from sparkwal.format.header import SEAL, CommitHeader, LeaderHeader, SlotHeader, host_of
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord
from sparkwal.reading.history import sound, walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import ROW, with_metadata_columns
from sparkwal.reading.rows import RUN_SIZE, Piece, pieces_of, with_metadata
from sparkwal.sql.database import LAST, Needs, Relation
from sparkwal.store.base import PART_SIZE, LogStore

TIME = pa.timestamp("us", "UTC")
# The last moment that a calendar knows; later ones count as it: a clock was wrong.
CALENDAR_MS = 253_402_300_799_999
# The default of the option multipartThreshold: no record holds another.
_MULTIPART = 16 * 2**20
# Where a row came from: METADATA, and besides the log's name and ROW.
ORIGIN = pa.schema(
    [
        *schema.to_arrow(with_metadata_columns('{"type":"struct","fields":[]}')),
        pa.field("_wal_sequencer", pa.string()),
        pa.field(ROW, pa.int64()),
    ]
)


def known_columns(spark_schemas: Iterable[str | None]) -> pa.Schema:
    """All columns of logs, then those that name where a row came from. Raises OptionError where two
    logs have a column of other types."""
    try:
        own = pa.unify_schemas([schema.to_arrow(text) for text in spark_schemas if text])
    except pa.ArrowException as error:
        raise OptionError(f"the sequencers' columns are of different types: {error}") from None
    return pa.schema([*own, *(each for each in ORIGIN if each.name not in own.names)])


def read(
    log: LogRange, pieces: Iterable[Piece], target: pa.Schema, *, counted: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of pieces of one log with `target`'s columns. Where `counted`, `target` has no
    column of the writers' own, and their objects are not read. Raises InvalidLogError,
    CollectedError."""
    own = {"_wal_sequencer"} - {*_theirs(log)}
    base = pa.schema([each for each in target if each.name not in own])
    for batch in _counted(pieces, base) if counted else log.rows(pieces, base):
        for name in own & {*target.names}:
            column = pa.repeat(pa.scalar(log.name, pa.string()), batch.num_rows)
            batch = batch.append_column(name, column)
        yield batch.select(target.names)


def _theirs(log: LogRange) -> list[str]:
    """A log may have a column of such a name itself."""
    return schema.to_arrow(log.spark_schema).names if log.spark_schema else []


def bounds(log: LogRange, needs: Needs | None = None) -> tuple[int, int]:
    """The first position to read and the one after the last: as the log's options say, and within
    those what is needed. A range of times takes log₂ n GETs for each end."""
    first = log.start()
    after = log.intact_end(first, log.end())
    if needs is None or {"_wal_position", "_wal_timestamp"} & {*_theirs(log)}:
        return first, after
    return narrowed(log, first, after, needs, "_wal_position", "_wal_timestamp")


def narrowed(
    log: LogRange, first: int, after: int, needs: Needs, position: str, time: str
) -> tuple[int, int]:
    """The positions of first … after−1 that are within the ranges of these two columns."""
    low, high = needs.of(position)
    first, after = max(first, low), min(after, high + 1)
    low, high = needs.of(time)
    if low > 0 and first < after:
        first = max(first, log.at(-(-low // 1000)))
    if high < LAST and first < after:
        after = min(after, log.at(high // 1000 + 1))
    return first, max(first, after)


def rows(
    logs: Sequence[LogRange], target: pa.Schema, needs: Needs | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of a range, of several logs in the order of their commits' times. Where `target` has
    no column of the writers' own, records alone are read: they know how many rows there are."""
    own = {name for log in logs for name in _theirs(log)}
    records_suffice = not own & {*target.names}

    def records(log: LogRange) -> Iterator[tuple[int, str, LogRange, SlotRecord]]:
        first, after = bounds(log, needs)
        size = GLANCE if records_suffice else WHOLE
        for record in log.records(first, after, at_once=1, size=size):
            yield record.header.timestamp_ms, log.name, log, record

    merged = heapq.merge(*map(records, logs), key=itemgetter(0, 1))
    for log, group in groupby(merged, key=itemgetter(2)):
        pieces = (piece for *_, record in group for piece in pieces_of(log.log, record))
        yield from read(log, pieces, target, counted=records_suffice)


def _counted(pieces: Iterable[Piece], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """As many rows as the pieces have, with the columns that are the same in all rows of one."""
    for piece in pieces:
        for done in range(0, piece.rows, 2**17):
            nothing = pa.nulls(min(piece.rows - done, 2**17))
            batch = pa.RecordBatch.from_arrays([nothing], names=[""])
            yield with_metadata(batch, piece, target, done)


def _log(logs: Sequence[LogRange]) -> Relation:
    """`log`: the rows of logs, and where each came from."""
    known = known_columns(log.spark_schema for log in logs)
    # What costs least first.
    columns = pa.schema(sorted(known, key=lambda field: field.name not in ORIGIN.names))

    def read(needs: Needs) -> Iterator[pa.RecordBatch]:
        target = pa.schema([each for each in columns if each.name in needs.columns])
        return rows(logs, target, needs)

    return Relation(columns, known.names, read)


RECORDS = pa.schema(
    [
        ("position", pa.int64()),
        ("time", TIME),
        ("kind", pa.string()),
        ("term", pa.int64()),
        ("leader", pa.string()),
        ("host", pa.string()),
        ("reason", pa.string()),
        ("query", pa.string()),
        ("query_id", pa.string()),
        ("batch", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("objects", pa.int64()),
        ("in_flight", pa.int64()),
        ("retries", pa.int64()),
        ("write_ms", pa.float64()),
        ("last_put_ms", pa.float64()),
        ("decided", pa.int64()),
        ("puts", pa.int64()),
        ("gets", pa.int64()),
        ("lists", pa.int64()),
        ("read_gets", pa.int64()),
        ("sequencer", pa.string()),
    ]
)
# Of a damaged record: its position was written, and is read.
_DAMAGED = {"kind": "damaged", "puts": 1, "gets": 0, "lists": 0, "read_gets": 1}


def in_batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(rows, 1024)):
        yield pa.RecordBatch.from_pylist(chunk, schema=schema)


def record_rows(log: LogRange, needs: Needs, first: int, after: int) -> Iterator[dict[str, Any]]:
    """One row for each live record of first … after−1. Where `passed_over` of the log gets what
    cannot be read, a row says of it no more than its position; else that is an error."""
    narrow = narrowed(log, first, after, needs, "position", "time")
    before: SlotHeader | None = None
    for found in sound(log, walk(log, *narrow, newest_first=False, seals=True)):
        if isinstance(found, InvalidLogError):
            yield {**_DAMAGED, "position": found.position, "sequencer": log.name}
        else:
            header = found.header
            if before is None and isinstance(header, LeaderHeader):
                before = _before(log, first, header.position)
            yield _row(header, before, log.name)
            before = header


def _before(log: LogRange, first: int, position: int) -> SlotHeader | None:
    """The live record before a leader's, on which depends what a takeover looked at."""
    before = walk(log, first, position, newest_first=True, seals=True, at_once=1)
    return next((found.header for found in before if isinstance(found, SlotRecord)), None)


def _row(header: SlotHeader, before: SlotHeader | None, sequencer: str) -> dict[str, Any]:
    proved = made(header, before)
    found = {
        "position": header.position,
        "kind": header.kind,
        "term": header.term,
        "time": min(header.timestamp_ms, CALENDAR_MS) * 1000,
        "leader": header.leader_id,
        "host": host_of(header),
        "sequencer": sequencer,
        "decided": header.decided,
        "read_gets": to_read(header),
        "puts": proved["PUT"],
        "gets": proved["GET"],
        "lists": proved["LIST"],
    }
    if isinstance(header, LeaderHeader):
        return {**found, "reason": header.reason}
    retries, in_flight = header.metric("retries"), header.metric("in_flight")
    return {
        **found,
        "query": header.query,
        "query_id": header.query_id,
        "batch": header.batch_id,
        "rows": header.rows,
        "bytes": header.bytes,
        "objects": len(header.batches) + 1,
        "in_flight": None if in_flight is None else int(in_flight),
        "retries": None if retries is None else int(retries),
        # Without data objects it says nothing.
        "write_ms": header.metric("put_ms") if header.batches else None,
        "last_put_ms": header.metric("last_put_ms"),
    }


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
CONSUMERS = pa.schema(
    [
        ("name", pa.string()),
        ("sequencer", pa.string()),
        ("position", pa.int64()),
        ("lag", pa.int64()),
        ("lag_ms", pa.int64()),
        ("age_ms", pa.int64()),
        ("host", pa.string()),
        ("expires_ms", pa.int64()),
        ("of_this_log", pa.bool_()),
        ("live", pa.bool_()),
    ]
)


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
        found = (row for log in logs for row in record_rows(log, needs, *bounds(log)))
        return in_batches(found, RECORDS)

    def consumers(needs: Needs) -> Iterator[pa.RecordBatch]:
        for log in logs:
            assert log.head is not None
            found = consumers_of(log.log, log.name, log.head, None)
            yield pa.RecordBatch.from_pylist([vars(each) for each in found], schema=CONSUMERS)

    def now() -> Relation:
        found = current()
        names = found.schema.names

        def read(needs: Needs) -> Iterator[pa.RecordBatch]:
            columns = [name for name in names if name in needs.columns]
            return iter(found.reader(columns or None))

        return Relation(found.schema, names, read)

    return {
        "log": lambda: _log(logs),
        "records": lambda: Relation(RECORDS, RECORDS.names, records),
        "consumers": lambda: Relation(CONSUMERS, CONSUMERS.names, consumers),
        "current": now,
    }
