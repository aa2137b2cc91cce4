"""The commit record: what it says of a microbatch, and its bytes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import ANONYMOUS, CommitHeader, Inline, Txns
from sparkwal.protocol.clock import Clock, next_timestamp
from sparkwal.protocol.plan import Plan
from sparkwal.protocol.task import TaskResult


def with_txn(txns: Txns, query_id: str, batch_id: int, timestamp_ms: int) -> Txns:
    """The transactions after this one; the next record drops the entries of anonymous appends."""
    kept = {query: last for query, last in txns.items() if not query.startswith(ANONYMOUS)}
    # Safety (§6): "a record's transactions leave out its own"
    return {**kept, query_id: (batch_id, timestamp_ms)}


def microbatch_record(
    plan: Plan, written: list[TaskResult], clock: Clock, codec: str | None
) -> tuple[CommitHeader, bytes]:
    lead = plan.leadership
    # Never back along the log, whatever the wall clock does.
    timestamp_ms = next_timestamp(clock.now_ms(), lead.timestamp_ms)
    query_id, batch_id = written[0].query_id, written[0].batch_id
    batches = tuple(r.batch for r in written if r.batch)
    inlined = [
        (r.partition, r.inline[0], list(pa.ipc.open_stream(r.inline[1])))
        for r in written
        if r.inline
    ]
    header = CommitHeader(
        log_id=lead.log_id,
        number=keys.slot(plan.position, lead.window),
        position=plan.position,
        window=lead.window,
        leader_id=lead.leader_id,
        term=lead.term,
        plan_id=plan.plan_id,
        in_flight_limit=lead.in_flight_limit,
        timestamp_ms=timestamp_ms,
        schema_crc32=arrowfile.schema_crc(lead.spark_schema),
        query_id=query_id,
        batch_id=batch_id,
        rows=sum(b.rows for b in batches) + sum(rows for _, rows, _ in inlined),
        bytes=sum(b.bytes for b in batches),
        batches=batches,
        inline=(),
        txns=with_txn(lead.txns, query_id, batch_id, timestamp_ms),
        metrics={
            "put_ms": round(max((r.put_ms for r in written), default=0.0), 3),
            "tasks": len(written),
        },
    )
    # Safety (§6): "rows never get into the record"
    return encode_record(header, inlined, lead.spark_schema, codec)


def encode_record(
    header: CommitHeader,
    inlined: Sequence[tuple[int, int, Sequence[pa.RecordBatch]]],
    spark_schema: str,
    codec: str | None,
) -> tuple[CommitHeader, bytes]:
    """The record with its rows after the header, one partition after the other.

    Args:
        header: `inline` still empty, `bytes` those of its data objects.
        inlined: (partition, rows, record batches) in partition order.
    """
    if not inlined:
        return header, arrowfile.encode(header, spark_schema)
    widest = tuple(
        Inline(partition, rows, 2**63 - 1, 2**63 - 1, 2**32 - 1) for partition, rows, _ in inlined
    )
    draft = replace(header, inline=widest, bytes=2**63 - 1)
    writer = arrowfile.FileWriter(draft, spark_schema, codec)
    target = schema.to_arrow(spark_schema)
    chunks: list[bytes] = []
    entries: list[Inline] = []
    for partition, rows, batches in inlined:
        # Safety (§6): "an inlined row is doubled"
        frames = [writer.frame(schema.conform(batch, target)) for batch in batches]
        data = b"".join(frames)
        entries.append(Inline(partition, rows, len(frames), len(data), zlib.crc32(data)))
        chunks.append(data)
    stored = header.bytes + sum(entry.bytes for entry in entries)
    header = replace(header, inline=tuple(entries), bytes=stored)
    prefix, tail, _ = writer.finish(header)
    return header, b"".join([prefix, *chunks, tail])
