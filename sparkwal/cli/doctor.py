"""`sparkwal doctor`: why a stream does not run, and what to do: the machine, the store, the log."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

import click

from sparkwal.checkpoints.folder import local_folder, owner_of, query_of
from sparkwal.cli.exit_codes import advice
from sparkwal.cli.flags import (
    as_json,
    key_values,
    takes_log_options,
    takes_sequencer,
    with_flags,
)
from sparkwal.cli.output import print_json
from sparkwal.cli.prove_store import print_line, stores_at, takes_endpoints
from sparkwal.errors import CollectedError, InvalidLogError, OptionError, SparkWalError
from sparkwal.lifecycle import consumers
from sparkwal.lifecycle.policy import MISDATED_MS
from sparkwal.options import spark_versions
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.spark_versions import OLDEST_JAVA, numbers
from sparkwal.protocol import chain
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import LogStore, Store, Transient
from sparkwal.store.conformance.checks import MACHINE
from sparkwal.store.conformance.suite import Trial, prove


@dataclass(frozen=True)
class Line:
    outcome: Literal["ok", "to do", "unknown"]
    about: str
    said: str
    advice: str = ""


# "unknown" is no error: the question was not asked, or got no answer.
ok = partial(Line, "ok")
to_do = partial(Line, "to do")
unknown = partial(Line, "unknown")


def versions(conf: Mapping[str, str]) -> Iterator[Line]:
    # An older one cannot import this.
    yield ok("Python", ".".join(map(str, sys.version_info[:3])))
    yield _library("pyarrow", "18")
    yield _library("botocore", "1.36")
    if _version("deltalake") is None:
        yield unknown("delta-rs", "not installed; Log.current alone needs it (sparkwal[lake])")
    else:
        yield _library("deltalake", "1.6", "1.7")
    pyspark = _version("pyspark")
    if pyspark is None:
        yield unknown("Spark", "not installed here; queries need it: pip install 'sparkwal[spark]'")
        return
    jars = _jars()
    yield _spark(pyspark, jars)
    yield _delta(pyspark, conf, jars)
    yield _java()
    yield _worker(conf)


def settings(
    conf: Mapping[str, str], path: str, given: Mapping[str, str], location: str | None
) -> Iterator[Line]:
    for name in conf:
        if "asyncprogresstracking" in name.lower():
            said = "a restarted query may give a batch id to other rows; the sink refuses it"
            yield to_do("progress tracking", f"{name}: {said}", "remove the option")
    location = location or conf.get("spark.sql.streaming.checkpointLocation")
    yield checkpoint_of(path, given, location)


def _library(name: str, oldest: str, newest: str = "") -> Line:
    found = _version(name)
    advice = f"pip install '{name}>={oldest}" + (f",<{newest}'" if newest else "'")
    if found is None:
        return to_do(name, "not installed", advice)
    if numbers(oldest) <= numbers(found) < numbers(newest or "9999"):
        return ok(name, found)
    return to_do(name, f"{found} is not supported", advice)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _jars() -> list[str]:
    """The names of the jars of the Spark that a session starts here."""
    home = os.environ.get("SPARK_HOME")
    spec = find_spec("pyspark")
    root = home or (os.path.dirname(spec.origin) if spec and spec.origin else "")
    folder = os.path.join(root, "jars")
    return os.listdir(folder) if os.path.isdir(folder) else []


def _spark(pyspark: str, jars: Sequence[str]) -> Line:
    said = f"pyspark {pyspark}"
    if not spark_versions.is_supported(pyspark):
        return to_do("Spark", said, spark_versions.INSTALL)
    cores = (re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar) for jar in jars)
    started = next((match[1] for match in cores if match), pyspark)
    if numbers(started)[:2] != numbers(pyspark)[:2]:
        said += f" starts the Spark {started} of SPARK_HOME, {os.environ.get('SPARK_HOME')}"
        return to_do("Spark", said, f"unset SPARK_HOME, or pip install 'pyspark=={started}'")
    if not spark_versions.is_tried(pyspark):
        newest = spark_versions.text(spark_versions.NEWEST)
        return unknown("Spark", f"{said} is newer than {newest}, the newest that was tried")
    missing = spark_versions.lacks(pyspark)
    return ok("Spark", said + (f"; it lacks {', '.join(missing)}" if missing else ""))


def _delta(pyspark: str, conf: Mapping[str, str], jars: Sequence[str]) -> Line:
    named = " ".join([*jars, conf.get("spark.jars.packages", ""), conf.get("spark.jars", "")])
    # Before 4.1 its name does not say which Spark it is for.
    match = re.search(r"delta-spark_(?:(\d+\.\d+)_)?2\.\d+[-:](\d[\d.]*\d)", named)
    try:
        package = spark_versions.delta_package(pyspark)
    except OptionError as error:
        return unknown("Delta Lake", str(error))
    if match is None:
        said = "no jars of it found; only a session with a Delta table needs them"
        return unknown("Delta Lake", f"{said}: spark.jars.packages={package}")
    made_for, delta = match.groups()
    if made_for and numbers(made_for) != numbers(pyspark)[:2]:
        said = f"{delta} for Spark {made_for}, and this is {pyspark}"
        return to_do("Delta Lake", said, f"spark.jars.packages={package}")
    return ok("Delta Lake", delta)


def _java() -> Line:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    install = f"install a JDK {OLDEST_JAVA} or newer, and let JAVA_HOME name its folder"
    if java is None:
        return to_do("Java", "not found on PATH, and JAVA_HOME is not set", install)
    printed = _run(java, "-version")
    match = re.search(r'version "([\d.]+)', printed)
    if match is None:
        return to_do("Java", f"{java} shows no version: {printed[:200]}", install)
    # What came before 9 calls itself 1.8.
    if numbers(match[1]) < (OLDEST_JAVA,):
        return to_do("Java", f"{java} is version {match[1]}; Spark needs {OLDEST_JAVA}", install)
    return ok("Java", f"version {match[1]} ({java})")


def _worker(conf: Mapping[str, str]) -> Line:
    named = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    said = f"PYSPARK_PYTHON is {named or 'not set: Spark runs python3'}"
    python = shutil.which(named or "python3")
    advice = f"export PYSPARK_PYTHON={sys.executable}"
    if python is None:
        return to_do("workers' Python", f"{said}, which is not there", advice)
    code = "import importlib.util as u, sys; print(u.find_spec('sparkwal') is not None)"
    if not _run(python, "-c", code).startswith("True"):
        return to_do("workers' Python", f"{said}, which does not have sparkwal", advice)
    return ok("workers' Python", f"{said}, and has sparkwal (on this machine)")


def _run(*command: str) -> str:
    """What a program prints, or why it cannot be run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, cwd=os.path.sep
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return done.stdout + done.stderr


