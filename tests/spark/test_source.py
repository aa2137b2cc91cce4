"""The source: every option, every kind of damage, streams beside writers, long logs."""

from __future__ import annotations

import ast
import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.commit import commit
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.object_writer import TaskLimits
from sparkwal.protocol.plan import make_plan
from sparkwal.protocol.takeover import Claim
from sparkwal.protocol.task import TaskAttempt, write_partition
from sparkwal.spark.source import BatchReader, StreamReader
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.spark.queries import (
    assert_one_error,
    follow,
    lose_last,
    read,
    refused,
    values,
    write,
)

SCHEMA = '{"type":"struct","fields":[{"name":"value","type":"long","nullable":true,"metadata":{}}]}'


class Stopped(Clock):
    """Wall time that only a test moves."""

    now = 1_000_000

    def now_ms(self) -> int:
        return self.now


class Writer:
    """Appends to a log through the protocol, without Spark; the leader record is position 0.

    Commit n holds the values 10·n … 10·n+9, five in each of two partitions, and its
    timestamp is 1 000 000 + 1000·n.
    """

    def __init__(self, path: Path, *, inline: bool = False) -> None:
        self.path = path
        self.store = LocalStore(path, fsync=False)
        self.log = LogStore(self.store, "")
        self.hints = Hints(path.name, path.parent / f"{path.name}-hints")
        self.clock = Stopped()
        self.limits = TaskLimits(2**20, 1000, 2**20 if inline else 0, 2**30, None)
        self.count = 0

    def append(self, times: int = 1, window: int | None = None) -> None:
        for _ in range(times):
            self.clock.now = 1_000_000 + 1000 * self.count
            claim = Claim("me", "here", uuid.uuid4().hex, SCHEMA, False, window, 1, "test")
            plan = make_plan(lambda: self.log, claim, self.hints, self.clock, 10**9)
            tasks = plan.for_tasks()
            results = [
                write_partition(
                    lambda: self.log,
                    tasks,
                    TaskAttempt("q", self.count, partition),
                    iter([self.rows(partition)]),
                    self.limits,
                )
                for partition in (0, 1)
            ]
            commit(lambda: self.log, results, self.hints, self.clock, 10**9, None)
            self.count += 1

    def rows(self, partition: int) -> pa.RecordBatch:
        first = 10 * self.count + 5 * partition
        return pa.record_batch({"value": pa.array(range(first, first + 5), pa.int64())})

    def object(self, position: int, partition: int | None = None) -> Path:
        """The file of a record, or of a data object."""
        number = keys.slot(position, 1000)
        if partition is not None:
            number = keys.data(position, 1000, partition)
        return self.path / keys.key("", number)


def flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.fixture
def log(tmp_path: Path) -> Writer:
    """Five commits at the positions 1 … 5."""
    writer = Writer(tmp_path / "log")
    writer.append(5)
    return writer


def span(first: int, last: int) -> list[int]:
    """The values of the commits first … last."""
    return list(range(10 * first, 10 * last + 10))


def seldom(case: dict[str, object] | str, *always: dict[str, object] | str) -> list[Any]:
    """The marks of a case that Spark itself goes through now and then only."""
    marks = [] if case in always else [pytest.mark.slow]
    if isinstance(case, dict) and any(name.endswith("PerTrigger") for name in case):
        marks.append(pytest.mark.capability("READ_LIMITS"))
    return marks


def reading(path: Path, **options: object) -> tuple[SourceOptions, StructType]:
    """The options that Spark gives to a reader."""
    given = {name: str(value) for name, value in options.items()}
    return parse(SourceOptions, {"path": str(path), **given}), StructType.fromJson(
        json.loads(SCHEMA)
    )


