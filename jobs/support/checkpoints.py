"""Where a query of the jobs keeps its checkpoint, and how Spark writes the files there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import sparkwal
from sparkwal import events
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.store.path import is_local
from support.session import Refused, log_head, open_log_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's own choice forks `stat` and `readlink` for each file. Both write a hidden file and rename
# it, which is atomic on a disk, and neither syncs it.
FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def made_from_log(
    log: str, name: str, options: Mapping[str, str], folder: Path | None = None
) -> tuple[str, events.CheckpointRebuilt | None]:
    """(checkpointLocation of the query of this name, what was made anew).

    Raises SparkWalError.
    """
    made: list[events.CheckpointRebuilt] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.CheckpointRebuilt):
            made.append(event)

    given = {key: value for key, value in options.items() if key.lower() != "path"}
    unsubscribe = events.subscribe(note)
    try:
        place = sparkwal.checkpoint(log, name, folder=folder, **given)
    finally:
        unsubscribe()
    # As a URL: Spark takes a plain path for one of its default file system, maybe not the disk.
    return f"file://{place}", made[-1] if made else None


def write_plainly(spark: SparkSession, location: str) -> None:
    """Have Spark write a checkpoint on this machine's disk without forking processes."""
    if is_local(location) and spark.conf.get(FILE_MANAGER, None) is None:
        spark.conf.set(FILE_MANAGER, FILE_SYSTEM)


def check_checkpoint(folder: str, log: str, options: Mapping[str, str]) -> None:
    """Refuse a checkpoint on this machine that was used to write another log.

    Spark would go on after what that one holds, and those rows would not be in this one.
    Raises Refused, SparkWalError.
    """
    place = Path(folder.removeprefix("file://"))
    if place.is_file():
        raise Refused(f"the checkpoint {folder} is a file; give a folder")
    try:
        query = str(json.loads((place / "metadata").read_text())["id"])
        done = [x for x in (place / "commits").iterdir() if x.name.isdigit()]
    except (OSError, ValueError, KeyError):
        return  # a new one, or at a place that Spark alone reaches
    if done and not _knows(log, options, query):
        raise Refused(
            f"the checkpoint {folder} belongs to another log: its query has done {len(done)} "
            f"microbatches or more, and {log} knows none of them. Give that --log, or a new "
            "--checkpoint, which begins with the source's first rows"
        )


def _knows(log: str, options: Mapping[str, str], query: str) -> bool:
    head = log_head(log, options)
    if head is None:
        return False
    records = list(open_log_at(log, options).records(start=head.position))
    # The last record knows every query; one of a writer that lost is not among these.
    return not records or query in records[-1].txns
