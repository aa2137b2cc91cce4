"""One Spark partition of a microbatch: its rows into one object, or into the message."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import keys, schema
from sparkwal.format.content import Content
from sparkwal.format.header import Batch, DataHeader
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.claim_age import check_same_log
from sparkwal.protocol.object_writer import TaskLimits, write_object
from sparkwal.protocol.plan import TaskPlan
from sparkwal.protocol.slots import OpenLog

_MANY = 2**63 - 1  # the widest row count, until the count is known

# Measured: up to 250 KiB a partition, rows through the driver take less time than a PUT.
_INLINE_THRESHOLD = 64 * 2**10
# What 999 partitions may inline. A window with room for more must not make larger records.
_MOST_INLINED = 64 * 2**20


@dataclass(frozen=True)
class TaskResult:
    """What one task did, for the commit.

    Attributes:
        plan: from the task of partition 0, which always runs; None from the others.
        content: of its rows, if the log already holds this microbatch and nothing was written.
        run_id: of the query's run that the task belongs to; empty in a batch write.
        retries: requests that were sent again to write the object.
        inline: rows as an Arrow IPC stream, or None.
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


def write_partition(
    open_log: OpenLog,
    plan: TaskPlan,
    query_id: str,
    batch_id: int,
    partition: int,
    batches: Iterator[pa.RecordBatch],
    limits: TaskLimits,
    *,
    attempt: int = 0,
    again: bool = False,
    run_id: str = "",
) -> TaskResult:
    """Write the rows of one partition under `plan`; safe to run any number of times.

    Args:
        open_log: the same log whenever it is called.
        batches: consumed to the end: only then stateful operators upstream commit their state.
        attempt: unique to this attempt of the task under this plan.
        again: an attempt of this task ran before: a large object's content is kept, to compare.

    Raises FencedError, RecomputedError, StoreUnavailableError, OptionError (too many partitions
    with an object of their own).
    """
    bare, lead = plan.bare, plan.bare.leadership
    most = lead.window - 1
    whole = None if partition else plan
    result = TaskResult(bare.plan_id, whole, query_id, batch_id, partition, run_id)
    target = schema.to_arrow(lead.spark_schema)
    # A replay, after a lost reply or of another checkpoint: the commit compares the rows.
    # SAFETY(replay-writes-nothing) §6: a task of a microbatch that the log has writes nothing
    if batch_id <= last_batch(open_log, plan.known_txns(), query_id):
        repeated = (schema.conform(batch, target) for batch in batches)
        return replace(result, content=Content.of(repeated))
    rows = (schema.conform(batch, target) for batch in batches if batch.num_rows)
    threshold = limits.inline_threshold
    if threshold is None:
        threshold = min(_INLINE_THRESHOLD, _MOST_INLINED // most)
    first: list[pa.RecordBatch] = []
    held = 0
    for batch in rows:
        first.append(batch)
        held += batch.nbytes
        if held > threshold:
            break
    else:
        if not first:
            return result
        return replace(result, inline=b"".join(part.serialize() for part in (target, *first)))
    # Rows inside the record need no number of their own.
    if partition >= most:
        raise OptionError(
            f"partition {partition} of a microbatch has more rows than inlineThreshold, and this "
            f"log's window has numbers for {most} partitions: coalesce({most}) before writing, or "
            "create a log with a larger windowSize"
        )
    started = time.monotonic()
    store = open_log().store
    before = store.retries
    if not bare.is_for(run_id):
        check_same_log(open_log(), lead)
    header = DataHeader(
        **lead.fields(bare.plan_id, bare.position - 1),
        number=keys.data(bare.position, lead.window, partition),
        timestamp_ms=lead.timestamp_ms,
        query_id=query_id,
        batch_id=batch_id,
        partition=partition,
        rows=_MANY,
        stage_attempt=attempt,
    )
    all_rows = chain((first.pop(0) for _ in range(len(first))), rows)
    batch = write_object(open_log, header, lead.spark_schema, all_rows, limits, compare=again)
    put_ms = (time.monotonic() - started) * 1000
    return replace(result, batch=batch, put_ms=put_ms, retries=store.retries - before)
