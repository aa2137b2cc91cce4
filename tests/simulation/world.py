"""The world that simulated processes share: a store, disks, Spark's checkpoint, and the
network between them, as a value that can be copied, compared and stepped."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparkwal.protocol.hint import fence
from sparkwal.store.base import Entry, NotFound, Transient
from tests.lifecycle.table import Versions
from tests.simulation import losses, oracle, outside
from tests.simulation.data import PREFIX
from tests.simulation.outside import Row

# A consumer that has not reported its position for longer counts no more.
EXPIRY_MS = 3 * 3_600_000
# A writer acts on a look at the log that is younger.
TTL_MS = 600_000

# A checkpoint folder: (name, content) of all its files, by name.
Folder = tuple[tuple[str, bytes], ...]


class Call(NamedTuple):
    """A call that a process asks of the world, and waits for."""

    operation: str
    arguments: tuple[Any, ...] = ()


class Lost(Transient):
    """The reply was lost. The process cannot know whether the request arrived."""

    def __init__(self) -> None:
        super().__init__("no answer")


class Refused(Transient):
    """No connection: the request did not arrive."""

    def __init__(self) -> None:
        super().__init__("connection refused", unreachable=True)


# Calls that touch only the caller's own machine happen together with the call
# before them: a crash between the two is a crash before the next remote call.
LOCAL = frozenset(
    {
        "load_hint",
        "save_hint",
        "forget_hint",
        "fence_others",
        "end_run",
        "has_ended",
        "blame",
        "acknowledge",
        "deny",
        "promise",
        "publish_plan",
        "now",
        "read_folder",
        "holds",
        "join",
        "unlock",
        "source_end",
        "rows",
    }
)
# Of these calls, those whose effects other processes can see.
SEEN = frozenset(
    {"save_hint", "forget_hint", "fence_others", "end_run", "has_ended", "publish_plan"}
)
# Calls that go through the network.
REMOTE = frozenset(
    {
        "put",
        "overwrite",
        "replace",
        "get_range",
        "list",
        "look",
        "age",
        "table_look",
        "table_write",
        "tombstones_look",
        "tombstones_write",
        "refused_look",
        "refused_write",
    }
)


def replace(state: State, **changes: Any) -> State:
    """As that of dataclasses, in a quarter of its time: a search makes a State for each step."""
    assert changes.keys() <= state.__dict__.keys(), changes
    made = object.__new__(State)
    made.__dict__.update(state.__dict__, **changes)
    return made


@dataclass(frozen=True, eq=False)
class State:
    """The state of the world outside of the processes. `key` compares two states.

    Attributes:
        objects: key → body; `contents` is the same as numbers.
        late: conditional PUTs still in flight, without a waiting process: (key, body).
        hints: leader_id → hint (by number), on the drivers' disks.
        ended: runs of queries that their session noted as ended.
        checkpoint: query_id → last microbatch in Spark's commit log.
        acknowledged: (query_id, batch_id, position) that a process was assured is durable.
        denied: (plan_id, batch_id) that a process was assured will never be in the log.
        promised: producer_id → the `last_sequence` that some appender of it reported.
        plan: the plan (by number) that the last driver gave to its tasks, for stragglers; −1: none.
        now_ms: the clock, the same on every machine.
        collected: records that existed and were deleted by a collection.
        folders: machine → the checkpoint folder on its disk (by number); absent without one.
        copies: machine → a copy of its folder, as a backup (by number).
        holds: machine → the span of its source that its query would read again, as (position,
            position).
        locks: (machine, process) that replaces the machine's folder and excludes others from it.
        source: the number of rows that the queries' source has; −1 if no query has a source.
        dropped: rows of the source that the query filters out.
        forks: the rows with which forks of the query begin; empty if none is a fork.
        archived: rows below this number are no longer in the source.
        modified: key → time of the last write, of objects whose age a process reads.
        tables: the versions of the log's table, and of its former tables.
        tombstones: the versions of the table's tombstones; each row of a range makes one.
        refused: the versions of its table of refused rows: (range, log_id, position, its rows).
        joined: consumers that may rely on their reports.
        former: (log_id, its commits) of logs that were deleted and recreated.
        again_ms: the time when the last of them was recreated; a process that looked before may not
            know it.
        blame: an action of a process that it must not do; "" without one.
        loss: the deleted record, and the processes that are excused for not noticing; see `losses`.
        parts: keys of which the store has only a part of the sent bytes.
        elsewhere, growing: a second log under the path: its id and all commits; its objects.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    contents: frozenset[int] = frozenset()
    late: frozenset[tuple[str, bytes]] = frozenset()
    hints: dict[str, int] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    checkpoint: dict[str, int] = field(default_factory=dict)
    acknowledged: frozenset[tuple[str, int, int]] = frozenset()
    denied: frozenset[tuple[str, int]] = frozenset()
    promised: dict[str, int] = field(default_factory=dict)
    plan: int = -1
    now_ms: int = 1_000_000
    collected: frozenset[tuple[str, bytes]] = frozenset()
    folders: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    holds: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    locks: frozenset[tuple[str, str]] = frozenset()
    source: int = -1
    dropped: frozenset[int] = frozenset()
    forks: frozenset[int] = frozenset()
    archived: int = 0
    modified: dict[str, int] = field(default_factory=dict)
    tables: tuple[Versions, ...] = ()
    tombstones: Versions = ()
    refused: Versions = ()
    joined: frozenset[str] = frozenset()
    former: tuple[tuple[str, tuple[Row, ...]], ...] = ()
    again_ms: int = 0
    blame: str = ""
    loss: losses.Loss | None = None
    parts: frozenset[str] = frozenset()
    elsewhere: tuple[str, tuple[Row, ...]] = ("", ())
    growing: tuple[tuple[str, bytes], ...] = ()

    def key(self) -> Hashable:
        """Equal for states that behave alike."""
        return (
            self.contents,
            self.late,
            tuple(self.hints.items()) if len(self.hints) < 2 else frozenset(self.hints.items()),
            self.ended,
            tuple(sorted(self.checkpoint.items())),
            self.acknowledged,
            self.denied,
            tuple(sorted(self.promised.items())),
            self.plan,
            self.now_ms,
            self.collected,
            frozenset(self.folders.items()),
            frozenset(self.copies.items()),
            frozenset(self.holds.items()),
            self.locks,
            self.source,
            self.archived,
            frozenset(self.modified.items()),
            self.tables,
            self.tombstones,
            self.refused,
            self.joined,
            self.former,
            self.again_ms,
            self.blame,
            self.loss,
            self.parts,
        )


