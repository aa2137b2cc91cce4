"""Plans a read of table and log as one: a version of the table, and the newer part of each log.

A range of the log is one transaction of the table. So a reader takes one version of the table, and
the log from the end of that version's last range on. It gets every row once, also while a
compaction runs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from sparkwal.errors import ConfirmError, InvalidLogError, OptionError
from sparkwal.events import CurrentRead, emit
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import (
    NO_TABLE_VERSION,
    ChainRecord,
    LogInChain,
    Promise,
    Target,
)
from sparkwal.format.merging import union_of
from sparkwal.format.widening import contradictions, widened
from sparkwal.lifecycle.opening import check_apart
from sparkwal.lifecycle.table import (
    Snapshots,
    check_history,
    check_tombstones,
    holds_open_range,
    snapshot_of,
)
from sparkwal.options.reading import RANGE, TRIGGERS, SourceOptions
from sparkwal.options.store import refuse
from sparkwal.protocol.chain import newest_record
from sparkwal.protocol.missing import AnotherLog
from sparkwal.reading.floor import Floor, Looked
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.planning import first_columns, folded_names
from sparkwal.reading.sequencers import no_log_at
from sparkwal.reading.several import refresh_all
from sparkwal.store.parallel import run_parallel

# Attempts to read lifecycle and table in agreement. An attempt takes less than a second, and a
# compaction several.
ATTEMPTS = 8


@dataclass(frozen=True)
class _Pins:
    """A version of the table.

    Attributes:
        version: the version.
        starts: the first position of each log that it does not hold.
        has_open_range: it holds the open range.
    """

    version: int
    starts: list[int]
    has_open_range: bool = False


@dataclass(frozen=True)
class Tail:
    """The part of a log that the table does not hold: positions start … end−1.

    Attributes:
        name: the log's sequencer.
        start, end: the positions.
        spark_schema: the log's columns at its end.
        pinned: the floor, as it was read for the plan.
    """

    name: str
    start: int
    end: int
    spark_schema: str
    pinned: Looked


@dataclass(frozen=True)
class CurrentPlan:
    """A read of table and log as one.

    Attributes:
        target: the table, or None.
        table_version: the table's version; NO_TABLE_VERSION without a table.
        tails: the newer part of each log.
        spark_schema: all columns of the logs.
        tombstones_version: the version of the table's tombstones. Rows of the tails that are older
            than the tombstone of their key do not count. NO_TABLE_VERSION: all rows count.
    """

    target: Target | None
    table_version: int
    tails: tuple[Tail, ...]
    spark_schema: str
    tombstones_version: int = NO_TABLE_VERSION

    @property
    def newer(self) -> list[Tail]:
        """The parts of logs with positions, by the names of the logs."""
        parts = (tail for tail in self.tails if tail.end > tail.start)
        return sorted(parts, key=attrgetter("name"))

    @property
    def positions(self) -> dict[str, int]:
        """The last position of each log that is read, by sequencer; −1 for none."""
        return {tail.name: tail.end - 1 for tail in self.tails}


def refuse_parts(options: SourceOptions) -> None:
    """Refuse options that select a part of the log.

    Raises:
        OptionError: one is set.
    """
    why = "does not go with the current state, which is the whole log"
    refuse(options, why, *RANGE, *TRIGGERS, "failOnDataLoss", "includeMetadata", "onCorruption")


def plan_current(
    logs: Sequence[LogRange], open_table: Callable[[Target], Snapshots]
) -> CurrentPlan:
    """Pin a version of the table, and the end of each of the logs of one path.

    Args:
        logs: the logs.
        open_table: reads the newest version of a table. It is called again for each attempt, and
            for the tombstones with their URL as the target's table.

    Raises:
        ConfirmError: the table is not the one that the logs' lifecycles confirmed.
        OptionError: the logs have different tables, or no log exists.
        InvalidLogError: a record is damaged or missing.
    """
    refresh_all(logs)
    present = [log for log in logs if log.log_id is not None]
    if not present:
        text = no_log_at(logs[0].log) if logs else "there is no log at this path; check the path"
        raise OptionError(text)
    logs = present
    for _ in range(ATTEMPTS):
        # §10: all logs are planned by one record of their chain
        record = newest_record(logs[0].log)
        states = [record.log(log.name, log.log_id) if record else None for log in logs]
        targets = _targets(record, states)
        if len(targets) > 1:
            raise OptionError(
                "the logs of this path are compacted into different tables, or in different ways "
                f"({', '.join(target.table for target in targets)}): read one sequencer"
            )
        target = next(iter(targets), None)
        promise = record.promise(target.table) if record and target else None
        floors = [state.floor if state else 0 for state in states]
        pins: _Pins | None = _Pins(NO_TABLE_VERSION, floors)
        if target is not None and promise is not None:
            check_apart(logs[0].options.path, target)
            pins = _pin(promise, states, open_table(target))
        if pins is None:
            continue
        # Read the logs' ends after the table: a compaction may have run since the first `refresh`.
        store, pairs = logs[0].log.store, zip(logs, pins.starts, strict=True)
        if target is None:
            tails = tuple(_tail_at(*pair) for pair in pairs)
        else:
            tails = tuple(run_parallel(store, lambda pair: _tail(*pair), pairs))
        version: int | None = NO_TABLE_VERSION
        has_newer = any(tail.end > tail.start for tail in tails)
        if target and promise and target.keeps_tombstones and has_newer:
            tombstones = open_table(replace(target, table=target.tombstones))
            version = _pin_tombstones(promise, pins, tombstones)
        if version is None:
            continue
        union = union_of((tail.spark_schema, f"sequencer {tail.name}") for tail in tails)
        for log, tail in zip(logs, tails, strict=True):
            emit(CurrentRead(log.log.url, pins.version, tail.start, tail.end))
        return CurrentPlan(target, pins.version, tails, union, version)
    raise ConfirmError(
        f"{target.table if target else 'the table'} and the log's lifecycle did not agree in "
        f"{ATTEMPTS} attempts: one has a range that the other has not. Compare the table with the "
        "log; if compactions run without a pause, try again"
    )


def _targets(record: ChainRecord | None, states: Sequence[LogInChain | None]) -> dict[Target, None]:
    """The targets of the logs, each once."""
    urls = dict.fromkeys(state.table for state in states if state and state.table)
    return {record.tables[url].target: None for url in urls} if record else {}


def _pin(promise: Promise, states: Sequence[LogInChain | None], table: Snapshots) -> _Pins | None:
    """A version of the table, and the first position of each log after it; None to try again."""
    # All logs are of one record, and so of one state of the table.
    snapshot = snapshot_of(promise, table)
    in_chain = promise.table
    # SAFETY(table-ahead-again) §10: if the table is ahead of the chain, both are read again
    if snapshot and snapshot.table_id == in_chain.table_id and snapshot.k > in_chain.k:
        return None
    check_history(promise, snapshot)
    assert snapshot is not None
    # The open range may be in the table, although the lifecycle has not published it yet.
    has_open_range = holds_open_range(promise, snapshot)
    if not has_open_range and snapshot.k not in (promise.confirmed_k, in_chain.k):
        return None
    starts = [_first_after(state, has_open_range=has_open_range) for state in states]
    return _Pins(snapshot.version, starts, has_open_range)


def _first_after(state: LogInChain | None, *, has_open_range: bool) -> int:
    """The first position of a log that the version of the table does not hold."""
    if state is None:
        return 0
    if not state.table:
        return state.floor
    # SAFETY(log-after-table) §10: the log continues after the last range that the table version
    # holds
    return state.to if has_open_range else state.cut


def _pin_tombstones(promise: Promise, pins: _Pins, tombstones: Snapshots) -> int | None:
    """Choose the version of the tombstones.

    It holds each range that the table holds, and no range that was promised after the look at the
    chains. It may hold the open range, whose rows are in the tail.

    Returns:
        The version, or None if the chains moved on and must be read again.

    Raises:
        ConfirmError: tombstones of a range that the table holds may be missing.
    """
    table = promise.table
    snapshot = tombstones.snapshot(table.app_id, table.tombstones_version)
    is_same = snapshot is not None and snapshot.table_id == table.tombstones_id
    changes = snapshot.changes if snapshot is not None and is_same else ()
    # SAFETY(tombstones-ahead-again) §10: if the tombstones are ahead of a chain, all are read again
    if any(change.log_id == table.app_id and change.k > table.k for change in changes):
        return None
    check_tombstones(promise, snapshot, is_range_written=pins.has_open_range)
    assert snapshot is not None
    return snapshot.version


def _tail(log: LogRange, start: int) -> Tail:
    """The part of a log from `start` to its end now, with the columns at that end."""
    gap = log.gap
    log_id = log.log_id
    if log.refresh() > gap:
        log.head = None
        log.refresh()
    if log.log_id != log_id:
        raise AnotherLog(f"the log at {log.log.url} was recreated during this read")
    return _tail_at(log, start)


def _tail_at(log: LogRange, start: int) -> Tail:
    """The part of a log from `start` to the end that was read last."""
    if log.gap < start:
        raise InvalidLogError(
            f"the log {log.log.url} ends at position {log.gap - 1}, yet its table holds it up to "
            f"{start - 1}: it was cut or restored from a backup"
        )
    assert log.log_id is not None and log.spark_schema is not None
    return Tail(log.name, start, log.gap, log.spark_schema, log.floor.looked())


def common_columns(plan: CurrentPlan, logs: Mapping[str, LogRange]) -> frozenset[str]:
    """The columns that all records with newer rows have, in lower case.

    It costs 1 GET or a few for each log with several newer records.

    Args:
        plan: a read with newer rows.
        logs: its logs.
    """

    def columns_of_all(tail: Tail) -> frozenset[str]:
        if tail.end - tail.start == 1:
            return folded_names(schema.columns(tail.spark_schema))
        log = logs[tail.name]
        floor = Floor(log.log, log.log_id, looked=tail.pinned)
        return first_columns(floor, log.window, tail.start, tail.end)

    tails = plan.newer
    store = logs[tails[0].name].log.store
    return frozenset.intersection(*run_parallel(store, columns_of_all, tails))


def check_complete(plan: CurrentPlan, computed: Sequence[str]) -> None:
    """Refuse newer rows that lack a column that only a write to the table computes.

    Args:
        plan: what is read.
        computed: the columns of the table that a write computes.

    Raises:
        OptionError: the log has newer rows, and the table has a generated, identity or default
            column that the log lacks.
    """
    if not plan.newer:
        return
    in_log = {name.lower() for name in schema.columns(plan.spark_schema)}
    if lacking := [name for name in computed if name.lower() not in in_log]:
        table_url = plan.target.table if plan.target else "the table"
        raise OptionError(
            f"only a write computes the column {lacking[0]!r} of {table_url}, and the log has "
            "newer rows: compact the log first, and read the table with Spark, or read the two "
            "separately"
        )


def with_table(spark_schema: str, table_schema: str) -> str:
    """The logs' columns, and after them those that only the table has.

    A column has the wider type of the two. A table may spell a name in another case; the result has
    the log's spelling.

    Raises:
        OptionError: the types of a column contradict each other.
    """
    in_log = {name.lower(): name for name in schema.columns(spark_schema)}
    table = json.loads(table_schema)
    for field in table["fields"]:
        field["name"] = in_log.get(field["name"].lower(), field["name"])
    in_table = json.dumps(table)
    wide = widened(spark_schema, schema.columns(in_table))
    for name, kind, narrow in contradictions(schema.columns(wide), schema.columns(in_table)):
        raise OptionError(
            f"column {name!r} is {schema.type_name(kind)} in the log and "
            f"{schema.type_name(narrow)} in its table: read the two by themselves, and cast"
        )
    return union_of([(wide, "the log"), (in_table, "its table")])
