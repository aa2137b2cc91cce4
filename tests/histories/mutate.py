"""Breaks one guarantee in a history. Both checkers must notice each of these."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

Operation = dict[str, Any]
Operations = list[Operation]


def _reads(operations: Operations) -> Operations:
    """The successful reads with at least three rows, in the order of their ends."""
    reads = [
        operation
        for operation in operations
        if operation["op"] == "read" and operation["outcome"] == "ok" and len(operation["rows"]) > 2
    ]
    return sorted(reads, key=lambda read: read["end"])


def _acknowledged(operations: Operations) -> Operations:
    """The acknowledged appends in the order of their positions."""
    appends = [
        operation
        for operation in operations
        if operation["op"] == "append"
        and operation["outcome"] == "ok"
        and operation["position"] is not None
        and operation["position"] >= 0
    ]
    return sorted(appends, key=lambda append: (append["position"], append["values"]))


def lost(operations: Operations) -> None:
    """No read returns an acknowledged row."""
    value = _acknowledged(operations)[1]["values"][0]
    for read in _reads(operations):
        read["rows"] = [row for row in read["rows"] if row[1] != value]


def missing(operations: Operations) -> None:
    """One read lacks a row in the middle."""
    del _reads(operations)[-1]["rows"][1]


def doubled(operations: Operations) -> None:
    """One read returns a row twice."""
    rows = _reads(operations)[-1]["rows"]
    rows.insert(1, rows[1])


def stale(operations: Operations) -> None:
    """The last read ends before rows that an earlier one returned."""
    del _reads(operations)[-1]["rows"][-2:]


def swapped(operations: Operations) -> None:
    """One read returns two rows in the other order."""
    rows = _reads(operations)[-1]["rows"]
    rows[0], rows[1] = rows[1], rows[0]


def moved(operations: Operations) -> None:
    """A row has another position in the last read."""
    _reads(operations)[-1]["rows"][-1][0] += 1


def early(operations: Operations) -> None:
    """A read returns a row before its append began."""
    read = _reads(operations)[0]
    value = read["rows"][-1][1]
    for operation in operations:
        if operation["op"] == "append" and value in operation["values"]:
            operation["begin"] = read["end"] + 1
            if operation["end"] is not None:
                operation["end"] = max(operation["end"], read["end"] + 2)


def refused(operations: Operations) -> None:
    """A row is in the log whose append was refused."""
    value = _reads(operations)[-1]["rows"][1][1]
    for operation in operations:
        if operation["op"] == "append" and value in operation["values"]:
            operation["outcome"] = "failed"
            operation.pop("accepted", None)


def invented(operations: Operations) -> None:
    """A read returns a row that no process appended."""
    position, value = _reads(operations)[-1]["rows"][-1]
    _reads(operations)[-1]["rows"].append([position + 1, value + 500_000])


def reordered(operations: Operations) -> None:
    """An append began after a later row was acknowledged."""
    appends = _acknowledged(operations)
    first, second = appends[0], appends[-1]
    first["begin"] = second["end"] + 1
    first["end"] = second["end"] + 2
    for read in list(operations):
        if read["op"] == "read" and not read.get("final"):
            operations.remove(read)


MUTATIONS: list[Callable[[Operations], None]] = [
    lost,
    missing,
    doubled,
    stale,
    swapped,
    moved,
    early,
    refused,
    invented,
    reordered,
]


# Mutations of a history with a table.


def _of(operations: Operations, op: str) -> Operations:
    """The successful operations of a kind that have rows or values, by their ends."""
    completed = [
        operation
        for operation in operations
        if operation["op"] == op
        and operation["outcome"] == "ok"
        and len(operation.get("values") or operation.get("rows") or []) > 2
    ]
    return sorted(completed, key=lambda operation: operation["end"])


def _position(operations: Operations, value: int) -> int:
    """The position of a value in the log."""
    for operation in operations:
        for position, other in operation.get("rows") or []:
            if other == value:
                return int(position)
    of_appends = {each["values"][0]: each["position"] for each in _acknowledged(operations)}
    return int(of_appends[value])


def _in_order(operations: Operations, values: list[int]) -> list[int]:
    return sorted(values, key=lambda value: _position(operations, value))


def lost_by_compaction(operations: Operations) -> None:
    """An acknowledged row left the log, and is not in the table."""
    (table,) = _of(operations, "table")
    value = _in_order(operations, table["values"])[1]
    for total in [table, _of(operations, "total")[-1]]:
        total["values"].remove(value)


def missing_in_total(operations: Operations) -> None:
    """One read of table and log lacks a row in the middle."""
    total = _of(operations, "total")[0]
    total["values"].remove(_in_order(operations, total["values"])[1])


def compacted_twice(operations: Operations) -> None:
    """A row is in the table twice."""
    (table,) = _of(operations, "table")
    for total in [table, _of(operations, "total")[-1]]:
        total["values"].append(table["values"][0])


def in_both(operations: Operations) -> None:
    """One read returns a row from the table and from the log."""
    total = _of(operations, "total")[0]
    total["values"].append(total["values"][0])


def stale_total(operations: Operations) -> None:
    """The last read of table and log lacks the newest rows."""
    total = _of(operations, "total")[-1]
    for value in _in_order(operations, total["values"])[-2:]:
        total["values"].remove(value)


def invented_in_table(operations: Operations) -> None:
    """The table has a row that no process appended."""
    _of(operations, "table")[-1]["values"].append(500_000)


def beyond_the_cut(operations: Operations) -> None:
    """The table has rows that the log counts as not compacted."""
    (table,) = _of(operations, "table")
    table["cut"] = _position(operations, _in_order(operations, table["values"])[-1])


def passed_over(operations: Operations) -> None:
    """A compaction read a range without one of its rows."""
    del _of(operations, "compact")[-1]["rows"][1]


TABLE_MUTATIONS: list[Callable[[Operations], None]] = [
    lost_by_compaction,
    missing_in_total,
    compacted_twice,
    in_both,
    stale_total,
    invented_in_table,
    beyond_the_cut,
    passed_over,
]


def mutated(operations: Operations, mutation: Callable[[Operations], None]) -> Operations:
    """A copy of a history with one guarantee broken."""
    found = copy.deepcopy(operations)
    mutation(found)
    return found
