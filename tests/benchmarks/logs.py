"""Many logs under one path: cycles of compaction, reads of all, and what a day of writers costs."""

from __future__ import annotations

import json
import os
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.console import Console

import sparkwal
from benchmarks.measuring import BUCKET, delayed, dollars, numbers, store
from benchmarks.peers import S3A, S3A_AT_BEST
from benchmarks.report import Goal, save, show_goals, table
from sparkwal.cli.main import main as sparkwal_command
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.delta.files import storage_options
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.spark.sessions import packages
from sparkwal.testing.servers import log_options, make_bucket, s3_client
from support.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Requests to this bucket go through a proxy that counts them, and are not timed.
COUNTED = "benchmark-counted"
SCHEMA = pa.schema([("id", pa.int64()), ("payload", pa.string())])
DAY_SECONDS = 86_400
CYCLES_OF_A_DAY = 1440
WRITERS = 1000
# One cycle of two sizes shows what a cycle costs by itself and what each log adds.
_FEW, _MORE = 5, 10
# The appenders of so many logs stay open.
_OPEN = 10

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Target:
    """A new path in one of the two buckets.

    Attributes:
        bucket: the bucket.
        url: the endpoint of the log's requests.
        folder: the folder of logs and table.
        writers: the open appenders of the first logs. A writer that opens again would begin with
            some fifty records.
    """

    bucket: str
    url: str
    folder: str
    writers: dict[int, sparkwal.Appender] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"s3://{self.bucket}/{self.folder}/wal"

    @property
    def table(self) -> str:
        return f"s3a://{self.bucket}/{self.folder}/table"

    @property
    def options(self) -> dict[str, Any]:
        return {**log_options(self.url)}

    def close(self) -> None:
        """Close the appenders."""
        for wal in self.writers.values():
            wal.close()


@dataclass(frozen=True)
class Stores:
    """The store, and the same through a proxy that counts."""

    url: str
    proxy: str

    def new(self, *, is_counted: bool) -> Target:
        folder = uuid.uuid4().hex
        return Target(*((COUNTED, self.proxy) if is_counted else (BUCKET, self.url)), folder)

    def counts(self) -> dict[str, int]:
        """The requests since the last reset, by kind."""
        with urllib.request.urlopen(f"{self.proxy}/__counts") as reply:
            counts: dict[str, int] = json.loads(reply.read())
        return counts

    def reset(self) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.proxy}/__reset", method="POST"))


def _session(stores: Stores) -> SparkSession:
    """Spark as the job of compaction starts it."""
    settings = {**S3A, **S3A_AT_BEST}
    for bucket, endpoint in ((BUCKET, stores.url), (COUNTED, stores.proxy)):
        settings[f"fs.s3a.bucket.{bucket}.endpoint"] = endpoint
    return start_session(
        "sparkwal benchmark",
        delta=True,
        packages=packages("s3a://bucket/table"),
        settings={f"spark.hadoop.{name}": value for name, value in settings.items()},
    )


@contextmanager
def stores() -> Iterator[Stores]:
    with store() as url, delayed(url, 0) as proxy:
        make_bucket(url, COUNTED)
        yield Stores(url, proxy)


def rows_of(log: int, rows: int) -> pa.RecordBatch:
    """Rows with keys that no other log has."""
    ids = range(log * rows, (log + 1) * rows)
    return pa.record_batch([pa.array(ids), [f"{log}-{n}" for n in ids]], schema=SCHEMA)


def append(target: Target, logs: Sequence[int], rows: int, commits: int = 1) -> None:
    """Append commits of so many rows to each of these logs."""

    def one(log: int) -> None:
        wal = target.writers.get(log)
        if wal is None:
            name = f"writer-{log:04d}"
            wal = sparkwal.Appender(
                target.path, SCHEMA, producer_id="benchmark", sequencer=name, **target.options
            )
        for _ in range(commits):
            wal.append(rows_of(log, rows)).result()
        if log < _OPEN:
            target.writers[log] = wal
        else:
            wal.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, logs))


def jvm_seconds(spark: SparkSession) -> float:
    """The CPU time of the JVM so far, of all its threads."""
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    # The name of the process comes first and may have spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def measured(
    stores: Stores,
    targets: Mapping[bool, Target],
    work: Callable[[Target], Any],
    spark: SparkSession | None = None,
) -> dict[str, Any]:
    """Time some work on one path, and count the requests of the same work on another."""
    before = jvm_seconds(spark) if spark else 0
    began = time.perf_counter()
    work(targets[False])
    seconds = time.perf_counter() - began
    jvm = {"jvm": round(jvm_seconds(spark) - before, 2)} if spark else {}
    stores.reset()
    work(targets[True])
    counts = stores.counts()
    total = sum(counts.values())
    return {"seconds": round(seconds, 2), **jvm, "requests": counts, "total": total}


def list_logs(target: Target) -> None:
    sparkwal.list_sequencers(target.path, **target.options)


