"""Checks a history of one log, without the library.

    python check.py HISTORY.jsonl

It prints one line for each contradiction and ends with 1 if there is one. README.md explains the
format of a history and each contradiction.
"""

from __future__ import annotations

import bisect
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

Operation = dict[str, Any]
NEVER = float("inf")


@dataclass
class Append:
    """All attempts to append the same values.

    Attributes:
        begin: when the first attempt began.
        end: when the first successful attempt ended.
        position: the position of the successful attempt, if it is known.
        must: whether the log must hold the values in the end.
        may: whether the log may hold the values.
    """

    values: tuple[int, ...]
    begin: float
    end: float = NEVER
    position: int | None = None
    must: bool = False
    may: bool = False


@dataclass
class History:
    """A history, sorted by kinds of operations."""

    has_floor: bool
    crashes: list[str]  # processes that ended by an error of their own
    appends: list[Append]
    reads: list[Operation]
    totals: list[Operation]  # reads of table and log, without positions
    opens: list[Operation]
    ranges: list[Operation]  # what a compaction read, with positions
    tables: list[Operation]  # reads of the table alone, which has all rows below its cut


def load(path: Path) -> History:
    """Read a history from its file."""
    about, *operations = map(json.loads, path.read_text().splitlines())
    return gathered(about, operations)


def gathered(about: Operation, operations: list[Operation]) -> History:
    """The history of these operations."""
    appends: dict[tuple[int, ...], Append] = {}
    for operation in operations:
        if operation["op"] == "append":
            values = tuple(operation["values"])
            append = appends.setdefault(values, Append(values, operation["begin"]))
            append.begin = min(append.begin, operation["begin"])
            if operation["outcome"] == "ok":
                append.end = min(append.end, operation["end"])
                append.position = operation.get("position", append.position)
            done = operation["outcome"] == "ok" or "accepted" in operation
            append.must = append.must or done
            append.may = append.may or done or operation["outcome"] == "unknown"
    completed = [operation for operation in operations if operation["outcome"] == "ok"]
    return History(
        bool(about.get("floor")),
        about.get("crashes", []),
        list(appends.values()),
        [operation for operation in completed if operation["op"] == "read"],
        [operation for operation in completed if operation["op"] == "total"],
        [operation for operation in completed if operation["op"] == "open"],
        [operation for operation in completed if "to" in operation],
        [operation for operation in completed if operation["op"] == "table"],
    )


def contradictions(history: History) -> Iterator[str]:
    """Each contradiction of a history, as one line."""
    for crash in history.crashes:
        yield f"crashed: {crash}"
    of_value = {value: append for append in history.appends for value in append.values}
    positions: dict[int, int] = {}
    for append in history.appends:
        if append.position is not None and append.position >= 0:
            positions.update(dict.fromkeys(append.values, append.position))
    for read in [*history.reads, *history.ranges]:
        for position, value in read["rows"]:
            if positions.setdefault(value, position) != position:
                yield f"moved: {value} is at {positions[value]} and at {position} {_at(read)}"
    for append in history.appends:
        # The sink does not tell its positions: the reads do.
        if append.position is None:
            append.position = positions.get(append.values[0])
    order = sorted((position, value) for value, position in positions.items())
    yield from _rows(history, of_value, order)
    yield from _prefixes(history, order)
    yield from _times(history, positions)
    yield from _forgotten(history)
    yield from _tables(history, positions)
    yield from _end(history, positions)


def _at(read: Operation) -> str:
    return f"(read {read['number']} of {read['process']})"


def _rows(
    history: History, of_value: dict[int, Append], order: list[tuple[int, int]]
) -> Iterator[str]:
    """Check that a read returned values appended before its end, complete and in order."""
    for read in [*history.reads, *history.ranges, *history.totals, *history.tables]:
        values = read["values"] if "values" in read else [value for _, value in read["rows"]]
        if len(set(values)) < len(values):
            yield f"doubled: a value comes twice {_at(read)}"
        for value in values:
            append = of_value.get(value)
            if append is None:
                yield f"invented: no process appended {value} {_at(read)}"
            elif not append.may:
                yield f"refused: {value} was refused and is in the log {_at(read)}"
            elif append.begin > read["end"]:
                yield f"early: {value} was read before its append began {_at(read)}"
    for read in [*history.reads, *history.ranges]:
        rows = [(position, value) for position, value in read["rows"]]
        if any(after <= before for before, after in pairwise(rows)):
            yield f"reordered: the rows are out of order {_at(read)}"
        first = _first(read, history.has_floor)
        if first is None:
            continue
        last = rows[-1][0] if rows else first - 1
        # A compaction reads a range that has an end.
        last = read.get("to", last + 1) - 1
        low = bisect.bisect_left(order, (first, -1))
        high = bisect.bisect_left(order, (last + 1, -1))
        if (missing := set(order[low:high]) - set(rows)) and set(rows) <= set(order):
            yield f"missing: {sorted(missing)[:3]} are not in the rows {_at(read)}"


def _first(read: Operation, has_floor: bool) -> int | None:
    """The first position of a read; None if it is unknown."""
    if read["start"] is not None:
        return int(read["start"])
    if not has_floor:
        return 0
    return int(read["rows"][0][0]) if read["rows"] else None


