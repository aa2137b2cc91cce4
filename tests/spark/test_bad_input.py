"""Mistakes of new users: each gives one line of error with advice."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

import sparkwal
from sparkwal.errors import OptionError
from tests.spark.queries import assert_one_error, numbers, objects, read, refused, write

SECRET = "correct-horse-battery-staple"


@dataclass(frozen=True)
class Case:
    """One mistake.

    Attributes:
        does: "write", "stream", "complete", "overwrite" or "read" (of a log with a column id).
        options: `path` among them stands for the log; {log} and {folder} are filled in.
        says: words that the error must contain.
    """

    does: str
    says: tuple[str, ...]
    options: dict[str, object] = field(default_factory=dict)
    columns: str = "id"
    kind: str = "OptionError"


CASES = {
    "misspelt option": Case(
        "write",
        ("'batchsizetreshold'", "did you mean 'batchSizeThreshold'"),
        {"batchSizeTreshold": "1mb"},
    ),
    "misspelt option of a stream": Case(
        "stream",
        ("inlinethreshhold", "did you mean 'inlineThreshold'"),
        {"inlinethreshhold": "1mb"},
    ),
    "misspelt option of a read": Case(
        "read", ("'startposition'", "did you mean 'startingPosition'"), {"startPosition": 1}
    ),
    "option of the other side": Case(
        "read", ("'mergeschema' is for writing", "remove it"), {"mergeSchema": True}
    ),
    "wrong type of a number": Case(
        "write",
        ("maxInFlightRequests is 'many'", "a whole number"),
        {"maxInFlightRequests": "many"},
    ),
    "wrong type of a size": Case(
        "write", ("inlineThreshold is '1 elephant'", "1mb"), {"inlineThreshold": "1 elephant"}
    ),
    "wrong type of a switch": Case(
        "write", ("mergeSchema is 'yes'", "true or false"), {"mergeSchema": "yes"}
    ),
    "number out of range": Case(
        "write", ("maxInFlightRequests is '5000'", "1…1000"), {"maxInFlightRequests": 5000}
    ),
    "window that is no power of ten": Case(
        "write", ("windowSize is '5000'", "10000"), {"windowSize": 5000}
    ),
    "complete mode": Case("complete", ('outputMode("append")', "foreachBatch")),
    "overwrite": Case("overwrite", ('mode("append")', "new path")),
    "another schema": Case(
        "write",
        ("column 'name' (string) is only in these rows", "mergeSchema"),
        columns="id, 'x' as name",
    ),
    "another type": Case(
        "write",
        ("'id' is bigint in the log and string in these rows", "cast"),
        columns="cast(id as string) as id",
    ),
    "unknown column": Case("read", ("'nme'", "it has id"), columns="nme string"),
    "type that cannot be carried": Case(
        "write",
        ("'c' has type interval year", "cast it"),
        {"path": "{folder}/new"},
        columns="id, interval '1' year as c",
    ),
    "path that is a file": Case(
        "write", ("file is in the way", "another path"), {"path": "{folder}/file"}
    ),
    "reading a path that is a file": Case(
        "read", ("file is in the way", "another path"), {"path": "{folder}/file"}
    ),
    "unsupported scheme": Case(
        "write", ("hdfs is no supported store", "s3://"), {"path": "hdfs://host/wal"}
    ),
    "bucket left out": Case(
        "write", ("names no bucket", "s3://bucket/folder"), {"path": "s3:///wal"}
    ),
    "directory bucket": Case(
        "write",
        ("--x-s3", "order"),
        {"path": "s3://logs--euw1-az1--x-s3/wal", "region": "eu-west-1"},
    ),
    "no log there": Case(
        "read", ("there is no log at", "check the path"), {"path": "{folder}/nothing"}
    ),
    "position after the end": Case(
        "read", ("startingPosition 99", "next position is 2"), {"startingPosition": 99}
    ),
    "end after the end": Case(
        "read", ("endingPosition 99", "last position is 1"), {"endingPosition": 99}
    ),
    "end before start": Case(
        "read",
        ("endingPosition 1 lies before startingPosition 2",),
        {"startingPosition": 2, "endingPosition": 1},
    ),
    "two starts": Case(
        "read",
        ("startingPosition and startingTimestamp", "one of them"),
        {"startingPosition": 1, "startingTimestamp": 5},
    ),
    "stop without checksums": Case(
        "read",
        ("onCorruption=stop needs verifyChecksums=true",),
        {"onCorruption": "stop", "verifyChecksums": False},
    ),
    "key without its secret": Case(
        "write", ("accessKeyId and secretAccessKey go together",), {"accessKeyId": SECRET}
    ),
    "token alone": Case("write", ("sessionToken needs",), {"sessionToken": SECRET}),
    "profile and key": Case(
        "write",
        ("profile and accessKeyId", "one of them"),
        {"profile": "me", "accessKeyId": "a", "secretAccessKey": SECRET},
    ),
    "endpoint that is no URL": Case("write", ("endpoint", "http"), {"endpoint": "localhost:9000"}),
    "no columns": Case(
        "write", ("no columns", "at least one"), {"path": "{folder}/new"}, columns=""
    ),
    "a column of nulls only": Case(
        "write",
        ("column 'n' has type void", "cast"),
        {"path": "{folder}/new"},
        columns="id, null as n",
    ),
    "nulls only inside a column": Case(
        "write",
        ("column 'c.element' has type void",),
        {"path": "{folder}/new"},
        columns="id, array() as c",
    ),
    "a collation": Case(
        "write",
        ("column 'c' has the collation UTF8_LCASE", "c collate UTF8_BINARY"),
        {"path": "{folder}/new"},
        columns="id, 'x' collate UTF8_LCASE as c",
    ),
    "structs deeper than Arrow writes them": Case(
        "write",
        ("column 'c' is nested 65 levels deep", "64"),
        {"path": "{folder}/new"},
        columns="id, " + "named_struct('a'," * 64 + "1" + ")" * 64 + " as c",
    ),
    "names that differ only in case": Case(
        "write",
        ("'id' and 'ID' differ only in case",),
        {"path": "{folder}/new"},
        columns="id, id as ID",
    ),
    "names inside a column that differ only in case": Case(
        "write",
        ("'c.a' and 'c.A' differ only in case",),
        {"path": "{folder}/new"},
        columns="id, named_struct('a',1,'A',2) as c",
    ),
    "a transaction named as an anonymous append": Case(
        "write",
        ("txnAppId must not begin with 'append:'",),
        {"txnAppId": "append:x", "txnVersion": 1},
    ),
    "a transaction beyond 63 bits": Case(
        "write",
        ("txnVersion is '9223372036854775808'", "63 bits"),
        {"txnAppId": "x", "txnVersion": 2**63},
    ),
    "progress tracked asynchronously": Case(
        "stream",
        ("asynchronous progress tracking", "remove the option"),
        {
            "asyncProgressTrackingEnabled": True,
            "_asyncProgressTrackingOverrideSinkSupportCheck": True,
        },
    ),
    "half a transaction": Case(
        "write", ("txnAppId and txnVersion go together",), {"txnAppId": "nightly"}
    ),
    "a transaction for a stream": Case(
        "stream", ("are for df.write",), {"txnAppId": "nightly", "txnVersion": 1}
    ),
    "pool below in flight": Case(
        "write", ("targetPoolSize 3 is below maxInFlightRequests 50",), {"targetPoolSize": 3}
    ),
}


def attempt(spark: SparkSession, case: Case, options: dict[str, object], folder: Path) -> None:
    path = options.pop("path")
    if case.does == "read":
        reader = spark.read.format("weaselwal").options(**options)  # type: ignore[arg-type]
        if case.columns != "id":
            reader = reader.schema(case.columns)
        reader.load(str(path)).collect()
    elif case.does in ("write", "overwrite"):
        mode = {"write": "append"}.get(case.does, case.does)
        columns = [column for column in case.columns.split(", ") if column]
        write(spark.range(3).coalesce(1).selectExpr(*columns), path, mode, **options)
    else:
        rows = numbers(spark, 3).selectExpr("value as id")
        rows = rows.groupBy().count() if case.does == "complete" else rows
        writer = rows.writeStream.format("weaselwal").options(**options)  # type: ignore[arg-type]
        writer = writer.outputMode({"stream": "append"}.get(case.does, case.does))
        writer = writer.option("checkpointLocation", str(folder / "cp"))
        writer.start(str(path)).awaitTermination()


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with one commit of a column id, and a file."""
    folder = tmp_path_factory.mktemp("bad-input")
    write(spark.range(3).coalesce(1), folder / "log")
    (folder / "file").write_text("not a folder")
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_answered_by_one_line(
    spark: SparkSession, folder: Path, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    options = {"path": "{folder}/log", **case.options}
    options = {
        name: value.format(folder=folder) if isinstance(value, str) else value
        for name, value in options.items()
    }
    before = objects(folder)
    shown = refused(lambda: attempt(spark, case, options, tmp_path))
    assert_one_error(shown, case.kind, *case.says)
    assert SECRET not in shown
    assert objects(folder) == before


def test_a_table_that_is_created_past_pyspark_is_refused_by_the_source(
    spark: SparkSession, folder: Path
) -> None:
    """The SQL of spark-sql and of Scala."""
    sql = spark._jsparkSession.sql
    given = f"USING weaselwal OPTIONS (path '{folder}/log')"
    shown = refused(lambda: sql(f"CREATE TABLE refused {given}"))
    assert_one_error(shown, "OptionError", "cannot be a table of the catalog", "TEMPORARY VIEW")
    assert not spark.catalog.tableExists("refused")
    # With columns, Spark does not call the source before the table is used.
    sql(f"CREATE TABLE unread (id bigint) USING weaselwal LOCATION '{folder}/log'")
    before = objects(folder)
    try:
        shown = refused(lambda: spark.table("unread").collect())
        assert_one_error(shown, "OptionError", "option path is missing", "TEMPORARY VIEW")
        shown = refused(lambda: spark.sql("INSERT INTO unread VALUES (1)"))
        assert_one_error(shown, "OptionError", "option path is missing")
    finally:
        spark.sql("DROP TABLE unread")
    assert objects(folder) == before
    # Spark keeps the path of this one to itself.
    create = f"CREATE TABLE refused USING weaselwal OPTIONS (path '{folder}/as-table')"
    shown = refused(lambda: sql(f"{create} AS SELECT 1L AS id"))
    assert_one_error(shown, "OptionError", "TEMPORARY VIEW")
    assert not spark.catalog.tableExists("refused")
    assert not (folder / "as-table").exists()


def _writer(frame: DataFrame, folder: Path) -> DataFrameWriter:
    return frame.write.format("weaselwal").option("path", f"{folder}/log")


def _stream_into_table(spark: SparkSession, folder: Path) -> None:
    rows = spark.readStream.format("rate").load().writeStream.format("weaselwal")
    rows = rows.option("path", f"{folder}/log").option("checkpointLocation", f"{folder}/cp")
    rows.trigger(availableNow=True).toTable("refused").stop()


@pytest.mark.parametrize(
    "create",
    [
        lambda spark, folder: _writer(spark.range(3), folder).saveAsTable("refused"),
        lambda spark, folder: _writer(spark.range(3), folder).mode("append").saveAsTable("refused"),
        lambda spark, folder: (
            spark.range(3)
            .write.option("path", f"{folder}/log")
            .saveAsTable("refused", format="weaselwal")
        ),
        lambda spark, folder: (
            spark.range(3)
            .writeTo("refused")
            .using("weaselwal")
            .option("path", f"{folder}/log")
            .create()
        ),
        _stream_into_table,
    ],
    ids=["saveAsTable", "append", "format", "writeTo", "toTable"],
)
def test_a_refused_table_leaves_nothing(
    spark: SparkSession, tmp_path: Path, create: Callable[[SparkSession, Path], object]
) -> None:
    with pytest.raises(OptionError, match="cannot be a table of the catalog.* TEMPORARY VIEW"):
        create(spark, tmp_path)
    assert not spark.catalog.tableExists("refused")
    assert not [*tmp_path.iterdir()]


def test_a_table_that_is_created_past_pyspark_is_refused_by_its_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Scala's saveAsTable."""
    shown = refused(lambda: _writer(spark.range(3), tmp_path)._jwrite.saveAsTable("refused"))
    assert_one_error(shown, "OptionError", "cannot be a table of the catalog", "TEMPORARY VIEW")
    assert not spark.catalog.tableExists("refused")
    assert sparkwal.Log(f"{tmp_path}/log").scan().read_all().num_rows == 0


def test_other_formats_become_tables(spark: SparkSession) -> None:
    spark.range(3).write.format("parquet").saveAsTable("others")
    try:
        assert spark.table("others").count() == 3
    finally:
        spark.sql("DROP TABLE others")


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (
            {"path": "s3://no-such-bucket-here/wal"},
            "OptionError",
            ("NoSuchBucket", "create the bucket"),
        ),
        ({"endpoint": "nobody"}, "StoreUnavailableError", ("127.0.0.1",)),
    ],
    ids=["wrong bucket", "nobody listening"],
)
def test_a_store_that_is_not_there_is_one_line_without_secrets(
    spark: SparkSession,
    s3_path: tuple[str, dict[str, str]],
    tmp_path: Path,
    change: dict[str, str],
    kind: str,
    says: tuple[str, ...],
) -> None:
    path, options = s3_path
    options = {**options, "secretAccessKey": SECRET, "sessionToken": SECRET, **change}
    path = options.pop("path", path)
    if options["endpoint"] == "nobody":
        with socket.create_server(("127.0.0.1", 0)) as unused:
            options["endpoint"] = f"http://127.0.0.1:{unused.getsockname()[1]}"
    actions: list[Callable[[], object]] = [
        lambda: write(spark.range(3).coalesce(1), path, **options),
        lambda: read(spark, path, **options),
    ]
    for action in actions:
        shown = refused(action)
        assert_one_error(shown, kind, *says)
        assert SECRET not in shown


def test_a_misspelled_path_in_sql_is_guessed(spark: SparkSession, folder: Path) -> None:
    given = f"USING weaselwal OPTIONS (paht '{folder}/log')"
    shown = refused(lambda: spark.sql(f"CREATE TEMPORARY VIEW misspelled {given}"))
    assert_one_error(shown, "OptionError", "unknown option 'paht'; did you mean 'path'?")
