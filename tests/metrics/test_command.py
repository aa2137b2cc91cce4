"""`sparkwal metrics` as a process: once, over HTTP, and how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.testing.servers import SECRET_KEY
from tests.logs import until
from tests.metrics.scraped import samples, scrape

SCHEMA = pa.schema([("v", pa.int64())])
COMMAND = [sys.executable, "-m", "sparkwal", "metrics"]


def ran(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stdout if code == 0 else done.stderr


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)/metrics\n", line)
        assert match, line
        yield process, int(match[1])
    finally:
        process.kill()
        process.communicate()


def test_one_run_prints_the_numbers_of_the_log(
    s3_path: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    path, options = s3_path
    file = tmp_path / "log.options"
    file.write_text("".join(f"{name} = {value}\n" for name, value in options.items()))
    assert "there is no log" in ran(path, "--options-file", str(file), code=2)
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        for value in range(5):
            wal.append([{"v": value}]).result()
        log_labels = (wal.url, "default")
    text = ran(path, "--options-file", str(file))
    assert samples(text)["sparkwal_commits_total", *log_labels] == 5
    assert samples(text)["sparkwal_durable_position", *log_labels] == 5
    assert "# TYPE sparkwal_put_seconds histogram" in text and SECRET_KEY not in text
    text = ran(path, "--options-file", str(file), "--backlog", "2")
    assert samples(text)["sparkwal_commits_total", *log_labels] == 2


@pytest.mark.process
def test_a_server_follows_the_log_until_a_signal(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    key = ("sparkwal_commits_total", f"file://{path}", "default")
    with serving(path, "--serve", ":0", "--interval", "0.1") as (process, port):
        with sparkwal.Appender(path, SCHEMA, producer_id="p") as wal:
            wal.append([{"v": 1}]).result()
            until(lambda: scrape(port).get(key) == 1)
            wal.append([{"v": 2}]).result()
            until(lambda: scrape(port)[key] == 2)
            taken = ran(path, "--serve", f"127.0.0.1:{port}", code=2)
            assert f"cannot listen on 127.0.0.1:{port}" in taken
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


@pytest.mark.process
@pytest.mark.parametrize("address", ["127.0.0.1:", "host", "127.0.0.1:x", ":70000"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    assert "HOST:PORT" in ran(str(tmp_path), "--serve", address, code=2)
