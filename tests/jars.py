"""Java programs that tests need: their jars, which Ivy downloads from Maven Central once.

Ivy comes with Spark, and keeps what it downloads in ~/.ivy2.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

import pyspark

from sparkwal.testing.servers import ServerError

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
JAVA = f"{os.environ['JAVA_HOME']}/bin/java" if "JAVA_HOME" in os.environ else "java"
# A short-lived JVM starts sooner without the optimising compiler.
JVM = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


class Module(NamedTuple):
    """Maven's coordinates.

    Attributes:
        classifiers: those of the module's jars that are wanted; "" is the jar without one.
    """

    group: str
    name: str
    version: str
    classifiers: tuple[str, ...] = ("",)


def fetch(
    modules: Sequence[Module], home: Path, *, transitive: bool, without: Sequence[str] = ()
) -> list[str]:
    """Download the jars of these modules and of their dependencies.

    Args:
        home: a folder for Ivy's own files.
        without: groups of Maven that are left out.

    Raises:
        ServerError: Java is missing, or the network is and the jars are not downloaded yet.
    """
    (ivy,) = SPARK_JARS.glob("ivy-*.jar")
    wanted, found = home / "ivy.xml", home / "found"
    text = (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="tests" module="tests"/><dependencies>'
        + "".join(_dependency(module, transitive=transitive) for module in modules)
        + "".join(f"<exclude org={quoteattr(group)}/>" for group in without)
        + "</dependencies></ivy-module>"
    )
    # The result is kept: a JVM takes seconds to look it up.
    known = Path.home() / ".ivy2" / f"sparkwal-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with suppress(FileNotFoundError):
        jars = known.read_text().split(os.pathsep)
        if all(Path(jar).exists() for jar in jars):
            return jars
    wanted.write_text(text)
    known.parent.mkdir(exist_ok=True)
    # One process at a time: all write a download to the same `.part` file.
    with open(known.with_name("sparkwal.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(
            [
                JAVA,
                "-jar",
                str(ivy),
                "-ivy",
                str(wanted),
                "-confs",
                "default",
                "-cachepath",
                str(found),
            ]
        )
    jars = found.read_text().strip().split(os.pathsep)
    found.write_text(os.pathsep.join(jars))
    # Atomically, for concurrent readers.
    shutil.copy(found, mine := known.with_name(f"{known.name}.{os.getpid()}"))
    mine.replace(known)
    return jars


def _dependency(module: Module, *, transitive: bool) -> str:
    jars = "".join(
        f'<artifact name="{module.name}" type="jar" ext="jar"'
        + (f' m:classifier="{classifier}"/>' if classifier else "/>")
        for classifier in module.classifiers
        if module.classifiers != ("",)
    )
    return (
        f'<dependency org="{module.group}" name="{module.name}" rev="{module.version}"'
        f' conf="default" transitive="{str(transitive).lower()}">{jars}</dependency>'
    )


def run(command: Sequence[str]) -> None:
    """Run to the end. Raises ServerError where it cannot be started or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ServerError(f"{command[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        raise ServerError(f"{command[0]} ended with code {done.returncode}:\n{said}")
