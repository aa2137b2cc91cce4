"""Each kind of error as a streaming query shows it: one readable line, first, with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from sparkwal.format import keys
from sparkwal.testing.proxy import Fault, S3Proxy
from tests.spark.queries import (
    append,
    assert_one_error,
    commits,
    error_lines,
    numbers,
    read,
    refused,
    start,
    wait_for,
    write,
)

SECRET = "kQ7vWzLr0SecretNobodyMaySee"
QUICK = {"maxRetryAttempts": "1", "retryBaseDelayMs": "1"}


def shown(query: StreamingQuery) -> str:
    """The error of a query, from exception() and from awaitTermination."""
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    error = query.exception()
    assert isinstance(error, StreamingQueryException)
    (mine,) = error_lines(str(error))
    assert mine.partition("sparkwal.errors")[2] in str(caught.value)
    return str(error)


def assert_readable(text: str, kind: str, *parts: str) -> None:
    """The one line of ours comes within the first three, without frames and secrets."""
    assert_one_error(text, kind, *parts)
    assert any(f"sparkwal.errors.{kind}: " in line for line in text.splitlines()[:3]), text
    assert "Traceback" not in text
    assert SECRET not in text


def endless(spark: SparkSession, path: object, checkpoint: Path, **options: str) -> StreamingQuery:
    """A query that runs until it fails, after its first microbatch."""
    writer = numbers(spark, 10).writeStream.format("weaselwal").options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).start(str(path))
    wait_for(lambda: query.lastProgress is not None or not query.isActive)
    return query


@pytest.fixture
def proxied(s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy) -> tuple[str, dict[str, str]]:
    """A path on S3 and options with a secret and little patience."""
    path, options = s3_path
    given = {**options, **QUICK, "endpoint": s3_proxy.url, "secretAccessKey": SECRET}
    return path, {**given, "sessionToken": f"token-{SECRET}"}


def test_a_wrong_option_is_one_readable_error(spark: SparkSession, tmp_path: Path) -> None:
    query = start(numbers(spark, 10), tmp_path / "log", tmp_path / "cp", batchSizeTreshold="1mb")
    assert_readable(shown(query), "OptionError", "did you mean 'batchSizeThreshold'")


def test_a_fenced_query_ends_with_one_readable_error(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    gate, done = tmp_path / "gate", tmp_path / "done"

    def wait(batches):  # type: ignore[no-untyped-def]
        import time

        gate.touch()
        while not done.exists():
            time.sleep(0.05)
        yield from batches

    rows = numbers(spark, 10)
    query = start(rows.mapInArrow(wait, rows.schema), log, tmp_path / "cp")
    wait_for(lambda: gate.exists() or not query.isActive)
    rows = spark.range(10).selectExpr("current_timestamp() as timestamp", "id as value")
    write(rows, log, takeOver=True)
    done.touch()
    text = shown(query)
    assert_readable(text, "FencedError", "another writer leads", "on host", "holds position 1")
    assert_readable(text, "FencedError", "This writer commits no more", "restart")


def test_a_missing_record_is_one_readable_error(spark: SparkSession, tmp_path: Path) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "cp"
    for _ in range(3):
        append(numbers(spark, 10), log, checkpoint)
    middle = commits(log)[1]
    (log / keys.key("", middle.number)).unlink()
    # The hint of the last run lets a query continue without a look at the log.
    query = start(numbers(spark, 10), log, tmp_path / "other")
    named = (f"the record of position {middle.position} is missing", "restore it")
    assert_readable(shown(query), "InvalidLogError", *named)


def test_a_store_that_fails_is_one_readable_error(
    spark: SparkSession, proxied: tuple[str, dict[str, str]], s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    path, options = proxied
    s3_proxy.faults = [Fault("error", status=503)]
    query = start(numbers(spark, 10), path, tmp_path / "cp", **options)
    assert_readable(
        shown(query), "StoreUnavailableError", "after 2 attempts", "503", "Run it again"
    )


def test_an_endpoint_without_a_server_is_one_readable_error(
    spark: SparkSession, proxied: tuple[str, dict[str, str]], s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    path, options = proxied
    s3_proxy.close()
    query = start(numbers(spark, 10), path, tmp_path / "cp", **options)
    assert_readable(shown(query), "StoreUnavailableError", "nothing answers", "option endpoint")


def test_an_unanswered_commit_is_one_readable_error(
    spark: SparkSession, proxied: tuple[str, dict[str, str]], s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    path, options = proxied
    query = endless(spark, path, tmp_path / "cp", **options)
    # In these windows only the numbers of slots end in 615.
    s3_proxy.faults = [Fault("lost_reply", kind="PUT", key_contains="615")]
    text = shown(query)
    assert_readable(text, "OutcomeUnknownError", "It may be durable", "same checkpoint")


def test_a_missing_log_is_one_readable_error(spark: SparkSession, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    shown = refused(lambda: read(spark, nowhere))
    assert_one_error(shown, "OptionError", "no log at", str(nowhere))
    # As with Spark's own files: a path with a typo is an error and no empty log.
    reader = spark.read.format("weaselwal").schema("value bigint")
    for options in ({}, {"sequencers": "*"}):
        load = reader.options(**options).load
        shown = refused(lambda load=load: load(str(nowhere)).collect())
        assert_one_error(shown, "OptionError", "no log at", str(nowhere), "check the path")
    assert not nowhere.exists()
