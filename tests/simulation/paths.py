"""Two logs under one path, in one chain and one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkwal.lifecycle.table import TableConflict
from tests.simulation import oracle
from tests.simulation.compacting import SETS_ASIDE, compactor, giver, mended, mender, outsider
from tests.simulation.configuration import Configuration
from tests.simulation.explore import Budget
from tests.simulation.following import current
from tests.simulation.lifecycles import after, before, compacted, written
from tests.simulation.machine import Ask, Process
from tests.simulation.outside import beside, with_damaged_rows
from tests.simulation.processes import driver
from tests.simulation.world import Call, State, apply

# No process writes into one of the logs, or deletes from it.
_STILL = "batches", "consumers", "sequencers"


def of_two_logs() -> dict[str, Configuration]:
    """Two logs under one path in one chain and one table, and an intent whose process died."""
    both = {name: compactor(name, of="*", collects=False) for name in "AB"}
    return {
        "a compactor of two logs and one of a log take over, a crash": Configuration(
            {**both, "B": compactor("B", of="s", collects=False)},
            Budget(1, 0),
            begin=_promised,
            ends={"B": "done"},
            still=_STILL,
        ),
        "a compactor of one log finds an open range of another": Configuration(
            {
                "A": compactor("A", collects=False),
                "B": compactor("B", of="s", collects=False),
            },
            Budget(1, 0),
            begin=lambda: _promised(of="default"),
            ends={"B": "done"},
            still=_STILL,
        ),
        "a second log vanishes, and its range is written late": Configuration(
            {"A": both["A"], "W": _late(lambda: _before_write("*"))},
            begin=_promised_and_deleted,
            ends={"A": "MissingRecord done"},
            deletes=True,
            still=_STILL,
        ),
        "the rows of a second log are damaged, a crash": Configuration(
            {**both, "B": compactor("B", of="*", collects=False)},
            Budget(1, 0),
            begin=lambda: with_damaged_rows(_promised()),
            ends={"A": "InvalidLogError", "B": "InvalidLogError"},
            ending=lambda: _given_up_once,
            follows={"B": "A"},
            still=_STILL,
        ),
        "the table refuses the rows of a second log, a crash": Configuration(
            {name: compactor(name, of="*", collects=False, refuses="s") for name in "AB"},
            Budget(1, 0),
            begin=_promised,
            ends={"A": "WriteError", "B": "WriteError"},
            ending=lambda: _one_log_waits,
            follows={"B": "A"},
            still=_STILL,
        ),
        **with_refused_rows(),
        **with_rows_again(),
        "table and log as one while a range is given up": Configuration(
            {"R": current("R"), "A": both["A"]},
            begin=_promised_and_deleted,
            ends={"R": "delivered CollectedError"},
            deletes=True,
            still=_STILL,
        ),
    }


def with_refused_rows() -> dict[str, Configuration]:
    """The table refuses a row of the second log, and it steps aside."""
    sets_aside: dict[str, Any] = {"policy": SETS_ASIDE, "refuses": "s", "refused_at": 1}
    tolerant = {name: compactor(name, of="*", collects=False, **sets_aside) for name in "AB"}
    stricter = {**sets_aside, "refused_at": 2}
    return {
        "a refused row steps aside, a crash": Configuration(
            tolerant,
            Budget(1, 0),
            begin=lambda: _promised(batches=2),
            ends={"A": "done", "B": "done"},
            ending=lambda: _one_row_aside,
            follows={"B": "A"},
            still=_STILL,
        ),
        "two compactors, for which the table refuses other rows": Configuration(
            {
                "W": _late(lambda: _aside("refused_write", **sets_aside)),
                "B": compactor("B", of="s", collects=False, **stricter),
            },
            Budget(1, 0),
            begin=lambda: _aside("refused_write", **sets_aside)[0],
            ends={"B": "done WriteError"},
            still=_STILL,
        ),
        "a user gives a range up from which a row stepped aside": Configuration(
            {
                "W": _late(lambda: _aside("table_write", **sets_aside)),
                "U": giver("U", sequencer="s"),
                "A": compactor("A", of="s", collects=False, **sets_aside),
            },
            Budget(1, 0),
            begin=lambda: _aside("table_write", **sets_aside)[0],
            ends={"A": "done WriteError", "U": "done"},
            follows={"A": "U"},
            still=_STILL,
        ),
        "the refused rows are restored before an open range, and accepted": Configuration(
            {
                "A": compactor("A", of="s", collects=False, **sets_aside),
                "M": mender("M", Call("refused_restore"), sequencer="s", **sets_aside),
            },
            Budget(1, 0),
            begin=lambda: _aside("table_write", **sets_aside)[0],
            ends={"M": "done PlanError"},
            still=_STILL,
        ),
    }


def with_rows_again() -> dict[str, Configuration]:
    """A refused row of the second log is written again, after the table was mended."""
    again = {name: mended(name, sequencer="s") for name in "AB"}
    still: dict[str, Any] = {"sequencer": "s", "refuses": "s"}
    return {
        "a refused row is written again, a crash": Configuration(
            {**again, "B": compactor("B", of="*", collects=False)},
            Budget(1, 0),
            begin=_with_row_aside,
            ends={"A": "done", "B": "done"},
            still=_STILL,
        ),
        "two users write a refused row again, and the table refuses it for one": Configuration(
            {
                "W": _late(lambda: _again("refused_mark")),
                "B": mended("B", **still),
            },
            Budget(1, 0),
            begin=lambda: _again("refused_mark")[0],
            ends={"B": "done WriteError"},
            still=_STILL,
        ),
        "a user gives a range up that writes a refused row again": Configuration(
            {
                "W": _late(lambda: _again("table_write")),
                "U": giver("U", sequencer="s"),
                "A": mended("A", sequencer="s"),
            },
            Budget(1, 0),
            begin=lambda: _again("table_write")[0],
            ends={"A": "done", "U": "done"},
            follows={"A": "U"},
            still=_STILL,
        ),
        "a late first write of a range that writes a refused row again": Configuration(
            {
                "W": _late(lambda: _again("refused_mark", **still)),
                "U": giver("U", sequencer="s"),
                "A": mended("A", sequencer="s"),
            },
            begin=lambda: _again("refused_mark", **still)[0],
            ends={"A": "done", "U": "done"},
            ending=lambda: _no_row_waits,
            follows={"A": "U"},
            still=_STILL,
        ),
    }


def large() -> dict[str, Configuration]:
    """Searched by `python -m tests.simulation.search`."""
    both = {"A": compactor("A", of="*", collects=False), "B": compactor("B", of="*")}
    one = {"A": compactor("A", of="*", collects=False), "B": compactor("B", collects=False)}
    return {
        "two compactors of two logs, a crash": Configuration(
            one,
            Budget(1, 0),
            begin=lambda: beside(compacted(1, 1), other(2), 3),
            ends={"B": "done"},
            still=("consumers",),
        ),
        "a compactor of all takes over, a lost reply": Configuration(
            both,
            Budget(0, 1),
            begin=lambda: beside(written(1), other(1), 2),
            follows={"B": "A"},
            still=("consumers",),
        ),
        "a second log appears and grows": Configuration(
            {
                "A": compactor("A", of="*", collects=False),
                "B": compactor("B", of="s", collects=False),
                "G": outsider(Call("log_grows"), Call("log_grows")),
            },
            begin=lambda: beside(compacted(1, 1), other(1), 0),
            still=("consumers",),
        ),
        "a second log vanishes": Configuration(
            {
                "A": compactor("A", of="*", collects=False),
                "B": compactor("B", collects=False),
                "G": outsider(Call("vanish")),
            },
            begin=lambda: beside(written(1), other(1), 2),
            ends={"B": "done"},
            deletes=True,
            still=("consumers",),
        ),
    }


def other(batches: int) -> State:
    """A world with the log that lies beside another one."""
    return after([driver("Q", "p", batches, inline=1000)])


def _promised(of: str = "*", batches: int = 1) -> State:
    """An intent has ranges of both logs or of one, and its process died before it wrote them."""
    return _before_write(of, batches)[0]


def _aside(operation: str, **sets_aside: Any) -> tuple[State, Call]:
    """The world in which a process found the rows that step aside, and the call that writes them or
    the others."""
    begun = beside(written(1), other(2), 3)
    calls: list[Call] = []

    def is_last(call: Call) -> bool:
        calls.append(call)
        is_aside = any(each.operation == "refused_make" for each in calls)
        return is_aside and call.operation == operation

    state = before(begun, compactor("0", of="*", collects=False, **sets_aside), is_last)
    return state, calls[-1]


def _with_row_aside() -> State:
    """A row of the second log stepped aside, and more rows wait in the logs."""
    sets_aside: dict[str, Any] = {"policy": SETS_ASIDE, "refuses": "s", "refused_at": 1}
    process = compactor("0", of="*", collects=False, **sets_aside)
    return after([process], beside(written(1), other(2), 2))


def _again(operation: str, **others: Any) -> tuple[State, Call]:
    """The world in which a process is about to write a refused row again, and its call."""
    calls: list[Call] = []

    def is_last(call: Call) -> bool:
        calls.append(call)
        return call.operation == operation

    process = mended("0", **{"sequencer": "s", **others})
    state = before(_with_row_aside(), process, is_last)
    return state, calls[-1]


def _no_row_waits(state: State) -> None:
    """Raises Violation unless the table has the row that was refused."""
    newest = oracle.chain_head(state)
    assert newest is not None
    if newest["whole"].get("rows_aside"):
        raise oracle.Violation(f"refused rows wait: {state.refused[-1]}")


def _one_row_aside(state: State) -> None:
    """Raises Violation unless the table has all rows but the one that it refuses."""
    aside = state.refused[-1].rows
    if [row[2] for row in aside] != [1] or len(state.tables[-1][-1].rows) != 2:
        raise oracle.Violation(f"{aside} stepped aside, and the table has {state.tables[-1][-1]}")


def _promised_and_deleted() -> State:
    """The same, and the second log was deleted meanwhile."""
    return apply(_promised(), Call("vanish"))[0]


def _given_up_once(state: State) -> None:
    """Raises Violation if more than one range was given up for the same damage."""
    burned = [version.k for version in state.tables[-1] if version.operation == "BURN"]
    if len(burned) > 1:
        raise oracle.Violation(f"the ranges {burned} were promised with a log known as unreadable")


def _one_log_waits(state: State) -> None:
    """Raises Violation unless the table has the rows of the first log, and the second one waits."""
    newest = oracle.chain_head(state)
    assert newest is not None
    head = newest["whole"]
    if {*head.get("refused_ms", {})} != {"s"}:
        raise oracle.Violation(f"{head.get('refused_ms')} are marked, and s was refused")
    if head["cut"]["default"] == 0 or head["cut"]["s"] != 0:
        raise oracle.Violation("the table has other rows than those that it takes")


def _before_write(of: str, batches: int = 1) -> tuple[State, Call]:
    """The world in which a compactor has read its range, and the call that writes it."""
    calls: list[Call] = []

    def writes(call: Call) -> bool:
        calls.append(call)
        return call.operation == "table_write"

    begun = beside(written(1), other(batches), 1 + batches)
    state = before(begun, compactor("0", of=of), writes)
    return state, calls[-1]


def _late(stopped: Callable[[], tuple[State, Call]]) -> Process:
    """The process that stopped before a call, if it did not die: it makes the call at any time."""

    def run(ask: Ask) -> str:
        try:
            ask(stopped()[1])
        except TableConflict:
            return "TableConflict"
        return "done"

    return run
