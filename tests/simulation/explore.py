"""Every interleaving of a small configuration.

A process is a function of the answers its threads got: so instead of keeping it alive,
it is run again from its start with the answers so far, for every history that comes up,
and what its threads ask next is remembered. The world is a value. Together that makes
an explicit-state search over the real code.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.simulation import lifecycle_oracle, losses, oracle, starts
from tests.simulation.codec import searching
from tests.simulation.data import PREFIX
from tests.simulation.histories import Histories
from tests.simulation.machine import Machine, Process
from tests.simulation.world import (
    LOCAL,
    REMOTE,
    SEEN,
    Call,
    Lost,
    Refused,
    State,
    apply,
    disk_faults,
    is_hurt,
    kept_in_part,
    put,
    replace,
    waits,
    without_locks,
)


class Budget(NamedTuple):
    """How much may go wrong in one run.

    Attributes:
        disks: times that a machine finds a new disk or a backup's folder as it starts.
        losses: records that are deleted from outside.
        cuts: records of which somebody deletes the content.
        lies: LISTs of records that are empty by mistake.
        blanks: GETs of records that bring no bytes by mistake.
        parts: PUTs of which the store keeps a part, without an answer.
    """

    crashes: int = 0
    faults: int = 0
    disks: int = 0
    losses: int = 0
    lies: int = 0
    parts: int = 0
    cuts: int = 0
    blanks: int = 0


@dataclass(frozen=True)
class Report:
    """The extent of a search. A step is one executed call, or one PUT that arrives."""

    states: int
    steps: int
    histories: int


class ConstantKeys(NamedTuple):
    """The keys that a process reads at once, because the answer never changes.

    Attributes:
        lasting: prefixes of keys whose objects are never changed or removed.
        still: prefixes of keys that are also never written to.
    """

    lasting: tuple[str, ...]
    still: tuple[str, ...]


DEAD = -1  # in the place of a history
Node = tuple[State, tuple[int, ...], Budget]
# (process, call, outcome)
Label = tuple[str, Call | str, str]
# (label, next state, node, budget, number of executed calls)
Move = tuple[Label, State, int, Budget, int]
Step = tuple[Label, Node, int]


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
        begin: the world before the first step. The default is empty.
        deletes: some process deletes objects. If none does, a request whose key is taken has one
            answer at any time, so it runs at once: fewer interleavings, and none is lost that a
            process could distinguish.
        still: folders of the log in which no process writes or deletes. Reads there run at once.
        every_start: read each log that occurs from every position too.
        gets_in: the name of a process that must not be fenced before it led.
        ends: by process: the outcomes that it may have, separated by spaces.
        follows: by process: the process that must have ended or died before it begins.
        ending: checks a world in which every process has ended or died.
        rng: search depth first in this order, which finds a flaw sooner. Without it the search is
            breadth first, which finds the shortest trace.

    Raises:
        Violation: a rule is broken. The error holds the trace.
    """
    calm = ConstantKeys(
        (f"{PREFIX}/lifecycle/",) if deletes or budget.losses + budget.cuts else _LASTING,
        tuple(f"{PREFIX}/{folder}/" for folder in still),
    )

    def search() -> Report:
        histories, names = Histories(list(processes.values())), list(processes)
        order = {names.index(name): names.index(before) for name, before in follows.items()}
        moves = _Moves(histories, names, calm, order)
        try:
            state, actors = begin or State(), []
            for process in range(len(names)):
                state, history, _ = _settled(
                    histories, process, 0, state, ConstantKeys((), calm.still), True
                )
                actors.append(history)
            state = moves.world(state)
            checks = _Checks(histories, names, state, every_start, gets_in, ends, ending)
            return _explore(moves, (state, tuple(actors), budget), checks, most_states, rng)
        finally:
            histories.close()

    with searching():
        # The garbage collector frees its states when it runs again.
        return search()


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
    moves: _Moves,
    start: Node,
    checks: _Checks,
    most_states: int,
    rng: random.Random | None,
) -> Report:
    # How each node was reached first.
    parents: dict[Node, tuple[Node, Label] | None] = {start: None}
    frontier = deque([start])
    taken = 0
    while frontier:
        node = frontier.popleft() if rng is None else frontier.pop()
        steps = moves.steps(node)
        if rng is not None:
            rng.shuffle(steps)
        for label, child, calls in steps:
            taken += calls
            if child in parents:
                continue
            parents[child] = (node, label)
            try:
                if checks.goes_on(node[0], child):
                    frontier.append(child)
            except oracle.Violation as violation:
                trace = _trace(parents, child)
                raise oracle.Violation(f"{violation}\n{trace}") from None
        if len(parents) > most_states:
            raise RuntimeError(f"more than {most_states} states")
    return Report(len(parents), taken, len(moves.histories))