def store(stores: Sequence[Store], prefix: str) -> Iterator[Line]:
    """All that a writer needs of a store; a folder is asked less."""
    trial = Trial(rounds=4, threads=8, seed=random.randrange(2**32))
    for each in prove(stores, prefix, trial, MACHINE):
        unanswered = each.outcome == "unknown" and not each.fatal
        line = ok if each.outcome == "ok" else unknown if unanswered else to_do
        yield line(each.check, each.found, each.means)


_IDLE_MS = 5 * 60_000
_MAKE = "sparkwal.checkpoint(path, name) gives a folder, made from the log where it is lost"


def checkpoint_of(path: str, given: Mapping[str, str], location: str | None) -> Line:
    """Where a query keeps its progress, and what that costs."""
    fine, wrong = partial(ok, "checkpoint"), partial(to_do, "checkpoint")
    if location is None:
        return unknown("checkpoint", f"not looked at: give --checkpoint. {_MAKE}")
    folder = local_folder(location)
    if folder is None:
        remote = location.partition(":")[0].lower()
        if remote in ("s3", "s3a", "s3n"):
            return wrong("Spark makes 48 requests a microbatch there", f"use a local one: {_MAKE}")
        return unknown("checkpoint", f"on {remote}://; {_MAKE}")
    nearest = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    if not os.access(nearest, os.W_OK):
        return wrong(f"this user may not write to {nearest}", "use another folder")
    if query_of(folder) is None:
        return fine(f"{folder} holds none yet: the query begins anew. {_MAKE}")
    owner = owner_of(folder)
    log = open_log(from_keywords(SourceOptions, path, given), fail_fast=True)
    if owner is None:
        return fine(f"{folder}, on this machine's disk alone: {_MAKE}")
    if owner.log != log.identity and owner.log_id != _log_id(log):
        said = f"{folder} is of the log {owner.log}, not of {log.identity}"
        return wrong(said, "give the query the folder of its own log")
    return fine(f"{folder}, carried by the log under the name {owner.name!r}")


def _log_id(log: LogStore) -> str | None:
    live = find_head(log).live
    return live.header.log_id if live else None


