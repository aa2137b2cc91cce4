"""The names: as Prometheus wants them, and each once."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from sparkwal.errors import OptionError
from sparkwal.metrics.prometheus import prometheus
from sparkwal.metrics.table import METRICS, Labels, Metric, labels_of


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_wants(metric: Metric) -> None:
    assert re.fullmatch(r"sparkwal_[a-z]+(_[a-z]+)*", metric.full_name)
    assert metric.full_name.endswith("_total") == (metric.kind == "counter")
    if metric.kind == "histogram":
        assert metric.name.endswith("_seconds")
    assert metric.help.endswith(".") and metric.labels[:2] == ("log", "sequencer")
    # Labels whose values others choose: no query, no leader, no lease.
    assert set(metric.more) <= {"consumer", "name", "status"}
    assert metric.sources


def test_each_name_is_used_once() -> None:
    assert len({metric.full_name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize(
    ("url", "labels"),
    [
        ("s3://b/wal", Labels("s3://b/wal", "default")),
        ("s3://b/wal/sequencers/late", Labels("s3://b/wal", "late")),
        ("file:///sequencers/wal", Labels("file:///sequencers/wal", "default")),
        ("s3://b", Labels("s3://b", "default")),
    ],
)
def test_a_log_is_named_by_its_path_and_sequencer(url: str, labels: Labels) -> None:
    assert labels_of(url) == labels


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(OptionError, match=r"pip install '\.\[metrics\]'"):
        prometheus()


@pytest.mark.process
def test_the_package_does_not_import_the_library() -> None:
    """The counting modules do not import it either: only an exporter needs it."""
    code = (
        "import sys, sparkwal, sparkwal.log, sparkwal.appender.appender, sparkwal.metrics.writers, "
        "sparkwal.metrics.following, sparkwal.metrics.prometheus\n"
        "assert 'prometheus_client' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