_numbers: dict[Hashable, int] = {}
_things: dict[int, Any] = {}


def _number(thing: Hashable) -> int:
    """A small number for an object of the store: comparing states compares these."""
    return _numbers.setdefault(thing, len(_numbers))


def _shelve(thing: Any) -> int:
    """The same for what is no bytes; `_things` has it by its number."""
    number = _number(repr(thing))
    _things[number] = thing
    return number


def apply(state: State, call: Call) -> tuple[State, Any]:
    """Carry out one call: the state after it, and its answer (an exception is one too)."""
    return _OPERATIONS[call.operation](state, *call.arguments)


def put(state: State, key: str, body: bytes) -> tuple[State, bool]:
    """Put-if-absent, atomically: the one primitive."""
    if key in state.objects:
        return state, False
    contents = state.contents | {_number((key, body))}
    after = replace(state, objects={**state.objects, key: body}, contents=contents)
    if key.startswith(f"{PREFIX}/lifecycle/"):
        after = replace(after, modified={**state.modified, key: state.now_ms})
    return after, True


def kept_in_part(state: State, key: str, body: bytes) -> Iterator[tuple[str, State]]:
    """As `put`; the store keeps a part: which, and the world then."""
    if key in state.objects:
        return
    for what, part in oracle.parts(body).items():
        yield what, replace(put(state, key, part)[0], parts=state.parts | {key})


def is_hurt(state: State) -> bool:
    """Whether the store kept a part of an object that nobody passes over."""
    return any(not oracle.is_record(key) for key in state.parts)


def _get_range(state: State, key: str, offset: int, length: int) -> tuple[State, Any]:
    body = state.objects.get(key)
    return state, NotFound(key) if body is None else body[offset : offset + length]


def _list(state: State, prefix: str, limit: int, after: str = "") -> tuple[State, Any]:
    """The first entries, and whether there are more."""
    state = losses.noted(state, prefix)
    keys = sorted(key for key in state.objects if key.startswith(prefix) and key > after)
    bodies = ((key, state.objects[key]) for key in keys[:limit])
    found = tuple(Entry(key, len(body), etag_of(body)) for key, body in bodies)
    return state, (found, len(keys) > limit)


def _look(state: State, prefix: str, limit: int, after: str = "") -> tuple[State, Any]:
    """A LIST, and the commits of that moment."""
    return state, (losses.visible(state), _list(state, prefix, limit, after)[1])


def _delete(state: State, key: str, undone: bool = False) -> tuple[State, Any]:
    if key not in state.objects:
        return state, None
    if undone:
        blame = f"{key} was deleted by one that began when the table had been restored"
        state = replace(state, blame=blame)
    gone = state.collected
    # The first object of a number counts again, not a later stray.
    is_counted = key.startswith((f"{PREFIX}/batches/", f"{PREFIX}/lifecycle/"))
    if is_counted and all(key != known for known, _ in gone):
        gone = gone | {(key, state.objects[key])}
    return replace(without(state, key), collected=gone), None


