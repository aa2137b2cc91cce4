"""The quickstart's proof: the log holds its input, all of it, once, and in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

import sparkwal
from sparkwal.format.header import CommitHeader, SlotHeader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Check:
    """One property of the input, and the same of the log."""

    what: str
    expected: str
    found: str

    @property
    def holds(self) -> bool:
        return self.expected == self.found


def _fingerprints(rows: DataFrame) -> dict[str, str]:
    """The nulls of each column, and a hash of its values and their places."""
    from pyspark.sql import functions as F

    names = [name for name in rows.columns if not name.startswith("_wal_")]
    wanted = [F.count(F.lit(1)).alias("rows")]
    for place, name in enumerate(names):
        hashed = F.xxhash64("seq", name)  # with its row's number: a swap of two values shows
        wanted += [
            F.count(F.when(F.col(name).isNull(), 1)).alias(f"nulls{place}"),
            F.sum(hashed.cast("decimal(38,0)")).cast("string").alias(f"sum{place}"),
            F.bit_xor(hashed).alias(f"xor{place}"),
        ]
    row = rows.agg(*wanted).collect()[0].asDict()
    found = {"rows": f"{row['rows']:,}"}
    for place, name in enumerate(names):
        both = hash((row[f"sum{place}"] and int(row[f"sum{place}"]), row[f"xor{place}"]))
        found[name] = f"{row[f'nulls{place}']:,} nulls {both & (2**40 - 1):010x}"
    return found


def checks(
    given: DataFrame,
    stored: DataFrame,
    table: pa.Table,
    log: sparkwal.Log,
    records: list[SlotHeader],
) -> Iterator[Check]:
    """Compare the log with its input.

    Args:
        given: the staged input as Spark reads it.
        stored: the log through the source, with its metadata columns.
        table: the input without Spark.
    """
    mine = _fingerprints(stored)
    for name, expected in _fingerprints(given).items():
        yield Check(name, expected, mine.get(name, "not there"))
    batches = [record.batch_id for record in records if isinstance(record, CommitHeader)]
    yield Check("microbatches, each once", str(len(set(batches))), str(len(batches)))
    # Without Spark, in the order of the log: every value at its place.
    scanned = log.scan().read_all()
    equal = scanned.num_rows == table.num_rows and scanned.cast(table.schema).equals(table)
    yield Check("values, one by one", "equal", "equal" if equal else "not equal")
