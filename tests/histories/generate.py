"""Makes one history: processes that append, read, replay and compact one log, through a proxy that
breaks requests, while they are killed, stopped and their clocks jump.

    python -m histories.generate SEED OUTPUT [--seconds N]
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from delta_rs_table import DeltaRsTable

import sparkwal
from sparkwal.format.lifecycle_record import Target
from sparkwal.testing.proxy import Fault, S3Proxy

from .lake_worker import compact_once, coordinator, table_alone
from .place import options_of, start
from .recording import Recorder, merged, write_history
from .worker import SCHEMA

# Seconds that a writer gets to send the rest, and a JVM to begin.
_PATIENCE = 300.0
# Of each six seeds one has Spark's sink.
_STREAM, _KINDS = 2, 6
# One of three seeds has a table. In one of twelve seeds Spark writes it.
_TABLE, _TABLE_KINDS = 1, 3
_TABLE_OF_SPARK, _TABLE_OF_SPARK_KINDS = 7, 12
# A log keeps its newest 1,000 records, so collection needs more of them.
_EARLY_ROWS = 1_050
_EARLY = 8_000_000
# A JVM takes some seconds to start again.
_SLOWER = 4.0
# A busy machine gets more time, until so many appends succeeded: else the history proves little.
_ENOUGH, _ENOUGH_OF_SPARK = 100, 15
_RUNS = 5
_MOST_TIMES = 5.0
# The roles with a JVM, and the operation that shows that it is up.
_WITH_JVM = {"stream": b'"append"', "compact-by-spark": b'"outcome"'}
_STORM = [
    Fault("lost_reply", probability=0.04),
    Fault("error", status=503, probability=0.08),
    Fault("error_after", status=500, probability=0.03),
    # A page of another server in the place of the store's reply.
    Fault("error", kind="PUT", status=200, probability=0.03),
    Fault("reset", probability=0.03),
    Fault("truncate", kind="GET", probability=0.03),
    Fault("delay", probability=0.05, seconds=0.4),
    Fault("stall", probability=0.01, seconds=2.0),
]


def _environment() -> dict[str, str]:
    """The environment of a worker, which imports from tests/, jobs/ and above both."""
    root = Path(__file__).parents[2]
    known = os.environ.get("PYTHONPATH")
    places = [*map(str, (root / "tests", root / "jobs", root)), *([known] if known else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


@dataclass
class HistoryProcess:
    """One process of a history, which is started again after a kill."""

    role: str
    name: str
    arguments: list[str]
    births: int = 0
    process: subprocess.Popen[bytes] | None = None
    stopped_until: float = 0.0
    rests_until: float = 0.0


@dataclass
class SeededRun:
    """A run of one seed."""

    seed: int
    work: Path
    server: str
    root: str
    proxy: S3Proxy
    rng: random.Random
    counted: Counter[str] = field(default_factory=Counter)
    members: list[HistoryProcess] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)

    @property
    def has_spark(self) -> bool:
        return any(member.role in _WITH_JVM for member in self.members)

    @property
    def table(self) -> str | None:
        """The folder of the log's table, if it has one."""
        return str(self.work / "table") if self.seed % _TABLE_KINDS == _TABLE else None

    @property
    def path(self) -> str:
        return f"{self.root}/seed-{self.seed}"

    def start(self, member: HistoryProcess) -> None:
        """Start the process of a member, under a new name."""
        member.births += 1
        name = f"{member.name}.{member.births}"
        notes = str(self.notes_of(member))
        command = [sys.executable, "-P", "-m", "histories.worker", member.role, name, notes]
        command += [self.path, self.proxy.url, str(self.seed), *member.arguments]
        log = (self.work / f"{name}.log").open("wb")
        with log:
            member.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )
        self.counted["starts"] += 1

    def notes_of(self, member: HistoryProcess) -> Path:
        """The file with the notes of a member's newest process."""
        return self.work / f"{member.name}.{member.births}.jsonl"

    def disturb(self, now: float) -> None:
        """Do something to a member, or to the store."""
        member = self.rng.choice(self.members)
        what = self.rng.choices(["kill", "stop", "clock", "storm", "calm"], [3, 4, 2, 3, 2])[0]
        if what == "storm":
            self.proxy.faults = self.rng.sample(_STORM, 4)
        elif what == "calm":
            self.proxy.faults = []
        elif member.process is None or member.process.poll() is not None:
            return
        elif what == "kill":
            # Otherwise no process of a busy machine would live long enough to do anything.
            if not self.has_begun(member) and self.rng.random() < 0.8:
                return
            self.kill(member)
            member.rests_until = now + self.rng.random() * 1.5
            self.counted[f"kill of {member.role}"] += 1
        elif what == "clock":
            if self.notes_of(member).exists():
                os.kill(member.process.pid, signal.SIGUSR1)
        elif what == "stop" and not member.stopped_until:
            os.killpg(member.process.pid, signal.SIGSTOP)
            member.stopped_until = now + self.rng.choice([0.3, 1.0, 3.0, 5.0])
        self.counted[what] += 1

    def kill(self, member: HistoryProcess) -> None:
        """kill -9 of the process and its children, unless it ended by itself."""
        assert member.process is not None
        if member.process.poll() is None:
            os.killpg(member.process.pid, signal.SIGKILL)
            member.process.wait()
        else:
            self.note_end(member)
        assert member.process.stdin is not None
        member.process.stdin.close()
        member.stopped_until = 0.0

    def tend(self, now: float) -> None:
        """Continue stopped processes, and restart ended ones."""
        for member in self.members:
            assert member.process is not None
            if member.stopped_until and now >= member.stopped_until:
                os.killpg(member.process.pid, signal.SIGCONT)
                member.stopped_until = 0.0
            if member.process.poll() is not None and now >= member.rests_until:
                self.note_end(member)
                self.start(member)

    def note_end(self, member: HistoryProcess) -> None:
        """Note a process that ended by an error."""
        assert member.process is not None
        if member.process.returncode not in (0, -signal.SIGKILL):
            name = f"{member.name}.{member.births}"
            shown = (self.work / f"{name}.log").read_text(errors="replace").strip()
            self.crashes.append(f"{name} ended with {member.process.returncode}: {shown[-2000:]}")

    def finish(self) -> None:
        """End the storm; each writer sends the rest, alone; then read all."""
        self.proxy.faults = []
        for member in self.members:
            self.kill(member)
        for member in self.members:
            if member.role in ("append", "stream"):
                self.start(member)
                self.wait_for(member, b'"append"')
                process = member.process
                assert process is not None
                try:
                    process.communicate(timeout=_PATIENCE)
                except subprocess.TimeoutExpired:
                    self.crashes.append(f"{member.name} did not end in {_PATIENCE} seconds")
                    self.kill(member)
                self.note_end(member)

    def has_begun(self, member: HistoryProcess) -> bool:
        """Whether a member's newest process has done something."""
        notes = self.notes_of(member)
        shown = _WITH_JVM.get(member.role, b'"outcome"')
        return notes.exists() and shown in notes.read_bytes()

    def has_enough(self) -> bool:
        """Whether enough appends and compactions succeeded."""
        notes = [*self.work.glob("appender-*.jsonl"), *self.work.glob("stream.*.jsonl")]
        succeeded = sum(path.read_bytes().count(b'"outcome": "ok"') for path in notes)
        is_stream = any(member.role == "stream" for member in self.members)
        compactions = [path.read_bytes() for path in self.work.glob("compactor-*.jsonl")]
        if compactions and sum(text.count(b'"outcome": "ok"') for text in compactions) < _RUNS:
            return False
        return succeeded >= (_ENOUGH_OF_SPARK if is_stream else _ENOUGH)

    def wait_for(self, member: HistoryProcess, shown: bytes) -> None:
        """Wait until the notes of a member's newest process show something."""
        notes = self.notes_of(member)
        end = time.monotonic() + _PATIENCE
        while not notes.exists() or shown not in notes.read_bytes():
            assert time.monotonic() < end, f"{notes} does not show {shown!r}"
            time.sleep(0.1)

    def wait_for_jvms(self) -> None:
        """Wait until each member with a JVM has done something."""
        end = time.monotonic() + _PATIENCE
        while not all(map(self.has_begun, self.members)):
            assert time.monotonic() < end, "a JVM did not start"
            for member in self.members:
                assert member.process is not None
                if member.process.poll() is not None:
                    self.note_end(member)
                    raise RuntimeError(f"{member.name} ended at once: {self.crashes}")
            time.sleep(0.1)

    def append_early_rows(self, table: str, count: int) -> None:
        """Fill the log before the storm, one row a record, and compact it."""
        notes = Recorder(self.work / "early.jsonl", "early")
        options: dict[str, Any] = {"batchTimeoutMs": 1, **options_of(self.path, self.server)}
        with sparkwal.Appender(self.path, SCHEMA, producer_id="early", **options) as wal:
            for value in range(_EARLY, _EARLY + count):
                number = notes.begin("append", values=[value])
                notes.end(number, "ok", position=wal.append([{"v": value}]).result())
        compact_once(table, self.path, options_of(self.path, self.server), notes)

    def read_all(self) -> None:
        """The last reads, past the proxy."""
        notes = Recorder(self.work / "final.jsonl", "final")
        options = options_of(self.path, self.server)
        table = {"tableLocation": self.table} if self.table is not None else {}
        log = sparkwal.Log(self.path, **options, **table)
        if self.table is not None:
            table = DeltaRsTable(Target(self.table), self.path, options)
            # A killed process may have left a range open.
            coordinator(self.path, options, table).recover()
            number = notes.begin("total", final=True)
            notes.end(number, "ok", values=log.current().to_arrow()["v"].to_pylist())
            number = notes.begin("table")
            notes.end(number, "ok", **table_alone(self.table, self.path, options))
        number = notes.begin("read", kind="scan", start=None, final=True)
        table = log.scan(columns=["_wal_position", "v"]).read_all()
        notes.end(number, "ok", rows=[list(row.values()) for row in table.to_pylist()])
        report = sparkwal.verify(self.path, **options)
        if not report.ok:
            self.crashes.append(f"verify finds a fault: {report}")


