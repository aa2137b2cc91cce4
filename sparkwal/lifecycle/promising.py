"""Promises ranges of logs to a table, before a row of them is written.

A promised range must reach the table, or be given up. So each log is checked before the promise. Of
several logs, a log that does not fit is left out: it stops no other.
"""

from collections.abc import Sequence
from dataclasses import replace

from sparkwal.errors import OptionError, PlanError, ReadError, SparkWalError
from sparkwal.format.lifecycle_record import ChainRecord, OpenRange, Promise, TableInChain
from sparkwal.format.merging import union_of
from sparkwal.lifecycle.compaction import (
    confirm_table,
    promise_to,
    put_promise,
    tombstones_of,
)
from sparkwal.lifecycle.cycle import Cycle, KnownLog, noted
from sparkwal.lifecycle.giving_up import unreadable
from sparkwal.lifecycle.table import Table, confirmed
from sparkwal.protocol.chain import Chain
from sparkwal.protocol.lifecycle_steps import promised
from sparkwal.protocol.records import first_at_or_after


def range_until(
    chain: Chain, cycle: Cycle, member: KnownLog, before_ms: int | None
) -> OpenRange | None:
    """The range of a log that ends before a time, or None without new positions.

    Args:
        chain: the chain of the path.
        cycle: the run.
        member: the log.
        before_ms: commits up to this time are in the range, or None for an empty range.

    Raises:
        SparkWalError: the log is unreadable.
        MovedOn: another process changed the lifecycle first.
    """
    state = cycle.state(member)
    if before_ms is None:
        return None
    with chain.unless_moved_on(cycle.record):
        to = first_at_or_after(member.log, member.live_head, before_ms + 1, start=state.start)
    if to <= state.start:
        return None
    range_ = OpenRange(member.log.name, state.log_id, state.start, to)
    # SAFETY(marked-read-first) §10: a log that could not be read is promised when all its rows can
    if state.unreadable and (errors := unreadable(member.log.root, [range_])):
        raise next(iter(errors.values()))
    return range_


def promise(
    chain: Chain,
    cycle: Cycle,
    ranges: Sequence[OpenRange],
    table: Table,
    gc_grace_ms: int,
) -> ChainRecord | None:
    """Put the intent for the ranges of all logs that the table takes.

    Args:
        chain: puts the record.
        cycle: the run. A log that the table does not take gets its error.
        ranges: one for each log.
        table: the table. It has no open range.
        gc_grace_ms: the grace, if it is longer than that of the chain.

    Returns:
        The new record, or None if the table takes none of the logs.

    Raises:
        PlanError: the table holds ranges that the lifecycle does not have.
        ConfirmError: the table may have lost rows.
        MovedOn: another process changed the lifecycle first.
    """
    record = cycle.record
    before = record.promise(table.target.table)
    assert not (before and before.is_open) and all(range_.to > range_.cut for range_ in ranges)
    if before is not None:
        # Before `prepare`, which would create an empty table if the table was dropped.
        confirm_table(chain, record, table)
    logs = [cycle.logs[range_.sequencer] for range_ in ranges]
    _prepare(logs, table, is_first=before is None)
    ranges = _fitting(cycle, ranges)
    if ranges:
        _check_rows(chain, cycle, ranges, table)
        ranges = _fitting(cycle, ranges)
    if not ranges:
        return None
    in_chain = before.table if before else _new_table(chain, record, ranges, table)
    record = promised(record, in_chain, ranges, gc_grace_ms)
    return put_promise(chain, record, table)


def _fitting(cycle: Cycle, ranges: Sequence[OpenRange]) -> list[OpenRange]:
    """The ranges of the logs without an error."""
    return [range_ for range_ in ranges if cycle.logs[range_.sequencer].error is None]


def _check_rows(chain: Chain, cycle: Cycle, ranges: Sequence[OpenRange], table: Table) -> None:
    """Check that the table takes the rows of all logs, and if not, those of each.

    Raises:
        MovedOn: another process changed the lifecycle first.
    """
    logs = [cycle.logs[range_.sequencer] for range_ in ranges]
    union = union_of((member.schema, f"sequencer {member.log.name}") for member in logs)
    try:
        with chain.unless_moved_on(cycle.record):
            table.check_rows(_planned(cycle.record, ranges, table), union)
    except (PlanError, ReadError) as error:
        if len(logs) == 1:
            logs[0].error = error
            return
        for member, range_ in zip(logs, ranges, strict=True):
            with noted(member):
                table.check_rows(_planned(cycle.record, [range_], table), member.schema)


def _planned(record: ChainRecord, ranges: Sequence[OpenRange], table: Table) -> Promise:
    """The promise of these ranges, before it is put."""
    before = record.promise(table.target.table)
    in_chain = before.table if before else TableInChain(table.target, ranges[0].log_id, 0)
    return promise_to(promised(record, in_chain, ranges, record.gc_grace_ms), table)


def _prepare(logs: Sequence[KnownLog], table: Table, *, is_first: bool) -> None:
    """Check the table for the columns of all logs, and then of each: one may lack what others have.

    A log that does not fit gets its error.
    """
    union = logs[0].schema
    try:
        union = union_of((member.schema, f"sequencer {member.log.name}") for member in logs)
        table.prepare(logs[0].log, union, first=is_first)
        if {member.schema for member in logs} == {union}:
            return
    except (OptionError, PlanError, ReadError) as error:
        if len(logs) == 1:
            logs[0].error = error
            return
    union = ""
    checked: dict[str, SparkWalError | None] = {}
    for member in logs:
        columns = member.schema
        if columns not in checked:
            with noted(member):
                table.prepare(member.log, columns, first=is_first)
                union = union_of([(union or columns, "the others"), (columns, member.log.url)])
            checked[columns] = member.error
        member.error = checked[columns]


def _new_table(
    chain: Chain, record: ChainRecord, ranges: Sequence[OpenRange], table: Table
) -> TableInChain:
    """The table before its first range.

    Raises:
        PlanError: the table holds ranges that the lifecycle does not have.
        MovedOn: another process changed the lifecycle first.
    """
    app_id = ranges[0].log_id
    snapshot = table.snapshot(app_id, None)
    if snapshot is None:
        url = table.target.table
        raise PlanError(f"{url} was just created and does not exist; run it again")
    # Another process may have written the first range meanwhile.
    with chain.unless_moved_on(record):
        if snapshot.k:
            raise PlanError(
                f"{table.target.table} holds {snapshot.k} ranges of this log, and the log's "
                "lifecycle has none: its records were deleted, or the log was restored from an "
                "older copy. Name a new table"
            )
    if (tombstones := tombstones_of(table)) is not None:
        snapshot = replace(snapshot, tombstones=tombstones.snapshot(app_id, None))
    in_chain = TableInChain(table.target, app_id, 0, table_id=snapshot.table_id)
    return confirmed(in_chain, snapshot)
