"""Spark's classes as a JVM has them once they are loaded, in a file that the next JVM maps: it
starts in half the time of a processor. Run as a program this is the Spark whose classes are kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

# Ours live for seconds: without the optimising compiler they take half the time of a processor.
# What the JVM has to say of an archive that does not fit goes nowhere: it loads classes then.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"


def options() -> str:
    """For SPARK_SUBMIT_OPTS, with the archive; made where there is none for this Java and Spark."""
    from . import jars

    # A JVM takes no archive of another Java, nor one whose jars have another time.
    files = [Path(shutil.which(jars.JAVA) or jars.JAVA).resolve()]
    files += sorted(jars.SPARK_JARS.glob("spark-*.jar"))
    known = repr([(str(file), file.stat().st_mtime) for file in files])
    archive = Path(sys.prefix) / f"spark-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"
    with archive.with_name("spark-jsa.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for old in archive.parent.glob("spark-*.jsa*"):
                old.unlink()
            _write(archive)
    return f"{OPTIONS} -XX:SharedArchiveFile={archive}" if archive.exists() else OPTIONS


def _write(archive: Path) -> None:
    unfinished = archive.with_suffix(".jsa-unfinished")
    ran = subprocess.run(
        [sys.executable, "-P", __file__],
        env={
            **os.environ,
            "SPARK_SUBMIT_OPTS": f"{OPTIONS} -XX:ArchiveClassesAtExit={unfinished}",
            "PYSPARK_PYTHON": sys.executable,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode or not unfinished.exists():
        warnings.warn(f"Spark's classes are not kept: {ran.stderr[-500:]}", stacklevel=2)
    else:
        unfinished.rename(archive)


def main() -> None:
    """A query of each kind that most tests begin with."""
    import tempfile

    from pyspark.sql import SparkSession

    import sparkwal

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    sparkwal.register(spark)
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(10).selectExpr("id", "id % 3 AS k", "string(id) AS v")
        rows.groupBy("k").count().collect()
        rows.write.parquet(f"{folder}/rows")
        query = (
            spark.readStream.schema(rows.schema).parquet(f"{folder}/rows")
            .writeStream.format("weaselwal").option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True).start(f"{folder}/wal")
        )  # fmt: skip
        query.awaitTermination()
        spark.read.format("weaselwal").load(f"{folder}/wal").orderBy("id").collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    # It writes the archive as it ends, which takes seconds.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
