"""Plans a read of table and log as one: a version of the table, and the newer part of each log.

A range of the log is one transaction of the table. So a reader takes one version of the table, and
the log from the end of that version's last range on. It gets every row once, also while a
compaction runs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal, TypeVar, get_args

from sparkwal.errors import (
    ConfirmError,
    InvalidLogError,
    OptionError,
    SparkWalError,
    documented,
)
from sparkwal.events import CurrentRead, LogLeftOut, emit
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
from sparkwal.lifecycle.known_log import other_logs
from sparkwal.lifecycle.opening import check_apart
from sparkwal.lifecycle.table import (
    Snapshots,
    TableColumns,
    check_beside,
    check_history,
    holds_open_range,
    snapshot_of,
    tombstones_of,
)
from sparkwal.options.reading import RANGE, TRIGGERS, SourceOptions
from sparkwal.options.store import refuse
from sparkwal.protocol.chain import newest_record
from sparkwal.protocol.missing import AnotherLog
from sparkwal.reading.floor import Floor, Looked
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.planning import first_columns, folded_names
from sparkwal.reading.several import existing, look_at_all
from sparkwal.store.parallel import run_parallel

R = TypeVar("R")
# What a read of several logs does if one is damaged, or its columns do not fit.
OnLogError = Literal["fail", "leave out"]
# Attempts to read lifecycle and table in agreement. An attempt takes less than a second, and a
# compaction several.
ATTEMPTS = 8


@dataclass(frozen=True)
class _Pins:
    """A version of the table.

    Attributes:
        version: the version.
        starts: the first position of each log that it does not hold, by name.
        table_id: the table's id, or "" without a table.
        has_open_range: it holds the open range.
    """

    version: int
    starts: Mapping[str, int]
    table_id: str = ""
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
        left_out: the errors of the logs whose rows are read only as far as the table has them, by
            sequencer.
        table_id: the table's id, or "" without a table.
        in_table: the logs whose rows the table may hold, by their sequencers.
    """

    target: Target | None
    table_version: int
    tails: tuple[Tail, ...]
    spark_schema: str
    tombstones_version: int = NO_TABLE_VERSION
    left_out: Mapping[str, SparkWalError] = field(default_factory=dict)
    table_id: str = ""
    in_table: frozenset[str] = frozenset()

    @property
    def newer(self) -> list[Tail]:
        """The parts of logs with positions, by the names of the logs."""
        parts = (tail for tail in self.tails if tail.end > tail.start)
        return sorted(parts, key=attrgetter("name"))

    @property
    def starts(self) -> dict[str, int]:
        """The first position of each log that the table's version does not hold, by sequencer."""
        return {tail.name: tail.start for tail in self.tails}

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
    logs: Sequence[LogRange],
    open_table: Callable[[Target], TableColumns],
    *,
    listed: bool = True,
    on_log_error: OnLogError = "fail",
) -> CurrentPlan:
    """Pin a version of the table, and the end of each of the logs of one path.

    Args:
        logs: the logs.
        open_table: reads the newest version of a table. It is called again for each attempt, and
            for the tombstones with their URL as the target's table.
        listed: the logs come from a LIST, so a log may have no record yet; it does not count.
        on_log_error: "leave out": a log that is damaged or does not fit does not count. This reads
            the newer rows of all logs once more.

    Raises:
        ConfirmError: the table is not the one that the logs' lifecycles confirmed.
        OptionError: the logs have different tables or columns that do not fit, or no log exists.
        InvalidLogError: a record is damaged or missing.
        PlanError: a log was recreated, or is a copy of another.
    """
    if on_log_error not in get_args(OnLogError):
        raise OptionError(f"on_log_error is {on_log_error!r}; 'fail' or 'leave out' is expected")
    if not logs:
        raise OptionError("there is no log at this path; check the path")
    look_at_all(logs)
    read = _Logs([*logs], on_log_error)
    read.each(LogRange.refresh)
    read.logs = existing(logs[0].log.root, read.logs, listed=listed)
    for _ in range(ATTEMPTS):
        # §10: all logs are planned by one record of their chain
        record = newest_record(logs[0].log)
        read.leave_out(other_logs(record, [(log.log, log.log_id or "") for log in read.logs]))
        states = {log.log.name: record.log(log.log.name) if record else None for log in read.logs}
        target = _target(record, states)
        promise = record.promise(target.table) if record and target else None
        pins: _Pins | None = _Pins(NO_TABLE_VERSION, _starts(states))
        in_table = ""
        if target is not None and promise is not None:
            check_apart(logs[0].options.path, target)
            table = open_table(target)
            pins = _pin(promise, states, table)
            in_table = table.spark_schema if pins else ""
        if pins is None:
            continue
        # Read the logs' ends after the table: a compaction may have run since the first `refresh`.
        tails = _fitting_tails(read, pins.starts, in_table, looks_again=target is not None)
        version: int | None = NO_TABLE_VERSION
        has_newer = any(tail.end > tail.start for tail in tails.values())
        if target and promise and target.keeps_tombstones and has_newer:
            tombstones = open_table(replace(target, table=target.tombstones))
            version = _pin_tombstones(promise, pins, tombstones)
        if version is not None:
            plan = _plan(read, target, pins.version, tails, version)
            of_table = frozenset(promise.logs if promise else ())
            return replace(plan, table_id=pins.table_id, in_table=of_table)
    raise ConfirmError(
        f"{target.table if target else 'the table'} and the log's lifecycle did not agree in "
        f"{ATTEMPTS} attempts: one has a range that the other has not. Compare the table with the "
        "log; if compactions run without a pause, try again"
    )


