"""The commit record: what it says of a microbatch, and its bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import (
    ANONYMOUS,
    HERE,
    Batch,
    Checkpoint,
    CommitHeader,
    Inline,
    check_parts,
)
from sparkwal.protocol.clock import Clock, next_timestamp
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.plan import Plan
from sparkwal.protocol.task import TaskResult

# (partition, its record batches) in partition order.
Inlined = Sequence[tuple[int, Sequence[pa.RecordBatch]]]


@dataclass(frozen=True)
class Carried:
    """What a commit record carries of its query's checkpoint; the rest as in `Checkpoint`.

    Attributes:
        files: those not to be carried again, and where: a position, HERE (`block`) or NOWHERE.
    """

    block: bytes
    reason: str = ""
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    name: str = ""


def microbatch_record(
    plan: Plan,
    written: list[TaskResult],
    clock: Clock,
    codec: str | None,
    carried: Carried | None,
) -> tuple[CommitHeader, bytes]:
    inlined = [(r.partition, list(pa.ipc.open_stream(r.inline))) for r in written if r.inline]
    measured: dict[str, float] = {
        "put_ms": round(max((r.put_ms for r in written), default=0.0), 3),
        "tasks": len(written),
        "retries": sum(r.retries for r in written),
    }
    # A record cannot hold what its own PUT took.
    if plan.last_put is not None:
        measured["retries"] += plan.last_put.retries
        measured["last_put_ms"] = plan.last_put.put_ms
    return next_record(
        plan.leadership,
        plan.plan_id,
        written[0].query_id,
        written[0].batch_id,
        inlined,
        measured,
        clock.now_ms(),
        codec,
        decided=plan.position - 1,
        batches=tuple(r.batch for r in written if r.batch),
        carried=carried,
    )


def next_record(
    lead: Leadership,
    plan_id: str,
    query_id: str,
    batch_id: int,
    inlined: Inlined,
    metrics: dict[str, float],
    now_ms: int,
    codec: str | None,
    *,
    decided: int,
    batches: tuple[Batch, ...] = (),
    carried: Carried | None = None,
) -> tuple[CommitHeader, bytes]:
    """The record at the next position: of a microbatch, or of a producer's appends, where
    `query_id` is the producer and `batch_id` the last sequence. All up to `decided` is durable."""
    timestamp_ms = next_timestamp(now_ms, lead.timestamp_ms)
    rows = sum(b.rows for b in batches) + sum(b.num_rows for _, held in inlined for b in held)
    position = lead.next_position
    checkpoints = lead.checkpoints
    block = b""
    # SAFETY(checkpoint-position) §12: each record that carries a checkpoint names its own position
    if carried is not None:
        block, places = carried.block, carried.files.items()
        files = {n: (position if where == HERE else where, size) for n, (where, size) in places}
        crc = crc32(block)
        inputs = dict(carried.inputs)
        name = carried.name
        entry = Checkpoint(position, rows, len(block), crc, carried.reason, files, inputs, name)
        checkpoints = {**checkpoints, query_id: entry}
    # What earlier anonymous appends left is dropped.
    kept = {query: last for query, last in lead.txns.items() if not query.startswith(ANONYMOUS)}
    header = CommitHeader(
        **lead.fields(plan_id, decided),
        number=keys.slot(position, lead.window),
        timestamp_ms=timestamp_ms,
        query_id=query_id,
        batch_id=batch_id,
        rows=rows,
        bytes=sum(b.bytes for b in batches),
        batches=batches,
        inline=(),
        # SAFETY(txns-include-own) §6: a record's txns include its own
        txns={**kept, query_id: (batch_id, timestamp_ms)},
        checkpoints=checkpoints,
        # SAFETY(commit-names-archive) §5: each commit record names the archive
        # SAFETY(appender-names-archive) §5: each record of an appender names the archive
        txns_archive=lead.txns_archive,
        metrics=metrics,
    )
    # SAFETY(inline-all-rows) §6: a commit record holds every row that the tasks inlined
    return encode_record(header, inlined, lead.spark_schema, codec, block)


def encode_record(
    header: CommitHeader,
    inlined: Inlined,
    spark_schema: str,
    codec: str | None,
    block: bytes = b"",
) -> tuple[CommitHeader, bytes]:
    """The record with its rows after the header, one partition after the other.

    Args:
        header: its `inline` is still empty, its `bytes` count the data objects only.
        block: the files of a checkpoint; see `arrowfile.FileWriter.finish`.
    """
    where = f"commit object {header.number}"
    if not inlined:
        check_parts(header, where)
        return header, arrowfile.encode(header, spark_schema, block)
    widest = tuple(
        Inline(partition, sum(b.num_rows for b in held), 2**63 - 1, 2**63 - 1, 2**32 - 1)
        for partition, held in inlined
    )
    draft = replace(header, inline=widest, bytes=2**63 - 1)
    writer = arrowfile.FileWriter(draft, spark_schema, codec)
    target = schema.to_arrow(spark_schema)
    chunks: list[bytes] = []
    entries: list[Inline] = []
    for wide, (_, batches) in zip(widest, inlined, strict=True):
        # SAFETY(inline-once) §6: a commit record holds each inlined row once
        parts = (part for batch in batches for part in schema.cut(batch, arrowfile.LARGEST_FRAME))
        stored = [writer.frame(schema.conform(part, target)) for part in parts]
        data = b"".join(stored)
        entry = replace(wide, record_batches=len(stored), bytes=len(data), crc32=crc32(data))
        entries.append(entry)
        chunks.append(data)
    size = header.bytes + sum(entry.bytes for entry in entries)
    header = replace(header, inline=tuple(entries), bytes=size)
    check_parts(header, where)
    prefix, tail, _ = writer.finish(header, block)
    return header, b"".join([prefix, *chunks, tail])
