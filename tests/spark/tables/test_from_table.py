"""A stream that begins with the rows of a Delta table, whose files are read one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import sparkwal
from sparkwal.errors import TableReadError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.opening import open_table
from sparkwal.lifecycle.table import ReadTable
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from tests.lifecycle.lakes import Lake, value


def opened(folder: Path, table: Path) -> ReadTable:
    options = from_keywords(SourceOptions, f"{folder}/log", {})
    return open_table(Target(str(table)), options)


def by_files(table: ReadTable, version: int) -> Counter[str]:
    """The rows of a version, each file read by itself."""
    listed = table.files_at(version)
    target = schema.to_arrow(listed.spark_schema)
    found: Counter[str] = Counter()
    for file in listed.files:
        rows = [
            repr(row)
            for batch in table.rows_of(listed.head, file, target.names)
            for row in schema.conform(batch, target).to_pylist()
        ]
        assert file.rows in (None, len(rows))
        found.update(rows)
    return found


def by_spark(delta: SparkSession, table: Path, version: int) -> Counter[str]:
    read = delta.read.format("delta").option("versionAsOf", version).load(str(table))
    target = schema.to_arrow(schema.normalize(read.schema.jsonValue()))
    return Counter(
        repr(row)
        for batch in read.toArrow().to_batches()
        for row in schema.conform(batch, target).to_pylist()
    )


STATEMENTS = [
    # The values of partitions, among them null and texts that are no names of files.
    "INSERT INTO {t} SELECT id, s, d, named_struct('x', id, 'y', 'a'), m FROM VALUES "
    "(1L, 'a/b=c %', DATE '2024-01-31', TIMESTAMP '1900-01-01 00:00:00'), "
    "(2L, NULL, NULL, NULL), (3L, 'ü :', DATE '0001-01-01', TIMESTAMP '2024-02-29 23:59:59.999999')"
    " AS v(id, s, d, m)",
    "INSERT INTO {t} SELECT id, 'many', DATE '2024-01-01', named_struct('x', id, 'y', 'b'), "
    "TIMESTAMP '2024-01-01 00:00:00' FROM range(10, 60)",
    # Deletion vectors.
    "DELETE FROM {t} WHERE id % 7 = 3",
    "UPDATE {t} SET st = named_struct('x', -id, 'y', 'u') WHERE id > 50",
    # Columns that older files lack, have under another name, or have too much.
    "ALTER TABLE {t} ADD COLUMNS (more DOUBLE)",
    "INSERT INTO {t} SELECT 100, 'many', DATE '2024-01-01', NULL, NULL, 1.5",
    "ALTER TABLE {t} RENAME COLUMN more TO less",
    "ALTER TABLE {t} RENAME COLUMN s TO part",
    "ALTER TABLE {t} RENAME COLUMN st.x TO z",
    "ALTER TABLE {t} DROP COLUMN m",
    "INSERT INTO {t} SELECT 101, 'x', NULL, named_struct('z', 9L, 'y', 'c'), 2.5",
    "DELETE FROM {t} WHERE id IN (12, 100)",
    "OPTIMIZE {t}",
]


@pytest.mark.parametrize("checkpoints", ["classic", pytest.param("v2", marks=pytest.mark.slow)])
def test_each_file_of_each_version_has_the_rows_that_it_has_for_spark(
    delta: SparkSession, tmp_path: Path, checkpoints: str
) -> None:
    table = tmp_path / "table"
    name = f"delta.`{table}`"
    delta.sql(
        f"CREATE TABLE {name} (id BIGINT, s STRING, d DATE, st STRUCT<x: BIGINT, y: STRING>, "
        "m TIMESTAMP) USING delta PARTITIONED BY (s, d) TBLPROPERTIES ("
        "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name', "
        f"'delta.checkpointInterval' = '5', 'delta.checkpointPolicy' = '{checkpoints}')"
    )
    for statement in STATEMENTS:
        delta.sql(statement.format(t=name))
    newest = delta.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0]["version"]
    reader = opened(tmp_path, table)
    assert list((table / "_delta_log").glob("*.checkpoint*"))
    deleted: list[Any] = []
    # The next version with new rows has the columns of a version that changes only columns.
    changed = [number for number, text in enumerate(STATEMENTS, 1) if not text.startswith("ALTER")]
    assert len(STATEMENTS) == newest
    for version in changed:
        assert by_files(reader, version) == by_spark(delta, table, version), version
        listed = reader.files_at(version)
        assert listed == reader.files_at(version)
        deleted += [file for file in listed.files if "deletionVector" in file.text]
    assert deleted


def test_a_version_that_is_gone_and_a_file_that_a_vacuum_deleted(
    delta: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    name = f"delta.`{table}`"
    delta.sql(f"CREATE TABLE {name} (id BIGINT) USING delta")
    for number in range(3):
        delta.sql(f"INSERT INTO {name} VALUES ({number})")
    reader = opened(tmp_path, table)
    listed = reader.files_at(3)
    delta.sql(f"OPTIMIZE {name}")
    with delta_setting(delta, "spark.databricks.delta.retentionDurationCheck.enabled", "false"):
        delta.sql(f"VACUUM {name} RETAIN 0 HOURS")
    with pytest.raises(TableReadError, match="a data file .* is gone: .*VACUUM"):
        list(reader.rows_of(listed.head, listed.files[0], ["id"]))
    for number in range(3):
        (table / "_delta_log" / f"{number:020d}.json").unlink()
    with pytest.raises(TableReadError, match="version 2 of the table .* is gone"):
        reader.files_at(2)


class delta_setting:  # noqa: N801
    """A setting of the session for a block."""

    def __init__(self, session: SparkSession, name: str, value: str) -> None:
        self._session = session
        self._name = name
        self._value = value

    def __enter__(self) -> None:
        self._session.conf.set(self._name, self._value)

    def __exit__(self, *_: object) -> None:
        self._session.conf.unset(self._name)


class Killed(Exception):
    """The query ends in the middle of a microbatch."""


class Stream:
    """A query over table and log, with the rows of each microbatch."""

    def __init__(self, spark: SparkSession, path: str, folder: Path, **options: str) -> None:
        sparkwal.register(spark)
        self._spark = spark
        self._path = path
        self._folder = folder
        self._options = {"startingPosition": "table", "consumer": "c", **options}
        self.batches: dict[int, list[dict[str, Any]]] = {}

    def run(self, before: Callable[[int], None] = lambda _: None) -> None:
        """Read all there is; `before` is called before a microbatch counts."""

        def take(rows: DataFrame, number: int) -> None:
            found = [row.asDict(recursive=True) for row in rows.collect()]
            before(number)
            self.batches[number] = found

        reader = self._spark.readStream.format("weaselwal").options(**self._options)
        query = (
            reader.load(self._path)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._folder / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for _, batch in sorted(self.batches.items()) for row in batch]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_a_stream_reads_the_table_and_then_the_log_over_kills(
    delta: SparkSession, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    lake = Lake(tmp_path, spark=delta)
    life = sparkwal.Lifecycle(
        lake.path, spark=delta, table=lake.target.table, lateArriveWindowSeconds=0
    )
    numbers = iter(range(10_000))
    written: list[int] = []

    def happen(*_: object) -> None:
        """The log grows, and goes to the table, whose files change."""
        for _ in range(rng.randrange(3)):
            batch = [next(numbers) for _ in range(3)]
            lake.append([value(number) for number in batch])
            written.extend(batch)
        if rng.random() < 0.7:
            life.run_once(whole=True)
        if rng.random() < 0.3:
            delta.sql(f"OPTIMIZE delta.`{lake.target.table}`")

    lake.append([value(next(numbers))])
    written.append(0)
    for _ in range(2):
        life.run_once(whole=True)
        happen()
    stream = Stream(delta, lake.path, tmp_path, maxCommitsPerTrigger="1", includeMetadata="true")

    def dies(number: int) -> None:
        happen()
        if rng.random() < 0.4:
            raise Killed

    kills = 0
    for _ in range(3):
        try:
            stream.run(dies)
        except StreamingQueryException as error:
            assert "Killed" in str(error), error
            kills += 1
    assert kills
    stream.run()
    assert sorted(row["id"] for row in stream.rows) == written
    of_log = [row["id"] for row in stream.rows if row["_wal_position"] is not None]
    assert of_log == sorted(of_log) and 0 not in of_log
    of_table = len(stream.rows) - len(of_log)
    assert [row["_wal_position"] for row in stream.rows[:of_table]] == [None] * of_table
    (one,) = [each for each in sparkwal.consumers(lake.path) if each.name == "c"]
    assert one.position > 0


def test_the_keyed_table_of_several_logs_is_upserted_by_a_stream_of_all(
    delta: SparkSession, tmp_path: Path
) -> None:
    lakes = [
        Lake(tmp_path, "id", spark=delta, sequencer=name, delete_when="v = 'gone'")
        for name in ("a", "b")
    ]
    life = sparkwal.Lifecycle(
        lakes[0].path,
        spark=delta,
        table=lakes[0].target.table,
        keys=["id"],
        delete_when="v = 'gone'",
        lateArriveWindowSeconds=0,
    )
    for number, lake in enumerate(lakes):
        lake.append([value(number), {"id": number + 10, "v": "gone"}], [value(number + 10)])
    life.run_all()
    lakes[0].append([{"id": 0, "v": "new"}], [{"id": 10, "v": "gone"}])
    stream = Stream(
        delta,
        lakes[0].path,
        tmp_path,
        sequencers="*",
        includeMetadata="true",
        maxRowsPerTrigger="1",
    )
    stream.run()
    assert len(stream.batches) > 2
    state: dict[int, str] = {}
    for row in stream.rows:
        state[row["id"]] = row["v"]
    assert state == {0: "new", 1: "v1", 10: "gone", 11: "v11"}
    current = sparkwal.Log(lakes[0].path).current(sequencers="*").to_arrow().to_pylist()
    kept = {number: text for number, text in state.items() if text != "gone"}
    assert {row["id"]: row["v"] for row in current} == kept
    assert len([row for row in stream.rows if row["_wal_position"] is None]) == 4