def cast(rng: random.Random, work: Path, seed: int) -> tuple[list[HistoryProcess], bool]:
    """The members of a history, and whether its floor moves."""
    members = []
    if seed % _KINDS == _STREAM:
        members.append(HistoryProcess("stream", "stream", ["producer=9", f"work={work}"]))
        members += [HistoryProcess("read", f"reader-{number}", []) for number in range(2)]
        return members, False
    for number in range(rng.choice([1, 2, 3])):
        arguments = [f"producer={number + 1}", f"maxInFlightRequests={rng.choice([1, 4, 16])}"]
        arguments += [f"planTtl={rng.choice(['2s', '30s'])}"]
        if rng.random() < 0.4:
            arguments += [f"journal={work}/journal-{number}", "journalSegmentBytes=64kb"]
            arguments += ["journalMaxBytes=1mb"]
        members.append(HistoryProcess("append", f"appender-{number}", arguments))
    if seed % _TABLE_KINDS == _TABLE:
        return members + with_table(rng, work, seed), True
    members += [HistoryProcess("read", f"reader-{number}", []) for number in range(2)]
    has_floor = rng.random() < 0.4
    if has_floor:
        members.append(HistoryProcess("keep", "keeper", []))
    return members, has_floor


def with_table(rng: random.Random, work: Path, seed: int) -> list[HistoryProcess]:
    """The readers and compactors of a log with a table."""
    table = f"table={work}/table"
    members = [HistoryProcess("read", f"reader-{number}", [table]) for number in range(2)]
    if seed % _TABLE_OF_SPARK_KINDS == _TABLE_OF_SPARK:
        members.append(HistoryProcess("compact-by-spark", "compactor-0", [table, f"work={work}"]))
    else:
        # Two of them write the same range now and then.
        names = [f"compactor-{number}" for number in range(rng.choice([1, 2]))]
        members += [HistoryProcess("compact", name, [table]) for name in names]
    return members


