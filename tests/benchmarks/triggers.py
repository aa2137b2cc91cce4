"""A whole trigger with its checkpoint: the user's waiting time and price."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyspark
from rich.console import Console

import sparkwal
from benchmarks.measuring import BUCKET, Bare, delayed, store
from benchmarks.microbatch import PUT_BYTES, Length, Run, requests_of, run_query, seldom_puts
from benchmarks.peers import ABORTABLE, Place, best_bucket, start_session
from benchmarks.report import Goal, save, show_goals, table
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.options.spark_versions import checkpoint_file_manager
from sparkwal.testing.servers import make_bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCAL_FILES = {FILE_MANAGER: checkpoint_file_manager(pyspark.__version__)}
# Spark's own choice for a local checkpoint.
SPARKS_CHOICE = {
    FILE_MANAGER: LOCAL_FILES[FILE_MANAGER].replace("FileSystemBased", "FileContextBased")
}

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Row:
    """One sink with the place of its checkpoint.

    Attributes:
        checkpoint: a folder or URL for the query at that place, which must be fresh; None for the
            one of `run_query`.
        change: makes of the rows those that are written.
    """

    title: str
    peer: str
    checkpoint: Callable[[Place], str] | None
    conf: Mapping[str, str]
    change: Callable[[DataFrame], DataFrame] | None = None


def from_log(place: Place) -> str:
    folder = Path(tempfile.mkdtemp(prefix="sparkwal-benchmark-")) / "checkpoint"
    options: dict[str, Any] = {**place.options}
    return sparkwal.checkpoint(place.s3, "benchmark", folder=folder, **options)


def on_s3(place: Place) -> str:
    return f"{place.s3a}-checkpoint"


def on_s3_at_best(place: Place) -> str:
    return on_s3(place.at_best)


ROWS: Mapping[str, Row] = {
    "sparkwal": Row("sparkwal, checkpoint in the log", "inlined", from_log, LOCAL_FILES),
    "sparkwal-objects": Row(
        "sparkwal, the same, rows as objects", "weaselwal", from_log, LOCAL_FILES
    ),
    "noop": Row("no-op Python sink, disk", "noop", None, LOCAL_FILES),
    "noop-forks": Row("no-op Python sink, disk, Spark's files", "noop", None, SPARKS_CHOICE),
    "jvm-noop": Row("Spark's no-op sink, disk", "jvm-noop", None, LOCAL_FILES),
    "sparkwal-s3a": Row("sparkwal, s3a as installed", "inlined", on_s3, {}),
    "sparkwal-s3a-best": Row("sparkwal, s3a at its best", "inlined", on_s3_at_best, ABORTABLE),
    "parquet": Row("parquet sink, as installed, s3a", "parquet", None, {}),
    "parquet-best": Row("parquet sink, at its best, s3a", "parquet-best", None, {}),
    "delta": Row("Delta sink, as installed, s3a", "delta", None, {}),
    "delta-best": Row("Delta sink, at its best, s3a", "delta-best", None, {}),
}
MEASURED = [name for name in ROWS if name != "noop-forks"]
# The rows of the project's README, and their titles there.
README = {
    "sparkwal": "sparkwal",
    "parquet-best": "Spark's parquet sink, at its best",
    "parquet": "the same, as installed",
    "delta-best": "Delta sink, at its best",
    "delta": "the same, as installed",
}


# Spark's names of the parts of a trigger, in their order.
PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Summarize all runs of one row: medians of medians, and requests of one microbatch."""
    return {
        "trigger_ms": statistics.median(statistics.median(run.trigger_ms) for run in runs),
        "add_batch_ms": statistics.median(statistics.median(run.add_batch_ms) for run in runs),
        "medians_ms": [statistics.median(run.trigger_ms) for run in runs],
        "parts_ms": {
            name: statistics.median(statistics.median(run.ms(name)) for run in runs)
            for name in PARTS
        },
        **requests_of(runs),
    }


def _brief(found: Mapping[str, Any]) -> str:
    each = found["requests_per_microbatch"]
    return f"{found['trigger_ms']:.0f} ms, {each:g} requests: {kinds(found)}"


