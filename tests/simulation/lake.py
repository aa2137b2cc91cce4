"""The table of the simulated world, as Delta behaves where a log's lifecycle depends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkwal.lifecycle.table import Change, TableConflict, TableState
from tests.simulation import oracle
from tests.simulation.data import PREFIX

if TYPE_CHECKING:
    from tests.simulation.machine import Process
    from tests.simulation.world import State

# (log_id, position, its rows)
Row = tuple[str, int, tuple[int, ...]]


class Version(NamedTuple):
    """The result of one commit to the table.

    Attributes:
        log_id, k: the range that it wrote; "" and 0 for commits of others.
        txns: (log_id, k) of the last range of each log.
        restores: the version that a RESTORE brought back.
    """

    operation: str
    log_id: str
    k: int
    undoes: bool
    rows: tuple[Row, ...]
    txns: tuple[tuple[str, int], ...]
    restores: int | None = None


Table = tuple[Version, ...]


def table_id(state: State) -> str:
    """The id of the present table."""
    return f"table-{len(state.tables)}"


def is_undone(state: State) -> bool:
    """Whether the table was restored or recreated since its log's chain confirmed it."""
    head = oracle.chain_head(state)
    if head is None or head["target"] is None:
        return False
    since = int(head["table_version"]) + 1
    again = head["table_id"] != table_id(state)
    return again or any(version.undoes for version in state.tables[-1][since:])


def _make(state: State, *, again: bool = False) -> tuple[State, None]:
    if state.tables and not again:
        return state, None
    made = Version("CREATE TABLE", "", 0, False, (), ())
    return replace(state, tables=(*state.tables, (made,))), None


def _look(state: State, log_id: str, since: int) -> tuple[State, TableState | None]:
    if not state.tables:
        return state, None
    versions = state.tables[-1]
    changes = tuple(
        Change(
            number,
            v.operation,
            v.log_id,
            v.k,
            v.undoes,
            restores=v.restores,
            is_burned=v.operation == "BURN",
        )
        for number, v in enumerate(versions)
        if number > since
    )
    k = dict(versions[-1].txns).get(log_id, 0)
    return state, TableState(table_id(state), len(versions) - 1, k, changes)


def _write(
    state: State, begun: tuple[str, int], log_id: str, k: int, rows: tuple[Row, ...] | None
) -> tuple[State, TableConflict | None]:
    """Commit a transaction that began with a look at version `begun` of that table."""
    versions = state.tables[-1]
    if begun[0] != table_id(state):
        return state, TableConflict("the table was recreated")
    txns = dict(versions[-1].txns)
    later = versions[begun[1] + 1 :]
    if any(v.log_id == log_id for v in later):
        return state, TableConflict("the same log was written at the same time")
    if any(v.operation == "OPTIMIZE" for v in later):
        return state, TableConflict("OPTIMIZE was faster")
    # As an append it conflicts with nothing else, a RESTORE included.
    now = tuple(sorted({**txns, log_id: k}.items()))
    operation = "BURN" if rows is None else "WRITE"
    all_rows = versions[-1].rows + (rows or ())
    return _commit(state, Version(operation, log_id, k, False, all_rows, now))


def _make_tombstones(state: State) -> tuple[State, None]:
    if state.tombstones:
        return state, None
    return replace(state, tombstones=(Version("CREATE TABLE", "", 0, False, (), ()),)), None


def _look_at_tombstones(state: State, log_id: str, since: int) -> tuple[State, TableState | None]:
    versions = state.tombstones
    if not versions:
        return state, None
    changes = tuple(
        Change(number, v.operation, v.log_id, v.k, v.undoes, restores=v.restores)
        for number, v in enumerate(versions)
        if number > since
    )
    k = dict(versions[-1].txns).get(log_id, 0)
    return state, TableState("tombstones-1", len(versions) - 1, k, changes)


def _write_tombstones(
    state: State, begun: int, range_: tuple[str, int], rows: tuple[Row, ...], has_txn: bool
) -> tuple[State, TableConflict | None]:
    """Commit a MERGE of a range (log_id, k) that began with a look at version `begun`."""
    versions, (log_id, k) = state.tombstones, range_
    if len(versions) - 1 != begun:
        return state, TableConflict("the tombstones were written at the same time")
    newest = versions[-1]
    txns = dict(newest.txns) | ({log_id: k} if has_txn else {})
    merged = tuple(sorted({*newest.rows, *rows}))
    operation = "MERGE" if has_txn else "MERGE again"
    made = Version(operation, log_id, k, False, merged, tuple(sorted(txns.items())))
    return replace(state, tombstones=(*versions, made)), None


def _restore_tombstones(state: State, version: int | None = None) -> tuple[State, None]:
    """To this version, or the one that the chain's newest record names."""
    head = oracle.chain_head(state)
    if head is None or head["target"] is None:
        return state, None
    to = int(head["tombstones_version"]) if version is None else version
    newest = state.tombstones[-1]
    made = Version("RESTORE", "", 0, True, state.tombstones[to].rows, newest.txns, to)
    return replace(state, tombstones=(*state.tombstones, made)), None


def _commit(state: State, version: Version) -> tuple[State, None]:
    return replace(state, tables=(*state.tables[:-1], (*state.tables[-1], version))), None


def _optimize(state: State) -> tuple[State, None]:
    newest = state.tables[-1][-1]
    return _commit(state, _others(newest))


def _others(newest: Version) -> Version:
    """Another writer's version, with the same rows."""
    return Version("OPTIMIZE", "", 0, False, newest.rows, newest.txns)


def _restore(state: State, version: int) -> tuple[State, None]:
    """Delta keeps the newest transactions over it."""
    *_, newest = versions = state.tables[-1]
    to = min(version, len(versions) - 1)
    return _commit(state, Version("RESTORE", "", 0, True, versions[to].rows, newest.txns, to))


def _restore_confirmed(state: State) -> tuple[State, None]:
    """To the version that the chain's newest record names."""
    head = oracle.chain_head(state)
    if head is None or head["target"] is None:
        return state, None
    return _restore(state, int(head["table_version"]))


def _forget(state: State) -> tuple[State, None]:
    """Its transactions are cut off, as a retention of transactions does."""
    newest = state.tables[-1][-1]
    return _commit(state, _others(newest)._replace(txns=()))


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
    "table_look": _look,
    "table_rows": _rows,
    "table_write": _write,
    "tombstones_make": _make_tombstones,
    "tombstones_look": _look_at_tombstones,
    "tombstones_write": _write_tombstones,
    "tombstones_rows": _rows_of_tombstones,
    "tombstones_restore": _restore_tombstones,
    "optimize": _optimize,
    "restore": _restore,
    "restore_confirmed": _restore_confirmed,
    "forget": _forget,
    "make_log_again": _make_log_again,
    "log_grows": _grow,
    "vanish": _vanish,
    "join": _join,
    "undisturbed": undisturbed,
}
