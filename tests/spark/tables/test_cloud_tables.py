"""Tables on Azure and on Google Cloud Storage: Azurite and fake-gcs-server are the servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.options.store import StoreOptions
from sparkwal.spark.delta_files import spark_path
from sparkwal.spark.sessions import store_settings
from tests.store import azurite, fake_gcs

SCHEMA = pa.schema([("id", pa.int64()), ("changed", pa.int64()), ("v", pa.string())])
ON_AZURITE = {
    "fs.azure.account.hns.enabled": "false",
    "fs.azure.fns.account.service.type": "BLOB",
    "fs.azure.always.use.https": "false",
    "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
    "fs.azure.ssl.channel.mode": "Default_JSSE",
}

ON_FAKE_GCS = {
    "fs.gs.auth.type": "UNAUTHENTICATED",
    "fs.gs.client.type": "HTTP_API_CLIENT",
    "fs.gs.project.id": "p",
}


@dataclass(frozen=True)
class Place:
    """A folder of a cloud.

    Attributes:
        log, table: how sparkwal and Spark name what is below it.
        options: how the log is reached.
    """

    log: str
    table: str
    options: Any


def configured(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    conf = spark._jsc.hadoopConfiguration()
    for name, text in settings.items():
        conf.set(name, text)
    yield
    for name in settings:
        conf.unset(name)


@pytest.fixture
def azure(delta: SparkSession, azurite_url: str) -> Iterator[Place]:
    container = azurite.new_container(azurite_url)
    host = f"{azurite.ACCOUNT}.dfs.core.windows.net"
    root = f"{container}@{host}"
    reached = {
        f"fs.azure.account.key.{host}": azurite.KEY,
        "fs.azure.abfs.endpoint": azurite_url.partition("://")[2],
    }
    for _ in configured(delta, {**ON_AZURITE, **reached}):
        yield Place(f"abfss://{root}/wal", f"abfs://{root}/table", azurite.options(azurite_url))


@pytest.fixture
def google(delta: SparkSession, fake_gcs_url: str) -> Iterator[Place]:
    root = f"gs://{fake_gcs.new_bucket(fake_gcs_url)}"
    as_in_jobs = {
        name.removeprefix("spark.hadoop."): text
        for name, text in store_settings(root, StoreOptions(root)).items()
    }
    reached = {"fs.gs.storage.root.url": f"{fake_gcs_url}/"}
    for _ in configured(delta, {**as_in_jobs, **ON_FAKE_GCS, **reached}):
        yield Place(f"{root}/wal", f"{root}/table", fake_gcs.options(fake_gcs_url))


def life_of_a_keyed_table(delta: SparkSession, place: Place) -> None:
    """Two ranges with deletes, a read of table and log, a collection and a search."""
    life = sparkwal.Lifecycle(
        place.log,
        spark=delta,
        table=place.table,
        keys=["id"],
        sequence_by="changed",
        delete_when="v = 'gone'",
        **place.options,
    )
    parts: list[list[tuple[int, int, str]]] = [
        [(1, 1, "a"), (2, 1, "b"), (3, 1, "c")],
        [(1, 2, "gone"), (2, 2, "B")],
        [(1, 1, "late"), (4, 1, "d")],
    ]
    with sparkwal.Appender(place.log, SCHEMA, producer_id="p", **place.options) as wal:
        for number, part in enumerate(parts):
            wal.append([dict(zip(SCHEMA.names, row, strict=True)) for row in part]).result()
            if number < 2:
                assert life.run_once(whole=True).compacted
    newest = {(2, "B"), (3, "c"), (4, "d")}
    current = sparkwal.read_current(delta, place.log, **place.options)
    assert {(row["id"], row["v"]) for row in current.collect()} == newest
    read = sparkwal.Log(place.log, **place.options).current().to_arrow()
    assert set(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)) == newest
    assert life.run_once(whole=True).compacted
    table = delta.read.format("delta").load(place.table).select("id", "v")
    assert {tuple(row) for row in table.collect()} == newest


def test_a_keyed_table_on_azure(delta: SparkSession, azure: Place) -> None:
    life_of_a_keyed_table(delta, azure)


def test_a_keyed_table_on_google(delta: SparkSession, google: Place) -> None:
    life_of_a_keyed_table(delta, google)


def test_of_two_creators_of_an_object_on_google_one_fails(
    delta: SparkSession, google: Place
) -> None:
    """Delta commits a version there by such a create."""
    path = delta._jvm.org.apache.hadoop.fs.Path(f"{google.table}/1.json")
    files = path.getFileSystem(delta._jsc.hadoopConfiguration())
    first, second = files.create(path, False), files.create(path, False)
    first.write(bytearray(b"first"))
    first.close()
    second.write(bytearray(b"second"))
    with pytest.raises(Py4JJavaError, match="412"):
        second.close()
    assert files.open(path).readAllBytes() == b"first"


def test_spark_reads_no_az(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"write the table az://c/t as abfss://"):
        spark_path("az://c/t")
