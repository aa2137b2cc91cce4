"""The dashboard and the alerts ask for what is reported, by labels that it has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from sparkwal.metrics.prometheus import new_meter
from sparkwal.metrics.table import METRICS

CONF = Path(__file__).parents[2] / "conf"
DASHBOARD = json.loads((CONF / "grafana-sparkwal.json").read_text())
ALERTS = yaml.safe_load((CONF / "prometheus-alerts.yml").read_text())["groups"][0]["rules"]


def queries() -> list[tuple[str, str]]:
    """(where, PromQL) of everything, with Grafana's own variables filled in."""
    found = [(rule["alert"], rule["expr"]) for rule in ALERTS]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            found.append((panel["title"], target["expr"].replace("$__rate_interval", "5m")))
    return found


@pytest.fixture(scope="module")
def reported() -> dict[str, set[str]]:
    """Each sample that a scrape has once everything happened → its labels."""
    meter = new_meter()
    for metric in METRICS:
        labels = [f"a {label}" for label in metric.labels]
        if metric.kind == "counter":
            meter.add(metric, 1, *labels)
        elif metric.kind == "gauge":
            meter.set(metric, 1, *labels)
        else:
            meter.observe(metric, 1, *labels)
    families = text_string_to_metric_families(meter.text())
    return {each.name: set(each.labels) for family in families for each in family.samples}


def unknown(query: str, reported: dict[str, set[str]]) -> list[str]:
    """The names and labels of a query that no metric has."""
    found: list[str] = []
    names: set[str] = set()

    def visit(node: promql.Expr) -> None:
        vector = node.vector_selector if isinstance(node, promql.MatrixSelector) else node
        if isinstance(vector, promql.VectorSelector):
            name = str(vector.name)
            names.add(name)
            labels = {m.name for m in vector.matchers.matchers}
            found.extend([name] if name not in reported else labels - reported[name])
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            have = set.intersection(*(reported.get(n, set()) for n in names_in(node.expr)))
            found.extend(set(node.modifier.labels) - have)

    promql.walk(promql.parse(query), visit)
    assert names or found, "it asks for nothing"
    return found


def names_in(node: promql.Expr) -> list[str]:
    names: list[str] = []

    def visit(each: promql.Expr) -> None:
        vector = each.vector_selector if isinstance(each, promql.MatrixSelector) else each
        if isinstance(vector, promql.VectorSelector):
            names.append(str(vector.name))

    promql.walk(node, visit)
    return names


@pytest.mark.parametrize(("where", "query"), queries())
def test_a_query_uses_reported_metrics(
    where: str, query: str, reported: dict[str, set[str]]
) -> None:
    assert unknown(query, reported) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "rate(sparkwal_commit_total[5m])",
        'sparkwal_commits_total{query="q"}',
        "sum by (consumer) (sparkwal_term)",
        "max by (log) (sparkwal_term) / sum by (status) (rate(sparkwal_rows_total[5m]))",
    ],
)
def test_a_query_that_asks_for_something_else_is_found(
    wrong: str, reported: dict[str, set[str]]
) -> None:
    assert unknown(wrong, reported)


def test_a_legend_and_a_message_name_existing_labels(reported: dict[str, set[str]]) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "5m")
            have = set.union(*(reported[n] for n in names_in(promql.parse(query))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= have, panel["title"]
    for rule in ALERTS:
        have = set.union(*(reported[n] for n in names_in(promql.parse(rule["expr"]))))
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= have
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


def test_every_metric_of_a_log_is_on_the_dashboard() -> None:
    asked = {n for _, query in queries() for n in names_in(promql.parse(query))}
    asked = {re.sub("_(bucket|sum|count)$", "", name) for name in asked}
    left_out = {
        # In other words there already, or for a closer look.
        "objects",
        "unacknowledged_appends",
        "last_sequence",
        "events",
        "body_bytes",
        "answered_rows",
        "pending_body_bytes",
        "compactions",
        "collected_objects",
        "consumer_position",
        "consumer_table_files",
    }
    assert {m.name for m in METRICS if m.full_name not in asked} == left_out


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Read into Grafana's own types and written again: unknown fields would be lost."""
    register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert lost(DASHBOARD, again) == []


def lost(before: Any, after: Any, where: str = "") -> list[str]:
    """The places whose value is not the same, or not there."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [x for k, v in before.items() for x in lost(v, after.get(k), f"{where}.{k}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [x for n, (b, a) in pairs for x in lost(b, a, f"{where}[{n}]")]
    return [] if before == after else [f"{where}: {before!r} became {after!r}"]


def test_the_panels_have_places_and_numbers_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
    assert {v["name"] for v in DASHBOARD["templating"]["list"]} == {
        "datasource",
        "log",
        "sequencer",
    }
