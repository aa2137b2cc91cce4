"""Changes of a driver's disk, and of the checkpoint on it, while the driver is dead."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from faults.evidence import Stream
from sparkwal.checkpoints import folder, names
from sparkwal.errors import SparkWalError
from support.checkpoints import checkpoint_from_log

# Kept, gone, a new and empty one, restored from a backup, and without what was not yet on the
# platters when the power failed.
FATES = {"kept": 2, "lost": 4, "empty": 1, "backup": 3, "torn": 3}


def numbered_stream(place: Path, number: int, rows: int) -> Stream:
    """A named query; those of even numbers read files, the others numbers."""
    files = number % 2 == 0
    return Stream(
        place / f"cp{number}",
        rows // 4 if files else rows,
        number * 10**9,
        name=f"query-{number}",
        files=place / f"in{number}" if files else None,
    )


def on_a_new_machine(
    log: str, options: Mapping[str, str], streams: Sequence[Stream]
) -> tuple[list[Stream], list[str]]:
    """The streams with checkpoints made from nothing but the log, and what was refused."""
    refused = []
    there = [replace(stream, seen=stream.noted) for stream in streams]
    for stream in there:
        shutil.rmtree(stream.checkpoint, ignore_errors=True)
        try:
            checkpoint_from_log(log, stream.name, options, stream.checkpoint)
        except SparkWalError as error:
            refused.append(f"the checkpoint of {stream.name}: {error}")
    return there, refused


def back_up(stream: Stream) -> None:
    """Copy the checkpoint; only the last copy stays."""
    if stream.checkpoint.is_dir():
        shutil.rmtree(_backup(stream), ignore_errors=True)
        shutil.copytree(stream.checkpoint, _backup(stream))


def befall(stream: Stream, rng: random.Random, fate: str = "") -> tuple[str, Stream]:
    """(one of FATES, the stream, which remembers what Spark had noted)."""
    if not fate:
        [fate] = rng.choices([*FATES], [*FATES.values()])
    if fate == "backup" and not _backup(stream).is_dir():
        fate = "lost"
    if fate == "kept":
        return fate, stream
    stream = replace(stream, seen=stream.noted)
    if fate == "torn":
        _tear(stream.checkpoint, rng)
        return fate, stream
    shutil.rmtree(stream.checkpoint, ignore_errors=True)
    if fate == "backup":
        shutil.copytree(_backup(stream), stream.checkpoint)
    elif fate == "empty":
        stream.checkpoint.mkdir(parents=True)
    return fate, stream


def _backup(stream: Stream) -> Path:
    return stream.checkpoint.with_name(f"{stream.checkpoint.name}.backup")


def _tear(checkpoint: Path, rng: random.Random) -> None:
    """Empty a file that Spark wrote last, or fill its end with zeros."""
    newest = [f"{kind}/{folder.latest(checkpoint, kind)}" for kind in ("offsets", "commits")]
    lists = [x.relative_to(checkpoint).as_posix() for x in checkpoint.glob("sources/*/[0-9]*")]
    there = [x for x in (*newest, *lists[-3:], names.METADATA) if (checkpoint / x).is_file()]
    if not there:
        return
    file = checkpoint / rng.choice(there)
    kept = rng.choice([0, rng.randrange(file.stat().st_size + 1)])
    size = rng.choice([kept, file.stat().st_size])
    os.truncate(file, kept)
    os.truncate(file, size)


def add_files(stream: Stream, count: int) -> None:
    """Write more files for a stream to read, each a second younger than the one before."""
    assert stream.files is not None
    stream.files.mkdir(exist_ok=True)
    there = len(list(stream.files.glob("*.json")))
    for number in range(there, there + count):
        first = stream.base + number * stream.rows
        lines = [json.dumps({"value": value}) for value in range(first, first + stream.rows)]
        file = stream.files / f"{number}.json"
        draft = file.with_name(f".{number}")
        draft.write_text("\n".join(lines))
        os.utime(draft, (1_700_000_000 + number,) * 2)
        draft.rename(file)
