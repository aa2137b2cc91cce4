"""Configurations of queries with a checkpoint folder on their machine's disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.simulation import oracle
from tests.simulation.codec import searching
from tests.simulation.configuration import Configuration
from tests.simulation.endings import all_in
from tests.simulation.explore import Budget
from tests.simulation.machine import Machine, Process
from tests.simulation.queries import BY_ID, Forked, Kind, backup, query, source
from tests.simulation.world import State, apply, without

NAMED = Kind()
BLIND = Kind(BY_ID, blind=True)
AS_IT_IS = Kind(blind=True)
LISTS = Kind(lists=True)
ARCHIVES = Kind(archives=True)
CONSUMER = Kind(archives=True, consumer=True)
SHARED = Kind(shared=True)
REMOTE = Kind(BY_ID, remote=True)


def exhaustive() -> dict[str, Configuration]:
    """Name → what is searched to the end."""
    return {
        "two machines begin, a source that grows, a crash": _queries(
            NAMED,
            {"A": query("A", "m1", NAMED), "B": query("B", "m2", NAMED), "S": source(1, 2)},
            Budget(1),
        ),
        "a lost disk or a backup, then sparkwal.checkpoint": _restored(NAMED, {}, (1, 1, 1)),
        "a lost disk or a backup, used as it is": _restored(BLIND, {}, (1, 1, 1)),
        "two machines, a source that lists files": _queries(
            LISTS,
            {"A": query("A", "m1", LISTS), "B": query("B", "m2", LISTS), "S": source(1, 1)},
            Budget(1),
        ),
        "two machines, a source that archives, a crash": _queries(
            ARCHIVES,
            {"A": query("A", "m1", ARCHIVES), "B": query("B", "m2", ARCHIVES), "S": source(1, 1)},
            Budget(1),
        ),
        "two machines, microbatches without rows": _queries(
            NAMED,
            {"A": query("A", "m1", NAMED), "B": query("B", "m2", NAMED), "S": source(1)},
            Budget(),
            begin=lambda: replace(_written(NAMED, 1), source=2, dropped=frozenset({1})),
        ),
        "microbatches without rows, used as it is": _queries(
            BLIND,
            {
                "A": query("A", "m1", BLIND),
                "A2": query("A2", "m1", BLIND),
                "B": query("B", "m2", BLIND),
                "S": source(1),
            },
            Budget(),
            begin=lambda: replace(_written(BLIND, 1), source=2, dropped=frozenset({1})),
            follows={"A2": "A"},
        ),
        "a checkpoint that the sink does not see, and a backup of it": Configuration(
            {
                "A": query("A", "far", REMOTE),
                "A2": query("A2", "far", REMOTE, most=2),
                "K": backup("far"),
                "S": source(2, 2),
            },
            Budget(0, 0, 1),
            begin=lambda: State(source=1),
            follows={"A2": "A"},
        ),
        "a log that a backup has put back by 1": _put_back_by(1),
        "a log that a backup has put back by all microbatches": _put_back_by(3),
        "a log that a backup has put back below microbatches without rows": _put_back_below(),
        "a log that was put back, a folder used as it is passes over rows": _queries(
            NAMED,
            {"A": query("A", "m1", AS_IT_IS), "B": query("B", "m1", NAMED), "S": source(1)},
            Budget(1),
            begin=lambda: replace(
                _without_last(_written(NAMED, 2), 1), source=3, dropped=frozenset({2})
            ),
            follows={"B": "A", "S": "A"},
        ),
        "two folders pass over rows, one used as it is": _queries(
            NAMED,
            {
                "A": query("A", "m1", AS_IT_IS, most=1),
                "A2": query("A2", "m1", AS_IT_IS, most=1),
                "B": query("B", "m2", NAMED),
                "S": source(1),
            },
            Budget(1),
            begin=lambda: replace(_written(NAMED, 1), source=3, dropped=frozenset({1, 2})),
            follows={"A2": "A"},
        ),
        "two machines fork a query at two places": _forks(1, 3),
        "a consumer that passes over rows, a lost disk": _passing(CONSUMER, 100),
        "a consumer that passes over rows, a record now and then, a lost disk": _passing(
            CONSUMER, 2
        ),
    }


def large() -> dict[str, Configuration]:
    """Up to minutes each."""
    return {
        "two machines, a source that grows, a fault": _queries(
            NAMED,
            {"A": query("A", "m1", NAMED), "B": query("B", "m2", NAMED), "S": source(1, 1)},
            Budget(0, 1),
        ),
        "two machines, a source that lists files, compacted lists": _queries(
            LISTS,
            {"A": query("A", "m1", LISTS), "B": query("B", "m2", LISTS), "S": source(1, 1, 1)},
            Budget(0),
        ),
        "two machines, a source that archives, three times, a crash": _queries(
            ARCHIVES,
            {
                "A": query("A", "m1", ARCHIVES),
                "B": query("B", "m2", ARCHIVES),
                "S": source(1, 1, 1),
            },
            Budget(1),
        ),
        "two machines, microbatches without rows, a crash": _queries(
            NAMED,
            {"A": query("A", "m1", NAMED), "B": query("B", "m2", NAMED), "S": source(1, 1, 1)},
            Budget(1),
            begin=lambda: State(source=0, dropped=frozenset({1})),
        ),
        "two machines and a backup, used as it is": _restored(
            BLIND, {"B": query("B", "m2", BLIND)}, (1, 1), crashes=0
        ),
        "two lives on one machine as it is, one on another": _queries(
            BLIND,
            {
                "A": query("A", "m1", BLIND),
                "A2": query("A2", "m1", BLIND),
                "B": query("B", "m2", BLIND),
                "S": source(1, 1),
            },
            Budget(),
            follows={"A2": "A"},
        ),
        "two drivers on one folder": _queries(
            SHARED,
            {"A": query("A", "m1", SHARED), "B": query("B", "m1", SHARED), "S": source(1, 1, 1)},
            Budget(),
        ),
        "two machines fork a query at once, a crash": _forks(1, 1, crashes=1),
        "two machines fork a query at two places, a crash": _forks(1, 3, crashes=1),
        "a log that a backup has put back by 2": _put_back_by(2),
    }


def _queries(
    kind: Kind,
    processes: dict[str, Callable[..., str]],
    budget: Budget,
    *,
    begin: Callable[[], State] = lambda: State(source=0),
    follows: dict[str, str] | None = None,
) -> Configuration:
    ending = partial(all_in, kind)
    return Configuration(processes, budget, begin, follows=follows or {}, ending=ending)


def _restored(
    kind: Kind, others: dict[str, Callable[..., str]], growth: tuple[int, ...], crashes: int = 1
) -> Configuration:
    """A machine starts again, and its disk is new or a backup's."""
    lives = {"A": query("A", "m1", kind), "A2": query("A2", "m1", kind, restarts=2)}
    processes = {**lives, **others, "K": backup("m1"), "S": source(*growth)}
    return _queries(kind, processes, Budget(crashes, 0, 1), follows={"A2": "A"})