def read_by(reader: BatchReader | StreamReader, tasks: Sequence[InputPartition]) -> list[int]:
    """The values that the tasks read, in their order."""
    batches = [batch for task in tasks for batch in reader.read(task)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


BOUNDS: list[tuple[dict[str, object], list[int]]] = [
    ({}, span(0, 4)),
    ({"startingPosition": "earliest"}, span(0, 4)),
    ({"startingPosition": "latest"}, []),
    ({"startingPosition": 3}, span(2, 4)),
    ({"startingPosition": 6}, []),
    ({"endingPosition": 3}, span(0, 2)),
    ({"startingPosition": 2, "endingPosition": 2}, span(1, 1)),
    ({"startingTimestamp": 1_002_000}, span(2, 4)),
    ({"startingTimestamp": 1_002_001}, span(3, 4)),
    ({"endingTimestamp": 1_002_000}, span(0, 2)),
    ({"endingTimestamp": 1_001_999}, span(0, 1)),
    (
        {
            "startingTimestamp": "1970-01-01T00:16:43Z",
            "endingTimestamp": "1970-01-01T01:16:43+01:00",
        },
        span(3, 3),
    ),
    ({"startingTimestamp": 9_000_000}, []),
    ({"endingTimestamp": 0}, []),
]
BOUNDS_THROUGH_SPARK: list[dict[str, object]] = [
    {"startingPosition": 2, "endingPosition": 2},
    {"startingTimestamp": 1_002_001},
    {"startingPosition": "latest"},
]


@pytest.mark.parametrize(("options", "expected"), BOUNDS, ids=[str(o) for o, _ in BOUNDS])
def test_a_reader_plans_exactly_the_range_asked_for(
    log: Writer, options: dict[str, object], expected: list[int]
) -> None:
    reader = BatchReader(*reading(log.path, **options))
    assert read_by(reader, reader.partitions()) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(o, rows, id=str(o), marks=seldom(o, *BOUNDS_THROUGH_SPARK))
        for o, rows in BOUNDS
    ],
)
def test_a_batch_read_holds_exactly_the_range_asked_for(
    spark: SparkSession, log: Writer, options: dict[str, object], expected: list[int]
) -> None:
    assert values(read(spark, log.path, **options).collect()) == expected


def turns(path: Path, **options: object) -> list[list[int]]:
    """The rows of each trigger, asked for as Spark asks for them until the log's end."""
    reader = StreamReader(*reading(path, **options))
    start = reader.begin({})
    reader.fix_heads()
    found = []
    while (end := reader.advance(start, limited=True)) != start:
        found.append(read_by(reader, reader.plan(start, end)))
        start = end
    return found


LIMITS: list[tuple[dict[str, object], list[int]]] = [
    ({}, [50]),
    ({"maxRowsPerTrigger": 20}, [20, 20, 10]),
    ({"maxRowsPerTrigger": 19}, [10, 10, 10, 10, 10]),
    ({"maxRowsPerTrigger": 1}, [10, 10, 10, 10, 10]),
    ({"maxCommitsPerTrigger": 2}, [20, 20, 10]),
    ({"maxBytesPerTrigger": 1}, [10, 10, 10, 10, 10]),
    ({"maxRowsPerTrigger": 40, "maxCommitsPerTrigger": 3}, [30, 20]),
    ({"maxRowsPerTrigger": 30, "maxBytesPerTrigger": "1mb", "startingPosition": 2}, [30, 10]),
    ({"startingPosition": "latest"}, []),
    ({"startingTimestamp": 1_003_000}, [20]),
]


LIMITS_THROUGH_SPARK: list[dict[str, object]] = [
    {"maxRowsPerTrigger": 30, "maxBytesPerTrigger": "1mb", "startingPosition": 2},
]


