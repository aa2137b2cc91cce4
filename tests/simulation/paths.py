"""Two logs under one path, in one chain and one table."""

from __future__ import annotations

from sparkwal.lifecycle.table import TableConflict
from tests.simulation import oracle
from tests.simulation.compacting import compactor, outsider
from tests.simulation.configuration import Configuration
from tests.simulation.explore import Budget
from tests.simulation.following import current
from tests.simulation.lifecycles import after, before, compacted, written
from tests.simulation.machine import Ask
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
            {"A": both["A"], "W": _late_writer},
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
        "table and log as one while a range is given up": Configuration(
            {"R": current("R"), "A": both["A"]},
            begin=_promised_and_deleted,
            ends={"R": "delivered CollectedError"},
            deletes=True,
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


def _promised(of: str = "*") -> State:
    """An intent has ranges of both logs or of one, and its process died before it wrote them."""
    return _before_write(of)[0]


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


def _before_write(of: str) -> tuple[State, Call]:
    """The world in which a compactor has read its range, and the call that writes it."""
    calls: list[Call] = []

    def writes(call: Call) -> bool:
        calls.append(call)
        return call.operation == "table_write"

    state = before(beside(written(1), other(1), 2), compactor("0", of=of), writes)
    return state, calls[-1]


def _late_writer(ask: Ask) -> str:
    """The process that put the intent, if it did not die: it writes the range at any time."""
    try:
        ask(_before_write("*")[1])
    except TableConflict:
        return "TableConflict"
    return "done"