def _prefixes(history: History, order: list[tuple[int, int]]) -> Iterator[str]:
    """A read sees all that was acknowledged, or read, before it began."""
    rank = {row: number for number, row in enumerate(order)}
    # (time, rank of a row that the log holds from then on)
    held = [
        (append.end, rank[append.position, value])
        for append in history.appends
        if append.end < NEVER and append.position is not None and append.position >= 0
        for value in append.values
    ]
    seen = [
        (read["end"], rank[tuple(read["rows"][-1])])
        for read in history.reads
        if read["rows"] and tuple(read["rows"][-1]) in rank
    ]
    seen += [(total["end"], _last_rank(total, order)) for total in history.totals]
    moments, highest = _running_maximum(held + seen)
    for read in history.reads:
        expected = _before(moments, highest, read["begin"])
        if read["rows"]:
            got = rank.get(tuple(read["rows"][-1]), -1)
        elif (first := _first(read, history.has_floor)) is None:
            continue
        else:
            got = bisect.bisect_left(order, (first, -1)) - 1
        if got < expected:
            yield f"stale: {order[expected]} was there before, and is not seen {_at(read)}"
    # A read of table and log gives only the values.
    for total in history.totals:
        values = set(total["values"])
        for append in history.appends:
            if append.end < total["begin"] and not values >= set(append.values):
                yield f"stale: {append.values} was acknowledged, and is not seen {_at(total)}"
        last = _last_rank(total, order)
        if not values.issuperset(value for _, value in order[: last + 1]):
            yield f"missing: the rows of table and log have a gap {_at(total)}"
        if last < (expected := _before(moments, highest, total["begin"])):
            yield f"stale: {order[expected]} was there before, and is not seen {_at(total)}"


def _last_rank(total: Operation, order: list[tuple[int, int]]) -> int:
    """The rank of the last row of a read of table and log; −1 if it has none."""
    values = set(total["values"])
    return max((number for number, row in enumerate(order) if row[1] in values), default=-1)


def _times(history: History, positions: dict[int, int]) -> Iterator[str]:
    """Check that an append that begins after an acknowledgment or a read has a later position."""
    held = [
        (append.end, positions[value])
        for append in history.appends
        if append.end < NEVER
        for value in append.values
        if value in positions
    ]
    held += [(read["end"], read["rows"][-1][0]) for read in history.reads if read["rows"]]
    moments, highest = _running_maximum(held)
    for append in history.appends:
        for value in append.values:
            position = positions.get(value, NEVER)
            if position < _before(moments, highest, append.begin):
                yield f"reordered: {value} is at {position}, before what was there when it began"


def _running_maximum(held: list[tuple[float, int]]) -> tuple[list[float], list[int]]:
    moments, highest = [], []
    for moment, number in sorted(held):
        moments.append(moment)
        highest.append(max(number, highest[-1] if highest else -1))
    return moments, highest


def _before(moments: list[float], highest: list[int], moment: float) -> int:
    """The highest number that was held before a moment; −1 if none was."""
    count = bisect.bisect_left(moments, moment)
    return highest[count - 1] if count else -1


def _forgotten(history: History) -> Iterator[str]:
    """The last sequence of a producer counts all its acknowledged appends, and only its own."""
    for opened in history.opens:
        if (last := opened.get("last_sequence")) is None:
            continue
        first = opened["producer"]
        for append in history.appends:
            for value in append.values:
                if not first <= value < first + 1_000_000:
                    continue
                if append.end < opened["begin"] and value > first + last:
                    yield f"forgotten: {value} was acknowledged, and its producer is at {last}"
                if append.begin > opened["end"] and value <= first + last and append.may:
                    yield f"early: {value} counts as durable before its append began"


def _tables(history: History, positions: dict[int, int]) -> Iterator[str]:
    """The table has all rows below its cut, and no others."""
    for table in history.tables:
        values = set(table["values"])
        for value, position in positions.items():
            if position < table["cut"] and value not in values:
                yield f"lost: {value} is at {position}, and is not in the table {_at(table)}"
            if position >= table["cut"] and value in values:
                yield f"doubled: {value} is at {position}, and is in the table too {_at(table)}"


def _end(history: History, positions: dict[int, int]) -> Iterator[str]:
    """The last read holds all that was acknowledged or accepted."""
    finals = [read for read in [*history.totals, *history.reads] if read.get("final")]
    if not finals:
        yield "unfinished: no read after the end of all writers succeeded"
        return
    there: set[int] = set()
    begins = NEVER
    # Table and log as one hold all rows; a log with a floor does not.
    is_complete = not history.has_floor or any(final["op"] == "total" for final in finals)
    for final in finals:
        if final["op"] == "total":
            there = {*final["values"]}
            break
        there.update(value for _, value in final["rows"])
        begins = min(begins, _first(final, history.has_floor) or 0)
    for append in history.appends:
        if not append.must or there.issuperset(append.values):
            continue
        # Rows below the floor may be gone.
        known = [positions[value] for value in append.values if value in positions]
        if is_complete or any(position >= begins for position in known):
            yield f"lost: {append.values} was acknowledged or accepted, and is not in the log"


def main() -> int:
    found = list(contradictions(load(Path(sys.argv[1]))))
    for line in found[:20]:
        print(line)
    print(f"{len(found)} contradictions" if found else "no contradiction")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
