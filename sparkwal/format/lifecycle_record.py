"""One record of the chain of a path: the rows in tables, and those that may be deleted (§10)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any

import pyarrow as pa

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import arrowfile, keys, limits, versions
from sparkwal.format.checked import (
    LATER,
    Moment,
    Number,
    Whole,
    WholeOrNone,
    later,
    plain,
    prepare,
    read,
    to_json,
)
from sparkwal.format.header import CRC_KEY, HEADER_KEY, crc_hex, document_in

# The kinds of records: a range is fixed before it is written; the table has it; the floor moves.
INTENT = "intent"
DONE = "done"
FLOOR = "floor"
# An open range is given up: none of its rows is in the table.
BURNED = "burned"
KINDS = (INTENT, DONE, FLOOR, BURNED)
APPEND, MERGE = "append", "merge"
# The table version of a log without a table.
NO_TABLE_VERSION = -1
# In the JSON each of these is an object: {sequencer: value}. So is "table", the place of the log's
# table in the list of tables.
_OF_LOGS = ("log_id", "cut", "to", "floor")
# The same, with the logs only whose value is not this one. An empty one is left out.
_OF_SOME_LOGS = {
    "without_rows": 0,
    "unreadable": 0,
    "refused_ms": 0,
    "tried_ms": 0,
    "aside": 0,
    "rows_aside": 0,
    "again": 0,
    "taken": 0,
    "collected": 0,
    "at_rest": "",
}


@dataclass(frozen=True)
class Target:
    """The table of a log, and the way rows reach it. The first intent fixes both.

    Attributes:
        mode: APPEND, or MERGE by `keys`.
        sequence_by: for MERGE, the row with the greatest value of this column wins; by default the
            last row in the log.
        delete_when: an SQL condition. A row that fulfils it deletes its key.
        properties: the properties of a new table.
        tombstone_horizon_ms: the sequences of deleted keys are kept for this time; 0 for none.
    """

    table: str
    mode: str = APPEND
    keys: tuple[str, ...] = ()
    sequence_by: str = ""
    delete_when: str = ""
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    tombstone_horizon_ms: Whole = 0

    @property
    def keeps_tombstones(self) -> bool:
        """Whether the sequences of deleted keys are kept."""
        return self.tombstone_horizon_ms > 0

    @property
    def tombstones(self) -> str:
        """The URL of the table that keeps them, beside the table."""
        return f"{self.table}_tombstones"

    @property
    def refused(self) -> str:
        """The URL of the table, beside the table, that keeps the rows which the table refuses."""
        return f"{self.table}_refused"


@dataclass(frozen=True)
class OpenRange:
    """The positions cut … to−1 of a log, which an intent promised to a table."""

    sequencer: str
    log_id: str
    cut: int
    to: int


@dataclass(frozen=True)
class LogInChain:
    """One log in a record of the chain.

    Attributes:
        log_id: the id of the log. A log that was recreated at the same path has another.
        cut: positions below are in the table.
        to: the end of the open range [cut, to), or `cut` if the open range of the table, if any,
            takes nothing of this log.
        floor: positions below may be deleted after `gc_grace_ms`.
        table: the URL of the log's table, or "" before its first intent.
        without_rows: no record below this position holds rows. It saves requests, and no rule
            needs it.
        unreadable: the number of the range that was given up because this log could not be read; 0
            since a range of it was done.
        refused_ms: the time when the table first refused a range of this log alone, in milliseconds
            since 1970; 0 since a range of it was done.
        tried_ms: the time when it did so last.
        collected: a collection deleted all that it may below this position.
        at_rest: names the log's newest object while the table has all of its rows; "" if it is
            unknown. As `collected` it saves requests, and no rule needs it.
        aside: the number of the last range of this log from which the refused rows step aside; 0
            since a range of it was done. An open range of the log is then such a range.
        rows_aside: the number of rows that stepped aside from the ranges of it that are done, and
            that the table does not have since. It is for people, and no rule needs it.
        again: the number under which an open range was promised that has no positions, and writes
            the refused rows of this log again; 0 without one.
        taken: of the refused rows of this log those of a range below this number are in the table,
            or count under a later number.
    """

    log_id: str
    cut: Whole = 0
    to: Whole = 0
    floor: Whole = 0
    table: str = ""
    without_rows: Whole = 0
    unreadable: Whole = 0
    refused_ms: Whole = 0
    tried_ms: Whole = 0
    collected: Whole = 0
    at_rest: str = ""
    aside: Whole = 0
    rows_aside: Whole = 0
    again: Whole = 0
    taken: Whole = 0

    @property
    def is_open(self) -> bool:
        """Whether positions of the log, or its refused rows, are promised to its table and not
        confirmed there."""
        return self.to > self.cut or self.again > 0

    @property
    def is_released(self) -> bool:
        """Whether its table has all that the chain promised, and the log keeps none of that."""
        return bool(self.table) and self.floor == self.cut == self.to and not self.again

    @property
    def is_alone(self) -> bool:
        """Whether its next range takes no other log."""
        return bool(self.refused_ms or self.aside)

    @property
    def start(self) -> int:
        """The first position that its table takes next: a new table begins at the floor."""
        return self.cut if self.table else max(self.cut, self.floor)


@dataclass(frozen=True)
class BesideTable:
    """A table beside the table of a log, as it was confirmed last."""

    table_id: str
    version: WholeOrNone


@dataclass(frozen=True)
class Added:
    """What a range added to its table and to the tables beside it, as far as they recorded it.

    Attributes:
        versions: the versions of these tables. Each is one commit: a snapshot of Iceberg.
        files: the data files.
        bytes: the size of these files.
    """

    versions: Whole
    files: Whole
    bytes: Whole


@dataclass(frozen=True)
class TableInChain:
    """One table in a record of the chain.

    Attributes:
        target: the table, and the way rows reach it.
        app_id: the name of the table's transactions: the id of the first log of its first range.
        k: the number of its last intent.
        table_id: its id at the first intent.
        table_version: the table's version before the last done; at first, before any row. Only the
            table orders its versions.
        tombstones_id: the id of the table of tombstones, or "" without one.
        tombstones_version: the version of the tombstones, read after that of the table.
        refused: the table of refused rows, or None before the first of them.
        added: what the last range that is done added; None before the first. It is for people, and
            no rule needs it.
    """

    target: Target
    app_id: str
    k: Whole
    table_id: str = ""
    table_version: WholeOrNone = NO_TABLE_VERSION
    tombstones_id: str = ""
    tombstones_version: WholeOrNone = NO_TABLE_VERSION
    refused: Annotated[BesideTable | None, LATER] = None
    added: Annotated[Added | None, LATER] = None


@dataclass(frozen=True)
class Promise:
    """What a record of the chain promises to a table: the last range, and what of it is open.

    Attributes:
        table: the table. Its `k` is the number of the range.
        logs: the logs of the table, by the names of their sequencers.
        timestamp_ms: the time of the record.
        read: a record of each of some logs, for a writer that need not read it again.
    """

    table: TableInChain
    logs: Mapping[str, LogInChain]
    timestamp_ms: int
    read: Mapping[str, arrowfile.Opened] = field(default_factory=dict, compare=False, repr=False)

    @property
    def target(self) -> Target:
        """The table, and the way rows reach it."""
        return self.table.target

    @cached_property
    def ranges(self) -> tuple[OpenRange, ...]:
        """The positions that are promised and not confirmed in the table, by sequencer."""
        return tuple(
            OpenRange(name, log.log_id, log.cut, log.to)
            for name, log in sorted(self.logs.items())
            if log.is_open
        )

    @property
    def is_open(self) -> bool:
        """Whether a range is promised and not confirmed in the table."""
        return bool(self.ranges)

    @property
    def is_aside(self) -> bool:
        """Whether the rows of the open range that the table refuses step aside."""
        is_aside = any(log.is_open and log.aside for log in self.logs.values())
        return is_aside or self.is_again

    @property
    def is_again(self) -> bool:
        """Whether the open range writes refused rows of a log again."""
        return any(log.again for log in self.logs.values())

    @property
    def confirmed_k(self) -> int:
        """The last range that the table was confirmed to hold."""
        return self.table.k - 1 if self.is_open else self.table.k

    @property
    def range_id(self) -> tuple[str, int]:
        """The transaction that writes the range: the name of the table's transactions, and k."""
        return self.table.app_id, self.table.k


