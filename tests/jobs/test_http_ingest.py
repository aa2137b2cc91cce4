"""The HTTP job as a process: the meaning of its answers, back-pressure, draining, fencing."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkwal import Appender, Log, verify
from sparkwal.testing.proxy import Fault, S3Proxy
from support.bodies import Bodies, TooLarge
from tests.jobs.http_job import JOB, SCHEMA, Job, environment, metrics, until
from tests.jobs.http_job import started_jobs as started_jobs


@pytest.mark.process
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
    until(job, "sparkwal_rows_total 4.0")  # counted behind the answers
    reported = metrics(job)
    assert 'sparkwal_requests_total{status="200"} 2.0' in reported
    assert 'sparkwal_requests_total{status="400"} 7.0' in reported
    assert "sparkwal_answered_rows_total 4.0" in reported and "sparkwal_up 1.0" in reported
    assert "sparkwal_append_seconds_count 2.0" in reported
    assert "sparkwal_put_seconds_count 2.0" in reported and "sparkwal_commits_total 2.0" in reported
    assert job.stop() == 0
    assert "is durable" in job.output and "Traceback" not in job.output
    assert len(Log(str(tmp_path / "wal")).to_pandas()) == 4
    assert verify(str(tmp_path / "wal")).ok


@pytest.mark.process
def test_an_existing_log_gives_its_schema(start: Callable[..., Job], tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, str(JOB), "--log", str(tmp_path / "wal")], capture_output=True, text=True
    )
    assert refused.returncode == 2 and "--schema" in refused.stderr
    with Appender(str(tmp_path / "wal"), pa.schema([("v", pa.int64())]), producer_id="p") as wal:
        wal.append([{"v": 1}])
    assert start("--log", tmp_path / "wal").post(b'{"v":2}')[0] == 200


@pytest.mark.process
def test_a_body_that_is_too_large_is_refused(start: Callable[..., Job], tmp_path: Path) -> None:
    job = start("--log", tmp_path / "wal", "--schema", "v long", "--max-body", 100)
    assert job.post(b'{"v":1}\n' * 20)[0] == 413
    assert job.post(b'{"v":1}\n' * 2)[0] == 200


def arrow_stream(batch: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write(batch)
    return sink.getvalue().to_pybytes()


ARROW = "application/vnd.apache.arrow.stream"


@pytest.mark.process
def test_rows_that_unpack_to_more_than_they_may_are_refused_before_they_are_unpacked(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    """Few bytes, 64 MiB of rows: as zstd, as a length without values, as one shared text."""
    job = start("--log", tmp_path / "wal", "--schema", "v long, s string")
    zeros = pa.py_buffer(bytes(8 * 2**20))
    column = pa.Array.from_buffers(pa.int64(), 2**20, [None, zeros])
    packed = arrow_stream(
        pa.record_batch([column, pa.nulls(2**20)], names=["v", "s"]), compression="zstd"
    )
    # The stream declares its unpacked size; 12 batches of it are 96 MiB.
    with pa.ipc.open_stream(packed) as stream:
        batch = stream.read_next_batch()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for _ in range(12):
            writer.write(batch)
    bodies = [sink.getvalue().to_pybytes()]
    bodies.append(arrow_stream(pa.record_batch([pa.nulls(2**30)] * 2, names=["v", "s"])))
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int16()), ["x" * 10_000])
    bodies.append(
        arrow_stream(pa.record_batch([pa.array(range(10_000)), shared], names=["v", "s"]))
    )
    for body in bodies:
        assert len(body) < 2**20
        status, answer, _ = job.post(body, ARROW)
        assert status == 413 and "unpack to more than 67108864 bytes" in answer["error"]
    # Sparse JSON in a table of many columns.
    few = start("--log", tmp_path / "few", "--schema", "v long, s string", "--max-rows-bytes", 999)
    assert few.post(b'{"v":1}\n' * 200)[0] == 413
    assert few.post(b'{"v":1}\n')[0] == job.post(arrow_stream(batch[:9]), ARROW)[0] == 200


def test_a_buffer_that_announces_a_negative_length_hides_no_other() -> None:
    """Arrow never reads the validity buffer of a column without nulls."""
    rows = pa.record_batch([["x" * 2**20]], names=["s"])
    body = arrow_stream(rows, compression="zstd")
    (packed,) = (m.body for m in pa.ipc.MessageReader.open_stream(body) if m.body)
    negative = next(
        place
        for place in range(len(packed) - 7)
        if struct.unpack_from("<q", packed, place)[0] < -(2**62)
    )
    # The offset and the size of the first of three buffers.
    place = body.index(struct.pack("<I3q", 3, 0, 0, 0)) + 4
    patched = struct.pack("<2q", negative, -(2**62)).join((body[:place], body[place + 16 :]))
    with pa.ipc.open_stream(patched) as stream:
        assert stream.read_next_batch().equals(rows)
    with pytest.raises(TooLarge):
        Bodies(rows.schema, 2**16).arrow(patched)


@pytest.mark.process
def test_arrow_that_is_damaged_is_400_and_does_not_poison_the_log(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    job = start("--log", tmp_path / "wal", "--schema", "s string")
    offsets = pa.py_buffer(struct.pack("<3i", 0, 2**30, 1))
    beyond = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    no_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 2)), pa.py_buffer(b"\xff\xfe")]
    )
    for column in (beyond, no_text):
        status, answer, _ = job.post(arrow_stream(pa.record_batch([column], names=["s"])), ARROW)
        assert status == 400, answer
    assert job.post(b'{"s":"fine"}')[0] == 200
    assert job.stop() == 0
    assert Log(str(tmp_path / "wal")).to_pandas()["s"].tolist() == ["fine"]
    assert verify(str(tmp_path / "wal")).ok


@pytest.mark.process
def test_an_unsupported_content_type_is_415_and_names_the_supported_ones(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    job = start("--log", tmp_path / "wal", "--schema", "v long")
    for kind in ("application/json; charset=utf-8", "application/jsonl", "Application/X-NDJSON"):
        assert job.post(b'{"v":1}', kind)[0] == 200
    for kind in ("text/csv", "application/x-www-form-urlencoded", "application/xml"):
        status, answer, _ = job.post(b'{"v":1}', kind)
        assert status == 415 and "application/x-ndjson" in answer["error"]
    status, answer, _ = job.post(b'{"v":1}', "application/json; charset=latin-1")
    assert status == 415 and "UTF-8" in answer["error"]
    status, answer, _ = job.post(gzip.compress(b'{"v":1}'), Content_Encoding="gzip")
    assert status == 415 and "gzip" in answer["error"]


@pytest.mark.process
def test_bodies_beyond_the_budget_are_429_before_they_are_parsed(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    """One body that is only half there holds its place; a second finds none, the third does."""
    job = start(
        "--log", tmp_path / "wal", "--schema", "v long", "--max-body", 100, "--max-pending", 100
    )
    host, port = job.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(
            b"POST /append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            b"Content-Length: 80\r\n\r\n" + b'{"v":1}\n' * 8
        )
        while "sparkwal_pending_body_bytes 64.0" not in metrics(job):
            assert job.process.poll() is None
        status, answer, headers = job.post(b'{"v":2}\n' * 8)
        assert status == 429 and headers["Retry-After"] == "1"
        assert "100 bytes" in answer["error"]
        assert job.post(b'{"v":3}\n' * 3)[0] == 200
        half.sendall(b'{"v":1}\n' * 2)
        assert half.recv(99).startswith(b"HTTP/1.1 200")
    # One that goes away in the middle gives its place back.
    with socket.create_connection((host, int(port))) as half:
        half.sendall(
            b"POST /append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            b"Content-Length: 80\r\n\r\n{}"
        )
        while "sparkwal_pending_body_bytes 2.0" not in metrics(job):
            assert job.process.poll() is None
    while "sparkwal_pending_body_bytes 0.0" not in metrics(job):
        assert job.process.poll() is None
    assert job.stop() == 0 and "Traceback" not in job.output
    assert sorted(Log(str(tmp_path / "wal")).to_pandas()["v"]) == [1] * 10 + [3] * 3


@pytest.mark.process
def test_other_requests_are_answered_while_a_body_is_parsed(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    """A pipe as a clock: /healthz answers while a parser stands still."""
    block = tmp_path / "block.py"
    os.mkfifo(tmp_path / "gate")
    block.write_text(
        "import sys, support.bodies as bodies\n"
        "parse = bodies.Bodies.json\n"
        "def waiting(self, body):\n"
        f"    open({str(tmp_path / 'gate')!r}).read()\n"
        "    return parse(self, body)\n"
        "bodies.Bodies.json = waiting\n"
        "import http_ingest\n"
        "http_ingest.main()\n"
    )
    job = start("--log", tmp_path / "wal", "--schema", "v long", script=block)
    answers: list[int] = []
    sender = threading.Thread(target=lambda: answers.append(job.post(b'{"v":1}')[0]))
    sender.start()
    while "sparkwal_pending_body_bytes 7.0" not in metrics(job):
        assert job.process.poll() is None
    assert job.get("/healthz")[0] == 200
    (tmp_path / "gate").write_text("go on")
    sender.join()
    assert answers == [200]


@pytest.mark.process
def test_a_small_body_overtakes_large_ones_that_are_parsed(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    """Four large ones stand still in their parsers, or wait for one, until the small one is in."""
    held = tmp_path / "held.py"
    held.write_text(
        "import signal, threading, support.bodies as bodies\n"
        "go_on = threading.Event()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: go_on.set())\n"
        "parse = bodies.Bodies.json\n"
        "def waiting(self, body):\n"
        "    assert len(body) < 100 or go_on.wait(60)\n"
        "    return parse(self, body)\n"
        "bodies.Bodies.json = waiting\n"
        "import http_ingest\n"
        "http_ingest.main()\n"
    )
    job = start("--log", tmp_path / "wal", "--schema", "v long", script=held)
    large = b'{"v":1}\n' * 12_500
    answers: list[int] = []
    senders = [
        threading.Thread(target=lambda: answers.append(job.post(large)[0])) for _ in range(4)
    ]
    for sender in senders:
        sender.start()
    while f"sparkwal_pending_body_bytes {4 * len(large)}.0" not in metrics(job):
        assert job.process.poll() is None
    status, answer, _ = job.post(b'{"v":2}\n')
    assert (status, answer["rows"]) == (200, 1)
    assert answers == []
    job.process.send_signal(signal.SIGUSR1)
    for sender in senders:
        sender.join()
    assert answers == [200] * 4
    assert job.stop() == 0
    assert len(Log(str(tmp_path / "wal")).to_pandas()) == 50_001


@pytest.mark.process
def test_sigterm_right_after_listening_is_not_swallowed(tmp_path: Path) -> None:
    early = tmp_path / "early.py"
    early.write_text(
        "import signal, uvicorn\n"
        "run = uvicorn.Server.run\n"
        "def signalled(self, sockets=None):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    run(self, sockets)\n"
        "uvicorn.Server.run = signalled\n"
        "import http_ingest\n"
        "http_ingest.main()\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            str(early),
            "--log",
            str(tmp_path / "wal"),
            "--schema",
            "v long",
            "--port",
            "0",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "listening on" in done.stderr and "stopped; nothing is durable" in done.stderr


@pytest.mark.process
def test_a_schema_without_columns_is_refused(tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, str(JOB), "--log", str(tmp_path / "wal"), "--schema", "", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert refused.returncode == 2 and "the schema has no columns" in refused.stderr


@pytest.mark.process
def test_a_used_port_is_reported_before_the_log_is_taken_over(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            [
                sys.executable,
                str(JOB),
                "--log",
                str(tmp_path / "wal"),
                "--schema",
                "v long",
                "--port",
                str(port),
            ],
            capture_output=True,
            text=True,
        )
    assert refused.returncode == 2 and f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert not (tmp_path / "wal").exists()


@pytest.mark.process
def test_after_a_takeover_the_answer_is_503(
    start: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start("--log", tmp_path / "wal", "--schema", "v long")
    assert job.post(b'{"v":1}')[0] == 200
    monkeypatch.setattr(socket, "gethostname", lambda: "\x1b[2Jhost")
    with Appender(str(tmp_path / "wal"), pa.schema([("v", pa.int64())]), producer_id="other"):
        for _ in range(2):
            status, answer, _ = job.post(b'{"v":2}')
            assert status == 503 and answer["kind"] == "FencedError"
            assert answer["outcome"] == "not written"
    assert job.get("/healthz")[0] == 503
    assert "sparkwal_up 0.0" in metrics(job)
    assert job.stop() == 1
    assert "another writer leads" in job.output and "Traceback" not in job.output
    last = job.output.splitlines()[-1]
    assert r"\u001b[2Jhost" in last and "\x1b" not in last
    assert list(Log(str(tmp_path / "wal")).to_pandas()["v"]) == [1]


def test_back_pressure_is_429_and_sigterm_drains(
    start: Callable[..., Job], s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    given = {
        **options,
        "endpoint": s3_proxy.url,
        "maxInFlightRequests": 1,
        "batchSizeThreshold": 64,
        "maxBufferedBytes": 64,
    }
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


@pytest.mark.process
def test_help_explains_the_answers() -> None:
    shown = subprocess.run(
        [sys.executable, str(JOB), "--help"], capture_output=True, text=True, check=True
    ).stdout
    for word in ("202", "429", "503", "/metrics", "/healthz", "--log", "--journal", "Exit codes"):
        assert word in shown
