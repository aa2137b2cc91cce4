"""Promises ranges of logs to a table, before a row of them is written.

A promised range must reach the table, or be given up. So each log is checked before the promise. Of
several logs, a log that does not fit is left out: it stops no other.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sparkwal.errors import OptionError, PlanError, ReadError, SparkWalError
from sparkwal.format.lifecycle_record import INTENT, LifecycleRecord, OpenRange, Target
from sparkwal.format.merging import union_of
from sparkwal.lifecycle.compaction import (
    Chain,
    confirm_table,
    tombstones_of,
    unless_moved_on,
    versions_of,
)
from sparkwal.lifecycle.cycle import Part, noted
from sparkwal.lifecycle.giving_up import unreadable
from sparkwal.lifecycle.table import NEWEST, Table
from sparkwal.protocol.records import first_at_or_after


def range_until(part: Part, before_ms: int | None) -> OpenRange | None:
    """The range of a log that ends before a time, or None without new positions.

    Args:
        part: the log.
        before_ms: commits up to this time are in the range, or None for an empty range.

    Raises:
        SparkWalError: the log is unreadable.
        MovedOn: another process changed the lifecycle first.
    """
    state = part.state
    if before_ms is None:
        return None
    with unless_moved_on(part.log, state):
        to = first_at_or_after(part.log, part.head, before_ms + 1, start=state.cut)
    if to <= state.cut:
        return None
    range_ = OpenRange(part.log.name, state.log_id, state.cut, to)
    # SAFETY(marked-read-first) §10: a log that could not be read is promised when all its rows can
    if state.unreadable and (errors := unreadable(part.log.root, [range_])):
        raise next(iter(errors.values()))
    return range_


def promise(
    chain: Chain,
    parts: Sequence[Part],
    ranges: Sequence[OpenRange],
    target: Target,
    table: Table,
    *,
    several: bool,
) -> LifecycleRecord | None:
    """Put the intent for the ranges of all logs that the table takes.

    Args:
        chain: puts the record.
        parts: the logs. One that the table does not take gets its error.
        ranges: one for each of them.
        target: the table.
        table: the same table.
        several: other logs wait for the run.

    Returns:
        The part of one of these logs in the new record, or None if the table takes none of them.

    Raises:
        PlanError: the table holds ranges that the lifecycle does not have, or the only log does not
            fit the table.
        ReadError: the only log is unreadable.
        ConfirmError: the table may have lost rows.
        MovedOn: another process changed the lifecycle first.
    """
    head = parts[0].state
    assert not head.is_open and all(range_.to > range_.cut for range_ in ranges)
    if head.k:
        # Before `prepare`, which would create an empty table if the table was dropped.
        confirm_table(chain.log, head, table)
    _prepare(parts, table, is_first=not head.k, several=several)
    fitting, ranges = _fitting(parts, ranges)
    if fitting:
        _check_rows(fitting, ranges, target, table, several=several)
        fitting, ranges = _fitting(fitting, ranges)
    if not fitting:
        return None
    chain = replace(chain, log=fitting[0].log)
    return _put_intent(chain, fitting[0].state, ranges, target, table)


def _fitting(
    parts: Sequence[Part], ranges: Sequence[OpenRange]
) -> tuple[list[Part], list[OpenRange]]:
    """The logs without an error, and their ranges."""
    names = {part.log.name for part in parts if part.error is None}
    fitting = [part for part in parts if part.log.name in names]
    return fitting, [range_ for range_ in ranges if range_.sequencer in names]


def _check_rows(
    parts: Sequence[Part],
    ranges: Sequence[OpenRange],
    target: Target,
    table: Table,
    *,
    several: bool,
) -> None:
    """Check that the table takes the rows of all logs, and if not, those of each.

    Raises:
        PlanError, ReadError: the table does not take a row of the only log, or it is unreadable.
        MovedOn: another process changed the lifecycle first.
    """
    schemas = [part.head.live.spark_schema if part.head.live else "" for part in parts]
    named = zip(schemas, ranges, strict=True)
    union = union_of((text, f"sequencer {range_.sequencer}") for text, range_ in named)
    try:
        with unless_moved_on(parts[0].log, parts[0].state):
            intent = replace(
                parts[0].state, kind=INTENT, **_promised(parts[0].state, ranges, target)
            )
            table.check_rows(intent, union)
    except (PlanError, ReadError):
        if not several:
            raise
        by_log = {range_.sequencer: range_ for range_ in ranges}
        for part, columns in zip(parts, schemas, strict=True):
            changes = _promised(part.state, [by_log[part.log.name]], target)
            with noted(part, several=True):
                table.check_rows(replace(part.state, kind=INTENT, **changes), columns)


def _promised(head: LifecycleRecord, ranges: Sequence[OpenRange], target: Target) -> dict[str, Any]:
    """The fields of the intent for these ranges, one of which is of the log of `head`."""
    own = next(range_ for range_ in ranges if range_.sequencer == head.sequencer)
    others = tuple(range_ for range_ in ranges if range_ is not own)
    return {"k": head.k + 1, "to": own.to, "target": target, "others": others}


def _prepare(parts: Sequence[Part], table: Table, *, is_first: bool, several: bool) -> None:
    """Check the table for the columns of all logs, and then of each: one may lack what others have.

    Raises:
        OptionError, PlanError, ReadError: the only log does not fit the table.
    """
    schemas = {part.log.name: part.head.live.spark_schema for part in parts if part.head.live}
    try:
        union = union_of((text, f"sequencer {name}") for name, text in schemas.items())
        table.prepare(parts[0].log, union, first=is_first)
        if {*schemas.values()} == {union}:
            return
    except (OptionError, PlanError, ReadError):
        if not several:
            raise
    union = ""
    checked: dict[str, SparkWalError | None] = {}
    for part in parts:
        columns = schemas[part.log.name]
        if columns not in checked:
            with noted(part, several=several):
                table.prepare(part.log, columns, first=is_first)
                union = union_of([(union or columns, "the others"), (columns, part.log.url)])
            checked[columns] = part.error
        part.error = checked[columns]


def _put_intent(
    chain: Chain,
    head: LifecycleRecord,
    ranges: Sequence[OpenRange],
    target: Target,
    table: Table,
) -> LifecycleRecord:
    """Put the intent for a range of each of these logs.

    Args:
        chain: puts the record.
        head: the part of one of these logs in the newest record, with the table's state.
        ranges: one for each log, also for that of `head`.
        target: the table.
        table: the same table.

    Raises:
        PlanError: the table holds ranges that the lifecycle does not have.
        MovedOn: another process changed the lifecycle first.
    """
    changes = _promised(head, ranges, target)
    if not head.k:
        snapshot = table.snapshot(head.txn_id, NEWEST)
        if snapshot is None:
            raise PlanError(f"{target.table} was just created and does not exist; run it again")
        # Another process may have written the first range meanwhile.
        with unless_moved_on(chain.log, head):
            if snapshot.k:
                raise PlanError(
                    f"{target.table} holds {snapshot.k} ranges of this log, and the log's "
                    "lifecycle has none: its records were deleted, or the log was restored from an "
                    "older copy. Name a new table"
                )
        if (tombstones := tombstones_of(table, target)) is not None:
            snapshot = replace(snapshot, tombstones=tombstones.snapshot(head.txn_id, NEWEST))
        changes |= {"table_id": snapshot.table_id, **versions_of(snapshot)}
    return chain.put(head, INTENT, **changes)
