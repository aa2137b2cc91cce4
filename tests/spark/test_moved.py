"""A log that was copied to another store, bucket or prefix is the same log there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import CollectedError, InvalidLogError, OptionError
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import log_options, s3_client
from tests.spark.queries import append, follow, numbers, read, values

SCHEMA = pa.schema([("id", pa.int64())])


def upload(folder: Path, url: str, bucket: str, prefix: str) -> None:
    """Copies a log from local disk, names unchanged."""
    client = s3_client(url)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        # Drafts of writes: no part of a log.
        if name.startswith((".tmp/", "proof/")):
            continue
        client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=file.read_bytes())
    client.close()


def copy(url: str, bucket: str, old: str, new: str) -> None:
    """Copies a log to another prefix."""
    client = s3_client(url)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{old}/")
    for entry in (entry for page in pages for entry in page["Contents"]):
        name = entry["Key"].removeprefix(old)
        source = {"Bucket": bucket, "Key": entry["Key"]}
        client.copy_object(Bucket=bucket, Key=new + name, CopySource=source)
    client.close()


def write(path: str, ids: range, **options: object) -> None:
    given = {"maxInFlightRequests": 1, **options}
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **given) as wal:
        assert wal.last_sequence == ids.start - 1
        for n in ids:
            wal.append([{"id": n}]).result()


def ids(path: str, **options: object) -> list[int]:
    found: list[int] = (
        sparkwal.Log(path, **options).scan(columns=["id"]).read_all()["id"].to_pylist()
    )
    return found


def test_a_log_moves_from_a_disk_to_s3_with_all_that_it_has(
    tmp_path: Path, ministack_url: str, s3_bucket: str
) -> None:
    old, new = tmp_path / "log", f"s3://{s3_bucket}/moved/log"
    options = log_options(ministack_url)
    write(str(old), range(10))
    write(str(old), range(3), sequencer="other")
    cursor = _cursor(sparkwal.Log(str(old)))
    write(str(old), range(10, 20))
    size = sum(path.stat().st_size for path in (old / "batches").iterdir())
    floor = sparkwal.Lifecycle(str(old), retainBytes=size * 3 // 4).run_once().floor
    assert 1 < floor < 10
    upload(old, ministack_url, s3_bucket, "moved/log")

    assert sparkwal.verify(new, **options).ok
    assert sparkwal.Log(new, **options).head() == sparkwal.Log(str(old)).head()
    assert ids(new, **options) == ids(str(old))
    assert sparkwal.list_sequencers(new, **options) == ["default", "other"]
    with pytest.raises(CollectedError):
        sparkwal.Log(new, **options).to_pandas(start=floor - 1)

    # The producer continues after its last row, a replay after its last entry.
    write(new, range(20, 25), **options)
    write(new, range(3, 5), sequencer="other", **options)
    assert ids(new, **options)[-6:] == [*range(19, 25)]
    assert ids(new, sequencer="other", **options) == [*range(5)]
    applied = sparkwal.Log(new, **options).replay(cursor)
    assert [n for entry in applied for b in entry.rows for n in b["id"].to_pylist()] == [
        *range(10, 25)
    ]
    assert sparkwal.verify(new, **options).ok
    assert ids(str(old))[-1] == 19


def _cursor(log: sparkwal.Log) -> str:
    replay = log.replay()
    assert len([*replay]) == 10
    return replay.cursor


def test_entries_in_a_journal_reach_the_moved_log(
    tmp_path: Path, ministack_url: str, s3_bucket: str, s3_proxy: S3Proxy
) -> None:
    old, new = f"s3://{s3_bucket}/old", f"s3://{s3_bucket}/new/place"
    away = log_options(s3_proxy.url) | {"maxRetryAttempts": "0", "retryBaseDelayMs": "1"}
    journal = tmp_path / "journal"
    wal = sparkwal.Appender(old, SCHEMA, producer_id="p", journal=journal, **away)
    wal.append([{"id": 0}]).result()
    s3_proxy.faults = [Fault("error", status=503)]
    for n in range(1, 5):
        wal.append([{"id": n}])
    wal.close()
    assert wal.unacknowledged == 4
    copy(ministack_url, s3_bucket, "old", "new/place")

    options = log_options(ministack_url)
    with sparkwal.Appender(new, SCHEMA, producer_id="p", journal=journal, **options) as wal:
        assert wal.last_sequence == 4
        wal.append([{"id": 5}]).result()
    assert ids(new, **options) == [*range(6)]
    assert ids(old, **options) == [0]
    assert sparkwal.verify(new, **options).ok


@pytest.mark.parametrize("oldest_first", [True, False])
def test_a_copy_that_broke_off_is_a_shorter_log_or_none(
    tmp_path: Path, ministack_url: str, s3_bucket: str, oldest_first: bool
) -> None:
    old, new = tmp_path / "log", f"s3://{s3_bucket}/half"
    write(str(old), range(6))
    names = sorted((path.name for path in (old / "batches").iterdir()), reverse=oldest_first)
    client = s3_client(ministack_url)
    for name in names[:4]:
        body = (old / "batches" / name).read_bytes()
        client.put_object(Bucket=s3_bucket, Key=f"half/batches/{name}", Body=body)
    client.close()
    options = log_options(ministack_url)
    assert sparkwal.verify(new, **options).ok is oldest_first
    if oldest_first:
        write(new, range(3, 5), **options)
        assert ids(new, **options) == [*range(5)]
        return
    with pytest.raises((InvalidLogError, OptionError)):
        ids(new, **options)
    with pytest.raises(InvalidLogError, match="the record of position 0 is missing"):
        sparkwal.Appender(new, SCHEMA, producer_id="p", **options)


def test_queries_that_write_and_read_continue_in_the_moved_log(
    spark: SparkSession, tmp_path: Path, ministack_url: str, s3_bucket: str
) -> None:
    old, new = f"s3://{s3_bucket}/a", f"s3://{s3_bucket}/b/c"
    options = log_options(ministack_url)

    def ingest(path: str, machine: str) -> None:
        folder = tmp_path / machine
        place = sparkwal.checkpoint(path, "numbers", folder=folder, **options)
        append(numbers(spark, 10), path, Path(place), **options)

    ingest(old, "one")
    ingest(old, "one")
    first, _ = follow(spark, old, tmp_path / "reader", **options)
    copy(ministack_url, s3_bucket, "a", "b/c")
    # The folder of the old path belongs to another log, so it is rebuilt on each machine.
    ingest(new, "two")
    ingest(new, "two")
    second, _ = follow(spark, new, tmp_path / "reader", **options)
    assert [v for rows in first for v in values(rows)] == [*range(20)]
    assert [v for rows in second for v in values(rows)] == [*range(20, 40)]
    assert values(read(spark, new, **options).collect()) == [*range(40)]
    assert values(read(spark, old, **options).collect()) == [*range(20)]
    assert sparkwal.verify(new, **options).ok
