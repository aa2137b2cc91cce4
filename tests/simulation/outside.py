"""What happens in the simulated world beside the objects of a log: to its table, to another log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkwal.lifecycle.table import TableConflict
from tests.lifecycle import table
from tests.simulation import oracle
from tests.simulation.data import PREFIX

if TYPE_CHECKING:
    from tests.simulation.machine import Process
    from tests.simulation.world import State

# (log_id, position, its rows)
Row = tuple[str, int, tuple[int, ...]]


def table_id(state: State) -> str:
    """The id of the present table."""
    return f"table-{len(state.tables)}"


def is_undone(state: State) -> bool:
    """Whether the table was restored or recreated since its log's chain confirmed it."""
    head = _head_of_table(state)
    if head is None:
        return False
    since = int(head["table_version"]) + 1
    again = head["table_id"] != table_id(state)
    return again or any(version.undoes for version in state.tables[-1][since:])


def _head_of_table(state: State) -> dict[str, Any] | None:
    """The newest record of the chain, if it names a table."""
    head = oracle.chain_head(state)
    return None if head is None or head["target"] is None else head


def _make(state: State, *, again: bool = False) -> tuple[State, None]:
    if state.tables and not again:
        return state, None
    return replace(state, tables=(*state.tables, table.CREATED)), None


def _table(state: State) -> table.History:
    return table.History(table_id(state), state.tables[-1] if state.tables else ())


def _tombstones(state: State) -> table.History:
    return table.History("tombstones-1", state.tombstones)


def _write(
    state: State,
    begun: tuple[str, int],
    range_id: tuple[str, int],
    rows: tuple[Row, ...] | None,
) -> tuple[State, TableConflict | None]:
    """Commit a transaction that began with a look at version `begun` of that table."""
    if begun[0] != table_id(state):
        return state, TableConflict("the table was recreated")
    try:
        return _changed(state, table.written(state.tables[-1], begun[1], range_id, rows))
    except TableConflict as conflict:
        return state, conflict


def _changed(state: State, versions: table.Versions) -> tuple[State, None]:
    return replace(state, tables=(*state.tables[:-1], versions)), None


def _make_tombstones(state: State) -> tuple[State, None]:
    return replace(state, tombstones=state.tombstones or table.CREATED), None


def _write_tombstones(
    state: State, begun: int, range_id: tuple[str, int], rows: tuple[Row, ...], has_txn: bool
) -> tuple[State, TableConflict | None]:
    """Commit a MERGE of a range that began with a look at version `begun`."""
    versions, (log_id, k) = state.tombstones, range_id
    if len(versions) - 1 != begun:
        return state, TableConflict("the tombstones were written at the same time")
    newest = versions[-1]
    txns = dict(newest.txns) | ({log_id: k} if has_txn else {})
    merged = tuple(sorted({*newest.rows, *rows}))
    operation = "MERGE" if has_txn else "MERGE again"
    made = table.Version(operation, log_id, k, False, merged, tuple(sorted(txns.items())))
    return replace(state, tombstones=(*versions, made)), None


def _make_refused(state: State) -> tuple[State, None]:
    return replace(state, refused=state.refused or table.CREATED), None


def _refused(state: State) -> table.History:
    return table.History("refused-1", state.refused)


def _write_refused(
    state: State,
    begun: int,
    range_id: tuple[str, int],
    left: tuple[str, int, int],
    rows: tuple[tuple[Any, ...], ...],
) -> tuple[State, TableConflict | None]:
    """Commit the rows that step aside from a range, and remove those that are left in the log."""
    try:
        versions = table.stepped_aside(state.refused, begun, range_id, left, rows)
    except TableConflict as conflict:
        return state, conflict
    return replace(state, refused=versions), None


def _mark_refused(
    state: State, begun: int, range_id: tuple[str, int], rows: tuple[tuple[Any, ...], ...]
) -> tuple[State, TableConflict | None]:
    """Commit the rows that the table still refuses."""
    try:
        versions = table.still_aside(state.refused, begun, range_id, rows)
    except TableConflict as conflict:
        return state, conflict
    return replace(state, refused=versions), None


def _remove_refused(state: State, log_id: str, taken: int) -> tuple[State, None]:
    """Delete the rows of a log that count no more."""
    newest = state.refused[-1]
    kept = tuple(row for row in newest.rows if row[1] != log_id or row[0] >= taken)
    if kept == newest.rows:
        return state, None
    deleted = table.Version("DELETE", rows=kept, txns=newest.txns)
    return replace(state, refused=(*state.refused, deleted)), None


def _restore_refused(state: State) -> tuple[State, None]:
    """To the version that the chain's newest record names."""
    head = _head_of_table(state)
    if head is None or head.get("refused") is None:
        return state, None
    to = int(head["refused"]["version"])
    return replace(state, refused=table.restored(state.refused, to)), None


def _rows_of_refused(state: State, version: int) -> tuple[State, tuple[Any, ...]]:
    return state, state.refused[version].rows


def _restore_tombstones(state: State, version: int | None = None) -> tuple[State, None]:
    """To this version, or the one that the chain's newest record names."""
    if (head := _head_of_table(state)) is None:
        return state, None
    to = int(head["tombstones_version"]) if version is None else version
    return replace(state, tombstones=table.restored(state.tombstones, to)), None


