"""Drivers to be killed: the next one starts up while others work."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

from faults.processes import Driver, wait_until


class Fleet:
    """Start and kill applications by random numbers."""

    def __init__(self, work: Path, rng: random.Random) -> None:
        self._work, self._rng = work, rng
        self._names = iter(range(10**9))
        self._java = ""
        self._ready: deque[Driver] = deque()
        self._all: list[Driver] = []

    def share_classes(self) -> None:
        """Let the JVMs of all drivers share loaded classes: a third less work at each start."""
        archive = self._work / "classes.jsa"
        first = Driver("archive", self._work, "--java", f"-XX:ArchiveClassesAtExit={archive}")
        self._all.append(first)
        first.go(log=self._work / "archive-log", checkpoint=self._work / "archive-cp", batches=3)
        first.finish()
        first.close_stdin()
        first.exit_code()
        wait_until(lambda: not first.members(), "the archive is written")
        self._java = f"-XX:SharedArchiveFile={archive}"

    def prepare(self) -> None:
        """Have one more driver start up while others work."""
        # Two machines, so to speak: some drivers find the hints of others, some do not.
        machine = self._work / f"machine-{self._rng.randrange(2)}"
        # More tasks at once than cores: most of them wait for their next attempt.
        given = ["--master", "local[3,8]", "--java", self._java]
        self._ready.append(self.start(*given, temporary=machine))

    def start(self, *arguments: str, temporary: Path | None = None) -> Driver:
        """Start a driver in advance."""
        name = f"driver-{next(self._names)}"
        driver = Driver(name, self._work, *arguments, temporary=temporary)
        self._all.append(driver)
        return driver

    def take(self) -> Driver:
        """A driver without work, and the next one starting up."""
        if not self._ready:
            self.prepare()
        driver = self._ready.popleft()
        self.prepare()
        return driver

    def end_used(self) -> None:
        """End all that were taken."""
        for driver in self._all:
            if driver not in self._ready:
                driver.end()
        self._all = list(self._ready)

    def close(self) -> None:
        """End every process that was started."""
        for driver in self._all:
            driver.end()
