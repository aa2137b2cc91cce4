"""A service that appends to a sequencer of a log, killed and started again for a while."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import sparkwal
from faults.processes import Application
from sparkwal import Log
from sparkwal.errors import SparkWalError

SEQUENCER = "service"

_SOURCE = Path(__file__).with_name("service_worker.py")


class Service:
    """One appender at a time, over any number of lives.

    Args:
        writing: the store's options for the appender.
        reading: those to judge with.
    """

    def __init__(
        self, log: str, folder: Path, writing: Mapping[str, str], reading: Mapping[str, str]
    ) -> None:
        self._log = log
        self._folder = folder
        self._reading = {**reading, "sequencer": SEQUENCER}
        given = {**writing, "sequencer": SEQUENCER, "batchSizeThreshold": "1"}
        given |= {"maxInFlightRequests": "8", "maxRetryAttempts": "8", "retryBaseDelayMs": "2"}
        self._options = [f"{name}={value}" for name, value in given.items()]
        self._lives: list[Application] = []

    def revive(self) -> None:
        """Start it unless it runs."""
        if self._lives and self._lives[-1].alive:
            return
        command = [sys.executable, "-P", str(_SOURCE), self._log, *self._options]
        name = f"service-{len(self._lives)}"
        self._lives.append(Application(name, self._folder, command, self._folder))

    def kill(self) -> bool:
        """Send SIGKILL in the middle of its work; False if it was dead already."""
        alive = bool(self._lives) and self._lives[-1].alive
        if alive:
            self._lives[-1].kill()
        return alive

    def judge(self) -> tuple[int, list[str]]:
        """(appends that are durable, what is wrong with them)."""
        reported = [int(line) for life in self._lives for line in life.lines()]
        try:
            if Log(self._log, **self._reading).head() is None:
                return 0, []
            problems = list(sparkwal.verify(self._log, **self._reading).problems)
            values = Log(self._log, **self._reading).to_pandas()["value"].tolist()
        except SparkWalError as error:
            return 0, [f"the log of the service cannot be read: {error}"]
        if values != list(range(len(values))):
            problems.append("the service's appends are not there once and in order")
        if max(reported, default=-1) >= len(values):
            problems.append(
                f"append {max(reported)} was durable, the log ends at {len(values) - 1}"
            )
        return len(values), problems

    def close(self) -> None:
        """End what is left of it."""
        for life in self._lives[-1:]:
            life.end()
