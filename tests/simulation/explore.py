"""Every interleaving of a small configuration.

A process is a function of the answers its threads got: so instead of keeping it alive,
it is run again from its start with the answers so far, for every history that comes up,
and what its threads ask next is remembered. The world is a value. Together that makes
an explicit-state search over the real code.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from . import lifecycle_oracle, losses, oracle, starts
from .codec import searching
from .data import PREFIX
from .histories import Histories
from .machine import Machine, Process
from .world import (
    LOCAL,
    REMOTE,
    SEEN,
    Call,
    Lost,
    Refused,
    State,
    apply,
    disk_faults,
    put,
    waits,
    without_locks,
)


@dataclass(frozen=True)
class Budget:
    """How much may go wrong in one run.

    Attributes:
        disks: times that a machine finds a new disk or a backup's folder as it starts.
        losses: records that are deleted from outside.
    """

    crashes: int = 0
    faults: int = 0
    disks: int = 0
    losses: int = 0


@dataclass(frozen=True)
class Report:
    """What a search covered; a step is one call carried out, or one PUT that arrives."""

    states: int
    steps: int
    histories: int


class Calm(NamedTuple):
    """What a process reads at once, since its answer never changes.

    Attributes:
        lasting: prefixes of keys; what is there is never changed or removed.
        still: prefixes of keys; nothing is written there either.
    """

    lasting: tuple[str, ...]
    still: tuple[str, ...]


DEAD = -1  # in the place of a history
_DIES = object()  # in the place of an answer
Node = tuple[State, tuple[int, ...], Budget]
Label = tuple[str, Call | str, str]  # who, what, how it went
Step = tuple[Label, Node, int]  # and how many calls were carried out


def explore(
    processes: dict[str, Process],
    budget: Budget,
    *,
    begin: State | None = None,
    deletes: bool = False,
    still: Sequence[str] = (),
    every_start: bool = False,
    gets_in: str = "",
    ends: Mapping[str, str] = MappingProxyType({}),
    follows: Mapping[str, str] = MappingProxyType({}),
    ending: Callable[[State], None] | None = None,
    most_states: int = 10_000_000,
    rng: random.Random | None = None,
) -> Report:
    """Search every interleaving, with every way to spend `budget`, to the end.

    Args:
        begin: the world before the first step; empty if not given.
        deletes: whether some process deletes objects. If none does, a request whose key
            is taken has one answer whenever it is made, so it is made at once: fewer
            interleavings to look at, none left out that anyone could tell apart.
        still: folders of the log in which no process writes or deletes anything. What is read
            there is read at once, and undisturbed.
        every_start: whether each log that comes up is read from every position too.
        gets_in: the name of a process that must not be fenced before it led.
        ends: process → the outcomes that it may have, with spaces between them.
        follows: process → the one that must have ended or died before it begins.
        ending: checks a world in which every process has ended or died.
        rng: depth first and in this order, which finds a flaw sooner; without it
            breadth first, which finds the shortest way to it.

    Raises oracle.Violation with the trace that leads there.
    """
    with searching():
        histories, names = Histories(list(processes.values())), list(processes)
        try:
            return _explore(
                names,
                histories,
                budget,
                begin or State(),
                Calm(
                    (f"{PREFIX}/lifecycle/",) if deletes or budget.losses else _LASTING,
                    tuple(f"{PREFIX}/{folder}/" for folder in still),
                ),
                every_start,
                gets_in,
                {names.index(name): outcomes for name, outcomes in ends.items()},
                {names.index(name): names.index(before) for name, before in follows.items()},
                ending,
                most_states,
                rng,
            )
        finally:
            histories.close()


def died_in_flight(process: Process, begin: State | None = None) -> State:
    """The world after an appender that nothing disturbed died, none of its records answered:
    each may still arrive at any time, or never."""
    state = begin or State()
    with searching():
        machine = Machine(process)
        while waiting := [t for t, call in sorted(machine.calls.items()) if not _is_commit(call)]:
            state, answer = apply(state, machine.calls[waiting[0]])
            machine.answer(waiting[0], answer)
        sent = frozenset(call.arguments for call in machine.calls.values())
        machine.close()
    if not sent:
        raise ValueError("it ended with nothing in flight")
    return replace(state, late=state.late | sent)


def _is_commit(call: Call) -> bool:
    return call.operation == "put" and oracle.header(call.arguments[1])["kind"] == "commit"


def _explore(
    names: list[str],
    histories: Histories,
    budget: Budget,
    begin: State,
    calm: Calm,
    every_start: bool,
    gets_in: str,
    ends: Mapping[int, str],
    follows: Mapping[int, int],
    ending: Callable[[State], None] | None,
    most_states: int,
    rng: random.Random | None,
) -> Report:
    actors: list[int] = []
    for process in range(len(names)):
        begin, history, _ = _settled(histories, process, 0, begin, Calm((), calm.still), True)
        actors.append(history)
    start: Node = (begin, tuple(actors), budget)
    verdicts: dict[Any, oracle.Verdict] = {_key(start): ()}
    parents: dict[Any, tuple[Any, Label]] = {}
    frontier = deque([start])
    read: set[Any] = set()
    taken = 0
    while frontier:
        node = frontier.popleft() if rng is None else frontier.pop()
        key = _key(node)
        steps = _steps(names, histories, node, calm, follows)
        if rng is not None:
            rng.shuffle(steps)
        for label, child, calls in steps:
            taken += calls
            child_key = _key(child)
            if child_key in verdicts:
                continue
            parents[child_key] = (key, label)
            if losses.is_over(child[0]):
                verdicts[child_key] = ()
                continue
            try:
                losses.check(child[0])
                verdicts[child_key] = (
                    verdicts[key]
                    if child[0] is node[0]
                    else oracle.check(_known(verdicts[key], node[0], child[0]), child[0])
                )
                if child[0].blame:
                    raise oracle.Violation(child[0].blame)
                _check_readers(histories, child, verdicts[child_key])
                _check_gets_in(names, histories, child, gets_in)
                _check_ends(names, histories, child, ends)
                if ending is not None and all(
                    _ended(histories, child, p) for p in range(len(names))
                ):
                    ending(child[0])
                if every_start and child[0].contents not in read:
                    read.add(child[0].contents)
                    starts.check(child[0], verdicts[child_key])
            except oracle.Violation as violation:
                trace = _trace(parents, child_key)
                raise oracle.Violation(f"{violation}\n{trace}") from None
            frontier.append(child)
        if len(verdicts) > most_states:
            raise RuntimeError(f"more than {most_states} states")
    return Report(len(verdicts), taken, len(histories))


def _known(verdict: oracle.Verdict, before: State, after: State) -> oracle.Verdict:
    """Of a log that was recreated nothing is known."""
    return verdict if before.former == after.former else ()


def _key(node: Node) -> Any:
    return (node[0].key(), node[1], node[2])


def _trace(parents: dict[Any, tuple[Any, Label]], key: Any) -> str:
    lines: list[str] = []
    while key in parents:
        key, (who, what, how) = parents[key]
        shown = what if isinstance(what, str) else f"{what.operation} {_short(what.arguments)}"
        lines.append(f"{who}: {shown} {how}".rstrip())
    return "\n".join(f"{number:3}. {line}" for number, line in enumerate(reversed(lines), 1))


def _check_readers(histories: Histories, node: Node, now: oracle.Verdict) -> None:
    for process, history in enumerate(node[1]):
        if history != DEAD:
            outcome = histories.where(process, history).outcome
            if outcome is None:
                continue
            if outcome.startswith("read "):
                oracle.check_reading(outcome, now)
            elif outcome.startswith("delivered "):
                lifecycle_oracle.check_delivered(outcome, node[0])
            elif outcome.startswith("collected "):
                lifecycle_oracle.check_collected(outcome, node[0])


def _check_gets_in(names: list[str], histories: Histories, node: Node, gets_in: str) -> None:
    if gets_in:
        process = names.index(gets_in)
        history = node[1][process]
        if history != DEAD:
            outcome = histories.where(process, history).outcome
            if outcome == "FencedError before it led":
                raise oracle.Violation(f"{gets_in} did not get in")


def _check_ends(
    names: list[str], histories: Histories, node: Node, ends: Mapping[int, str]
) -> None:
    for process, outcomes in ends.items():
        history = node[1][process]
        if history != DEAD:
            outcome = histories.where(process, history).outcome
            if outcome is not None and outcome.split()[0] not in outcomes.split():
                raise oracle.Violation(f"{names[process]} ended with {outcome}")


def _ended(histories: Histories, node: Node, process: int) -> bool:
    history = node[1][process]
    return history == DEAD or histories.where(process, history).outcome is not None


def _steps(
    names: list[str],
    histories: Histories,
    node: Node,
    calm: Calm,
    follows: Mapping[int, int],
) -> list[Step]:
    state, actors, budget = node
    steps: list[Step] = []
    for late in sorted(state.late):
        after, created = put(replace(state, late=state.late - {late}), *late)
        told = "created" if created else "taken"
        steps.append(
            (("network", f"a PUT arrives late: {late[0]}", told), (after, actors, budget), 1)
        )
    if budget.losses:
        less = replace(budget, losses=budget.losses - 1)
        for key, after in losses.each(state):
            steps.append((("outside", f"deletes {key}", ""), (after, actors, less), 1))
    for process, history in enumerate(actors):
        if history == DEAD:
            continue
        if process in follows and not _ended(histories, node, follows[process]):
            continue
        calls = histories.where(process, history).calls
        if calls and budget.crashes:
            others = (*actors[:process], DEAD, *actors[process + 1 :])
            less = replace(budget, crashes=budget.crashes - 1)
            died = without_locks(state, names[process])
            steps.append(((names[process], calls[0][1], "dies before it"), (died, others, less), 1))
        for thread, call in calls:
            if waits(state, call):
                continue
            for how, after, answer, left in _outcomes(state, call, budget):
                reached = histories.after(history, thread, answer)
                world, reached, local = _settled(
                    histories, process, reached, after, calm, left.faults > 0
                )
                others = (*actors[:process], reached, *actors[process + 1 :])
                steps.append(((names[process], call, how), (world, others, left), 1 + local))
    return steps


def _settled(
    histories: Histories, process: int, history: int, state: State, calm: Calm, faults: bool
) -> tuple[State, int, int]:
    """What a process does on its own machine happens at once, and so does a request whose
    answer is the same whenever it is made: the world, the history, and how many calls."""
    count = 0
    while (found := _at_once(histories, process, history, state, calm, faults)) is not None:
        state, history = found
        count += 1
    return state, history, count


def _at_once(
    histories: Histories, process: int, history: int, state: State, calm: Calm, faults: bool
) -> tuple[State, int] | None:
    calls = histories.where(process, history).calls
    for thread, call in calls:
        if call.operation in LOCAL:
            state, answer = apply(state, call)
            return state, histories.after(history, thread, answer)
    for thread, call in calls:
        if _is_decided(state, call, calm, faults):
            then, answer = apply(state, call)
            beyond = histories.after(history, thread, answer)
            following = histories.where(process, beyond).calls
            # What it does next here others may see: they may come before it.
            if not any(call.operation in SEEN for _, call in following):
                return then, beyond
    return None


def _is_decided(state: State, call: Call, calm: Calm, faults: bool) -> bool:
    """Whether the answer is the same whenever the request is made."""
    if not call.arguments or not isinstance(call.arguments[0], str):
        return False
    where = call.arguments[0]
    if where.startswith(calm.still):
        if call.operation in _WRITES and where not in state.objects:
            raise RuntimeError(f"{call.operation} {where}: this folder was to be still")
        return call.operation in ("get_range", "list", "look", "put")
    if faults or call.operation not in ("get_range", "put") or where not in state.objects:
        return False
    return where.startswith(calm.lasting)


_WRITES = frozenset({"put", "overwrite", "delete"})
_LASTING = f"{PREFIX}/lifecycle/", f"{PREFIX}/batches/"


def _outcomes(state: State, call: Call, budget: Budget) -> list[tuple[str, State, Any, Budget]]:
    """Everything that can happen to one call: (label, state, answer, budget left)."""
    outcomes = [("", *apply(state, call), budget)]
    if budget.faults and call.operation in REMOTE:
        less = replace(budget, faults=budget.faults - 1)
        outcomes.append(("refused", state, Refused(), less))
        if call.operation in ("put", "overwrite", "table_write"):
            after, _ = apply(state, call)
            outcomes.append(("done, but the reply is lost", after, Lost(), less))
        if call.operation == "put":
            delayed = replace(state, late=state.late | {call.arguments})
            outcomes.append(("on its way, no reply", delayed, Lost(), less))
    if budget.disks and call.operation == "mount":
        less = replace(budget, disks=budget.disks - 1)
        for how, after in disk_faults(state, *call.arguments):
            outcomes.append((how, after, None, less))
    return outcomes


def _short(arguments: tuple[Any, ...]) -> str:
    return str(arguments[0]) if arguments else ""
