"""The sink writes each input row once and in order, under any loss of checkpoints and queries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkwal.format import keys
from sparkwal.format.header import CRC_KEY, HEADER_KEY, crc_hex
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.testing.proxy import S3Proxy
from tests.spark.queries import (
    append,
    assert_one_error,
    commits,
    lose_last,
    numbers,
    objects,
    read,
    refused,
    start,
    values,
    wait_for,
    write,
)


def test_each_microbatch_and_each_batch_write_is_one_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "cp"
    query = append(numbers(spark, 10, partitions=3), log, checkpoint, inlineThreshold=0)
    append(numbers(spark, 10, partitions=3), log, checkpoint, inlineThreshold=0)
    write(spark.range(5).selectExpr("current_timestamp() as timestamp", "id + 20 as value"), log)
    assert [(c.batch_id, c.rows) for c in commits(log)] == [(0, 10), (1, 10), (0, 5)]
    assert [c.query_id == query.id for c in commits(log)] == [True, True, False]
    assert [len(c.batches) for c in commits(log)][:2] == [3, 3]
    assert values(read(spark, log).collect()) == list(range(25))


def test_a_batch_write_with_a_transaction_is_stored_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    for version, start_at in ((1, 0), (1, 0), (3, 10), (3, 10), (4, 20)):
        rows = spark.range(start_at, start_at + 10).selectExpr("id as value")
        # Dealt out otherwise each time.
        again = rows.repartition(version + start_at % 3 + len(commits(tmp_path)) + 1)
        write(again, tmp_path, txnAppId="nightly", txnVersion=version, inlineThreshold=0)
    assert [c.batch_id for c in commits(tmp_path)] == [1, 3, 4]
    assert values(read(spark, tmp_path).collect()) == list(range(30))


@pytest.mark.proves("batch-same-rows", "version-never-lower")
def test_a_batch_write_is_not_taken_for_another_one(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(10).selectExpr("id as value")
    write(rows, tmp_path, txnAppId="nightly", txnVersion=20260131)
    lower = refused(lambda: write(rows, tmp_path, txnAppId="nightly", txnVersion=20260115))
    assert_one_error(lower, "OptionError", "txnVersion is 20260115", "20260131", "backfill")
    others = rows.selectExpr("value + 1 as value")
    equal = refused(lambda: write(others, tmp_path, txnAppId="nightly", txnVersion=20260131))
    assert_one_error(equal, "DivergedCheckpointError", "with other rows", "higher txnVersion")
    assert values(read(spark, tmp_path).collect()) == list(range(10))


def test_complete_mode_and_overwrite_are_refused_with_what_to_use_instead(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    counted = numbers(spark, 10).groupBy().count()
    writer = counted.writeStream.format("weaselwal").outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start(str(log))
    shown = refused(query.awaitTermination)
    assert_one_error(shown, "OptionError", "append", "foreachBatch")
    shown = refused(lambda: write(spark.range(3), log, mode="overwrite"))
    assert_one_error(shown, "OptionError", 'mode("append")', "new path")
    assert not log.exists()


def test_update_mode_does_not_reach_the_log(spark: SparkSession, tmp_path: Path) -> None:
    counted = numbers(spark, 10).groupBy("value").count()
    writer = counted.writeStream.format("weaselwal").outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "cp"))
    assert (
        "update" in refused(lambda: writer.start(str(tmp_path / "log")).awaitTermination()).lower()
    )
    assert not (tmp_path / "log").exists()


def test_another_schema_is_refused_with_every_difference(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(spark.range(3).selectExpr("id", "'x' as name", "1 as gone"), tmp_path)
    before = objects(tmp_path)
    other = spark.range(3).selectExpr("cast(id as int) as id", "'x' as name", "true as fresh")
    shown = refused(lambda: write(other, tmp_path))
    assert_one_error(
        shown,
        "OptionError",
        "column 'id' is bigint in the log and int in these rows",
        "column 'fresh' (boolean) is only in these rows",
        "column 'gone' (int) is only in the log",
    )
    assert objects(tmp_path) == before


def test_merge_schema_adds_columns_and_older_rows_read_null(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(spark.range(0, 2).selectExpr("id", "'old' as name"), tmp_path)
    added = spark.range(2, 4).selectExpr("named_struct('x', id) as extra", "id")
    assert_one_error(refused(lambda: write(added, tmp_path)), "OptionError", "mergeSchema=true")
    write(added, tmp_path, mergeSchema=True)
    back = read(spark, tmp_path)
    assert back.schema.simpleString() == "struct<id:bigint,name:string,extra:struct<x:bigint>>"
    assert [tuple(row) for row in back.orderBy("id").collect()] == [
        (0, "old", None),
        (1, "old", None),
        (2, None, (2,)),
        (3, None, (3,)),
    ]


def test_a_column_that_differs_only_in_case_is_refused_also_when_merging(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Spark could not distinguish the two when reading.
    write(spark.range(3), tmp_path)
    renamed = spark.range(3).selectExpr("id as ID")
    shown = refused(lambda: write(renamed, tmp_path, mergeSchema=True))
    assert_one_error(shown, "OptionError", "'ID'", "'id'", "case")


@pytest.mark.parametrize("name", ["_wal_position", "_Wal_Order"])
def test_names_that_begin_as_those_of_metadata_are_refused(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    rows = spark.range(3).selectExpr(f"id as {name}")
    shown = refused(lambda: write(rows, tmp_path / "log"))
    assert_one_error(shown, "OptionError", f"'{name}'", "rename")
    assert not (tmp_path / "log").exists()


def test_a_reserved_name_is_refused_also_when_merging(spark: SparkSession, tmp_path: Path) -> None:
    write(spark.range(3), tmp_path)
    more = spark.range(3).selectExpr("id", "id as _wal_order")
    shown = refused(lambda: write(more, tmp_path, mergeSchema=True))
    assert_one_error(shown, "OptionError", "'_wal_order'", "reserved")


def test_columns_are_matched_by_name_not_by_place(spark: SparkSession, tmp_path: Path) -> None:
    write(spark.range(0, 1).selectExpr("1 as a", "2 as b"), tmp_path)
    write(spark.range(0, 1).selectExpr("2 as b", "1 as a"), tmp_path)
    assert [tuple(row) for row in read(spark, tmp_path).collect()] == [(1, 2), (1, 2)]


def test_restarts_with_any_partitioning_store_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "cp"
    shapes: list[Callable[[DataFrame], DataFrame]] = [
        lambda rows: rows,
        lambda rows: rows.coalesce(1),
        lambda rows: rows.repartition(5),
        lambda rows: rows.coalesce(2),
        lambda rows: rows.repartition(3),
    ]
    for shape in shapes:
        append(shape(numbers(spark, 20, partitions=4)), log, checkpoint)
    assert [c.batch_id for c in commits(log)] == [0, 1, 2, 3, 4]
    assert values(read(spark, log).collect()) == list(range(100))


@pytest.mark.proves("replay-writes-nothing")
@pytest.mark.parametrize("lost", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_end_of_the_commit_log_lost_stores_each_row_once(
    spark: SparkSession, tmp_path: Path, lost: int
) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "cp"
    for _ in range(3):
        append(numbers(spark, 20, partitions=2), log, checkpoint)
    lose_last(checkpoint, lost)
    for partitions in (3, 1):
        append(numbers(spark, 20, partitions).coalesce(1), log, checkpoint)
    found = values(read(spark, log).collect())
    assert found == list(range(len(found)))
    assert len(found) >= 80
    assert [c.batch_id for c in commits(log)] == list(range(len(found) // 20))


@pytest.mark.slow
def test_a_checkpoint_restored_from_the_last_copy_stores_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    checkpoint = tmp_path / "cp"
    copy = tmp_path / "copy"
    append(numbers(spark, 20, 2), log, checkpoint)
    shutil.copytree(checkpoint, copy)
    append(numbers(spark, 20, 2), log, checkpoint)
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    # The source gives the microbatch that is repeated the same input.
    for _ in range(3):
        append(numbers(spark, 20, 3), log, checkpoint)
    assert [c.batch_id for c in commits(log)] == [0, 1, 2, 3]
    assert values(read(spark, log).collect()) == list(range(80))


def test_an_empty_microbatch_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "cp"
    append(numbers(spark, 20, 2), log, checkpoint)
    before = objects(log)
    query = append(numbers(spark, 20, 2).where("value < 0"), log, checkpoint)
    assert query.lastProgress["numInputRows"] == 20
    assert objects(log) == before
    append(numbers(spark, 20, 2), log, checkpoint)
    assert [c.batch_id for c in commits(log)] == [0, 2]


def test_empty_partitions_write_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 100, 1, 10).where("id >= 30 and id < 50").selectExpr("id as value")
    write(rows, tmp_path, inlineThreshold=0)
    (commit,) = commits(tmp_path)
    assert [b.partition for b in commit.batches] == [3, 4]
    assert len([o for o in objects(tmp_path) if o.startswith("batches/")]) == 2 + 2


def test_more_partitions_than_a_window_holds_are_refused_with_the_way_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # Spark begins where rows are cached: with the last partition, not after 999 others.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        rows = spark.range(0, 1000, 1, 1000).cache()
        assert rows.tail(1)[0]["id"] == 999
        # Rows inside of the record need no number.
        shown = refused(lambda: write(rows, log, inlineThreshold=0))
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
        rows.unpersist()
    assert_one_error(shown, "OptionError", "coalesce(999)", "windowSize")
    assert commits(log) == []
    write(spark.range(3), log.with_name("wide"), windowSize=10_000)
    shown = refused(lambda: write(spark.range(3), log, windowSize=10_000))
    assert_one_error(shown, "OptionError", "windowSize is 10000", "created with 1000")


def test_a_second_query_takes_the_log_over_and_the_first_stops_without_loss(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    append(numbers(spark, 10), log, tmp_path / "first")

    # The second one moves in while a microbatch of the first is between plan and commit.
    def take_over(rows: DataFrame) -> DataFrame:
        gate, done = str(tmp_path / "gate"), str(tmp_path / "done")

        def wait(batches):  # type: ignore[no-untyped-def]
            import time
            from pathlib import Path

            Path(gate).touch()
            while not Path(done).exists():
                time.sleep(0.05)
            yield from batches

        return rows.mapInArrow(wait, rows.schema)

    first = start(take_over(numbers(spark, 10)), log, tmp_path / "first")
    wait_for(lambda: (tmp_path / "gate").exists() or not first.isActive)
    append(
        numbers(spark, 10).selectExpr("timestamp", "value + 1000 as value"),
        log,
        tmp_path / "second",
    )
    (tmp_path / "done").touch()
    shown = refused(first.awaitTermination)
    assert_one_error(shown, "FencedError", "another writer leads", "host", "position 2", "Stop one")
    assert values(read(spark, log).collect()) == [*range(10), *range(1000, 1010)]
    # A restart takes over again; the fenced microbatch is in the log once.
    append(numbers(spark, 10), log, tmp_path / "first")
    assert values(read(spark, log).collect()) == [*range(30), *range(1000, 1010)]


def test_a_stateful_query_survives_a_replayed_microbatch(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    checkpoint = tmp_path / "cp"
    copy = tmp_path / "copy"

    def distinct() -> DataFrame:
        return numbers(spark, 20, 2).selectExpr("value % 30 as value").dropDuplicates()

    append(distinct(), log, checkpoint)
    shutil.copytree(checkpoint, copy)
    append(distinct(), log, checkpoint)
    # The second microbatch is committed in the log, but neither the checkpoint nor the
    # state store knows: its tasks must write nothing and still store their state.
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    for _ in range(3):
        append(distinct(), log, checkpoint)
    assert values(read(spark, log).collect()) == list(range(30))


def test_small_partitions_travel_inside_the_commit_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(spark.range(0, 30, 1, 3).selectExpr("id as value"), tmp_path, inlineThreshold="1mb")
    (commit,) = commits(tmp_path)
    assert [(i.partition, i.rows) for i in commit.inline] == [(0, 10), (1, 10), (2, 10)]
    assert len([o for o in objects(tmp_path) if o.startswith("batches/")]) == 2
    assert values(read(spark, tmp_path).collect()) == list(range(30))


@pytest.mark.parametrize("codec", ["zstd", pytest.param("lz4", marks=pytest.mark.slow), "none"])
def test_objects_open_as_arrow_files_with_any_compression(
    spark: SparkSession, tmp_path: Path, codec: str
) -> None:
    write(spark.range(100).coalesce(1), tmp_path, compression=codec, inlineThreshold=0)
    (commit,) = commits(tmp_path)
    with pa.ipc.open_file(str(tmp_path / keys.key("", commit.batches[0].number))) as file:
        assert file.read_all()["id"].to_pylist() == list(range(100))


def footer_header(data: bytes) -> dict[str, object]:
    """The header in an Arrow file's footer, checked to be the one at its front."""
    footer = pa.ipc.open_file(data).schema.metadata
    front = pa.ipc.open_stream(data[8:]).schema.metadata
    assert footer[HEADER_KEY] == front[HEADER_KEY]
    assert footer[CRC_KEY] == crc_hex(footer[HEADER_KEY])
    header: dict[str, object] = json.loads(footer[HEADER_KEY])
    return header