@pytest.mark.parametrize(("options", "expected"), LIMITS, ids=[str(o) for o, _ in LIMITS])
def test_a_trigger_takes_whole_commits_up_to_the_limits(
    log: Writer, options: dict[str, object], expected: list[int]
) -> None:
    found = turns(log.path, **options)
    assert [len(rows) for rows in found] == expected
    assert sorted(value for rows in found for value in rows) == span(0, 4)[50 - sum(expected) :]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(o, rows, id=str(o), marks=seldom(o, *LIMITS_THROUGH_SPARK))
        for o, rows in LIMITS
    ],
)
def test_a_stream_takes_whole_commits_up_to_the_limits(
    spark: SparkSession,
    log: Writer,
    tmp_path: Path,
    options: dict[str, object],
    expected: list[int],
) -> None:
    batches, _ = follow(spark, log.path, tmp_path / "cp", **options)
    assert [len(batch) for batch in batches if batch] == expected
    assert values([row for batch in batches for row in batch]) == span(0, 4)[50 - sum(expected) :]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({}, [50]),
        pytest.param(
            {"maxCommitsPerTrigger": 4}, [40, 10], marks=pytest.mark.capability("READ_LIMITS")
        ),
    ],
    ids=str,
)
def test_available_now_ends_at_the_head_and_the_next_run_continues(
    spark: SparkSession,
    log: Writer,
    tmp_path: Path,
    limit: dict[str, object],
    expected: list[int],
) -> None:
    batches, query = follow(spark, log.path, tmp_path / "cp", **limit)
    assert [len(batch) for batch in batches] == expected
    assert json_offset(query.recentProgress[-1]) == 6
    log.append(2)
    batches, query = follow(spark, log.path, tmp_path / "cp", **limit)
    assert [values(batch) for batch in batches] == [span(5, 6)]
    # No new commit: no read.
    assert follow(spark, log.path, tmp_path / "cp")[0] == []


def json_offset(progress: Any) -> int:
    # JSON, or what Python makes of it: that depends on the version of Spark.
    return int(ast.literal_eval(progress["sources"][0]["endOffset"])["default"])


def test_a_stream_beside_a_writer_sees_each_commit_once_and_in_order(
    spark: SparkSession, log: Writer, tmp_path: Path
) -> None:
    batches, query = follow(
        spark, log.path, tmp_path / "cp", available_now=False, includeMetadata=True
    )
    try:
        for _ in range(6):
            log.append(3)
            query.processAllAvailable()
    finally:
        query.stop()
    assert len(batches) > 3
    rows = [row for batch in batches for row in batch]
    assert values(rows) == span(0, 22)
    order = [row["_wal_position"] for row in rows]
    assert order == sorted(order)


def test_position_partition_and_row_are_a_total_order(
    spark: SparkSession, log: Writer, tmp_path: Path
) -> None:
    rows = read(spark, log.path, includeMetadata=True).collect()
    stable = sorted(rows, key=lambda row: (row["_wal_position"], row["_wal_partition"]))
    assert [row["value"] for row in stable] == span(0, 4)


def test_metadata_columns_name_the_origin_of_each_row(spark: SparkSession, log: Writer) -> None:
    plain, rows = read(spark, log.path), read(spark, log.path, includeMetadata=True)
    assert plain.columns == ["value"]
    row = rows.where("value = 27").selectExpr("*", "unix_millis(_wal_timestamp) as ms").first()
    assert row is not None
    found = row.asDict()
    del found["_wal_timestamp"]
    assert found == {
        "value": 27,
        "_wal_position": 3,
        "_wal_partition": 1,
        "_wal_leader_id": "me",
        "_wal_batch_id": 2,
        "_wal_query_id": "q",
        "ms": 1_002_000,
    }


def test_the_users_schema_selects_columns(spark: SparkSession, tmp_path: Path) -> None:
    write(spark.range(3).selectExpr("id", "'x' as name", "id * 2 as twice"), tmp_path)
    reader = spark.read.format("weaselwal")
    some = reader.schema("twice bigint, _wal_partition int, id bigint").load(str(tmp_path))
    assert some.columns == ["twice", "_wal_partition", "id"]
    assert [(r["twice"], r["id"]) for r in some.orderBy("id").collect()] == [(0, 0), (2, 1), (4, 2)]
    none = reader.schema("name string").load(str(tmp_path)).selectExpr("count(1)")
    assert none.collect()[0][0] == 3
    for ddl, parts in (
        ("id int", ("'id' is bigint in the log, not int", "cast")),
        ("nme string", ("'nme'", "id, name, twice")),
    ):
        shown = refused(lambda ddl=ddl: reader.schema(ddl).load(str(tmp_path)).collect())
        assert_one_error(shown, "OptionError", *parts)


def test_counting_needs_no_column(spark: SparkSession, log: Writer) -> None:
    assert read(spark, log.path).count() == 50