@dataclass(frozen=True, kw_only=True)
class ChainRecord:
    """The state of all logs under a path after one record of their chain.

    The defaults are those of the state before the first record.

    Attributes:
        number: the number of the record. Numbers count down from keys.MAX by 1.
        record_id: a random id of the attempt that wrote the record. A read-back compares it.
        logs: the logs, by the names of their sequencers.
        tables: the tables, by their URLs.
        gc_grace_ms: objects stay at least this long after the floor passed them.
    """

    kind: str = ""
    number: Number = keys.MAX + 1
    record_id: str = ""
    logs: Mapping[str, LogInChain] = field(default_factory=dict)
    tables: Mapping[str, TableInChain] = field(default_factory=dict)
    gc_grace_ms: Whole
    timestamp_ms: Moment = 0
    host: str = ""

    def log(self, sequencer: str, log_id: str | None = None) -> LogInChain | None:
        """A log, or None if the chain does not have it, or with `log_id` if it has another of this
        name."""
        log = self.logs.get(sequencer)
        # SAFETY(chain-log-id) §10: the chain of another log_id counts as no chain
        return log if log and log_id in (None, log.log_id) else None

    def target_of(self, sequencer: str) -> Target | None:
        """The target of a log, or None if the log has no table."""
        log = self.logs.get(sequencer)
        table = self.tables.get(log.table) if log else None
        return table.target if table else None

    def promise(self, table: str) -> Promise | None:
        """The promise to the table of this URL, or None if no log has this table."""
        if table not in self.tables:
            return None
        logs = {name: log for name, log in self.logs.items() if log.table == table}
        return Promise(self.tables[table], logs, self.timestamp_ms)


