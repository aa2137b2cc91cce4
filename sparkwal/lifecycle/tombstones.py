"""The tombstones of a table: the sequence of each deleted key, in a table of its format beside it.

A MERGE removes the row of a deleted key, and with it the sequence of the delete. An older row that
arrives in a later range would bring the key back. So compaction writes the keys that a range
deletes into this table first, and drops rows that are older than the tombstone of their key.
"""

from dataclasses import replace

from sparkwal.errors import ConfirmError, PlanError
from sparkwal.format.lifecycle_record import Promise, Target
from sparkwal.lifecycle.table import Held, TableState, Tombstones

# Columns of the tombstones, besides the keys; no column of a log has such a name.
SEQUENCE = "_wal_sequence"
DELETED_AT = "_wal_deleted_at"
# The property that names the table whose keys these are.
OWNER = "sparkwal.tombstonesOf"


def check_tombstones(
    promise: Promise, snapshot: TableState | None, *, is_range_written: bool
) -> None:
    """Check that the tombstones hold all that the lifecycle relies on.

    They may be ahead of the table, which gets the same range next. They may not be behind.

    Args:
        promise: that of the newest record of the chain.
        snapshot: the newest snapshot of the tombstones, or None if there are none.
        is_range_written: whether the table holds the open range.

    Raises:
        ConfirmError: tombstones may be missing.
    """
    url, table = promise.target.tombstones, promise.target.table
    if snapshot is None:
        raise _missing(promise, f"{url}, which keeps the deleted keys of {table}, is missing")
    if snapshot.table_id != promise.table.tombstones_id:
        raise _missing(
            promise,
            f"{url}, which keeps the deleted keys of {table}, was dropped and recreated: it is "
            f"table {snapshot.table_id}, and was {promise.table.tombstones_id}",
        )
    if not snapshot.complete:
        before = f"version {promise.table.tombstones_version}, the last confirmed one"
        raise _missing(promise, f"the history of {url} does not reach back to {before}")
    # SAFETY(tombstones-undo-nothing) §10: no version of the tombstones since the confirmed one may
    # have taken keys away
    for change in snapshot.changes:
        if change.undoes:
            what = f"version {change.version} of {url} is a {change.operation}"
            raise _missing(promise, f"{what}: deleted keys of {table} may be missing")
    ranges = [x.k for x in snapshot.changes if x.log_id == promise.table.app_id and x.k]
    # A slow writer may bring those of a range that was given up: the log still has their rows.
    if max(ranges, default=0) > promise.table.k:
        raise _missing(
            promise,
            f"{url} holds the ranges {ranges} of the log since version "
            f"{promise.table.tombstones_version}, and the last one promised is {promise.table.k}",
        )
    # §10: the tombstones hold each range that the table holds
    if is_range_written and promise.is_open and promise.table.k not in ranges:
        raise _missing(
            promise, f"{table} holds range {promise.table.k} of the log, and {url} does not"
        )


def accept_tombstones(
    promise: Promise, tombstones: Tombstones, k: int, *, is_range_written: bool
) -> TableState:
    """Take the tombstones as they are, and make new ones if there are none.

    Args:
        promise: that of the newest record of the chain.
        tombstones: those of the table.
        k: the number under which an open range that the table lacks is promised from now on.
        is_range_written: whether the table holds the open range.

    Returns:
        The snapshot that the next record confirms.

    Raises:
        PlanError: they belong to another table, or their history contradicts the chain.
    """
    held = tombstones.held(promise.table.app_id, promise.table.tombstones_version)
    tombstones.prepare()
    if held is not None and held.table.table_id == promise.table.tombstones_id:
        _check_accepted(promise, held)
    now = tombstones.snapshot(promise.table.app_id, promise.table.tombstones_version)
    assert now is not None
    # SAFETY(tombstones-again) §10: if accepted tombstones have the transaction of the open range,
    # its keys are written again: a restore may have removed them
    if promise.is_open and (is_range_written or now.k >= k):
        table = promise.table if is_range_written else replace(promise.table, k=k)
        tombstones.write(replace(promise, table=table), is_repeated=True)
    if is_range_written:
        now = tombstones.snapshot(promise.table.app_id, promise.table.tombstones_version)
        assert now is not None
    return now


def _check_accepted(promise: Promise, held: Held) -> None:
    """Compare the history of the tombstones with the chain.

    Raises:
        PlanError: they hold less than at their confirmed version, or a range that the chain lacks.
    """
    url, confirmed = promise.target.tombstones, promise.table.tombstones_version
    why = held.unknown
    if held.overwrite is not None:
        why = f"version {held.overwrite.version} is a {held.overwrite.operation}"
    if why:
        raise PlanError(f"{url} may hold less than its version {confirmed}: {why}. {_way(promise)}")
    if unknown := sorted({each.k for each in held.ranges if each.k > promise.table.k}):
        raise PlanError(f"{url} holds ranges {unknown}, which the chain lacks. {_way(promise)}")


def _missing(promise: Promise, why: str) -> ConfirmError:
    return ConfirmError(f"{why}. A late row could bring a deleted key back. {_way(promise)}")


def _way(promise: Promise) -> str:
    return (
        f"Restore {promise.target.tombstones} to version {promise.table.tombstones_version}, or "
        "delete its folder, which forgets the keys that were deleted so far; then continue with "
        "--accept-table"
    )


def with_tombstones(target: Target, horizon_ms: int) -> Target:
    """The target with tombstones, if it needs them.

    A row is late only by its sequence, and a key is deleted only by a condition.
    """
    is_needed = bool(target.sequence_by and target.delete_when)
    return replace(target, tombstone_horizon_ms=horizon_ms if is_needed else 0)
