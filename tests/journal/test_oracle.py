"""Random lives of a journal beside a table that cannot lose anything."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sparkwal.errors import BackPressureError, OptionError
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.journal import ALWAYS, INTERVAL, NONE, Settings
from sparkwal.journal.storage import Folder
from tests.journal.disk import MemoryFolder
from tests.journal.stand import OWNER, SMALL, Ids, Run, content, open_journal

SEED = 4100


class Oracle:
    """A model of a journal: the entries that it must return."""

    def __init__(self) -> None:
        self._table = sqlite3.connect(":memory:")
        self._table.execute("create table entries (sequence integer primary key, content blob)")

    def put(self, sequence: int, body: bytes) -> None:
        self._table.execute("insert into entries values (?, ?)", (sequence, body))

    def after(self, durable: int) -> dict[int, bytes]:
        query = "select sequence, content from entries where sequence > ? order by sequence"
        return dict(self._table.execute(query, (durable,)))


@dataclass
class Life:
    """One journal's, by random operations."""

    rng: random.Random
    folder: Folder
    oracle: Oracle = field(default_factory=Oracle)
    settings: Settings = SMALL
    schema: bytes = b"schema"
    durable: int = -1
    last: int = -1
    waiting: list[int] = field(default_factory=list)
    ids: Ids = field(default_factory=Ids)
    steps: list[str] = field(default_factory=list)
    run: Run | None = None

    def open(self) -> None:
        run = open_journal(
            self.folder, self.durable, self.settings, replace(OWNER, schema=self.schema)
        )
        assert run.warnings() == [] and not run.lost
        self.run = run
        self.last = max(self.last, self.durable)
        assert run.journal.last == self.last
        self.waiting = []
        self.check()

    def check(self) -> None:
        assert self.run is not None
        there = self.run.entries(self.durable)
        assert there == self.oracle.after(self.durable)
        assert self.run.journal.last == self.last
        live = self.last - self.durable
        assert self.run.journal.remaining_capacity() == self.run.segments.slots - live
        assert self.run.journal.size <= self.settings.max_bytes

    def write(self) -> None:
        assert self.run is not None
        largest = self.settings.largest
        length = min(largest, self.rng.choice([0, 1, 7, 8, 30, 100, 300, largest]))
        body = content(self.last + 1, length)
        try:
            sequence = self.run.journal.write(body)
        except BackPressureError:
            return
        assert sequence == self.last + 1
        self.oracle.put(sequence, body)
        self.last = sequence
        self.waiting.append(sequence)
        assert bytes(self.run.journal.read(sequence)[0]) == body

    def wait(self) -> None:
        assert self.run is not None
        if self.waiting:
            self.run.journal.wait(self.waiting.pop(self.rng.randrange(len(self.waiting))))

    def acknowledge(self) -> None:
        assert self.run is not None
        self.durable = self.rng.randint(self.durable, self.run.journal.accepted)
        self.run.journal.acknowledge(self.durable)

    def drain(self) -> None:
        assert self.run is not None
        before = self.run.journal.size
        self.run.journal.drain()
        assert self.run.journal.size <= before + 512

    def close_and_open(self) -> None:
        assert self.run is not None
        self.run.journal.close()
        self.take()
        self.open()

    def kill(self) -> None:
        """Simulate `SIGKILL`: written bytes survive."""
        assert self.run is not None
        self.run.abandon()
        if isinstance(self.folder, MemoryFolder):
            self.folder = self.folder.after_kill()
        self.take()
        self.open()

    def take(self) -> None:
        if isinstance(self.folder, DiskFolder):
            self.folder.close()
            self.folder = DiskFolder(self.folder.path)

    def other_slots(self) -> None:
        self.close_and_open_with(slots=self.rng.choice([None, 1, 2, 20, 100, 1000]))

    def other_sizes(self) -> None:
        size = self.rng.choice([200, 512, 1024, 3000])
        self.close_and_open_with(segment_bytes=size, max_bytes=16_000)

    def other_sync(self) -> None:
        sync = self.rng.choice([ALWAYS, ALWAYS, INTERVAL, NONE])
        self.close_and_open_with(sync=sync, interval_ms=5)

    def other_schema(self) -> None:
        self.schema = self.rng.randbytes(5)
        self.close_and_open_with()

    def close_and_open_with(self, **changed: object) -> None:
        assert self.run is not None
        self.run.journal.close()
        self.take()
        former = self.settings
        self.settings = replace(former, **changed)  # type: ignore[arg-type]
        try:
            self.open()
        except OptionError:
            slots = self.settings.slots
            assert slots is not None and slots < self.last - self.durable
            self.settings = replace(former, slots=None)
            self.open()
        self.settings = replace(self.settings, slots=None)

    def log_is_ahead(self) -> None:
        """Another journal of this producer was used meanwhile."""
        assert self.run is not None
        self.run.journal.close()
        self.take()
        self.durable = self.last + self.rng.randint(0, 3)
        self.open()

    def live(self, steps: int) -> None:
        operations = {
            self.write: 30,
            self.wait: 10,
            self.acknowledge: 8,
            self.drain: 6,
            self.close_and_open: 2,
            self.kill: 3,
            self.other_slots: 1,
            self.other_sizes: 1,
            self.other_sync: 1,
            self.other_schema: 1,
            self.log_is_ahead: 1,
        }
        self.open()
        for _ in range(steps):
            (do,) = self.rng.choices(list(operations), list(operations.values()))
            self.steps.append(do.__name__)
            do()
            self.check()
            self.ids.look(self.folder)
        assert self.run is not None
        self.run.journal.close()


def check_lives(folder: Folder, seed: int, steps: int) -> None:
    life = Life(random.Random(seed), folder)
    try:
        life.live(steps)
    except BaseException:
        print(f"seed {seed}: {' '.join(life.steps)}")
        raise
    finally:
        if life.run is not None:
            life.run.abandon()
        life.folder.close()


def test_a_journal_in_memory_gives_back_what_a_table_does() -> None:
    print(f"seeds {SEED} … {SEED + 99}")
    for seed in range(SEED, SEED + 100):
        check_lives(MemoryFolder(), seed, 80)


def test_a_journal_on_the_disk_gives_back_what_a_table_does(tmp_path: Path) -> None:
    print(f"seeds {SEED} … {SEED + 9}")
    for seed in range(SEED, SEED + 10):
        check_lives(DiskFolder(tmp_path / str(seed)), seed, 80)


@pytest.mark.slow
def test_many_journals_give_back_what_a_table_does() -> None:
    print(f"seeds {SEED} … {SEED + 499}")
    for seed in range(SEED, SEED + 500):
        check_lives(MemoryFolder(), seed, 150)
