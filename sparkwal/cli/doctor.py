"""`sparkwal doctor`: check why a stream does not run: the machine, the store and the log."""

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
from sparkwal.format.consumer_record import Consumer
from sparkwal.lifecycle.consumers.readers import look_at_readers
from sparkwal.lifecycle.policy import MISDATED_MS
from sparkwal.options import spark_versions
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.spark_versions import OLDEST_JAVA, numbers
from sparkwal.protocol import chain
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import LogStore, Refusal, Store, Transient
from sparkwal.store.conformance.checks import MACHINE
from sparkwal.store.conformance.suite import Trial, prove


@dataclass(frozen=True)
class Line:
    """One finding.

    Attributes:
        outcome: "unknown" is no error: the check was not possible.
        about: the thing that was checked.
        said: the finding.
        advice: what to do.
    """

    outcome: Literal["ok", "to do", "unknown"]
    about: str
    said: str
    advice: str = ""


ok = partial(Line, "ok")
to_do = partial(Line, "to do")
unknown = partial(Line, "unknown")


def versions(conf: Mapping[str, str]) -> Iterator[Line]:
    """Check the versions of Python, libraries, Spark and Java, with these settings of Spark."""
    # sparkwal cannot be imported with an older Python.
    yield ok("Python", ".".join(map(str, sys.version_info[:3])))
    yield _library("pyarrow", "18")
    yield _library("botocore", "1.36", "2")
    if _version("deltalake") is None:
        yield unknown("delta-rs", "not installed; only Log.current needs it (the extra `lake`)")
    else:
        yield _library("deltalake", "1.6", "1.7")
    pyspark = _version("pyspark")
    if pyspark is None:
        yield unknown("Spark", f"not installed here; queries need it: {spark_versions.INSTALL}")
        return
    jars = _jars()
    yield _spark(pyspark, jars)
    yield _delta(pyspark, conf, jars)
    yield _java()
    yield _worker(conf)


def settings(
    conf: Mapping[str, str], path: str, log_options: Mapping[str, str], location: str | None
) -> Iterator[Line]:
    """Check the settings of the query and its checkpoint."""
    for name in conf:
        if "asyncprogresstracking" in name.lower():
            finding = "a restarted query may reuse a batch id for other rows; the sink refuses it"
            yield to_do("progress tracking", f"{name}: {finding}", "remove the option")
    location = location or conf.get("spark.sql.streaming.checkpointLocation")
    yield checkpoint_of(path, log_options, location)


def _library(name: str, oldest: str, newest: str = "") -> Line:
    installed = _version(name)
    advice = f"pip install '{name}>={oldest}" + (f",<{newest}'" if newest else "'")
    if installed is None:
        return to_do(name, "not installed", advice)
    if numbers(oldest) <= numbers(installed) < numbers(newest or "9999"):
        return ok(name, installed)
    return to_do(name, f"{installed} is not supported", advice)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _jars() -> list[str]:
    """The names of the jars of the Spark that a session on this machine starts."""
    home = os.environ.get("SPARK_HOME")
    spec = find_spec("pyspark")
    root = home or (os.path.dirname(spec.origin) if spec and spec.origin else "")
    folder = os.path.join(root, "jars")
    return os.listdir(folder) if os.path.isdir(folder) else []


def _spark(pyspark: str, jars: Sequence[str]) -> Line:
    finding = f"pyspark {pyspark}"
    if not spark_versions.is_supported(pyspark):
        return to_do("Spark", finding, spark_versions.INSTALL)
    cores = (re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar) for jar in jars)
    started = next((match[1] for match in cores if match), pyspark)
    if numbers(started)[:2] != numbers(pyspark)[:2]:
        finding += f" starts the Spark {started} of SPARK_HOME, {os.environ.get('SPARK_HOME')}"
        return to_do("Spark", finding, f"unset SPARK_HOME, or pip install 'pyspark=={started}'")
    if not spark_versions.is_tried(pyspark):
        newest = spark_versions.text(spark_versions.NEWEST)
        return unknown("Spark", f"{finding} is newer than {newest}, the newest that was tried")
    missing = spark_versions.lacks(pyspark)
    return ok("Spark", finding + (f"; it lacks {', '.join(missing)}" if missing else ""))


