"""Accepts a table that a person restored, overwrote or compared with the log.

The number of a range survives a restore: it shows which ranges were written, but only the history
shows which are still in the table.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from sparkwal.errors import PlanError
from sparkwal.format.lifecycle_record import INTENT, BesideTable, ChainRecord, Promise
from sparkwal.lifecycle.cycle import promise_to, put_done, put_promise
from sparkwal.lifecycle.table import (
    Beside,
    Change,
    Held,
    Refused,
    Table,
    TableConflict,
    TableState,
    Tombstones,
    confirmed,
    is_as_promised,
    refused_of,
    snapshot_of_refused,
    snapshot_of_tombstones,
    tombstones_of,
    way_back,
)
from sparkwal.protocol.chain import Chain, MovedOn
from sparkwal.protocol.lifecycle_steps import moved, with_table


def accept(chain: Chain, record: ChainRecord, table: Table, former: str) -> ChainRecord:
    """Accept the present table, after a person restored, overwrote or moved it: 1 conditional PUT.

    The person guarantees that the table holds all rows below the cut. It may also hold the open
    range, and no other rows of the log.

    If the open range was removed, this promises it again as a number that the table has not seen. A
    process that still writes the old number is harmless, because the table has taken that number
    and ignores the write.

    Args:
        chain: puts the record.
        record: the newest record.
        table: the table.
        former: its URL in the record. A table at another place must be the same one.

    Raises:
        PlanError: the table's history contradicts the guarantee, or the table was restored to a
            version before the confirmed one. A range may have been confirmed after the person chose
            that version.
        MovedOn: another process changed the lifecycle first.
    """
    is_moved = former != table.target.table
    if is_moved:
        record = moved(record, former, table.target)
    promise = promise_to(record, table.target)
    in_chain = promise.table
    history = table.held(in_chain.app_id, in_chain.table_version, promise.confirmed_k)
    if history is not None and is_moved:
        _check_moved(promise, history, former)
    if history is None or history.table.k < promise.confirmed_k:
        why = "it does not exist" if history is None else f"its last range is {history.table.k}"
        raise PlanError(
            f"{table.target.table} cannot be accepted as the table that holds range "
            f"{promise.confirmed_k} of {chain.log.url}: {why}"
        )
    # SAFETY(restore-not-before) §10: a restore to before the confirmed version is refused
    if history.unknown:
        raise _cannot_accept(promise, history.unknown)
    snapshot = history.table
    # SAFETY(kept-range-done) §10: an open range that the restored table holds is published as done
    newer = history.ranges
    _check_newer(promise, newer)
    # SAFETY(accepted-aside-burned) §10: which rows step aside may be lost, so nobody may write the
    # range under its number
    if promise.is_aside and not newer and snapshot.k < in_chain.k:
        with suppress(TableConflict):
            table.burn(promise)
        raise MovedOn
    # SAFETY(lost-range-new-k) §10: an open range that a restore took away is promised again under a
    # higher k
    k = snapshot.k + 1 if promise.is_open else snapshot.k
    if is_moved:
        _check_moved_beside(promise, table, former)
    snapshot = _accept_beside(promise, table, snapshot, k, is_range_written=bool(newer))
    restored = replace(confirmed(in_chain, snapshot), table_id=snapshot.table_id)
    if newer:
        return put_done(chain, record, promise, restored, snapshot)
    record = with_table(record, replace(restored, k=k))
    return put_promise(chain, record, table.target) if record.kind == INTENT else chain.put(record)


def _check_moved(promise: Promise, history: Held, former: str) -> None:
    """Check that the table at another place is that of the chain.

    Raises:
        PlanError: it is another one.
    """
    # §10: a table at another place has the id that the first intent found
    if history.table.table_id != promise.table.table_id:
        raise PlanError(
            f"{promise.target.table} is not {former}, moved: it is table "
            f"{history.table.table_id}, and that was {promise.table.table_id}. Give the table's "
            "folder, moved or copied as it is"
        )


def _check_newer(promise: Promise, newer: Sequence[Change]) -> None:
    """Check that the ranges since the confirmed version are the open one, or none.

    Raises:
        PlanError: there are others.
    """
    ks = [change.k for change in newer]
    is_promised = promise.is_open and ks == [promise.table.k] and is_as_promised(promise, newer[0])
    if newer and not is_promised:
        raise _cannot_accept(
            promise,
            f"it holds the ranges {ks} of the log, from position {newer[0].cut} on, which the "
            "lifecycle does not have",
        )


def _check_moved_beside(promise: Promise, table: Table, former: str) -> None:
    """Check that tombstones and refused rows moved with their table.

    Raises:
        PlanError: they are missing at the new place, or are others.
    """
    beside_tables = []
    if table.tombstones is not None:
        beside_tables.append(
            (tombstones_of(promise), snapshot_of_tombstones(promise, table.tombstones))
        )
    if promise.table.refused is not None and table.refused is not None:
        beside_tables.append((refused_of(promise), snapshot_of_refused(promise, table.refused)))
    for beside, snapshot in beside_tables:
        if snapshot is None or snapshot.table_id != beside.confirmed.table_id:
            was = former + beside.url.removeprefix(promise.target.table)
            raise PlanError(f"{beside.url} is not {was}, moved: move that folder there too")


def _accept_beside(
    promise: Promise, table: Table, snapshot: TableState, k: int, *, is_range_written: bool
) -> TableState:
    """The snapshot of the table with those of its refused rows and tombstones, which are accepted.

    Args:
        promise: that of the newest record of the chain.
        table: the table.
        snapshot: its newest snapshot.
        k: as for `_accept_tombstones`.
        is_range_written: whether the table holds the open range.

    Raises:
        PlanError: one of them does not fit the chain.
    """
    if promise.table.refused is not None and table.refused is not None:
        now = _accept_refused(promise, table.refused, is_range_written=is_range_written)
        snapshot = replace(snapshot, refused=now)
        # The tombstones of a range are those of its rows without these.
        refused = BesideTable(now.table_id, now.version)
        promise = replace(promise, table=replace(promise.table, refused=refused))
    if table.tombstones is not None:
        now = _accept_tombstones(promise, table.tombstones, k, is_range_written=is_range_written)
        snapshot = replace(snapshot, tombstones=now)
    return snapshot


def _cannot_accept(promise: Promise, why: str) -> PlanError:
    return PlanError(f"{promise.target.table} cannot be accepted: {why}. {way_back(promise)}")


def _accept_tombstones(
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
    beside = tombstones_of(promise)
    history = tombstones.held(promise.table.app_id, beside.confirmed.version)
    tombstones.prepare()
    if history is not None and history.table.table_id == beside.confirmed.table_id:
        _check_accepted(promise, beside, history)
    now = snapshot_of_tombstones(promise, tombstones)
    assert now is not None
    # SAFETY(tombstones-again) §10: if accepted tombstones have the transaction of the open range,
    # its keys are written again: a restore may have removed them
    if promise.is_open and (is_range_written or now.k >= k):
        table = promise.table if is_range_written else replace(promise.table, k=k)
        tombstones.write(replace(promise, table=table), is_repeated=True)
    if is_range_written:
        now = snapshot_of_tombstones(promise, tombstones)
        assert now is not None
    return now


def _accept_refused(promise: Promise, refused: Refused, *, is_range_written: bool) -> TableState:
    """Take the refused rows as they are, and make a new table if there is none.

    Args:
        promise: that of the newest record of the chain.
        refused: the table of refused rows.
        is_range_written: whether the table holds the open range.

    Returns:
        The snapshot that the next record confirms.

    Raises:
        PlanError: they belong to another table, or their history contradicts the chain.
    """
    beside = refused_of(promise)
    history = refused.held(promise.table.app_id, beside.confirmed.version)
    refused.prepare()
    ranges: list[int] = []
    if history is not None and history.table.table_id == beside.confirmed.table_id:
        _check_accepted(promise, beside, history)
        ranges = [change.k for change in history.ranges]
    # SAFETY(aside-not-lost) §10: a range whose rows stepped aside is done only if those rows are
    # there
    if is_range_written and promise.is_aside and promise.table.k not in ranges:
        raise _cannot_accept(
            promise,
            f"it holds range {promise.table.k}, and {beside.url} lacks the rows that stepped aside "
            "from it. Restore that table to a version with them, or this one to a version without "
            "the range",
        )
    now = snapshot_of_refused(promise, refused)
    assert now is not None
    return now


def _check_accepted(promise: Promise, beside: Beside, history: Held) -> None:
    """Compare the history of a table beside the table with the chain.

    Raises:
        PlanError: it holds less than at its confirmed version, or a range that the chain lacks.
    """
    url, confirmed = beside.url, beside.confirmed.version
    why = history.unknown
    if history.overwrite is not None:
        why = f"version {history.overwrite.version} is a {history.overwrite.operation}"
    if why:
        raise PlanError(
            f"{url} may hold less than its version {confirmed}: {why}. {beside.way_back()}"
        )
    if unknown := sorted({change.k for change in history.ranges if change.k > promise.table.k}):
        raise PlanError(f"{url} holds ranges {unknown}, which the chain lacks. {beside.way_back()}")