def _forks(one: int, two: int, crashes: int = 0) -> Configuration:
    """Two machines continue another log's query after so many of its microbatches, each of a
    row."""
    written = _written(NAMED, 3)
    # A mutation of the protocol may leave fewer commits. The other configurations are still built.
    commits = dict(enumerate((position for position, _, _ in oracle.committed(written)), 1))
    forked = Forked(tuple(written.objects.items()))
    kinds = [replace(NAMED, forked=(forked, commits.get(number, 0))) for number in (one, two)]
    return _queries(
        kinds[0],
        {"A": query("A", "m1", kinds[0], most=1), "B": query("B", "m2", kinds[1])},
        Budget(crashes),
        begin=lambda: State(source=4, forks=frozenset({one, two})),
    )


def _passing(kind: Kind, forward: int) -> Configuration:
    """The query drops all rows that come, while its machine may get a new disk."""
    passing = _queries(
        kind,
        {
            "A": query("A", "m1", kind, most=1),
            "A2": query("A2", "m1", kind, most=1),
            "S": source(1, 1, 1),
        },
        Budget(1, 0, 1),
        begin=lambda: replace(_written(kind, 1), source=2, dropped=frozenset({1, 2, 3})),
        follows={"A2": "A"},
    )
    return replace(passing, forward=forward)


def _put_back_below() -> Configuration:
    """After the last record the query has passed over rows; then the log has lost that record."""

    def begin() -> State:
        state = replace(_written(NAMED, 2), source=3, dropped=frozenset({2}))
        return _without_last(_after(state, query("passing", "m1", NAMED)), 1)

    return _queries(
        NAMED,
        {
            "B": query("B", "m1", NAMED),
            "C": query("C", "m1", NAMED),
            "S": source(1),
        },
        Budget(1),
        begin=begin,
        follows={"C": "B"},
    )


def _put_back_by(lost: int) -> Configuration:
    return _queries(
        NAMED,
        {"B": query("B", "m1", NAMED), "C": query("C", "m2", NAMED), "S": source(1)},
        Budget(1),
        begin=partial(_put_back, lost),
    )


def _put_back(lost: int) -> State:
    """The world after three microbatches, whose log was then restored from a backup.

    The log lacks its last records, and no process can be blamed for them any more.
    """
    return _without_last(_written(NAMED, 3), lost)


def _without_last(state: State, lost: int) -> State:
    commits = [position for position, _, _ in oracle.committed(state)]
    kept = {oracle.slot_key(position) for position in range(commits[-lost])}
    for key in set(state.objects) - kept:
        state = without(state, key)
    return replace(state, acknowledged=frozenset(), denied=frozenset())


def _written(kind: Kind, microbatches: int) -> State:
    """The world after microbatches of one row each, on m1."""
    state = State(source=0)
    for number in range(microbatches):
        state = _after(replace(state, source=number + 1), query(f"before-{number}", "m1", kind))
    return state


def _after(state: State, process: Process) -> State:
    """The world after this process, undisturbed."""
    with searching():
        life = Machine(process)
        while life.calls:
            state, answer = apply(state, life.calls[0])
            life.answer(0, answer)
    return state
