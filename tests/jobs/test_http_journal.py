"""The HTTP job with a journal: answered when it is on this machine's disk, and in the log once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkwal import Appender, verify
from sparkwal.testing.proxy import Fault, S3Proxy
from tests.jobs.http_job import JOB, Job, environment, metrics, until
from tests.jobs.http_job import started_jobs as started_jobs
from tests.logs import values


def health(job: Job) -> dict[str, Any]:
    status, body = job.get("/healthz")
    assert status == 200
    return dict(json.loads(body))


@pytest.fixture
def away(
    s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy
) -> Iterator[tuple[list[object], Callable[[bool], None]]]:
    """A job's arguments for a log on S3, and what takes its store away and brings it back."""
    path, options = s3_path
    given = {**options, "endpoint": s3_proxy.url}
    arguments = ["--log", path, "--schema", "v long", "--producer-id", "p"]
    arguments += [f"--log-option={name}={value}" for name, value in given.items()]
    open_now = [s3_proxy]

    def take(gone: bool) -> None:
        if gone:
            open_now.pop().close()
        else:
            port = int(s3_proxy.url.rpartition(":")[2])
            open_now.append(
                S3Proxy(f"http://127.0.0.1:{options['endpoint'].rpartition(':')[2]}", port=port)
            )
            open_now[0].__enter__()

    yield [*arguments], take
    if open_now:
        open_now[0].close()


