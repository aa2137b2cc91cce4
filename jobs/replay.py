"""A range of a log, to files, Delta Lake or the terminal."""

from __future__ import annotations

try:
    import support.installed  # noqa: F401
except ModuleNotFoundError:
    raise SystemExit(
        "jobs/support cannot be imported: keep that folder beside this file, run Python without "
        "-P, or give it to spark-submit --py-files (sparkwal/docs/deploying.md)"
    ) from None

# isort: split
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sparkwal.cli.exit_codes import Refused, Stopped
from sparkwal.cli.flags import named_or_all, takes_log_options
from sparkwal.cli.output import escape, facts
from sparkwal.errors import CollectedError, SparkWalError
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from support import jvm
from support.cursor import Replayed, replay_from
from support.follow import Meter, Signals, attended, run_query, trigger
from support.session import (
    EXIT_CODES,
    as_exit,
    need_delta,
    need_spark,
    open_log_at,
    start_session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "delta", "json", "csv", "orc", "console", "noop")
NO_OUTPUT = ("console", "noop")
# Rows that --format console prints.
_SHOWN = 20

console = Console(stderr=True)

# Exit codes of a replay with a cursor.
INVALID_ENTRY, COLLECTED = 3, 4
_MORE_EXIT_CODES = """    3  with --cursor: an invalid entry; what is before it is in the output
    4  with --cursor: its position was collected; the log's table has the rows
"""