def status(target: Target) -> None:
    pairs = [f"--log-option={name}={value}" for name, value in target.options.items()]
    with redirect_stdout(StringIO()):
        sparkwal_command(["status", target.path, "--all", "--json", *pairs], standalone_mode=False)


def current(target: Target) -> None:
    sparkwal.Log(target.path, **target.options).current(sequencers="*").to_arrow()


def spark_current(spark: SparkSession, target: Target) -> None:
    sparkwal.read_current(spark, target.path, sequencers="*", **target.options).count()


def versions(target: Target, url: str) -> int:
    """The number of versions of the table."""
    client = s3_client(url)
    prefix = f"{target.folder}/table/_delta_log/"
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=target.bucket, Prefix=prefix)
    names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    return sum(name.endswith(".json") for name in names)


def cycles(
    stores: Stores,
    spark: SparkSession,
    logs: int,
    rows: int,
    keys: Sequence[str],
    targets: Mapping[bool, Target],
) -> dict[str, Any]:
    """Measure a cycle with rows in all logs, one in 10 of them, and one in none."""
    lives = {
        target.bucket: sparkwal.Lifecycle(
            target.path, spark=spark, table=target.table, keys=keys, **target.options
        )
        for target in targets.values()
    }

    def cycle(target: Target) -> None:
        results = lives[target.bucket].run_all(whole=True)
        for result in results.values():
            if not isinstance(result, Run):
                raise result

    results: dict[str, dict[str, Any]] = {}
    before = {target.bucket: versions(target, stores.url) for target in targets.values()}
    for name, changed in (("all", logs), ("ten", min(10, logs)), ("none", 0)):
        if name == "ten":
            for target in targets.values():
                append(target, range(changed), rows)
        results[name] = measured(stores, targets, cycle, spark)
        after = {target.bucket: versions(target, stores.url) for target in targets.values()}
        results[name]["versions"] = after[BUCKET] - before[BUCKET]
        before = after
    return results


def of_one_size(stores: Stores, spark: SparkSession | None, logs: int, rows: int) -> dict[str, Any]:
    """Measure all that is measured for a number of logs."""
    results: dict[str, Any] = {"logs": logs}
    for mode, keys in (("append", ()), ("keys", ("id",))):
        targets = {is_counted: stores.new(is_counted=is_counted) for is_counted in (False, True)}
        for target in targets.values():
            append(target, range(logs), rows)
        if mode == "append":
            works = {"list_sequencers": list_logs, "status": status, "current": current}
            if spark is not None:
                works["read_current"] = partial(spark_current, spark)
            for name, work in works.items():
                results[name] = measured(stores, targets, work)
                console.print(f"{logs} logs, {name}: {results[name]}")
        if spark is not None:
            results[mode] = cycles(stores, spark, logs, rows, keys, targets)
            console.print(f"{logs} logs, {mode}: {results[mode]}")
        for target in targets.values():
            target.close()
        if spark is None:
            break
    return results


def of_a_day(stores: Stores, spark: SparkSession, rows: int, commits: int) -> dict[str, Any]:
    """Count what a day of writers costs that commit once a second and are compacted each minute.

    A minute of few logs and of more shows what each log adds.
    """
    costs: list[Counter[str]] = []
    for logs in (_FEW, _MORE):
        target = stores.new(is_counted=True)
        life = sparkwal.Lifecycle(target.path, spark=spark, table=target.table, **target.options)
        append(target, range(logs), rows, commits)
        life.run_all(whole=True)
        append(target, range(logs), rows, commits)
        stores.reset()
        life.run_all(whole=True)
        costs.append(Counter(stores.counts()))
        target.close()
    few, more = costs
    kinds = sorted({*few, *more})
    of_log = {kind: (more[kind] - few[kind]) / (_MORE - _FEW) for kind in kinds}
    fixed = {kind: few[kind] - _FEW * of_log[kind] for kind in kinds}
    cycle = {kind: max(fixed[kind] + WRITERS * of_log[kind], 0) for kind in kinds}
    compaction = dollars(cycle) * CYCLES_OF_A_DAY
    writer = _of_a_commit(stores, rows)
    delta = _of_a_delta_commit(stores, rows)
    day = WRITERS * DAY_SECONDS
    return {
        "commit": writer,
        "cycle": {kind: round(count) for kind, count in cycle.items()},
        "cycle_of_each_log": of_log,
        "delta_commit": delta,
        "dollars": {
            "commits": round(dollars(writer) * day),
            "compaction": round(compaction),
            "delta": round(dollars(delta) * day),
        },
    }


def _of_a_commit(stores: Stores, rows: int, commits: int = 20) -> dict[str, float]:
    """The requests of one commit of an appender."""
    target = stores.new(is_counted=True)
    with sparkwal.Appender(target.path, SCHEMA, producer_id="benchmark", **target.options) as wal:
        wal.append(rows_of(0, rows)).result()
        stores.reset()
        for _ in range(commits):
            wal.append(rows_of(0, rows)).result()
        return {kind: count / commits for kind, count in stores.counts().items()}


