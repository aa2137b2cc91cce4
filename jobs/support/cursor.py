"""Replays from a cursor in a file into Parquet files, without Spark.

Each chunk of the replay is one file, named by the progress before it. The file is written under a
temporary name, synced and renamed; then the cursor's file is replaced in the same way. If a replay
crashes between the two, the next one repeats the chunk under the same name. So each row is in the
output once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

import sparkwal
from sparkwal.cli.exit_codes import Refused
from sparkwal.format.schema import conform
from sparkwal.reading.metadata import selected
from sparkwal.reading.replaying import Entry, Replay, Stop, progress_of
from sparkwal.store.local_files import sync

# The least number of rows of a file, except the last. A commit is never split.
CHUNK_ROWS = 100_000
METADATA = pa.schema(
    [
        ("_wal_sequencer", pa.string()),
        ("_wal_position", pa.int64()),
        ("_wal_timestamp", pa.timestamp("us", "UTC")),
    ]
)
_NAME = re.compile(r"(\d{20})\.parquet")


@dataclass(frozen=True)
class Columns:
    """The columns of the output.

    Attributes:
        names: only these columns, in this order. The default is all columns of the log.
        metadata: add the columns of METADATA.
    """

    names: Sequence[str] | None = None
    metadata: bool = False


@dataclass
class Replayed:
    """The result of one run.

    Attributes:
        rows, commits: the number of replayed rows and commits.
        stopped: the damaged or missing entry at which the replay stopped.
    """

    rows: int = 0
    commits: int = 0
    stopped: Stop | None = None


def replay_from(
    log: sparkwal.Log,
    cursor: Path,
    output: Path,
    sequencers: str | Sequence[str] | None,
    columns: Columns,
    should_continue: Callable[[Replayed], bool],
    chunk_rows: int = CHUNK_ROWS,
) -> Replayed:
    """Replay the commits after a cursor, up to the present ends of the logs.

    Args:
        log: the log.
        cursor: the file of the cursor. If it does not exist, the replay begins at the floor and
            creates it.
        output: the folder of the output.
        sequencers: the logs to replay, as `sparkwal.Log.replay`.
        columns: the columns of the output.
        should_continue: is called after each chunk. If it returns False, the replay stops.
        chunk_rows: the least number of rows of a file.

    Raises:
        Refused: the output holds rows that this cursor has not reached, or cannot be written.
        SparkWalError: as `sparkwal.Log.replay`.
    """
    # Undecodable bytes are no cursor; the replay reports that.
    text = cursor.read_text("utf-8", "replace").strip() if cursor.exists() else None
    replay = log.replay(text, sequencers=sequencers)
    target = _target_schema(replay, columns)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"cannot create the folder {output}: {error.strerror}") from None
    _check_output(output, cursor, _progress(replay))
    done = Replayed()
    while True:
        name = _progress(replay)
        before = replay.cursor
        entries = list(_chunk(replay, chunk_rows))
        table = _table(entries, target)
        if table.num_rows:
            write = partial(pyarrow.parquet.write_table, table, compression="zstd")
            _replace(output / f"{name:020d}.parquet", write)
        if replay.cursor != before:
            _replace(cursor, lambda file: file.write_text(f"{replay.cursor}\n", "utf-8"))
        done.commits += len(entries)
        done.rows += table.num_rows
        if not entries or not should_continue(done):
            break
    done.stopped = replay.stopped
    return done


def _progress(replay: Replay) -> int:
    """A number that increases with every entry, and depends on the cursor only."""
    return sum(progress.position for progress in progress_of(replay.cursor).values())


def _check_output(output: Path, cursor: Path, progress: int) -> None:
    """Check that this replay would not write chunks of the output a second time.

    Raises:
        Refused: the output holds chunks beyond the cursor.
    """
    matches = (_NAME.fullmatch(file.name) for file in output.iterdir())
    # A crash may have left the chunk named `progress`, which the replay overwrites.
    if any(match is not None and int(match[1]) > progress for match in matches):
        raise Refused(
            f"{output} holds rows of later positions than the cursor {cursor}: the cursor is "
            "missing, older or of another replay. Restore the newest cursor, or replay into an "
            "empty folder"
        )


def _chunk(replay: Replay, chunk_rows: int) -> Iterator[Entry]:
    rows = 0
    while rows < chunk_rows and (entry := next(replay, None)) is not None:
        rows += entry.header.rows
        yield entry


def _target_schema(replay: Replay, columns: Columns) -> pa.Schema:
    """The schema of every file of this run.

    Raises:
        Refused: the types of two sequencers contradict each other, or a column is named twice.
        OptionError: a column does not exist.
    """
    try:
        log_schema = replay.schema
    except pa.ArrowException as error:
        raise Refused(
            f"the sequencers' columns are of different types: {error}. Replay them one by one"
        ) from None
    all_columns = pa.schema([*log_schema, *METADATA])
    if columns.names is None:
        return all_columns if columns.metadata else log_schema
    if len({*columns.names}) < len(columns.names):
        raise Refused(f"--columns {','.join(columns.names)} names a column twice")
    return selected(all_columns, columns.names)


def _table(entries: Sequence[Entry], target: pa.Schema) -> pa.Table:
    batches = []
    for entry in entries:
        metadata = (entry.sequencer, entry.header.position, entry.header.timestamp_ms * 1000)
        for batch in entry.rows:
            for field, value in zip(METADATA, metadata, strict=True):
                values = pa.repeat(pa.scalar(value, field.type), batch.num_rows)
                batch = batch.append_column(field, values)
            # A newer column is null in older rows.
            batches.append(conform(batch, target))
    return pa.Table.from_batches(batches, target)


def _replace(file: Path, write: Callable[[Path], object]) -> None:
    """Replace a file durably and atomically."""
    # Readers of a folder of Parquet files skip hidden files.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    sync(file.parent)
