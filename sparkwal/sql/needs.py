"""What a query needs of the relations that it reads: which columns, and which range of them.

DuckDB says so itself: its plan for the query over empty relations lists, for each scan, the
columns and the conditions that the scan has to apply. The plan is right whatever the relations
hold, and its scans pass nothing else on. So rows outside of those ranges, and values of other
columns, change nothing in the answer, and they are not fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

# Both ends belong to it; None: no bound.
Range = tuple[int | None, int | None]
EVERYTHING: Range = (None, None)
# Contains nothing.
NOTHING: Range = (1, 0)

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_SIGNS = {
    "COMPARE_EQUAL": "=", "COMPARE_LESSTHAN": "<", "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">", "COMPARE_GREATERTHANOREQUALTO": ">=",
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCAN = "PYTHON_ARROW_SCAN"


@dataclass(frozen=True)
class Needs:
    """Of one relation.

    Attributes:
        columns: that are read; None for all.
        ranges: of whole numbers and of times (microseconds since 1970), by column; a column that
            is not there has no bound.
    """

    columns: frozenset[str] | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def of(self, column: str) -> Range:
        """The range of a column."""
        return self.ranges.get(column, EVERYTHING)

    def joined(self, other: Needs) -> Needs:
        """What two scans of one relation need."""
        columns = None
        if self.columns is not None and other.columns is not None:
            columns = self.columns | other.columns
        both = self.ranges.keys() & other.ranges.keys()
        return Needs(columns, {name: _hull((self.of(name), other.of(name))) for name in both})


def needs_of(
    connection: duckdb.DuckDBPyConnection, query: str, schemas: Mapping[str, pa.Schema]
) -> dict[str, Needs]:
    """What a query needs of each relation that it scans; others are not in it.

    Args:
        connection: knows the relations, as empty Arrow datasets.
        schemas: of the relations.

    Raises duckdb.Error for a query that is wrong.
    """
    explained = connection.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()
    found: dict[str, Needs] = {}
    for scan in _scans(json.loads(explained[-1][1])):
        projected, conditions = _texts(scan, "Projections"), _texts(scan, "Filters")
        trees = [_parsed(connection, text) for text in conditions]
        names = {*projected, *(name for tree in trees for name in columns_in(tree))}
        ranges = _all_hold(_ranges(tree) for tree in trees)
        # The plan does not name what it scans: whichever has such columns.
        for relation, schema in schemas.items():
            columns = {match for name in names for match in _matches(name, schema)}
            known = all(_matches(name, schema) for name in names)
            if not known and any(all(_matches(n, s) for n in names) for s in schemas.values()):
                continue
            needs = Needs(frozenset(columns) if known else None, ranges if known else {})
            found[relation] = found[relation].joined(needs) if relation in found else needs
    return found


def _scans(plan: Sequence[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for node in plan:
        if node["name"] == _SCAN:
            yield node["extra_info"]
        yield from _scans(node["children"])


def _texts(scan: Mapping[str, Any], name: str) -> list[str]:
    found = scan.get(name, [])
    return [found] if isinstance(found, str) else list(found)


def _matches(name: str, schema: pa.Schema) -> list[str]:
    """The columns that a name of the plan may mean: `a.b` is a column, or the field of one."""
    parts = name.split(".")
    return [part for n in range(len(parts), 0, -1)
            if (part := ".".join(parts[:n])) in schema.names]  # fmt: skip


def parsed(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The tree of a SELECT."""
    (found,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    return json.loads(found[0])


def _parsed(connection: duckdb.DuckDBPyConnection, condition: str) -> Any:
    """A condition's tree; None for one that DuckDB does not take back."""
    try:
        document = parsed(connection, f"SELECT 1 WHERE {condition}")
    except duckdb.Error:
        return None
    return document["statements"][0]["node"]["where_clause"] if not document["error"] else None


def columns_in(tree: Any) -> list[str]:
    """All that a tree names; a name that no column has where it was not understood."""
    if tree is None:
        return [""]
    found: list[str] = []
    if isinstance(tree, dict):
        if tree.get("class") == "COLUMN_REF":
            found.append(".".join(tree["column_names"]))
        for value in tree.values():
            found += columns_in(value) if isinstance(value, dict | list) else []
    elif isinstance(tree, list):
        for value in tree:
            found += columns_in(value) if isinstance(value, dict | list) else []
    return found


def _ranges(tree: Any) -> dict[str, Range]:
    """The ranges outside of which a condition is never true."""
    kind = tree["type"] if isinstance(tree, dict) else ""
    if kind == "CONJUNCTION_AND":
        return _all_hold(_ranges(child) for child in tree["children"])
    if kind == "CONJUNCTION_OR":
        parts = [_ranges(child) for child in tree["children"]]
        shared = set.intersection(*(set(part) for part in parts))
        return {name: _hull([part[name] for part in parts]) for name in shared}
    if kind == "COMPARE_IN":
        column, *values = (_side(child) for child in tree["children"])
        if isinstance(column, str) and all(isinstance(value, int) for value in values):
            return {column: _hull([(x, x) for x in values if isinstance(x, int)])}
    if kind in _SIGNS:
        left, right = _side(tree["left"]), _side(tree["right"])
        if isinstance(left, str) and isinstance(right, int):
            return {left: _compared(_SIGNS[kind], right)}
        if isinstance(right, str) and isinstance(left, int):
            return {right: _compared(_FLIPPED[_SIGNS[kind]], left)}
    return {}


def _compared(sign: str, value: int) -> Range:
    return {
        "=": (value, value), "<": (None, value - 1), "<=": (None, value),
        ">": (value + 1, None), ">=": (value, None),
    }[sign]  # fmt: skip


def _side(tree: Mapping[str, Any]) -> str | int | None:
    """A column by its name, a whole number or a time as one; None for all else."""
    if tree["class"] == "COLUMN_REF":
        return tree["column_names"][0] if len(tree["column_names"]) == 1 else None
    if tree["class"] == "CONSTANT" and tree["literal"]["kind"] == "INTEGER":
        return int(tree["literal"]["text"])
    if tree["class"] == "CAST" and tree["type_expr"].get("type_name") == "TIMESTAMPTZ":
        child = tree["child"]
        if child["class"] == "CONSTANT" and child["literal"]["kind"] == "STRING":
            return _microseconds(child["literal"]["text"])
    return None


def _microseconds(text: str) -> int | None:
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
    except ValueError:  # beyond Python's calendar
        return None


def _all_hold(parts: Iterable[Mapping[str, Range]]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for part in parts:
        for name, (low, high) in part.items():
            lows = [x for x in (low, found.get(name, EVERYTHING)[0]) if x is not None]
            highs = [x for x in (high, found.get(name, EVERYTHING)[1]) if x is not None]
            found[name] = (max(lows, default=None), min(highs, default=None))
    return found


def _hull(ranges: Sequence[Range]) -> Range:
    there = [each for each in ranges if None in each or each[0] <= each[1]]  # type: ignore[operator]
    if not there:
        return NOTHING
    lows, highs = [low for low, _ in there], [high for _, high in there]
    low = None if None in lows else min(x for x in lows if x is not None)
    high = None if None in highs else max(x for x in highs if x is not None)
    return low, high
