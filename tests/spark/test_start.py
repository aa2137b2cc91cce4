"""Options are refused when a query starts or a batch append begins, not hours later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import sparkwal
from tests.spark.queries import append, assert_one_error, refused, write

pytestmark = pytest.mark.spark


def without_rows(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream that waits for its first file."""
    (folder / "in").mkdir(exist_ok=True)
    return spark.readStream.schema("id BIGINT, at TIMESTAMP").json(str(folder / "in"))


def run(
    rows: DataFrame, log: Path, checkpoint: object, mode: str = "append", **options: str
) -> None:
    """All that there is; a query without an error ends at once."""
    writer = rows.writeStream.format("weaselwal").outputMode(mode).options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start(str(log)).awaitTermination()


@pytest.mark.parametrize(
    "options, says",
    [
        ({"compression": "gzip"}, "compression"),
        ({"mergeSchemas": "true"}, "mergeSchemas"),
        ({"takeOver": "true"}, "takeOver is for df.write"),
    ],
)
def test_a_wrong_option_ends_a_query_that_has_no_rows_yet(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], says: str
) -> None:
    rows = without_rows(spark, tmp_path)
    shown = refused(lambda: append(rows, tmp_path / "log", tmp_path / "cp", **options))
    assert_one_error(shown, "OptionError", says)
    assert not (tmp_path / "log").exists()


@pytest.fixture
def leading(spark: SparkSession, tmp_path: Path) -> Iterator[StreamingQuery]:
    """A stream that has written id 7 to the log and waits for more."""
    rows = without_rows(spark, tmp_path).select("id")
    writer = rows.writeStream.format("weaselwal").trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start(str(tmp_path / "log"))
    add(tmp_path, 7)
    query.processAllAvailable()
    yield query
    query.stop()


def add(folder: Path, number: int) -> None:
    draft = folder / f".{number}"
    draft.write_text(f'{{"id": {number}}}')
    draft.rename(folder / "in" / f"{number}.json")


def stored(log: Path, **options: str) -> list[int]:
    return sparkwal.Log(str(log), **options).to_pandas()["id"].tolist()


def test_a_batch_append_does_not_stop_a_stream(
    spark: SparkSession, tmp_path: Path, leading: StreamingQuery
) -> None:
    log, batch = tmp_path / "log", spark.range(1)
    shown = refused(lambda: write(batch, log))
    assert_one_error(shown, "OptionError", "a stream leads", "sequencer", "takeOver=true")
    write(batch, log, sequencer="backfill")
    add(tmp_path, 8)
    leading.processAllAvailable()
    assert stored(log) == [7, 8] and stored(log, sequencer="backfill") == [0]
    leading.stop()
    # Now there is no stream to stop.
    write(batch, log)
    assert stored(log) == [7, 8, 0]


def test_a_batch_append_takes_a_log_over_on_purpose(
    spark: SparkSession, tmp_path: Path, leading: StreamingQuery
) -> None:
    log = tmp_path / "log"
    write(spark.range(1), log, takeOver=True)
    add(tmp_path, 8)
    assert_one_error(refused(leading.processAllAvailable), "FencedError", "another writer leads")
    # A restart of the same query takes it back.
    append(without_rows(spark, tmp_path).select("id"), log, tmp_path / "cp")
    assert stored(log) == [7, 0, 8]
