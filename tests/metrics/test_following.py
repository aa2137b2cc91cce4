"""A log's numbers from its records: exact, continuous, and reset by a new log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import InvalidLogError, StoreUnavailableError
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import FLOOR, INTENT, Target
from sparkwal.lifecycle.consumers.objects import ConsumerObject, forget
from sparkwal.metrics.following import Following
from sparkwal.metrics.prometheus import Prometheus, new_meter
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.store.base import LogStore
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import log_options
from tests.chains import beginning, put_next
from tests.consumers import consumer, publish
from tests.metrics.scraped import Samples, samples
from tests.protocol.query import StoppedClock

SCHEMA = pa.schema([("v", pa.int64())])


def write(path: str, commits: int, **options: Any) -> list[Any]:
    """An appender's commits, one by one, and all commits of the log then."""
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        for value in range(commits):
            wal.append([{"v": value}] * 3).result()
    sequencer = {name: value for name, value in options.items() if name == "sequencer"}
    return [r for r in sparkwal.Log(path, **sequencer).records() if r.kind == "commit"]


def reported(meter: Prometheus, path: str, sequencer: str = "default") -> Samples:
    """The numbers of one log, without its labels."""
    log_labels = {path if "://" in path else f"file://{path}", sequencer}
    return {
        tuple(part for part in key if part not in log_labels): value
        for key, value in samples(meter.text()).items()
        if log_labels <= set(key)
    }


def the_log(path: str) -> LogStore:
    return open_log(from_keywords(SourceOptions, path, {}))


def test_the_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    write(path, 3)
    meter = new_meter()
    following = Following(path, meter)
    following.update()
    seen = reported(meter, path)
    # It counts from now on, with the position of the log.
    assert seen["sparkwal_commits_total",] == 0 and seen["sparkwal_durable_position",] == 3
    commits = write(path, 40)[3:]
    following.update(full=False)
    seen = reported(meter, path)
    assert seen["sparkwal_commits_total",] == seen["sparkwal_objects_total",] == 40
    assert seen["sparkwal_rows_total",] == 120
    assert seen["sparkwal_written_bytes_total",] == sum(r.bytes for r in commits)
    puts = [r.metrics["last_put_ms"] / 1000 for r in commits if "last_put_ms" in r.metrics]
    assert seen["sparkwal_put_seconds_count",] == len(puts) == 39
    assert seen["sparkwal_put_seconds_sum",] == pytest.approx(sum(puts))
    assert seen["sparkwal_takeovers_total",] == 1 and seen["sparkwal_term",] == commits[-1].term
    assert seen["sparkwal_last_commit_timestamp_seconds",] == commits[-1].timestamp_ms / 1000
    assert seen["sparkwal_in_flight",] == 1
    following.update()
    assert reported(meter, path) == seen  # no new record, and none counted again


def test_a_backlog_is_counted_at_the_start(tmp_path: Path) -> None:
    path = str(tmp_path)
    write(path, 5)
    for backlog, commits in ((2, 2), (100, 5)):
        meter = new_meter()
        Following(path, meter, backlog=backlog).update()
        assert reported(meter, path)["sparkwal_commits_total",] == commits


def test_a_later_log_is_counted_whole_and_a_recreated_one_begins_at_0(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "log")
    meter = new_meter()
    following = Following(path, meter)
    following.update()
    assert not following.has_log
    write(path, 4)
    following.update()
    assert following.has_log and reported(meter, path)["sparkwal_commits_total",] == 4
    publish(the_log(path), consumer("daily", 1, log_id_at(path)))
    following.update()
    assert ("sparkwal_consumer_position", "daily") in reported(meter, path)
    for commits in (2, 9):  # shorter and longer than the one before
        shutil.rmtree(path)
        write(path, commits)
        following.update()
        seen = reported(meter, path)
        assert seen["sparkwal_commits_total",] == commits
        assert seen["sparkwal_durable_position",] == commits
        assert seen["sparkwal_term",] == 1
        assert ("sparkwal_consumer_position", "daily") not in seen
    shutil.rmtree(path)
    following.update()
    assert ("sparkwal_durable_position",) not in reported(meter, path)


def log_id_at(path: str) -> str:
    head = sparkwal.Log(path).head()
    assert head is not None
    return head.log_id


def test_a_consumer_that_is_forgotten_vanishes(tmp_path: Path) -> None:
    path = str(tmp_path)
    commits, log = write(path, 6), the_log(path)
    log_id = log_id_at(path)
    publish(log, consumer("daily", 3, log_id, table_files=2))
    publish(log, consumer("done", 7, log_id))
    publish(log, consumer("lease-1", 0, log_id, expires_ms=60_000))
    publish(log, consumer("stranger", 0, "another"))
    meter = new_meter()
    following = Following(path, meter)
    following.update()
    seen = reported(meter, path)
    assert seen["sparkwal_consumer_position", "daily"] == 3
    assert seen["sparkwal_consumer_lag_positions", "daily"] == 4
    lag = commits[-1].timestamp_ms - commits[2].timestamp_ms
    assert seen["sparkwal_consumer_lag_seconds", "daily"] == lag / 1000
    assert seen["sparkwal_consumer_lag_positions", "done"] == 0
    assert seen["sparkwal_consumer_table_files", "daily"] == 2
    assert ("sparkwal_consumer_table_files", "done") not in seen
    named = {key[1] for key in seen if "_consumer_" in key[0]}
    assert named == {"daily", "done"}  # each lease would be a series more
    forget(ConsumerObject(log, "daily"))
    following.update()
    assert {key[1] for key in reported(meter, path) if "_consumer_" in key[0]} == {"done"}


