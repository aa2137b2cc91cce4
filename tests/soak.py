"""Kill Spark applications and break their store for as long as asked, and prove the log."""

from __future__ import annotations

# isort: split
import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP

import click
from rich.console import Console

from faults.disks import add_files, back_up, befall, numbered_stream, on_a_new_machine
from faults.evidence import Lost, Stream, gather, keep, shown
from faults.fleet import Fleet
from faults.lifetimes import Lifetimes
from faults.processes import ApplicationEnded, Driver, send, wait_until
from faults.service import Service
from faults.storms import storm
from faults.watching import Pace
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import log_options, make_bucket, start_ministack

ROWS = 96
BUCKET = "soak"
# Storms break every other request; a query whose attempts are used up all the same
# starts again, which is part of the play.
STUBBORN = ["maxRetryAttempts=16", "retryBaseDelayMs=2"]

console = Console(stderr=True, highlight=False)


class Soak:
    """Rounds of one log each, by a seed."""

    def __init__(self, seed: int, work: Path, server: str | None, proxy: S3Proxy | None) -> None:
        self.rng = random.Random(seed)
        self.counted: Counter[str] = Counter()
        self._work = work
        self._server, self._proxy = server, proxy
        self._fleet = Fleet(work, self.rng)
        self._at_work: dict[Driver, int] = {}
        self._end = 0.0
        self._open_round()

    def _open_round(self) -> None:
        self.round = f"round-{self.counted['rounds']}"
        self.folder = self._work / self.round
        self.folder.mkdir()
        self.log = f"s3://{BUCKET}/{self.round}" if self._server else str(self.folder / "log")
        self.streams: list[Stream] = []
        self.service = Service(self.log, self.folder, self.writing, self.options)

    @property
    def options(self) -> dict[str, str]:
        """To read the log with, past the proxy."""
        return log_options(self._server, hedge=True) if self._server is not None else {}

    @property
    def writing(self) -> dict[str, str]:
        """To write it with, through the proxy."""
        return {**self.options, **({"endpoint": self._proxy.url} if self._proxy else {})}

    def stream(self, number: int) -> Stream:
        """One of this round's."""
        while len(self.streams) <= number:
            self.streams.append(numbered_stream(self.folder, len(self.streams), ROWS))
        return self.streams[number]

    # Drivers

    def take(self, checkpoint: int = 0, restarts: int = 50) -> Driver:
        """A driver at work in this round's log, and the next one starting up."""
        driver = self._fleet.take()
        self.set_to_work(driver, checkpoint, restarts)
        return driver

    def set_to_work(self, driver: Driver, checkpoint: int, restarts: int) -> None:
        """Give it its work; each life cuts its microbatches another way."""
        stream = self.stream(checkpoint)
        self._at_work[driver] = checkpoint
        if stream.files is not None:
            add_files(stream, 40)
        driver.go(
            log=self.log,
            endpoint=self._proxy.url if self._proxy else None,
            checkpoint=stream.checkpoint,
            name=stream.name,
            files=str(stream.files or ""),
            per_trigger=self.rng.randint(1, 6),
            rows=stream.rows,
            base=stream.base,
            partitions=self.rng.choice([1, 16, 24, 32]),
            inline=self.rng.choice(["0", "0", "0", "0", "1mb"]),
            restarts=restarts,
            options=STUBBORN,
        )

    def kill(self, *drivers: Driver) -> None:
        """Kill all at once; some Python workers outlive it for a moment, some disks are lost."""
        orphans = self.rng.random() < 0.2
        for driver in drivers:
            self.counted["driver_kills"] += driver.alive
            driver.kill(orphans=orphans)
            self.counted["queries_failed"] += len(driver.failures())
            for kind in ("FencedError", "DivergedCheckpointError"):
                self.counted[kind] += sum(kind in x for x in driver.failures())
            for line in driver.lines():
                # Not those of new queries.
                rebuilt = line.startswith("rebuilt ") and not line.startswith("rebuilt -1")
                self.counted["checkpoints_rebuilt"] += rebuilt
        for number in {self._at_work[driver] for driver in drivers}:
            if self.rng.random() < 0.3:
                back_up(self.streams[number])
            if orphans:
                continue  # a machine that lives has its disk
            for driver in drivers:
                driver.end()
            fate, self.streams[number] = befall(self.streams[number], self.rng)
            self.counted[f"disk_{fate}"] += 1

    # Faults during the round

    def weather(self) -> None:
        """Another storm, or none."""
        if self._proxy is not None:
            self._proxy.faults = storm(self.rng)

    def torture(
        self, seconds: float, *drivers: Driver, until: Callable[[], bool] = lambda: False
    ) -> None:
        """Kill Python workers and change the weather, for a while or until it holds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not until():
            time.sleep(min(left, self.rng.uniform(0.5, 2.5)))
            if self.rng.random() < 0.3:
                self.weather()
            if self.rng.random() < 0.2:
                self.counted["appender_kills"] += self.service.kill()
            self.service.revive()
            workers = [pid for driver in drivers for pid in driver.workers()]
            if workers and self.rng.random() < 0.5:
                self.counted["worker_kills"] += send(self.rng.choice(sorted(workers)), SIGKILL)

    # Scenarios

    def killed(self) -> None:
        """One driver, killed at any moment, also while it starts."""
        driver = self.take()
        if self.rng.random() < 0.2:
            time.sleep(self.rng.uniform(0, 3))
        else:
            driver.wait_line("started")
            last = self.streams[0].noted + self.rng.randint(1, 8)
            self.torture(20, driver, until=lambda: driver.batch() >= last)
        self.kill(driver)

    def lost(self) -> None:
        """A driver that is killed, often with its disk, soon after it has begun."""
        if self._proxy is not None and self.rng.random() < 0.7:
            self._proxy.faults = []
        driver = self.take()
        last = self.streams[0].noted + self.rng.randint(1, 3)
        driver.wait_line("started")
        with suppress(ApplicationEnded):
            wait_until(lambda: driver.batch() >= last, "a few microbatches", 20)
        time.sleep(self.rng.uniform(0, 0.5))
        self.kill(driver)

    def same_checkpoint(self) -> None:
        """Two drivers that both believe to be the query."""
        self._fight(self.take(), self.take())

    def rivals(self) -> None:
        """Two queries on one path; each restarts after it was fenced."""
        self._fight(self.take(0), self.take(self.rng.randint(1, 2)))

    def _fight(self, *drivers: Driver) -> None:
        """Until so many queries were fenced, failed or killed with their workers."""
        drivers[-1].wait_line("started")
        rounds = self.rng.randint(1, 6)
        self.torture(20, *drivers, until=lambda: sum(len(x.failures()) for x in drivers) >= rounds)
        self.kill(*drivers)

    def sleeper(self) -> None:
        """A driver that sleeps while another takes over, and wakes up."""
        sleeper = self.take(0, restarts=0)
        sleeper.wait_line("started")
        self.torture(self.rng.uniform(0.5, 4), sleeper)
        sleeper.signal(SIGSTOP)
        self.counted["driver_stops"] += 1
        other = self.take(self.rng.randint(0, 1))
        other.wait_line("started")
        self.torture(self.rng.uniform(2, 6), other)
        sleeper.signal(SIGCONT)
        # It gets FencedError with its next request.
        self.torture(20, other, until=lambda: bool(sleeper.failures()))
        self.kill(sleeper, other)

    def executors(self) -> None:
        """A driver whose executors are processes that die."""
        driver = self._fleet.start("--master", "local-cluster[2,1,2048]")
        self.set_to_work(driver, 0, 50)
        driver.wait_line("started")
        for _ in range(2):
            self.torture(self.rng.uniform(1, 4), driver)
            executors = sorted(driver.executors())
            if executors and driver.alive:
                self.counted["executor_kills"] += send(self.rng.choice(executors), SIGKILL)
        self.torture(2, driver)
        self.kill(driver)

    def play(self, minutes: float) -> None:
        """Until the time is up. Raises Lost, ApplicationEnded."""
        self._end = time.monotonic() + minutes * 60
        plays: dict[Callable[[], None], int] = {
            self.killed: 10,
            self.lost: 30,
            self.same_checkpoint: 3,
            self.rivals: 3,
            self.sleeper: 2,
            self.executors: 1,
        }
        if minutes >= 5:
            self._fleet.share_classes()
        self._fleet.prepare()
        while time.monotonic() < self._end:
            if self.counted["rounds"]:
                self._open_round()
            for _ in range(self.rng.randint(5, 12)):
                self.weather()
                self.rng.choices([*plays], [*plays.values()])[0]()
                if time.monotonic() > self._end:
                    break
            self.judge()

    def end_early(self, *_: object) -> None:
        """Go on to the proof; a signal's handler."""
        self._end = 0.0

    def judge(self) -> None:
        """Compare this round's log with its input."""
        self._fleet.end_used()
        self.service.close()
        appends, wrong = self.service.judge()
        if self._proxy is not None:
            self._proxy.faults = []
        # By the path that the drivers know it by.
        self.streams, refused = on_a_new_machine(self.log, self.writing, self.streams)
        wrong += refused
        self.counted["appends"] += appends
        found = gather(self.log, self.options, self.streams)
        self.counted["rounds"] += 1
        for name in ("commits", "leaders", "rows", "orphans"):
            self.counted[name] += getattr(found, name)
        if self._proxy is not None:
            for action, times in self._proxy.injected.items():
                self.counted[f"fault_{action}"] += times
                self.counted["faults"] += times
            self._proxy.reset()
        console.print(f"{self.round}: {dict(self.counted)}")
        if found.problems or wrong:
            raise Lost("\n".join([*found.problems, *wrong][:20]))
        shutil.rmtree(self.folder)

    def evidence(self) -> Path:
        """The place of this round's log, to look at it after the run."""
        if self._server is not None:
            keep(self.log, self.options, self.folder / "log")
        return self.folder / "log"

    def close(self) -> None:
        """End every process that was started."""
        self.service.close()
        self._fleet.close()


