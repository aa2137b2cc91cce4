"""Random runs of streams that begin with a table, and what must hold in each of them.

The stream is the library's own reader for Spark, and this module calls it as Spark does: it notes
the end of each microbatch before the microbatch, and may die at any request.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql.streaming.datasource import ReadAllAvailable

import sparkwal
from sparkwal.errors import WriteError
from sparkwal.format.lifecycle_record import APPEND, MERGE, Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.iceberg.table import IcebergTable
from sparkwal.lifecycle.policy import Policy
from sparkwal.lifecycle.table import Table
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import Clock
from sparkwal.spark.source import StreamReader, log_schema
from sparkwal.testing.memory import MemoryStore
from tests.delta_rs_table import DeltaRsTable
from tests.lifecycle.iceberg_table import configure
from tests.lifecycle.table import Died
from tests.spark import inside

SEEDS, ACTIONS = 12, 24
SCHEMA = pa.schema([("log", pa.string()), ("id", pa.int64()), ("n", pa.int64())])
GRACE_MS = 60_000
_MOST_STEPS = 400


class InterruptedStore(MemoryStore):
    """A store that lets something happen before a request."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def get(self, key: str) -> bytes:
        self.before()
        return super().get(key)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Any:
        self.before()
        return super().list(prefix, limit, after)

    def put(self, key: str, body: bytes) -> None:
        self.before()
        super().put(key, body)


@contextmanager
def dying(table: Table, death: str) -> Iterator[None]:
    """The writer of a table dies "before" or "after" it wrote a range, or not at all ("")."""
    write = table.write

    def write_or_die(*args: Any) -> None:
        if death == "before":
            raise WriteError("it died")
        write(*args)
        if death == "after":
            raise WriteError("it died")

    with mock.patch.object(table, "write", write_or_die):
        yield


