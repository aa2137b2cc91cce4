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


def mutated(operations: Operations, mutation: Callable[[Operations], None]) -> Operations:
    """A copy of a history with one guarantee broken."""
    found = copy.deepcopy(operations)
    mutation(found)
    return found
