"""Each awkward value and name through Spark: read and written, by a batch and by a stream."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from traceback import format_exception

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkwal import Log
from tests.spark.queries import append, assert_one_error, read, refused, write
from tests.values.awkward import NAMES, VALUES
from tests.values.doors import of_table
from tests.values.log import TABLE, expected, write_stored, write_table

pytestmark = pytest.mark.capability("TIME")
# A batch needs no such setting.
TIME_IN_STREAMS = "spark.sql.timeType.enabled"


def collected(rows: DataFrame) -> dict[str, list[object]]:
    return of_table(pa.Table.from_batches(rows._collect_as_arrow()))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with all values, also those that an older version took."""
    found = str(tmp_path_factory.mktemp("values") / "wal")
    write_stored(found)
    return found


def test_a_batch_reads_and_writes_each_value(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    rows = read(spark, path)
    found = collected(rows)
    assert [name for name in found if found[name] != expected(name)] == []
    write(rows.select([f"`{name}`" for name in VALUES]), tmp_path)
    back = of_table(Log(str(tmp_path)).scan().read_all())
    assert [name for name in VALUES if back[name] != expected(name)] == []


def test_a_stream_reads_and_writes_each_value(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    write_table(source, TABLE)
    stream = spark.readStream.format("weaselwal").load(source)
    assert "UNSUPPORTED_TIME_TYPE" in refused(lambda: stream.writeStream)
    spark.conf.set(TIME_IN_STREAMS, True)
    try:
        append(stream, tmp_path / "log", tmp_path / "checkpoint")
    finally:
        spark.conf.unset(TIME_IN_STREAMS)
    back = of_table(Log(str(tmp_path / "log")).scan().read_all())
    assert [name for name in VALUES if back[name] != expected(name)] == []


def test_the_sink_refuses_a_map_with_a_key_twice(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    """All shapes of it are tested without Spark."""
    name = "map with a key twice, in a list"
    rows = read(spark, path).select("long", f"`{name}`")
    shown = refused(partial(write, rows, tmp_path))
    assert_one_error(shown, "OptionError", f"row 0: column {name!r}", "a key twice")
    assert Log(str(tmp_path)).scan().read_all().num_rows == 0


def test_spark_reads_and_writes_each_name(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    write_table(source, pa.table([[number] for number in range(len(NAMES))], names=NAMES))
    rows = read(spark, source)
    assert rows.columns == NAMES
    write(rows, tmp_path / "log")
    back = Log(str(tmp_path / "log")).scan().read_all()
    assert back.column_names == NAMES
    assert back.to_pylist() == [{name: number for number, name in enumerate(NAMES)}]


def test_names_that_writers_refuse_beside_each_other_are_ambiguous_in_spark(
    spark: SparkSession,
) -> None:
    rows = spark.range(1).selectExpr("id as s", "id as `ſ`", "id as S")
    with pytest.raises(Exception) as caught:
        rows.select("s")
    # Spark's error may be behind one of its logger.
    assert "AMBIGUOUS_REFERENCE" in "".join(format_exception(caught.value))
    assert rows.select("ſ").columns == ["ſ"]