def wide(spark: SparkSession) -> DataFrame:
    """About 20 MB in one partition, incompressible."""
    noise = ", ".join(f"sha2(cast(id * 4 + {i} as string), 512)" for i in range(4))
    return spark.range(0, 40_000, 1, 1).selectExpr("id as value", f"concat({noise}) as noise")


@pytest.mark.slow
def test_a_large_partition_is_uploaded_in_parts_to_disk(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(wide(spark), tmp_path, multipartThreshold="5mb", compression="none")
    (commit,) = commits(tmp_path)
    assert len(commit.batches) == 1 and commit.bytes > 16 * 2**20
    data = (tmp_path / keys.key("", commit.batches[0].number)).read_bytes()
    assert len(data) == commit.batches[0].bytes
    assert footer_header(data)["rows"] == 40_000
    assert pa.ipc.open_file(data).read_all()["value"].to_pylist() == list(range(40_000))
    assert not list((tmp_path / ".tmp").iterdir())


def test_a_large_partition_is_uploaded_in_parts_to_s3(
    spark: SparkSession, s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy
) -> None:
    path, options = s3_path
    options = {**options, "endpoint": s3_proxy.url}
    write(wide(spark), path, **options, multipartThreshold="5mb", compression="none")
    counts = s3_proxy.counts()
    assert counts["CREATE_MULTIPART"] == counts["COMPLETE_MULTIPART"] == 1
    assert counts["UPLOAD_PART"] >= 3
    (commit,) = commits(path, **options)
    log = open_log(parse(SourceOptions, {**options, "path": path}))
    data = log.store.get(log.key(commit.batches[0].number))
    assert footer_header(data)["rows"] == 40_000
    assert pa.ipc.open_file(data).read_all()["value"].to_pylist() == list(range(40_000))
    assert read(spark, path, **options).agg({"value": "sum"}).collect()[0][0] == sum(range(40_000))


def test_a_folder_of_somebodys_parquet_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    rows = spark.range(4).selectExpr("id", "id % 2 AS part")
    rows.write.partitionBy("part").parquet(str(folder))
    before = objects(folder)
    shown = refused(lambda: write(spark.range(3), folder))
    assert_one_error(shown, "OptionError", "holds Parquet files", "empty path")
    assert objects(folder) == before


@pytest.mark.slow
def test_a_stream_copies_one_log_to_another_exactly_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(numbers(spark, 30, 3), tmp_path / "a", tmp_path / "cp")
    for _ in range(2):
        stream = spark.readStream.format("weaselwal").load(str(tmp_path / "a"))
        append(stream, tmp_path / "b", tmp_path / "cp-b")
        append(numbers(spark, 30, 3), tmp_path / "a", tmp_path / "cp")
    assert values(read(spark, tmp_path / "b").collect()) == list(range(60))
    assert [c.rows for c in commits(tmp_path / "b")] == [30, 30]