prepare(LogInChain, TableInChain, ChainRecord)


def encode(record: ChainRecord) -> bytes:
    """The bytes of a record.

    Raises:
        OptionError: it is larger than readers take.
    """
    document = plain(record)
    logs = document.pop("logs")
    for name in _OF_LOGS:
        document[name] = {sequencer: getattr(log, name) for sequencer, log in logs.items()}
    for name in _OF_SOME_LOGS:
        of_some = {sequencer: getattr(log, name) for sequencer, log in logs.items()}
        if of_some := {sequencer: value for sequencer, value in of_some.items() if value}:
            document[name] = of_some
    tables = document.pop("tables")
    document["tables"] = [*tables.values()]
    places = {url: index for index, url in enumerate(tables)}
    document["table"] = {
        sequencer: places[log.table] for sequencer, log in logs.items() if log.table
    }
    # §14: only a record that an older version would misread has the newer format
    has_aside = any(log.aside for log in logs.values())
    has_aside = has_aside or any(table.refused for table in tables.values())
    if not any(log.again or log.taken for log in logs.values()):
        document[versions.FIELD] = 2 if has_aside else 1
    text = to_json(versions.LIFECYCLE, document)
    metadata = {HEADER_KEY: text, CRC_KEY: crc_hex(text)}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([]).with_metadata(metadata)):
        pass
    body = bytes(sink.getvalue())
    if len(body) > limits.LIFECYCLE_RECORD:
        raise OptionError(
            f"a lifecycle record of {len(body)} bytes; {limits.LIFECYCLE_RECORD} are read: give "
            "the table fewer or shorter properties, columns and conditions, or divide the logs "
            "among several paths"
        )
    return body


def is_torn(body: bytes) -> bool:
    """Whether these are the first bytes of a record, and not all of them."""
    if arrowfile.is_cut_front(body):
        return True
    try:
        metadata = pa.ipc.read_schema(pa.BufferReader(body[len(arrowfile.MAGIC) :])).metadata
        complete = encode(_decoded(metadata, "it"))
    except (pa.ArrowException, OSError, ValueError, InvalidLogError, OptionError):
        return False
    return len(body) < len(complete) and complete.startswith(body)


def decode(body: bytes, location: str) -> ChainRecord:
    """Decode and check a record.

    Raises:
        InvalidLogError: the record is damaged, or a field is missing or wrong.
    """
    try:
        metadata = pa.ipc.open_file(body).schema.metadata
    except (pa.ArrowException, OSError, ValueError, KeyError):
        raise InvalidLogError(f"{location}: this is no record of a log's lifecycle") from None
    return _decoded(metadata, location)


