"""Writes one range of a log into its table, exactly once, despite crashes at any step.

    intent → write → confirm → publish

The intent fixes the range before the first row is written, so every process writes the same rows.
The table's transaction (log_id, k) prevents a second write. A range is done after the table was
read again and holds it. Any process can finish a range that a crashed process left open.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from sparkwal import events
from sparkwal.errors import ConfirmError, PlanError, WriteError
from sparkwal.format.lifecycle_record import INTENT, ChainRecord, Promise, TableInChain
from sparkwal.lifecycle.table import (
    Table,
    TableConflict,
    TableState,
    Tombstones,
    check_history,
    confirmed,
    holds_open_range,
    is_as_promised,
    is_burned,
    snapshot_of,
    way_back,
)
from sparkwal.lifecycle.tombstones import accept_tombstones, check_tombstones
from sparkwal.protocol.chain import Chain
from sparkwal.protocol.lifecycle_steps import burned, done, with_table

# Attempts to write a range while other writers of the table commit first.
CONFLICTS = 8
# The first pause after such a conflict, in seconds.
_FIRST_PAUSE = 0.5


def tombstones_of(table: Table) -> Tombstones | None:
    """The tombstones of the table, if its target keeps them and this process reads them."""
    return table.tombstones if table.target.keeps_tombstones else None


def promise_to(record: ChainRecord, table: Table) -> Promise:
    """The promise of a record to a table, which has one."""
    promise = record.promise(table.target.table)
    assert promise is not None
    return promise


@dataclass(frozen=True)
class Range:
    """A range of the log that is in the table: positions start … end−1.

    Attributes:
        k: the range's number.
        table_version: the table's version after it.
        rows, bytes: the rows, and their bytes as stored in the table; None if unknown.
    """

    k: int
    start: int
    end: int
    table_version: int
    rows: int | None = None
    bytes: int | None = None


def put_promise(chain: Chain, record: ChainRecord, table: Table) -> ChainRecord:
    """Put a record that promises a range to the table, and emit an event for each log of it.

    Raises:
        PublishError: the store did not answer.
        MovedOn: another process put a record first.
    """
    record = chain.put(record)
    promise = promise_to(record, table)
    for range_ in promise.ranges:
        url = chain.log.root.sequencer(range_.sequencer).url
        events.emit(events.CompactionPlanned(url, promise.table.k, range_.cut, range_.to))
    return record


def _put_done(chain: Chain, record: ChainRecord, table: TableInChain) -> ChainRecord:
    """Put the record that closes the open range, and emit an event for each log of it."""
    promise = record.promise(table.target.table)
    assert promise is not None
    record = chain.put(done(record, table))
    for range_ in promise.ranges:
        url = chain.log.root.sequencer(range_.sequencer).url
        version = table.table_version
        events.emit(events.CompactionDone(url, table.k, range_.to, table.target.table, version))
    return record


def publish_range(
    chain: Chain,
    record: ChainRecord,
    table: Table,
    snapshot: TableState,
    bad: Collection[str] = (),
) -> tuple[ChainRecord, dict[str, Range]]:
    """Publish the open range as done, or as given up if the table has it burned.

    Args:
        chain: puts the record.
        record: the newest record, with the open range.
        table: the table.
        snapshot: the newest snapshot of the table, which has the transaction of the range.
        bad: the logs that cannot be read, if the range was burned.

    Returns:
        The new record, and the range of each log; none if the range was burned. The rows and bytes
        are known of a range of one log.

    Raises:
        PublishError: the store did not answer.
        MovedOn: another process changed the lifecycle first.
    """
    promise = promise_to(record, table)
    now = confirmed(promise.table, snapshot)
    if is_burned(promise, snapshot):
        return chain.put(burned(record, now, bad)), {}
    record = _put_done(chain, record, now)
    sizes = {(change.log_id, change.k): (change.rows, change.bytes) for change in snapshot.changes}
    rows, size = sizes.get(promise.range_id, (None, None))
    if len(promise.ranges) > 1:
        rows = size = None
    return record, {
        part.sequencer: Range(now.k, part.cut, part.to, snapshot.version, rows, size)
        for part in promise.ranges
    }


def write_range(chain: Chain, record: ChainRecord, table: Table) -> TableState:
    """Write until the newest snapshot holds the range, and return that snapshot.

    Raises:
        ReadError: the log's rows are unreadable.
        WriteError: the table did not take them.
        ConfirmError: the table may have lost rows.
        MovedOn: another process changed the lifecycle first.
    """
    promise = promise_to(record, table)
    attempts = 0
    while (snapshot := confirm_table(chain, record, table)).k != promise.table.k:
        if attempts == CONFLICTS:
            raise busy(table)
        attempts += 1
        # The write may be repeated: the table takes each transaction once.
        # SAFETY(read-table-after-write) §10: a range is published only after the table was read
        # again
        # SAFETY(range-is-fixed) §10: every process writes exactly [cut, to) of an open range
        try:
            with chain.unless_moved_on(record):
                # SAFETY(tombstones-first) §10: the keys that a range deletes are written
                # before its rows
                version = _write_tombstones(promise, table, snapshot.tombstones)
                table.write(promise, *version)
        except TableConflict as conflict:
            events.emit(events.CompactionRetried(chain.log.url, promise.table.k, str(conflict)))
            if attempts < CONFLICTS:
                chain.clock.sleep(_FIRST_PAUSE * 2 ** (attempts - 1))
    return snapshot


def busy(table: Table) -> WriteError:
    """The error after too many conflicts with other writers of the table."""
    return WriteError(
        f"other writers of {table.target.table} committed first {CONFLICTS} times; run it "
        "again after they end (maintenance of the table, or another job)"
    )


def _write_tombstones(
    promise: Promise, table: Table, snapshot: TableState | None
) -> tuple[int, ...]:
    """Write the keys that the open range deletes, unless an earlier process did.

    Returns:
        The version of the tombstones that holds them; empty if the table keeps none.

    Raises:
        TableConflict: another writer committed first.
        CompactionError: the tombstones do not hold them.
    """
    if snapshot is None or table.tombstones is None:
        return ()
    if promise.range_id not in [(change.log_id, change.k) for change in snapshot.changes]:
        table.tombstones.write(promise)
        in_chain = promise.table
        snapshot = table.tombstones.snapshot(in_chain.app_id, in_chain.tombstones_version)
        check_tombstones(promise, snapshot, is_range_written=True)
        assert snapshot is not None
    return (snapshot.version,)


def confirm_table(chain: Chain, record: ChainRecord, table: Table) -> TableState:
    """Read the newest snapshot of the table, and check that it holds all confirmed ranges.

    The snapshot may also hold the open range.

    Raises:
        ConfirmError: the table may have lost rows.
        MovedOn: another process changed the lifecycle meanwhile.
    """
    promise = promise_to(record, table)
    confirmed_k, k = promise.confirmed_k, promise.table.k
    snapshot = snapshot_of(promise, table)
    with chain.unless_moved_on(record):
        check_history(promise, snapshot)
        assert snapshot is not None
        # SAFETY(table-knows-k) §10: the table's last range is the confirmed one or the open one
        if snapshot.k not in (confirmed_k, k):
            raise ConfirmError(
                f"the last range of the log in {table.target.table} is {snapshot.k}, and it must "
                f"be {confirmed_k} or {k}: the table forgot its transactions, or the log was "
                "restored from an older copy"
            )
        if (tombstones := tombstones_of(table)) is not None:
            # Read after the table, which they may not be behind.
            in_chain = promise.table
            now = tombstones.snapshot(in_chain.app_id, in_chain.tombstones_version)
            is_written = holds_open_range(promise, snapshot)
            check_tombstones(promise, now, is_range_written=is_written)
            snapshot = replace(snapshot, tombstones=now)
    return snapshot


def accept(chain: Chain, record: ChainRecord, table: Table) -> ChainRecord:
    """Accept the present table, after a person restored or overwrote it: 1 conditional PUT.

    The person guarantees that the table holds all rows below the cut. It may also hold the open
    range, and no other rows of the log.

    The number of a range survives a restore: it shows which ranges were written, but only the
    history shows which are still in the table. If the open range was removed, this promises it
    again as a number that the table has not seen. A process that still writes the old number is
    harmless, because the table has taken that number and ignores the write.

    Raises:
        PlanError: the table's history contradicts the guarantee, or the table was restored to a
            version before the confirmed one. A range may have been confirmed after the person chose
            that version.
        MovedOn: another process changed the lifecycle first.
    """
    promise = promise_to(record, table)
    in_chain = promise.table
    held = table.held(in_chain.app_id, in_chain.table_version, promise.confirmed_k)
    if held is None or held.table.k < promise.confirmed_k:
        why = "it does not exist" if held is None else f"its last range is {held.table.k}"
        raise PlanError(
            f"{table.target.table} cannot be accepted as the table that holds range "
            f"{promise.confirmed_k} of {chain.log.url}: {why}"
        )
    # SAFETY(restore-not-before) §10: a restore to before the confirmed version is refused
    if held.unknown:
        raise _cannot_accept(promise, held.unknown)
    snapshot = held.table
    # SAFETY(kept-range-done) §10: an open range that the restored table holds is published as done
    newer = held.ranges
    if newer:
        ks = [change.k for change in newer]
        first = newer[0]
        is_promised = is_as_promised(promise, first)
        if not (promise.is_open and ks == [in_chain.k] and is_promised):
            raise _cannot_accept(
                promise,
                f"it holds the ranges {ks} of the log, from position {first.cut} on, which the "
                "lifecycle does not have",
            )
    # SAFETY(lost-range-new-k) §10: an open range that a restore took away is promised again under a
    # higher k
    k = snapshot.k + 1 if promise.is_open else snapshot.k
    if (tombstones := tombstones_of(table)) is not None:
        now = accept_tombstones(promise, tombstones, k, is_range_written=bool(newer))
        snapshot = replace(snapshot, tombstones=now)
    restored = replace(confirmed(in_chain, snapshot), table_id=snapshot.table_id)
    if newer:
        return _put_done(chain, record, restored)
    record = with_table(record, replace(restored, k=k))
    return put_promise(chain, record, table) if record.kind == INTENT else chain.put(record)


def _cannot_accept(promise: Promise, why: str) -> PlanError:
    return PlanError(f"{promise.target.table} cannot be accepted: {why}. {way_back(promise)}")