def kinds(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{n:g} {kind}" for kind, n in found["requests"].items())


def goals(found: Mapping[str, Any], put_ms: float) -> Iterator[Goal]:
    """The goals for the measured rows."""
    ours = found.get("sparkwal")
    if ours is None:
        return
    each, trigger = ours["requests_per_microbatch"], ours["trigger_ms"]
    yield Goal("requests of a whole microbatch", "1", f"{each:g}", each <= 1)
    if objects := found.get("sparkwal-objects"):
        each = objects["requests_per_microbatch"]
        yield Goal("the same, 2 partitions as objects", "3 (P+1)", f"{each:g}", each <= 3)
    for name, wanted in (("parquet-best", 5), ("delta-best", 8)):
        if name in found:
            ratio = found[name]["trigger_ms"] / trigger
            what = f"trigger against {ROWS[name].title}"
            yield Goal(what, f"≤ 1/{wanted}", f"1/{ratio:.1f}", ratio >= wanted)
    if noop := found.get("noop"):
        ratio = trigger / (noop["trigger_ms"] + put_ms)
        what = "trigger against a sink that does nothing, and one PUT"
        yield Goal(what, "≤ 1.2 ×", f"{ratio:.2f} ×", ratio <= 1.2)
        if forks := found.get("noop-forks"):
            ratio = forks["trigger_ms"] / noop["trigger_ms"]
            yield Goal(
                "a checkpoint on disk as Spark writes it, against ours",
                "> 1 ×",
                f"{ratio:.2f} ×",
                ratio > 1,
            )
    cost = ours["dollars_per_million"]
    yield Goal("requests of a million microbatches", "$5.00", f"${cost:.2f}", cost <= 5)


def readme_table(found: Mapping[str, Any]) -> Iterator[str]:
    """The table of the project's README, of the rows that were measured."""
    yield "| sink | trigger (p50) | requests | price of a million triggers |"
    yield "|---|---|---|---|"
    for name, title in README.items():
        if (row := found.get(name)) is not None:
            each, price = row["requests_per_microbatch"], row["dollars_per_million"]
            yield f"| {title} | {row['trigger_ms']:,.0f} ms | {each:.0f} | ${price:,.0f} |"


def measure(
    spark: SparkSession,
    rows: Mapping[str, Row],
    places: Iterator[Place],
    repeats: int,
    length: Length,
) -> dict[str, Any]:
    """All rows in turns."""
    runs: dict[str, list[Run]] = {name: [] for name in rows}
    for turn in range(repeats + 1):
        for name, row in rows.items():
            place = next(places)
            # Once before it counts: the JVM loads its classes.
            few = Length(warm=0, measured=4, least=2, seconds=15)
            run = run_query(
                spark,
                row.peer,
                place,
                length if turn else few,
                checkpoint=row.checkpoint(place) if row.checkpoint else None,
                conf=row.conf,
                change=row.change,
            )
            if turn:
                runs[name].append(run)
                console.print(f"{turn}/{repeats} {row.title}: {_brief(summary([run]))}")
    return {name: summary(found) for name, found in runs.items()}


@click.command("triggers")
@click.option(
    "--latency",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Milliseconds added to every request.",
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--microbatches", type=click.IntRange(1), default=33, show_default=True)
@click.option("--rows", default=",".join(MEASURED), show_default=True, help="Which to measure.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON of it all.")
def main(latency: int, repeats: int, microbatches: int, rows: str, output: Path | None) -> None:
    """Measure whole triggers: 1,000 rows in 2 partitions, all requests of the process counted,
    those for Spark's checkpoint too.

    Every row but the no-op's keeps its checkpoint where the loss of this machine does not
    reach it.
    """
    wanted = [name.strip() for name in rows.split(",")]
    if unknown := set(wanted) - set(ROWS):
        raise click.BadParameter(f"{unknown.pop()!r} is none of {', '.join(ROWS)}")
    before = os.getloadavg()
    with ExitStack() as stack:
        server = stack.enter_context(store())
        make_bucket(server, best_bucket(BUCKET))
        proxy = stack.enter_context(delayed(server, latency))
        peers = [ROWS[name].peer for name in wanted]
        if {"sparkwal-s3a", "sparkwal-s3a-best"} & set(wanted):
            peers.append("parquet")  # its jars reach the checkpoint
        spark = start_session(peers, {BUCKET: proxy})
        stack.callback(spark.stop)
        places = (Place(proxy, BUCKET, f"run-{n}") for n in itertools.count())
        puts = seldom_puts(Bare(proxy, 1, b"x" * PUT_BYTES), 30)
        put_ms = 1000 * statistics.median(puts)
        length = Length(measured=microbatches, seconds=60)
        found = measure(spark, {name: ROWS[name] for name in wanted}, places, repeats, length)
    results = {
        "latency_ms": latency,
        "put_ms": put_ms,
        "load": {"before": before, "after": os.getloadavg()},
        "rows": found,
    }
    if output is not None:
        save(results, output, console)
    title = f"Whole triggers, +{latency} ms; a conditional PUT takes {put_ms:.1f} ms"
    columns = ["", "trigger ms", "addBatch ms", "requests", "of them", "$ per million"]
    lines = [
        (
            ROWS[name].title,
            f"{x['trigger_ms']:.0f}",
            f"{x['add_batch_ms']:.0f}",
            f"{x['requests_per_microbatch']:g}",
            kinds(x),
            f"{x['dollars_per_million']:,.2f}",
        )
        for name, x in found.items()
    ]
    console.print(table(title, columns, lines))
    parts = [
        (ROWS[name].title, *(f"{x['parts_ms'][p]:.0f}" for p in PARTS)) for name, x in found.items()
    ]
    console.print(table("The parts of a trigger, ms", ["", *PARTS], parts))
    show_goals(goals(found, put_ms), console)
    loads = [", ".join(f"{each:.2f}" for each in load) for load in (before, os.getloadavg())]
    console.print(f"load average: {loads[0]} before; {loads[1]} after")
    click.echo("\n".join(readme_table(found)))
