"""How a session comes to know the format: by itself, by `register`, under Spark Connect."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkwal
from sparkwal import events
from sparkwal.errors import OptionError
from sparkwal.events.emitting import Event
from tests.spark.queries import commits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SOURCE = Path(sparkwal.__file__).parent

WITHOUT_REGISTERING = """
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
spark.range(10).coalesce(1).write.format("weaselwal").mode("append").save(path)
print("sum", spark.read.format("weaselwal").load(path).agg({"id": "sum"}).collect()[0][0])
spark.stop()
"""

CONNECT = """
from pyspark.sql import SparkSession
import sparkwal
spark = (SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
sparkwal.register(spark)
sparkwal.register(spark)
spark.range(10).coalesce(1).write.format("weaselwal").mode("append").save(path)
stream = spark.readStream.format("weaselwal").load(path)
query = (stream.writeStream.format("weaselwal").option("checkpointLocation", path + "-cp")
         .trigger(availableNow=True).start(path + "-copy"))
query.awaitTermination()
copied = spark.read.format("weaselwal").load(path + "-copy")
print("sum", type(spark).__module__, copied.agg({"id": "sum"}).collect()[0][0])
declared = spark.read.format("weaselwal").schema("id BIGINT NOT NULL").load(path)
print("nullable", declared.schema["id"].nullable, declared.where("id IS NOT NULL").count())
writer = stream.writeStream.format("weaselwal").option("checkpointLocation", path + "-no")
ways = [
    lambda: writer.trigger(continuous="1 second").start(path + "-no"),
    lambda: spark.range(1).write.partitionBy("id").save(path + "-no", "weaselwal", "append"),
    lambda: spark.sql("CREATE TABLE t (id BIGINT) USING weaselwal LOCATION '" + path + "'"),
    lambda: spark.catalog.createTable("t", path, "weaselwal"),
]
for way in ways:
    try:
        way()
    except sparkwal.errors.OptionError as error:
        print("refused", str(error)[:20])
spark.stop()
"""


def run(script: str, log: Path, pythonpath: list[Path]) -> str:
    """Run a separate Python, and return its output."""
    done = running(script, log, pythonpath)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def running(
    script: str, log: Path, pythonpath: list[Path], **others: str
) -> subprocess.CompletedProcess[str]:
    # Without what the session of the other tests gave its JVM and its workers.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name == "SPARK_SUBMIT_OPTS"
        or not name.startswith(("SPARK_", "PYSPARK_"))
        and name != "PYTHONPATH"
    }
    environment["PYTHONPATH"] = os.pathsep.join(map(str, pythonpath))
    environment["PYSPARK_PYTHON"] = sys.executable
    environment |= others
    return subprocess.run(
        [sys.executable, "-c", f"path = {str(log)!r}\n{script}"],
        cwd=log.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )


def installed(tmp_path: Path) -> list[Path]:
    """A folder to import from, with the top-level module of setup.cfg that Spark looks for."""
    if (SOURCE.parent / "pyspark_weaselwal").exists():
        return [SOURCE.parent]
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "pyspark_weaselwal").symlink_to(SOURCE / "spark" / "pyspark_weaselwal")
    return [tmp_path / "site", SOURCE.parent]


@pytest.mark.slow
def test_spark_finds_the_format_without_registering(tmp_path: Path) -> None:
    assert "sum 45" in run(WITHOUT_REGISTERING, tmp_path / "log", installed(tmp_path))
    assert sum(commit.rows for commit in commits(tmp_path / "log")) == 10


def test_registering_again_is_quiet_and_harmless(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    source = type(spark.dataSource)
    monkeypatch.setattr(source, "register", lambda *given: calls.append(given))
    # Spark warns of each source that replaces one of the same name.
    sparkwal.register(spark)
    assert calls == []


def test_each_session_can_be_registered(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    spark.range(1).write.format("weaselwal").mode("append").save(path)
    # Spark refuses to register what it has found by itself for a session before.
    for session in (spark, spark.newSession(), spark.newSession()):
        sparkwal.register(session)
        sparkwal.register(session)
        assert session.read.format("weaselwal").load(path).count() == 1


def test_a_session_is_registered_while_one_that_knows_the_format_is_active(
    spark: SparkSession,
) -> None:
    assert spark._jvm is not None
    sessions = spark._jvm.org.apache.spark.sql.SparkSession
    before = sessions.getActiveSession()
    try:
        for session in (spark, spark.newSession(), spark.newSession()):
            sparkwal.register(session)
            known = session._jsparkSession.sessionState().dataSourceManager()
            assert known.dataSourceExists("weaselwal")
            sessions.setActiveSession(session._jsparkSession)
            sparkwal.register(spark.newSession())
            assert sessions.getActiveSession().get().equals(session._jsparkSession)
    finally:
        sessions.clearActiveSession()
        if before.isDefined():
            sessions.setActiveSession(before.get())


@pytest.mark.parametrize("version", ["3.5.4", "3.4.0"])
def test_an_older_spark_is_one_sentence(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(OptionError) as refused:
        sparkwal.register(None)  # type: ignore[arg-type]
    assert str(refused.value).startswith(
        f"sparkwal needs Spark 4.0 or newer, pyspark here is {version}"
    )


def test_an_older_spark_finds_no_data_source_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.4")
    monkeypatch.setitem(sys.modules, "sparkwal.spark.datasource", None)
    file = SOURCE.parent / "pyspark_weaselwal" / "__init__.py"
    if not file.exists():
        file = SOURCE / "spark" / "pyspark_weaselwal" / "__init__.py"
    assert "DefaultSource" not in runpy.run_path(str(file))


@pytest.mark.slow
@pytest.mark.usefixtures("connect_port")
def test_spark_connect_writes_and_reads(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    shown = run(CONNECT, tmp_path / "log", [SOURCE.parent])
    assert "sum pyspark.sql.connect.session 45" in shown
    assert "nullable True 10" in shown
    assert shown.count("refused a log ") == 4
    assert not (tmp_path / "log-no").exists()
    assert [commit.rows for commit in commits(tmp_path / "log-copy")] == [10]


NOT_ACTIVATED = """
import sys
from pyspark.sql import SparkSession
import sparkwal
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
sparkwal.register(spark)
spark.range(10).coalesce(1).write.format("weaselwal").mode("append").save(path)
stream = spark.readStream.format("weaselwal").load(path)
folder = sparkwal.checkpoint(path + "-copy", "copy", folder=path + "-cp")
query = (stream.writeStream.format("weaselwal").option("checkpointLocation", folder)
         .trigger(availableNow=True).start(path + "-copy"))
query.awaitTermination()
copied = spark.read.format("weaselwal").load(path + "-copy")
print("sum", copied.agg({"id": "sum"}).collect()[0][0])
spark.stop()
"""


@pytest.mark.slow
def test_an_environment_that_is_not_activated_is_enough(tmp_path: Path) -> None:
    strange = tmp_path / "bin" / "python3"
    strange.parent.mkdir()
    strange.write_text("#!/bin/sh\necho a Python without sparkwal >&2\nexit 1\n")
    strange.chmod(0o755)
    places = os.pathsep.join([str(strange.parent), os.defpath])
    done = running(NOT_ACTIVATED, tmp_path / "log", [SOURCE.parent], PYSPARK_PYTHON="", PATH=places)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "sum 45" in done.stdout
    # The first words of a new user's stream are no warning of ours.
    assert "slow_checkpoint_files" not in done.stderr


@dataclass
class Context:
    """The calls that `register` makes to a cluster's SparkContext."""

    settings: dict[str, str] = field(default_factory=dict)
    master: str = "spark://host:7077"
    pythonExec: str = "python3"

    def getConf(self) -> dict[str, str]:
        return self.settings


def told_of_python(context: Context, monkeypatch: pytest.MonkeyPatch, path: Path) -> list[Event]:
    from sparkwal.spark.registering import _choose_python

    monkeypatch.setenv("PATH", str(path))
    reported: list[Event] = []
    unsubscribe = events.subscribe(reported.append)
    try:
        _choose_python(context)  # type: ignore[arg-type]
    finally:
        unsubscribe()
    return reported


def test_on_a_cluster_another_python_raises_before_any_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    (reported,) = told_of_python(Context(), monkeypatch, tmp_path)
    assert isinstance(reported, events.OtherPython) and "set PYSPARK_PYTHON" in reported.advice
    chosen = Context({"spark.pyspark.python": "/opt/venv/bin/python"})
    assert told_of_python(chosen, monkeypatch, tmp_path) == []
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python3"))
    context = Context()
    assert told_of_python(context, monkeypatch, tmp_path) == []
    assert context.pythonExec == "python3"
    local = Context(master="local[2]")
    assert told_of_python(local, monkeypatch, tmp_path) == []
    assert local.pythonExec == str(tmp_path / "python3")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/venv/bin/python")
    assert told_of_python(Context(), monkeypatch, tmp_path / "none") == []


@dataclass(frozen=True)
class Hadoop:
    """A configuration of Hadoop's, and the classes that its JVM has."""

    classes: frozenset[str] = frozenset()

    def get(self, name: str, default: str) -> str:
        return default

    def getClassByNameOrNull(self, name: str) -> str | None:
        return name if name in self.classes else None


@pytest.mark.parametrize(
    "of_jar",
    [
        "org.apache.hadoop.fs.s3a.S3AFileSystem",  # hadoop-aws
        "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",  # hadoop-azure
        "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",  # gcs-connector
        "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",  # hadoop-gcp
    ],
)
def test_a_session_with_the_jar_of_one_store_may_have_its_checkpoints_there(of_jar: str) -> None:
    from sparkwal.spark.registering import has_only_disks

    assert has_only_disks(Hadoop())
    assert not has_only_disks(Hadoop(frozenset({of_jar})))