class DeltaLake:
    """The Delta table of a run, and what others do to it.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.url = f"{folder}/table"
        self.options = {"tableLocation": self.url}

    def table(self, target: Target, path: str) -> DeltaRsTable:
        return DeltaRsTable(target, path, self.options)

    def _existing(self) -> list[DeltaTable]:
        return [DeltaTable(self.url)] if (Path(self.url) / "_delta_log").exists() else []

    def optimize(self) -> None:
        for table in self._existing():
            table.optimize.compact()

    def note(self) -> None:
        for table in self._existing():
            table.create_checkpoint()


class IcebergWarehouse:
    """The Iceberg table of a run, in the catalog of the environment, and what others do to it."""

    url = "iceberg://lake/db.orders"
    options: ClassVar[dict[str, str]] = {}

    def table(self, target: Target, path: str) -> IcebergTable:
        return IcebergTable(target, open_log(from_keywords(SourceOptions, path, {})))

    def _existing(self) -> list[Any]:
        catalog = load_catalog("lake")
        return [catalog.load_table("db.orders")] if catalog.table_exists("db.orders") else []

    def optimize(self) -> None:
        """Another writer commits a snapshot without rows."""
        for table in self._existing():
            table.append(table.schema().as_arrow().empty_table())

    def note(self) -> None:
        for table in self._existing():
            with table.transaction() as change:
                change.set_properties({"note": "a newer file of metadata"})


class Query:
    """A query of Spark over the stream.

    Attributes:
        offsets, done: the logs of the checkpoint: the end of each microbatch, and which are done.
        sink: the rows of each microbatch.
    """

    def __init__(self, options: SourceOptions, state: Path, may_die: Callable[[], None]) -> None:
        self._options = options
        self._state = state
        self._may_die = may_die
        self._reader: StreamReader | None = None
        self.offsets: list[str] = []
        self.done: set[int] = set()
        self.sink: dict[int, list[dict[str, Any]]] = {}
        self.lives = 0

    def kill(self) -> None:
        self._reader = None

    def step(self) -> bool:
        """One microbatch. Return whether there was one."""
        reader = self._reader or self._started()
        last = len(self.offsets) - 1
        if last >= 0 and last not in self.done:
            self._run(reader, last, self._start(reader, last))
            return True
        start = self._start(reader, last + 1)
        self._may_die()
        end = json.dumps(reader.latestOffset(json.loads(start), self._limit(reader)))
        if end == start:
            return False
        self.offsets.append(end)
        self._may_die()
        if last >= 0:
            reader.commit(json.loads(self.offsets[last]))
        self._run(reader, last + 1, start)
        return True

    def _started(self) -> StreamReader:
        self.lives += 1
        reader = StreamReader(self._options, log_schema(self._options), 2)
        inside.is_on_another_machine(reader, self._state)
        self._reader = reader
        return reader

    def _limit(self, reader: Any) -> Any:
        return reader.getDefaultReadLimit() if self._options.limits else ReadAllAvailable()

    def _start(self, reader: StreamReader, number: int) -> str:
        # Only the ends of microbatches are noted, so a restart asks for the first start again.
        return self.offsets[number - 1] if number else json.dumps(reader.initialOffset())

    def _run(self, reader: StreamReader, number: int, start: str) -> None:
        tasks = reader.partitions(json.loads(start), json.loads(self.offsets[number]))
        self._may_die()
        rows = [row for task in tasks for x in reader.read(task) for row in x.to_pylist()]
        self.sink[number] = rows
        self._may_die()
        self.done.add(number)


class Run:
    """One run: logs that grow and go to a table, and a query over both."""

    def __init__(self, seed: int, folder: Path, lake: DeltaLake | IcebergWarehouse) -> None:
        self._random = rng = random.Random(seed)
        self._lake = lake
        self._keyed = rng.random() < 0.4
        self._several = rng.random() < 0.5
        self._folder = folder
        self.store = InterruptedStore()
        self._leap_ms = 0
        self.store.now_ms = lambda: Clock().now_ms()
        self.path = self.store.path()
        self._options = lake.options
        mode, keys = (MERGE, ("log", "id")) if self._keyed else (APPEND, ())
        self._table: Table = lake.table(Target(lake.url, mode, keys), self.path)
        self.written: dict[str, list[dict[str, Any]]] = {}
        self._is_quiet = True
        reads: dict[str, Any] = {"startingPosition": "table", "consumer": "c", **self._options}
        reads["includeMetadata"] = True
        if self._several:
            reads["sequencers"] = "*"
        if rng.random() < 0.7:
            reads["maxCommitsPerTrigger"] = rng.choice([1, 2, 3])
        settings = from_keywords(SourceOptions, self.path, reads)
        self.query = Query(settings, folder / "state", self._may_die)
        self.store.before = self._interrupt

    @contextmanager
    def _leaping(self) -> Iterator[None]:
        """The clocks of all processes, and of the store, leap together."""
        now_ms, boot_ms = Clock.now_ms, Clock.boot_ms
        with (
            mock.patch.object(Clock, "now_ms", lambda clock: now_ms(clock) + self._leap_ms),
            mock.patch.object(Clock, "boot_ms", lambda clock: boot_ms(clock) + self._leap_ms),
        ):
            yield

    def run(self) -> None:
        with self._leaping():
            self._append()
            for _ in range(self._random.randrange(12)):
                self._happen()
            for _ in range(ACTIONS):
                if self._random.random() < 0.5:
                    self._happen()
                else:
                    self._step()
            self._is_quiet = True
            for _ in range(_MOST_STEPS):
                if not self.query.step():
                    break
            else:
                raise AssertionError("the query does not end")
            self._check()

    def _step(self) -> None:
        self._is_quiet = False
        try:
            self.query.step()
        except Died:
            self.query.kill()
        finally:
            self._is_quiet = True

    def _may_die(self) -> None:
        if not self._is_quiet and self._random.random() < 0.06:
            raise Died

    def _interrupt(self) -> None:
        if self._is_quiet:
            return
        if self._random.random() < 0.01:
            raise Died
        if self._random.random() < 0.05:
            self._is_quiet = True
            try:
                self._happen()
            finally:
                self._is_quiet = False

    def _happen(self) -> None:
        actions = (
            [self._append] * 4
            + [self._compact] * 5
            + [self._lake.optimize, self._leap, self._lake.note]
        )
        self._random.choice(actions)()

    def _leap(self) -> None:
        self._leap_ms += self._random.choice([GRACE_MS // 4, 3 * GRACE_MS])

    def _append(self) -> None:
        names = ["default", "a", "b", "c"] if self._several else ["default"]
        name = self._random.choice(names)
        rows = self.written.setdefault(name, [])
        with sparkwal.Appender(self.path, SCHEMA, producer_id="p", sequencer=name) as wal:
            for _ in range(self._random.randrange(1, 4)):
                batch = []
                for _ in range(self._random.randrange(1, 3)):
                    n = len(rows) + len(batch)
                    key = self._random.randrange(4) if self._keyed else n
                    batch.append({"log": name, "id": key, "n": n})
                wal.append(batch).result()
                rows += batch

    def _compact(self) -> None:
        death = self._random.choice(["", "", "", "before", "after"])
        log = open_log(from_keywords(SourceOptions, self.path, self._options))
        policy = Policy(late_window_seconds=0)
        lifecycle = Coordinator(log, policy, table=self._table, gc_grace_ms=GRACE_MS)
        with suppress(WriteError), dying(self._table, death):
            lifecycle.run_all(whole=True)
        # Rows in records that stay are erased after twice the grace.
        if self._random.random() < 0.5:
            self._leap_ms += 3 * GRACE_MS

    def _check(self) -> None:
        """Each row of each log came once: those of the table first, and the others in order."""
        batches = [self.query.sink[number] for number in range(len(self.query.offsets))]
        for batch in batches:
            assert len({row["_wal_position"] is None for row in batch}) < 2, "a mixed microbatch"
        delivered = [row for batch in batches for row in batch]
        for name, written in self.written.items():
            own = [row for row in delivered if row["log"] == name]
            of_table = [row for row in own if row["_wal_position"] is None]
            of_log = [_plain(row) for row in own if row["_wal_position"] is not None]
            cut = len(written) - len(of_log)
            assert of_log == written[cut:], (name, of_log, written)
            expected = written[:cut]
            if self._keyed:
                expected = [*{row["id"]: row for row in expected}.values()]
            found = sorted(map(_plain, of_table), key=lambda row: row["n"])
            assert found == sorted(expected, key=lambda row: row["n"]), (name, found, expected)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in SCHEMA.names}


@contextmanager
def new_folder() -> Iterator[Path]:
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_seed(seed: int, *, iceberg: bool = False) -> Run:
    """One run in a folder of its own.

    Args:
        iceberg: the table is one of Iceberg.
    """
    with new_folder() as folder, pytest.MonkeyPatch.context() as environment:
        if iceberg:
            configure(environment, folder)
        run = Run(seed, folder, IcebergWarehouse() if iceberg else DeltaLake(folder))
        try:
            run.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        return run


def run_many(seeds: int = 200) -> None:
    for seed in range(seeds):
        run_seed(seed)
