"""Where a job's query keeps its checkpoint, and how Spark writes the files there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import sparkwal
from sparkwal import events
from sparkwal.checkpoints.folder import latest, local_folder, query_of
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.cli.exit_codes import Refused
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.spark_versions import checkpoint_file_manager
from sparkwal.options.writing import SinkOptions
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.recovery import find_head
from sparkwal.store.path import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def made_from_log(
    log: str, name: str, options: Mapping[str, str], folder: Path | None = None
) -> tuple[str, events.CheckpointRebuilt | None]:
    """(checkpointLocation of this query, the event if it was rebuilt). Raises SparkWalError."""
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
    # A URL, because Spark's default file system, which a plain path names, may not be the disk.
    return f"file://{place}", made[-1] if made else None


def write_plainly(spark: SparkSession, location: str) -> None:
    """Have Spark write a checkpoint on this machine's disk without forking processes."""
    if is_local(location) and spark.conf.get(FILE_MANAGER, None) is None:
        spark.conf.set(FILE_MANAGER, checkpoint_file_manager(spark.version))


def check_checkpoint(location: str, log: str, options: Mapping[str, str]) -> None:
    """Refuse a checkpoint on this machine that was used to write another log.

    Spark would continue after the other log's rows, and this log would lack them.
    Raises Refused, SparkWalError.
    """
    place = local_folder(location)
    if place is None:
        return  # only Spark can reach it
    if place.is_file():
        raise Refused(f"the checkpoint {location} is a file; give a folder")
    query, last = query_of(place), latest(place, "commits")
    if query is None or last < 0:
        return
    store = open_log(parse(SinkOptions, {**options, "path": log}))
    live = find_head(store).live
    if live is None or last_batch(lambda: store, live.header, query) < 0:
        raise Refused(
            f"the checkpoint {location} belongs to another log: its query has done {last + 1} "
            f"microbatches, and {log} knows none of them. Give that --log, or a new "
            "--checkpoint, which begins with the source's first rows"
        )
