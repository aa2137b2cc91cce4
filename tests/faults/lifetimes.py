"""A stream that never stops, with compaction and collection running, and all of them killed."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import sparkwal
from faults.disks import back_up, befall
from faults.evidence import Lost, Stream, keep
from faults.fleet import Fleet
from faults.outcome import judge
from faults.processes import PATIENCE, Application, ApplicationEnded, Driver
from faults.replica import parts
from faults.storms import everything
from faults.watching import Pace, Watch
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import log_options


class Lifetimes:
    """One log, by a seed: a driver writes it, two compactors bring it into a table and collect
    it, a consumer reads it, each killed or put to sleep and started again.

    Args:
        server: URL of an S3 server; the compactors reach it through `proxy`.
    """

    def __init__(
        self, seed: int, work: Path, server: str, bucket: str, proxy: S3Proxy, pace: Pace
    ) -> None:
        self.rng = random.Random(seed)
        self.round = "lifetimes"
        self.log = f"s3://{bucket}/{self.round}"
        self.options = log_options(server, hedge=True)
        self._pace = pace
        self._work = work
        self._server = server
        self._proxy = proxy
        self._table, self._file = work / "table", work / "replica.jsonl"
        self._watch = Watch(
            pace, self.options, bucket, self.round, self._file, work / "samples.jsonl"
        )
        self._fleet = Fleet(work, self.rng)
        self._stream = Stream(work / "checkpoint", pace.rows, name="lifetimes")
        self._driver: Driver | None = None
        self._compactors: list[Application] = []
        self._replica: Application | None = None
        self._names = iter(range(10**9))
        self._due: dict[str, float] = {}
        self._end = float("inf")

    @property
    def counted(self) -> Counter[str]:
        """The figures so far."""
        return self._watch.counted

    # Processes

    def _start(self, module: str, *arguments: object) -> Application:
        """A process of ours at this log."""
        name = f"{module}-{next(self._names)}"
        command = [sys.executable, "-P", "-m", f"faults.{module}", "--log", self.log]
        command += map(str, arguments)
        return Application(name, self._work, command, self._work / f"{name}.tmp")

    def _start_compactor(self, *more: str) -> Application:
        pace = self._pace
        return self._start(
            "compactor",
            "--endpoint",
            self._proxy.url,
            "--table",
            self._table,
            "--late",
            pace.late,
            "--age",
            pace.age,
            "--grace",
            pace.grace,
            "--interval",
            pace.interval,
            "--seed",
            self.rng.randrange(10**6),
            *more,
        )

    def _start_replica(self) -> None:
        self._replica = self._start(
            "replica", "--endpoint", self._server, "--file", self._file, "--every", 2.0
        )

    def _start_driver(self) -> Driver:
        """The next life of the query; its rows are objects of their own, or in the records."""
        self._driver = self._fleet.take()
        self._driver.go(
            log=self.log,
            endpoint=self._server,
            checkpoint=self._stream.checkpoint,
            name=self._stream.name,
            rows=self._stream.rows,
            partitions=2,
            inline=self.rng.choice(["0", "0", "1mb"]),
            restarts=50,
            every=self._pace.every,
            options=["maxRetryAttempts=16", "retryBaseDelayMs=20"],
        )
        return self._driver

    # Events

    def _kill_driver(self) -> None:
        """With its disk, or what was on it, or without."""
        assert self._driver is not None
        orphans = self.rng.random() < 0.2
        self._driver.kill(orphans=orphans)
        self.counted["driver_kills"] += 1
        self.counted["queries_failed"] += len(self._driver.failures())
        if self.rng.random() < 0.3:
            back_up(self._stream)
        if not orphans:
            self._driver.end()
            fate, self._stream = befall(self._stream, self.rng)
            self.counted[f"disk_{fate}"] += 1
        self._start_driver()

    def _kill_compactor(self, which: int = 0) -> None:
        """At any moment, half of the times while it works."""
        victim = self._compactors[which]
        if self.rng.random() < 0.5:
            runs = _runs(victim)
            self._wait(self._pace.interval, lambda: _runs(victim) > runs)
            self._wait(self.rng.uniform(0, 4))
        victim.kill()
        victim.end()
        self._watch.listen([victim])
        self.counted["compactor_kills"] += 1
        self.counted["compactor_kills_at_work"] += victim.lines()[-1:] == ["run"]
        self._compactors[which] = self._start_compactor()

    def _put_compactor_to_sleep(self) -> None:
        """Sometimes it does not wake up."""
        sleeper = self._compactors[1]
        sleeper.signal(SIGSTOP)
        self.counted["compactor_stops"] += 1
        self.counted["compactor_stops_at_work"] += sleeper.lines()[-1:] == ["run"]
        self._wait(self.rng.uniform(*self._pace.nap))
        if self.rng.random() < 0.25:
            self._kill_compactor(1)
        else:
            sleeper.signal(SIGCONT)

    def _kill_replica(self) -> None:
        """Or it sleeps, and what it has not read stays."""
        assert self._replica is not None
        if self.rng.random() < 0.3:
            self._replica.signal(SIGSTOP)
            self.counted["consumer_stops"] += 1
            self._wait(self.rng.uniform(*self._pace.nap))
            self._replica.signal(SIGCONT)
            return
        self._replica.kill()
        self.counted["consumer_kills"] += 1
        self._start_replica()

    # The play

    def play(self, minutes: float, until: Callable[[Counter[str]], bool] | None = None) -> None:
        """Until the time is up and it holds; then the proof. Raises Lost, ApplicationEnded."""
        if minutes >= 5:
            self._fleet.share_classes()
        self._proxy.faults = everything(0.04)
        self._compactors = [self._start_compactor(), self._start_compactor()]
        self._start_driver().wait_batch(0)
        self._start_replica()
        for each in self._compactors:
            each.wait_line("ready")
        for name in self._plays:
            self._plan(name)
        self._end = time.monotonic() + minutes * 60
        while time.monotonic() < self._end:
            self._wait(0.5)
            for name, (work, _) in self._plays.items():
                if time.monotonic() > self._due[name]:
                    work()
                    self._plan(name)
        if until is not None:
            self._end = float("inf")
            self._wait(PATIENCE, lambda: until(self.counted))
        self._finish()

    def end_early(self, *_: object) -> None:
        """Go on to the proof; a signal's handler."""
        self._end = 0.0

    @property
    def _plays(self) -> dict[str, tuple[Callable[[], None], tuple[float, float]]]:
        pace = self._pace
        return {
            "driver": (self._kill_driver, pace.driver),
            "compactor": (self._kill_compactor, pace.compactor),
            "sleeper": (self._put_compactor_to_sleep, pace.sleeper),
            "replica": (self._kill_replica, pace.replica),
            "read": (self._watch.read, pace.read),
        }

    def _plan(self, name: str) -> None:
        self._due[name] = time.monotonic() + self.rng.uniform(*self._plays[name][1])

    def _wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Watch for a while, or until it holds. Raises Lost, ApplicationEnded."""
        end = time.monotonic() + seconds
        while time.monotonic() < min(end, self._end) and not until():
            time.sleep(0.2)
            if time.monotonic() > self._due.get("look", 0.0):
                self._due["look"] = time.monotonic() + self._pace.look
                self._watch.listen(self._compactors)
                self._watch.look()
            for each in (self._driver, self._replica, *self._compactors):
                if each is not None and not each.alive:
                    raise ApplicationEnded(
                        f"{each.name} ended: {each.lines()[-1:]}\n{each.errors()[-3000:]}"
                    )

    def _finish(self) -> None:
        """End every process in the middle of its work, and prove the log and the table."""
        assert self._driver is not None and self._replica is not None
        # The compactors first: the end of the log is in no table.
        for each in (*self._compactors, self._driver):
            each.kill()
            each.end()
        self._watch.listen(self._compactors)
        self.counted["queries_failed"] += len(self._driver.failures())
        head = sparkwal.Log(self.log, **self.options).head()
        assert head is not None
        replica, end = self._replica, head.position + 1
        replica.wait_for(lambda: any(x.end >= end for x in parts(self._file)), f"read up to {end}")
        replica.end()
        self._watch.look()
        self.counted["faults"] += sum(self._proxy.injected.values())
        for kind, count in self._proxy.counts().items():
            self.counted[f"{kind}_of_compactors"] += count
        self._proxy.faults = []
        # The open range is finished, and no other begins.
        self._compactors = [self._start_compactor("--recover")]
        if self._compactors[0].exit_code():
            raise Lost(f"the lifecycle cannot continue: {self._compactors[0].errors()[-3000:]}")
        found = judge(self.log, self.options, self._table, self._stream, self._file)
        for name in ("commits_after_floor", "rows_in_table", "rows_in_tail", "ranges", "versions"):
            self.counted[name] = getattr(found, name)
        for name, figure in self._watch.figures().items():
            self.counted[name] = figure
        if problems := [*found.problems, *self._watch.too_large()]:
            raise Lost("\n".join(problems[:20]))

    def evidence(self) -> Path:
        """The place of the log, to look at it after the run."""
        keep(self.log, self.options, self._work / "log")
        return self._work / "log"

    def close(self) -> None:
        """End every process that was started."""
        self._fleet.close()
        for each in (self._replica, *self._compactors):
            if each is not None:
                each.end()
        self._watch.close()


def _runs(compactor: Application) -> int:
    return compactor.lines().count("run")