def _decoded(metadata: dict[bytes, bytes] | None, location: str) -> ChainRecord:
    document = document_in(metadata, location, versions.LIFECYCLE)
    maps = {name: document.get(name) for name in (*_OF_LOGS, "table")}
    maps |= {name: document.get(name, {}) for name in _OF_SOME_LOGS}
    tables = document.get("tables")
    # A default must not replace a field that the writer left out.
    lacks = {name for name, value in maps.items() if not isinstance(value, dict)}
    lacks |= _names(ChainRecord) - {"logs", "tables"} - {*document}
    if not isinstance(tables, list):
        lacks.add("tables")
    for table in tables if isinstance(tables, list) else ():
        lacks |= _names(TableInChain) - ({*table} if isinstance(table, dict) else set())
        target = table.get("target") if isinstance(table, dict) else None
        lacks |= _names(Target) - ({*target} if isinstance(target, dict) else set())
    if lacks:
        raise InvalidLogError(f"{location}: it has no {', '.join(sorted(lacks))}")
    assert isinstance(tables, list)
    in_tables = [read(TableInChain, table, location) for table in tables]
    urls = [table.target.table for table in in_tables]
    names: set[str] = set().union(*(of_logs or {} for of_logs in maps.values()))
    logs: dict[str, Any] = {}
    for sequencer in sorted(names):
        # A missing value gives None, which no field takes.
        values = {name: (maps[name] or {}).get(sequencer) for name in _OF_LOGS}
        values |= {
            name: (maps[name] or {}).get(sequencer, default)
            for name, default in _OF_SOME_LOGS.items()
        }
        index = (maps["table"] or {}).get(sequencer)
        if index is not None:
            if type(index) is not int or not 0 <= index < len(urls):
                raise InvalidLogError(f"{location}: log {sequencer!r} has no table {index!r}")
            values["table"] = urls[index]
        logs[sequencer] = values
    by_url = dict(zip(urls, in_tables, strict=True))
    # The tables are read one by one above.
    document = {**document, "logs": logs, "tables": {}}
    record = replace(read(ChainRecord, document, location), tables=by_url)
    if record.kind not in KINDS:
        raise InvalidLogError(f"{location}: field 'kind' must be {', '.join(KINDS)}")
    if len(by_url) != len(urls):
        raise InvalidLogError(f"{location}: it has one table twice")
    for table in in_tables:
        _check(table.target, location)
    for name, log in record.logs.items():
        _check_log(name, log, location)
    return record


def _check_log(name: str, log: LogInChain, location: str) -> None:
    """Check one log of a record.

    Raises:
        InvalidLogError: no compaction leads to its positions, or no log has its name.
    """
    if not keys.is_sequencer(name):
        raise InvalidLogError(f"{location}: {name[:80]!r} is no name of a log")
    if not (log.cut <= log.to and (not log.table or log.floor <= log.cut)):
        raise InvalidLogError(f"{location}: floor ≤ cut ≤ to is expected")
    if log.is_open and not log.table:
        raise InvalidLogError(f"{location}: it has an open range and no table")
    if log.again and log.to > log.cut:
        raise InvalidLogError(f"{location}: log {name!r} has two open ranges")
    if max(log.to, log.floor) > keys.MOST_POSITIONS:
        raise InvalidLogError(f"{location}: no log has so many positions")


def _check(target: Target, location: str) -> None:
    """Check a target.

    Raises:
        InvalidLogError: no compaction has such a target.
    """
    columns = (*target.keys, *target.partition_by, *target.cluster_by)
    is_sound = (
        target.mode in (APPEND, MERGE)
        and (target.mode == MERGE) == bool(target.keys)
        and (bool(target.keys) or not (target.sequence_by or target.delete_when))
        and not (target.partition_by and target.cluster_by)
        and bool(target.table.strip())
        and all(map(str.strip, columns))
    )
    if not is_sound:
        raise InvalidLogError(f"{location}: no compaction fills a table as its 'target' says")


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)} - later(kind)
