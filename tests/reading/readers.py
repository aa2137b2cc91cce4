"""The readers of a log. Each returns the values of column `v`, or raises. A new one is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from click.testing import CliRunner

import sparkwal
from sparkwal import InvalidLogError, Log
from sparkwal.cli.main import main
from sparkwal.format import schema
from sparkwal.format.header import CommitHeader
from sparkwal.format.lifecycle_record import OpenRange
from sparkwal.lifecycle.range_rows import unreadable
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.hint import Hints
from sparkwal.reading import planning
from sparkwal.reading.history import walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.planning import StreamedLog, plan_ranges, read_tasks, task_rows
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.checkpoints.stream import FileStream

Read = Callable[[MemoryStore, Path], list[int]]
# The files that a forked query finds after those of the first query.
NEW = 3


def scan(store: MemoryStore, folder: Path) -> list[int]:
    return _values(Log(store.path()).scan().read_all())


def scan_in_parts(store: MemoryStore, folder: Path) -> list[int]:
    """Reads that are too short to look for segments."""
    log = Log(store.path())
    head = log.head()
    assert head is not None
    first = next(log.records()).position
    return [
        value
        for start in range(first, head.position + 1, 3)
        for value in _values(log.scan(start, min(start + 2, head.position)).read_all())
    ]


def records(store: MemoryStore, folder: Path) -> list[int]:
    headers = Log(store.path()).records()
    return [each.position - 1 for each in headers if isinstance(each, CommitHeader)]


def to_pandas(store: MemoryStore, folder: Path) -> list[int]:
    return [int(value) for value in Log(store.path()).to_pandas()["v"]]


def sql_rows(store: MemoryStore, folder: Path) -> list[int]:
    return _values(Log(store.path()).sql("SELECT v FROM log").read_all())


def sql_moment(store: MemoryStore, folder: Path) -> list[int]:
    query = "SELECT v FROM log WHERE _wal_timestamp > TIMESTAMP '1970-01-02'"
    return _values(Log(store.path()).sql(query).read_all())


def sql_records(store: MemoryStore, folder: Path) -> list[int]:
    query = "SELECT position - 1 AS v FROM records WHERE kind = 'commit'"
    return _values(Log(store.path()).sql(query).read_all())


def tail(store: MemoryStore, folder: Path) -> list[int]:
    result = CliRunner().invoke(main, ["tail", store.path(), "-n", "1000", "--json"])
    if result.exit_code:
        raise InvalidLogError(result.stderr)
    return [json.loads(line)["v"] for line in result.stdout.splitlines()]


def newest_first(store: MemoryStore, folder: Path) -> list[int]:
    log = LogRange(parse(SourceOptions, {"path": "memory"}), "default", LogStore(store, "wal"))
    end = log.refresh()
    found = []
    for item in walk(log, log.floor.current(), end, newest_first=True, at_once=4):
        if isinstance(item, InvalidLogError):
            raise item
        found.append(item)
    positions = [item.header.position for item in found if isinstance(item.header, CommitHeader)]
    return [position - 1 for position in reversed(positions)]


def replay(store: MemoryStore, folder: Path) -> list[int]:
    entries = Log(store.path()).replay()
    found = [value for entry in entries for value in _values(pa.Table.from_batches(entry.rows))]
    if entries.stopped is not None:
        raise InvalidLogError(entries.stopped.reason)
    return found


def current(store: MemoryStore, folder: Path) -> list[int]:
    return [int(value) for value in Log(store.path()).current().to_pandas()["v"]]


def fork(store: MemoryStore, folder: Path) -> list[int]:
    """The files from the floor on that a query does not read that is forked at the end."""
    log = Log(store.path())
    head = log.head()
    assert head is not None
    assert [query.position for query in log.queries()] == [head.position]
    at = sparkwal.Fork(store.path(), "orders", at=head.position)
    place = Path(sparkwal.checkpoint(store.path("fork"), "new", folder=folder / "fork", fork=at))
    stream = FileStream(LogStore(store, "fork"), place, Hints("fork", folder / "fork hints"))
    stream.run(range(head.position + NEW))
    first, *_ = _values(Log(store.path("fork")).scan().read_all())
    return [*range(max(next(log.records()).position - 1, 0), first)]


def planned(store: MemoryStore, folder: Path) -> list[int]:
    """As Spark's batches and streams plan a read and run its tasks."""
    options = parse(SourceOptions, {"path": "memory"})
    log = StreamedLog(options, "default", LogStore(store, "wal"))
    end = log.refresh()
    target = schema.to_arrow(log.spark_schema or "")
    tasks = read_tasks(log, log.start(), log.advance(log.start(), end, None), None, 2)
    batches = [batch for task in tasks for batch in task_rows(store, task, target, options)]
    return _values(pa.Table.from_batches(batches, target))


def compaction(store: MemoryStore, folder: Path) -> list[int]:
    """As a compaction plans a range of the log and reads its tasks."""
    log = LogStore(store, "wal")
    seen = LogRange(parse(SourceOptions, {"path": "memory"}), "default", log)
    end = seen.refresh()
    part = OpenRange("default", seen.log_id or "", seen.floor.current(), end)
    plan = plan_ranges(log, [part], parallelism=2)
    target = schema.to_arrow(plan.spark_schema)
    options = parse(SourceOptions, {"path": "memory"})
    tasks = [task for group in plan.tasks for task in group]
    batches = [batch for task in tasks for batch in task_rows(store, task, target, options)]
    assert unreadable(log, [part]) == {}
    return _values(pa.Table.from_batches(batches, target))


def in_long_tasks(read: Read) -> Read:
    """The reader with tasks that read their records themselves."""

    def run(store: MemoryStore, folder: Path) -> list[int]:
        before = planning.PLANNED_RECORDS
        planning.PLANNED_RECORDS = 4
        try:
            return read(store, folder)
        finally:
            planning.PLANNED_RECORDS = before

    return run


def _values(table: pa.Table) -> list[int]:
    found: list[int] = table.column("v").to_pylist()
    return found


READERS: dict[str, Read] = {
    "scan": scan,
    "scan in parts": scan_in_parts,
    "records": records,
    "to_pandas": to_pandas,
    "SQL": sql_rows,
    "SQL from a moment": sql_moment,
    "SQL of records": sql_records,
    "tail": tail,
    "newest first": newest_first,
    "replay": replay,
    "current": current,
    "fork": fork,
    "tasks": planned,
    "long tasks": in_long_tasks(planned),
    "compaction": compaction,
    "long compaction": in_long_tasks(compaction),
}
