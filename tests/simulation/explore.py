"""Every interleaving of a small configuration.

A process is a function of the answers it got: so instead of keeping it alive, it is
run again from its start with the answers so far, once for every history that comes
up, and what it asks next is remembered. The world is a value. Together that makes
an explicit-state search over the real code.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import oracle, starts
from .codec import memoized
from .processes import Process
from .world import (
    LOCAL,
    Call,
    Lost,
    Refused,
    State,
    apply,
    fly,
    put,
    receive,
)


class _Asked(BaseException):
    """Unwinds a process that waits for an answer nobody has given yet."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call


@dataclass(frozen=True)
class Budget:
    """How much may go wrong in one run."""

    crashes: int = 0
    faults: int = 0


@dataclass(frozen=True)
class Report:
    """What a search covered; a step is one call carried out, or one PUT that arrives."""

    states: int
    steps: int
    histories: int


class _Histories:
    """Histories of answers as small numbers; what a process does next after each."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._ids: dict[tuple[int, Any], int] = {}
        self._answers: list[tuple[Any, ...]] = [()]
        self._next: dict[tuple[int, int], Call | str] = {}

    def __len__(self) -> int:
        return len(self._next)

    def after(self, history: int, answer: Any) -> int:
        token = (history, _token(answer))
        if token not in self._ids:
            self._ids[token] = len(self._answers)
            self._answers.append((*self._answers[history], answer))
        return self._ids[token]

    def next(self, process: int, history: int) -> Call | str:
        """The call it waits in, or the outcome it ended with."""
        known = self._next.get((process, history))
        if known is None:
            known = self._run(process, self._answers[history])
            self._next[process, history] = known
        return known

    def _run(self, process: int, answers: tuple[Any, ...]) -> Call | str:
        given = iter(answers)

        def ask(call: Call) -> Any:
            for answer in given:
                if isinstance(answer, Exception):
                    raise answer
                return answer
            raise _Asked(call)

        try:
            return self._processes[process](ask)
        except _Asked as asked:
            return asked.call


def _token(answer: Any) -> Any:
    if isinstance(answer, (bytes, bool, int, str, tuple)) or answer is None:
        try:
            hash(answer)
        except TypeError:
            return repr(answer)
        return (type(answer).__name__, answer)
    return (type(answer).__name__, repr(answer))


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
    every_start: bool = False,
    most_states: int = 10_000_000,
    rng: random.Random | None = None,
) -> Report:
    """Search every interleaving, with every way to spend `budget`, to the end.

    Args:
        begin: the world before the first step; empty if not given.
        deletes: whether some process deletes objects. If none does, a request whose key
            is taken has one answer whenever it is made, so it is made at once: fewer
            interleavings to look at, none left out that anyone could tell apart.
        every_start: whether each log that comes up is read from every position too.
        rng: depth first and in this order, which finds a flaw sooner; without it
            breadth first, which finds the shortest way to it.

    Raises oracle.Violation with the trace that leads there.
    """
    with memoized():
        return _explore(processes, budget, begin or State(), deletes, every_start, most_states, rng)


def died_in_flight(process: Process, begin: State | None = None) -> State:
    """The world after an appender that nothing disturbed died, none of its PUTs answered:
    each may still arrive at any time, or never."""
    state = begin or State()

    def ask(call: Call) -> Any:
        nonlocal state
        if call.operation == "receive":
            raise _Asked(call)
        state, answer = apply(state, call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        process(ask)
    except _Asked:
        sent = frozenset((key, body) for _, _, key, body in state.flying)
        return replace(state, flying=frozenset(), late=state.late | sent)
    raise ValueError("it ended with nothing in flight")


def _explore(
    processes: dict[str, Process],
    budget: Budget,
    begin: State,
    deletes: bool,
    every_start: bool,
    most_states: int,
    rng: random.Random | None,
) -> Report:
    names = list(processes)
    histories = _Histories(list(processes.values()))
    start: Node = (begin, tuple(0 for _ in names), budget)
    verdicts: dict[Any, oracle.Verdict] = {_key(start): ()}
    parents: dict[Any, tuple[Any, Label]] = {}
    frontier = deque([start])
    read: set[Any] = set()
    taken = 0
    while frontier:
        node = frontier.popleft() if rng is None else frontier.pop()
        key = _key(node)
        steps = _steps(names, histories, node, deletes)
        if rng is not None:
            rng.shuffle(steps)
        for label, child, calls in steps:
            taken += calls
            child_key = _key(child)
            if child_key in verdicts:
                continue
            parents[child_key] = (key, label)
            try:
                verdicts[child_key] = oracle.check(verdicts[key], child[0])
                _check_readers(histories, child, verdicts[child_key])
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


def _key(node: Node) -> Any:
    return (node[0].key(), node[1], node[2])


def _trace(parents: dict[Any, tuple[Any, Label]], key: Any) -> str:
    lines: list[str] = []
    while key in parents:
        key, (who, what, how) = parents[key]
        shown = what if isinstance(what, str) else f"{what.operation} {_short(what.arguments)}"
        lines.append(f"{who}: {shown} {how}".rstrip())
    return "\n".join(f"{number:3}. {line}" for number, line in enumerate(reversed(lines), 1))


def _check_readers(histories: _Histories, node: Node, now: oracle.Verdict) -> None:
    for process, history in enumerate(node[1]):
        if history != DEAD:
            outcome = histories.next(process, history)
            if isinstance(outcome, str) and outcome.startswith("read "):
                oracle.check_reading((), outcome, now)


def _steps(names: list[str], histories: _Histories, node: Node, deletes: bool) -> list[Step]:
    state, actors, budget = node
    steps: list[Step] = []
    for late in sorted(state.late):
        after, created = put(replace(state, late=state.late - {late}), *late)
        told = "created" if created else "taken"
        steps.append(
            (("network", f"a PUT arrives late: {late[0]}", told), (after, actors, budget), 1)
        )
    for flight in sorted(state.flying):
        for fate in ("done", "lost", "refused", "late") if budget.faults else ("done",):
            left = budget if fate == "done" else Budget(budget.crashes, budget.faults - 1)
            steps.append(
                (("network", f"PUT {flight[2]} of {flight[0]}", fate),
                 (fly(state, flight, fate), actors, left), 1)
            )  # fmt: skip
    for process, history in enumerate(actors):
        if history == DEAD:
            continue
        call = histories.next(process, history)
        if isinstance(call, str):
            continue
        for label, after, answer, left in _outcomes(state, call, budget):
            reached = DEAD if answer is _DIES else histories.after(history, answer)
            world, calls = after, 1
            # What a process does on its own machine happens at once.
            while reached != DEAD:
                following = histories.next(process, reached)
                if isinstance(following, str):
                    break
                here = following.operation in LOCAL
                if not here and (deletes or left.faults or not _is_decided(world, following)):
                    break
                then, local = apply(world, following)
                beyond = histories.after(reached, local)
                if not here and _is_local(histories.next(process, beyond)):
                    # What it does next here others may see: they may come before it.
                    break
                world, reached, calls = then, beyond, calls + 1
            others = (*actors[:process], reached, *actors[process + 1 :])
            steps.append(((names[process], call, label), (world, others, left), calls))
    return steps


def _is_local(following: Call | str) -> bool:
    return not isinstance(following, str) and following.operation in LOCAL


def _is_decided(state: State, call: Call) -> bool:
    """Whether a request reaches an object that nobody will ever change or remove."""
    return call.operation in ("get_range", "put") and call.arguments[0] in state.objects


def _outcomes(state: State, call: Call, budget: Budget) -> list[tuple[str, State, Any, Budget]]:
    """Everything that can happen to one call: (label, state, answer, budget left)."""
    outcomes: list[tuple[str, State, Any, Budget]] = []
    if call.operation == "receive":
        for reply in sorted(state.replies):
            if reply[0] == call.arguments[0]:
                outcomes.append((reply[2], *receive(state, reply), budget))
    else:
        outcomes.append(("", *apply(state, call), budget))
    if budget.crashes:
        less = Budget(budget.crashes - 1, budget.faults)
        outcomes.append(("dies before it", state, _DIES, less))
    if budget.faults and call.operation in ("put", "get_range", "list"):
        less = Budget(budget.crashes, budget.faults - 1)
        outcomes.append(("refused", state, Refused(), less))
        if call.operation == "put":
            after, _ = apply(state, call)
            outcomes.append(("done, but the reply is lost", after, Lost(), less))
            delayed = replace(state, late=state.late | {call.arguments})
            outcomes.append(("on its way, no reply", delayed, Lost(), less))
    return outcomes


def _short(arguments: tuple[Any, ...]) -> str:
    return str(arguments[0]) if arguments else ""
