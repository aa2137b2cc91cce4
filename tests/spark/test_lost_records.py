"""Spark reads a lost record from its segment, as all readers do (tests/reading)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sparkwal import Appender
from sparkwal.cli.main import main
from sparkwal.format import keys
from tests.logs import SCHEMA, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = keys.BLOCK + 60
LOST = 700


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with value n at position n + 1. The record of position LOST is lost."""
    folder = tmp_path_factory.mktemp("lost") / "wal"
    limits = {"maxInFlightRequests": 8, "batchSizeThreshold": 1}
    with Appender(str(folder), SCHEMA, producer_id="p", **limits) as wal:
        for value in range(COUNT):
            wal.append(rows(value))
    assert CliRunner().invoke(main, ["segment", str(folder)]).exit_code == 0
    (folder / keys.key("", keys.slot(LOST, 1000))).unlink()
    return str(folder)


@pytest.mark.parametrize("last", [COUNT, LOST + 20])
@pytest.mark.parametrize("first", [0, LOST - 20])
def test_a_batch_has_the_rows_of_a_lost_record(
    spark: SparkSession, path: str, first: int, last: int
) -> None:
    found = (
        spark.read.format("weaselwal")
        .option("startingPosition", first)
        .option("endingPosition", last)
        .load(path)
    )
    assert sorted(row.v for row in found.collect()) == [*range(max(first - 1, 0), last)]


def test_a_stream_has_the_rows_of_a_lost_record(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    query = (
        spark.readStream.format("weaselwal")
        .option("maxCommitsPerTrigger", 400)
        .load(path)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    assert query.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.v for row in found) == [*range(COUNT)]
