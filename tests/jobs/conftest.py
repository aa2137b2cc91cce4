"""Jobs that are at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from http_job import Job


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
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
