"""Spark's classes as a JVM has them once they are loaded, in a file that the next JVM maps: it
starts in half the time of a processor. Run as a program this is the Spark whose classes are kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkwal.options import spark_versions

# Ours live for seconds: without the optimising compiler they take half the time of a processor,
# and with room for its classes and its garbage a JVM seldom stops to look for what it can drop.
# A JVM that lives longer would fill 48 MB of compiled code, then drop most of it and interpret.
# What the JVM has to say of an archive that does not fit goes nowhere: it loads classes then.
OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -Xmn256m"
    " -XX:CompileThresholdScaling=3 -XX:ReservedCodeCacheSize=240m"
    " -Xlog:disable -Xlog:all=error:stderr"
)
# Google's connector for gs://, whose other jar has libraries that Spark has in other versions.
GOOGLE = ("com.google.cloud.bigdataoss", "gcs-connector", "3.1.3", ("shaded",))
DELTA = {
    **spark_versions.DELTA_SETTINGS,
    # For some rows Spark would take longer to plan and to compile than to go through them.
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "1",
    # It would compute a table anew after each commit, to compare it with its checksum.
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.databricks.delta.stateReconstructionValidation.enabled": "false",
    # VACUUM would list and delete in 10,000 tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


# The JVM starts its Pythons with pyspark in a zip, where none keeps what it compiled: for each of
# a dozen processes half a second. The same files are installed beside it. And Spark imports a
# worker's modules after each fork. Here the daemon imports them once, before it forks.
PLAIN_FILES = """\
import sys; sys.path[:] = [each for each in sys.path if not (each.startswith(sys.prefix) \
and each.endswith(("/python/lib/pyspark.zip", "-src.zip")))]
import sys; sys.orig_argv[1:3] == ["-m", "pyspark.daemon"] and [__import__(each) for each in \
("pyspark.worker", "sparkwal.spark.datasource", "botocore.session", "pyarrow.compute")]
"""


def options() -> str:
    """Options for SPARK_SUBMIT_OPTS with a class archive, made once for this Java and Spark."""
    with _one_at_a_time():
        _import_plain_files()
        return _options()


def with_delta() -> dict[str, str]:
    """The environment of a Spark with Delta Lake and S3A.

    On the class path behind Spark's own, so that the archive still fits, and no Ivy looks for them
    and no session copies them, at each start. An archive with their classes too takes 81 s of a
    processor to make; one JVM of a run would use it.
    """
    with _one_at_a_time():
        return {
            "SPARK_DIST_CLASSPATH": os.pathsep.join(_jars()),
            "SPARK_SUBMIT_OPTS": _options(),
        }


def for_jobs() -> dict[str, str]:
    """The environment of a job: conf/ by other means. As a folder on the class path, where jobs put
    it, no archive fits, and each start takes 5 s more of a processor.
    """
    conf = Path(__file__).parents[1] / "conf"
    logs = f"-Dlog4j2.configurationFile={conf / 'log4j2.properties'}"
    return {
        "SPARK_CONF_DIR": "",  # Spark's own, which is empty
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {conf / 'spark-defaults.conf'} pyspark-shell",
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {logs}",
        "PYSPARK_PYTHON": sys.executable,
    }


def _import_plain_files() -> None:
    place = Path(sysconfig.get_path("purelib"), "sparkwal-tests.pth")
    # Not in a Python that others use too.
    if sys.prefix == sys.base_prefix:
        return
    if not place.exists() or place.read_text() != PLAIN_FILES:
        unfinished = place.with_suffix(".unfinished")
        unfinished.write_text(PLAIN_FILES)
        unfinished.rename(place)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with (Path(sys.prefix) / "spark-jsa.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _options() -> str:
    import jars

    # A JVM takes no archive of another Java, nor one whose jars have another time.
    files = [Path(shutil.which(jars.JAVA) or jars.JAVA).resolve()]
    files += sorted(jars.SPARK_JARS.glob("spark-*.jar"))
    known = OPTIONS + repr([(str(file), file.stat().st_mtime) for file in files])
    digest = hashlib.sha256(known.encode()).hexdigest()[:16]
    archive = Path(sys.prefix) / f"spark-{digest}.jsa"
    if not archive.exists():
        for old in archive.parent.glob("spark-*.jsa*"):
            old.unlink()
        unfinished = archive.with_suffix(".jsa-unfinished")
        submit = f"{OPTIONS} -XX:ArchiveClassesAtExit={unfinished}"
        if _run("classes", SPARK_SUBMIT_OPTS=submit) and unfinished.exists():
            unfinished.rename(archive)
    return f"{OPTIONS} -XX:SharedArchiveFile={archive}" if archive.exists() else OPTIONS


def _jars() -> list[str]:
    """The jars of Delta Lake and of the stores' connectors, which Ivy downloads once."""
    import pyspark

    import jars
    from sparkwal.spark import s3a

    known = Path(sys.prefix) / f"jars-{pyspark.__version__}-{spark_versions.DELTA}.json"
    found = json.loads(known.read_text()) if known.exists() else []
    if not found or not all(Path(jar).exists() for jar in found):
        if not _run("jars", KNOWN=str(known)):
            raise RuntimeError("the jars of Delta Lake are not there")
        found = json.loads(known.read_text())
    with tempfile.TemporaryDirectory() as folder:
        google = jars.fetch([jars.Module(*GOOGLE)], Path(folder), transitive=False)
    return [str(s3a.jar()), *found, *google]


def _run(what: str, **environment: str) -> bool:
    ran = subprocess.run(
        [sys.executable, "-P", __file__, what],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        warnings.warn(f"Spark's {what} are not kept: {ran.stderr[-500:]}", stacklevel=2)
    return ran.returncode == 0


def main(what: str) -> None:
    """A query of each kind that most tests begin with."""
    import pyspark
    from pyspark.sql import SparkSession

    import sparkwal

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    if what == "jars":
        version = pyspark.__version__
        wanted = [spark_versions.delta_package(version)]
        wanted += [spark_versions.hadoop_connector(kind, version) for kind in ("s3", "azure")]
        spark = builder.config("spark.jars.packages", ",".join(wanted)).getOrCreate()
        found = spark.sparkContext.getConf().get("spark.jars", "")
        Path(os.environ["KNOWN"]).write_text(
            json.dumps([jar.removeprefix("file://") for jar in str(found).split(",")])
        )
        return
    spark = builder.getOrCreate()
    sparkwal.register(spark)
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(10).selectExpr("id", "id % 3 AS k", "string(id) AS v")
        rows.groupBy("k").count().collect()
        rows.write.parquet(f"{folder}/rows")
        query = (
            spark.readStream.schema(rows.schema)
            .parquet(f"{folder}/rows")
            .writeStream.format("weaselwal")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{folder}/wal")
        )
        query.awaitTermination()
        spark.read.format("weaselwal").load(f"{folder}/wal").orderBy("id").collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    # It writes the archive as it ends, which takes seconds.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
