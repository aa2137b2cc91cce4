"""A record of the log is deleted from outside or cut off, at any moment.

Every process that looks at the log after that refuses to continue, as long as an object proves that
its writer had seen the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore
from tests.simulation import oracle
from tests.simulation.data import PREFIX

if TYPE_CHECKING:
    from tests.simulation.oracle import Verdict
    from tests.simulation.world import Call, State

_BATCHES = f"{PREFIX}/batches/"
_verified: set[Any] = set()


@dataclass(frozen=True)
class Loss:
    """The lost record, in a world in which one may be lost.

    Attributes:
        waits: each writer waits for a record before it sends the next. Then each record after the
            lost one proves the loss, whatever its `decided`.
        gone: (key, body) of the record.
        seen: the positions that some writer saw free, from the first gap to the end of its seals. A
            writer that saw them before a record came may fill them when that is deleted.
        excused: a writer looked when no object proved the loss. The search ends once it has filled
            the gap, because the protocol promises nothing then.
        cut: the record was cut off instead of deleted.
    """

    waits: bool
    gone: tuple[tuple[str, bytes], ...] = ()
    seen: frozenset[int] = frozenset()
    excused: bool = False
    cut: bool = False


def each(state: State, *, cut: bool = False) -> Iterator[tuple[str, State]]:
    """Each record that may be lost now, and the world after that."""
    from tests.simulation.world import put, without

    assert state.loss is not None
    for key, body in sorted(state.objects.items()):
        if key.startswith(_BATCHES) and oracle.header(body)["kind"] != "data":
            excused = oracle.header(body)["position"] in state.loss.seen and not cut
            loss = replace(state.loss, gone=((key, body),), excused=excused, cut=cut)
            after = without(state, key)
            if cut:
                after, _ = put(after, key, b"")
            yield key, replace(after, loss=loss)


def cut_off(state: State, position: int) -> tuple[State, None]:
    """The world after somebody cut off the record at a position, if there is one."""
    wanted = oracle.slot_key(position)
    return next((after for key, after in each(state, cut=True) if key == wanted), state), None


def noted(state: State, prefix: str) -> State:
    """The world after a writer has listed the log."""
    loss = state.loss
    if loss is None or prefix != _BATCHES:
        return state
    if not loss.gone:
        gap = 0
        while oracle.slot_key(gap) in state.objects:
            gap += 1
        reach = oracle.live(state)[-1]["in_flight_limit"] if gap else 1
        zone = range(gap, gap + reach)
        return replace(state, loss=replace(loss, seen=loss.seen.union(zone)))
    return replace(state, loss=replace(loss, excused=loss.excused or not _shows(state)))


def visible(state: State) -> Verdict:
    """The commits that a reader must see that lists now, if it does not refuse."""
    committed = oracle.committed(state)
    if state.loss is None or not state.loss.gone or _shows(state, newest_only=True):
        return committed
    lost = oracle.header(state.loss.gone[0][1])["position"]
    return tuple(entry for entry in committed if entry[0] < lost)


def is_over(state: State) -> bool:
    """Whether a writer filled the gap that could not see the loss."""
    return state.loss is not None and state.loss.excused and _is_filled(state)


def check(state: State) -> None:
    """Check that no process misses a proven loss.

    Raises:
        Violation: the gap was filled although the loss was proven, or `verify` calls the log sound.
    """
    if state.loss is None or not state.loss.gone:
        return
    ((key, _),) = state.loss.gone
    if _is_filled(state):
        raise oracle.Violation(f"{key} was lost, that was to be seen, and a writer filled the gap")
    is_there = key in state.objects and not state.loss.cut
    if is_there or not _shows(state) or (key, state.contents) in _verified:
        return
    _verified.add((key, state.contents))
    if verify_store(_log(state), PREFIX).ok:
        raise oracle.Violation(f"{key} was lost, that is to be seen, and verify sees it not")


def _is_filled(state: State) -> bool:
    assert state.loss is not None
    if not state.loss.cut:
        return any(state.objects.get(key, body) != body for key, body in state.loss.gone)
    lost = oracle.header(state.loss.gone[0][1])["position"]
    records = (oracle.header(body) for key, body in state.objects.items() if _is_whole(key, body))
    leaders = (each for each in records if each["kind"] == "leader" and each["reason"] != "seal")
    return any(each["prev_position"] < lost < each["position"] for each in leaders)


def _shows(state: State, *, newest_only: bool = False) -> bool:
    """Whether an object after the lost record proves that it existed."""
    assert state.loss is not None
    lost = oracle.header(state.loss.gone[0][1])["position"]
    after = [
        found
        for key, body in sorted(state.objects.items())
        if _is_whole(key, body) and (found := oracle.header(body))["position"] > lost
    ]
    # An object that is further away than a writer reaches proves it too, whatever its `decided`.
    reach = max((found["in_flight_limit"] for found in after), default=0)
    if after and after[0]["position"] > lost + reach:
        return True
    return any(
        found["decided"] >= lost or (state.loss.waits and found.get("reason") != "seal")
        for found in (after[:1] if newest_only else after)
    )


def _is_whole(key: str, body: bytes) -> bool:
    return key.startswith(_BATCHES) and not oracle.is_torn(body)


def _log(state: State) -> LogStore:
    from tests.simulation.clients import WorldStore
    from tests.simulation.world import apply

    def ask(call: Call) -> Any:
        _, answer = apply(state, call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return LogStore(WorldStore(ask, concurrency=1), PREFIX)
