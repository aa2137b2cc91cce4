"""Tables on S3: exactly one writer writes each version."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkwal.errors import PlanError
from sparkwal.spark import delta_files
from sparkwal.spark.s3a import LOG_STORE, LOG_STORE_SETTING
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import s3_client
from tests.lifecycle.lakes import Lake, as_set
from tests.spark.tables.session import s3a

DELTAS_OWN = "io.delta.storage.S3SingleDriverLogStore"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class Versions:
    """The versions of one table, written through a LogStore as Delta does."""

    def __init__(self, spark: SparkSession, kind: str, folder: str) -> None:
        jvm = spark._jvm
        assert jvm is not None
        self.jvm, self.folder = jvm, folder
        self.conf = spark._jsc.hadoopConfiguration()
        stores = getattr(getattr(jvm, "org.apache.spark.sql.delta.storage.LogStore$"), "MODULE$")
        context = spark.sparkContext._jsc.sc()
        self.store = stores.createLogStoreWithClassName(kind, context.getConf(), self.conf)
        self.store = self.store.logStoreImpl()

    def put(self, version: int, line: str) -> bool:
        """Whether this writer made the version."""
        path = self.jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{version:020d}.json")
        lines = self.jvm.java.util.ArrayList()
        lines.add(line)
        try:
            self.store.write(path, lines.iterator(), False, self.conf)
        except Exception as error:
            if "FileAlreadyExistsException" not in str(error):
                raise
            return False
        return True

    def read(self, version: int) -> str:
        path = self.jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{version:020d}.json")
        lines = self.store.read(path, self.conf)
        return str(lines.next())


def test_one_of_two_writers_of_a_version_wins(delta: SparkSession, bucket: str) -> None:
    """Each has a separate LogStore, as in two processes: they share no lock."""
    folder = f"s3a://{bucket}/table/_delta_log"
    writers = [Versions(delta, LOG_STORE, folder) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for version in range(10):
            ran = [pool.submit(writers[n].put, version, f"writer {n}") for n in range(2)]
            won = [each.result() for each in ran]
            assert won.count(True) == 1
            assert writers[0].read(version) == f"writer {won.index(True)}"


def test_an_existing_version_with_the_same_bytes_is_our_own(
    delta: SparkSession, bucket: str
) -> None:
    """The answer to a request was lost, and the client sent it again."""
    versions = Versions(delta, LOG_STORE, f"s3a://{bucket}/table/_delta_log")
    assert versions.put(0, "mine")
    assert versions.put(0, "mine")
    assert not versions.put(0, "other")
    assert versions.read(0) == "mine"


@pytest.mark.parametrize(
    "status", [200, *(pytest.param(each, marks=pytest.mark.slow) for each in (202, 204))]
)
def test_an_answer_of_another_server_is_no_version(
    delta: SparkSession, ministack_url: str, s3_bucket: str, status: int
) -> None:
    """S3A takes any 2xx for success, with or without an ETag."""
    with S3Proxy(ministack_url) as proxy:
        conf = delta._jsc.hadoopConfiguration()
        settings = s3a(proxy.url)
        # The settings of this bucket alone.
        for name, value in settings.items():
            conf.set(name.replace("fs.s3a.", f"fs.s3a.bucket.{s3_bucket}."), value)
        versions = Versions(delta, LOG_STORE, f"s3a://{s3_bucket}/table/_delta_log")
        proxy.faults = [Fault("error", kind="PUT", status=status)]
        with pytest.raises(Exception, match="answered the PUT of .*, and it is not there"):
            versions.put(0, "mine")
        proxy.faults = []
        assert versions.put(0, "mine") and versions.read(0) == "mine"


def test_a_part_of_a_version_is_no_other_writers_version(
    delta: SparkSession, bucket: str, ministack_url: str
) -> None:
    versions = Versions(delta, LOG_STORE, f"s3a://{bucket}/table/_delta_log")
    client = s3_client(ministack_url)
    client.put_object(Bucket=bucket, Key=f"table/_delta_log/{0:020d}.json", Body=b"mi")
    with pytest.raises(Exception, match="it is cut off.*delete the file"):
        versions.put(0, "mine")


def test_a_table_on_s3_takes_ranges(delta: SparkSession, tmp_path: Path, bucket: str) -> None:
    folder = f"s3://{bucket}/{uuid.uuid4().hex}"
    log = Lake(tmp_path, "id", spark=delta, schema=SCHEMA, table=folder)
    rows: list[dict[str, Any]] = [{"id": 1, "v": "x"}, {"id": 2, "v": "y"}]
    log.append(rows)
    assert log.carry().version == 1
    log.append([{"id": 1, "v": "z"}])
    assert log.carry().version == 2
    assert as_set(log.rows()) == as_set([{"id": 1, "v": "z"}, {"id": 2, "v": "y"}])


def test_a_log_store_that_may_overwrite_a_version_is_refused(
    delta: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta_files.check_put_if_absent(delta, "s3a://bucket/table")
    for kind in (DELTAS_OWN, "io.delta.storage.GCSLogStore"):
        monkeypatch.setattr(delta_files, "_log_store", lambda *_, kind=kind: kind)
        with pytest.raises(PlanError, match=f"s3a.*{kind}.*{LOG_STORE_SETTING}={LOG_STORE}"):
            delta_files.check_put_if_absent(delta, "s3a://bucket/table")
    monkeypatch.setattr(delta_files, "_log_store", lambda *_: "com.example.TheirLogStore")
    delta_files.check_put_if_absent(delta, "s3a://bucket/table")