def _delta(pyspark: str, conf: Mapping[str, str], jars: Sequence[str]) -> Line:
    names = " ".join([*jars, conf.get("spark.jars.packages", ""), conf.get("spark.jars", "")])
    # Packages of Delta Lake before 4.1 do not contain the version of Spark in their names.
    match = re.search(r"delta-spark_(?:(\d+\.\d+)_)?2\.\d+[-:](\d[\d.]*\d)", names)
    try:
        package = spark_versions.delta_package(pyspark)
    except OptionError as error:
        return unknown("Delta Lake", str(error))
    if match is None:
        finding = "no jars of it; only a session with a Delta table needs them"
        return unknown("Delta Lake", f"{finding}: spark.jars.packages={package}")
    spark, delta = match.groups()
    if spark and numbers(spark) != numbers(pyspark)[:2]:
        finding = f"{delta} for Spark {spark}, and this is {pyspark}"
        return to_do("Delta Lake", finding, f"spark.jars.packages={package}")
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
    # Java 8 prints its version as 1.8.
    if numbers(match[1]) < (OLDEST_JAVA,):
        return to_do("Java", f"{java} is version {match[1]}; Spark needs {OLDEST_JAVA}", install)
    return ok("Java", f"version {match[1]} ({java})")


def _worker(conf: Mapping[str, str]) -> Line:
    configured = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    finding = f"PYSPARK_PYTHON is {configured or 'not set: Spark runs python3'}"
    python = shutil.which(configured or "python3")
    advice = f"export PYSPARK_PYTHON={sys.executable}"
    if python is None:
        return to_do("workers' Python", f"{finding}, which does not exist", advice)
    code = "import importlib.util as u, sys; print(u.find_spec('sparkwal') is not None)"
    if not _run(python, "-c", code).startswith("True"):
        return to_do("workers' Python", f"{finding}, which does not have sparkwal", advice)
    return ok("workers' Python", f"{finding}, and has sparkwal (on this machine)")


def _run(*command: str) -> str:
    """The output of a program, or the name of the error if it cannot run."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, cwd=os.path.sep
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return process.stdout + process.stderr


def store(stores: Sequence[Store], prefix: str) -> Iterator[Line]:
    """Check all that a writer needs of a store. A folder gets fewer checks than S3."""
    trial = Trial(rounds=4, threads=8, seed=random.randrange(2**32))
    for finding in prove(stores, prefix, trial, MACHINE):
        unanswered = finding.outcome == "unknown" and not finding.fatal
        line = ok if finding.outcome == "ok" else unknown if unanswered else to_do
        yield line(finding.check, finding.found, finding.means)


_IDLE_MS = 5 * 60_000
_REBUILD = "sparkwal.checkpoint(path, name) returns a folder and rebuilds it from the log if needed"


def checkpoint_of(path: str, log_options: Mapping[str, str], location: str | None) -> Line:
    """Check the query's checkpoint at a location."""
    fine = partial(ok, "checkpoint")
    wrong = partial(to_do, "checkpoint")
    if location is None:
        return unknown("checkpoint", f"not checked: give --checkpoint. {_REBUILD}")
    folder = local_folder(location)
    if folder is None:
        scheme = location.partition(":")[0].lower()
        if scheme in ("s3", "s3a", "s3n"):
            finding = "Spark makes 48 requests a microbatch there"
            return wrong(finding, f"use a local one: {_REBUILD}")
        return unknown("checkpoint", f"on {scheme}://; {_REBUILD}")
    nearest = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    if not os.access(nearest, os.W_OK):
        return wrong(f"this user may not write to {nearest}", "use another folder")
    if query_of(folder) is None:
        return fine(f"{folder} holds none yet: the query starts from the beginning. {_REBUILD}")
    owner = owner_of(folder)
    log = open_log(from_keywords(SourceOptions, path, log_options), fail_fast=True)
    if owner is None:
        return fine(f"{folder}, only on this machine's disk: {_REBUILD}")
    if owner.log != log.identity and owner.log_id != _log_id(log):
        finding = f"{folder} is of the log {owner.log}, not of {log.identity}"
        return wrong(finding, "give the query the folder of its own log")
    return fine(f"{folder}, also in the log under the name {owner.name!r}")


def _log_id(log: LogStore) -> str | None:
    live = find_head(log).live
    return live.header.log_id if live else None


