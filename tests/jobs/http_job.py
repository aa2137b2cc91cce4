"""The HTTP job as a process, and what it answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

JOB = Path(__file__).resolve().parents[2] / "jobs" / "http_ingest.py"
SCHEMA = "id bigint, name string, at timestamp, price decimal(10,2)"
_open = build_opener(ProxyHandler({})).open


def environment() -> dict[str, str]:
    """A script may stand elsewhere and import the job."""
    found = filter(None, [str(JOB.parent), os.environ.get("PYTHONPATH")])
    return {**os.environ, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(found)}


class Job:
    """A running job."""

    def __init__(self, *arguments: object, script: Path = JOB) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments), "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self.process.stderr is not None
        self.output = ""
        self.url = ""
        while not self.url:
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.output}"
            self.output += line
            if match := re.search(r"listening on (https?://\S+)", line):
                self.url = match[1]

    def post(
        self, body: bytes, kind: str = "application/x-ndjson", **headers: str
    ) -> tuple[int, Any, Any]:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(f"{self.url}/append", body, {"Content-Type": kind, **headers})
        try:
            with _open(request, timeout=60) as answer:
                return answer.status, json.load(answer), answer.headers
        except HTTPError as error:
            return error.code, json.load(error), error.headers

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        try:
            with _open(Request(f"{self.url}{path}", headers=headers), timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.output += self.process.stderr.read()
        return self.process.wait()


@pytest.fixture(name="start")
def started_jobs() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def started(*arguments: object, **how: Any) -> Job:
        jobs.append(Job(*arguments, **how))
        return jobs[-1]

    yield started
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
        job.process.wait()
        if job.process.stderr is not None:
            job.process.stderr.close()


def metrics(job: Job) -> str:
    """The report of /metrics, without the labels of the log."""
    reported = job.get("/metrics")[1]
    assert reported.count('sequencer="default"') == reported.count("log=") > 0
    reported = re.sub('(log|sequencer)="[^"]+",?', "", reported)
    return reported.replace(",}", "}").replace("{}", "")


def until(job: Job, reported: str) -> None:
    """/metrics reports this."""
    while reported not in metrics(job):
        assert job.process.poll() is None