def _trace(parents: dict[Node, tuple[Node, Label] | None], node: Node) -> str:
    lines: list[str] = []
    while (reached := parents[node]) is not None:
        node, (who, what, how) = reached
        shown = what if isinstance(what, str) else f"{what.operation} {_short(what.arguments)}"
        lines.append(f"{who}: {shown} {how}".rstrip())
    return "\n".join(f"{number:3}. {line}" for number, line in enumerate(reversed(lines), 1))


class _Checks:
    """The checks, each run once for a world, or for a process that ended in it.

    Args: as of `explore`.
    """

    def __init__(
        self,
        histories: Histories,
        names: list[str],
        begin: State,
        every_start: bool,
        gets_in: str,
        ends: Mapping[str, str],
        ending: Callable[[State], None] | None,
    ) -> None:
        self._histories, self._names = histories, names
        self._every_start = every_start
        self._gets_in = gets_in
        self._ending = ending
        self._ends = {name: outcomes.split() for name, outcomes in ends.items()}
        # By world: its verdict, or None if the search does not continue from it.
        self._verdicts: dict[State, oracle.Verdict | None] = {begin: ()}
        self._outcomes: set[tuple[int, int, State]] = set()
        self._read: set[Any] = set()

    def goes_on(self, before: State, node: Node) -> bool:
        """Whether what follows a node that `before` led to is searched too."""
        state, actors, _ = node
        if (now := self._verdict(state)) is None:
            return False
        # For a log that was recreated the rules do not apply.
        if before is not state and before.former == state.former:
            oracle.check_kept(self._verdicts[before] or (), now)
        ended = True
        for process, history in enumerate(actors):
            if history != DEAD:
                outcome = self._histories.where(process, history).outcome
                if outcome is None:
                    ended = False
                elif (process, history, state) not in self._outcomes:
                    self._outcomes.add((process, history, state))
                    self._check_outcome(self._names[process], outcome, state, now)
        if ended and self._ending is not None:
            self._ending(state)
        if self._every_start and state.contents not in self._read:
            self._read.add(state.contents)
            starts.check(state, now)
        return True

    def _verdict(self, state: State) -> oracle.Verdict | None:
        if state not in self._verdicts:
            self._verdicts[state] = None
            if not losses.is_over(state):
                losses.check(state)
                self._verdicts[state] = oracle.check((), state)
                if state.blame:
                    raise oracle.Violation(state.blame)
        return self._verdicts[state]

    def _check_outcome(self, name: str, outcome: str, state: State, now: oracle.Verdict) -> None:
        if outcome.startswith("read "):
            oracle.check_reading(outcome, now)
        elif outcome.startswith("delivered "):
            lifecycle_oracle.check_delivered(outcome, state)
        elif outcome.startswith("collected "):
            lifecycle_oracle.check_collected(outcome, state)
        if name == self._gets_in and outcome == "FencedError before it led":
            raise oracle.Violation(f"{name} did not get in")
        gone = state.loss or state.former or state.collected or is_hurt(state)
        if outcome == "InvalidLogError" and not gone:
            raise oracle.Violation(f"{name} found a damaged log, and nothing was deleted")
        if name in self._ends and outcome.split()[0] not in self._ends[name]:
            raise oracle.Violation(f"{name} ended with {outcome}")


class _Moves:
    """The possible next steps.

    The steps of one process depend only on its history, the world and the budget. They are computed
    once for all states that the other processes have reached meanwhile.
    """

    def __init__(
        self, histories: Histories, names: list[str], calm: ConstantKeys, follows: Mapping[int, int]
    ) -> None:
        self.histories = histories
        self._names = names
        self._calm = calm
        self._follows = follows
        self._worlds: dict[Hashable, State] = {}
        self._outside: dict[tuple[State, Budget], list[Move]] = {}
        self._own: dict[tuple[int, int, State, Budget], list[Move]] = {}

    def world(self, state: State) -> State:
        """The one that stands for all that behave alike: worlds are compared by identity."""
        return self._worlds.setdefault(state.key(), state)

    def steps(self, node: Node) -> list[Step]:
        state, actors, budget = node
        if (outside := self._outside.get((state, budget))) is None:
            outside = self._outside[state, budget] = list(self._from_outside(state, budget))
        steps = [(label, (after, actors, left), calls) for label, after, _, left, calls in outside]
        for process, history in enumerate(actors):
            if history == DEAD or not self._begins(process, actors):
                continue
            key = process, history, state, budget
            if (own := self._own.get(key)) is None:
                own = self._own[key] = list(self._of(*key))
            before, behind = actors[:process], actors[process + 1 :]
            for label, after, reached, left, calls in own:
                steps.append((label, (after, (*before, reached, *behind), left), calls))
        return steps

    def _begins(self, process: int, actors: tuple[int, ...]) -> bool:
        """Whether the one that it follows, if any, has ended or died."""
        if (first := self._follows.get(process)) is None or actors[first] == DEAD:
            return True
        return self.histories.where(first, actors[first]).outcome is not None

    def _from_outside(self, state: State, budget: Budget) -> Iterator[Move]:
        for late in sorted(state.late):
            before = replace(state, late=state.late - {late})
            after, created = put(before, *late)
            how = "created" if created else "taken"
            label = ("network", f"a PUT arrives late: {late[0]}", how)
            yield label, self.world(after), DEAD, budget, 1
            if budget.parts:
                less = budget._replace(parts=budget.parts - 1)
                for what, part in kept_in_part(before, *late):
                    kept = ("network", label[1], f"{what} is kept")
                    yield kept, self.world(part), DEAD, less, 1
        if budget.losses:
            less = budget._replace(losses=budget.losses - 1)
            for key, after in losses.each(state):
                yield ("outside", f"deletes {key}", ""), self.world(after), DEAD, less, 1
        if budget.cuts:
            less = budget._replace(cuts=budget.cuts - 1)
            for key, after in losses.each(state, cut=True):
                yield ("outside", f"cuts off {key}", ""), self.world(after), DEAD, less, 1

    def _of(self, process: int, history: int, state: State, budget: Budget) -> Iterator[Move]:
        name, calls = self._names[process], self.histories.where(process, history).calls
        if calls and budget.crashes:
            less = budget._replace(crashes=budget.crashes - 1)
            died = self.world(without_locks(state, name))
            yield (name, calls[0][1], "dies before it"), died, DEAD, less, 1
        for thread, call in calls:
            if waits(state, call):
                continue
            for how, after, answer, left in _outcomes(state, call, budget):
                reached = self.histories.after(history, thread, answer)
                world, reached, local = _settled(
                    self.histories,
                    process,
                    reached,
                    after,
                    self._calm,
                    left.faults + left.blanks > 0,
                )
                yield (name, call, how), self.world(world), reached, left, 1 + local