@pytest.mark.parametrize("inline", [False, True])
def test_more_partitions_are_read_when_asked_for(
    spark: SparkSession, tmp_path: Path, inline: bool
) -> None:
    writer = Writer(tmp_path / "log", inline=inline)
    writer.append(5)
    rows = read(spark, writer.path)
    assert rows.rdd.getNumPartitions() == 1
    rows = read(spark, writer.path, minPartitions=8)
    assert rows.rdd.getNumPartitions() >= 8
    assert values(rows.collect()) == span(0, 4)


# The damaged part → the words of the error.
DAMAGE: dict[str, tuple[str, ...]] = {
    "missing record": ("position 3", "missing", "failOnDataLoss=false"),
    "corrupt record": ("CRC-32", "Restore it", "onCorruption=stop"),
    "truncated record": ("cut off", "restore the object"),
    "corrupt data object": ("position 3", "partition 1", "CRC-32", "onCorruption=stop"),
    "missing data object": ("position 3", "partition 1", "missing"),
}


def harm(log: Writer, damage: str) -> None:
    """Something happens to position 3, the third commit."""
    if damage == "missing record":
        log.object(3).unlink()
    elif damage == "corrupt record":
        flip(log.object(3), log.object(3).read_bytes().index(b'"txns"'))
    elif damage == "truncated record":
        log.object(3).write_bytes(log.object(3).read_bytes()[:200])
    elif damage == "corrupt data object":
        flip_value_27(log)
    else:
        log.object(3, 1).unlink()


def flip_value_27(log: Writer) -> None:
    file = log.object(3, 1)
    flip(file, file.read_bytes().index((27).to_bytes(8, "little")))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_a_clear_error_for_a_trigger(log: Writer, damage: str) -> None:
    harm(log, damage)
    with pytest.raises(InvalidLogError) as error:
        turns(log.path)
    for part in DAMAGE[damage]:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "damage",
    [pytest.param(d, marks=seldom(d, "corrupt data object")) for d in DAMAGE],
)
def test_damage_is_a_clear_error_for_batch_and_stream(
    spark: SparkSession, log: Writer, damage: str
) -> None:
    harm(log, damage)
    shown = refused(lambda: read(spark, log.path).collect())
    assert_one_error(shown, "InvalidLogError", *DAMAGE[damage])

    def stream() -> None:
        rows = spark.readStream.format("weaselwal").load(str(log.path))
        query = rows.writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination()

    assert_one_error(refused(stream), "InvalidLogError", *DAMAGE[damage])


STOPS = [damage for damage in DAMAGE if damage != "missing record"]


@pytest.mark.parametrize("limit", [{}, {"maxCommitsPerTrigger": 1}], ids=str)
@pytest.mark.parametrize("damage", STOPS)
def test_on_corruption_stop_ends_a_trigger_before_the_damage(
    log: Writer, damage: str, limit: dict[str, object]
) -> None:
    harm(log, damage)
    found = turns(log.path, onCorruption="stop", **limit)
    assert sorted(value for rows in found for value in rows) == span(0, 1)


@pytest.mark.parametrize(
    "damage",
    [pytest.param(d, marks=seldom(d, "corrupt record")) for d in STOPS],
)
def test_on_corruption_stop_ends_the_replay_before_the_damage(
    spark: SparkSession, log: Writer, tmp_path: Path, damage: str
) -> None:
    harm(log, damage)
    rows = read(spark, log.path, onCorruption="stop").collect()
    assert values(rows) == span(0, 1)
    for limit in ({}, {"maxCommitsPerTrigger": 1}):
        checkpoint = tmp_path / f"cp{len(limit)}"
        batches, _ = follow(spark, log.path, checkpoint, onCorruption="stop", **limit)
        assert values([row for batch in batches for row in batch]) == span(0, 1)


