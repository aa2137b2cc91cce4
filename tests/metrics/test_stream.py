"""A stream's numbers: those of its records, and nothing that its query waits for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryException
from pyspark.sql.streaming.listener import QueryProgressEvent

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.metrics import stream, table
from sparkwal.metrics.prometheus import Prometheus, new_meter
from sparkwal.metrics.stream import watch_stream
from sparkwal.metrics.writers import watch_appender
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import log_options
from tests.logs import until
from tests.spark.queries import append, numbers


@pytest.fixture
def meter() -> Iterator[tuple[Prometheus, Callable[[], dict[str, float]]]]:
    """A meter, and its numbers by name alone, as a scrape has them."""
    from tests.metrics.scraped import scrape

    own_meter = new_meter()
    port, stop = own_meter.serve("127.0.0.1", 0)
    yield own_meter, lambda: {key[0]: value for key, value in scrape(port).items() if len(key) == 3}
    stop()


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "sparkwal-metrics"]


def test_the_numbers_are_those_of_the_log(
    spark: SparkSession,
    s3_bucket: str,
    s3_proxy: S3Proxy,
    tmp_path: Path,
    meter: tuple[Prometheus, Callable[[], dict[str, float]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_meter, look = meter
    # The listener reads a progress as JSON: PySpark's own conversion is slow.
    monkeypatch.delattr(QueryProgressEvent, "fromJObject")
    path, options = f"s3://{s3_bucket}/log", log_options(s3_proxy.url)
    unwatch = watch_stream(spark, path, own_meter, **options)
    assert watch_stream(spark, path, own_meter, **options) == unwatch  # twice is once
    assert len(threads()) == 1
    more: dict[str, object] = {**options, "inlineThreshold": 0, "retryBaseDelayMs": 1}
    append(numbers(spark, 20, 2), path, tmp_path / "c", **more)
    # Retries of a takeover are in no record.
    s3_proxy.faults = [Fault("error", kind="PUT", key_contains="/batches/", status=503, times=3)]
    for _ in range(2):
        append(numbers(spark, 20, 2), path, tmp_path / "c", **more)
    append(numbers(spark, 20, 2), path, tmp_path / "c", **options)
    commits = [r for r in sparkwal.Log(path, **options).records() if r.kind == "commit"]
    assert len(commits) == 4
    until(lambda: look()["sparkwal_commits_total"] == 4)
    until(lambda: look().get("sparkwal_add_batch_seconds_count") == 4)
    seen = look()
    assert seen["sparkwal_rows_total"] == sum(r.rows for r in commits) == 80
    assert seen["sparkwal_written_bytes_total"] == sum(r.bytes for r in commits)
    assert seen["sparkwal_objects_total"] == sum(1 + len(r.batches) for r in commits) == 10
    assert seen["sparkwal_retries_total"] == sum(r.metrics["retries"] for r in commits)
    assert seen["sparkwal_retries_total"] == 3
    assert seen["sparkwal_data_write_seconds_count"] == 3
    puts = [r.metrics["last_put_ms"] / 1000 for r in commits if "last_put_ms" in r.metrics]
    assert seen["sparkwal_put_seconds_count"] == len(puts) > 0
    assert seen["sparkwal_put_seconds_sum"] == pytest.approx(sum(puts))
    assert seen["sparkwal_durable_position"] == commits[-1].position
    assert seen["sparkwal_listener_dropped_total"] == seen["sparkwal_fenced_total"] == 0
    (former,) = threads()
    with (
        sparkwal.Appender(path, commits_schema(), producer_id="other", **options) as wal,
        pytest.raises(OptionError, match="counts the commits of"),
    ):
        watch_appender(wal, own_meter)
    unwatch()
    former.join()
    again = watch_stream(spark, path, own_meter, **options)
    assert again != unwatch
    again()


def commits_schema() -> Any:
    import pyarrow as pa

    return pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])


def test_a_query_that_was_fenced_is_counted(
    spark: SparkSession,
    tmp_path: Path,
    meter: tuple[Prometheus, Callable[[], dict[str, float]]],
) -> None:
    own_meter, look = meter
    path = str(tmp_path / "log")
    unwatch = watch_stream(spark, path, own_meter)
    (rows := tmp_path / "rows").mkdir()
    (rows / "0.json").write_text('{"id": 0}')
    query: StreamingQuery = (
        spark.readStream.schema("id BIGINT")
        .json(str(rows))
        .writeStream.format("weaselwal")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start(path)
    )
    query.processAllAvailable()
    until(lambda: look().get("sparkwal_up") == 1)
    append(numbers(spark, 1).selectExpr("value AS id"), path, tmp_path / "other")
    (rows / "1.json").write_text('{"id": 1}')
    with pytest.raises(StreamingQueryException, match="FencedError"):
        query.processAllAvailable()
    until(lambda: look()["sparkwal_fenced_total"] == 1)
    assert look()["sparkwal_takeovers_total"] == 2
    assert look()["sparkwal_up"] == 0
    unwatch()


def test_a_query_that_ends_before_its_first_commit_of_this_process_is_reported(
    tmp_path: Path,
) -> None:
    """A driver that restarts and fails at once never commits: earlier records name its query."""
    path = str(tmp_path / "log")
    own_meter = new_meter()
    session = Session()
    with sparkwal.Appender(path, commits_schema(), producer_id="p") as wal:
        wal.append([{"value": 1}]).result()
    unwatch = watch_stream(cast(Any, session), path, own_meter)
    assert "sparkwal_last_commit_timestamp_seconds{" in own_meter.text()
    (listener,) = session.heard
    listener.onQueryTerminated(SimpleNamespace(id="p", exception="it failed"))
    until(lambda: 'sparkwal_up{log="' in own_meter.text())
    assert f'sparkwal_up{{log="file://{path}",sequencer="default"}} 0.0' in own_meter.text()
    unwatch()


def test_a_meter_that_hangs_or_fails_holds_up_no_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counting thread is blocked: its queue is full, and Spark continues."""
    monkeypatch.setattr(stream, "_MOST_WAITING", 2)
    stuck = threading.Event()
    go_on = threading.Event()
    dropped = []

    class Hanging:
        def add(self, metric: table.Metric, amount: float, *labels: str) -> None:
            if metric is table.DROPPED and amount:
                dropped.append(amount)

        def observe(self, metric: table.Metric, value: float, *labels: str) -> None:
            if metric is table.ADD_BATCH:
                stuck.set()
                go_on.wait()
                raise RuntimeError("and it fails")

        def set(self, *_: Any) -> None: ...
        def forget(self, *_: Any) -> None: ...

    path = str(tmp_path / "log")
    unwatch = watch_stream(spark, path, Hanging())
    append(numbers(spark, 1), path, tmp_path / "c")
    stuck.wait()
    # Events wait now for a thread that is blocked.
    for _ in range(5):
        append(numbers(spark, 1), path, tmp_path / "c")
    until(lambda: sum(dropped) >= 1)
    assert len(sparkwal.Log(path).to_pandas()) == 6
    (thread,) = threads()
    go_on.set()
    unwatch()
    thread.join()


