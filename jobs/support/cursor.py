"""Replays from a cursor in a file into Parquet files, without Spark.

Each chunk of the replay is one file, named by the progress before it. The file is written under a
temporary name, synced and renamed; then the cursor's file is replaced in the same way. If a replay
breaks off between the two, the next one repeats the chunk under the same name: each row is there
once.
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
from sparkwal.reading.replaying import Entry, Replay, Stop, places_of
from sparkwal.store.local_files import sync

# About how many rows a file holds: a commit is never split.
CHUNK_ROWS = 100_000
_MOMENT = pa.timestamp("us", "UTC")
_ADDED = {"_wal_sequencer": pa.string(), "_wal_position": pa.int64(), "_wal_timestamp": _MOMENT}
METADATA = pa.schema(_ADDED)
_NAME = re.compile(r"(\d{20})\.parquet")


@dataclass
class Replayed:
    """What one run did."""

    rows: int = 0
    commits: int = 0
    stopped: Stop | None = None


def replay_from(
    log: sparkwal.Log,
    cursor: Path,
    output: Path,
    sequencers: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    metadata: bool,
    carry_on: Callable[[Replayed], bool],
    chunk_rows: int = CHUNK_ROWS,
) -> Replayed:
    """Replay what came after the cursor up to the logs' ends now, or until `carry_on` is False
    after a chunk. A cursor that is missing is made, and the replay begins at the start.

    Raises Refused if the output holds rows that this cursor has not reached, and what
    `sparkwal.Log.replay` raises.
    """
    # Bytes that are no text are no cursor: the replay reports that.
    kept = cursor.read_text("utf-8", "replace").strip() if cursor.exists() else None
    replay = log.replay(kept, sequencers=sequencers)
    target = _columns(replay, columns, metadata)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{output} can be no folder for the output: {error.strerror}") from None
    _check_output(output, cursor, _reached(replay))
    done = Replayed()
    while True:
        name, before = _reached(replay), replay.cursor
        entries = list(_chunk(replay, chunk_rows))
        table = _table(entries, target)
        if table.num_rows:
            write = partial(pyarrow.parquet.write_table, table, compression="zstd")
            _replace(output / f"{name:020d}.parquet", write)
        if replay.cursor != before:
            _replace(cursor, lambda file: file.write_text(f"{replay.cursor}\n", "utf-8"))
        done.commits += len(entries)
        done.rows += table.num_rows
        if not entries or not carry_on(done):
            break
    done.stopped = replay.stopped
    return done


def _reached(replay: Replay) -> int:
    """A number that grows with every entry: the same cursor gives the same one."""
    return sum(place.position for place in places_of(replay.cursor).values())


def _check_output(output: Path, cursor: Path, reached: int) -> None:
    """Raises Refused if the output holds chunks that this replay would write again."""
    found = (_NAME.fullmatch(file.name) for file in output.iterdir())
    # A chunk named `reached` was written just before a crash: the replay writes it again.
    if any(match is not None and int(match[1]) > reached for match in found):
        raise Refused(
            f"{output} holds rows of later positions than the cursor {cursor} says: the cursor is "
            "missing, of an earlier time or of another replay. Bring the last one back, or "
            "replay into an empty folder"
        )


def _chunk(replay: Replay, chunk_rows: int) -> Iterator[Entry]:
    rows = 0
    while rows < chunk_rows and (entry := next(replay, None)) is not None:
        rows += entry.header.rows
        yield entry


def _columns(replay: Replay, columns: Sequence[str] | None, metadata: bool) -> pa.Schema:
    """The schema of every file of this run. Raises Refused, OptionError."""
    try:
        found = replay.schema
    except pa.ArrowException as error:
        raise Refused(
            f"the sequencers' columns are of different types: {error}. Replay them one by one"
        ) from None
    known = pa.schema([*found, *METADATA])
    if columns is None:
        return known if metadata else found
    if len({*columns}) < len(columns):
        raise Refused(f"--columns {','.join(columns)} names a column twice")
    return selected(known, columns)


def _table(entries: Sequence[Entry], target: pa.Schema) -> pa.Table:
    found = []
    for entry in entries:
        added = (entry.sequencer, entry.header.position, entry.header.timestamp_ms * 1000)
        for batch in entry.rows:
            for field, value in zip(METADATA, added, strict=True):
                values = pa.repeat(pa.scalar(value, field.type), batch.num_rows)
                batch = batch.append_column(field, values)
            # A newer column is null in older rows.
            found.append(conform(batch, target))
    return pa.Table.from_batches(found, target)


def _replace(file: Path, write: Callable[[Path], object]) -> None:
    """Replace a file durably: it is whole, or as it was before."""
    # Readers of a folder of Parquet files skip hidden files.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    sync(file.parent)
