"""Stateful queries over generated files, and the rows that each must write: computed without Spark.

Each microbatch reads one file. File k has the ids from 5·k on, so it repeats some of the file
before, at the second k or one before. Further rows come half a minute late: those queries that have
a watermark drop them.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATE = "spark.sql.streaming.stateStore"
_ROCKS = {
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider"
}
_CHANGELOG = f"{_STATE}.rocksdb.changelogCheckpointing.enabled"
PROVIDERS: Mapping[str, Mapping[str, str]] = {
    "hdfs": {},
    "rocksdb": {**_ROCKS, _CHANGELOG: "true"},
    "rocksdb, format 2": {**_ROCKS, _CHANGELOG: "true", f"{_STATE}.checkpointFormatVersion": "2"},
    "rocksdb without a changelog": {**_ROCKS, _CHANGELOG: "false"},
}
# Spark makes snapshots, and deletes old versions, while the few microbatches of a test run.
EAGER = {
    f"{_STATE}.maintenanceInterval": "100ms",
    f"{_STATE}.minDeltasForSnapshot": "2",
    "spark.sql.streaming.minBatchesToRetain": "2",
}

SCHEMA = "id BIGINT, at TIMESTAMP, body STRING"
# 2026-01-01T00:00:00Z
BEGIN = 1_767_225_600
# So many seconds are late for each watermark, and for the one of the microbatch before.
LATE = 30


class Row(NamedTuple):
    id: int
    second: int
    late: bool


def rows_of(number: int) -> Iterator[Row]:
    """The rows of a file."""
    for n in range(10):
        if number - n // 7 >= 0:
            yield Row(number * 5 + n, number - n // 7, False)
    if number % 4 == 0 and number >= LATE + 15:
        for n in range(2):
            yield Row(10**6 + 2 * number + n, number - LATE, True)


@cache
def _body(number: int) -> str:
    """A text that no codec makes much shorter."""
    return base64.b64encode(random.Random(number).randbytes(3000)).decode()


def add_files(folder: Path, upto: int) -> None:
    """Write the files below this number that are missing, each a second younger than the last."""
    folder.mkdir(exist_ok=True)
    for number in range(len(list(folder.glob("*.json"))), upto):
        rows = [
            {
                "id": row.id,
                "at": datetime.fromtimestamp(BEGIN + row.second, UTC).isoformat(),
                "body": _body(row.id),
            }
            for row in rows_of(number)
        ]
        draft = folder / f".{number:05d}"
        draft.write_text("\n".join(map(json.dumps, rows)))
        # Spark reads the oldest file first.
        os.utime(draft, (10**9 + number,) * 2)
        draft.rename(folder / f"{number:05d}.json")


def _distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["id", "body"]).select("id")


def _windows(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    counted = rows.withWatermark("at", "1 second").groupBy(F.window("at", "2 seconds")).count()
    return counted.select(F.unix_timestamp("window.start").alias("second"), "count")


def _joined(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    other = rows.select(F.col("id").alias("other"), F.col("at").alias("then"))
    both = rows.withWatermark("at", "10 seconds").join(
        other.withWatermark("then", "10 seconds"),
        F.expr("id = other + 1 AND then BETWEEN at - INTERVAL 3 SECONDS AND at"),
    )
    seconds = [F.unix_timestamp(name).alias(name) for name in ("at", "then")]
    return both.select("id", *seconds)


def _sums(rows: DataFrame) -> DataFrame:
    import pandas as pd
    from pyspark.sql import functions as F
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Sums(StatefulProcessor):
        def init(self, handle) -> None:  # type: ignore[no-untyped-def]
            self.sum = handle.getValueState("sum", "n bigint")

        def handleInputRows(self, key, rows, timerValues):  # type: ignore[no-untyped-def]
            held = self.sum.get()
            total = (held[0] if held else 0) + sum(int(part["id"].sum()) for part in rows)
            self.sum.update((total,))
            yield pd.DataFrame({"key": [key[0]], "total": [total]})

        def close(self) -> None:
            pass

    keyed = rows.select("id", (F.col("id") % 3).alias("key")).groupBy("key")
    return keyed.transformWithStateInPandas(Sums(), "key BIGINT, total BIGINT", "Append", "None")


QUERIES: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "distinct": _distinct,
    "windows": _windows,
    "joined": _joined,
    "sums": _sums,
}


def expected(query: str, files: int) -> Counter[tuple[int, ...]]:
    """The rows that a query writes when it has read so many files."""
    return Counter(_EXPECTED[query](files))


def _expected_distinct(files: int) -> Iterable[tuple[int, ...]]:
    return {(row.id,) for number in range(files) for row in rows_of(number)}


def _on_time(files: int) -> list[Row]:
    return [row for number in range(files) for row in rows_of(number) if not row.late]


def _expected_windows(files: int) -> Iterable[tuple[int, ...]]:
    counts = Counter(row.second // 2 * 2 for row in _on_time(files))
    # The watermark is a second behind the newest row, which is of second `files - 1`.
    return [(BEGIN + at, count) for at, count in counts.items() if at + 2 <= files - 2]


def _expected_joined(files: int) -> Iterable[tuple[int, ...]]:
    seconds: dict[int, list[int]] = {}
    for row in _on_time(files):
        seconds.setdefault(row.id, []).append(row.second)
    for number, ats in seconds.items():
        for at in ats:
            for then in seconds.get(number - 1, ()):
                if at - 3 <= then <= at:
                    yield number, BEGIN + at, BEGIN + then


def _expected_sums(files: int) -> Iterable[tuple[int, ...]]:
    totals: Counter[int] = Counter()
    for number in range(files):
        for row in rows_of(number):
            totals[row.id % 3] += row.id
        for key in sorted({row.id % 3 for row in rows_of(number)}):
            yield key, totals[key]


_EXPECTED: Mapping[str, Callable[[int], Iterable[tuple[int, ...]]]] = {
    "distinct": _expected_distinct,
    "windows": _expected_windows,
    "joined": _expected_joined,
    "sums": _expected_sums,
}
