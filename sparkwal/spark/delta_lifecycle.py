"""`sparkwal.Lifecycle`: compaction, retention and collection of a log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.format.lifecycle_record import APPEND, MERGE, Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.new_segments import SegmentMaker
from sparkwal.lifecycle.opening import check_apart, needs_spark, open_written
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.lifecycle.table import Table, with_tombstones
from sparkwal.options.keywords import LifecycleKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.store import StoreOptions
from sparkwal.store.base import LogStore
from sparkwal.store.path import absolute, refuse_credentials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lifecycle(Coordinator):
    """Compacts a log into a table, exactly once, and deletes what the log no longer needs.

    Any number of processes may run it at any time: each continues where the last one stopped.

    Examples:
        >>> life = Lifecycle("s3://bucket/wal", spark=spark, table="s3a://lake/orders", keys=["id"])
        >>> life.run_once()

    Args:
        path: s3://bucket/prefix, file:///folder or a folder. `run_once` takes one log: name its
            `sequencer`. `run_all` takes all logs under the path together.
        spark: a session with Delta Lake; only with a Delta table.
        table: the URL or folder of a Delta table, or iceberg://CATALOG/NAMESPACE.TABLE, which needs
            no Spark. The first run creates it. Without a table only the options `retainSeconds` and
            `retainBytes` decide what leaves the log.
        keys: the columns that identify a row: a new row replaces the row with the same keys.
            Without keys rows are appended.
        sequence_by: among rows with the same keys the one with the greatest value in this column
            wins. "": the last one in the log's order.
        delete_when: an SQL condition: a row that meets it deletes the row with its keys.
        partition_by: the columns that partition a new table.
        cluster_by: the columns that cluster a new table.
        properties: the properties of a new table.
        collects: whether `run_once` deletes objects.
        **options: the options of the lifecycle and of the store (docs/options.md) as keywords.

    Raises:
        OptionError: an argument or option is wrong.
        PlanError: the session is one of Spark Connect.
    """

    def __init__(
        self,
        path: str,
        *,
        spark: SparkSession | None = None,
        table: str | None = None,
        keys: Sequence[str] = (),
        sequence_by: str = "",
        delete_when: str = "",
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        collects: bool = True,
        **options: Unpack[LifecycleKeywords],
    ) -> None:
        settings = from_keywords(LifecycleOptions, path, options)
        target = target_of(
            table, keys, sequence_by, delete_when, partition_by, cluster_by, properties or {}
        )
        log = open_log(settings)
        written: Table | None = None
        if target is not None:
            target = with_tombstones(target, settings.tombstone_horizon_ms)
            check_apart(settings.path, target, sets_aside=settings.sets_aside)
            written = open_written(target, log) if not needs_spark(target) else None
        if target is not None and written is None:
            if spark is None:
                raise OptionError(f"Spark writes {target.table}: pass a session as spark=")
            from sparkwal.spark.delta import SparkDeltaTable

            store_options: dict[str, str] = {}
            for option in fields(StoreOptions):
                if (value := getattr(settings, option.name)) is not None:
                    store_options[option.metadata["name"]] = str(value)
            written = SparkDeltaTable(spark, target, store_options)
        super().__init__(
            log,
            settings,
            sequencer=settings.sequencer,
            table=written,
            gc_grace_ms=settings.gc_grace_ms,
            consumer_expiry_ms=settings.consumer_expiry_ms,
            collects=collects,
        )
        self._makes_segments = settings.makes_segments(has_table=target is not None)
        self._segments: dict[str, SegmentMaker] = {}

    def run_once(self, *, whole: bool = False) -> Run:
        """Compact the range that is due, move the floor, collect, and make missing segments.

        It first finishes an open range. The option `makeSegments` decides about segments.

        Args:
            whole: compact the whole log now, and ignore the policy's thresholds.

        Returns:
            The state before the run, the ranges that it finished, and the number of new segments.

        Raises:
            CompactionError: a range did not reach the table. It was not skipped; the next run
                continues with it.
            InvalidLogError: a record of the log or of its lifecycle is damaged.
            StoreUnavailableError: the store did not answer.
        """
        return self._with_segments(self._log, super().run_once(whole=whole))

    def run_all(self, *, whole: bool = False) -> dict[str, Run | SparkWalError]:
        """As `run_once`, for all logs under the path together.

        All that is due makes one version of the table, after that of a range that was open. A log
        that is damaged does not stop the others.

        Args:
            whole: compact the whole logs now, and ignore the policy's thresholds.

        Returns:
            The result of each log by name, or its error. A log that the chain has, and that does
            not exist any more, is among them: it was found as "no log".

        Raises:
            CompactionError: a range did not reach the table; the next run continues with it.
            InvalidLogError, StoreUnavailableError: the chain could not be read.
        """
        results = super().run_all(whole=whole)
        for name, run in results.items():
            if isinstance(run, Run) and run.found != "no log":
                try:
                    results[name] = self._with_segments(self._log.root.sequencer(name), run)
                except SparkWalError as error:
                    results[name] = error
        return results

    def _with_segments(self, log: LogStore, run: Run) -> Run:
        """Make the missing segments of a log after its run."""
        if not self._makes_segments:
            return run
        maker = self._segments.setdefault(log.name, SegmentMaker(log, log.name))
        return replace(run, segments=maker.run(self._known[log.name].head))


def arguments_of(target: Target) -> dict[str, Any]:
    """The arguments of `Lifecycle` that make a target, besides a session."""
    arguments: dict[str, Any] = {**vars(target), "properties": dict(target.properties)}
    # Keys imply the mode, and the horizon is an option.
    del arguments["mode"]
    return arguments | {"tombstoneHorizon": f"{arguments.pop('tombstone_horizon_ms')}ms"}


# A name such as "default.orders".
_IN_CATALOG = re.compile(r"\w+(\.\w+)+")


def target_of(
    table: str | None,
    keys: Sequence[str] = (),
    sequence_by: str = "",
    delete_when: str = "",
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Target | None:
    """Check the arguments of a compaction.

    Returns:
        The target of the compaction, or None without a table.

    Raises:
        OptionError: the arguments contradict each other, or the table's URL is wrong.
    """
    if table is None:
        if any((keys, sequence_by, delete_when, partition_by, cluster_by, properties)):
            raise OptionError("keys, partitions and properties need a table: name the table")
        return None
    if not table.strip():
        raise OptionError("the table is ''; its URL or folder is expected")
    if _IN_CATALOG.fullmatch(table.strip()) and not Path(table.strip()).is_dir():
        # A folder of that name here would be another table than the catalog's.
        raise OptionError(
            f"the table is {table!r}, which may be a name in a catalog; its URL or folder is "
            "expected: ./NAME for a new folder here, or the location that DESCRIBE DETAIL shows"
        )
    for names in (keys, partition_by, cluster_by):
        if isinstance(names, str):
            raise OptionError(f"columns are a list of names, not {names!r}")
    if not all(map(str.strip, (*keys, *partition_by, *cluster_by))):
        raise OptionError("the name of a column is empty: name it, or leave it out")
    if (sequence_by or delete_when) and not keys:
        raise OptionError("sequence_by and delete_when need keys: give keys")
    refuse_credentials(table, "the table's URL")
    if partition_by and cluster_by:
        raise OptionError("a table is either partitioned or clustered: give one of the two")
    return Target(
        # Absolute, so that a run in another folder means the same table.
        table=absolute(table.strip()).rstrip("/"),
        mode=MERGE if keys else APPEND,
        keys=tuple(keys),
        sequence_by=sequence_by,
        delete_when=delete_when,
        partition_by=tuple(partition_by),
        cluster_by=tuple(cluster_by),
        properties=tuple(sorted((properties or {}).items())),
    )
