"""Bring one range of a log into its table, exactly once, whichever process crashes in between.

    intent → write → confirm → publish

The intent fixes the range before any row is written, so every process writes the same rows; the
table's transaction (log_id, k) keeps them from being written twice. The range is done when the
table was read again and holds it. Any process can finish a range that a crashed one left open.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from sparkwal.format.lifecycle_record import DONE, FLOOR, INTENT, LifecycleRecord, Target
from sparkwal.lifecycle.table import (
    NEWEST,
    Change,
    Table,
    TableConflict,
    TableState,
    check_history,
    way_back,
)
from sparkwal.protocol.chain import look, put_next
from sparkwal.protocol.clock import Clock
from sparkwal.reading.floor import ends_before
from sparkwal.store.base import LogStore

# How often other writers of the table may be faster, and the first pause after that, in seconds.
CONFLICTS = 8
_FIRST_PAUSE = 0.5


class MovedOn(Exception):
    """Somebody else moved the lifecycle on meanwhile: look again and decide anew."""


@contextmanager
def unless_moved_on(log: LogStore, state: LifecycleRecord) -> Iterator[None]:
    """Work that began at `state`. Raises MovedOn where it fails after the chain moved on: what it
    relied on is old, and rows that it reads may be collected."""
    try:
        yield
    except (CompactionError, InvalidLogError) as error:
        now = look(log)
        if (now.number if now else keys.MAX + 1) != state.number:
            raise MovedOn from error
        raise


def check_log(log: LogStore, gap: int, log_id: str, state: LifecycleRecord) -> None:
    """Raises PlanError where `state`, which was looked at first, does not describe the log that is
    there."""
    # SAFETY(chain-of-this-log) §10: a chain applies only to the log whose log_id it carries
    if state.log_id != log_id:
        raise PlanError(
            f"the lifecycle under {log.url} belongs to the log {state.log_id}, and the log there "
            f"now is {log_id}: it was deleted and recreated. Delete lifecycle/ and consumers/ "
            "there too, and give the new log a table of its own"
        )
    # A log that came back older is not what its floor has passed.
    if gap < state.floor:
        cut = ends_before(log.url, gap, state.floor)
        raise PlanError(f"{cut}. Restore lifecycle/ of that copy too")


@dataclass(frozen=True)
class Chain:
    """The records of one log's lifecycle, as one process puts them."""

    log: LogStore
    clock: Clock
    host: str

    def put(self, head: LifecycleRecord, kind: str, **changes: Any) -> LifecycleRecord:
        """The next record. Emits the event of an intent, and of a range that is in the table.
        Raises PublishError, MovedOn."""
        url = self.log.url
        try:
            new = put_next(self.log, head, kind, self.clock, self.host, **changes)
        except StoreUnavailableError as error:
            raise PublishError(f"the lifecycle of {url} could not be moved on: {error}") from error
        if new is None:
            raise MovedOn
        if kind == INTENT:
            events.emit(events.CompactionPlanned(url, new.k, new.cut, new.to))
        elif kind == DONE and (target := new.target):
            version = new.table_version
            events.emit(events.CompactionDone(url, new.k, new.cut, target.table, version))
        return new


def put_intent(
    chain: Chain, head: LifecycleRecord, to: int, target: Target, table: Table, spark_schema: str
) -> LifecycleRecord:
    """Put the intent for positions cut … to−1. Raises PlanError, ReadError, ConfirmError,
    MovedOn."""
    assert not head.is_open and to > head.cut
    if head.k:
        # Before `prepare`, which would put an empty table where one was dropped.
        confirmed(chain.log, head, table)
    table.prepare(chain.log, spark_schema, not head.k)
    changes: dict[str, Any] = {"k": head.k + 1, "to": to, "target": target}
    if not head.k:
        found = table.look(head.log_id, NEWEST)
        if found is None:
            raise PlanError(f"{target.table} was just made and is not there; run it again")
        if found.k:
            raise PlanError(
                f"{target.table} holds {found.k} ranges of this log, whose lifecycle knows none: "
                "its records were deleted, or the log was restored from an older copy. Name a "
                "new table"
            )
        changes |= {"table_id": found.table_id, "table_version": found.version}
    return chain.put(head, INTENT, **changes)


@dataclass(frozen=True)
class Range:
    """Positions start … end−1, which the table has as range `k`, and how many rows it took for it,
    and bytes as stored there; None for unknown."""

    k: int
    start: int
    end: int
    table_version: int
    rows: int | None = None
    bytes: int | None = None


def finish_range(
    chain: Chain, intent: LifecycleRecord, table: Table
) -> tuple[LifecycleRecord, Range]:
    """Write the open range unless the table has it, confirm it, publish it. Returns the record that
    says so, and the range. Raises ReadError, WriteError, ConfirmError, PublishError, MovedOn."""
    found = _written(chain, intent, table)
    done = chain.put(intent, DONE, cut=intent.to, table_version=found.version)
    brought = {(each.log_id, each.k): (each.rows, each.bytes) for each in found.changes}
    rows, size = brought.get((done.log_id, done.k), (None, None))
    return done, Range(done.k, intent.cut, done.cut, found.version, rows, size)


