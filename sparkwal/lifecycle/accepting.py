"""Going on with a table that somebody restored or overwrote.

A transaction outlives a RESTORE: its number says which ranges were written, only the history says
which are still there. A RESTORE brings back what its version held; an overwrite holds no range
before it. A range that is gone is promised again, under a number that the table has not seen: who
still writes the old one is too late, the table has it.
"""

from __future__ import annotations

from typing import Any

from sparkwal.errors import PlanError
from sparkwal.format.lifecycle import DONE, FLOOR, INTENT, LifecycleRecord
from sparkwal.lifecycle.compaction import published
from sparkwal.lifecycle.table import Change, Table, TableState, way_back
from sparkwal.protocol.clock import Clock
from sparkwal.store.log_store import LogStore

Ranges = tuple[Change, ...]


def accept(
    log: LogStore, state: LifecycleRecord, table: Table, clock: Clock, host: str
) -> LifecycleRecord:
    """Take the table as it is now for one that holds all rows below the cut, and of those after it
    the open range or nothing: 1 conditional PUT. Raises PlanError where the table's history
    contradicts that, MovedOn."""
    assert state.target is not None
    # With the confirmed version itself, which may be a RESTORE that was accepted before.
    found = table.look(state.log_id, state.table_version - 1)
    if found is None or found.k < state.confirmed_k:
        holds = "there is no table" if found is None else f"it says it holds range {found.k}"
        raise PlanError(
            f"{state.target.table} cannot be taken for one that holds range {state.confirmed_k} of "
            f"{log.url}: {holds}"
        )
    kind, changes = _next(state, found)
    return published(
        log, state, kind, clock, host,
        table_id=found.table_id, table_version=found.version, **changes,
    )  # fmt: skip


def _next(state: LifecycleRecord, found: TableState) -> tuple[str, dict[str, Any]]:
    """The kind of the next record, and what changes with it."""
    # SAFETY(kept-range-done) §10: an open range that the restored table holds is published as done
    held = _held(state, found)
    if held and not (state.is_open and [_is_open_range(state, each) for each in held] == [True]):
        raise _refused(
            state, f"it holds the ranges {[each.k for each in held]} of the log, from position "
            f"{held[0].cut} on, which the lifecycle does not know"
        )  # fmt: skip
    if held:
        return DONE, {"cut": state.to}
    # SAFETY(lost-range-new-k) §10: an open range that a RESTORE took away is promised again under a
    # higher k
    k = found.k + 1 if state.is_open else found.k
    return INTENT if state.is_open and k != state.k else FLOOR, {"k": k}


def _is_open_range(state: LifecycleRecord, change: Change) -> bool:
    there = (change.cut, change.to) if change.to else (state.cut, state.to)
    return change.k == state.k and there == (state.cut, state.to)


def _held(state: LifecycleRecord, found: TableState) -> Ranges:
    """The ranges that came after the confirmed version and are there now.

    Raises PlanError where the history does not show it, and for a RESTORE to a version before the
    confirmed one: a range may have been confirmed after somebody chose it.
    """
    confirmed = state.table_version
    since = [each for each in found.changes if each.version > confirmed]
    # By its transaction no range came since, whatever the history lacks.
    none_came = found.k == state.confirmed_k
    held: Ranges | str = ()
    if len(since) < found.version - confirmed and not none_came:
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