@dataclass
class _Logs:
    """The logs of a read that no error has left out so far.

    Attributes:
        logs: the logs.
        on_error: as in `plan_current`.
        left_out: the errors of the others, by name.
    """

    logs: list[LogRange]
    on_error: OnLogError
    left_out: dict[str, SparkWalError] = field(default_factory=dict)

    def leave_out(self, errors: Mapping[str, SparkWalError]) -> None:
        """Leave logs out, by name.

        Raises:
            SparkWalError: an error of a log, if it does not allow that, or if no other log remains.
        """
        bad = [log for log in self.logs if log.log.name in errors]
        if bad and len(self.logs) == 1:
            raise errors[bad[0].log.name]
        if bad and (self.on_error == "fail" or len(bad) == len(self.logs)):
            raise of_one_log(bad[0].log.name, errors[bad[0].log.name])
        self.logs = [log for log in self.logs if log not in bad]
        for log in bad:
            self.left_out[log.log.name] = error = errors[log.log.name]
            emit(LogLeftOut(log.log.url, str(error)))

    def each(self, work: Callable[[LogRange], R]) -> dict[str, R]:
        """Do something with each log, side by side, and leave out those that it finds damaged."""

        def guarded(log: LogRange) -> R | InvalidLogError:
            try:
                return work(log)
            except InvalidLogError as error:
                return error

        results = run_parallel(self.logs[0].log.store, guarded, self.logs)
        by_name = dict(zip([log.log.name for log in self.logs], results, strict=True))
        errors = {name: r for name, r in by_name.items() if isinstance(r, InvalidLogError)}
        self.leave_out(errors)
        return {name: r for name, r in by_name.items() if not isinstance(r, InvalidLogError)}


def of_one_log(name: str, error: SparkWalError) -> SparkWalError:
    """The error of one of several logs, with the way to read the others."""
    wrapped = documented(error)(
        f'sequencer {name}: {error}. To read the others without it: on_log_error="leave out", or '
        "name them (sequencers)"
    )
    wrapped.__cause__ = error
    return wrapped


def _plan(
    read: _Logs, target: Target | None, version: int, tails: Mapping[str, Tail], tombstones: int
) -> CurrentPlan:
    if read.on_error == "leave out":
        # Damage that shows only in rows leaves out the whole log, not a part of it.
        read.each(lambda log: _read_all(log, tails[log.log.name]))
    log_tails = [(log, tails[log.log.name]) for log in read.logs]
    union = union_of((tail.spark_schema, f"sequencer {tail.name}") for _, tail in log_tails)
    for log, tail in log_tails:
        emit(CurrentRead(log.log.url, version, tail.start, tail.end))
    newer = tuple(tail for _, tail in log_tails)
    return CurrentPlan(target, version, newer, union, tombstones, read.left_out)


def _read_all(log: LogRange, tail: Tail) -> None:
    """Read the rows of a tail, and so find out whether they can be read.

    Raises:
        InvalidLogError: a record or an object is damaged or missing.
    """
    for _ in log.scan(tail.start, tail.end, schema.to_arrow(tail.spark_schema)):
        pass