def _batch(
    spark: SparkSession,
    rows: DataFrame,
    fmt: str,
    output: str | None,
    mode: str,
    meter: Meter,
    signals: Signals,
) -> int:
    """Write what is there; returns the number of rows. Raises Stopped, Refused, Failed."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    def write() -> int:
        if fmt == "console":
            shown = rows.limit(_SHOWN).persist()
            count = shown.count()
            shown.show(_SHOWN, truncate=False)
            return count
        seen = Observation("replay")
        observed = rows.observe(seen, F.count(F.lit(1)).alias("rows"))
        observed.write.format(fmt).mode("append" if fmt == "noop" else mode).save(output)
        return int(seen.get["rows"])

    try:
        # A signal cancels the write at once: a part of the output is of no use.
        return attended(write, meter, signals, spark, 0.0, lambda: "replaying")
    except Stopped:
        console.print("stopped; the output is not complete")
        raise
    except Exception as error:
        raise as_exit(error) from None


def _from_cursor(
    log: str,
    log_options: dict[str, str],
    cursor: Path,
    output: str | None,
    sequencers: str | None,
    columns: str | None,
    metadata: bool,
) -> None:
    """Replay with a cursor. Raises Refused, Failed, Stopped, and Exit after its message."""
    if output is None or "://" in output:
        raise Refused("--cursor needs --output, a folder on a local disk")
    if not cursor.absolute().parent.is_dir():
        raise Refused(f"there is no folder {cursor.absolute().parent} for the cursor's file")
    several: str | list[str] | None = sequencers
    if sequencers not in (None, "*"):
        several = [name.strip() for name in (sequencers or "").split(",")]
    wanted = [name.strip() for name in columns.split(",")] if columns is not None else None
    with Signals() as signals, Meter(console, "replay") as meter:

        def carry_on(done: Replayed) -> bool:
            meter.show(done.rows, f"{done.commits} commits")
            return signals.received is None

        try:
            opened = open_log_at(log, log_options)
            if several is None and not cursor.exists() and opened.head() is None:
                raise Refused(f"there is no log at {log}; check the path")
            if isinstance(several, list) and not cursor.exists():
                for name in several:
                    if open_log_at(log, {**log_options, "sequencer": name}).head() is None:
                        raise Refused(f"there is no log of sequencer {name} at {log}; correct it")
            done = replay_from(opened, cursor, Path(output), several, wanted, metadata, carry_on)
        except CollectedError as error:
            console.print(escape(str(error)), highlight=False, markup=False)
            raise click.exceptions.Exit(COLLECTED) from None
        except (SparkWalError, OSError) as error:
            raise as_exit(error) from None
    console.print(
        f"{done.rows:,} rows of {done.commits:,} commits of {log} to {output}; the next run "
        f"goes on from {cursor}",
        highlight=False,
    )
    if (stop := done.stopped) is not None:
        console.print("The replay stopped at an invalid entry")
        facts(
            {
                "sequencer": stop.sequencer,
                "position": str(stop.position),
                "object": stop.key,
                "what is wrong": stop.reason,
                "positions after it": str(stop.following),
            }
        )
        raise click.exceptions.Exit(INVALID_ENTRY)
    if signals.received is not None:
        raise Stopped(signals.received)


@click.command(epilog=EXIT_CODES.rstrip() + "\n" + _MORE_EXIT_CODES)
@click.option("--log", required=True, help="s3://bucket/prefix, file:///folder or a folder.")
@takes_log_options()
@click.option(
    "--from", "start", type=click.IntRange(0), help="First position.  [default: earliest]"
)
@click.option("--to", "end", type=click.IntRange(0), help="Last position.  [default: the head]")
@click.option("--from-time", help="Commits at or after this time: 2026-01-31T12:00:00Z.")
@click.option("--to-time", help="Commits at or before this time.")
@click.option("--columns", help="Only these, in this order: id,name.")
@click.option("--metadata", is_flag=True, help="Add the _wal_… columns: position, time, writer.")
@click.option(
    "--format",
    "fmt",
    type=click.Choice(FORMATS),
    default="console",
    show_default=True,
    help="delta: a table of Delta Lake, which Spark downloads. noop reads all and keeps nothing.",
)
@click.option("--output", help="Folder or URL to write to.")
@click.option(
    "--mode",
    type=click.Choice(("append", "overwrite", "error")),
    default="error",
    show_default=True,
    help="What to do when the output is there already. A stream appends.",
)
@click.option(
    "--files",
    type=click.IntRange(1),
    help="Write so many files; 1 keeps the log's order from the first row to the last.",
)
@click.option(
    "--cursor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Go on from the cursor in this file, and keep it there; without Spark, as Parquet files.",
)
@click.option(
    "--sequencers",
    metavar="a,b",
    help="Of --cursor: replay these logs under the path in one order.",
)
@click.option(
    "--all", "all_sequencers", is_flag=True, help="With --cursor too: all logs under the path."
)
@click.option("--stream", is_flag=True, help="A stream that goes on where its checkpoint ends.")
@click.option("--checkpoint", help="Of --stream.")
@click.option(
    "--trigger",
    "trigger_given",
    default="available-now",
    show_default=True,
    callback=trigger,
    help='Of --stream: available-now, or an interval such as "5 seconds".',
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Of --stream: seconds a signal waits for the microbatch under way.",
)
def main(
    log: str,
    log_options: dict[str, str],
    start: int | None,
    end: int | None,
    from_time: str | None,
    to_time: str | None,
    columns: str | None,
    metadata: bool,
    fmt: str,
    output: str | None,
    mode: str,
    files: int | None,
    cursor: Path | None,
    sequencers: str | None,
    all_sequencers: bool,
    stream: bool,
    checkpoint: str | None,
    trigger_given: dict[str, Any],
    drain_timeout: float,
) -> None:
    """Replay a range of a log into files, Delta Lake or the terminal.

    Positions and times are inclusive. Without a range: all of the log.

    \b
    python jobs/replay.py --log s3://bucket/wal --from 100 --to 199 \\
        --format parquet --output replayed/

    With --cursor each run goes on after the last: every commit's rows are in the output once,
    in files whose names sort in the order of the replay. It ends at the first invalid entry.

    \b
    python jobs/replay.py --log s3://bucket/wal --cursor wal.cursor \\
        --format parquet --output replayed/
    """
    sequencers = named_or_all(sequencers, all_sequencers=all_sequencers)
    if cursor is not None:
        if fmt != "parquet":
            raise Refused("--cursor writes --format parquet; for Delta Lake use --stream")
        bounds = (start, end, from_time, to_time, files, checkpoint)
        if stream or mode != "error" or any(bound is not None for bound in bounds):
            raise Refused(
                "--cursor goes with --output, --sequencers, --all, --columns and --metadata: it "
                "says itself where to begin, and the end is the log's"
            )
        _from_cursor(log, log_options, cursor, output, sequencers, columns, metadata)
        return
    if sequencers is not None:
        raise Refused("--sequencers and --all are for --cursor; else use --log-option sequencers=*")
    if output is None and fmt not in NO_OUTPUT:
        raise Refused(f"--format {fmt} needs --output")
    if stream:
        if fmt not in NO_OUTPUT and checkpoint is None:
            raise Refused("--stream needs --checkpoint, where the next run goes on")
        if (end, to_time) != (None, None):
            raise Refused("--to and --to-time are for batch replays: a stream has no end")
        if mode == "overwrite":
            raise Refused("--mode overwrite is for batch replays: a stream appends")
        if files is not None:
            raise Refused("--files is for batch replays")
    elif checkpoint is not None:
        raise Refused("--checkpoint is for --stream")
    need_spark()
    if fmt == "delta":
        need_delta()
    asked = {
        "startingPosition": start,
        "endingPosition": end,
        "startingTimestamp": from_time,
        "endingTimestamp": to_time,
        "includeMetadata": "true" if metadata else None,
    }
    log_options.update({name: str(value) for name, value in asked.items() if value is not None})
    try:
        parse(SourceOptions, {**log_options, "path": log})
        if open_log_at(log, log_options).head() is None:
            raise Refused(f"there is no log at {log}; check the path")
    except SparkWalError as error:
        raise as_exit(error) from None
    log_options.setdefault("includeMetadata", str("_wal_" in (columns or "")).lower())

    spark = start_session("sparkwal replay", delta=fmt == "delta")
    try:
        with Signals() as signals, Meter(console, "replay") as meter:
            try:
                reader = spark.readStream if stream else spark.read
                rows = reader.format("weaselwal").options(**log_options).load(log)
                if columns is not None:
                    rows = rows.select(*(name.strip() for name in columns.split(",")))
                if stream:
                    writer = rows.writeStream.format(fmt).outputMode("append")
                    writer = writer.trigger(**trigger_given)
                    if checkpoint is not None:
                        writer = writer.option("checkpointLocation", checkpoint)
                    query = writer.start(output)
                elif files is not None:
                    rows = rows.coalesce(files)
            except Exception as error:
                raise as_exit(error) from None
            if stream:
                count = run_query(query, meter, signals, drain_timeout).rows
            else:
                count = _batch(spark, rows, fmt, output, mode, meter, signals)
    finally:
        jvm.end(spark)
    console.print(f"{count:,} rows of {log}" + (f" to {output}" if output else ""), highlight=False)
    if signals.received is not None:
        raise Stopped(signals.received)


if __name__ == "__main__":
    main()