@click.command()
@click.option("--minutes", type=float, default=3.0, show_default=True)
@click.option("--seed", type=int, help="Of everything that is random here.  [default: a new one]")
@click.option("--store", type=click.Choice(["s3", "file"]), default="s3", show_default=True)
@click.option(
    "--lifetimes",
    is_flag=True,
    help="One log all the time, which compactors bring into a Delta table and collect.",
)
def main(minutes: float, seed: int | None, store: str, lifetimes: bool) -> None:
    """Kill drivers, executors, Python workers and a service that appends to a log of its own,
    stop them, let them fight over one log, take the dead ones' disks away, and break the store's
    requests; after each round prove that every row is there once, in order.

    With --lifetimes a stream is compacted and collected while all who take part are killed or put
    to sleep, and the log never holds more than twice what its policy allows.

    Ctrl-C ends it early, with the same proof. Prints the figures as a table and as one line of
    JSON. Exit codes: 0 nothing was lost, 1 the log is wrong (it is kept, and the seed is reported),
    2 wrong usage.
    """
    if lifetimes and store != "s3":
        raise click.UsageError("--lifetimes needs --store s3")
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    console.print(f"seed {seed}")
    work = Path(tempfile.mkdtemp(prefix="sparkwal-soak-"))
    began = time.monotonic()
    failure: Exception | None = None
    with ExitStack() as closing:
        server = proxy = None
        if store == "s3":
            server = closing.enter_context(start_ministack()).url
            make_bucket(server, BUCKET)
            proxy = closing.enter_context(S3Proxy(server, seed=seed))
        soak: Soak | Lifetimes
        if lifetimes and server is not None and proxy is not None:
            soak = Lifetimes(seed, work, server, BUCKET, proxy, Pace())
        else:
            soak = Soak(seed, work, server, proxy)
        closing.callback(soak.close)
        signal.signal(SIGINT, soak.end_early)
        try:
            soak.play(minutes)
        except (Lost, ApplicationEnded) as error:
            failure = error
            where = soak.evidence()
    seconds = time.monotonic() - began
    console.print(shown(soak.counted, seconds))
    head = {"seed": seed, "store": store, "seconds": round(seconds), "ok": failure is None}
    print(json.dumps(head | soak.counted))
    if failure is None:
        shutil.rmtree(work, ignore_errors=True)
        return
    kind = "LOST" if isinstance(failure, Lost) else "the soak itself failed"
    console.print(f"[red]{kind}[/] in {soak.round}, seed {seed}:\n{failure}", markup=True)
    console.print(
        f"Look at sparkwal.verify({str(where)!r}); the checkpoints and what the drivers printed "
        f"are in {work}"
    )
    raise SystemExit(1)


if __name__ == "__main__":
    main()
