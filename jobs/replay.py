"""Replays a range of a log into files, Delta Lake or the terminal."""

from __future__ import annotations

try:
    import support.installed  # noqa: F401
except ModuleNotFoundError:
    raise SystemExit(
        "jobs/support cannot be imported: keep that folder beside this file, run Python without "
        "-P, or give it to spark-submit --py-files (sparkwal/docs/deploying.md)"
    ) from None

# isort: split
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sparkwal.cli.exit_codes import Refused, Stopped
from sparkwal.cli.flags import named_or_all, options, takes_log_options
from sparkwal.cli.output import facts
from sparkwal.errors import CollectedError, SparkWalError
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.spark import jvm
from support.cursor import Columns, Replayed, replay_from
from support.follow import Meter, Signals, attended, run_query, trigger
from support.session import (
    EXIT_CODES,
    exit_for,
    need_delta,
    need_spark,
    open_log_at,
    start_session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMATS = ("parquet", "delta", "json", "csv", "orc", "console", "noop")
NO_OUTPUT = ("console", "noop")
# The number of rows that --format console prints.
_PRINTED_ROWS = 20

console = Console(stderr=True)

# Exit codes of a replay with a cursor.
INVALID_ENTRY, COLLECTED = 3, 4
_MORE_EXIT_CODES = """    3  with --cursor: an invalid entry; the output has all entries before it
    4  with --cursor: its position was collected; the log's table has the rows
"""


@dataclass(frozen=True)
class Range:
    """The flags of a range, as the options of reading."""

    start: int | None
    end: int | None
    from_time: str | None
    to_time: str | None

    @property
    def is_empty(self) -> bool:
        return all(bound is None for bound in vars(self).values())

    def options(self) -> dict[str, str]:
        """The flags as the options of reading."""
        values = {
            "startingPosition": self.start,
            "endingPosition": self.end,
            "startingTimestamp": self.from_time,
            "endingTimestamp": self.to_time,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Output:
    """The flags of the output.

    Attributes:
        fmt: the format.
        location: a folder or URL.
        mode: what to do if the output exists.
        files: the number of files, or None.
    """

    fmt: str
    location: str | None
    mode: str
    files: int | None


@dataclass(frozen=True)
class CursorFlags:
    """The flags of a replay with a cursor.

    Attributes:
        file: the file of the cursor, or None for a replay without a cursor.
        sequencers: names, "*" or None.
    """

    file: Path | None
    sequencers: str | None


@dataclass(frozen=True)
class StreamFlags:
    """The flags of a replay as a stream.

    Attributes:
        stream: replay as a stream.
        checkpoint: the checkpoint of the stream.
        trigger: keywords for DataStreamWriter.trigger.
        drain_timeout: the seconds for which a signal waits for the running microbatch.
    """

    stream: bool
    checkpoint: str | None
    trigger: dict[str, Any]
    drain_timeout: float


def _write_batch(
    spark: SparkSession, rows: DataFrame, output: Output, meter: Meter, signals: Signals
) -> int:
    """Write rows.

    Returns:
        The number of rows.

    Raises:
        Stopped: a signal came.
        Refused: an option is wrong.
        Failed: the write failed.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    def write() -> int:
        if output.fmt == "console":
            printed = rows.limit(_PRINTED_ROWS).persist()
            count = printed.count()
            printed.show(_PRINTED_ROWS, truncate=False)
            return count
        observation = Observation("replay")
        observed = rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        mode = "append" if output.fmt == "noop" else output.mode
        observed.write.format(output.fmt).mode(mode).save(output.location)
        return int(observation.get["rows"])

    try:
        # A signal cancels the write at once, because an incomplete output is useless.
        return attended(write, meter, signals, spark, 0.0, lambda: "replaying")
    except Stopped:
        console.print("stopped; the output is not complete")
        raise
    except Exception as error:
        raise exit_for(error) from None


def _replay_with_cursor(
    log: str,
    log_options: dict[str, str],
    flags: CursorFlags,
    location: str | None,
    columns: Columns,
) -> None:
    """Replay from a cursor, and print the result.

    Raises:
        Refused: a flag is wrong.
        Failed: the replay failed.
        Stopped: a signal came.
        Exit: the replay stopped at an invalid or collected entry.
    """
    cursor = flags.file
    assert cursor is not None
    if location is None or "://" in location:
        raise Refused("--cursor needs --output, a folder on a local disk")
    if not cursor.absolute().parent.is_dir():
        raise Refused(f"there is no folder {cursor.absolute().parent} for the cursor's file")
    sequencers: str | list[str] | None = flags.sequencers
    if flags.sequencers not in (None, "*"):
        sequencers = [name.strip() for name in (flags.sequencers or "").split(",")]
    with Signals() as signals, Meter(console, "replay") as meter:

        def should_continue(done: Replayed) -> bool:
            meter.show(done.rows, f"{done.commits} commits")
            return signals.received is None

        try:
            opened = open_log_at(log, log_options)
            if sequencers is None and not cursor.exists() and opened.head() is None:
                raise Refused(f"there is no log at {log}; check the path")
            if isinstance(sequencers, list) and not cursor.exists():
                for name in sequencers:
                    if open_log_at(log, {**log_options, "sequencer": name}).head() is None:
                        raise Refused(f"there is no log of sequencer {name} at {log}; correct it")
            done = replay_from(opened, cursor, Path(location), sequencers, columns, should_continue)
        except CollectedError as error:
            console.print(str(error), highlight=False, markup=False)
            raise click.exceptions.Exit(COLLECTED) from None
        except (SparkWalError, OSError) as error:
            raise exit_for(error) from None
    console.print(
        f"{done.rows:,} rows of {done.commits:,} commits of {log} to {location}; the next run "
        f"continues from {cursor}",
        highlight=False,
    )
    if (stop := done.stopped) is not None:
        console.print("The replay stopped at an invalid entry")
        facts(
            {
                "sequencer": stop.sequencer,
                "position": str(stop.position),
                "object": stop.key,
                "reason": stop.reason,
                "positions after it": str(stop.following),
            }
        )
        raise click.exceptions.Exit(INVALID_ENTRY)
    if signals.received is not None:
        raise Stopped(signals.received)


_takes_range = options(
    lambda **flags: {"range_": Range(**flags)},
    click.option(
        "--from",
        "start",
        type=click.IntRange(0),
        help="The first position.  [default: the log's floor]",
    ),
    click.option(
        "--to", "end", type=click.IntRange(0), help="The last position.  [default: the head]"
    ),
    click.option("--from-time", help="Commits at or after this time: 2026-01-31T12:00:00Z."),
    click.option("--to-time", help="Commits at or before this time."),
    names=("start", "end", "from_time", "to_time"),
)


def _columns(names: str | None, *, metadata: bool) -> dict[str, Columns]:
    split = [name.strip() for name in names.split(",")] if names is not None else None
    return {"columns": Columns(split, metadata)}


_takes_columns = options(
    _columns,
    click.option("--columns", "names", help="Only these columns, in this order: id,name."),
    click.option(
        "--metadata", is_flag=True, help="Add the _wal_… columns: position, time, writer."
    ),
)
_takes_output = options(
    lambda **flags: {"output": Output(**flags)},
    click.option(
        "--format",
        "fmt",
        type=click.Choice(FORMATS),
        default="console",
        show_default=True,
        help="delta: a table of Delta Lake, which Spark downloads. noop reads all rows and writes "
        "none.",
    ),
    click.option("--output", "location", help="The folder or URL of the output."),
    click.option(
        "--mode",
        type=click.Choice(("append", "overwrite", "error")),
        default="error",
        show_default=True,
        help="What to do if the output exists. A stream appends.",
    ),
    click.option(
        "--files",
        type=click.IntRange(1),
        help="The number of files to write; 1 keeps the log's order over all rows.",
    ),
    names=("fmt", "location", "mode", "files"),
)
_takes_cursor = options(
    lambda cursor, sequencers, all_sequencers: {
        "cursor": CursorFlags(cursor, named_or_all(sequencers, all_sequencers=all_sequencers))
    },
    click.option(
        "--cursor",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Continue from the cursor in this file, and update it; without Spark, into Parquet "
        "files.",
    ),
    click.option(
        "--sequencers",
        metavar="a,b",
        help="With --cursor: replay these logs under the path in one order.",
    ),
    click.option(
        "--all",
        "all_sequencers",
        is_flag=True,
        help="With --cursor: replay all logs under the path in one order.",
    ),
)
_takes_stream = options(
    lambda stream_trigger, **flags: {"stream": StreamFlags(trigger=stream_trigger, **flags)},
    click.option(
        "--stream", is_flag=True, help="Replay as a stream that continues from its checkpoint."
    ),
    click.option("--checkpoint", help="With --stream: the checkpoint."),
    click.option(
        "--trigger",
        "stream_trigger",
        default="available-now",
        show_default=True,
        callback=trigger,
        help='With --stream: available-now, or an interval such as "5 seconds".',
    ),
    click.option(
        "--drain-timeout",
        type=click.FloatRange(0),
        default=60.0,
        show_default=True,
        help="With --stream: seconds for which a signal waits for the running microbatch.",
    ),
    names=("stream", "checkpoint", "stream_trigger", "drain_timeout"),
)


@click.command(epilog=EXIT_CODES.rstrip() + "\n" + _MORE_EXIT_CODES)
@click.option("--log", required=True, help="s3://bucket/prefix, file:///folder or a folder.")
@takes_log_options()
@_takes_range
@_takes_columns
@_takes_output
@_takes_cursor
@_takes_stream
def main(
    log: str,
    log_options: dict[str, str],
    range_: Range,
    columns: Columns,
    output: Output,
    cursor: CursorFlags,
    stream: StreamFlags,
) -> None:
    """Replay a range of a log into files, Delta Lake or the terminal.

    Positions and times are inclusive. Without a range, replay the whole log.

    \b
    python jobs/replay.py --log s3://bucket/wal --from 100 --to 199 \\
        --format parquet --output replayed/

    With --cursor each run continues after the last one: every commit's rows are in the output once,
    in files whose names sort in the order of the replay. It ends at the first invalid entry.

    \b
    python jobs/replay.py --log s3://bucket/wal --cursor wal.cursor \\
        --format parquet --output replayed/
    """
    if cursor.file is not None:
        _check_cursor_flags(range_, output, stream)
        _replay_with_cursor(log, log_options, cursor, output.location, columns)
        return
    if cursor.sequencers is not None:
        raise Refused("--sequencers and --all are for --cursor; else use --log-option sequencers=*")
    _check_flags(range_, output, stream)
    need_spark()
    if output.fmt == "delta":
        need_delta()
    log_options.update(range_.options())
    if columns.metadata:
        log_options["includeMetadata"] = "true"
    try:
        parse(SourceOptions, {**log_options, "path": log})
        if open_log_at(log, log_options).head() is None:
            raise Refused(f"there is no log at {log}; check the path")
    except SparkWalError as error:
        raise exit_for(error) from None
    needs_metadata = any("_wal_" in name for name in columns.names or ())
    log_options.setdefault("includeMetadata", str(needs_metadata).lower())

    spark = start_session("sparkwal replay", delta=output.fmt == "delta")
    try:
        with Signals() as signals, Meter(console, "replay") as meter:
            query = None
            try:
                rows = _rows(spark, log, log_options, columns, is_stream=stream.stream)
                if stream.stream:
                    query = _start_stream(rows, output, stream)
                elif output.files is not None:
                    rows = rows.coalesce(output.files)
            except Exception as error:
                raise exit_for(error) from None
            if query is not None:
                count = run_query(query, meter, signals, stream.drain_timeout).rows
            else:
                count = _write_batch(spark, rows, output, meter, signals)
    finally:
        jvm.end(spark)
    target = f" to {output.location}" if output.location else ""
    console.print(f"{count:,} rows of {log}{target}", highlight=False)
    if signals.received is not None:
        raise Stopped(signals.received)


def _rows(
    spark: SparkSession,
    log: str,
    log_options: Mapping[str, str],
    columns: Columns,
    *,
    is_stream: bool,
) -> DataFrame:
    reader = spark.readStream if is_stream else spark.read
    rows = reader.format("weaselwal").options(**log_options).load(log)
    return rows if columns.names is None else rows.select(*columns.names)


def _start_stream(rows: DataFrame, output: Output, stream: StreamFlags) -> StreamingQuery:
    writer = rows.writeStream.format(output.fmt).outputMode("append").trigger(**stream.trigger)
    if stream.checkpoint is not None:
        writer = writer.option("checkpointLocation", stream.checkpoint)
    return writer.start(output.location)


def _check_cursor_flags(range_: Range, output: Output, stream: StreamFlags) -> None:
    """Check the flags of a replay with a cursor.

    Raises:
        Refused: a flag contradicts --cursor.
    """
    if output.fmt != "parquet":
        raise Refused("--cursor writes --format parquet; for Delta Lake use --stream")
    has_others = stream.stream or stream.checkpoint is not None or output.files is not None
    if has_others or output.mode != "error" or not range_.is_empty:
        raise Refused(
            "--cursor goes with --output, --sequencers, --all, --columns and --metadata: the "
            "cursor is the beginning of the replay, and the end of the log is its end"
        )


def _check_flags(range_: Range, output: Output, stream: StreamFlags) -> None:
    """Check the flags of a replay without a cursor.

    Raises:
        Refused: two flags contradict each other, or one is missing.
    """
    if output.location is None and output.fmt not in NO_OUTPUT:
        raise Refused(f"--format {output.fmt} needs --output")
    if stream.stream:
        if output.fmt not in NO_OUTPUT and stream.checkpoint is None:
            raise Refused("--stream needs --checkpoint, from which the next run continues")
        if (range_.end, range_.to_time) != (None, None):
            raise Refused("--to and --to-time are for batch replays: a stream has no end")
        if output.mode == "overwrite":
            raise Refused("--mode overwrite is for batch replays: a stream appends")
        if output.files is not None:
            raise Refused("--files is for batch replays")
    elif stream.checkpoint is not None:
        raise Refused("--checkpoint is for --stream")


if __name__ == "__main__":
    main()