def test_an_open_range_and_a_floor_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path)
    write(path, 6)
    log, clock = the_log(path), StoppedClock()
    head = sparkwal.Log(path).head()
    assert head is not None
    meter = new_meter()
    following = Following(path, meter)
    following.update()
    assert ("sparkwal_compaction_lag_positions",) not in reported(meter, path)
    first = put_next(
        log,
        beginning(head.log_id, "default", 1000),
        INTENT,
        clock,
        "here",
        k=1,
        cut=2,
        to=5,
        target=Target("memory://table"),
    )
    assert first is not None
    following.update()
    seen = reported(meter, path)
    assert seen["sparkwal_compacted_position",] == 2
    assert seen["sparkwal_compaction_lag_positions",] == 5
    assert ("sparkwal_compaction_lag_seconds",) in seen
    assert seen["sparkwal_compaction_open_seconds",] > 0  # the clock of that record is long ago
    assert seen["sparkwal_rows_aside",] == 0
    assert put_next(log, first, FLOOR, clock, "here", cut=5, to=5, floor=4, rows_aside=3)
    following.update()
    seen = reported(meter, path)
    assert seen["sparkwal_rows_aside",] == 3
    assert seen["sparkwal_compaction_open_seconds",] == 0 and seen["sparkwal_floor_position",] == 4
    assert seen["sparkwal_commits_total",] == 0
    monkeypatch.setattr("sparkwal.metrics.following.lag_ms", lambda *_: None)
    following.update()  # the record was collected
    assert ("sparkwal_compaction_lag_seconds",) not in reported(meter, path)
    # A new follower counts the records above the floor.
    late = new_meter()
    Following(path, late, backlog=100).update()
    assert reported(late, path)["sparkwal_commits_total",] == 3


def test_a_follower_of_all_sequencers_counts_a_new_one(tmp_path: Path) -> None:
    path = str(tmp_path)
    write(path, 1)
    meter = new_meter()
    following = Following(path, meter, sequencers="*")
    following.update()
    write(path, 2, sequencer="late")
    write(path, 3)
    following.update()
    assert reported(meter, path)["sparkwal_commits_total",] == 3
    assert reported(meter, path, "late")["sparkwal_commits_total",] == 2
    shutil.rmtree(tmp_path / "sequencers")
    following.update()
    assert reported(meter, path, "late") == {}


def test_a_look_makes_few_requests_and_a_failing_store_is_counted(
    s3_bucket: str, s3_proxy: S3Proxy
) -> None:
    path, options = f"s3://{s3_bucket}/log", log_options(s3_proxy.url)
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        wal.append([{"v": 1}]).result()
        meter = new_meter()
        following = Following(path, meter, retryBaseDelayMs=1, **options)
        following.update()
        s3_proxy.reset()
        following.update(full=False)
        assert s3_proxy.counts() == {"GET": 1}
        wal.append([{"v": 2}]).result()
        following.update(full=False)  # learns the term at which it begins
        wal.append([{"v": 3}]).result()
        s3_proxy.reset()
        following.update(full=False)
        # The record, and one or two after it that are not there.
        assert s3_proxy.counts().keys() == {"GET"} and s3_proxy.counts()["GET"] <= 3
        url = wal.url
        s3_proxy.faults = [Fault("error", kind="GET", status=503)]
        with pytest.raises(StoreUnavailableError):
            following.update()
        following.try_update()
        s3_proxy.faults = []
        following.try_update()
        seen = samples(meter.text())
        assert seen["sparkwal_follow_errors_total", url, "default"] == 1
        assert seen["sparkwal_commits_total", url, "default"] == 2
        # It reads: the appender still leads.
        wal.append([{"v": 4}]).result()


@pytest.mark.parametrize("full", [True, False])
def test_a_record_damaged_under_a_follower_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, full: bool
) -> None:
    path = str(tmp_path / "log")
    meter = new_meter()
    with sparkwal.Appender(path, SCHEMA, producer_id="p", maxInFlightRequests=1) as wal:
        following = Following(path, meter)
        for value in range(3):
            position = wal.append([{"v": value}]).result()
            if value == 1:
                file = tmp_path / "log" / "batches" / keys.encode(keys.slot(position, 1000))
                data = bytearray(file.read_bytes())
                data[data.index(b'"leader_id"') + 15] ^= 1
                file.write_bytes(bytes(data))
            following.try_update(full=full)
            following.try_update(full=full)
    # The first record existed at the begin of the look.
    assert reported(meter, path)["sparkwal_commits_total",] == 1
    warned = [each for each in caplog.messages if file.name in each]
    assert len(warned) == 1


def test_a_log_that_is_damaged_hides_no_other(tmp_path: Path) -> None:
    path = str(tmp_path)
    write(path, 1)
    meter = new_meter()
    following = Following(path, meter, sequencers="*")
    following.update()
    (tmp_path / "consumers").mkdir()
    (tmp_path / "consumers" / "x").write_bytes(b"?")
    write(path, 2, sequencer="late")
    for commits in (2, 4):
        with pytest.raises(InvalidLogError):
            following.update()
        assert reported(meter, path, "late")["sparkwal_commits_total",] == commits
        write(path, 2, sequencer="late")
