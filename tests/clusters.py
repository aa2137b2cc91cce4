"""Standalone clusters on this machine: a master and two workers in separate processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from faults.processes import Application

HOME = Path(pyspark.__file__).parent


@contextmanager
def standalone(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of a standalone master with two workers, started from pyspark's own jars.

    Args:
        folder: receives their output, and the executors' working folders below work1 and work2.
        environment: the environment of all, and so of the executors; None for this process's.
    """
    (core,) = (HOME / "jars").glob("spark-core_*.jar")
    version = core.name.split("_")[1].split("-")[0]
    base = os.environ if environment is None else environment
    given = {**base, "SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": version}
    started: list[Application] = []

    def start(name: str, kind: str, *arguments: str) -> Application:
        command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        command += ["-cp", str(HOME / "jars" / "*")]
        command += [f"org.apache.spark.deploy.{kind}", "--port", "0", "--webui-port", "0"]
        command += arguments
        knows = environment is None
        started.append(Application(name, folder, command, folder / "tmp", given, knows=knows))
        return started[-1]

    try:
        head = start("master", "master.Master", "--host", "127.0.0.1")
        found = re.compile(r"Starting Spark master at (spark://\S+)")
        head.wait_for(lambda: bool(found.search(head.errors())), "the master's address")
        url = found.search(head.errors())[1]
        for number in (1, 2):
            # Two hosts, as far as Spark knows: it speculates only across hosts.
            each = ["--host", f"127.0.0.{number}", "-c", "2", "-m", "1g"]
            start(
                f"worker{number}", "worker.Worker", *each, "-d", str(folder / f"work{number}"), url
            )
        yield url
    finally:
        for application in reversed(started):
            application.end()
