"""Each alert of conf/ fires in the incident that it is for, and no other alert fires with it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwal.errors import FencedError, OptionError
from sparkwal.metrics import table
from sparkwal.metrics.prometheus import new_meter, zero_counters
from sparkwal.metrics.table import Labels
from sparkwal.metrics.writers import watch_appender
from tests.appender.away import OutageStore
from tests.appender.test_salvage import hurt, unsent
from tests.journal.disk import MemoryFolder
from tests.logs import rows, until
from tests.metrics import promql

FILE = Path(__file__).parents[2] / "conf" / "prometheus-alerts.yml"
RULES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
LABELS = Labels("memory://wal", "default")


class Scraped:
    """A meter, and the scrapes of it, one a minute."""

    def __init__(self) -> None:
        self.meter = new_meter()
        self.scrapes: list[promql.Scrape] = []

    def add(self, metric: table.Metric, amount: float) -> None:
        self.meter.add(metric, amount, *LABELS)

    def set(self, metric: table.Metric, value: float, *more: str) -> None:
        self.meter.set(metric, value, *LABELS, *more)

    def value(self, name: str) -> float:
        """The sum of a metric's series."""
        series = promql.scrape(self.meter.text()).items()
        return sum(value for labels, value in series if ("__name__", name) in labels)

    def minutes(self, count: int) -> None:
        self.scrapes += [promql.scrape(self.meter.text())] * count

    def unreachable(self, count: int) -> None:
        """The process is gone: its scrapes bring nothing."""
        self.scrapes += [{}] * count

    def firing(self) -> set[str]:
        """The alerts that fired at any time."""
        return {rule["alert"] for rule in RULES if any(promql.firing(rule, self.scrapes))}


def fenced(scraped: Scraped) -> None:
    faulty = OutageStore()
    with faulty.appender() as wal, faulty.appender("other"):
        watch_appender(wal, scraped.meter)
        scraped.minutes(3)
        with pytest.raises(FencedError):
            wal.append(rows(1)).result()
        until(lambda: scraped.value("sparkwal_fenced_total") == 1)
        scraped.minutes(3)


def appender_stopped(scraped: Scraped) -> None:
    with OutageStore().appender() as wal:
        watch_appender(wal, scraped.meter)
        scraped.minutes(2)
    scraped.minutes(3)


def query_ended(scraped: Scraped) -> None:
    scraped.set(table.UP, 1)
    scraped.minutes(2)
    scraped.set(table.UP, 0)
    scraped.minutes(3)


def process_gone(scraped: Scraped) -> None:
    with OutageStore().appender() as wal:
        watch_appender(wal, scraped.meter)
        scraped.minutes(2)
        scraped.unreachable(5)


def no_commit(scraped: Scraped) -> None:
    scraped.set(table.LAST_COMMIT, 0)
    scraped.minutes(65)


def rejected(scraped: Scraped) -> None:
    with OutageStore().appender() as wal:
        watch_appender(wal, scraped.meter)
        scraped.minutes(2)
        with pytest.raises(OptionError):
            wal.append([{"v": "no number"}]).result()
        until(lambda: scraped.value("sparkwal_rejected_total") == 1)
        scraped.minutes(2)


def store_away(scraped: Scraped) -> None:
    faulty = OutageStore()
    with faulty.journaled(MemoryFolder()) as wal:
        watch_appender(wal, scraped.meter)
        scraped.minutes(2)
        faulty.is_away = True
        wal.append(rows(1))
        until(lambda: wal.is_store_away)
        scraped.minutes(4)
        faulty.is_away = False


def journal_lost(scraped: Scraped) -> None:
    faulty = OutageStore()
    left = hurt(unsent(faulty, MemoryFolder(), *range(1000, 1006)), 1002)
    with faulty.journaled(left) as wal:
        watch_appender(wal, scraped.meter)
        scraped.minutes(2)
        wal.resend_lost(lambda sequence: rows(sequence))


def put_slow(scraped: Scraped) -> None:
    for _ in range(25):
        scraped.meter.observe(table.PUT, 3, *LABELS)
        scraped.minutes(1)


def consumer_lag_grows(scraped: Scraped) -> None:
    for minute in range(65):
        scraped.set(table.CONSUMER_LAG, 1 + minute, "report")
        scraped.minutes(1)


def compaction_suspended(scraped: Scraped) -> None:
    scraped.add(table.COMPACTION_SUSPENDED, 0)
    scraped.minutes(2)
    scraped.add(table.COMPACTION_SUSPENDED, 1)
    scraped.minutes(2)