def _restore(state: State, version: int) -> tuple[State, None]:
    versions = state.tables[-1]
    return _changed(state, table.restored(versions, min(version, len(versions) - 1)))


def _restore_confirmed(state: State) -> tuple[State, None]:
    """To the version that the chain's newest record names."""
    head = _head_of_table(state)
    return (state, None) if head is None else _restore(state, int(head["table_version"]))


def _make_log_again(state: State) -> tuple[State, None]:
    """Delete the log's records and objects, with all promises of it."""
    from tests.simulation.world import without

    records = oracle.live(state)
    former = (records[0]["log_id"], oracle.rows(records)) if records else ("", ())
    kept = without(state, *(key for key in state.objects if key.startswith(f"{PREFIX}/batches/")))
    return replace(
        kept,
        collected=frozenset(),
        acknowledged=frozenset(),
        denied=frozenset(),
        promised={},
        checkpoint={},
        former=(*state.former, former),
        again_ms=state.now_ms,
    ), None


OTHER = f"{PREFIX}/sequencers/s/"


def beside(state: State, other: State, shown: int) -> State:
    """The world with a second log under the path, of which the first records are there.

    Args:
        other: a world with the second log at its path.
        shown: so many of its objects; `log_grows` puts the others.
    """
    from tests.simulation.world import put

    records = oracle.live(other)
    truth = (records[0]["log_id"], oracle.rows(records))
    bodies = sorted(other.objects.items(), reverse=True)
    moved = tuple((key.replace(f"{PREFIX}/", OTHER), body) for key, body in bodies)
    state = replace(state, elsewhere=truth, growing=moved)
    for key, body in moved[:shown]:
        state, _ = put(state, key, body)
    return state


def _grow(state: State) -> tuple[State, None]:
    """The next record of the second log appears."""
    from tests.simulation.world import put

    for key, body in state.growing:
        if key not in state.objects:
            return put(state, key, body)[0], None
    return state, None


def _vanish(state: State) -> tuple[State, None]:
    """The second log is deleted."""
    from tests.simulation.world import without

    return without(state, *(key for key in state.objects if key.startswith(OTHER))), None


def with_damaged_rows(state: State) -> State:
    """The world in which the rows of the second log's last record are damaged, and no header."""
    from tests.simulation.world import put, without

    key = min(key for key in state.objects if key.startswith(f"{OTHER}batches/"))
    body = bytearray(state.objects[key])
    (*_, value) = oracle.written(oracle.header(bytes(body)))
    # The highest byte of the value.
    body[body.rindex(value.to_bytes(8, "little")) + 7] ^= 64
    damaged = put(without(state, key), key, bytes(body))[0]
    # The oracle excuses those who find the log damaged.
    return replace(damaged, parts=damaged.parts | {f"{OTHER}rows"})


def undisturbed(state: State, process: Process) -> tuple[State, None]:
    """The whole life of a process, while all others stand still."""
    from tests.simulation.machine import Machine
    from tests.simulation.world import apply

    machine = Machine(process)
    while machine.calls:
        thread, call = min(machine.calls.items())
        state, answer = apply(state, call)
        machine.answer(thread, answer)
    return state, None


def _rows(state: State, version: int) -> tuple[State, tuple[Row, ...]]:
    return state, state.tables[-1][version].rows


def _rows_of_tombstones(state: State, version: int) -> tuple[State, tuple[Row, ...]]:
    return state, state.tombstones[version].rows


def _join(state: State, key: str) -> tuple[State, None]:
    return replace(state, joined=state.joined | {key}), None


OPERATIONS: dict[str, Callable[..., tuple[State, Any]]] = {
    "table_make": _make,
    "table_make_again": lambda state: _make(state, again=True),
    "table_look": lambda state, *asked: (state, _table(state).snapshot(*asked)),
    "table_held": lambda state, *asked: (state, _table(state).held(*asked)),
    "table_rows": _rows,
    "table_write": _write,
    "tombstones_make": _make_tombstones,
    "tombstones_look": lambda state, *asked: (state, _tombstones(state).snapshot(*asked)),
    "tombstones_held": lambda state, *asked: (state, _tombstones(state).held(*asked)),
    "tombstones_write": _write_tombstones,
    "tombstones_rows": _rows_of_tombstones,
    "tombstones_restore": _restore_tombstones,
    "refused_make": _make_refused,
    "refused_look": lambda state, *asked: (state, _refused(state).snapshot(*asked)),
    "refused_held": lambda state, *asked: (state, _refused(state).held(*asked)),
    "refused_write": _write_refused,
    "refused_mark": _mark_refused,
    "refused_remove": _remove_refused,
    "refused_rows": _rows_of_refused,
    "refused_restore": _restore_refused,
    "optimize": lambda state: _changed(state, table.optimized(state.tables[-1])),
    "restore": _restore,
    "restore_confirmed": _restore_confirmed,
    "forget": lambda state: _changed(state, table.forgotten(state.tables[-1])),
    "make_log_again": _make_log_again,
    "log_grows": _grow,
    "vanish": _vanish,
    "join": _join,
    "undisturbed": undisturbed,
}
