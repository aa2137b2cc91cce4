"""The configurations that are searched; `checkpoints.py` has those with checkpoint folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation import (
    archives,
    checkpoints,
    lifecycles,
    paths,
    segmenting,
    sessions,
    transactions,
)
from tests.simulation.compacting import hours, others, outsider
from tests.simulation.configuration import Configuration
from tests.simulation.explore import Budget, died_in_flight
from tests.simulation.following import follower
from tests.simulation.losses import Loss
from tests.simulation.processes import (
    appender,
    collector,
    driver,
    reader,
    straggler,
)
from tests.simulation.world import TTL_MS, Call, State


def exhaustive() -> dict[str, Configuration]:
    """Name → what is searched to the end."""
    two = {"A": driver("A", "q", 1), "B": driver("B", "q", 1)}
    return {
        **archives.exhaustive(),
        **checkpoints.exhaustive(),
        **lifecycles.exhaustive(),
        **paths.of_two_logs(),
        **segmenting.exhaustive(),
        **sessions.exhaustive(),
        **transactions.exhaustive(),
        "one life, two batches, two partitions, every fault twice": Configuration(
            {"A": driver("A", "q/2", 2)},
            Budget(1, 2),
        ),
        "two lives of one query, every fault": Configuration(two, Budget(0, 1)),
        "two lives of one query, rows inlined, every fault": Configuration(
            {name: driver(name, "q", 1, inline=1000) for name in "AB"},
            Budget(0, 1),
        ),
        "two lives of one query, a LIST that is empty by mistake": Configuration(
            two, Budget(lies=1)
        ),
        "two lives of one query, a GET that is empty by mistake": Configuration(
            {**two, "R": reader()}, Budget(blanks=1)
        ),
        "two lives of one query, two GETs that are empty by mistake": Configuration(
            two, Budget(blanks=2)
        ),
        "two lives of one query, a record that the store keeps in part": Configuration(
            {
                **{name: driver(name, "q", 1, inline=1000) for name in "AB"},
                "R": reader(),
            },
            Budget(parts=1),
            every_start=True,
        ),
        "three lives of one query, two records that the store keeps in part": Configuration(
            {name: driver(name, "q", 2, inline=1000) for name in "ABC"},
            Budget(parts=2),
            follows={"B": "A", "C": "B"},
            every_start=True,
        ),
        "two lives of one query, an object that the store keeps in part": Configuration(
            two, Budget(parts=1)
        ),
        "two in flight, one that the store keeps in part, a takeover": Configuration(
            {"A": appender("A", "p", 2, 2), "B": appender("B", "q", 1, 1)},
            Budget(parts=1),
            every_start=True,
        ),
        "two in flight, the store keeps a part of a seal or a late record": Configuration(
            {"B": appender("B", "q", 1, 1), "C": appender("C", "r", 1, 1)},
            Budget(parts=1),
            begin=_two_in_flight,
            follows={"C": "B"},
            every_start=True,
        ),
        "two in flight, one that the store keeps in part, two takeovers and a stream": (
            Configuration(
                {
                    "A": appender("A", "p", 2, 2),
                    "B": driver("B", "q", 1, inline=1000),
                    "R": follower("R", 2),
                },
                Budget(crashes=1, parts=1),
                follows={"B": "A"},
                every_start=True,
            )
        ),
        "two lives in one application, a crash": Configuration(
            {name: driver(name, "q", 2, leader_id="app") for name in "AB"},
            Budget(1, 0),
        ),
        "two queries and a reader": Configuration(
            {"A": driver("A", "q", 1), "B": driver("B", "r", 1), "R": reader()},
            Budget(1, 0),
        ),
        "a straggling task after two lives": Configuration(
            {**two, "T": straggler(0)},
            Budget(1, 0),
        ),
        "two lives, two batches, an empty one, a reader": Configuration(
            {
                "A": driver("A", "q", 2, empty=frozenset({0})),
                "B": driver("B", "q", 2, empty=frozenset({0})),
                "R": reader(),
            },
            Budget(1, 0),
        ),
        "a sleeper after a collector": Configuration(
            {**two, "C": collector(GRACE_MS)},
            deletes=True,
        ),
        "a sleeping appender after a collector": Configuration(
            {
                "A": appender("A", "p", 1, 1, idle=True),
                "B": driver("B", "q", 1),
                "C": collector(GRACE_MS),
            },
            deletes=True,
        ),
        "a sleeping appender, its log is recreated as long": Configuration(
            {
                "A": appender("A", "p", 3, 1, idle=True, waits=True),
                "O": others(
                    outsider(Call("make_log_again")),
                    driver("X", "q", 1, inline=1000),
                    hours(TTL_MS),
                ),
            },
            deletes=True,
        ),
        "two queries, a straggler, a reader, a crash": Configuration(
            {
                "A": driver("A", "q", 1),
                "B": driver("B", "r", 1),
                "T": straggler(0),
                "R": reader(),
            },
            Budget(1, 0),
        ),
        "two appenders and a reader in the middle": Configuration(
            {**{name: appender(name, "p", 2, 2) for name in "AB"}, "R": reader(1)},
        ),
        "an appender and a sink": Configuration(
            {"A": appender("A", "p", 3, 2), "B": driver("B", "q", 1)},
            Budget(1, 0),
        ),
        "two in flight, takeovers with one and with two": Configuration(
            {"B": appender("B", "q", 0, 1), "C": appender("C", "r", 1, 2)},
            begin=_two_in_flight,
            every_start=True,
        ),
        "three and one in flight, takeovers with two and with one": Configuration(
            {"C": appender("C", "r", 0, 2), "D": appender("D", "s", 1, 1)},
            begin=lambda: died_in_flight(appender("B", "q", 1, 1), _three_in_flight()),
        ),
        "an appender that does not repeat, a fault": Configuration(
            {"A": appender("A", "p", 2, 2, retries=0), "B": appender("B", "p", 2, 1, retries=0)},
            Budget(0, 1),
        ),
        "two in flight, a sink, three in flight": Configuration(
            {"B": driver("B", "q", 1), "C": appender("C", "r", 1, 3)},
            begin=_two_in_flight,
            every_start=True,
        ),
        # The newcomer's first look may find an empty log, without a leader to ask; the second loses
        # the race before it asks. Then the leader may send one more record. With the one in flight
        # these are two more looks lost.
        "a busy appender is taken over in five looks whatever its pace": Configuration(
            {
                "A": appender("A", "p", 6, 1, looks=True),
                "B": appender("B", "q", 1, 1, looks=True, attempts=5),
            },
            gets_in="B",
        ),
        "a busy appender hands over, a crash": Configuration(
            {
                "A": appender("A", "p", 3, 2, looks=True),
                "B": appender("B", "p", 3, 1, looks=True),
            },
            Budget(1, 0),
        ),
        "three appenders hand over to each other": Configuration(
            {
                "A": appender("A", "p", 1, 1, looks=True),
                "B": appender("B", "q", 1, 1, looks=True),
                "C": appender("C", "r", 0, 1),
            },
            every_start=True,
        ),
        "two in flight, a sink that commits, a sink, a crash": Configuration(
            {name: driver(name, "q", 1, inline=1000) for name in "BC"},
            Budget(1, 0),
            begin=_two_in_flight,
            every_start=True,
        ),
        **_losses(),
    }


def _losses() -> dict[str, Configuration]:
    return {
        "a record is lost under an appender that waits for each": Configuration(
            {
                "A": appender("A", "p", 3, 3, waits=True),
                "B": appender("B", "q", 1, 1),
                "R": reader(refuses=True),
            },
            Budget(losses=1),
            begin=lambda: State(loss=Loss(waits=True)),
            follows={"B": "A", "R": "A"},
        ),
        "a record is lost under a sink": Configuration(
            {"A": driver("A", "q", 2), "B": driver("B", "q", 3), "R": reader(refuses=True)},
            Budget(losses=1),
            begin=lambda: State(loss=Loss(waits=True)),
            follows={"B": "A", "R": "A"},
        ),
        "a record is cut off under an appender that waits for each": Configuration(
            {
                "A": appender("A", "p", 3, 3, waits=True),
                "B": appender("B", "q", 1, 1),
            },
            Budget(cuts=1),
            begin=lambda: State(loss=Loss(waits=True)),
            follows={"B": "A"},
        ),
        "a record is cut off under a sink": Configuration(
            {"A": driver("A", "q", 2), "B": driver("B", "q", 3)},
            Budget(cuts=1),
            begin=lambda: State(loss=Loss(waits=True)),
            follows={"B": "A"},
        ),
        **{
            f"the record of position {position} is cut off before a reader": Configuration(
                {
                    "A": appender("A", "p", 3, 3, waits=True),
                    "B": driver("B", "q", 1),
                    "O": outsider(Call("cut_off", (position,))),
                    "R": reader(refuses=True),
                },
                begin=lambda: State(loss=Loss(waits=True)),
                follows={"B": "A", "R": "O"},
                deletes=True,
            )
            for position in (1, 2)
        },
        "a record is lost of two in flight, then a sink": Configuration(
            {"A": appender("A", "p", 2, 2), "B": driver("B", "q", 1), "R": reader(refuses=True)},
            Budget(losses=1),
            begin=lambda: State(loss=Loss(waits=False)),
            follows={"R": "B"},
        ),
        "a record is lost of two in flight, after a takeover that died": _died(_two_in_flight),
    }


def _died(in_flight: Callable[[], State]) -> Configuration:
    """A record is lost after a takeover that died."""
    return Configuration(
        {"B": appender("B", "q", 0, 1), "C": appender("C", "r", 0, 1)},
        Budget(crashes=1, losses=1),
        begin=lambda: replace(in_flight(), loss=Loss(waits=False)),
        follows={"C": "B"},
    )


def _two_in_flight() -> State:
    return died_in_flight(appender("A", "p", 2, 2))


def _three_in_flight() -> State:
    return died_in_flight(appender("A", "p", 3, 3))


def large() -> dict[str, Configuration]:
    """Up to minutes each; `python -m tests.simulation.search` searches them too."""
    return {
        **lifecycles.large(),
        **paths.large(),
        "a record is lost of three in flight, after a takeover that died": _died(_three_in_flight),
        "two in flight, the store keeps a part, two takeovers at once": Configuration(
            {"B": appender("B", "q", 1, 2), "C": appender("C", "r", 1, 1)},
            Budget(parts=1),
            begin=_two_in_flight,
            every_start=True,
        ),
        "three in flight, the store keeps a part": Configuration(
            {"B": appender("B", "q", 1, 1), "C": appender("C", "r", 1, 2)},
            Budget(parts=1),
            begin=_three_in_flight,
            every_start=True,
        ),
        "three in flight, takeovers with one and with two": Configuration(
            {"B": appender("B", "q", 0, 1), "C": appender("C", "r", 1, 2)},
            begin=_three_in_flight,
            every_start=True,
        ),
        "three in flight, a takeover with one, a reader after them": Configuration(
            {"A": appender("A", "p", 3, 3), "B": appender("B", "q", 2, 1), "R": reader(3)},
        ),
        "three in flight one after another, a reader after them": Configuration(
            {"A": appender("A", "p", 3, 2), "B": appender("B", "q", 1, 1), "R": reader(3)},
        ),
        "three in flight, one that commits with one, a takeover with two, a crash": Configuration(
            {"B": appender("B", "q", 1, 1), "C": appender("C", "r", 1, 2)},
            Budget(1, 0),
            begin=_three_in_flight,
            every_start=True,
        ),
        "two in flight, one that commits with one, a sink, a fault": Configuration(
            {"B": appender("B", "q", 1, 1), "C": driver("C", "r", 1)},
            Budget(0, 1),
            begin=_two_in_flight,
            every_start=True,
        ),
        "a busy appender hands over, a fault": Configuration(
            {
                "A": appender("A", "p", 2, 2, looks=True),
                "B": appender("B", "p", 2, 1, looks=True),
            },
            Budget(0, 1),
        ),
        "a busy appender hands over to a sink, a crash": Configuration(
            {"A": appender("A", "p", 3, 2, looks=True), "B": driver("B", "q", 1)},
            Budget(1, 0),
            every_start=True,
        ),
        "two appenders, two in flight, a fault": Configuration(
            {name: appender(name, "p", 2, 2, leader_id="host:app") for name in "AB"},
            Budget(0, 1),
        ),
        "three lives, a crash": Configuration(
            {name: driver(name, "q", 1) for name in "ABC"},
            Budget(1, 0),
        ),
        "three appenders, the second only leads": Configuration(
            {
                "A": appender("A", "p", 2, 2),
                "B": appender("B", "q", 0, 1),
                "C": appender("C", "q", 1, 1),
            },
        ),
        "four appenders, 2 1 1 1 in flight, the last three only lead": Configuration(
            {
                "A": appender("A", "p", 1, 2),
                "B": appender("B", "q", 0, 1),
                "C": appender("C", "r", 0, 1),
                "D": appender("D", "s", 0, 1),
            },
        ),
        **_three_appenders(),
        **checkpoints.large(),
    }


def _three_appenders() -> dict[str, Configuration]:
    return {
        f"three appenders, {a} {b} {c} in flight": Configuration(
            {
                "A": appender("A", "p", a, a),
                "B": appender("B", "q", 1, b),
                "C": appender("C", "q", 1, c),
            },
        )
        for a, b, c in ((2, 1, 2), (3, 1, 2), (2, 2, 1))
    }


# Longer than a plan lives.
GRACE_MS = 2 * TTL_MS