def compaction_open(scraped: Scraped) -> None:
    scraped.set(table.COMPACTION_OPEN, 4000)
    scraped.minutes(1)


def rows_aside(scraped: Scraped) -> None:
    scraped.set(table.ROWS_ASIDE, 3)
    scraped.minutes(2)
    scraped.set(table.ROWS_ASIDE, 5)
    scraped.minutes(2)


def journal_filling(scraped: Scraped) -> None:
    scraped.set(table.JOURNAL_LIMIT, 100)
    scraped.set(table.JOURNAL_BYTES, 81)
    scraped.minutes(7)


def not_readable(scraped: Scraped) -> None:
    scraped.add(table.FOLLOW_ERRORS, 0)
    scraped.minutes(2)
    scraped.add(table.FOLLOW_ERRORS, 5)
    scraped.minutes(2)


INCIDENTS: list[tuple[Callable[[Scraped], None], str]] = [
    (fenced, "SparkwalFenced SparkwalWriterStopped"),
    (appender_stopped, "SparkwalWriterStopped"),
    (query_ended, "SparkwalWriterStopped"),
    (process_gone, "SparkwalWriterGone"),
    (no_commit, "SparkwalNoCommit"),
    (rejected, "SparkwalRejected"),
    (store_away, "SparkwalStoreAway"),
    (journal_lost, "SparkwalJournalLost"),
    (put_slow, "SparkwalPutSlow"),
    (consumer_lag_grows, "SparkwalConsumerLagGrows"),
    (compaction_suspended, "SparkwalCompactionSuspended"),
    (compaction_open, "SparkwalCompactionSuspended"),
    (rows_aside, "SparkwalRowsAside"),
    (journal_filling, "SparkwalJournalFilling"),
    (not_readable, "SparkwalNotReadable"),
]


@pytest.mark.parametrize(("incident", "alerts"), INCIDENTS)
def test_an_alert_fires_in_its_incident_and_no_other_does(
    incident: Callable[[Scraped], None], alerts: str
) -> None:
    scraped = Scraped()
    incident(scraped)
    assert scraped.firing() == set(alerts.split())


def test_each_alert_has_an_incident() -> None:
    having = {alert for _, alerts in INCIDENTS for alert in alerts.split()}
    assert having == {rule["alert"] for rule in RULES}


def test_no_alert_fires_for_a_log_that_is_well() -> None:
    scraped = Scraped()
    for metric in table.METRICS:
        if metric.kind == "gauge" and metric is not table.UP:
            scraped.set(metric, 0, *(f"a {label}" for label in metric.more))
    zero_counters(scraped.meter, LABELS, "appender")
    scraped.set(table.UP, 1)
    scraped.set(table.JOURNAL_LIMIT, 100)
    for minute in range(70):
        scraped.set(table.LAST_COMMIT, 60 * minute)
        scraped.set(table.CONSUMER_LAG, minute % 3, "a consumer")
        scraped.meter.observe(table.PUT, 0.05, *LABELS)
        scraped.minutes(1)
    assert scraped.firing() == set()


def test_a_process_that_was_replaced_is_not_missed() -> None:
    scraped = Scraped()
    scraped.set(table.UP, 1)
    scraped.minutes(3)
    scraped.unreachable(1)
    scraped.minutes(5)
    assert scraped.firing() == set()


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("promtool"), reason="Prometheus is not installed")
def test_prometheus_fires_the_same_alerts(tmp_path: Path) -> None:
    tests = []
    for incident, _ in INCIDENTS:
        scraped = Scraped()
        incident(scraped)
        names = sorted({name for each in scraped.scrapes for name in each}, key=sorted)
        series = [{"series": _selector(s), "values": _values(s, scraped.scrapes)} for s in names]
        checks = [
            {
                "expr": f'count(ALERTS{{alertname="{rule["alert"]}", alertstate="firing"}})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if is_firing else [],
            }
            for rule in RULES
            for minute, is_firing in enumerate(promql.firing(rule, scraped.scrapes))
        ]
        tests.append({"interval": "1m", "input_series": series, "promql_expr_test": checks})
    script = tmp_path / "tests.yml"
    script.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(script)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _selector(series: promql.Series) -> str:
    labels = dict(series)
    name = labels.pop("__name__")
    pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}"


def _values(series: promql.Series, scrapes: list[promql.Scrape]) -> str:
    """The values in promtool's notation; a series that is gone is stale at once."""
    return " ".join(str(each.get(series, "stale")) for each in scrapes)
