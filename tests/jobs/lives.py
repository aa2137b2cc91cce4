"""Logs for the jobs that move a log's life on, and those jobs as processes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.options.open import open_log
from sparkwal.options.store import StoreOptions
from tests import classes
from tests.chains import Seen, newest

JOBS = Path(__file__).resolve().parents[2] / "jobs"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
JVM_SAYS_FIRST = "WARNING: Using incubator"


def write(path: Path | str, ids: range, sequencer: str = "default", **options: str) -> None:
    """One commit for each id."""
    with sparkwal.Appender(
        str(path), SCHEMA, producer_id="p", sequencer=sequencer, maxInFlightRequests=1, **options
    ) as wal:
        for n in ids:
            wal.append([{"id": n, "v": f"v{n}"}]).result()


def chain(path: Path | str, sequencer: str = "default") -> Seen | None:
    return newest(open_log(StoreOptions(path=str(path), sequencer=sequencer)))


def command(job: str, *arguments: object) -> list[str]:
    return [sys.executable, str(JOBS / f"{job}.py"), *map(str, arguments)]


def run(
    cwd: Path, job: str, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(job, *arguments),
        cwd=cwd,
        env={**os.environ, **classes.for_jobs(), **environment},
        capture_output=True,
        text=True,
    )


def refused(
    monkeypatch: pytest.MonkeyPatch, cwd: Path, job: str, *arguments: object
) -> tuple[int, str]:
    """A job in this process, which starts no Spark: its exit code, and all that it prints."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", None)
    ended = CliRunner().invoke(importlib.import_module(job).main, [*map(str, arguments)])
    assert isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.output


def run_here(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    *arguments: object,
    **environment: str,
) -> Result:
    """Run a job in this process, on its Spark session, and restore the settings of the session."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    settings = dict(spark.conf.getAll)
    words = [str(argument) for argument in arguments]
    try:
        return CliRunner().invoke(importlib.import_module(job).main, words, env=environment)
    finally:
        for name in spark.conf.getAll.keys() - settings.keys():
            if spark.conf.isModifiable(name):
                spark.conf.unset(name)


def collect(cwd: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`sparkwal collect` as a process."""
    words = [sys.executable, "-m", "sparkwal", "collect", *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True)


class Running:
    """A job at work; `reported` is what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self._process, self._said = process, said

    def reported(self) -> str:
        return self._said.read_text()

    def until(self, holds: Callable[[], object]) -> None:
        while not holds():
            assert self._process.poll() is None, self.reported()
            time.sleep(0.1)

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait()


@contextmanager
def running(cwd: Path, job: str, *arguments: object) -> Iterator[Running]:
    said = cwd / f"{job}.txt"
    with said.open("w") as output:
        process = subprocess.Popen(
            command(job, *arguments),
            cwd=cwd,
            stdout=output,
            stderr=output,
            env={**os.environ, **classes.for_jobs()},
        )
        try:
            yield Running(process, said)
        finally:
            process.kill()
            process.wait()
