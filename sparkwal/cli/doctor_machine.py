"""This machine, as a query of Spark needs it: versions, the workers' Python, settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from sparkwal.cli.findings import Line, ok, to_do, unknown
from sparkwal.spark.supported import INSTALL, is_supported

_SECONDS = 30
_JAVA = 17
_WORKER = "import importlib.util as u, sys; print(u.find_spec('sparkwal') is not None)"
_NATIVE = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"  # fmt: skip  # noqa: E501


def versions(conf: Mapping[str, str]) -> Iterator[Line]:
    """Of all that a query needs here."""
    # An older one cannot import this.
    yield ok("Python", ".".join(map(str, sys.version_info[:3])))
    for name, oldest, newest in (("pyarrow", (15,), None), ("botocore", (1, 36), None)):
        yield _library(name, oldest, newest)
    delta = _version("deltalake")
    if delta is None:
        yield unknown("delta-rs", "not installed; Log.current alone needs it (sparkwal[lake])")
    else:
        yield _library("deltalake", (1, 6), (1, 7))
    spark = _version("pyspark")
    if spark is None:
        yield unknown("Spark", "not installed here; queries need it: pip install 'sparkwal[spark]'")
        return
    if is_supported(spark):
        yield ok("Spark", f"pyspark {spark}")
    else:
        yield to_do("Spark", f"pyspark {spark}", INSTALL)
    yield _java()
    yield _worker(conf)


def settings(conf: Mapping[str, str]) -> Iterator[Line]:
    """Of Spark and of the query, as far as they were given."""
    for name in conf:
        if "asyncprogresstracking" in name.lower():
            yield to_do(
                "progress tracking",
                f"{name}: a restarted query may give a batch id to other rows; the sink refuses it",
                "remove the option",
            )
    manager = conf.get("spark.sql.streaming.checkpointFileManagerClass")
    if manager == _NATIVE:
        yield ok("checkpoint files", "written without a process for each of them")


def _library(name: str, oldest: tuple[int, ...], newest: tuple[int, ...] | None) -> Line:
    found = _version(name)
    wanted = f">={_dotted(oldest)}" + (f",<{_dotted(newest)}" if newest else "")
    if found is None:
        return to_do(name, "not installed", f"pip install '{name}{wanted}'")
    numbers = tuple(map(int, re.findall(r"\d+", found)[:3]))
    if numbers < oldest or (newest and numbers >= newest):
        return to_do(name, f"{found} is not supported", f"pip install '{name}{wanted}'")
    return ok(name, found)


def _java() -> Line:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    install = f"install a JDK {_JAVA} or newer, and let JAVA_HOME name its folder"
    if java is None:
        return to_do("Java", "not found on PATH, and JAVA_HOME is not set", install)
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return to_do("Java", f"{java} cannot be run ({type(error).__name__})", install)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if match is None:
        return to_do("Java", f"{java} tells no version", install)
    # What came before 9 calls itself 1.8.
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major < _JAVA:
        return to_do("Java", f"{java} is version {major}; Spark needs {_JAVA}", install)
    return ok("Java", f"version {major} ({java})")


def _worker(conf: Mapping[str, str]) -> Line:
    """The Python that Spark's workers run."""
    setting = conf.get("spark.pyspark.python")
    named = setting or os.environ.get("PYSPARK_PYTHON")
    said = (
        f"PYSPARK_PYTHON is {named}" if named else "PYSPARK_PYTHON is not set: Spark runs python3"
    )
    python = shutil.which(named or "python3")
    advice = f"export PYSPARK_PYTHON={sys.executable}"
    if python is None:
        return to_do("workers' Python", f"{said}, which is not there", advice)
    try:
        done = subprocess.run(
            [python, "-c", _WORKER], capture_output=True, text=True, timeout=_SECONDS, check=False,
            cwd=os.path.sep,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return to_do("workers' Python", f"{said}: {type(error).__name__}", advice)
    if done.stdout.strip() != "True":
        return to_do("workers' Python", f"{said}, which does not have sparkwal", advice)
    return ok("workers' Python", f"{said}, and has sparkwal (on this machine)")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
