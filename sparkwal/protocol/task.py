"""Writes one Spark partition of a microbatch: its rows into an object, or into the task's
message."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import keys, map_keys, schema
from sparkwal.format.content import Content
from sparkwal.format.header import Batch, DataHeader
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.claim_age import check_same_log
from sparkwal.protocol.object_writer import TaskLimits, write_object
from sparkwal.protocol.plan import TaskPlan
from sparkwal.protocol.slots import OpenLog

# A placeholder for the row count, which is known only after all rows are written. It is the widest
# count, so the header's length is enough for any.
_MANY = 2**63 - 1

# Measured: up to 250 KiB a partition, rows through the driver take less time than a PUT.
_INLINE_THRESHOLD = 64 * 2**10
# The limit of bytes that all partitions of a window together may inline by default, so that a wider
# window does not make larger records.
_MAX_INLINED = 64 * 2**20
# The most partitions of a microbatch that the header of its record can name, in a wide window.
MOST_PARTITIONS = 100_000


@dataclass(frozen=True)
class TaskResult:
    """The result that each task sends to the commit.

    Attributes:
        plan_id: the plan that the task used.
        plan: that plan, from the task of partition 0, which always runs; None from the others.
        query_id, batch_id, partition: the task.
        run_id: the query's run; empty in a batch write.
        content: the content of its rows, if the log already holds this microbatch. The task wrote
            nothing then.
        batch: its data object, or None.
        inline: its rows as an Arrow IPC stream, or None.
        put_ms: the duration of its PUT.
        retries: the number of requests that were sent again.
    """

    plan_id: str
    plan: TaskPlan | None
    query_id: str
    batch_id: int
    partition: int
    run_id: str = ""
    content: Content | None = None
    batch: Batch | None = None
    inline: bytes | None = None
    put_ms: float = 0.0
    retries: int = 0


@dataclass(frozen=True)
class TaskAttempt:
    """One attempt of a task.

    Attributes:
        query_id, batch_id, partition: the task.
        run_id: the query's run; empty in a batch write.
        attempt: unique to this attempt of the task under this plan.
        is_retry: an attempt of this task ran before, so the content of a large object is computed
            to compare it.
        forked_after: the last microbatch whose rows the log has from which the query was forked.
    """

    query_id: str
    batch_id: int
    partition: int
    run_id: str = ""
    attempt: int = 0
    is_retry: bool = False
    forked_after: int = -1


def write_partition(
    open_log: OpenLog,
    plan: TaskPlan,
    task: TaskAttempt,
    batches: Iterator[pa.RecordBatch],
    limits: TaskLimits,
) -> TaskResult:
    """Write the rows of one partition. You may run it any number of times.

    Args:
        open_log: opens the log, the same at each call.
        plan: the plan of the microbatch.
        task: the task.
        batches: consumed to the end: only then stateful operators upstream commit their state.
        limits: see `TaskLimits`.

    Raises:
        FencedError: another writer took the window.
        RecomputedError: an earlier attempt of the task stored other rows.
        StoreUnavailableError: the store did not answer, or lost the object.
        OptionError: a map has a key twice; or more partitions have an object than the window has
            numbers, or than a record names.
    """
    query_id = task.query_id
    batch_id = task.batch_id
    lead = plan.bare.leadership
    result = TaskResult(
        plan_id=plan.bare.plan_id,
        # The task of partition 0 always runs, so one plan reaches the commit.
        plan=plan if task.partition == 0 else None,
        query_id=query_id,
        batch_id=batch_id,
        partition=task.partition,
        run_id=task.run_id,
    )
    target = schema.to_arrow(lead.spark_schema)
    # Spark repeats the microbatch after a lost reply or from another checkpoint. The commit
    # compares the rows.
    # SAFETY(replay-writes-nothing) §6: a task of a microbatch that the log has writes nothing
    # SAFETY(fork-repeats) §12: a fork writes no row of a microbatch that it repeats for its state
    if batch_id <= max(task.forked_after, last_batch(open_log, plan.progress(), query_id)):
        repeated = (schema.conform(batch, target) for batch in batches)
        return replace(result, content=Content.of(repeated))
    conformed = (schema.conform(batch, target) for batch in batches if batch.num_rows)
    rows = map_keys.checked(conformed)
    threshold = limits.inline_threshold
    if threshold is None:
        threshold = min(_INLINE_THRESHOLD, _MAX_INLINED // _most_objects(plan))
    first, are_all = _read_beyond(threshold, rows)
    if not are_all:
        return _write_object(open_log, plan, task, result, chain(_drained(first), rows), limits)
    if not first:
        return result
    return replace(result, inline=b"".join(part.serialize() for part in (target, *first)))


def _most_objects(plan: TaskPlan) -> int:
    """The number of partitions for whose objects the window has numbers."""
    return plan.bare.leadership.window - 1


def _read_beyond(
    threshold: int, rows: Iterator[pa.RecordBatch]
) -> tuple[list[pa.RecordBatch], bool]:
    """Read batches until they have more than `threshold` bytes.

    Returns:
        The batches, and whether `rows` ended before.
    """
    first: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        first.append(batch)
        size += batch.nbytes
        if size > threshold:
            return first, False
    return first, True


def _drained(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches in order. The list releases each one, so that its memory is freed early."""
    while batches:
        yield batches.pop(0)


def _write_object(
    open_log: OpenLog,
    plan: TaskPlan,
    task: TaskAttempt,
    result: TaskResult,
    rows: Iterator[pa.RecordBatch],
    limits: TaskLimits,
) -> TaskResult:
    """Write the rows of one partition into its object, as `write_partition`."""
    bare = plan.bare
    lead = bare.leadership
    most = _most_objects(plan)
    # Rows inside the record need no object number.
    if task.partition >= min(most, MOST_PARTITIONS):
        problem = (
            f"partition {task.partition} of a microbatch has more rows than inlineThreshold, and "
        )
        if most > MOST_PARTITIONS:
            raise OptionError(
                f"{problem}a record names the objects of {MOST_PARTITIONS} partitions: "
                f"coalesce({MOST_PARTITIONS}) before writing"
            )
        raise OptionError(
            f"{problem}this log's window has numbers for {most} partitions: coalesce({most}) "
            "before writing, or create a log with a larger windowSize"
        )
    started = time.monotonic()
    store = open_log().store
    before = store.retries
    if not bare.may_skip_look(task.run_id):
        check_same_log(open_log(), lead)
    header = DataHeader(
        **lead.fields(bare.plan_id, bare.position - 1),
        number=keys.data(bare.position, lead.window, task.partition),
        timestamp_ms=lead.timestamp_ms,
        query_id=task.query_id,
        batch_id=task.batch_id,
        partition=task.partition,
        rows=_MANY,
        stage_attempt=task.attempt,
    )
    batch = write_object(open_log, header, lead.spark_schema, rows, limits, compare=task.is_retry)
    put_ms = (time.monotonic() - started) * 1000
    return replace(result, batch=batch, put_ms=put_ms, retries=store.retries - before)