def test_a_wrong_path_raises_at_once_and_a_failing_store_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(OptionError):
        watch_stream(spark, "gopher://x", new_meter())
    with pytest.raises(OptionError, match="interval"):
        watch_stream(spark, str(tmp_path), new_meter(), interval=0)
    own_meter = new_meter()
    options = {"maxRetryAttempts": 0, **log_options("http://127.0.0.1:9")}
    watch_stream(spark, "s3://none/log", own_meter, **options)()
    assert "sparkwal_follow_errors_total" in own_meter.text()


SCRIPT = Path(__file__).with_name("watch_then_fork.py")


@pytest.mark.slow
@pytest.mark.spark
def test_it_ends_with_spark_and_a_fork_has_none_of_it(tmp_path: Path) -> None:
    source = str(Path(sparkwal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert "Traceback" not in done.stderr


class Session:
    """The part of a session that a watch uses."""

    def __init__(self) -> None:
        self._jsparkSession = object()
        self.sparkContext = SimpleNamespace(_jsc=object())
        self.heard: list[Any] = []
        self.streams = SimpleNamespace(
            addListener=self.heard.append, removeListener=self.heard.remove
        )


def test_spark_that_is_started_again_at_once_is_watched(tmp_path: Path) -> None:
    """The thread of the watch before has not seen yet that its Spark has stopped."""
    own_meter = new_meter()
    first = Session()
    second = Session()
    before: Any = watch_stream(cast(Any, first), str(tmp_path), own_meter)
    first.sparkContext._jsc = None
    again: Any = watch_stream(cast(Any, second), str(tmp_path), own_meter)
    assert again != before and len(second.heard) == 1
    before()  # of a watch that has ended
    assert watch_stream(cast(Any, second), str(tmp_path), own_meter) == again
    again()
    assert not second.heard


def test_all_sequencers_and_one_of_them_are_not_watched_with_one_meter(tmp_path: Path) -> None:
    own_meter, session = new_meter(), cast(Any, Session())
    unwatch = watch_stream(session, str(tmp_path), own_meter, sequencer="a")
    with pytest.raises(OptionError, match="counts the commits of"):
        watch_stream(session, str(tmp_path), own_meter, sequencers="*")
    watch_stream(session, str(tmp_path), own_meter)()
    unwatch()
    unwatch = watch_stream(session, str(tmp_path), own_meter, sequencers="*")
    with pytest.raises(OptionError, match="counts the commits of"):
        watch_stream(session, str(tmp_path), own_meter)
    unwatch()


def test_a_session_that_takes_no_listener_leaves_no_thread(tmp_path: Path) -> None:
    session: Any = Session()
    taken, before = session.streams.addListener, threads()

    def refuses(listener: object) -> None:
        raise RuntimeError("no callback server")

    session.streams.addListener = refuses
    with pytest.raises(RuntimeError, match="no callback server"):
        watch_stream(session, str(tmp_path), own_meter := new_meter())
    assert threads() == before
    session.streams.addListener = taken
    watch_stream(session, str(tmp_path), own_meter)()
