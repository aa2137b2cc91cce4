"""A stateful query with the settings that the documentation gives for a checkpoint on S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.options import spark_versions
from tests.capabilities import has
from tests.docs.pages import blocks
from tests.spark.tables.session import s3a

PAGE = "sparkwal/docs/operations.md"
STORE = "https://store.example.com:9000"


def settings() -> dict[str, str]:
    """The settings of the page, by name."""
    (block,) = [block for block in blocks(PAGE, "text") if "fs.s3a.endpoint" in block.text]
    return dict(line.split(maxsplit=1) for line in block.text.splitlines())


@pytest.fixture
def checkpoint(delta: SparkSession, ministack_url: str, s3_bucket: str) -> Iterator[str]:
    """A checkpoint that the session reaches by the page's settings, and by credentials."""
    given = settings()
    # The page has the jars of the Spark that pip installs.
    newest = spark_versions.text(spark_versions.NEWEST_WITH_DELTA)
    assert given.pop("spark.jars.packages") == spark_versions.hadoop_connector("s3", newest)
    if not has("CHECKPOINTING_PACKAGE"):
        given.pop(FILE_MANAGER)
    names = {name.removeprefix("spark.hadoop."): text for name, text in given.items()}
    names = {name: text.replace(STORE, ministack_url) for name, text in names.items()}
    # The server has no other region than the tests', and takes their credentials only.
    own = {"fs.s3a.endpoint.region", "fs.s3a.access.key", "fs.s3a.secret.key"}
    names |= {name: text for name, text in s3a(ministack_url).items() if name in own}
    conf = delta._jsc.hadoopConfiguration()
    for name, text in names.items():
        conf.set(name, text)
    yield f"s3a://{s3_bucket}/checkpoints/unique"
    for name in names:
        conf.unset(name)


def run(spark: SparkSession, source: Path, log: Path, checkpoint: str) -> None:
    rows = spark.readStream.schema("id BIGINT").json(str(source)).dropDuplicates(["id"])
    writer = rows.writeStream.format("weaselwal").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(str(log)).awaitTermination()


def test_a_stateful_query_restarts_with_the_settings_of_the_page(
    delta: SparkSession, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparkwal.register(delta)
    source, log = tmp_path / "in", tmp_path / "wal"
    source.mkdir()
    for number, ids in enumerate(([1, 2], [2, 3], [1, 3, 4])):
        text = "\n".join(f'{{"id": {n}}}' for n in ids)
        (source / f"{number}.json").write_text(text)
        # The machine's disk holds no file of the query.
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"state-{number}"))
        run(delta, source, log, checkpoint)
    assert sorted(sparkwal.Log(str(log)).to_pandas()["id"]) == [1, 2, 3, 4]
