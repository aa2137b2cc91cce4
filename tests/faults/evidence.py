"""The proof after any number of crashes: a log holds every numbered row once, in order."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

import sparkwal
from sparkwal.errors import SparkWalError
from sparkwal.format.header import CommitHeader
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.store.base import all_entries


class Lost(Exception):
    """The log does not hold what it must, or is larger than it may be."""


@dataclass(frozen=True)
class Stream:
    """One checkpoint and the numbers its microbatches hold: N·rows … (N+1)·rows − 1, plus base.

    Attributes:
        name: the query whose checkpoint is rebuilt from the log; "" for a checkpoint of Spark's.
        files: the rows in each source file; a microbatch reads any number of files.
        seen: the last microbatch that Spark noted as done on disks that are lost.
    """

    checkpoint: Path
    rows: int
    base: int = 0
    name: str = ""
    files: Path | None = None
    seen: int = -1

    @property
    def query_id(self) -> str | None:
        """Spark's id of the query; None before its first start."""
        try:
            return str(json.loads((self.checkpoint / "metadata").read_text())["id"])
        except FileNotFoundError:
            return None

    @property
    def noted(self) -> int:
        """The last microbatch that Spark noted as done; −1 for none."""
        try:
            names = os.listdir(self.checkpoint / "commits")
        except FileNotFoundError:
            names = []
        return max([self.seen, *(int(name) for name in names if name.isdigit())])


@dataclass
class Evidence:
    """The result; `problems` is empty if no row was lost, doubled or out of order."""

    commits: int = 0
    leaders: int = 0
    rows: int = 0
    orphans: int = 0
    problems: list[str] = field(default_factory=list)


def gather(path: str, options: Mapping[str, str], streams: Sequence[Stream]) -> Evidence:
    """Read a log whole, twice, and compare it with what its streams must have put there."""
    # First, so that what comes in meanwhile is not missed below.
    promised = {s.query_id: s.noted for s in streams}
    if max(promised.values(), default=-1) < 0 and sparkwal.Log(path, **options).head() is None:
        return Evidence()  # no process wrote a row
    report = sparkwal.verify(path, **options)
    found = Evidence(
        report.commits, report.leaders, report.rows, len(report.orphans), list(report.problems)
    )
    try:
        _compare(path, options, streams, found, promised)
    except SparkWalError as error:
        found.problems.append(f"the log cannot be read: {error}")
    return found


def _compare(
    path: str,
    options: Mapping[str, str],
    streams: Sequence[Stream],
    found: Evidence,
    promised: Mapping[str | None, int],
) -> None:
    by_query = {stream.query_id: stream for stream in streams}
    log = sparkwal.Log(path, **options)
    reached: dict[str, int] = {}
    so_far: dict[str, int] = {}
    heads: dict[int, range] = {}
    wanted: dict[int, range] = {}
    for record in log.records():
        if not isinstance(record, CommitHeader):
            continue
        stream = by_query.get(record.query_id)
        where = f"position {record.position}, microbatch {record.batch_id} of {record.query_id}"
        if stream is None:
            found.problems.append(f"{where}: of no query that was started here")
            continue
        if record.batch_id != reached.get(record.query_id, -1) + 1:
            last = reached.get(record.query_id, -1)
            found.problems.append(f"{where}: comes after microbatch {last}")
        reached[record.query_id] = record.batch_id
        if stream.files is None:
            first, count = record.batch_id * stream.rows, stream.rows
        else:  # each life reads another number of files at once
            first, count = so_far.get(record.query_id, 0), record.rows
            if count % stream.rows:
                found.problems.append(f"{where}: {count} rows are not those of whole files")
            so_far[record.query_id] = first + count
            # Spark packs files into partitions by their size.
            begin = stream.base + first
            heads[record.position] = range(begin, begin + count, stream.rows)
        wanted[record.position] = range(stream.base + first, stream.base + first + count)
    for query, last in promised.items():
        if query is not None and reached.get(query, -1) < last:
            found.problems.append(
                f"query {query}: Spark noted microbatch {last} as done, the log ends at "
                f"{reached.get(query, -1)}"
            )
    held: dict[int, list[int]] = defaultdict(list)
    at: tuple[int, int] | None = None
    for batch in log.scan(end=max(wanted, default=-1), include_metadata=True):
        columns = (batch[name].to_pylist() for name in ("_wal_position", "_wal_partition", "value"))
        for position, partition, value in zip(*columns, strict=True):
            goes_on = at == (position, partition) and value not in heads.get(position, ())
            if goes_on and value <= held[position][-1]:
                found.problems.append(
                    f"position {position}, partition {partition}: {value} comes after "
                    f"{held[position][-1]}"
                )
            at = (position, partition)
            held[position].append(value)
    for position, values in wanted.items():
        if sorted(held.pop(position, [])) != list(values):
            found.problems.append(f"position {position}: its rows are not {values}, each once")
    if held:
        found.problems.append(f"rows at positions that no commit of these queries has: {[*held]}")


def keep(path: str, options: Mapping[str, str], folder: Path) -> None:
    """Copy a log's objects to a folder, where `sparkwal.verify` can look at them later."""
    log = open_log(parse(SourceOptions, {**options, "path": path}))
    prefix = f"{log.prefix}/" if log.prefix else ""
    for entry in all_entries(log.store, prefix):
        file = folder / entry.key.removeprefix(prefix)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(log.store.get(entry.key))


def shown(counted: Mapping[str, int], seconds: float) -> Table:
    """The figures as a table."""
    table = Table(title=f"{seconds / 60:.1f} minutes", title_justify="left")
    table.add_column("what")
    table.add_column("how often", justify="right")
    for name, count in counted.items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    return table
