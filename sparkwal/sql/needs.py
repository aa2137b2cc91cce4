"""What a query needs of the relations that it reads: which columns, and which range of them.

DuckDB's plan for the query over empty relations lists, for each scan, the columns and the
conditions that the scan has to apply. It is right whatever the relations hold, and its scans pass
nothing else on. So rows outside of those ranges, and values of other columns, are not fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import duckdb
import pyarrow as pa

# Both ends belong to it. They are whole numbers, or infinite.
Range = tuple[float, float]
EVERYTHING: Range = (-inf, inf)
NOTHING: Range = (1, 0)

# Of a value, for a column on the left; and the comparison with the sides exchanged.
_COMPARED: Mapping[str, tuple[Callable[[int], Range], str]] = {
    "COMPARE_EQUAL": (lambda x: (x, x), "COMPARE_EQUAL"),
    "COMPARE_LESSTHAN": (lambda x: (-inf, x - 1), "COMPARE_GREATERTHAN"),
    "COMPARE_LESSTHANOREQUALTO": (lambda x: (-inf, x), "COMPARE_GREATERTHANOREQUALTO"),
    "COMPARE_GREATERTHAN": (lambda x: (x + 1, inf), "COMPARE_LESSTHAN"),
    "COMPARE_GREATERTHANOREQUALTO": (lambda x: (x, inf), "COMPARE_LESSTHANOREQUALTO"),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Needs:
    """Of one relation: the columns that are read (None: all), and by column ranges of whole numbers
    and of times (microseconds since 1970)."""

    columns: frozenset[str] | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def of(self, column: str) -> Range:
        return self.ranges.get(column, EVERYTHING)

    def joined(self, other: Needs) -> Needs:
        columns = None
        if self.columns is not None and other.columns is not None:
            columns = self.columns | other.columns
        both = self.ranges.keys() & other.ranges.keys()
        return Needs(columns, {name: _hull((self.of(name), other.of(name))) for name in both})


def needs_of(
    connection: duckdb.DuckDBPyConnection, query: str, schemas: Mapping[str, pa.Schema]
) -> dict[str, Needs]:
    """What a query needs of each relation that it scans. The connection knows them, as empty Arrow
    datasets. Raises duckdb.Error for a query that is wrong."""
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
        if node["name"] == "PYTHON_ARROW_SCAN":
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
    (found,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    return json.loads(found[0])


def _parsed(connection: duckdb.DuckDBPyConnection, condition: str) -> Any:
    """A condition's tree; None for one that DuckDB does not take back."""
    with suppress(duckdb.Error):
        document = parsed(connection, f"SELECT 1 WHERE {condition}")
        if not document["error"]:
            return document["statements"][0]["node"]["where_clause"]
    return None


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from nodes(each)


def columns_in(tree: Any) -> list[str]:
    """All that a tree names; a name that no column has where it was not understood."""
    if tree is None:
        return [""]
    found = (each for each in nodes(tree) if each.get("class") == "COLUMN_REF")
    return [".".join(each["column_names"]) for each in found]


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
    if kind in _COMPARED:
        left, right = _side(tree["left"]), _side(tree["right"])
        range_of, exchanged = _COMPARED[kind]
        if isinstance(left, str) and isinstance(right, int):
            return {left: range_of(right)}
        if isinstance(right, str) and isinstance(left, int):
            return {right: _COMPARED[exchanged][0](left)}
    return {}


def _side(tree: Mapping[str, Any]) -> str | int | None:
    """A column by its name, a whole number or a time as one; None for all else."""
    if tree["class"] == "COLUMN_REF":
        return tree["column_names"][0] if len(tree["column_names"]) == 1 else None
    if tree["class"] == "CONSTANT" and tree["literal"]["kind"] == "INTEGER":
        return int(tree["literal"]["text"])
    if tree["class"] == "CAST" and tree["type_expr"].get("type_name") == "TIMESTAMPTZ":
        child = tree["child"]
        if child["class"] == "CONSTANT" and child["literal"]["kind"] == "STRING":
            with suppress(ValueError):  # beyond Python's calendar
                moment = datetime.fromisoformat(child["literal"]["text"])
                return (moment - _EPOCH) // timedelta(microseconds=1)
    return None


def _all_hold(parts: Iterable[Mapping[str, Range]]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for part in parts:
        for name, (low, high) in part.items():
            lowest, highest = found.get(name, EVERYTHING)
            found[name] = (max(low, lowest), min(high, highest))
    return found


def _hull(ranges: Sequence[Range]) -> Range:
    there = [(low, high) for low, high in ranges if low <= high] or [NOTHING]
    return min(low for low, _ in there), max(high for _, high in there)