def test_on_corruption_stop_holds_a_stream_before_a_damaged_record_that_arrives(
    log: Writer,
) -> None:
    reader = StreamReader(*reading(log.path, onCorruption="stop"))
    begin = reader.advance(reader.begin({}), limited=False)
    assert begin["default"] == 6
    # Between two triggers three commits arrive, the last of them damaged.
    log.append(3)
    flip(log.object(8), log.object(8).read_bytes().index(b'"txns"'))
    for _ in range(2):
        begin = reader.advance(begin, limited=False)
        assert begin["default"] == 8


def test_fail_on_data_loss_false_continues_behind_a_missing_record(
    spark: SparkSession, log: Writer, tmp_path: Path
) -> None:
    harm(log, "missing record")
    rest = [*span(0, 1), *span(3, 4)]
    assert values(read(spark, log.path, failOnDataLoss=False).collect()) == rest
    batches, _ = follow(spark, log.path, tmp_path / "cp", failOnDataLoss=False)
    assert values([row for batch in batches for row in batch]) == rest


def test_without_checksums_a_flipped_value_is_read(spark: SparkSession, log: Writer) -> None:
    flip_value_27(log)
    found = values(read(spark, log.path, verifyChecksums=False).collect())
    assert found == sorted([*span(0, 4)[:27], *span(0, 4)[28:], 26])


def test_a_log_without_commits_reads_empty(spark: SparkSession, tmp_path: Path) -> None:
    write(spark.range(3).selectExpr("id as value").where("value < 0"), tmp_path)
    assert read(spark, tmp_path).collect() == []
    assert read(spark, tmp_path, onCorruption="stop").collect() == []


def test_a_stream_waits_for_the_first_writer(spark: SparkSession, tmp_path: Path) -> None:
    batches, query = follow(
        spark, tmp_path / "log", tmp_path / "cp", schema="value bigint", available_now=False
    )
    try:
        query.processAllAvailable()
        Writer(tmp_path / "log").append(2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert values([row for batch in batches for row in batch]) == span(0, 1)


def test_a_restarted_stream_continues_at_the_end_of_its_checkpoint(
    spark: SparkSession, log: Writer, tmp_path: Path
) -> None:
    seen: list[Row] = []
    for run in range(3):
        batches, _ = follow(spark, log.path, tmp_path / "cp", startingPosition="earliest")
        seen += [row for batch in batches for row in batch]
        if run == 0:
            # The last microbatch is planned again, because Spark's commit file was removed.
            lose_last(tmp_path / "cp", 1)
        else:
            log.append()
    assert values(seen) == sorted([*span(0, 4), *span(0, 5)])


@pytest.mark.slow
def test_a_log_cut_behind_the_readers_back_is_an_error(
    spark: SparkSession, log: Writer, tmp_path: Path
) -> None:
    follow(spark, log.path, tmp_path / "cp")
    shutil.rmtree(log.path)
    shutil.rmtree(log.hints.folder)
    log.append()
    shown = refused(lambda: follow(spark, log.path, tmp_path / "cp"))
    assert_one_error(shown, "InvalidLogError", "recreated", "new checkpoint")


def test_sql_reads_a_log_through_a_view(spark: SparkSession, log: Writer) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW wal USING weaselwal "
        f"OPTIONS (path '{log.path}', startingPosition 2, includeMetadata true)"
    )
    found = spark.sql("SELECT min(value), max(_wal_position), count(*) FROM wal WHERE value <> 11")
    assert tuple(found.collect()[0]) == (10, 5, 39)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_long_log_is_read_in_stretches(spark: SparkSession, tmp_path: Path, window: int) -> None:
    writer = Writer(tmp_path / "log", inline=True)
    writer.append(1, window=window)
    writer.append(599)
    rows = read(spark, writer.path, includeMetadata=True)
    assert rows.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism
    found = rows.collect()
    stable = sorted(found, key=lambda row: (row["_wal_position"], row["_wal_partition"]))
    assert [row["value"] for row in stable] == span(0, 599)
    batches, _ = follow(spark, writer.path, tmp_path / "cp")
    assert values([row for batch in batches for row in batch]) == span(0, 599)
    part = read(spark, writer.path, startingPosition=20, endingPosition=580, minPartitions=7)
    assert part.rdd.getNumPartitions() == 7
    assert values(part.collect()) == span(19, 579)