def _written(chain: Chain, intent: LifecycleRecord, table: Table) -> TableState:
    """The newest snapshot, which holds the range."""
    log, attempts = chain.log, 0
    while (found := confirmed(log, intent, table)).k != intent.k:
        if attempts == CONFLICTS:
            assert intent.target is not None
            raise WriteError(
                f"other writers of {intent.target.table} were faster {CONFLICTS} times; run it "
                "again when they are done (OPTIMIZE, VACUUM, a MERGE or another job)"
            )
        attempts += 1
        # Safe to repeat: the table takes each transaction once.
        # SAFETY(read-table-after-write) §10: a range is published only after the table was read
        # again
        # SAFETY(range-is-fixed) §10: every process writes exactly [cut, to) of an open range
        try:
            with unless_moved_on(log, intent):
                table.write(intent)
        except TableConflict as conflict:
            events.emit(events.CompactionRetried(log.url, intent.k, str(conflict)))
            if attempts < CONFLICTS:
                chain.clock.sleep(_FIRST_PAUSE * 2 ** (attempts - 1))
    return found


def confirmed(log: LogStore, state: LifecycleRecord, table: Table) -> TableState:
    """The newest snapshot of the table, which holds all that `state` says, and may hold the open
    range. Raises ConfirmError, MovedOn."""
    before = state.confirmed_k
    found = table.look(state.log_id, state.table_version, before)
    with unless_moved_on(log, state):
        check_history(state, found)
        assert found is not None and state.target is not None
        # SAFETY(table-knows-k) §10: the table's last range is the confirmed one or the open one
        if found.k not in (before, state.k):
            raise ConfirmError(
                f"{state.target.table} says it holds range {found.k} of the log last, and it must "
                f"be {before} or {state.k}: its transactions were cut off, or the log is older"
            )
    return found


def accept(chain: Chain, state: LifecycleRecord, table: Table) -> LifecycleRecord:
    """Take the table as it is now, after somebody restored or overwrote it, for one that holds all
    rows below the cut, and of those after it the open range or nothing: 1 conditional PUT. Raises
    PlanError where the table's history contradicts that, MovedOn.

    A transaction outlives a RESTORE: its number says which ranges were written, only the history
    says which are still there. A range that is gone is promised again, under a number that the
    table has not seen: who still writes the old one is too late, the table has it.
    """
    assert state.target is not None
    # With the confirmed version itself, which may be a RESTORE that was accepted before.
    found = table.look(state.log_id, state.table_version - 1)
    if found is None or found.k < state.confirmed_k:
        holds = "it is not there" if found is None else f"it says it holds range {found.k}"
        wanted = f"one that holds range {state.confirmed_k} of {chain.log.url}"
        raise PlanError(f"{state.target.table} cannot be taken for {wanted}: {holds}")
    # SAFETY(kept-range-done) §10: an open range that the restored table holds is published as done
    held = _held(state, found)
    if held:
        ks, first = [each.k for each in held], held[0]
        is_known = not first.to or (first.cut, first.to) == (state.cut, state.to)
        if not (state.is_open and ks == [state.k] and is_known):
            why = f"it holds the ranges {ks} of the log, from position {first.cut} on, which the "
            raise _refused(state, f"{why}lifecycle does not know")
    # SAFETY(lost-range-new-k) §10: an open range that a RESTORE took away is promised again under a
    # higher k
    k = found.k + 1 if state.is_open else found.k
    kind = INTENT if state.is_open and k != state.k else FLOOR
    changes: dict[str, Any] = {"cut": state.to} if held else {"k": k}
    changes |= {"table_id": found.table_id, "table_version": found.version}
    return chain.put(state, DONE if held else kind, **changes)


def _held(state: LifecycleRecord, found: TableState) -> tuple[Change, ...]:
    """The ranges that came after the confirmed version and are there now. Raises PlanError where
    the history does not show it, and for a RESTORE to a version before the confirmed one: a range
    may have been confirmed after somebody chose it."""
    confirmed = state.table_version
    since = [each for each in found.changes if each.version > confirmed]
    held: tuple[Change, ...] | str = ()
    # Whatever the history lacks: by its transaction a range came since.
    if len(since) < found.version - confirmed and found.k != state.confirmed_k:
        held = f"its history does not reach back to version {confirmed}"
    at = {confirmed: held}
    for each in found.changes:
        if each.version == confirmed and each.restores is not None:
            at[each.restores] = held
    for change in since:
        if change.restores is not None:
            held = at.get(change.restores, at[confirmed])
            # SAFETY(restore-not-before) §10: a RESTORE to before the confirmed version is refused
            if change.restores < confirmed and change.restores not in at:
                held = f"it was restored to version {change.restores}, which is older"
        elif change.operation.upper().startswith("RESTORE"):
            held = f"version {change.version} is a RESTORE that names no version"
        elif change.undoes:
            held = ()
        elif change.log_id == state.log_id and change.k and not isinstance(held, str):
            held = (*held, change)
        at[change.version] = held
    if isinstance(held, str):
        raise _refused(state, held)
    return held


def _refused(state: LifecycleRecord, why: str) -> PlanError:
    assert state.target is not None
    return PlanError(f"{state.target.table} cannot be accepted: {why}. {way_back(state)}")