def look(path: str, given: Mapping[str, str]) -> Iterator[Line]:
    """What a writer or a reader would find. 2 LIST and some GETs; nothing is written."""
    log = open_log(from_keywords(SourceOptions, path, given), fail_fast=True)
    try:
        head = find_head(log, thorough=True)
    except InvalidLogError as error:
        if next_step := advice([str(error)]):
            yield to_do("log", f"damaged: {error}", next_step)
        else:
            yield to_do("log", str(error))
        return
    if head.live is None:
        yield ok("log", f"none at {log.url} yet: the first writer begins it")
        return
    header = head.live.header
    yield ok("log", f"{log.url}, head {head.position}, id {header.log_id}")
    ahead = header.timestamp_ms - time.time_ns() // 1_000_000
    if ahead > MISDATED_MS:
        said = f"the last record is dated {ahead // 60_000} min ahead of this machine"
        yield to_do("clock", said, "set the wrong clock; retention by age waits for that date")
    idle = max(-ahead, 0)
    state = "idle" if idle > _IDLE_MS else "alive"
    yield ok(
        "leader",
        f"{header.leader_id}, term {header.term}, {state}: its last record is "
        f"{idle // 1000} s old, up to {head.in_flight_limit} in flight",
    )
    yield from _life(log, header.log_id, head.gap)


def _life(log: LogStore, log_id: str, gap: int) -> Iterator[Line]:
    try:
        life = chain.look(log, log_id)
        readers = consumers.standing(log, log_id)
    except (InvalidLogError, CollectedError) as error:
        yield to_do("lifecycle", str(error))
        return
    if life is None:
        yield ok("lifecycle", "none: nothing was compacted or collected")
    elif life.is_open:
        age = time.time_ns() // 1_000_000 - life.timestamp_ms
        said = f"positions {life.cut}…{life.to - 1} were promised to the table {age // 1000} s ago"
        if age > _IDLE_MS:
            yield to_do(
                "lifecycle",
                f"suspended: {said} and are not confirmed there",
                "run its compaction again: it goes on, or says what to mend",
            )
        else:
            yield ok("lifecycle", f"{said}; floor {life.floor}")
    else:
        yield ok("lifecycle", f"the table has all below {life.cut}, the floor is {life.floor}")
    for reader, age_ms in readers:
        name, behind = reader.name, gap - reader.position
        if reader.log_id == log_id and age_ms > 24 * 3_600_000 and behind > 0:
            yield to_do(
                "consumer",
                f"{name} has not published for {age_ms // 3_600_000} h, "
                f"{behind:,} positions behind: the floor waits for it",
                "start it again, or forget it if nobody needs it any more",
            )
        else:
            yield ok("consumer", f"{name} is {max(behind, 0):,} positions behind")


@click.command()
@click.argument("path")
@takes_endpoints
@takes_sequencer
@click.option("--checkpoint", metavar="LOCATION", help="The query's checkpointLocation.")
@click.option(
    "--spark-conf",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of Spark, or an option of the query; repeatable.",
)
@takes_log_options(endpoint=False)
@as_json
def command(
    path: str,
    endpoints: tuple[str, ...],
    sequencer: str | None,
    checkpoint: str | None,
    spark_conf: tuple[str, ...],
    given: dict[str, str],
    as_json: bool,
) -> None:
    """Looks at this machine, the credentials, the bucket, every endpoint, the checkpoint and the
    log. Writes small objects under {PATH}/proof/, with a name of its own, and deletes them, also
    after Ctrl-C; fences nobody. What cannot be found out (no permission to ask) is said, and is
    no error. Prints no secret.

    Exit code 0: nothing to do; 1: a line says what.
    """
    conf = key_values(spark_conf, "--spark-conf")
    stores, prefix = stores_at(path, given, endpoints)
    given = with_flags(given, endpoint=endpoints[0] if endpoints else None, sequencer=sequencer)
    lines = []
    where = settings(conf, path, given, checkpoint)
    asked = [versions(conf), where, store(stores, prefix), look(path, given)]
    for line in (line for each in asked for line in _whole(each)):
        lines.append(line)
        if not as_json:
            print_line(line.outcome, line.about, line.said, line.advice)
    left = sum(line.outcome == "to do" for line in lines)
    if as_json:
        print_json({"path": path, "ok": not left, "lines": [asdict(line) for line in lines]})
    else:
        click.echo(f"\n{left} to do" if left else "\nnothing to do")
    if left:
        raise click.exceptions.Exit(1)


def _whole(asked: Iterator[Line]) -> Iterator[Line]:
    """The lines; an error of the library is the last of them."""
    try:
        yield from asked
    except (SparkWalError, Transient) as error:
        yield to_do("error", str(error))