def without(state: State, *keys: str) -> State:
    """The world without these objects."""
    objects = {k: b for k, b in state.objects.items() if k not in keys}
    return replace(state, objects=objects, contents=_contents(objects))


def _contents(objects: dict[str, bytes]) -> frozenset[int]:
    return frozenset(_number(item) for item in objects.items())


def _overwrite(state: State, key: str, body: bytes) -> tuple[State, None]:
    objects = {**state.objects, key: body}
    modified = {**state.modified, key: state.now_ms}
    # One that was taken for gone must join again.
    joined = frozenset(n for n in state.joined if state.now_ms - state.modified[n] <= EXPIRY_MS)
    after = replace(state, objects=objects, contents=_contents(objects), modified=modified)
    return replace(after, joined=joined), None


def etag_of(body: bytes) -> str:
    """The ETag of an object with these bytes."""
    return str(_number(body))


def _replace(state: State, key: str, body: bytes, etag: str | None) -> tuple[State, bool]:
    """Replace an object that has this ETag. The log counts the first one.

    A consumer's object is also created so: then it has no ETag.
    """
    before = state.objects.get(key)
    if key.startswith(f"{PREFIX}/consumers/"):
        is_as_read = etag == (None if before is None else etag_of(before))
        return (_overwrite(state, key, body)[0], True) if is_as_read else (state, False)
    if before is None or etag_of(before) != etag:
        return state, False
    gone = state.collected
    if all(key != known for known, _ in gone):
        gone = gone | {(key, before)}
    objects = {**state.objects, key: body}
    return replace(state, objects=objects, contents=_contents(objects), collected=gone), True


def _age(state: State, key: str) -> tuple[State, Any]:
    """And whether the table has lost something that its log counts on."""
    if key not in state.objects:
        return state, NotFound(key)
    return state, (state.now_ms - state.modified[key], outside.is_undone(state))


def _load_hint(state: State, leader_id: str) -> tuple[State, Any]:
    number = state.hints.get(leader_id)
    return state, None if number is None else _things[number]


def _save_hint(state: State, leader_id: str, hint: Any) -> tuple[State, Any]:
    return replace(state, hints={**state.hints, leader_id: _shelve(hint)}), True


def _fence_others(state: State, by: Any) -> tuple[State, Any]:
    fenced = {
        leader: _shelve(fence(_things[before], by))
        for leader, before in state.hints.items()
        if leader != by.leader_id
    }
    return replace(state, hints={**state.hints, **fenced}), None


def _end_run(state: State, run_id: str) -> tuple[State, Any]:
    return replace(state, ended=state.ended | {run_id}), None


def _forget_hint(state: State, leader_id: str) -> tuple[State, Any]:
    return replace(state, hints={k: h for k, h in state.hints.items() if k != leader_id}), None


def _read_checkpoint(state: State, query_id: str) -> tuple[State, Any]:
    return state, state.checkpoint.get(query_id, -1)


def _write_checkpoint(state: State, query_id: str, batch_id: int) -> tuple[State, Any]:
    last = max(batch_id, state.checkpoint.get(query_id, -1))
    return replace(state, checkpoint={**state.checkpoint, query_id: last}), None


def _acknowledge(state: State, query_id: str, batch_id: int, position: int) -> tuple[State, Any]:
    # It may have looked before the log was recreated.
    if state.former and state.now_ms - state.again_ms < TTL_MS:
        return state, None
    entry = (query_id, batch_id, position)
    return replace(state, acknowledged=state.acknowledged | {entry}), None


def _deny(state: State, plan_id: str, batch_id: int) -> tuple[State, Any]:
    return replace(state, denied=state.denied | {(plan_id, batch_id)}), None


def _promise(state: State, producer_id: str, sequence: int) -> tuple[State, Any]:
    # It may have learned that from the former log.
    if state.former:
        return state, None
    most = max(sequence, state.promised.get(producer_id, -1))
    return replace(state, promised={**state.promised, producer_id: most}), None


def _publish_plan(state: State, plan: Any) -> tuple[State, Any]:
    return replace(state, plan=_shelve(plan)), None


def _take_plan(state: State) -> tuple[State, Any]:
    return state, _things.get(state.plan)


def _sleep(state: State, milliseconds: int) -> tuple[State, Any]:
    return replace(state, now_ms=state.now_ms + milliseconds), None


def _now(state: State) -> tuple[State, Any]:
    return state, state.now_ms


