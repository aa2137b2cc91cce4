"""Logs whose rows go to a table and leave the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from sparkwal.format.lifecycle_record import Target
from tests.simulation import oracle
from tests.simulation.codec import searching
from tests.simulation.compacting import (
    GRACE_MS,
    TARGET,
    WITH_TOMBSTONES,
    changer,
    collector,
    compactor,
    giver,
    hours,
    keeper,
    mender,
    others,
    outsider,
)
from tests.simulation.configuration import Configuration, keeping
from tests.simulation.explore import Budget
from tests.simulation.following import (
    beginner,
    current,
    follower,
    latecomer,
    namesake,
    reader_of_all,
    reader_of_the_log,
    without_a_log,
)
from tests.simulation.machine import Machine, Process
from tests.simulation.outside import undisturbed
from tests.simulation.processes import appender, driver
from tests.simulation.world import Call, State, apply, without

_STILL = "batches", "consumers"
_PAST = GRACE_MS + 1
# Rows in records that stay are erased after twice the grace.
_LONG_PAST = 2 * GRACE_MS + 1


_ONE_AND_THE_NEXT = {"A": compactor("A"), "B": compactor("B")}


def exhaustive() -> dict[str, Configuration]:
    """Name → what is searched to the end."""
    return {
        **followed(),
        **with_tombstones(),
        **with_old_records(),
        **erased(),
        "two compactors, a crash": Configuration(
            {"A": compactor("A"), "B": compactor("B", runs=2)},
            Budget(1, 0),
            begin=lambda: written(1),
            still=_STILL,
        ),
        "two compactors, the store keeps a part": Configuration(
            {"A": compactor("A"), "B": compactor("B", runs=2)},
            Budget(parts=1),
            begin=lambda: written(1),
            still=_STILL,
        ),
        "two compactors of a promised range, the store keeps a part": Configuration(
            _ONE_AND_THE_NEXT,
            Budget(parts=1),
            begin=_promised,
            still=_STILL,
        ),
        "a compactor takes over, the store keeps a part": Configuration(
            _ONE_AND_THE_NEXT,
            Budget(crashes=1, parts=1),
            begin=lambda: compacted(1, 1),
            ends={"B": "done"},
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor takes over, a fault": Configuration(
            _ONE_AND_THE_NEXT,
            Budget(1, 1),
            begin=lambda: compacted(1, 1),
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor, a writer, a crash": Configuration(
            {"A": compactor("A", runs=2), "W": driver("X", "q", 3, inline=1000)},
            Budget(1, 0),
            begin=lambda: written(1),
            still=("consumers",),
        ),
        "a compactor takes over, OPTIMIZE": Configuration(
            {**_ONE_AND_THE_NEXT, "O": outsider(Call("optimize"))},
            Budget(1, 0),
            begin=lambda: compacted(1, 1),
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor takes over, the table forgets": Configuration(
            {**_ONE_AND_THE_NEXT, "O": outsider(Call("forget"))},
            Budget(1, 0),
            begin=lambda: compacted(1, 1),
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor takes over, the table is recreated": Configuration(
            {**_ONE_AND_THE_NEXT, "O": outsider(Call("table_make_again"))},
            Budget(1, 0),
            begin=lambda: compacted(1, 1),
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor takes over, the table is restored": Configuration(
            {**_ONE_AND_THE_NEXT, "O": outsider(Call("restore", (0,)))},
            Budget(1, 0),
            begin=lambda: _collectable(3, 1),
            follows={"B": "A"},
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "the table is restored before an open range, and accepted": Configuration(
            {"A": compactor("A"), "M": mender("M", Call("restore_confirmed"))},
            Budget(1, 0),
            begin=lambda: compacted(1, 1),
            ends={"M": "done"},
            still=_STILL,
        ),
        "the table is restored to its newest version, and accepted": Configuration(
            {"A": compactor("A"), "M": mender("M", Call("restore", (99,)))},
            Budget(1, 0),
            begin=lambda: compacted(1, 1),
            ends={"M": "done"},
            still=_STILL,
        ),
        "a user gives a range up, a compactor finishes it, a crash": Configuration(
            {"A": compactor("A", collects=False), "U": giver("U")},
            Budget(1, 0),
            begin=_promised,
            ends={"A": "done", "U": "done"},
            still=_STILL,
        ),
        "a user changes the target of a promised range under a compactor, a crash": Configuration(
            {"U": changer("U"), "O": others(compactor("A", collects=False))},
            Budget(1, 0),
            begin=_promised,
            ends={"U": "done"},
            still=_STILL,
        ),
        "a collector with an old view, a compactor, a crash": Configuration(
            {"A": compactor("A"), "C": collector("C")},
            Budget(1, 0),
            begin=lambda: _collectable(3, 1),
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "a collection and a writer": Configuration(
            {"C": compactor("C"), "W": driver("X", "q", 6, inline=1000)},
            Budget(1, 0),
            begin=lambda: _collectable(4, 0),
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "a log that is recreated": Configuration(
            {
                "A": compactor("A"),
                "R": outsider(Call("make_log_again")),
                "W": driver("X", "q", 4, inline=1000),
            },
            begin=lambda: compacted(1, 1),
            follows={"W": "R"},
            still=("consumers",),
            deletes=True,
        ),
        "a log at rest is recreated with as many records": Configuration(
            {
                "R": outsider(Call("make_log_again")),
                "W": driver("X", "q", 1, inline=1000),
                "A": compactor("A", of="*"),
                "B": compactor("B", of="*"),
            },
            begin=lambda: after([compactor("0", of="*")], written(1)),
            follows={"W": "R", "A": "W", "B": "W"},
            ends={"A": "PlanError", "B": "PlanError"},
            still=("consumers",),
            deletes=True,
        ),
        # A user who recreates a log during a collection may lose rows: section 10.
        "a log that is recreated before it is collected": Configuration(
            {
                "R": outsider(Call("make_log_again")),
                "W": driver("X", "q", 6, inline=1000),
                "A": compactor("A"),
                "C": collector("C"),
            },
            begin=lambda: _collectable(4, 0),
            follows={"W": "R", "A": "R", "C": "R"},
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "a zombie's slot is collected": Configuration(
            {
                "Z": driver("Z", "z", 1, inline=1000),
                "O": others(
                    driver("X", "q", 4, inline=1000), compactor("A"), hours(_PAST), compactor("C")
                ),
            },
            begin=lambda: written(1),
            deletes=True,
            kept=2,
        ),
        "an appender whose slot is collected": Configuration(
            {
                "Z": appender("Z", "z", 2, 1, idle=True),
                "O": others(
                    driver("X", "q", 4, inline=1000), compactor("A"), hours(_PAST), compactor("C")
                ),
            },
            begin=lambda: written(1),
            deletes=True,
            kept=2,
        ),
        "an appender sleeps until all but the last records are collected": Configuration(
            {
                "Z": appender("Z", "z", 3, 1, idle=True),
                "O": others(compactor("A"), hours(_PAST), compactor("C")),
            },
            ends={"Z": "done"},
            begin=lambda: written(1),
            deletes=True,
            kept=2,
        ),
        "a query begins when all but the last records are collected": Configuration(
            {
                "O": others(compactor("A"), hours(_PAST), compactor("C")),
                "X": driver("X", "x", 1, inline=1000),
            },
            ends={"X": "done"},
            begin=lambda: written(3),
            deletes=True,
            kept=2,
        ),
        "a query begins after a collection, by a LIST that is empty by mistake": Configuration(
            {
                "O": others(compactor("A"), hours(_PAST), compactor("C")),
                "X": driver("X", "x", 2, inline=1000),
            },
            Budget(1, 0, lies=2),
            ends={"X": "done"},
            follows={"X": "O"},
            begin=lambda: written(3),
            deletes=True,
            kept=2,
        ),
    }


def with_old_records() -> dict[str, Configuration]:
    """The same while old records of the chain are deleted under a process that looked before."""

    def configuration(records: int, pause_ms: int) -> Configuration:
        return Configuration(
            {
                "A": compactor("A", collects=False),
                "O": others(keeper("K", 4, pause_ms)),
                "B": compactor("B"),
            },
            begin=lambda: compacted(1, 1),
            ends={"A": "done", "B": "done"},
            follows={"B": "A"},
            still=("consumers",),
            deletes=True,
            records=records,
        )

    def late(runs: int) -> Configuration:
        return Configuration(
            {"O": others(keeper("K", 4, 2 * _PAST)), "C": compactor("C", runs=runs)},
            begin=_late_record,
            ends={"C": "done"},
            still=("consumers",),
            deletes=True,
            records=2,
        )

    return {
        "a compactor sleeps until its number was used and freed": configuration(2, 2 * _PAST),
        "a compactor does not sleep while records are deleted": configuration(2, 0),
        "a compactor sleeps, and its number stays in use": configuration(4, 2 * _PAST),
        "a late lifecycle record at a number that was freed": late(runs=1),
        "a late lifecycle record at a number that was freed, two runs": late(runs=2),
    }


def with_tombstones() -> dict[str, Configuration]:
    """The same with a table that keeps the sequences of deleted keys."""
    kept = WITH_TOMBSTONES
    return {
        "two compactors with tombstones, a crash": Configuration(
            {
                "A": compactor("A", collects=False, target=kept),
                "B": compactor("B", collects=False, target=kept),
            },
            Budget(1, 0),
            begin=lambda: compacted(1, 1, kept),
            ends={"A": "done", "B": "done"},
            still=_STILL,
        ),
        "a compactor takes over, the tombstones are restored": Configuration(
            {
                "A": compactor("A", collects=False, target=kept),
                "B": compactor("B", collects=False, target=kept),
                "O": outsider(Call("tombstones_restore", (0,))),
            },
            Budget(1, 0),
            begin=lambda: compacted(1, 1, kept),
            follows={"B": "A"},
            still=_STILL,
        ),
        "the table is restored before an open range with tombstones": Configuration(
            {
                "A": compactor("A", collects=False, target=kept),
                "M": mender("M", Call("restore_confirmed"), target=kept),
            },
            Budget(1, 0),
            begin=lambda: compacted(1, 1, kept),
            ends={"M": "done"},
            still=_STILL,
        ),
        "the tombstones are restored before an open range, and accepted": Configuration(
            {
                "A": compactor("A", collects=False, target=kept),
                "M": mender("M", Call("tombstones_restore"), target=kept),
            },
            Budget(1, 0),
            begin=lambda: compacted(1, 1, kept),
            ends={"M": "done"},
            still=_STILL,
        ),
        "the tombstones are restored before a promised range, and accepted": Configuration(
            {
                "A": compactor("A", collects=False, target=kept),
                "M": mender("M", Call("tombstones_restore"), target=kept),
            },
            Budget(1, 0),
            begin=lambda: _promised(kept),
            ends={"M": "done"},
            still=_STILL,
        ),
        "table, tombstones and log as one, a compactor, a writer": Configuration(
            {
                "R": current("R"),
                "A": compactor("A", collects=False, target=kept),
                "O": others(driver("X", "q", 3, inline=1000)),
            },
            begin=lambda: compacted(1, 1, kept),
            ends={"R": "delivered CollectedError"},
            still=("consumers",),
        ),
    }


def erased() -> dict[str, Configuration]:
    """The same where all records stay, and lose their rows."""
    erasing = partial(Configuration, still=("consumers",), deletes=True, kept=9)
    return {
        "rows are erased by two collectors, a crash": erasing(
            {"C": collector("C"), "D": collector("D")},
            Budget(1, 0),
            begin=lambda: _erasable(1, 1),
        ),
        "rows are erased by one collector, a fault": erasing(
            {"C": collector("C")},
            Budget(0, 1),
            begin=lambda: _erasable(2, 1),
        ),
        "rows are erased beside a writer": erasing(
            {"C": collector("C"), "W": driver("X", "q", 3, inline=1000)},
            begin=lambda: _erasable(1, 1),
        ),
        "rows are erased while the log is recreated": erasing(
            {
                "C": collector("C"),
                "R": outsider(Call("make_log_again")),
                "W": driver("X", "q", 3, inline=1000),
            },
            begin=lambda: _erasable(1, 0),
            follows={"W": "R"},
        ),
        "a reader while rows are erased": erasing(
            {
                "R": follower("R", 2),
                "O": others(compactor("A"), hours(_LONG_PAST), compactor("C")),
            },
            begin=lambda: written(2),
            ends={"R": "delivered collected"},
            still=(),
        ),
    }


def followed() -> dict[str, Configuration]:
    """The same with readers."""
    return {
        "a reader while all is collected, a stray": Configuration(
            {
                "R": follower("R", 2),
                "O": others(compactor("A"), hours(_PAST), compactor("C")),
            },
            begin=_stray,
            ends={"R": "delivered collected"},
            deletes=True,
            kept=2,
        ),
        "a reader while all is collected, a stray leader": Configuration(
            {
                "R": follower("R", 2),
                "O": others(compactor("A"), hours(_PAST), compactor("C")),
            },
            begin=_stray_leader,
            ends={"R": "delivered collected"},
            deletes=True,
            kept=2,
        ),
        "a log that is recreated, and a consumer that joins": Configuration(
            {
                "K": follower("K", 1, joins=True),
                "O": others(outsider(Call("make_log_again")), driver("X", "q", 6, inline=1000)),
            },
            begin=lambda: compacted(2, 0),
            ends={"K": "delivered nothing InvalidLogError AnotherLog"},
            deletes=True,
        ),
        "table and log as one, a compactor, a writer": Configuration(
            {
                "R": current("R"),
                "A": compactor("A", collects=False),
                "O": others(driver("X", "q", 3, inline=1000)),
            },
            begin=lambda: compacted(1, 1),
            ends={"R": "delivered CollectedError"},
            still=("consumers",),
        ),
        "table and log as one while all is collected": Configuration(
            {
                "R": current("R"),
                "O": others(compactor("A"), hours(_PAST), compactor("C")),
            },
            begin=lambda: compacted(3, 2),
            ends={"R": "delivered CollectedError"},
            deletes=True,
            kept=2,
        ),
        "a stream begins with the table while the floor moves": Configuration(
            {
                "K": beginner("K"),
                "A": compactor("A", collects=False),
                "O": others(hours(_PAST), compactor("C")),
            },
            begin=lambda: compacted(1, 1),
            ends={"K": "delivered"},
            follows={"O": "A"},
            deletes=True,
            kept=2,
        ),
        "a reader whose objects are collected": Configuration(
            {
                "R": follower("R", 2),
                "O": others(compactor("A"), hours(_PAST), compactor("C")),
            },
            begin=lambda: _with_objects(2),
            ends={"R": "delivered collected"},
            deletes=True,
            kept=4,
        ),
        "a consumer joins while the floor moves": Configuration(
            {
                "K": follower("K", 0, joins=True),
                "A": compactor("A", collects=False),
                "O": others(hours(_PAST), compactor("C")),
            },
            begin=lambda: _almost(_with_objects(2)),
            ends={"K": "delivered"},
            follows={"O": "A"},
            deletes=True,
            kept=4,
        ),
        "a consumer joins while the log is collected": Configuration(
            {
                "K": follower("K", 0, joins=True),
                "C": collector("C"),
                "O": others(compactor("A", collects=False), hours(_PAST)),
            },
            begin=lambda: _with_objects(2),
            ends={"K": "delivered"},
            deletes=True,
            kept=4,
        ),
        "the floor moves in a log that a consumer of all has not seen": Configuration(
            {
                "K": follower("K", 1, joins=True, is_new=True, of_all=True),
                "A": compactor("A", collects=False),
            },
            begin=lambda: reader_of_all(_almost(_with_objects(2)), "K"),
            ends={"K": "delivered"},
            kept=4,
        ),
        "a consumer of all joins while the log is collected": Configuration(
            {
                "K": follower("K", 0, joins=True, of_all=True),
                "C": collector("C"),
                "O": others(compactor("A", collects=False), hours(_PAST)),
            },
            begin=lambda: _with_objects(2),
            ends={"K": "delivered"},
            deletes=True,
            kept=4,
        ),
        "a consumer of all whose object another one overwrites without the log": Configuration(
            {
                "K": follower("K", 1, joins=True, is_new=True, of_all=True),
                "M": outsider(without_a_log("K")),
                "A": compactor("A", collects=False),
            },
            begin=lambda: reader_of_all(_almost(_with_objects(2)), "K"),
            ends={"K": "delivered"},
            kept=4,
        ),
        "a second consumer of all with one name joins": Configuration(
            {
                "R": follower("R", 1, is_new=True),
                "M": namesake("K"),
                "A": compactor("A", collects=False),
            },
            begin=lambda: reader_of_the_log(_almost(_with_objects(2)), "K", "W-0"),
            ends={"R": "delivered"},
            kept=4,
        ),
        "the floor moves in a log that a reader of others has not seen": Configuration(
            {"R": follower("R", 2, is_new=True), "A": compactor("A", collects=False)},
            begin=lambda: _with_objects(2),
            ends={"R": "delivered collected"},
            still=("consumers",),
            kept=4,
        ),
        "a consumer comes back": Configuration(
            {"K": latecomer("K", "W-0", 0), "A": compactor("A")},
            begin=lambda: compacted(1, 1),
            still=("batches",),
        ),
    }


def large() -> dict[str, Configuration]:
    """Searched by `python -m tests.simulation.search`."""
    return {
        "a compactor sleeps while another finishes its range and collects it": Configuration(
            {
                "A": compactor("A"),
                "O": others(compactor("B"), hours(_PAST), compactor("C")),
            },
            begin=lambda: compacted(1, 2),
            ends={"A": "done"},
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "the table is restored twice, and accepted": Configuration(
            {
                "A": compactor("A"),
                "M": mender("M", Call("restore_confirmed")),
                "N": mender("N", Call("restore_confirmed")),
            },
            begin=lambda: compacted(1, 1),
            ends={"M": "done", "N": "done"},
            still=_STILL,
            follows={"N": "M"},
        ),
        "a consumer joins while the floor moves and the log is collected": Configuration(
            {
                "K": follower("K", 0, joins=True),
                "A": compactor("A", collects=False),
                "T": hours(_PAST),
                "C": collector("C"),
            },
            begin=lambda: _almost(_with_objects(2)),
            ends={"K": "delivered"},
            follows={"T": "A"},
            deletes=True,
            kept=4,
        ),
        "two compactors, a fault": Configuration(
            {"A": compactor("A", collects=False), "B": compactor("B", collects=False)},
            Budget(0, 1),
            begin=lambda: written(1),
            still=_STILL,
        ),
        "two compactors, the log grows": Configuration(
            {
                "A": compactor("A", collects=False),
                "B": compactor("B", collects=False),
                "O": others(driver("X", "q", 2, inline=1000)),
            },
            begin=lambda: written(1),
            still=("consumers",),
        ),
    }


def after(processes: Iterable[Process], state: State | None = None, kept: int = 1000) -> State:
    """The world after these processes, one after the other, undisturbed."""
    state = state or State()
    with searching(), keeping(kept):
        for process in processes:
            state, _ = undisturbed(state, process)
    return state


def compacted(batches: int, more: int, target: Target = TARGET) -> State:
    """A log with so many microbatches in its table, and more that are not."""
    state = after([compactor("0", target=target)], written(batches))
    state = after([driver("V", "q", batches + more, inline=1000)], state)
    return replace(state, hints={}, plan=-1)


def _with_objects(batches: int) -> State:
    """A log whose rows are in objects of their own."""
    return replace(after([driver("W", "q", batches)]), hints={}, plan=-1)


def _stray() -> State:
    """A log, and a PUT under way of a writer that lost position 3 to it: only once that is
    free it succeeds."""
    both = written(1)
    other = after([driver("Z", "z", 1, inline=1000)], both)
    key = oracle.slot_key(3)
    ours = after([driver("X", "q", 5, inline=1000)], both)
    return replace(ours, hints={}, plan=-1, late=frozenset({(key, other.objects[key])}))


def _stray_leader() -> State:
    """The same with a leader record: a reader finds no hole, and takes what follows for dead."""
    ours = after([driver("X", "q", 4, inline=1000)], written(1))
    key = oracle.slot_key(3)
    later = [oracle.slot_key(position) for position in range(3, 6)]
    other = after([driver("Z", "z", 1, inline=1000)], without(ours, *later))
    return replace(ours, hints={}, plan=-1, late=frozenset({(key, other.objects[key])}))


def _late_record() -> State:
    """A compacted log, and a PUT under way at the next number of its chain."""
    state = compacted(1, 1)
    other = after([keeper("L", 1, 0)], state)
    late = frozenset({*other.objects.items()} - {*state.objects.items()})
    return replace(state, late=late)


def before(state: State, process: Process, is_last: Callable[[Call], bool]) -> State:
    """The world after a process that died before it made a request."""
    with searching():
        machine = Machine(process)
        while True:
            thread, call = min(machine.calls.items())
            if is_last(call):
                machine.close()
                return state
            state, answer = apply(state, call)
            machine.answer(thread, answer)


def _promised(target: Target = TARGET) -> State:
    """A range is promised, and its process died before it wrote a row."""
    begun = compacted(1, 1, target)
    before_write = {"table_write", "tombstones_write"}
    return before(begun, compactor("1", target=target), lambda x: x.operation in before_write)


def _almost(state: State) -> State:
    """A compactor brought the log into the table, and died before it moved the floor."""

    def moves_floor(call: Call) -> bool:
        return call.operation == "put" and oracle.header(call.arguments[1])["kind"] == "floor"

    return before(state, compactor("0"), moves_floor)


def _collectable(batches: int, more: int) -> State:
    """The same, and what is in the table may be collected."""
    return apply(compacted(batches, more), Call("sleep", (_PAST,)))[0]


def _erasable(batches: int, more: int) -> State:
    """The same, longer ago."""
    return apply(compacted(batches, more), Call("sleep", (_LONG_PAST,)))[0]


def written(batches: int) -> State:
    state = after([driver("W", "q", batches, inline=1000)])
    return replace(state, hints={}, plan=-1)