def _settled(
    histories: Histories, process: int, history: int, state: State, calm: ConstantKeys, faults: bool
) -> tuple[State, int, int]:
    """Run the steps of a process on its own machine, and requests whose answer never changes.

    Returns:
        The world, the history, and the number of calls.
    """
    count = 0
    while (found := _at_once(histories, process, history, state, calm, faults)) is not None:
        state, history = found
        count += 1
    return state, history, count


def _at_once(
    histories: Histories, process: int, history: int, state: State, calm: ConstantKeys, faults: bool
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
            # Other processes may see its next call, so they may run before it.
            if not any(call.operation in SEEN for _, call in following):
                return then, beyond
    return None


def _is_decided(state: State, call: Call, calm: ConstantKeys, faults: bool) -> bool:
    """Whether the answer is the same whenever the request is made."""
    if not call.arguments or not isinstance(call.arguments[0], str):
        return False
    where = call.arguments[0]
    if where.startswith(calm.still):
        is_refused = call.operation == "put" and where in state.objects
        if call.operation in _WRITES and not is_refused:
            raise RuntimeError(f"{call.operation} {where}: this folder was to be still")
        return call.operation in ("get_range", "list", "look", "put")
    if faults or call.operation not in ("get_range", "put") or where not in state.objects:
        return False
    return where.startswith(calm.lasting)


_WRITES = frozenset({"put", "overwrite", "replace", "delete"})
_LASTING = f"{PREFIX}/lifecycle/", f"{PREFIX}/batches/"


def _outcomes(state: State, call: Call, budget: Budget) -> list[tuple[str, State, Any, Budget]]:
    """Everything that can happen to one call: (label, state, answer, budget left)."""
    outcomes = [("", *apply(state, call), budget)]
    if budget.faults and call.operation in REMOTE:
        less = budget._replace(faults=budget.faults - 1)
        outcomes.append(("refused", state, Refused(), less))
        if call.operation in ("put", "overwrite", "replace", "table_write"):
            after, _ = apply(state, call)
            outcomes.append(("done, but the reply is lost", after, Lost(), less))
        if call.operation == "put":
            delayed = replace(state, late=state.late | {call.arguments})
            outcomes.append(("on its way, no reply", delayed, Lost(), less))
    if budget.parts and call.operation == "put":
        less = budget._replace(parts=budget.parts - 1)
        for what, after in kept_in_part(state, *call.arguments):
            outcomes.append((f"{what} is kept, no reply", after, Lost(), less))
    if budget.lies and call.operation == "list" and call.arguments[0] == f"{PREFIX}/batches/":
        less = budget._replace(lies=budget.lies - 1)
        outcomes.append(("empty by mistake", state, ((), False), less))
    if budget.blanks and call.operation == "get_range" and call.arguments[0] in state.objects:
        less = budget._replace(blanks=budget.blanks - 1)
        if call.arguments[0].startswith(f"{PREFIX}/batches/"):
            outcomes.append(("empty by mistake", state, b"", less))
    if budget.disks and call.operation == "mount":
        less = budget._replace(disks=budget.disks - 1)
        for how, after in disk_faults(state, *call.arguments):
            outcomes.append((how, after, None, less))
    return outcomes


def _short(arguments: tuple[Any, ...]) -> str:
    return str(arguments[0]) if arguments else ""
