"""The names: as Prometheus and OpenTelemetry want them, and each once."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from sparkwal.errors import OptionError
from sparkwal.metrics.otel import ATTRIBUTES, open_telemetry, otel_name
from sparkwal.metrics.places import place_of
from sparkwal.metrics.prometheus import prometheus
from sparkwal.metrics.table import METRICS, Metric, Place


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_wants(metric: Metric) -> None:
    assert re.fullmatch(r"sparkwal_[a-z]+(_[a-z]+)*", metric.full_name)
    assert metric.full_name.endswith("_total") == (metric.kind == "counter")
    units = {"s": "seconds", "By": "bytes"}
    if metric.unit in units:
        assert metric.name.endswith(units[metric.unit])
    assert metric.help.endswith(".") and metric.labels[:2] == ("log", "sequencer")
    # What has a bound that nobody of ours gave: no query, no leader, no lease.
    assert set(metric.more) <= {"consumer", "name", "status"}
    assert set(metric.labels) <= ATTRIBUTES.keys()
    assert metric.sources


def test_each_name_is_there_once() -> None:
    assert len({metric.full_name for metric in METRICS}) == len(METRICS)
    assert len({otel_name(metric) for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://b/wal", Place("s3://b/wal", "default")),
        ("s3://b/wal/sequencers/late", Place("s3://b/wal", "late")),
        ("file:///sequencers/wal", Place("file:///sequencers/wal", "default")),
        ("s3://b", Place("s3://b", "default")),
    ],
)
def test_a_log_is_named_by_its_path_and_sequencer(url: str, place: Place) -> None:
    assert place_of(url) == place


def test_without_the_extras_one_line_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prometheus_client", "opentelemetry", "opentelemetry.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OptionError, match=r"pip install 'sparkwal\[metrics\]'"):
        prometheus()
    with pytest.raises(OptionError, match=r"pip install 'sparkwal\[otel\]'"):
        open_telemetry()


def test_the_package_imports_neither_library() -> None:
    """Nor do the modules that count: only who asks for numbers has a library for them."""
    code = (
        "import sys, sparkwal, sparkwal.log, sparkwal.appender.appender, sparkwal.metrics.writers, "
        "sparkwal.metrics.following, sparkwal.metrics.prometheus, sparkwal.metrics.otel\n"
        "assert not {'prometheus_client', 'opentelemetry'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
