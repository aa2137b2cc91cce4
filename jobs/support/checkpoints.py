"""Builds and checks the checkpoint of a job's query, and sets how Spark writes its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def checkpoint_from_log(
    log: str, name: str, options: Mapping[str, str], folder: Path | None = None
) -> tuple[str, events.CheckpointRebuilt | None]:
    """Call `sparkwal.checkpoint`.

    Returns:
        The checkpointLocation of the query, and the event if it was rebuilt.

    Raises:
        SparkWalError: as `sparkwal.checkpoint`.
    """
    rebuilt: list[events.CheckpointRebuilt] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.CheckpointRebuilt):
            rebuilt.append(event)

    log_options: dict[str, Any] = {
        name: value for name, value in options.items() if name.lower() != "path"
    }
    unsubscribe = events.subscribe(note)
    try:
        checkpoint = sparkwal.checkpoint(log, name, folder=folder, **log_options)
    finally:
        unsubscribe()
    # A URL, because a path alone means Spark's default file system, which may not be the disk.
    return f"file://{checkpoint}", rebuilt[-1] if rebuilt else None


def write_without_forks(spark: SparkSession, location: str) -> None:
    """Let Spark write a local checkpoint without starting a process for each file."""
    if is_local(location) and spark.conf.get(FILE_MANAGER, None) is None:
        spark.conf.set(FILE_MANAGER, checkpoint_file_manager(spark.version))


def check_checkpoint(location: str, log: str, options: Mapping[str, str]) -> None:
    """Refuse a checkpoint on this machine that was used to write another log.

    Spark would continue after the other log's rows, and this log would lack them.

    Raises:
        Refused: it was used for another log, or is a file.
        SparkWalError: the log is unreadable.
    """
    folder = local_folder(location)
    if folder is None:
        return  # only Spark can reach it
    if folder.is_file():
        raise Refused(f"the checkpoint {location} is a file; give a folder")
    query = query_of(folder)
    last = latest(folder, "commits")
    if query is None or last < 0:
        return
    store = open_log(parse(SinkOptions, {**options, "path": log}))
    live = find_head(store).live
    if live is None or last_batch(lambda: store, live.header, query) < 0:
        raise Refused(
            f"the checkpoint {location} belongs to another log: its query committed {last + 1} "
            f"microbatches, and {log} has none of them. Give that other --log, or a new "
            "--checkpoint, which begins with the source's first rows"
        )
