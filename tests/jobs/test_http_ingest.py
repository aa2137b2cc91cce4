"""The HTTP job as a process: what its answers mean, back-pressure, draining, fencing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pyarrow as pa
import pytest

from sparkwal import Appender, Log, verify
from sparkwal.testing.proxy import Fault, S3Proxy

JOB = Path(__file__).resolve().parents[2] / "jobs" / "http_ingest.py"
SCHEMA = "id bigint, name string, at timestamp, price decimal(10,2)"
_open = build_opener(ProxyHandler({})).open


class Job:
    """A running job."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(JOB), *map(str, arguments), "--port", "0"],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        assert self.process.stderr is not None
        self.output = ""
        self.url = ""
        while not self.url:
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.output}"
            self.output += line
            if match := re.search(r"listening on (http://\S+)", line):
                self.url = match[1]

    def post(self, body: bytes, kind: str = "application/x-ndjson") -> tuple[int, Any, Any]:
        request = Request(f"{self.url}/append", body, {"Content-Type": kind})
        try:
            with _open(request, timeout=60) as answer:
                return answer.status, json.load(answer), answer.headers
        except HTTPError as error:
            return error.code, json.load(error), error.headers

    def get(self, path: str) -> tuple[int, str]:
        try:
            with _open(f"{self.url}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.output += self.process.stderr.read()
        return self.process.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def started(*arguments: object) -> Job:
        jobs.append(Job(*arguments))
        return jobs[-1]

    yield started
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
        job.process.wait()
        if job.process.stderr is not None:
            job.process.stderr.close()


def test_an_answer_means_durable(start: Callable[..., Job], tmp_path: Path) -> None:
    job = start("--log", tmp_path / "wal", "--schema", SCHEMA)
    lines = b'{"id":1,"name":"a","at":"2026-01-31T12:00:00Z","price":1.5}\n\n{"id":2}\n'
    status, answer, _ = job.post(lines)
    assert status == 200 and answer["rows"] == 2 and answer["sequence"] == 0
    found = Log(str(tmp_path / "wal")).scan(answer["position"], answer["position"]).read_all()
    assert found.column("id").to_pylist() == [1, 2]
    assert found.column("at").to_pylist() == [datetime(2026, 1, 31, 12, tzinfo=UTC), None]

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema) as writer:
        writer.write_table(found)
    status, answer, _ = job.post(
        sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream"
    )
    assert status == 200 and answer["sequence"] == 1
    for body, says in (
        (b"{", "row 0 is not JSON"),
        (b"[1]", "row 0 is not a JSON object"),
        (b"", "no rows"),
        (b'{"idd":1}', "'idd'"),
        (b'{"id":1.5}', "'id' is bigint"),
        (b'{"id":1}\n{"at":"soon"}', "row 1: column 'at'"),
    ):
        status, answer, _ = job.post(body)
        assert status == 400 and says in answer["error"]
    status, answer, _ = job.post(b"x", "application/vnd.apache.arrow.stream")
    assert status == 400 and "Arrow IPC stream" in answer["error"]

    assert job.get("/healthz")[0] == 200
    told = job.get("/metrics")[1]
    assert 'sparkwal_requests_total{status="200"} 2.0' in told
    assert 'sparkwal_requests_total{status="400"} 7.0' in told
    assert "sparkwal_rows_total 4.0" in told and "sparkwal_up 1.0" in told
    assert "sparkwal_append_seconds_count 2.0" in told
    assert job.stop() == 0
    assert "is durable" in job.output and "Traceback" not in job.output
    assert len(Log(str(tmp_path / "wal")).to_pandas()) == 4
    assert verify(str(tmp_path / "wal")).ok


def test_a_log_that_exists_tells_its_schema(start: Callable[..., Job], tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, str(JOB), "--log", str(tmp_path / "wal")], capture_output=True, text=True
    )
    assert refused.returncode == 2 and "--schema" in refused.stderr
    with Appender(str(tmp_path / "wal"), pa.schema([("v", pa.int64())]), producer_id="p") as wal:
        wal.append([{"v": 1}])
    assert start("--log", tmp_path / "wal").post(b'{"v":2}')[0] == 200


def test_a_body_that_is_too_large_is_refused(start: Callable[..., Job], tmp_path: Path) -> None:
    job = start("--log", tmp_path / "wal", "--schema", "v long", "--max-body", 100)
    assert job.post(b'{"v":1}\n' * 20)[0] == 413
    assert job.post(b'{"v":1}\n' * 2)[0] == 200


def test_after_another_writer_came_it_says_503(start: Callable[..., Job], tmp_path: Path) -> None:
    job = start("--log", tmp_path / "wal", "--schema", "v long")
    assert job.post(b'{"v":1}')[0] == 200
    with Appender(str(tmp_path / "wal"), pa.schema([("v", pa.int64())]), producer_id="other"):
        for _ in range(2):
            status, answer, _ = job.post(b'{"v":2}')
            assert status == 503 and answer["kind"] == "FencedError"
            assert answer["outcome"] == "not written"
    assert job.get("/healthz")[0] == 503
    assert "sparkwal_up 0.0" in job.get("/metrics")[1]
    assert job.stop() == 1
    assert "another writer leads" in job.output and "Traceback" not in job.output
    assert list(Log(str(tmp_path / "wal")).to_pandas()["v"]) == [1]


@pytest.mark.s3
def test_back_pressure_is_429_and_sigterm_drains(
    start: Callable[..., Job], s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    given = {**options, "endpoint": s3_proxy.url, "maxInFlightRequests": 1,
             "batchSizeThreshold": 64, "maxBufferedBytes": 64}  # fmt: skip
    arguments = [f"--log-option={name}={value}" for name, value in given.items()]
    job = start("--log", path, "--schema", "v long", *arguments)
    # Every record takes a second, one at a time, and one may wait.
    s3_proxy.faults = [Fault("delay", kind="PUT", key_contains="batches/", seconds=1.0)]
    answers: list[tuple[int, Any, Any]] = []
    body = b"".join(b'{"v":%d}\n' % value for value in range(7))
    threads = [threading.Thread(target=lambda: answers.append(job.post(body))) for _ in range(8)]
    for thread in threads:
        thread.start()
    # While answers are owed: they are still given, and only then the process ends.
    while sum(status == 429 for status, _, _ in list(answers)) < 5:
        assert job.process.poll() is None
    assert job.stop() == 0
    for thread in threads:
        thread.join()
    assert {status for status, _, _ in answers} == {200, 429}
    assert all(h["Retry-After"] == "1" for status, _, h in answers if status == 429)
    durable = [answer["position"] for status, answer, _ in answers if status == 200]
    head = Log(path, **options).head()
    assert durable and head is not None and max(durable) == head.position
    assert len(Log(path, **options).to_pandas()) == 7 * len(durable)


def test_help_tells_what_the_answers_mean() -> None:
    shown = subprocess.run(
        [sys.executable, str(JOB), "--help"], capture_output=True, text=True, check=True
    ).stdout
    for word in ("429", "503", "/metrics", "/healthz", "--log", "Exit codes"):
        assert word in shown
