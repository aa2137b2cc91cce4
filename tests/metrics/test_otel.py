"""OpenTelemetry: the conventions' names and attributes, through a provider of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import sparkwal
from sparkwal.format.consumer import Consumer
from sparkwal.lifecycle.consumers import forget, publish
from sparkwal.metrics import table
from sparkwal.metrics.following import Following
from sparkwal.metrics.otel import open_telemetry
from sparkwal.metrics.writers import watch_appender
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions

from .scraped import until

SCHEMA = pa.schema([("v", pa.int64())])


def read(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Name → metric, as an exporter gets it."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics]
    return {metric.name: metric for scope in scopes for metric in scope.metrics}


def test_an_appender_and_its_follower(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    meter = open_telemetry(provider.get_meter("app"))
    assert open_telemetry(provider.get_meter("app")) is meter
    path = str(tmp_path)
    with sparkwal.Appender(path, SCHEMA, producer_id="p") as wal:
        unwatch = watch_appender(wal, meter)
        for value in range(3):
            wal.append([{"v": value}] * 2).result()
        until(lambda: read(reader)["messaging.client.sent.messages"].data.data_points[0].value == 6)
        seen = read(reader)
        (sent,) = seen["messaging.client.sent.messages"].data.data_points
        assert sent.attributes == {
            "messaging.system": "sparkwal",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": wal.url,
            "messaging.destination.partition.id": "default",
        }
        assert seen["messaging.client.sent.messages"].unit == "{message}"
        took = seen["messaging.client.operation.duration"]
        assert took.unit == "s" and took.data.data_points[0].count == 3
        assert 0.005 in took.data.data_points[0].explicit_bounds
        assert seen["sparkwal.commits"].data.data_points[0].value == 3
        assert seen["sparkwal.up"].data.data_points[0].value == 1
        unwatch()
        assert "sparkwal.up" not in read(reader)
    head = sparkwal.Log(path).head()
    assert head is not None
    log = open_log(from_keywords(SourceOptions, path, {}))
    publish(log, Consumer("daily", head.log_id, 1, 0, "here", "run"))
    following = Following(path, meter)
    following.look()
    lag = read(reader)["sparkwal.consumer_lag_positions"].data.data_points
    assert [(p.value, p.attributes["messaging.consumer.group.name"]) for p in lag] == [(3, "daily")]
    forget(log, "daily")
    following.look()
    assert "sparkwal.consumer_lag_positions" not in read(reader)
    meter.add(table.REQUESTS, 1, wal.url, "default", "202")
    (answered,) = read(reader)["sparkwal.requests"].data.data_points
    assert answered.attributes["http.response.status_code"] == 202
    provider.shutdown()