def _of_a_delta_commit(stores: Stores, rows: int, commits: int = 20) -> dict[str, float]:
    """The requests of one commit of delta-rs to its own table, without conflicts."""
    from deltalake import DeltaTable, write_deltalake

    target = stores.new(is_counted=True)
    settings = from_keywords(SourceOptions, target.path, target.options)
    storage = {**storage_options(settings.s3, None), "conditional_put": "etag"}
    url = target.table.replace("s3a:", "s3:")
    write_deltalake(url, pa.table(rows_of(0, rows)), storage_options=storage)
    open_table = DeltaTable(url, storage_options=storage)
    stores.reset()
    for _ in range(commits):
        write_deltalake(open_table, pa.table(rows_of(0, rows)), mode="append")
    return {kind: count / commits for kind, count in stores.counts().items()}


def goals(results: Sequence[Mapping[str, Any]]) -> Iterator[Goal]:
    """The goals for 1,000 logs, and the growth with the number of logs."""
    seconds = {"list_sequencers": 1, "status": 5, "current": 10}
    for one in (one for one in results if one["logs"] == WRITERS):
        for name, most in seconds.items():
            took = one[name]["seconds"]
            yield Goal(f"{name}, 1,000 logs", f"≤ {most} s", f"{took:g} s", took <= most)
        for mode, most in (("append", 60), ("keys", 90)):
            if mode in one:
                took = one[mode]["all"]["seconds"]
                yield Goal(f"a cycle, {mode}", f"≤ {most} s", f"{took:g} s", took <= most)
        if "append" in one:
            every, ten = one["append"]["all"], one["append"]["ten"]
            total = every["total"]
            yield Goal("its requests", "≤ 3,200", f"{total:,}", total <= 3 * WRITERS + 200)
            yield Goal("its versions", "1", str(every["versions"]), every["versions"] <= 2)
            took = ten["seconds"]
            yield Goal("a cycle, 10 logs changed", "≤ 10 s", f"{took:g} s", took <= 10)


def show(results: Mapping[str, Any]) -> None:
    """Print the tables and the goals."""
    sizes = results["sizes"]
    for part in ("list_sequencers", "status", "current", "read_current"):
        lines = [_line(one["logs"], one[part]) for one in sizes if part in one]
        console.print(table(part, ["logs", "s", "requests", "a log", "of them"], lines))
    for mode in ("append", "keys"):
        columns = ["logs, changed", "s", "requests", "a log", "of them", "versions", "JVM s"]
        lines = [
            [*_line(one["logs"], cycle, f", {name}"), cycle["versions"], cycle["jvm"]]
            for one in sizes
            if mode in one
            for name, cycle in one[mode].items()
        ]
        if lines:
            console.print(table(f"A cycle, {mode}", columns, lines))
    if day := results.get("day"):
        costs = day["dollars"]
        lines = [
            ["sparkwal: commits", _kinds(day["commit"]), f"{costs['commits']:,}"],
            ["sparkwal: compaction", _kinds(day["cycle"]) + " a cycle", f"{costs['compaction']:,}"],
            ["Delta, no conflicts", _kinds(day["delta_commit"]), f"{costs['delta']:,}"],
        ]
        title = "A day of 1,000 writers, a commit a second each"
        console.print(table(title, ["", "requests", "$"], lines))
    show_goals(goals(sizes), console)


def _line(logs: int, one: Mapping[str, Any], name: str = "") -> list[object]:
    total = one["total"]
    return [
        f"{logs:,}{name}",
        f"{one['seconds']:g}",
        f"{total:,}",
        f"{total / logs:.2f}",
        _kinds(one["requests"]),
    ]


def _kinds(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{count:,.4g} {kind}" for kind, count in sorted(counts.items())) or "none"


@click.command("logs")
@click.option(
    "--logs",
    default="10,100",
    show_default=True,
    callback=numbers,
    help="How many logs lie under the path, one after another. The goals are for 1,000.",
)
@click.option("--rows", default=10, show_default=True, help="Of each commit.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Also cycles and costs.")
@click.option(
    "--commits",
    default=60,
    show_default=True,
    help="Of each log between two cycles, for the cost of a day.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/logs.json"),
    show_default=True,
)
def main(logs: list[int], rows: int, *, spark: bool, commits: int, output: Path) -> None:
    """Compact and read many logs of one path, and count all requests of the process.

    Times are those of direct requests. The same work on another path is counted by a proxy.
    """
    with stores() as both:
        session = _session(both) if spark else None
        if session is not None:
            # The first cycle of a session loads classes.
            warm = {counted: both.new(is_counted=counted) for counted in (False, True)}
            for target in warm.values():
                append(target, range(2), rows)
            cycles(both, session, 2, rows, (), warm)
            for target in warm.values():
                target.close()
        results: dict[str, Any] = {
            "sizes": [of_one_size(both, session, size, rows) for size in logs]
        }
        if session is not None:
            results["day"] = of_a_day(both, session, rows, commits)
            session.stop()
    show(results)
    save(results, output, console)