def test_each_row_that_was_answered_before_kill_9_is_in_the_log_once(
    start: Callable[..., Job],
    tmp_path: Path,
    s3_proxy: S3Proxy,
    s3_path: tuple[str, dict[str, str]],
    away: tuple[list[object], Callable[[bool], None]],
) -> None:
    arguments = [*away[0], "--journal", tmp_path / "journal"]
    job = start(*arguments)
    # The log falls behind: the acknowledged rows are only in the journal.
    s3_proxy.faults = [Fault("delay", kind="PUT", key_contains="batches/", seconds=0.5)]
    accepted: dict[int, int] = {}

    def send(first: int) -> None:
        try:
            for value in range(first, first + 1000):
                status, answer, _ = job.post(b'{"v":%d}' % value)
                assert status == 202 and answer["rows"] == 1 and "position" not in answer
                accepted[value] = answer["sequence"]
        except (OSError, HTTPException):
            pass  # no answer: it may be there or not

    threads = [threading.Thread(target=send, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while len(accepted) < 100:
        assert job.process.poll() is None
    job.process.kill()
    for thread in threads:
        thread.join()
    s3_proxy.faults = []
    job = start(*arguments)
    until(job, "sparkwal_journal_waiting 0.0")
    assert job.stop() == 0 and "is durable" in job.output
    path, options = s3_path
    found = values(path, **options)
    assert len(found) == len(set(found)) and set(accepted) <= set(found)
    by_sequence = sorted(accepted, key=lambda value: accepted[value])
    assert [value for value in found if value in accepted] == by_sequence
    assert verify(path, **options).ok


def test_rows_are_accepted_in_an_outage(
    start: Callable[..., Job],
    tmp_path: Path,
    s3_path: tuple[str, dict[str, str]],
    away: tuple[list[object], Callable[[bool], None]],
) -> None:
    """Away and back under one process; away again, killed, and sent by the next."""
    arguments, take = away
    arguments += ["--journal", tmp_path / "journal"]
    job = start(*arguments)
    assert job.post(b'{"v":0}')[:2] == (202, {"sequence": 0, "rows": 1})
    until(job, "sparkwal_journal_waiting 0.0")
    assert health(job) == {
        "status": "ok",
        "last_sequence": 0,
        "store": "there",
        "waiting": 0,
        "lost": None,
    }
    take(True)
    for value in (1, 2, 3):
        assert job.post(b'{"v":%d}' % value)[1] == {"sequence": value, "rows": 1}
    until(job, "sparkwal_store_away 1.0")
    assert "sparkwal_journal_waiting 3.0" in metrics(job)
    reported = health(job)
    assert reported["store"] == "away" and reported["waiting"] == 3
    take(False)
    until(job, "sparkwal_journal_waiting 0.0")
    assert health(job)["store"] == "there"

    take(True)
    assert job.post(b'{"v":4}')[0] == 202
    until(job, "sparkwal_store_away 1.0")
    # A signal does not wait for the store.
    assert job.stop() == 0
    assert (
        "sequence 3 is durable, 1 after it in the journal" in job.output
        and "Traceback" not in job.output
    )
    refused = subprocess.run(
        [sys.executable, str(JOB), *map(str, arguments), "--port", "0"],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert refused.returncode == 1 and "stay in the journal" in refused.stderr
    take(False)
    job = start(*arguments)
    until(job, "sparkwal_journal_waiting 0.0")
    assert job.stop() == 0
    path, options = s3_path
    assert values(path, **options) == [0, 1, 2, 3, 4]


def test_a_full_journal_is_429_until_the_log_has_taken_some(
    start: Callable[..., Job],
    tmp_path: Path,
    s3_path: tuple[str, dict[str, str]],
    away: tuple[list[object], Callable[[bool], None]],
) -> None:
    arguments, take = away
    job = start(*arguments, "--journal", tmp_path / "j", "--log-option", "journalSlots=2")
    take(True)
    assert [job.post(b'{"v":%d}' % value)[0] for value in (1, 2)] == [202, 202]
    for _ in range(2):
        status, answer, headers = job.post(b'{"v":3}')
        assert status == 429 and headers["Retry-After"] == "1"
        assert "journalSlots" in answer["error"]
    assert health(job)["waiting"] == 2
    take(False)
    until(job, "sparkwal_journal_waiting 0.0")
    # A slot is free once the cursor is past it, which is a moment after the log has it.
    while (answer := job.post(b'{"v":4}'))[0] == 429:
        time.sleep(float(answer[2]["Retry-After"]))
    assert answer[0] == 202
    assert job.stop() == 0
    path, options = s3_path
    assert values(path, **options) == [1, 2, 4]


@pytest.mark.slow
@pytest.mark.process
def test_a_full_disk_is_429_and_passes(start: Callable[..., Job], tmp_path: Path) -> None:
    full = tmp_path / "full"
    script = tmp_path / "full.py"
    script.write_text(
        "import errno, os\n"
        "write = os.pwritev\n"
        "def writes(*given):\n"
        f"    if os.path.exists({str(full)!r}):\n"
        "        raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    return write(*given)\n"
        "os.pwritev = writes\n"
        "import http_ingest\n"
        "http_ingest.main()\n"
    )
    log = tmp_path / "wal"
    job = start("--log", log, "--schema", "v long", "--journal", tmp_path / "j", script=script)
    assert job.post(b'{"v":1}')[0] == 202
    full.touch()
    status, answer, headers = job.post(b'{"v":2}')
    assert status == 429 and headers["Retry-After"] == "1" and "full" in answer["error"]
    assert job.get("/healthz")[0] == 200
    full.unlink()
    assert job.post(b'{"v":3}')[0] == 202
    assert job.stop() == 0 and values(str(log)) == [1, 3]


@pytest.mark.slow
@pytest.mark.process
def test_rows_acknowledged_before_a_takeover_are_sent_by_the_next_process(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    log = tmp_path / "wal"
    arguments = ("--log", log, "--schema", "v long", "--journal", tmp_path / "journal")
    job = start(*arguments)
    accepted = []
    with Appender(str(log), pa.schema([("v", pa.int64())]), producer_id="other"):
        for value in range(1000):
            status, answer, _ = job.post(b'{"v":%d}' % value)
            if status != 202:
                break
            accepted.append(value)
    assert accepted and status == 503
    assert answer["kind"] == "FencedError" and answer["outcome"] == "not written"
    assert job.get("/healthz")[0] == 503
    assert job.stop() == 1 and "Traceback" not in job.output
    assert values(str(log)) == []
    assert start(*arguments).stop() == 0
    assert values(str(log)) == accepted


@pytest.mark.process
def test_a_disk_that_does_not_sync_is_503_and_the_outcome_unknown(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    script = tmp_path / "broken.py"
    script.write_text(
        "import errno, os\n"
        "sync = os.fdatasync\n"
        "def syncs(file):\n"
        f"    if os.path.exists({str(broken)!r}):\n"
        "        raise OSError(errno.EIO, 'Input/output error')\n"
        "    sync(file)\n"
        "os.fdatasync = syncs\n"
        "import http_ingest\n"
        "http_ingest.main()\n"
    )
    log = tmp_path / "wal"
    arguments = ("--log", log, "--schema", "v long", "--journal", tmp_path / "journal")
    job = start(*arguments, script=script)
    assert job.post(b'{"v":1}')[0] == 202
    broken.touch()
    status, answer, _ = job.post(b'{"v":2}')
    assert status == 503 and answer["kind"] == "JournalSyncError"
    assert answer["outcome"] == "unknown"
    assert job.post(b'{"v":3}')[1]["outcome"] == "not written"
    assert job.get("/healthz")[0] == 503
    assert job.stop() == 1 and "Traceback" not in job.output
    assert start(*arguments).stop() == 0
    assert values(str(log)) in ([1], [1, 2])


@pytest.mark.slow
def test_damage_of_the_journal_is_reported_at_the_start(
    start: Callable[..., Job],
    tmp_path: Path,
    s3_path: tuple[str, dict[str, str]],
    away: tuple[list[object], Callable[[bool], None]],
) -> None:
    arguments, take = away
    arguments += ["--journal", tmp_path / "journal"]
    job = start(*arguments)
    take(True)
    for value in range(5):
        assert job.post(b'{"v":%d}' % value)[0] == 202
    assert job.stop() == 0
    (segment,) = (tmp_path / "journal").glob("*.wal")
    data = bytearray(segment.read_bytes())
    third = [found.start() for found in re.finditer(rb"\x89wJe", data)][2]
    data[third + 40] ^= 1
    segment.write_bytes(data)
    take(False)
    job = start(*arguments)
    assert "3 appends, sequences 2…4, were answered with 202" in job.output
    assert health(job)["lost"] == [2, 4]
    assert "sparkwal_journal_lost 3.0" in metrics(job)
    for value in (2, 3, 4):
        assert job.post(b'{"v":%d}' % value)[1]["sequence"] == value
    assert job.stop() == 0
    path, options = s3_path
    assert values(path, **options) == [0, 1, 2, 3, 4]
    assert health(start(*arguments))["lost"] is None


@pytest.mark.process
def test_one_sync_is_for_all_that_wait_and_others_are_answered_meanwhile(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    """A pipe as a clock: the disk blocks until the test releases it."""
    syncs, slow = tmp_path / "syncs", tmp_path / "slow"
    os.mkfifo(tmp_path / "gate")
    script = tmp_path / "slow.py"
    script.write_text(
        "import os\n"
        "sync = os.fdatasync\n"
        "def syncs(file):\n"
        f"    with open({str(syncs)!r}, 'a') as count:\n"
        "        count.write('.')\n"
        f"    if os.path.exists({str(slow)!r}):\n"
        f"        open({str(tmp_path / 'gate')!r}).read()\n"
        "    sync(file)\n"
        "os.fdatasync = syncs\n"
        "import http_ingest\n"
        "http_ingest.main()\n"
    )
    job = start(
        "--log",
        tmp_path / "wal",
        "--schema",
        "v long",
        "--journal",
        tmp_path / "journal",
        script=script,
    )
    before = syncs.stat().st_size
    slow.touch()
    answers: list[int] = []
    body = b'{"v":1}'
    threads = [threading.Thread(target=lambda: answers.append(job.post(body)[0])) for _ in range(8)]
    threads[0].start()
    while syncs.stat().st_size == before:
        assert job.process.poll() is None
    for thread in threads[1:]:
        thread.start()
    until(job, "sparkwal_journal_waiting 8.0")
    assert health(job)["last_sequence"] == -1 and answers == []
    slow.unlink()
    (tmp_path / "gate").write_text("go on")
    for thread in threads:
        thread.join()
    assert answers == [202] * 8 and syncs.stat().st_size == before + 2
    assert job.stop() == 0 and len(values(str(tmp_path / "wal"))) == 8


@pytest.mark.process
def test_a_journal_of_another_process_is_refused_without_fencing(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    arguments = ("--log", tmp_path / "wal", "--schema", "v long", "--journal", tmp_path / "journal")
    job = start(*arguments)
    refused = subprocess.run(
        [sys.executable, str(JOB), *map(str, arguments), "--port", "0"],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert refused.returncode == 2 and f"held by process {job.process.pid}" in refused.stderr
    assert job.post(b'{"v":1}')[0] == 202
    assert job.stop() == 0 and values(str(tmp_path / "wal")) == [1]
