"""The error of an executor whose Python has pyspark and lacks sparkwal."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import sparkwal
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.spark.datasource import WeaselWalDataSource
from sparkwal.spark.sink import BatchWriter, StreamWriter
from sparkwal.spark.source import BatchReader, StreamReader
from sparkwal.spark.unpickling import shorten_collections

SCHEMA = StructType([StructField("id", LongType())])

KINDS = [BatchWriter, StreamWriter, BatchReader, StreamReader, WeaselWalDataSource]
EXECUTOR = """
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "sparkwal":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
sys.meta_path.insert(0, Absent())
from pyspark.serializers import CPickleSerializer
CPickleSerializer().loads(sys.stdin.buffer.read())
"""


def made(kind: type, folder: Path) -> object:
    path = {"path": str(folder)}
    if kind is BatchWriter:
        return BatchWriter(parse(SinkOptions, path), SCHEMA)
    if kind is StreamWriter:
        return StreamWriter(parse(SinkOptions, path), SCHEMA, str(folder / "cp"))
    if kind is WeaselWalDataSource:
        return kind.with_parallelism(4)(path)
    return kind(parse(SourceOptions, path), SCHEMA)


@pytest.mark.parametrize("kind", KINDS)
def test_a_python_without_sparkwal_raises_one_sentence(
    kind: type, tmp_path: Path, spark: SparkSession
) -> None:
    pickled = CPickleSerializer().dumps(made(kind, tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", EXECUTOR],
        input=pickled,
        capture_output=True,
        env={"PYTHONPATH": str(Path(pyspark.__file__).parents[1])},
    )
    lines = run.stderr.decode().splitlines()
    assert lines[-1].startswith(
        f"ModuleNotFoundError: sparkwal is missing in this executor's Python, {sys.executable} on "
    )
    assert len(lines) == 1
    # With sparkwal installed, loading works as before.
    assert isinstance(CPickleSerializer().loads(pickled), kind)


def test_the_sentence_adds_little_to_what_travels(tmp_path: Path) -> None:
    reader = made(BatchReader, tmp_path)
    state = pickle.dumps(reader.__getstate__())
    assert len(CPickleSerializer().dumps(reader)) - len(state) < 1600


@pytest.fixture
def loaded() -> Iterator[list[object]]:
    """As many objects as libraries have that a worker loads."""
    yield [[] for _ in range(20_000)]
    gc.unfreeze()


def collected(loaded: list[object]) -> bool:
    """Whether the garbage collector goes through these objects."""
    found = {id(each) for each in gc.get_objects()}
    return any(id(each) in found for each in loaded)


def test_collections_in_a_worker_pass_over_what_its_first_task_loaded(
    loaded: list[object], tmp_path: Path
) -> None:
    pickled = CPickleSerializer().dumps(made(WeaselWalDataSource, tmp_path))
    assert collected(loaded)
    CPickleSerializer().loads(pickled)
    assert not collected(loaded)


def test_collections_in_a_planner_pass_over_what_it_loaded(
    loaded: list[object], tmp_path: Path, spark: SparkSession
) -> None:
    CPickleSerializer().dumps(made(StreamWriter, tmp_path))
    assert not collected(loaded)


def test_what_tasks_leave_is_still_collected(loaded: list[object]) -> None:
    class Cycle:
        own: object

    shorten_collections()
    passed_over = gc.get_freeze_count()
    cycle = Cycle()
    cycle.own = cycle
    left = weakref.ref(cycle)
    del cycle
    # The next task of the worker: few objects are new.
    shorten_collections()
    assert gc.get_freeze_count() <= passed_over
    gc.collect()
    assert left() is None


CLUSTER = """
import sys
from pyspark.sql import SparkSession
import sparkwal
spark = (SparkSession.builder.master("local-cluster[1,1,1024]")
         .config("spark.executorEnv.IS_EXECUTOR", "1").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.task.maxFailures", "1")
         .getOrCreate())
spark.sparkContext.setLogLevel("OFF")
sparkwal.register(spark)
written = spark.range(3).coalesce(1).write.format("weaselwal").mode("append")
read = spark.read.format("weaselwal").load(sys.argv[1])
for use in (lambda: written.save(sys.argv[1]), lambda: read.collect()):
    try:
        use()
    except Exception as error:
        print("FAILED", error)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_an_executor_without_sparkwal_fails_its_tasks_with_one_sentence(tmp_path: Path) -> None:
    log, site = tmp_path / "log", tmp_path / "site"
    with sparkwal.Appender(str(log), pa.schema([("id", pa.int64())]), producer_id="p") as wal:
        wal.append([{"id": 1}])
    # Everything that is installed here but sparkwal.
    site.mkdir()
    for package in Path(pyspark.__file__).parents[1].iterdir():
        if "sparkwal" not in package.name and "weaselwal" not in package.name:
            (site / package.name).symlink_to(package)
    # Spark takes the driver's path of Python for its executors, whose machines have their own.
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'[ -z "$IS_EXECUTOR" ] || PYTHONPATH={site} exec {sys._base_executable} "$@"\n'
        f'PYTHONPATH={Path(sparkwal.__file__).parents[1]} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    ran = {name: text for name, text in os.environ.items() if "SPARK" not in name}
    ran.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(python), "-P", "-c", CLUSTER, str(log)],
        cwd=tmp_path,
        env={**ran, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    failures = done.stdout.split("FAILED")[1:]
    assert len(failures) == 2, done.stdout + done.stderr
    for failure in failures:
        assert "sparkwal is missing in this executor's Python, " in failure
        assert "Traceback" not in failure
