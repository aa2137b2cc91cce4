"""An appender's numbers, under a store that fails now and then, by a real scrape."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

import sparkwal
from sparkwal import events
from sparkwal.errors import FencedError, OptionError
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import Policy
from sparkwal.metrics import prometheus as exposed
from sparkwal.metrics.following import Following
from sparkwal.metrics.prometheus import (
    Prometheus,
    Reporter,
    for_own_names,
    new_meter,
    prometheus,
    start_once,
)
from sparkwal.metrics.table import Labels
from sparkwal.metrics.writers import watch_appender, watch_lifecycle
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import Clock
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import log_options
from tests.lifecycle.table import ModelTable
from tests.logs import until
from tests.metrics.scraped import Samples, samples, scrape

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def served() -> Iterator[tuple[Prometheus, Callable[[], Samples]]]:
    meter = new_meter()
    port, stop = meter.serve("127.0.0.1", 0)
    yield meter, lambda: scrape(port)
    stop()


def answers(port: int) -> bool:
    with suppress(OSError):
        scrape(port)
        return True
    return False


def test_idle_connections_to_the_metrics_are_few_and_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exposed, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(exposed, "MOST_SECONDS", 1)
    port, stop = new_meter().serve("127.0.0.1", 0)
    with ExitStack() as stack:
        stack.callback(stop)
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)
        ]
        # The third has no place. The others end after some time.
        for one in reversed(idle):
            one.settimeout(60)
            assert one.recv(1) == b""
        until(lambda: answers(port))
    assert capfd.readouterr().err == ""


def test_a_client_that_sends_slowly_keeps_no_scrape_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exposed, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(exposed, "MOST_SECONDS", 0.5)
    port, stop = new_meter().serve("127.0.0.1", 0)
    with ExitStack() as stack:
        stack.callback(stop)
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")

        def ended() -> bool:
            try:
                slow.sendall(b"x")
            except OSError:
                return True
            return False

        until(ended)
        until(lambda: answers(port))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "status"), [("evil.example:9400", 421), ("localhost:9400", 200), ("127.0.0.1", 200)]
)
def test_a_page_that_rebinds_its_name_does_not_read_the_metrics(host: str, status: int) -> None:
    port, stop = new_meter().serve("127.0.0.1", 0)
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        assert answer.status == status
        assert (b"it listens on 127.0.0.1" in answer.read()) == (status == 421)
    finally:
        connection.close()
        stop()


def test_other_machines_call_a_server_of_the_network_by_any_name() -> None:
    app = make_wsgi_app(CollectorRegistry())
    assert for_own_names(app, "0.0.0.0") is app
    assert for_own_names(app, "node7.example") is app


def test_retries_and_commits_of_an_appender_are_counted(
    served: tuple[Prometheus, Callable[[], Samples]], s3_bucket: str, s3_proxy: S3Proxy
) -> None:
    meter, look = served
    path = f"s3://{s3_bucket}/log"
    reported: Counter[str] = Counter()
    with sparkwal.Appender(
        path, SCHEMA, producer_id="p", retryBaseDelayMs=1, **log_options(s3_proxy.url)
    ) as wal:
        unwatch = watch_appender(wal, meter)
        assert watch_appender(wal, meter) is unwatch  # twice is once
        wal.subscribe(lambda event: reported.update([event.name]))
        labels = (wal.url, "default")
        assert look()["sparkwal_retries_total", *labels] == 0
        s3_proxy.faults = [
            Fault("error", kind="PUT", status=503, times=2),
            Fault("lost_reply", kind="PUT", times=1),
        ]
        for value in range(5):
            wal.append([{"v": value}, {"v": value}]).result()
        until(lambda: reported["durable"] == 5)
        until(lambda: look()["sparkwal_commits_total", *labels] == 5)
        seen = look()
        records = [r for r in sparkwal.Log(path, **log_options(s3_proxy.url)).records()]
        commits = [r for r in records if r.kind == "commit"]
        assert seen["sparkwal_rows_total", *labels] == 10
        assert seen["sparkwal_written_bytes_total", *labels] == sum(r.bytes for r in commits)
        assert seen["sparkwal_put_seconds_count", *labels] == 5
        assert seen["sparkwal_put_seconds_sum", *labels] > 0
        assert seen["sparkwal_retries_total", *labels] == reported["retried"] == 3
        assert seen["sparkwal_durable_position", *labels] == records[-1].position
        assert seen["sparkwal_last_sequence", *labels] == 4
        assert seen["sparkwal_up", *labels] == 1
        assert seen["sparkwal_in_flight", *labels] == seen["sparkwal_buffered_bytes", *labels] == 0
        # The records show followers each request except those of the last commit.
        assert sum(r.metrics["retries"] for r in commits) == 3
        assert all(r.metrics["last_put_ms"] > 0 for r in commits[1:])
        # The store's name, and nothing that opens it.
        options = log_options(s3_proxy.url)
        assert options["secretAccessKey"] not in meter.text()

        with sparkwal.Appender(path, SCHEMA, producer_id="q", **log_options(s3_proxy.url)):
            # Each of those in flight learns it.
            with pytest.raises(FencedError):
                for _ in range(6):
                    wal.append(pa.table({"v": range(200_000)}))
                wal.flush()
            until(lambda: reported["stopped"] == 1)
            stopped = ("sparkwal_events_total", wal.url, "stopped", "default")
            until(lambda: look().get(stopped) == 1)
            assert look()["sparkwal_fenced_total", *labels] == 1
            assert look()["sparkwal_up", *labels] == 0
    unwatch()
    # Gauges vanish, counters stay.
    seen = look()
    assert ("sparkwal_up", *labels) not in seen and seen["sparkwal_commits_total", *labels] == 5


def test_rejected_and_waiting_rows_are_counted(tmp_path: Path) -> None:
    meter = new_meter()
    schema = pa.schema([("v", pa.int64()), ("w", pa.decimal128(5, 2))])
    with sparkwal.Appender(
        str(tmp_path / "log"), schema, producer_id="p", journal=str(tmp_path / "journal")
    ) as wal:
        unwatch = watch_appender(wal, meter)
        wal.append([{"v": 1}]).result()
        labels = (wal.url, "default")
        until(lambda: samples(meter.text())["sparkwal_commits_total", *labels] == 1)
        seen = samples(meter.text())
        assert seen["sparkwal_journal_waiting", *labels] == 0
        assert seen["sparkwal_journal_bytes", *labels] > 0
        assert (
            seen["sparkwal_journal_bytes", *labels] < seen["sparkwal_journal_limit_bytes", *labels]
        )
        assert seen["sparkwal_store_away", *labels] == seen["sparkwal_journal_lost", *labels] == 0
        assert seen["sparkwal_events_total", wal.url, "durable", "default"] == 1
    unwatch()


def _follow(meter: Prometheus, labels: Labels) -> Callable[[], None]:
    return start_once(meter, Reporter("follower", labels), lambda: lambda: None)


def test_an_appender_and_a_follower_do_not_count_the_same_commits_twice(tmp_path: Path) -> None:
    meter = new_meter()
    with sparkwal.Appender(str(tmp_path), SCHEMA, producer_id="p") as wal:
        unwatch = watch_appender(wal, meter)
        labels = Following(str(tmp_path), meter).labels
        with pytest.raises(OptionError, match="counts the commits of"):
            _follow(meter, labels)
        unwatch()
        _follow(meter, labels)()


def test_one_of_the_sequencers_is_not_counted_with_all_of_them(tmp_path: Path) -> None:
    meter = new_meter()
    with sparkwal.Appender(str(tmp_path), SCHEMA, producer_id="p", sequencer="a") as wal:
        everything = Following(str(tmp_path), meter, sequencers="*").scope
        unwatch = watch_appender(wal, meter)
        with pytest.raises(OptionError, match="counts the commits of"):
            _follow(meter, everything)
        _follow(meter, Following(str(tmp_path), meter).scope)()
        unwatch()
        unwatch_all = _follow(meter, everything)
        with pytest.raises(OptionError, match="counts the commits of"):
            watch_appender(wal, meter)
        unwatch_all()


def test_an_appender_that_follows_another_keeps_its_numbers(tmp_path: Path) -> None:
    """A program that opens the next one and then lets go of the one before."""
    meter, path = new_meter(), str(tmp_path / "log")

    def seen() -> Samples:
        return samples(meter.text())

    journal = str(tmp_path / "journal")
    with sparkwal.Appender(path, SCHEMA, producer_id="p", journal=journal) as wal:
        labels = (wal.url, "default")
        unwatch = watch_appender(wal, meter)
        assert seen()["sparkwal_up", *labels] == 1
    assert seen()["sparkwal_up", *labels] == 0
    with sparkwal.Appender(path, SCHEMA, producer_id="p") as wal:
        again = watch_appender(wal, meter)
        unwatch()
        assert seen()["sparkwal_up", *labels] == 1
        assert ("sparkwal_journal_bytes", *labels) not in seen()
        unwatch()  # twice is once
        assert seen()["sparkwal_up", *labels] == 1
        assert watch_appender(wal, meter) is again
    again()
    assert ("sparkwal_up", *labels) not in seen()


def test_a_callback_of_the_meter_that_fails_breaks_no_append(tmp_path: Path) -> None:
    class Broken:
        def add(self, *_: Any) -> None: ...
        def set(self, *_: Any) -> None: ...
        def forget(self, *_: Any) -> None: ...
        def observe(self, *_: Any) -> None:
            raise RuntimeError("no room")

    with sparkwal.Appender(str(tmp_path), SCHEMA, producer_id="p") as wal:
        watch_appender(wal, Broken())
        for value in range(3):
            wal.append([{"v": value}]).result()
    assert len(sparkwal.Log(str(tmp_path)).to_pandas()) == 3


def test_compactions_of_this_process_are_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with sparkwal.Appender(path, SCHEMA, producer_id="p") as wal:
        for value in range(4):
            wal.append([{"v": value}]).result()
    meter = new_meter()
    unwatch = watch_lifecycle(meter)
    assert watch_lifecycle(meter) is unwatch
    log = open_log(from_keywords(SourceOptions, path, {}))
    table = ModelTable(log)
    process = Coordinator(
        log,
        host="here",
        policy=Policy(late_window_seconds=0),
        table=table,
        gc_grace_ms=3_600_000,
        clock=Clock(),
    )
    run = process.run_once()
    labels = (log.url, "default")
    seen = samples(meter.text())
    assert run.compacted is not None
    assert seen["sparkwal_compactions_total", *labels] == 1
    assert seen["sparkwal_compacted_position", *labels] == run.compacted.end
    assert seen["sparkwal_floor_position", *labels] == run.floor
    assert seen["sparkwal_compaction_suspended_total", *labels] == 0
    of_range = {"versions": 1, "files": 1, "bytes": 100}
    assert {name: seen[f"sparkwal_range_{name}", *labels] for name in of_range} == of_range
    table.restore(1)
    with sparkwal.Appender(path, SCHEMA, producer_id="p") as wal:
        wal.append([{"v": 4}]).result()
    with pytest.raises(sparkwal.CompactionError):
        process.run_once()
    assert samples(meter.text())["sparkwal_compaction_suspended_total", *labels] == 1
    # The follower reports the same from the records.
    follower = new_meter()
    Following(path, follower).update()
    seen = samples(follower.text())
    assert seen["sparkwal_compacted_position", *labels] == run.compacted.end
    assert {name: seen[f"sparkwal_range_{name}", *labels] for name in of_range} == of_range
    head = sparkwal.Log(path).head()
    assert head is not None
    lag = head.position + 1 - run.compacted.end
    assert seen["sparkwal_compaction_lag_positions", *labels] == lag > 0
    unwatch()
    events.emit(events.FloorMoved(log.url, 99))
    assert samples(meter.text())["sparkwal_floor_position", *labels] == run.floor


def test_one_registry_has_one_meter() -> None:
    registry = CollectorRegistry()
    assert prometheus(registry) is prometheus(registry)
    assert prometheus() is prometheus() is not prometheus(registry)
