"""`tail` prints the newest and the following rows once each, under any change of the log."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from reading.collected import collect, move_floor

import sparkwal
from sparkwal.cli.open_logs import logs_at
from sparkwal.cli.tailing import Selection, follow_rows
from sparkwal.reading.history import apply_policy, walk
from sparkwal.sql.relations import all_columns
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import log_options
from tests.cli.logs import write_takeovers
from tests.cli.shown import SCHEMA, SOURCE, append, ids, run
from tests.cli.test_damaged import flip
from tests.logs import record

SECONDS = 60.0


class Tail:
    """A running `sparkwal tail -f`, with its lines as they are printed."""

    def __init__(self, *arguments: object, command: str = "tail") -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "sparkwal",
                command,
                *map(str, arguments),
                "-f",
                "--interval",
                "50ms",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[str] = queue.Queue()
        for pipe, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.errors)):
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True).start()

    def _read(self, pipe: Any, lines: queue.Queue[str]) -> None:
        for line in pipe:
            lines.put(line)

    def rows(self, count: int) -> list[int]:
        return [json.loads(self.lines.get(timeout=SECONDS))["id"] for _ in range(count)]

    def end(self, signum: int = signal.SIGINT) -> int:
        self.process.send_signal(signum)
        code = self.process.wait(SECONDS)
        assert self.lines.empty()
        return code


@pytest.fixture
def follow() -> Iterator[Callable[..., Tail]]:
    running: list[Tail] = []

    def started(*arguments: object, command: str = "tail") -> Tail:
        running.append(Tail(*arguments, command=command))
        return running[-1]

    yield started
    for each in running:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("count", [0, 1, 4, 99])
def test_tail_prints_the_newest_rows(tmp_path: Path, count: int) -> None:
    append(tmp_path, 1, 2, 3, 4, 5)
    assert ids("tail", tmp_path, "-n", count) == [1, 2, 3, 4, 5][5 - min(count, 5) :]
    older = ids("tail", tmp_path, "-n", count, "--where", "id < 5")
    assert older == [1, 2, 3, 4][4 - min(count, 4) :]
    assert ids("tail", tmp_path, "-n", count, "--end", 3) == [1, 2, 3][3 - min(count, 3) :]


def test_only_the_end_of_a_large_commit_is_read(tmp_path: Path) -> None:
    rows = pa.table({"id": range(100_000), "name": [f"n{n}" for n in range(100_000)]}, SCHEMA)
    with sparkwal.Appender(str(tmp_path), SCHEMA, producer_id="p", maxBufferedBytes="1gb") as wal:
        wal.append(rows)
    assert ids("tail", tmp_path, "-n", 3) == [99_997, 99_998, 99_999]
    last = run("tail", tmp_path, "-n", 1, "--columns", "_wal_row,id", "--json")
    assert json.loads(last) == {"_wal_row": 99999, "id": 99999}
    assert ids("tail", tmp_path, "-n", 2, "--where", "id < 7") == [5, 6]
    assert ids("head", tmp_path, "-n", 2) == [0, 1]


def test_tail_reads_back_over_leader_records_and_seals(tmp_path: Path) -> None:
    append(tmp_path, 1, 2)
    append(tmp_path, 3, maxInFlightRequests=8)
    append(tmp_path, 4)
    for count in range(1, 5):
        assert ids("tail", tmp_path, "-n", count) == [1, 2, 3, 4][-count:]


def test_dead_records_are_left_out_wherever_it_begins(tmp_path: Path) -> None:
    where, _, dead = write_takeovers(tmp_path)
    (log,) = logs_at(where, {})
    for after in range(1, log.gap + 1):
        for low in range(after):
            records = apply_policy(log, walk(log, low, after, newest_first=True, seals=True))
            found = [record.header.position for record in records]
            assert found == [each for each in range(low, after) if each not in dead][::-1]


def test_rows_that_were_collected_before_they_were_shown_are_reported(tmp_path: Path) -> None:
    append(tmp_path, 1, 2)
    logs = logs_at(str(tmp_path), {})
    known = all_columns(log.spark_schema for log in logs)
    shown = Selection(known, ("id",))
    reported: list[str] = []
    rows = follow_rows(logs, lambda _: shown, 50, reported.append)
    assert next(rows) is None  # no new row
    append(tmp_path, 3, 4, 5)
    log = LogStore(LocalStore(tmp_path), "")
    move_floor(log, 5)
    collect(log, 5)
    logs[0].floor.refresh()
    found: list[int] = []
    while len(found) < 2:
        batch = next(rows)
        found += batch.column("id").to_pylist() if batch is not None else []
    assert found == [4, 5]
    assert reported == ["positions 3…4 were collected before they were shown; continuing at 5"]


@pytest.mark.process
def test_tail_prints_each_row_once_over_new_leaders_and_new_columns(
    tmp_path: Path, follow: Callable[..., Tail]
) -> None:
    append(tmp_path, 1, 2)
    tail = follow(tmp_path, "-n", 1, "--json")
    assert tail.rows(1) == [2]
    append(tmp_path, 3, 4)  # another leader each time
    append(tmp_path, 5)
    assert tail.rows(3) == [3, 4, 5]
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    with sparkwal.Appender(str(tmp_path), wider, producer_id="w", mergeSchema=True) as wal:
        wal.append([{"id": 6, "name": "x", "more": 7}])
    assert json.loads(tail.lines.get(timeout=SECONDS)) == {"id": 6, "name": "x", "more": 7}
    assert tail.end() == 130


@pytest.mark.process
def test_csv_ends_at_a_new_column(tmp_path: Path, follow: Callable[..., Tail]) -> None:
    append(tmp_path, 1)
    tail = follow(tmp_path, "--format", "csv")
    assert [tail.lines.get(timeout=SECONDS) for _ in range(2)] == ['"id","name"\n', '1,"n1"\n']
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    with sparkwal.Appender(str(tmp_path), wider, producer_id="w", mergeSchema=True) as wal:
        wal.append([{"id": 6, "name": "x", "more": 7}])
    assert tail.process.wait(SECONDS) == 1
    assert "added columns" in tail.errors.get(timeout=SECONDS)


@pytest.mark.process
def test_tail_follows_all_logs_with_a_condition(
    tmp_path: Path, follow: Callable[..., Tail]
) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2, sequencer="b")
    tail = follow(tmp_path, "--all", "--json", "--where", "id % 5 <> 0")
    assert tail.rows(2) == [1, 2]
    append(tmp_path, 5, 3, sequencer="b")
    append(tmp_path, 10, 4)
    assert sorted(tail.rows(2)) == [3, 4]
    assert tail.end(signal.SIGTERM) == 143


@pytest.mark.process
def test_a_recreated_log_is_reported(tmp_path: Path, follow: Callable[..., Tail]) -> None:
    append(tmp_path / "wal", 1, 2, 3)
    tail = follow(tmp_path / "wal", "--json")
    assert tail.rows(3) == [1, 2, 3]
    shutil.rmtree(tmp_path / "wal" / "batches")
    append(tmp_path / "wal", 9)  # shorter than the one before
    assert tail.process.wait(SECONDS) == 1
    assert "recreated" in tail.errors.get(timeout=SECONDS)
    assert tail.lines.empty()


@pytest.mark.slow
@pytest.mark.process
def test_a_follower_that_slept_over_a_collection_reports_it_and_continues(
    tmp_path: Path, follow: Callable[..., Tail]
) -> None:
    append(tmp_path, 1, 2)
    log = LogStore(LocalStore(tmp_path), "")
    tail = follow(tmp_path, "--json")
    assert tail.rows(2) == [1, 2]
    tail.process.send_signal(signal.SIGSTOP)
    append(tmp_path, 3, 4)
    move_floor(log, 5)
    collect(log, 5)
    tail.process.send_signal(signal.SIGCONT)
    # With a recent look at the floor it may use the rows; with an old one it reports missed rows.
    append(tmp_path, 6)
    found = []
    while not found or found[-1] != 6:
        found += tail.rows(1)
    assert found in ([3, 4, 6], [4, 6], [6])
    assert tail.end() == 130


@pytest.mark.process
@pytest.mark.parametrize("command", ["tail", "log"])
def test_new_damage_is_reported(tmp_path: Path, follow: Callable[..., Tail], command: str) -> None:
    append(tmp_path, 1, 2)
    tail = follow(tmp_path, "--json", command=command)
    for _ in range(2 if command == "tail" else 3):
        tail.lines.get(timeout=SECONDS)
    tail.process.send_signal(signal.SIGSTOP)
    append(tmp_path, 3, 4, 5)
    flip(tmp_path, 5)
    tail.process.send_signal(signal.SIGCONT)
    said = tail.errors.get(timeout=SECONDS)
    assert (
        said.startswith("not shown: ") and "position 5" in said and record(tmp_path, 5).name in said
    )
    for _ in range(2 if command == "tail" else 3):
        tail.lines.get(timeout=SECONDS)
    assert tail.end() == 130 and tail.errors.empty()


def test_tail_waits_for_an_unreachable_store(
    s3_bucket: str, s3_proxy: S3Proxy, follow: Callable[..., Tail], ministack_url: str
) -> None:
    where = f"s3://{s3_bucket}/wal"
    append(where, 1, **log_options(ministack_url))
    given = [f"--log-option={k}={v}" for k, v in log_options(s3_proxy.url).items()]
    tail = follow(where, "--json", *given, "--log-option=maxRetryAttempts=0")
    assert tail.rows(1) == [1]
    s3_proxy.faults = [Fault("error", status=503)]
    append(where, 2, 3, **log_options(ministack_url))
    assert "still trying" in tail.errors.get(timeout=SECONDS)
    s3_proxy.faults = []
    assert tail.rows(2) == [2, 3]
    s3_proxy.reset()
    append(where, 4, **log_options(ministack_url))
    assert tail.rows(1) == [4]
    # It only asks.
    assert s3_proxy.counts().keys() <= {"GET", "LIST"}
    assert tail.end() == 130


@pytest.mark.process
def test_a_closed_pipe_ends_tail(tmp_path: Path) -> None:
    append(tmp_path, 1, 2)
    process = subprocess.Popen(
        [sys.executable, "-m", "sparkwal", "tail", str(tmp_path), "-f", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["id"] == 1
    process.stdout.close()
    assert process.wait(SECONDS) == 141
    assert process.stderr.read() == b""


@pytest.mark.process
@pytest.mark.parametrize("shape", ["table", "json", "csv", "arrow"])
def test_cat_into_a_pipe_that_closes_ends_quietly(tmp_path: Path, shape: str) -> None:
    rows = pa.table({"id": range(200_000), "name": ["some text"] * 200_000}, SCHEMA)
    with sparkwal.Appender(str(tmp_path), SCHEMA, producer_id="p") as wal:
        wal.append(rows)
    process = subprocess.Popen(
        [sys.executable, "-m", "sparkwal", "cat", str(tmp_path), "--format", shape],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(5)
    process.stdout.close()
    assert (process.wait(SECONDS), process.stderr.read()) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "x"], "no end"),
        (["--until", "1h"], "no end"),
        (["--interval", "5"], "with a unit"),
    ],
)
def test_following_refuses_an_end(tmp_path: Path, arguments: list[str], said: str) -> None:
    append(tmp_path, 1)
    assert said in run("tail", tmp_path, "-f", *arguments, code=2)
