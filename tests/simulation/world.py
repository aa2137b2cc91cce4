"""The world that simulated processes share: a store, disks, Spark's checkpoint, and the
network between them, as a value that can be copied, compared and stepped."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sparkwal.store.base import Entry, NotFound, Transient


class Call(NamedTuple):
    """What a process asks of the world, and waits for."""

    operation: str
    arguments: tuple[Any, ...] = ()


class Lost(Transient):
    """The reply never came; whether the request arrived, nobody here knows."""

    def __init__(self) -> None:
        super().__init__("no answer")


class Refused(Transient):
    """No connection: the request did not arrive."""

    def __init__(self) -> None:
        super().__init__("connection refused", unreachable=True)


# Calls that touch only the caller's own machine happen together with the call
# before them: a crash between the two is a crash before the next remote call.
LOCAL = frozenset({"load_hint", "save_hint", "acknowledge", "publish_plan", "now", "send"})


@dataclass(frozen=True)
class State:
    """Everything outside the processes.

    Attributes:
        objects: key → body; `contents` is the same as numbers.
        late: conditional PUTs still on their way, nobody waits for them: (key, body).
        flying: PUTs of a process that does not wait: (process, token, key, body).
        replies: answers it has not looked at: (process, token, answer).
        hints: leader_id → hint (by number), on the drivers' disks.
        checkpoint: query_id → last microbatch in Spark's commit log.
        acknowledged: (query_id, batch_id, position) that some driver was told is durable.
        plans: what drivers handed to their tasks, for stragglers to pick up.
        now_ms: the clock, the same on every wall.
        collected: records that were there once and were deleted on purpose.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    contents: frozenset[int] = frozenset()
    late: frozenset[tuple[str, bytes]] = frozenset()
    flying: frozenset[tuple[str, int, str, bytes]] = frozenset()
    replies: frozenset[tuple[str, int, str]] = frozenset()
    hints: dict[str, int] = field(default_factory=dict)
    checkpoint: dict[str, int] = field(default_factory=dict)
    acknowledged: frozenset[tuple[str, int, int]] = frozenset()
    plans: tuple[Any, ...] = ()
    now_ms: int = 1_000_000
    collected: frozenset[tuple[str, bytes]] = frozenset()

    def key(self) -> Hashable:
        """Equal for states that behave alike."""
        return (
            self.contents,
            self.late,
            self.flying,
            self.replies,
            tuple(self.hints.items()) if len(self.hints) < 2 else frozenset(self.hints.items()),
            tuple(sorted(self.checkpoint.items())),
            self.acknowledged,
            len(self.plans),
            self.now_ms,
            self.collected,
        )


_numbers: dict[Hashable, int] = {}
_hints: list[Any] = []


def _number(thing: Hashable) -> int:
    """A small number for an object of the store: comparing states compares these."""
    return _numbers.setdefault(thing, len(_numbers))


def apply(state: State, call: Call) -> tuple[State, Any]:
    """Carry out one call: the state after it, and its answer (an exception is one too)."""
    return _OPERATIONS[call.operation](state, *call.arguments)


def put(state: State, key: str, body: bytes) -> tuple[State, bool]:
    """Put-if-absent, atomically: the one primitive."""
    if key in state.objects:
        return state, False
    contents = state.contents | {_number((key, body))}
    return replace(state, objects={**state.objects, key: body}, contents=contents), True


def _get_range(state: State, key: str, offset: int, length: int) -> tuple[State, Any]:
    body = state.objects.get(key)
    return state, NotFound(key) if body is None else body[offset : offset + length]


def _list(state: State, prefix: str, limit: int) -> tuple[State, Any]:
    keys = sorted(key for key in state.objects if key.startswith(prefix))[:limit]
    return state, tuple(Entry(key, len(state.objects[key])) for key in keys)


def _delete(state: State, key: str) -> tuple[State, Any]:
    objects = {k: b for k, b in state.objects.items() if k != key}
    contents = frozenset(_number(item) for item in objects.items())
    return replace(state, objects=objects, contents=contents), None


def _load_hint(state: State, leader_id: str) -> tuple[State, Any]:
    number = state.hints.get(leader_id)
    return state, None if number is None else _hints[number]


def _save_hint(state: State, hint: Any) -> tuple[State, Any]:
    number = _number(("hint", repr(hint)))
    while len(_hints) <= number:
        _hints.append(None)
    _hints[number] = hint
    return replace(state, hints={**state.hints, hint.leadership.leader_id: number}), True


def _read_checkpoint(state: State, query_id: str) -> tuple[State, Any]:
    return state, state.checkpoint.get(query_id, -1)


def _write_checkpoint(state: State, query_id: str, batch_id: int) -> tuple[State, Any]:
    last = max(batch_id, state.checkpoint.get(query_id, -1))
    return replace(state, checkpoint={**state.checkpoint, query_id: last}), None


def _acknowledge(state: State, query_id: str, batch_id: int, position: int) -> tuple[State, Any]:
    entry = (query_id, batch_id, position)
    return replace(state, acknowledged=state.acknowledged | {entry}), None


def _publish_plan(state: State, plan: Any) -> tuple[State, Any]:
    return replace(state, plans=(*state.plans, plan)), None


def _take_plan(state: State) -> tuple[State, Any]:
    return state, state.plans[-1] if state.plans else None


def _send(state: State, process: str, token: int, key: str, body: bytes) -> tuple[State, Any]:
    return replace(state, flying=state.flying | {(process, token, key, body)}), None


def fly(state: State, flight: tuple[str, int, str, bytes], fate: str) -> State:
    """One PUT in flight meets its fate: done, lost (its reply), refused or late."""
    process, token, key, body = flight
    state = replace(state, flying=state.flying - {flight})
    answer = fate
    if fate == "late":
        state, answer = replace(state, late=state.late | {(key, body)}), "lost"
    elif fate != "refused":
        state, created = put(state, key, body)
        if fate == "done":
            answer = "created" if created else "taken"
    return replace(state, replies=state.replies | {(process, token, answer)})


def receive(state: State, reply: tuple[str, int, str]) -> tuple[State, Any]:
    """Hand one reply over: (token, answer)."""
    return replace(state, replies=state.replies - {reply}), reply[1:]


def _sleep(state: State, milliseconds: int) -> tuple[State, Any]:
    return replace(state, now_ms=state.now_ms + milliseconds), None


def _collect(state: State, key: str) -> tuple[State, Any]:
    gone = (
        state.collected | {(key, state.objects[key])} if key in state.objects else state.collected
    )
    return _delete(replace(state, collected=gone), key)


def _now(state: State) -> tuple[State, Any]:
    return state, state.now_ms


_OPERATIONS: dict[str, Callable[..., tuple[State, Any]]] = {
    "put": put,
    "get_range": _get_range,
    "list": _list,
    "delete": _delete,
    "load_hint": _load_hint,
    "save_hint": _save_hint,
    "read_checkpoint": _read_checkpoint,
    "write_checkpoint": _write_checkpoint,
    "acknowledge": _acknowledge,
    "publish_plan": _publish_plan,
    "take_plan": _take_plan,
    "send": _send,
    "sleep": _sleep,
    "collect": _collect,
    "now": _now,
}