def check_log(path: str, log_options: Mapping[str, str]) -> Iterator[Line]:
    """Check the log as a writer or a reader would read it: 2 LIST and some GETs, no writes."""
    log = open_log(from_keywords(SourceOptions, path, log_options), fail_fast=True)
    try:
        head = find_head(log, thorough=True)
    except InvalidLogError as error:
        if next_step := advice([str(error)]):
            yield to_do("log", f"damaged: {error}", next_step)
        else:
            yield to_do("log", str(error))
        return
    if head.live is None:
        yield ok("log", f"none at {log.url} yet: the first writer creates it")
        return
    header = head.live.header
    yield ok("log", f"{log.url}, head {head.position}, id {header.log_id}")
    for torn in head.torn:
        yield ok("torn record", f"{torn.name}: the next writer continues after it")
    ahead = header.timestamp_ms - time.time_ns() // 1_000_000
    if ahead > MISDATED_MS:
        finding = f"the last record is dated {ahead // 60_000} min ahead of this machine"
        yield to_do("clock", finding, "set the wrong clock; retention by age waits for that date")
    idle = max(-ahead, 0)
    state = "idle" if idle > _IDLE_MS else "alive"
    yield ok(
        "leader",
        f"{header.leader_id}, term {header.term}, {state}: its last record is "
        f"{idle // 1000} s old, up to {head.in_flight_limit} in flight",
    )
    yield from _life(log, header.log_id, head.gap)


def _life(log: LogStore, log_id: str, gap: int) -> Iterator[Line]:
    readers: list[tuple[Consumer, int]] | InvalidLogError = []
    try:
        record = chain.newest_record(log)
        try:
            (readers,) = look_at_readers([log]).with_ages([(log, log_id)])
        except Refusal as refusal:
            yield unknown("consumer", str(refusal))
        if isinstance(readers, InvalidLogError):
            raise readers
    except (InvalidLogError, CollectedError) as error:
        yield to_do("lifecycle", str(error))
        return
    life = record.log(log.name, log_id) if record else None
    if record is None or life is None:
        yield ok("lifecycle", "none: nothing was compacted or collected")
    elif life.is_open:
        age = time.time_ns() // 1_000_000 - record.timestamp_ms
        what = "refused rows" if life.again else f"positions {life.cut}…{life.to - 1}"
        promised = f"{what} were promised to the table"
        finding = f"{promised} {age // 1000} s ago"
        if age > _IDLE_MS:
            yield to_do(
                "lifecycle",
                f"suspended: {finding} and are not confirmed",
                "run the compaction again: it continues, or names what to mend",
            )
        else:
            yield ok("lifecycle", f"{finding}; floor {life.floor}")
    else:
        yield ok("lifecycle", f"the table has all below {life.cut}, the floor is {life.floor}")
    for reader, age_ms in readers:
        own = reader.logs[log.name]
        behind = gap - own.position
        if own.log_id == log_id and age_ms > 24 * 3_600_000 and behind > 0:
            yield to_do(
                "consumer",
                f"{reader.name} has not published for {age_ms // 3_600_000} h, "
                f"{behind:,} positions behind: the floor waits for it",
                "start it again, or forget it if it is no longer needed",
            )
        else:
            yield ok("consumer", f"{reader.name} is {max(behind, 0):,} positions behind")


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
    log_options: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """This checks the machine, the credentials, the bucket, every endpoint, the checkpoint and the
    log. It writes small objects under {PATH}/proof/ and deletes them, also after Ctrl-C. It fences
    no writer. A check without permission is reported as unknown and is no error. The output
    contains no secret.

    Exit code 0: nothing to do; 1: at least one line has advice.
    """
    conf = key_values(spark_conf, "--spark-conf")
    stores, prefix = stores_at(path, log_options, endpoints)
    log_options = with_flags(
        log_options, endpoint=endpoints[0] if endpoints else None, sequencer=sequencer
    )
    lines = []
    checks = [
        versions(conf),
        settings(conf, path, log_options, checkpoint),
        store(stores, prefix),
        check_log(path, log_options),
    ]
    for line in (line for check in checks for line in _errors_as_lines(check)):
        lines.append(line)
        if not as_json:
            print_line(line.outcome, line.about, line.said, line.advice)
    count = sum(line.outcome == "to do" for line in lines)
    if as_json:
        print_json({"path": path, "ok": not count, "lines": [asdict(line) for line in lines]})
    else:
        click.echo(f"\n{count} to do" if count else "\nnothing to do")
    if count:
        raise click.exceptions.Exit(1)


def _errors_as_lines(lines: Iterator[Line]) -> Iterator[Line]:
    """The lines of a check. An error of the library ends them and becomes the last line."""
    try:
        yield from lines
    except (SparkWalError, Transient) as error:
        yield to_do("error", str(error))
