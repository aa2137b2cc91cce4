"""The relations that a SQL query of a log may name: `log`, `current`, `records` and `consumers`."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Protocol

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import schema
from sparkwal.format.header import SEAL, CommitHeader, LeaderHeader, SlotHeader, host_of
from sparkwal.format.merging import union_of
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord
from sparkwal.reading.history import apply_policy, walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import ROW, with_metadata_columns
from sparkwal.reading.pieces import Piece
from sparkwal.reading.rows import RUN_SIZE, pieces_of, with_metadata
from sparkwal.sql.database import LAST, Pushdown, Relation
from sparkwal.store.base import PART_SIZE, LogStore
from sparkwal.store.path import kind_of_store

TIME = pa.timestamp("us", "UTC")
# The end of the year 9999. A wrong clock may write later times; they are shown as this one.
CALENDAR_MS = 253_402_300_799_999
# The default of the option multipartThreshold, because records do not hold the writer's value.
_MULTIPART = 16 * 2**20
# The columns that show where a row came from.
ORIGIN = pa.schema(
    [
        *schema.to_arrow(with_metadata_columns('{"type":"struct","fields":[]}')),
        pa.field("_wal_sequencer", pa.string()),
        pa.field(ROW, pa.int64()),
    ]
)


def all_columns(spark_schemas: Iterable[str | None]) -> pa.Schema:
    """All columns of several logs, then the columns of ORIGIN.

    Raises:
        OptionError: no type holds the values of a column in two logs.
    """
    text = union_of((text, "another sequencer") for text in spark_schemas if text)
    user = schema.to_arrow(text) if text else pa.schema([])
    return pa.schema([*user, *(column for column in ORIGIN if column.name not in user.names)])


def read(
    log: LogRange, pieces: Iterable[Piece], target: pa.Schema, *, counted: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of pieces of one log, with the columns of `target`.

    Args:
        counted: `target` has no column that users wrote, so that no data object is read.

    Raises:
        InvalidLogError: an object is damaged or missing.
        CollectedError: the rows left the log meanwhile.
    """
    # A user's column may have this name; then it wins.
    adds_sequencer = "_wal_sequencer" in target.names and "_wal_sequencer" not in user_columns(log)
    base = target
    if adds_sequencer:
        base = target.remove(target.get_field_index("_wal_sequencer"))
    for batch in _counted(pieces, base) if counted else log.rows(pieces, base):
        if adds_sequencer:
            column = pa.repeat(pa.scalar(log.name, pa.string()), batch.num_rows)
            batch = batch.append_column("_wal_sequencer", column)
        yield batch.select(target.names)


def user_columns(log: LogRange) -> list[str]:
    """The names of the columns that users wrote."""
    return schema.to_arrow(log.spark_schema).names if log.spark_schema else []


def bounds(
    log: LogRange, pushdown: Pushdown | None = None, *, from_floor: bool = False
) -> tuple[int, int]:
    """The first position to read and the position after the last.

    They follow from the log's options, narrowed by the pushdown. A range of times costs log₂ n GETs
    for each end.

    Args:
        log: the range; its head is known.
        pushdown: what the query asks for.
        from_floor: a time below the floor means the floor.

    Raises:
        CollectedError: rows that the options ask for were collected.
    """
    first = log.start(from_floor=from_floor)
    after = log.intact_end(first, log.end(from_floor=from_floor))
    if pushdown is None or {"_wal_position", "_wal_timestamp"} & {*user_columns(log)}:
        return first, after
    return narrowed(log, first, after, pushdown, "_wal_position", "_wal_timestamp")


