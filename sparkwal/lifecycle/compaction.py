"""Writes one range of a log into its table, exactly once, despite crashes at any step.

    intent → write → confirm → publish

The intent fixes the range before the first row is written, so every process writes the same rows.
The table's transaction (log_id, k) prevents a second write. A range is done after the table was
read again and holds it. Any process can finish a range that a crashed process left open.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwal import events
from sparkwal.errors import (
    CompactionError,
    ConfirmError,
    InvalidLogError,
    PlanError,
    PublishError,
    StoreUnavailableError,
    WriteError,
)
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import (
    BURNED,
    DONE,
    FLOOR,
    INTENT,
    ChainRecord,
    LifecycleRecord,
    LogInChain,
    Target,
    with_log,
)
from sparkwal.lifecycle.table import (
    Change,
    Table,
    TableConflict,
    TableState,
    Tombstones,
    check_history,
    check_same_target,
    holds_open_range,
    is_as_promised,
    is_burned,
    snapshot_of,
    way_back,
)
from sparkwal.lifecycle.tombstones import accept_tombstones, check_tombstones
from sparkwal.protocol.chain import newest_record, put_record, trusted
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore

# Attempts to write a range while other writers of the table commit first.
CONFLICTS = 8
# The first pause after such a conflict, in seconds.
_FIRST_PAUSE = 0.5


class MovedOn(Exception):
    """Another process changed the lifecycle meanwhile: read the chain again and decide again."""


@contextmanager
def unless_moved_on(log: LogStore, state: LifecycleRecord) -> Iterator[None]:
    """Run a step that relies on `state`.

    Raises:
        MovedOn: the step failed, and the chain has a newer record than `state`. The rows that it
            reads may be collected.
    """
    try:
        yield
    except (CompactionError, InvalidLogError) as error:
        now = newest_record(log)
        if (now.number if now else keys.MAX + 1) != state.number:
            raise MovedOn from error
        raise


@dataclass(frozen=True)
class Chain:
    """Puts the records of one log's lifecycle.

    Attributes:
        trusted: the times until which the record after a number is not deleted, by that number.
    """

    log: LogStore
    clock: Clock
    host: str
    trusted: dict[int, int] = field(default_factory=dict, compare=False)

    def newest(self) -> ChainRecord | None:
        """Read the newest record, as `newest_record`."""
        began_ms = self.clock.boot_ms()
        record = newest_record(self.log)
        self._trust(began_ms, record)
        return record

    def _trust(self, began_ms: int, record: ChainRecord | None) -> None:
        self.trusted.clear()
        if record is not None:
            self.trusted[record.number] = trusted(began_ms, record)

    def put(self, head: LifecycleRecord, kind: str, **changes: Any) -> LifecycleRecord:
        """Put the record after `head`, and emit an event for an intent or a finished range.

        Raises:
            PublishError: the store did not answer.
            MovedOn: another process put a record first.
        """
        record = self._put(with_log(head, replace(head, kind=kind, **changes)))
        new = record.of(head.sequencer)
        assert new is not None
        root = self.log.root
        if kind == INTENT:
            for part in new.ranges:
                part_url = root.sequencer(part.sequencer).url
                events.emit(events.CompactionPlanned(part_url, new.k, part.cut, part.to))
        elif kind == DONE and (target := new.target):
            version = new.table_version
            for part in head.ranges:
                part_url = root.sequencer(part.sequencer).url
                table = target.table
                events.emit(events.CompactionDone(part_url, new.k, part.to, table, version))
        return new

    def put_burned(
        self, intent: LifecycleRecord, bad: Collection[str], **changes: Any
    ) -> LifecycleRecord:
        """Put the record that gives an open range up.

        Args:
            intent: the newest record, with the open range.
            bad: the logs of the range that cannot be read. The record marks them.
            changes: other changes of the table.

        Raises:
            PublishError: the store did not answer.
            MovedOn: another process put a record first.
        """
        after = replace(intent, kind=BURNED, to=intent.cut, others=(), **changes)
        base = with_log(intent, after)
        marked = {name: replace(base.logs[name], unreadable=intent.k) for name in bad}
        record = self._put(replace(base, logs={**base.logs, **marked}))
        part = record.of(intent.sequencer)
        assert part is not None
        return part

    def _put(self, base: ChainRecord) -> ChainRecord:
        began_ms = self.clock.boot_ms()
        until_ms = self.trusted.get(base.number)
        try:
            record = put_record(self.log, base, self.clock, self.host, until_ms=until_ms)
        except StoreUnavailableError as error:
            text = f"the record of {self.log.url}'s lifecycle failed: {error}"
            raise PublishError(text) from error
        if record is None:
            raise MovedOn
        self._trust(began_ms, record)
        return record

    def put_logs(
        self,
        states: Sequence[LifecycleRecord],
        changes: Mapping[str, Mapping[str, int]],
        gc_grace_ms: int,
    ) -> ChainRecord:
        """Put a record that changes logs: their floors, or below which positions no row is left.

        Args:
            states: the parts of these logs in the newest record.
            changes: the new fields of `LogInChain`, by the names of the logs.
            gc_grace_ms: the grace from now on.

        Raises:
            PublishError: the store did not answer.
            MovedOn: another process put a record first.
        """
        base = states[0].chain or ChainRecord(gc_grace_ms=gc_grace_ms)
        logs = dict(base.logs)
        for state in states:
            name = state.sequencer
            log = logs.get(name, LogInChain(state.log_id))
            fields: Any = changes[name]
            logs[name] = replace(log, **fields)
        return self._put(replace(base, kind=FLOOR, logs=logs, gc_grace_ms=gc_grace_ms))


def with_target(state: LifecycleRecord, target: Target) -> LifecycleRecord:
    """The state of a log that has no table yet, as one that its next intent gives a table.

    Raises:
        PlanError: another log of the path fills the table in another way.
    """
    # A new table begins at the floor: retention has released the rows below it.
    start = max(state.cut, state.floor)
    state = replace(state, cut=start, to=start)
    table = state.chain.tables.get(target.table) if state.chain else None
    if table is None or state.chain is None:
        return state
    check_same_target(target, table.target)
    return replace(state, **vars(table), others=state.chain.open_ranges(target.table))


def tombstones_of(table: Table, target: Target) -> Tombstones | None:
    """The tombstones of the table, if its target keeps them and this process reads them."""
    return table.tombstones if target.keeps_tombstones else None


def versions_of(snapshot: TableState) -> dict[str, Any]:
    """The fields of a lifecycle record that name a confirmed version of table and tombstones."""
    fields: dict[str, Any] = {"table_version": snapshot.version}
    if (tombstones := snapshot.tombstones) is not None:
        fields["tombstones_id"] = tombstones.table_id
        fields["tombstones_version"] = tombstones.version
    return fields


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


def publish_range(
    chain: Chain, intent: LifecycleRecord, snapshot: TableState, bad: Collection[str] = ()
) -> tuple[LifecycleRecord, dict[str, Range]]:
    """Publish the open range as done, or as given up if the table has it burned.

    Args:
        chain: puts the record.
        intent: the newest record, with the open range.
        snapshot: the newest snapshot of the table, which has the transaction of the range.
        bad: the logs that cannot be read, if the range was burned.

    Returns:
        The log's part of the new record, and the range of each log; none if the range was burned.
        The rows and bytes are known of a range of one log.

    Raises:
        PublishError: the store did not answer.
        MovedOn: another process changed the lifecycle first.
    """
    if is_burned(intent, snapshot):
        return chain.put_burned(intent, bad, **versions_of(snapshot)), {}
    done = chain.put(intent, DONE, cut=intent.to, others=(), **versions_of(snapshot))
    sizes = {(change.log_id, change.k): (change.rows, change.bytes) for change in snapshot.changes}
    rows, size = sizes.get((done.txn_id, done.k), (None, None))
    if intent.others:
        rows = size = None
    return done, {
        part.sequencer: Range(done.k, part.cut, part.to, snapshot.version, rows, size)
        for part in intent.ranges
    }


def write_range(chain: Chain, intent: LifecycleRecord, table: Table) -> TableState:
    """Write until the newest snapshot holds the range, and return that snapshot.

    Raises:
        ReadError: the log's rows are unreadable.
        WriteError: the table did not take them.
        ConfirmError: the table may have lost rows.
        MovedOn: another process changed the lifecycle first.
    """
    log = chain.log
    attempts = 0
    while (snapshot := confirm_table(log, intent, table)).k != intent.k:
        if attempts == CONFLICTS:
            raise busy(intent)
        attempts += 1
        # The write may be repeated: the table takes each transaction once.
        # SAFETY(read-table-after-write) §10: a range is published only after the table was read
        # again
        # SAFETY(range-is-fixed) §10: every process writes exactly [cut, to) of an open range
        try:
            with unless_moved_on(log, intent):
                # SAFETY(tombstones-first) §10: the keys that a range deletes are written
                # before its rows
                version = _write_tombstones(intent, table, snapshot.tombstones)
                table.write(intent, *version)
        except TableConflict as conflict:
            events.emit(events.CompactionRetried(log.url, intent.k, str(conflict)))
            if attempts < CONFLICTS:
                chain.clock.sleep(_FIRST_PAUSE * 2 ** (attempts - 1))
    return snapshot


def busy(intent: LifecycleRecord) -> WriteError:
    """The error after too many conflicts with other writers of the table."""
    assert intent.target is not None
    return WriteError(
        f"other writers of {intent.target.table} committed first {CONFLICTS} times; run it "
        "again after they end (OPTIMIZE, VACUUM, a MERGE or another job)"
    )


def _write_tombstones(
    intent: LifecycleRecord, table: Table, snapshot: TableState | None
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
    ranges = [(change.log_id, change.k) for change in snapshot.changes]
    if (intent.txn_id, intent.k) not in ranges:
        table.tombstones.write(intent)
        snapshot = table.tombstones.snapshot(intent.txn_id, intent.tombstones_version)
        check_tombstones(intent, snapshot, is_range_written=True)
        assert snapshot is not None
    return (snapshot.version,)


def confirm_table(log: LogStore, state: LifecycleRecord, table: Table) -> TableState:
    """Read the newest snapshot of the table, and check that it holds all confirmed ranges.

    The snapshot may also hold the open range.

    Raises:
        ConfirmError: the table may have lost rows.
        MovedOn: another process changed the lifecycle meanwhile.
    """
    confirmed_k = state.confirmed_k
    snapshot = snapshot_of(state, table)
    with unless_moved_on(log, state):
        check_history(state, snapshot)
        assert snapshot is not None and state.target is not None
        # SAFETY(table-knows-k) §10: the table's last range is the confirmed one or the open one
        if snapshot.k not in (confirmed_k, state.k):
            raise ConfirmError(
                f"the last range of the log in {state.target.table} is {snapshot.k}, and it must "
                f"be {confirmed_k} or {state.k}: the table forgot its transactions, or the log was "
                "restored from an older copy"
            )
        if (tombstones := tombstones_of(table, state.target)) is not None:
            # Read after the table, which they may not be behind.
            now = tombstones.snapshot(state.txn_id, state.tombstones_version)
            is_written = holds_open_range(state, snapshot)
            check_tombstones(state, now, is_range_written=is_written)
            snapshot = replace(snapshot, tombstones=now)
    return snapshot


def accept(chain: Chain, state: LifecycleRecord, table: Table) -> LifecycleRecord:
    """Accept the present table, after a person restored or overwrote it: 1 conditional PUT.

    The person guarantees that the table holds all rows below the cut. It may also hold the open
    range, and no other rows of the log.

    A transaction survives a RESTORE: its number shows which ranges were written, but only the
    history shows which are still in the table. If the open range was removed, this promises it
    again as a number that the table has not seen. A process that still writes the old number is
    harmless, because the table has that transaction and ignores the write.

    Raises:
        PlanError: the table's history contradicts the guarantee.
        MovedOn: another process changed the lifecycle first.
    """
    assert state.target is not None
    # Include the confirmed version itself, which may be a RESTORE that was accepted before.
    snapshot = table.snapshot(state.txn_id, state.table_version - 1)
    if snapshot is None or snapshot.k < state.confirmed_k:
        why = "it does not exist" if snapshot is None else f"its last range is {snapshot.k}"
        raise PlanError(
            f"{state.target.table} cannot be accepted as the table that holds range "
            f"{state.confirmed_k} of {chain.log.url}: {why}"
        )
    # SAFETY(kept-range-done) §10: an open range that the restored table holds is published as done
    newer = _ranges_after_confirmed(state, snapshot)
    if newer:
        ks = [change.k for change in newer]
        first = newer[0]
        is_promised = is_as_promised(state, first)
        if not (state.is_open and ks == [state.k] and is_promised):
            raise _cannot_accept(
                state,
                f"it holds the ranges {ks} of the log, from position {first.cut} on, which the "
                "lifecycle does not have",
            )
    # SAFETY(lost-range-new-k) §10: an open range that a RESTORE took away is promised again under a
    # higher k
    k = snapshot.k + 1 if state.is_open else snapshot.k
    if (tombstones := tombstones_of(table, state.target)) is not None:
        now = accept_tombstones(state, tombstones, k, is_range_written=bool(newer))
        snapshot = replace(snapshot, tombstones=now)
    kind = INTENT if state.is_open and k != state.k else FLOOR
    changes: dict[str, Any] = {"cut": state.to, "others": ()} if newer else {"k": k}
    changes |= {"table_id": snapshot.table_id, **versions_of(snapshot)}
    return chain.put(state, DONE if newer else kind, **changes)


def _ranges_after_confirmed(state: LifecycleRecord, snapshot: TableState) -> tuple[Change, ...]:
    """The ranges of the log that the snapshot holds besides the confirmed ones.

    It replays the history since the confirmed version. For each version it computes the ranges that
    the version holds, or as text why they are unknown.

    Raises:
        PlanError: the history does not show them, or the table was restored to a version before the
            confirmed one. A range may have been confirmed after a person chose that version.
    """
    confirmed = state.table_version
    since = [change for change in snapshot.changes if change.version > confirmed]
    ranges: tuple[Change, ...] | str = ()
    # The history is incomplete, and the transaction shows that a range was added since.
    if len(since) < snapshot.version - confirmed and snapshot.k != state.confirmed_k:
        ranges = f"its history does not reach back to version {confirmed}"
    ranges_of = {confirmed: ranges}
    for change in snapshot.changes:
        if change.version == confirmed and change.restores is not None:
            ranges_of[change.restores] = ranges
    for change in since:
        if change.restores is not None:
            ranges = ranges_of.get(change.restores, ranges_of[confirmed])
            # SAFETY(restore-not-before) §10: a RESTORE to before the confirmed version is refused
            if change.restores < confirmed and change.restores not in ranges_of:
                ranges = f"it was restored to version {change.restores}, which is older"
        elif change.operation.upper().startswith("RESTORE"):
            ranges = f"version {change.version} is a RESTORE that names no version"
        elif change.undoes:
            ranges = ()
        elif change.is_burned:
            pass
        elif change.log_id == state.txn_id and change.k and not isinstance(ranges, str):
            ranges = (*ranges, change)
        ranges_of[change.version] = ranges
    if isinstance(ranges, str):
        raise _cannot_accept(state, ranges)
    return ranges


def _cannot_accept(state: LifecycleRecord, why: str) -> PlanError:
    assert state.target is not None
    return PlanError(f"{state.target.table} cannot be accepted: {why}. {way_back(state)}")