def generate(
    seed: int,
    output: Path,
    seconds: float,
    *,
    early_rows: int = _EARLY_ROWS,
    on_azure: bool = False,
) -> Counter[str]:
    """Make the history of a seed.

    Args:
        seed: decides which processes take part, and how they are disturbed.
        output: the file of the history.
        seconds: how long processes are disturbed.
        early_rows: the rows that a log with a table has before that.
        on_azure: the store is Azurite, and not ministack.

    Returns:
        The number of operations and disturbances of each kind.
    """
    rng = random.Random(seed)
    # In memory if possible: a kill loses no byte of it, and syncs are cheap.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    work = Path(tempfile.mkdtemp(prefix=f"history-{seed}-", dir=memory))
    with ExitStack() as closing:
        server, root = start(on_azure=on_azure)
        closing.enter_context(server)
        proxy = closing.enter_context(S3Proxy(server.url, seed=seed))
        play = SeededRun(seed, work, server.url, root, proxy, rng)
        play.members, has_floor = cast(rng, work, seed)
        if play.table is not None:
            play.append_early_rows(play.table, early_rows)
        try:
            for member in play.members:
                play.start(member)
            play.wait_for_jvms()
            # Workers take a second to begin.
            seconds *= _SLOWER if play.has_spark else 1.0
            end = time.monotonic() + seconds
            latest = time.monotonic() + seconds * _MOST_TIMES
            following = time.monotonic() + 3.0
            while (now := time.monotonic()) < end or now < latest and not play.has_enough():
                if now >= following:
                    play.disturb(now)
                    following = now + rng.random() * (_SLOWER if play.has_spark else 1.0)
                play.tend(now)
                time.sleep(0.05)
            play.finish()
            play.read_all()
        finally:
            for member in play.members:
                if member.process is not None and member.process.poll() is None:
                    play.kill(member)
        operations = merged(work.glob("*.jsonl"))
        about: dict[str, object] = {"seed": seed, "floor": has_floor, "crashes": play.crashes}
        write_history(output, {**about, "happened": dict(play.counted)}, operations)
        counted = play.counted + Counter(
            f"{operation['op']} {operation['outcome']}" for operation in operations
        )
    shutil.rmtree(work)
    return counted


@click.command()
@click.argument("seed", type=int)
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--seconds", default=20.0, help="how long processes are disturbed")
@click.option(
    "--early-rows", default=_EARLY_ROWS, help="the rows that a log with a table has before"
)
@click.option("--azure", "on_azure", is_flag=True, help="the store is Azurite")
def main(seed: int, output: Path, seconds: float, early_rows: int, *, on_azure: bool) -> None:
    """Make the history of SEED and write it to OUTPUT."""
    counted = generate(seed, output, seconds, early_rows=early_rows, on_azure=on_azure)
    print(", ".join(f"{what} {number}" for what, number in sorted(counted.items())))


if __name__ == "__main__":
    main()