def target_of(record: ChainRecord | None, names: Sequence[str]) -> Target | None:
    """The target of the logs of these names, or None if they have no table.

    Raises:
        OptionError: they have several.
    """
    return _target(record, {name: record.log(name) if record else None for name in names})


def _target(record: ChainRecord | None, states: Mapping[str, LogInChain | None]) -> Target | None:
    """The target of the logs.

    Raises:
        OptionError: they have several.
    """
    urls = {state.table for state in states.values() if state and state.table}
    targets = [record.tables[url].target for url in sorted(urls)] if record else []
    if len(targets) > 1:
        raise OptionError(
            "the logs of this path are compacted into different tables, or in different ways "
            f"({', '.join(target.table for target in targets)}): read one sequencer"
        )
    return targets[0] if targets else None


def _fitting_tails(
    read: _Logs, starts: Mapping[str, int], in_table: str, *, looks_again: bool
) -> dict[str, Tail]:
    """The newer parts of the logs. A log whose columns do not fit is left out.

    Args:
        read: the logs.
        starts: the first position of each.
        in_table: the columns of the table; "" without one. They count more than those of a log.
        looks_again: read the end of each log again.
    """
    look = _tail if looks_again else _tail_at
    tails = read.each(lambda log: look(log, starts[log.log.name]))
    try:
        _fitted(
            [(tail.spark_schema, f"sequencer {name}") for name, tail in tails.items()], in_table
        )
    except OptionError:
        if len(tails) == 1:
            raise
        union = ""
        errors = {}
        for name, tail in tails.items():
            one = (tail.spark_schema, f"sequencer {name}")
            try:
                union = _fitted([(union, "the others"), one] if union else [one], in_table)
            except OptionError as error:
                errors[name] = error
        read.leave_out(errors)
    return {log.log.name: tails[log.log.name] for log in read.logs}


def _fitted(columns: Sequence[tuple[str, str]], in_table: str) -> str:
    """The columns of logs together, if they fit the table.

    Raises:
        OptionError: they do not.
    """
    union = union_of(columns)
    if in_table:
        with_table(union, in_table)
    return union


def _pin(
    promise: Promise, states: Mapping[str, LogInChain | None], table: Snapshots
) -> _Pins | None:
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
    starts = _starts(states, has_open_range=has_open_range)
    return _Pins(snapshot.version, starts, snapshot.table_id, has_open_range)


def _starts(
    states: Mapping[str, LogInChain | None], *, has_open_range: bool = False
) -> dict[str, int]:
    """The first position of each log that the version of the table does not hold."""
    return {
        name: _first_after(state, has_open_range=has_open_range) for name, state in states.items()
    }


def _first_after(state: LogInChain | None, *, has_open_range: bool) -> int:
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
    check_beside(promise, tombstones_of(promise), snapshot, is_due=pins.has_open_range)
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
    if lacking := lacking_in_log(plan, computed):
        table_url = plan.target.table if plan.target else "the table"
        raise OptionError(
            f"only a write computes the column {lacking[0]!r} of {table_url}, and the log has "
            "newer rows: compact the log first, and read the table with Spark, or read the two "
            "separately"
        )


def lacking_in_log(plan: CurrentPlan, computed: Sequence[str]) -> list[str]:
    """Those of the columns that only a write to the table computes which the logs lack."""
    in_log = {name.lower() for name in schema.columns(plan.spark_schema)}
    return [name for name in computed if name.lower() not in in_log]


def with_table(spark_schema: str, table_schema: str) -> str:
    """The logs' columns, and after them those that only the table has.

    A column has the wider type of the two. A table may spell a name in another case; the result has
    the log's spelling.

    Raises:
        OptionError: the types of a column contradict each other.
    """
    in_log = {name.lower(): name for name in schema.columns(spark_schema)}
    table = json.loads(table_schema)
    for column in table["fields"]:
        column["name"] = in_log.get(column["name"].lower(), column["name"])
    in_table = json.dumps(table)
    wide = widened(spark_schema, schema.columns(in_table))
    for name, kind, narrow in contradictions(schema.columns(wide), schema.columns(in_table)):
        raise OptionError(
            f"column {name!r} is {schema.type_name(kind)} in the log and "
            f"{schema.type_name(narrow)} in its table: read the two by themselves, and cast"
        )
    return union_of([(wide, "the log"), (in_table, "its table")])
