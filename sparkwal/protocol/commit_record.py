"""Builds the commit record of a microbatch or of an appender's batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import (
    ANONYMOUS,
    HERE,
    NOWHERE,
    Batch,
    Checkpoint,
    CommitHeader,
    Inline,
    Origin,
    QueryState,
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
    """The checkpoint files that a commit record carries. The other fields are as in `Checkpoint`.

    Attributes:
        block: the content of the files.
        files: (place, bytes) of files that are carried only once: a position, HERE (`block`) or
            NOWHERE.
        since: a position, HERE or NOWHERE.
        state: the state, with the `records` before this one, or None.
        state_part: the part of it that this record carries.
    """

    block: bytes
    reason: str = ""
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    name: str = ""
    origin: Origin | None = None
    since: int = NOWHERE
    state: QueryState | None = None
    state_part: bytes = b""


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
    # A record cannot hold the duration of its own PUT, so it holds that of the PUT before.
    if plan.last_put is not None:
        measured["retries"] += plan.last_put.retries
        measured["last_put_ms"] = plan.last_put.put_ms
    content = RecordContent(
        query_id=written[0].query_id,
        batch_id=written[0].batch_id,
        inlined=inlined,
        metrics=measured,
        batches=tuple(r.batch for r in written if r.batch),
        carried=carried,
    )
    lead, now_ms = plan.leadership, clock.now_ms()
    return next_record(lead, plan.plan_id, content, now_ms, codec, decided=plan.position - 1)


@dataclass(frozen=True)
class RecordContent:
    """The content of a commit record.

    Attributes:
        query_id, batch_id: the microbatch; for an appender the producer and its last sequence.
        inlined: the rows in the record itself.
        metrics: for people.
        batches: the data objects.
        carried: the checkpoint, or None.
    """

    query_id: str
    batch_id: int
    inlined: Inlined
    metrics: dict[str, float]
    batches: tuple[Batch, ...] = ()
    carried: Carried | None = None


def next_record(
    lead: Leadership,
    plan_id: str,
    content: RecordContent,
    now_ms: int,
    codec: str | None,
    *,
    decided: int,
) -> tuple[CommitHeader, bytes]:
    """Build the record at the next position. Every position up to `decided` holds a record."""
    query_id = content.query_id
    inlined = content.inlined
    carried = content.carried
    timestamp_ms = next_timestamp(now_ms, lead.timestamp_ms)
    rows = sum(batch.rows for batch in content.batches)
    rows += sum(batch.num_rows for _, batches in inlined for batch in batches)
    position = lead.next_position
    checkpoints = lead.checkpoints
    block = b""
    # SAFETY(checkpoint-position) §12: each record that carries a checkpoint names its own position
    if carried is not None:
        block, places = carried.block, carried.files.items()
        files = {name: (position if at == HERE else at, size) for name, (at, size) in places}
        crc = crc32(block)
        inputs = dict(carried.inputs)
        entry = Checkpoint(
            position,
            rows,
            len(block),
            crc,
            carried.reason,
            files,
            inputs,
            carried.name,
            carried.origin,
            position if carried.since == HERE else carried.since,
            carried.state and carried.state.at(position),
        )
        block += carried.state_part
        checkpoints = {**checkpoints, query_id: entry}
    # Drop the entries of earlier anonymous appends.
    named = {query: last for query, last in lead.txns.items() if not query.startswith(ANONYMOUS)}
    header = CommitHeader(
        **lead.fields(plan_id, decided),
        number=keys.slot(position, lead.window),
        timestamp_ms=timestamp_ms,
        query_id=query_id,
        batch_id=content.batch_id,
        rows=rows,
        bytes=sum(batch.bytes for batch in content.batches),
        batches=content.batches,
        inline=(),
        # SAFETY(txns-include-own) §6: a record's txns include its own
        txns={**named, query_id: (content.batch_id, timestamp_ms)},
        checkpoints=checkpoints,
        # SAFETY(commit-names-archive) §5: each commit record names the archive
        # SAFETY(appender-names-archive) §5: each record of an appender names the archive
        txns_archive=lead.txns_archive,
        metrics=content.metrics,
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
    """Encode the record with its rows after the header, one partition after the other.

    Args:
        header: its `inline` is still empty, and its `bytes` count the data objects only.
        inlined: the rows.
        spark_schema: the log's schema.
        codec: compresses the rows.
        block: the files of a checkpoint; see `arrowfile.FileWriter.finish`.
    """
    label = f"commit object {header.number}"
    if not inlined:
        check_parts(header, label)
        return header, arrowfile.encode(header, spark_schema, block)
    # The widest numbers reserve the header's length until the real ones are known.
    widest = tuple(
        Inline(partition, sum(b.num_rows for b in batches), 2**63 - 1, 2**63 - 1, 2**32 - 1)
        for partition, batches in inlined
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
    check_parts(header, label)
    prefix, tail, _ = writer.finish(header, block)
    return header, b"".join([prefix, *chunks, tail])