def narrowed(
    log: LogRange, first: int, after: int, pushdown: Pushdown, position: str, time: str
) -> tuple[int, int]:
    """Narrow first … after−1 by the ranges of a position column and a time column.

    Raises:
        CollectedError: all positions or times that the query asks for are below the floor.
    """
    floor = log.floor.current() if first <= log.floor.current() else 0
    low, high = pushdown.range_of(position)
    if low <= high < floor:
        log.usable(high, "the query")
    first, after = max(first, low), min(after, high + 1)
    low, high = pushdown.range_of(time)
    if low > 0 and first < after:
        first = max(first, log.at(-(-low // 1000)))
    if high < LAST and first < after:
        after = min(after, log.at(high // 1000 + 1))
        if low <= high and after <= floor:
            log.check_reached(high // 1000, "the query")
    return first, max(first, after)


def rows(
    logs: Sequence[LogRange], target: pa.Schema, pushdown: Pushdown | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows in the bounds of several logs, in the order of their commits' times.

    If `target` has no column that users wrote, only records are read: they hold the row counts.
    """
    user = {name for log in logs for name in user_columns(log)}
    records_suffice = not user & {*target.names}

    def records(log: LogRange) -> Iterator[tuple[int, str, LogRange, SlotRecord]]:
        first, after = bounds(log, pushdown)
        size = GLANCE if records_suffice else WHOLE
        for record in log.records(first, after, at_once=1, size=size):
            yield record.header.timestamp_ms, log.name, log, record

    merged = heapq.merge(*map(records, logs), key=itemgetter(0, 1))
    for log, group in groupby(merged, key=itemgetter(2)):
        pieces = (piece for *_, record in group for piece in pieces_of(log.log, record))
        yield from read(log, pieces, target, counted=records_suffice)


def _counted(pieces: Iterable[Piece], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """As many rows as the pieces have, with the columns that are constant in a piece."""
    for piece in pieces:
        for first_row in range(0, piece.rows, 2**17):
            nulls = pa.nulls(min(piece.rows - first_row, 2**17))
            batch = pa.RecordBatch.from_arrays([nulls], names=[""])
            yield with_metadata(batch, piece, target, first_row)


def _log(logs: Sequence[LogRange]) -> Relation:
    """The relation `log`: the rows of logs with the columns of ORIGIN."""
    in_order = all_columns(log.spark_schema for log in logs)
    # The columns of ORIGIN come first, because they cost least.
    columns = pa.schema(sorted(in_order, key=lambda field: field.name not in ORIGIN.names))

    def read(pushdown: Pushdown) -> Iterator[pa.RecordBatch]:
        target = pa.schema([column for column in columns if column.name in pushdown.columns])
        return rows(logs, target, pushdown)

    return Relation(columns, in_order.names, read)


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
# The columns that count requests.
_REQUESTS = frozenset(("puts", "gets", "lists", "read_gets"))
# A damaged record was written by one PUT, and a reader pays one GET for it.
_DAMAGED = {"kind": "damaged", "puts": 1, "gets": 0, "lists": 0, "read_gets": 1}


def in_batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(rows, 1024)):
        yield pa.RecordBatch.from_pylist(chunk, schema=schema)


def record_rows(
    log: LogRange, pushdown: Pushdown, first: int, after: int
) -> Iterator[dict[str, Any]]:
    """One row for each live record at positions first … after−1.

    If the log's options pass over damage, a damaged record has a row with its position only.

    Raises:
        InvalidLogError: a record is damaged, and the log's options do not pass over damage.
    """
    narrow = narrowed(log, first, after, pushdown, "position", "time")
    # To count the requests takes as long as all other columns.
    counts = not pushdown.columns or not _REQUESTS.isdisjoint(pushdown.columns)
    kind = kind_of_store(log.options.path)
    previous: SlotHeader | None = None
    for record in apply_policy(log, walk(log, *narrow, newest_first=False, seals=True)):
        if isinstance(record, InvalidLogError):
            yield {**_DAMAGED, "position": record.position, "sequencer": log.name}
        else:
            header = record.header
            if previous is None and isinstance(header, LeaderHeader):
                previous = _live_before(log, first, header.position)
            yield _row(header, previous, log.name, kind if counts else None)
            previous = header


def _live_before(log: LogRange, first: int, position: int) -> SlotHeader | None:
    """The header of the last live record at positions first … position−1."""
    records = walk(log, first, position, newest_first=True, seals=True, at_once=1)
    return next((record.header for record in records if isinstance(record, SlotRecord)), None)


def _row(
    header: SlotHeader, previous: SlotHeader | None, sequencer: str, kind: str | None
) -> dict[str, Any]:
    """The row of a record, with the kind of its store also the columns of _REQUESTS."""
    row = {
        "position": header.position,
        "kind": header.kind,
        "term": header.term,
        "time": min(header.timestamp_ms, CALENDAR_MS) * 1000,
        "leader": header.leader_id,
        "host": host_of(header),
        "sequencer": sequencer,
        "decided": header.decided,
    }
    if kind is not None:
        requests = write_requests(header, previous, kind)
        row["read_gets"] = read_requests(header)
        row["puts"] = requests["PUT"]
        row["gets"] = requests["GET"]
        row["lists"] = requests["LIST"]
    if isinstance(header, LeaderHeader):
        # A takeover is one leader record; the seals after it are no takeovers.
        kind = "seal" if header.reason == SEAL else header.kind
        return {**row, "kind": kind, "reason": header.reason}
    retries = header.metric("retries")
    in_flight = header.metric("in_flight")
    return {
        **row,
        "query": header.query,
        "query_id": header.query_id,
        "batch": header.batch_id,
        "rows": header.rows,
        "bytes": header.bytes,
        "objects": len(header.batches) + 1,
        "in_flight": None if in_flight is None else int(in_flight),
        "retries": None if retries is None else int(retries),
        # put_ms is about data objects; without them it means nothing.
        "write_ms": header.metric("put_ms") if header.batches else None,
        "last_put_ms": header.metric("last_put_ms"),
    }


def write_requests(
    header: SlotHeader, previous: SlotHeader | None, kind: str = "s3"
) -> Counter[str]:
    """The requests that wrote a record, as far as the record proves them.

    They are the PUTs of the record and of its data objects. A leader record also proves the cold
    start before it and the archive of transactions that it began.

    Args:
        previous: the header of the live record before this one, if known.
        kind: the kind of the log's store.
    """
    requests = Counter(PUT=1)
    if isinstance(header, CommitHeader):
        for batch in header.batches:
            requests["PUT"] += 1 if batch.bytes <= _MULTIPART else _large(batch.bytes, kind)
    elif header.reason != SEAL:
        requests["LIST"] += 1
        if header.prev_position >= 0:
            # A cold start reads the head, and looks back over the slots that were in flight.
            reach = undecided = 0
            if previous is not None:
                reach = previous.in_flight_limit - 1
                undecided = previous.position - previous.decided - 1
            requests["GET"] += 1 + min(reach, undecided)
        else:
            # Two GETs proved that there was no log.
            requests["GET"] += 2
        if previous is not None and header.txns_archive != previous.txns_archive:
            requests["PUT"] += 1
            requests["GET"] += 1 if previous.txns_archive else 0
    return requests


def _large(size: int, kind: str) -> int:
    """The PUTs of an object above `multipartThreshold`."""
    if kind == "google":
        return 1
    # Azure takes a list of the parts; the others begin an upload and complete it.
    return -(-size // PART_SIZE) + (1 if kind == "azure" else 2)


def read_requests(header: SlotHeader) -> int:
    """How many GETs read this record and its rows."""
    if isinstance(header, LeaderHeader):
        return 1
    return 1 + sum(max(1, -(-batch.bytes // RUN_SIZE)) for batch in header.batches)


# Takes logs with their sequencers' names and their heads, and the expiry. Returns the consumers of
# each log, or the error of a log with a damaged one.
ConsumersOf = Callable[
    [Sequence[tuple[LogStore, str, Head]], int | None],
    Sequence[Sequence[object] | InvalidLogError],
]
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
        ("table_files", pa.int64()),
    ]
)


class CurrentRows(Protocol):
    schema: pa.Schema

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The rows of these columns."""


def relations(
    logs: Sequence[LogRange], consumers_of: ConsumersOf, current: Callable[[], CurrentRows]
) -> Mapping[str, Callable[[], Relation]]:
    """The relations of these logs. They read records only when a query runs.

    Args:
        logs: the ranges to read; their heads are known already.
        consumers_of: returns objects with the fields of CONSUMERS.
        current: returns the log's table and the log after it as one.
    """

    def records(pushdown: Pushdown) -> Iterator[pa.RecordBatch]:
        rows_of_records = (row for log in logs for row in record_rows(log, pushdown, *bounds(log)))
        columns = [column for column in RECORDS if column.name in pushdown.columns]
        # Without a column a batch would have no length.
        return in_batches(rows_of_records, pa.schema(columns or [RECORDS.field("position")]))

    def consumers(pushdown: Pushdown) -> Iterator[pa.RecordBatch]:
        heads = [(log.log, log.name, log.head) for log in logs if log.head is not None]
        for infos in consumers_of(heads, None):
            if isinstance(infos, InvalidLogError):
                raise infos
            yield pa.RecordBatch.from_pylist([vars(info) for info in infos], schema=CONSUMERS)

    def current_relation() -> Relation:
        snapshot = current()
        names = snapshot.schema.names

        def read(pushdown: Pushdown) -> Iterator[pa.RecordBatch]:
            columns = [name for name in names if name in pushdown.columns]
            return iter(snapshot.reader(columns or None))

        return Relation(snapshot.schema, names, read)

    return {
        "log": lambda: _log(logs),
        "records": lambda: Relation(RECORDS, RECORDS.names, records),
        "consumers": lambda: Relation(CONSUMERS, CONSUMERS.names, consumers),
        "current": current_relation,
    }
