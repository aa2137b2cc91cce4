"""Which rows a command shows: of one log or several, in order, a range or the newest of it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from sparkwal.cli.exits import Failed, Refused
from sparkwal.cli.looking import no_log
from sparkwal.format import schema
from sparkwal.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import CONSUMERS, TRIGGERS, SourceOptions, refuse
from sparkwal.protocol.slots import WHOLE, SlotRecord
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import METADATA, unknown_column, with_metadata_columns
from sparkwal.reading.pieces import Piece, pieces_of
from sparkwal.reading.rows import read_pieces
from sparkwal.sequencers import all_logs
from sparkwal.store.parallel import run_parallel

# Besides METADATA: what only the command knows.
_OWN = pa.schema([("_wal_sequencer", pa.string()), ("_wal_row", pa.int64())])

Filter = Callable[[pa.RecordBatch], pa.RecordBatch]


def open_logs(path: str, given: dict[str, str], sequencers: str | None) -> list[LogRange]:
    """The logs that are asked for, looked at once.

    Args:
        given: options of reading, which say where to begin and to end too.
        sequencers: names with commas between them or "*"; None: the one log of the options.

    Raises Failed where there is no log, OptionError, InvalidLogError, StoreUnavailableError.
    """
    if sequencers is not None:
        given = {**given, "sequencers": "*"}
    options = from_keywords(SourceOptions, path, given)
    refuse(options, "does not go with a command", *TRIGGERS, *CONSUMERS, "minPartitions", "logId")
    # A lease is written into the log.
    refuse(options, "does not go with a command, which only looks", "lease")
    root = open_log(options, fail_fast=True)
    several = sequencers or options.sequencers
    names = [options.sequencer]
    if several == "*":
        names = all_logs(root)
    elif several is not None:
        names = list(dict.fromkeys(name.strip() for name in several.split(",") if name.strip()))
        for name in names:
            from_keywords(SourceOptions, path, {"sequencer": name})
    logs = [LogRange(options, name, root) for name in names]
    for _ in run_parallel(root.store, LogRange.look, logs):
        pass
    for log in logs:
        if log.log_id is None and several != "*":
            raise no_log(options.path, log.name)
    if not logs:
        raise no_log(options.path)
    return logs


@dataclass(frozen=True)
class Shown:
    """What of each row is shown, and which rows are.

    Attributes:
        columns: in their order.
        needed: those that are read too, because a condition or a template names them.
        keep: drops the rows that are not asked for.
    """

    known: pa.Schema
    columns: tuple[str, ...]
    needed: frozenset[str] = frozenset()
    keep: Filter | None = None

    @property
    def target(self) -> pa.Schema:
        """All columns that are read: those shown come first."""
        others = sorted(self.needed - set(self.columns))
        return pa.schema([self.known.field(name) for name in (*self.columns, *others)])


def known_columns(spark_schemas: Iterable[str | None]) -> pa.Schema:
    """All columns of logs, then those that tell where a row came from.

    Raises Failed where two logs have a column of other types.
    """
    try:
        own = pa.unify_schemas([schema.to_arrow(text) for text in spark_schemas if text])
    except pa.ArrowException as error:
        raise Failed(f"the sequencers' columns are of different types: {error}") from None
    extra = schema.to_arrow(with_metadata_columns('{"type":"struct","fields":[]}'))
    return pa.schema([*own, *(each for each in (*extra, *_OWN) if each.name not in own.names)])


def log_columns(known: pa.Schema) -> list[str]:
    """Those that the writers gave."""
    return [name for name in known.names if name not in METADATA and name not in _OWN.names]


def shown_columns(
    known: pa.Schema, columns: str | None, metadata: bool, several: bool
) -> tuple[str, ...]:
    """Raises OptionError for a column that is not there, Refused for one asked for twice."""
    if columns is not None:
        names = [name.strip() for name in columns.split(",")]
        for name in names:
            if name not in known.names:
                raise unknown_column(name, known.names, known.names)
            if names.count(name) > 1:
                raise Refused(f"--columns names {name!r} twice")
        return tuple(names)
    own = log_columns(known)
    if not metadata:
        return tuple(own)
    return (*own, *METADATA, *(["_wal_sequencer"] if several else []))


@dataclass
class Numbering:
    """Counts the rows of each commit and partition, whose batches come one after the other."""

    last: tuple[int, int] = (-1, -1)
    rows: int = 0

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        place = (
            batch.column("_wal_position")[0].as_py(),
            batch.column("_wal_partition")[0].as_py(),
        )
        if place != self.last:
            self.last, self.rows = place, 0
        first, self.rows = self.rows, self.rows + batch.num_rows
        return pa.array(range(first, self.rows), pa.int64())


def read(
    log: LogRange, pieces: Iterable[Piece], shown: Shown, numbering: Numbering | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of pieces of one log with `shown.target`'s columns, before any is dropped.

    Args:
        numbering: of a read that begins in the middle of a partition, or goes on.

    Raises InvalidLogError, CollectedError.
    """
    target, options = shown.target, log.options
    # A log may have a column of such a name itself.
    theirs = schema.to_arrow(log.spark_schema).names if log.spark_schema else []
    own = [each for each in target if each.name in _OWN.names and each.name not in theirs]
    base = pa.schema([each for each in target if each not in own])
    if "_wal_row" in [each.name for each in own]:
        for name in ("_wal_position", "_wal_partition"):
            if name not in base.names:
                base = base.append(shown.known.field(name))
    numbering = numbering or Numbering()
    for batch in read_pieces(
        log.log.store, pieces, base, verify=options.verify_checksums, check=log.floor.check
    ):
        if not batch.num_rows:
            continue
        for each in own:
            if each.name == "_wal_row":
                column = numbering.of(batch)
            else:
                column = pa.repeat(pa.scalar(log.name, pa.string()), batch.num_rows)
            batch = batch.append_column(each, column)
        yield batch.select(target.names)


def bounds(log: LogRange) -> tuple[int, int]:
    """The first position to read and the one after the last, as the log's options say."""
    first, after = log.start(), log.end()
    if log.options.on_corruption == "stop":
        after = log.intact_end(first, after)
    return first, after


def rows(logs: Sequence[LogRange], shown: Shown) -> Iterator[pa.RecordBatch]:
    """All rows of a range, of several logs in the order of their commits' times."""

    def records(log: LogRange) -> Iterator[tuple[int, str, LogRange, SlotRecord]]:
        for record in log.records(*bounds(log), at_once=1, size=WHOLE):
            yield record.header.timestamp_ms, log.name, log, record

    there = [records(log) for log in logs if log.log_id is not None]
    merged = there[0] if len(there) == 1 else heapq.merge(*there, key=itemgetter(0, 1))
    for log, group in groupby(merged, key=itemgetter(2)):
        pieces = (piece for *_, record in group for piece in pieces_of(log.log, record))
        yield from kept(read(log, pieces, shown), shown)


def kept(batches: Iterable[pa.RecordBatch], shown: Shown) -> Iterator[pa.RecordBatch]:
    """What the condition leaves of batches; none is empty."""
    for batch in batches:
        left = shown.keep(batch) if shown.keep is not None else batch
        if left.num_rows:
            yield left
