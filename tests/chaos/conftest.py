"""Drivers as processes, shared by the tests as long as they live, and a log with its evidence."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults.evidence import Evidence, Stream, gather
from faults.processes import Driver
from sparkwal.testing.proxy import S3Proxy
from tests.store import azurite

SEED = 20260
ROWS = 40


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A generator seeded by the test's name and a printed seed."""
    seed = SEED + zlib.crc32(request.node.name.encode()) % 1000
    print(f"seed {seed}")
    return random.Random(seed)


class Drivers:
    """Driver processes that wait for work; one that survives a test serves the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Driver] = []
        self._taken: list[Driver] = []

    def start(self) -> None:
        """Have one more starting up."""
        self._all.append(Driver(f"driver-{len(self._all)}", self._folder))

    def take(self) -> Driver:
        free = [x for x in self._all if x.alive and x not in self._taken]
        if not free:
            self.start()
            free = self._all[-1:]
        # Rather one that is ready than one that is still starting.
        chosen = min(free, key=lambda x: not x.idle)
        self._taken.append(chosen)
        return chosen

    def give_back(self) -> None:
        for driver in self._taken:
            if not driver.idle:
                driver.end()
        self._taken.clear()

    def close(self) -> None:
        for driver in self._all:
            driver.end()


@pytest.fixture(scope="session")
def all_drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    pool = Drivers(tmp_path_factory.mktemp("drivers"))
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture
def drivers(all_drivers: Drivers) -> Iterator[Drivers]:
    """Start drivers; each is killed at the end of the test."""
    try:
        yield all_drivers
    finally:
        all_drivers.give_back()


@dataclass
class ChaosLog:
    """A log, the streams that write it, and the store between them.

    Attributes:
        options: to read the log with, past the proxy.
        writing: to write it with, through the proxy.
    """

    log: str
    folder: Path
    proxy: S3Proxy | None = None
    options: dict[str, str] = field(default_factory=dict)
    rows: int = ROWS
    streams: list[Stream] = field(default_factory=list)

    @property
    def writing(self) -> dict[str, str]:
        return {**self.options, "endpoint": self.proxy.url} if self.proxy else {}

    def stream(self, number: int = 0) -> Stream:
        while len(self.streams) <= number:
            count = len(self.streams)
            self.streams.append(Stream(self.folder / f"cp{count}", self.rows, count * 10**9))
        return self.streams[number]

    def work(self, number: int = 0, **more: object) -> dict[str, object]:
        """For `Driver.go`: write stream `number` into this log."""
        stream = self.stream(number)
        given = {"log": self.log, "checkpoint": stream.checkpoint, "rows": self.rows}
        return {
            **given,
            "base": stream.base,
            "endpoint": self.proxy.url if self.proxy else None,
            "options": ["maxRetryAttempts=8", "retryBaseDelayMs=10"],
            **more,
        }

    def gather(self) -> Evidence:
        """Collect the rows of the log and its faults."""
        return gather(self.log, self.options, self.streams)

    def prove(self, least: int = 1) -> Evidence:
        """Check that every row of at least `count` microbatches is in the log once and in order."""
        found = self.gather()
        assert found.problems == []
        assert found.commits >= least
        return found


@pytest.fixture
def on_disk(tmp_path: Path) -> ChaosLog:
    """A log in a folder."""
    return ChaosLog(str(tmp_path / "log"), tmp_path)


@pytest.fixture
def on_s3(s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy, tmp_path: Path) -> ChaosLog:
    """A log on ministack, written through a fault proxy."""
    path, options = s3_path
    return ChaosLog(path, tmp_path, s3_proxy, options)


@pytest.fixture
def on_azure(azurite_proxy: S3Proxy, tmp_path: Path) -> ChaosLog:
    """A log on Azurite, written through a fault proxy."""
    path = f"az://{azurite.new_container(azurite_proxy.url)}/wal"
    return ChaosLog(path, tmp_path, azurite_proxy, azurite.options(azurite_proxy.url))
