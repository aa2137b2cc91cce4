"""The proof after any number of crashes: log, table and consumer hold every row once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

import sparkwal
from faults.evidence import Stream
from faults.replica import parts
from sparkwal.errors import SparkWalError
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from tests.chains import newest


@dataclass
class Outcome:
    """The result; `problems` is empty if no row was lost, doubled or out of order.

    Attributes:
        ranges: the ranges that are in the table by the chain.
        versions: the versions of the table, of all writers.
    """

    commits_after_floor: int = 0
    rows_in_table: int = 0
    rows_in_tail: int = 0
    versions: int = 0
    ranges: int = 0
    problems: list[str] = field(default_factory=list)


def is_range(values: pa.ChunkedArray, first: int, end: int) -> bool:
    """Whether they are first … end−1, each once, in any order."""
    found = np.sort(values.to_numpy())
    return len(found) == end - first and bool(np.array_equal(found, np.arange(first, end)))


def judge(
    path: str, options: Mapping[str, str], table: Path, stream: Stream, file: Path
) -> Outcome:
    """Compare table, log and consumer with the rows of the stream.

    Args:
        file: the consumer's file.
    """
    found = Outcome()
    try:
        _judge(path, options, table, stream, file, found)
    except SparkWalError as error:
        found.problems.append(f"the log cannot be read: {error}")
    return found


def _judge(
    path: str, options: Mapping[str, str], table: Path, stream: Stream, file: Path, found: Outcome
) -> None:
    from deltalake import DeltaTable

    report = sparkwal.verify(path, **options)
    found.commits_after_floor = report.commits
    found.problems += report.problems
    state = newest(open_log(parse(SourceOptions, {**options, "path": path})))
    if state is None or state.is_open:
        found.problems.append(f"the lifecycle is not at rest: {state}")
        return
    found.ranges = state.k
    lake = DeltaTable(str(table))
    values = lake.to_pyarrow_table(columns=["value"])["value"]
    found.versions, found.rows_in_table = lake.version() + 1, len(values)
    if not is_range(values, 0, len(values)):
        found.problems.append(f"the table has {len(values)} rows, not 0 … {len(values) - 1}")
    log = sparkwal.Log(path, **options)
    tail = log.scan(state.cut, columns=["value"]).read_all()["value"]
    found.rows_in_tail = len(tail)
    end = len(values) + len(tail)
    if not is_range(tail, len(values), end):
        found.problems.append(f"the log from {state.cut} on has not rows {len(values)} … {end - 1}")
    promised = (stream.noted + 1) * stream.rows
    if end < promised or end % stream.rows:
        found.problems.append(f"{promised} rows were acknowledged, table and log have {end}")
    both = log.current().to_arrow(["value"])["value"]
    if not is_range(both, 0, end):
        found.problems.append(f"table and log as one have {len(both)} rows, not {end}")
    found.problems += _history(table, state.log_id, state.k, state.cut)
    found.problems += _consumer(file, end)


def _history(table: Path, log_id: str, k: int, cut: int) -> list[str]:
    """Each range has one version of the table, and they follow each other."""
    ranges = []
    for version in sorted((table / "_delta_log").glob("*[0-9].json")):
        for line in version.read_text().splitlines():
            reported = json.loads(line).get("commitInfo", {}).get("userMetadata")
            if reported and json.loads(reported)["log_id"] == log_id:
                reported = json.loads(reported)
                ranges.append((reported["k"], reported["cut"], reported["to"]))
    if [each[0] for each in ranges] != list(range(1, k + 1)):
        return [f"the table's history has the ranges {[each[0] for each in ranges]}, not 1 … {k}"]
    starts, ends = [each[1] for each in ranges], [each[2] for each in ranges]
    if starts != [0, *ends[:-1]] or ends[-1] != cut:
        return [f"the ranges of the table's history do not follow each other up to {cut}: {ranges}"]
    return []


def _consumer(file: Path, end: int) -> list[str]:
    """It saw each row once, in order, over all its lives."""
    position = value = 0
    for part in parts(file):
        if (part.start, part.first) != (position, value):
            return [f"the consumer was at {position} with {value} rows, and went on with {part}"]
        position, value = part.end, part.first + part.count
    return [] if value == end else [f"the consumer saw {value} rows of {end}"]