def _read_folder(state: State, machine: str) -> tuple[State, Folder | None]:
    number = state.folders.get(machine)
    return state, None if number is None else _things[number]


def set_folder(state: State, machine: str, content: Folder | None) -> tuple[State, None]:
    """Replace the content of the folder at once. None: the folder is missing."""
    folders = {m: number for m, number in state.folders.items() if m != machine}
    if content is not None:
        folders[machine] = _shelve(content)
    return replace(state, folders=folders), None


def _add_file(state: State, machine: str, name: str, data: bytes) -> tuple[State, bool]:
    """As Spark writes each file of a checkpoint: whole, and never over another."""
    content = dict(_read_folder(state, machine)[1] or ())
    if name in content:
        return state, False
    content[name] = data
    return set_folder(state, machine, tuple(sorted(content.items())))[0], True


def _put_file(state: State, machine: str, name: str, data: bytes) -> tuple[State, None]:
    """A file of a checkpoint, whole, also over another."""
    content = {**dict(_read_folder(state, machine)[1] or ()), name: data}
    return set_folder(state, machine, tuple(sorted(content.items())))


def _hold(state: State, machine: str, spans: tuple[tuple[int, int], ...]) -> tuple[State, None]:
    return replace(state, holds={**state.holds, machine: spans}), None


def _holds(state: State, machine: str) -> tuple[State, tuple[tuple[int, int], ...]]:
    return state, state.holds.get(machine, ())


def _copy_folder(state: State, machine: str) -> tuple[State, None]:
    copied = {machine: state.folders[machine]} if machine in state.folders else {}
    return replace(state, copies={**state.copies, **copied}), None


def disk_faults(state: State, machine: str) -> list[tuple[str, State]]:
    """The states in which a machine that starts may find its folder."""
    found = []
    if machine in state.folders:
        new = set_folder(state, machine, None)[0]
        found.append(("its disk is new", _hold(new, machine, ())[0]))
    if machine in state.copies and state.copies[machine] != state.folders.get(machine):
        folders = {**state.folders, machine: state.copies[machine]}
        found.append(("its folder is a backup's", replace(state, folders=folders)))
    return found


def _lock(state: State, machine: str, process: str) -> tuple[State, None]:
    return replace(state, locks=state.locks | {(machine, process)}), None


def waits(state: State, call: Call) -> bool:
    """Whether a call has no answer before another process does something."""
    return call.operation == "lock" and any(m == call.arguments[0] for m, _ in state.locks)


def without_locks(state: State, process: str) -> State:
    """A process has let go of its locks; as it does when it dies."""
    held = {lock for lock in state.locks if lock[1] == process}
    return replace(state, locks=state.locks - held) if held else state


def _grow(state: State, rows: int) -> tuple[State, None]:
    return replace(state, source=state.source + rows), None


def _source_end(state: State) -> tuple[State, int]:
    return state, state.source


def _rows(state: State, start: int, end: int) -> tuple[State, tuple[int, ...] | None]:
    """The query's result for these rows of the source, or None if they were archived."""
    if start < state.archived:
        return state, None
    return state, tuple(row for row in range(start, end) if row not in state.dropped)


def _archive(state: State, end: int) -> tuple[State, None]:
    return replace(state, archived=max(end, state.archived)), None


_OPERATIONS: dict[str, Callable[..., tuple[State, Any]]] = {
    "put": put,
    "get_range": _get_range,
    "list": _list,
    "look": _look,
    "delete": _delete,
    "overwrite": _overwrite,
    "replace": _replace,
    "age": _age,
    "load_hint": _load_hint,
    "save_hint": _save_hint,
    "forget_hint": _forget_hint,
    "fence_others": _fence_others,
    "end_run": _end_run,
    "has_ended": lambda state, run_id: (state, run_id in state.ended),
    "blame": lambda state, blame: (replace(state, blame=blame), None),
    "read_checkpoint": _read_checkpoint,
    "write_checkpoint": _write_checkpoint,
    "acknowledge": _acknowledge,
    "deny": _deny,
    "promise": _promise,
    "publish_plan": _publish_plan,
    "take_plan": _take_plan,
    "sleep": _sleep,
    "now": _now,
    "idle": lambda state: (state, None),
    "mount": lambda state, machine: (state, None),
    "read_folder": _read_folder,
    "set_folder": set_folder,
    "add_file": _add_file,
    "put_file": _put_file,
    "hold": _hold,
    "holds": _holds,
    "copy_folder": _copy_folder,
    "lock": _lock,
    "unlock": lambda state, process: (without_locks(state, process), None),
    "grow": _grow,
    "source_end": _source_end,
    "rows": _rows,
    "archive": _archive,
    "cut_off": losses.cut_off,
    **outside.OPERATIONS,
}
