"""Evaluates the PromQL of the alerts over recorded scrapes, one a minute, as Prometheus does.

It holds what these alerts use, and refuses everything else. Prometheus extrapolates increases; a
sum is near enough for an alert that asks whether something increased.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

# The labels of a series, with its name as `__name__`.
Series = frozenset[tuple[str, str]]
Scrape = dict[Series, float]
Vector = dict[Series, float]
_STEP = 60


def scrape(text: str) -> Scrape:
    """One answer of /metrics."""
    return {
        frozenset({"__name__": each.name, **each.labels}.items()): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if not each.name.endswith("_created")
    }


def firing(rule: dict[str, Any], scrapes: list[Scrape]) -> list[bool]:
    """Whether the alert fires after each scrape: its query held for all of `for`."""
    query = promql.parse(rule["expr"])
    minutes = int(rule.get("for", "0m").removesuffix("m"))
    since: dict[Series, int] = {}
    found = []
    for now in range(len(scrapes)):
        active = _vector(_evaluate(query, scrapes[: now + 1]))
        since = {labels: since.get(labels, now) for labels in active}
        found.append(any(now - start >= minutes for start in since.values()))
    return found


def _evaluate(node: promql.Expr, scrapes: list[Scrape]) -> Vector | float:
    match node:
        case promql.NumberLiteral():
            return float(node.val)
        case promql.ParenExpr():
            return _evaluate(node.expr, scrapes)
        case promql.VectorSelector():
            return {s: v for s, v in scrapes[-1].items() if _matches(node, s)}
        case promql.AggregateExpr():
            return _aggregate(node, scrapes)
        case promql.Call():
            return _call(node, scrapes)
        case promql.BinaryExpr():
            left, right = _evaluate(node.lhs, scrapes), _evaluate(node.rhs, scrapes)
            return _binary(str(node.op), left, right)
    raise NotImplementedError(node)


def _matches(selector: promql.VectorSelector, series: Series) -> bool:
    labels = dict(series)
    if selector.matchers.matchers or selector.offset or selector.at:
        raise NotImplementedError(selector)
    return labels["__name__"] == selector.name


def _range(selector: promql.MatrixSelector, scrapes: list[Scrape]) -> dict[Series, list[float]]:
    """The values of each series in the range, the oldest first. Both ends belong to it."""
    count = int(selector.range.total_seconds()) // _STEP + 1
    values: dict[Series, list[float]] = defaultdict(list)
    for each in scrapes[-count:]:
        for series, value in each.items():
            if _matches(selector.vector_selector, series):
                values[series].append(value)
    return values


def _increase(values: list[float]) -> float:
    """A counter that falls began again at 0."""
    pairs = zip(values, values[1:], strict=False)
    return sum(new - old if new >= old else new for old, new in pairs)


_OVER_TIME: dict[str, Callable[[list[float]], float]] = {
    "increase": _increase,
    "rate": lambda values: _increase(values) / (_STEP * (len(values) - 1)),
    "delta": lambda values: values[-1] - values[0],
    "min_over_time": min,
    "last_over_time": lambda values: values[-1],
}
_OF_ONE_VALUE = {"min_over_time", "last_over_time"}


def _call(node: promql.Call, scrapes: list[Scrape]) -> Vector | float:
    name = node.func.name
    if name == "time":
        return float(_STEP * (len(scrapes) - 1))
    if name == "histogram_quantile":
        quantile, buckets = (_evaluate(each, scrapes) for each in node.args)
        assert isinstance(quantile, float)
        return _quantile(quantile, _vector(buckets))
    (selector,) = node.args
    least = 1 if name in _OF_ONE_VALUE else 2
    return {
        _without(series, "__name__"): _OVER_TIME[name](values)
        for series, values in _range(selector, scrapes).items()
        if len(values) >= least
    }


def _quantile(quantile: float, buckets: Vector) -> Vector:
    """The upper end of the bucket with the quantile; Prometheus interpolates within it."""
    groups: dict[Series, list[tuple[float, float]]] = defaultdict(list)
    for series, value in buckets.items():
        groups[_without(series, "le")].append((float(dict(series)["le"]), value))
    found = {}
    for labels, group in groups.items():
        group.sort()
        total = group[-1][1]
        if total > 0:
            found[labels] = next(end for end, count in group if count >= quantile * total)
    return {k: v for k, v in found.items() if not math.isinf(v)}


def _aggregate(node: promql.AggregateExpr, scrapes: list[Scrape]) -> Vector:
    combine: Callable[[list[float]], float] = {"sum": sum, "max": max}[str(node.op)]
    if str(node.modifier.type) != "AggModifierType.By":
        raise NotImplementedError(node)
    groups: dict[Series, list[float]] = defaultdict(list)
    for series, value in _vector(_evaluate(node.expr, scrapes)).items():
        kept = frozenset(pair for pair in series if pair[0] in node.modifier.labels)
        groups[kept].append(value)
    return {labels: combine(values) for labels, values in groups.items()}


_COMPARE = {"==": operator.eq, ">": operator.gt}
_COMPUTE = {"-": operator.sub, "/": operator.truediv}


def _binary(op: str, left: Vector | float, right: Vector | float) -> Vector | float:
    if op in ("and", "or", "unless"):
        return _combine(op, _vector(left), _vector(right))
    if isinstance(right, float) and isinstance(left, dict):
        if op in _COMPARE:
            return {s: v for s, v in left.items() if _COMPARE[op](v, right)}
        return {_without(s, "__name__"): _COMPUTE[op](v, right) for s, v in left.items()}
    if isinstance(left, float) and isinstance(right, dict):
        return {_without(s, "__name__"): _COMPUTE[op](left, v) for s, v in right.items()}
    others = {_without(s, "__name__"): v for s, v in _vector(right).items()}
    pairs = {_without(s, "__name__"): v for s, v in _vector(left).items()}
    return {s: _COMPUTE[op](v, others[s]) for s, v in pairs.items() if s in others}


def _combine(op: str, left: Vector, right: Vector) -> Vector:
    of_right = {_without(series, "__name__") for series in right}
    if op == "or":
        of_left = {_without(series, "__name__") for series in left}
        return left | {s: v for s, v in right.items() if _without(s, "__name__") not in of_left}
    wanted = op == "and"
    return {s: v for s, v in left.items() if (_without(s, "__name__") in of_right) == wanted}


def _without(series: Series, name: str) -> Series:
    return frozenset(pair for pair in series if pair[0] != name)


def _vector(value: Vector | float) -> Vector:
    assert isinstance(value, dict), f"{value} is no vector"
    return value
