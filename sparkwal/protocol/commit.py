"""The one PUT that makes a microbatch durable, and what its answers mean."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from sparkwal import arrowfile, events, numbering, schema
from sparkwal.errors import FencedError, InvalidLogError, OutcomeUnknownError, StoreUnavailableError
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.leadership import fenced
from sparkwal.protocol.plan import Plan, remember_committed
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import read_slot
from sparkwal.protocol.task import TaskResult
from sparkwal.record import CommitHeader, Inline, Txns
from sparkwal.store.base import Store

# Appends without a name of their own: their entry guards the record that carries
# it and is dropped by the next, since nobody will ask for it again.
ANONYMOUS = "append:"


def commit(
    open_store: Callable[[], Store],
    results: Sequence[TaskResult],
    hints: Hints,
    clock: Clock,
    ttl_ms: int,
    codec: str | None,
) -> int | None:
    """Make one microbatch durable: 1 PUT, or nothing when it has no rows or is a replay.

    Args:
        results: of every task, at least one.

    Returns:
        The position, or None when there was nothing to write.

    Raises FencedError (not committed), StoreUnavailableError (not committed),
    OutcomeUnknownError (perhaps committed; the restart finds out).
    """
    plan = results[0].plan
    if any(result.plan.plan_id != plan.plan_id for result in results):
        raise FencedError(
            "the tasks of this microbatch ran under different plans; nothing was committed. "
            "Restart with the same checkpoint"
        )
    written = sorted((r for r in results if r.batch or r.inline), key=lambda r: r.partition)
    if not written:
        if any(result.skipped for result in results):
            first = results[0]
            events.emit("skipped_replay", query_id=first.query_id, batch_id=first.batch_id)
        # The window was planned and not used; every task is done, so it is free again.
        remember_committed(hints, plan, plan.leadership, clock)
        return None
    store = open_store()
    if _expired(plan, clock, ttl_ms):
        _check_claim(store, plan)
    header, data = _record(plan, written, clock, codec)
    put_record(store, plan.prefix, header, data)
    # Again: the driver may have slept between the check and the PUT.
    if _expired(plan, clock, ttl_ms) and not _is_head(store, plan, header):
        events.emit("skipped_replay", query_id=header.query_id, batch_id=header.batch_id)
        return None
    events.emit(
        "durable",
        position=header.position,
        rows=header.rows,
        query_id=header.query_id,
        batch_id=header.batch_id,
    )
    after = replace(
        plan.leadership,
        next_position=plan.position + 1,
        txns=header.txns,
        timestamp_ms=header.timestamp_ms,
    )
    remember_committed(hints, plan, after, clock)
    return header.position


def put_record(store: Store, prefix: str, header: CommitHeader, data: bytes) -> None:
    """Put a commit record at its slot; returns when it is durable.

    Raises FencedError, StoreUnavailableError (not durable), OutcomeUnknownError.
    """
    where = f"position {header.position} of {store.url}/{prefix}"
    try:
        if not store.put_if_absent(numbering.key(prefix, header.number), data):
            check_ours(store, prefix, header)
    except StoreUnavailableError as error:
        # Once a request may have arrived, "failed" would be a guess.
        if not error.maybe_applied:
            raise
        raise OutcomeUnknownError(
            f"the commit of {where} was sent and not answered ({error}). It may be durable: "
            "restart with the same checkpoint (or open a new appender with the same "
            "producer_id: its last_sequence), and the log itself tells whether it is; "
            "nothing is written twice"
        ) from None


def check_ours(store: Store, prefix: str, header: CommitHeader) -> None:
    """After a refusal: is the record that stands there our own, its reply lost?

    Raises FencedError if it is another's.
    """
    found = read_slot(store, prefix, header.position, header.window)
    if found is None:
        raise InvalidLogError(
            f"the record of position {header.position} of {store.url}/{prefix} was there and is "
            "gone; nothing may delete records of a live log"
        )
    # plan_id, never leader_id: another plan of this very leader is another microbatch.
    if found.header.plan_id != header.plan_id:
        raise fenced(store, prefix, found)


def _expired(plan: Plan, clock: Clock, ttl_ms: int) -> bool:
    """Whether the log may have passed this claim and collected what stood in its place:
    then the number is free again, and a PUT there succeeds outside of the log."""
    return clock.boot_id() != plan.boot_id or clock.boot_ms() - plan.planned_ms >= ttl_ms


def _is_head(store: Store, plan: Plan, header: CommitHeader) -> bool:
    """Whether a record that was put late is the log's head. If not, whether the log holds
    its microbatch is for the head's transactions to say: the record may be a stray.

    Raises FencedError when the log does not hold it.
    """
    live = find_head(store, plan.prefix, header.window).live
    if live is not None and live.header.plan_id == plan.plan_id:
        return True
    if live is None or live.header.txns.get(header.query_id, (-1, 0))[0] < header.batch_id:
        raise FencedError(
            f"this driver slept, and {store.url}/{plan.prefix} went on without it: what it put "
            f"at position {plan.position} lies outside of the log. Nothing of this microbatch "
            "was committed. Restart with the same checkpoint"
        )
    return False


def _check_claim(store: Store, plan: Plan) -> None:
    """Raises FencedError where the log has passed an expired claim."""
    head = find_head(store, plan.prefix, plan.leadership.window)
    if head.live is not None and head.gap > plan.position:
        own = read_slot(store, plan.prefix, plan.position, plan.leadership.window)
        if own is None or own.header.plan_id != plan.plan_id:
            raise fenced(store, plan.prefix, own or head.live)


def with_txn(txns: Txns, query_id: str, batch_id: int, timestamp_ms: int) -> Txns:
    """The transactions after this one; entries of anonymous appends do not travel on."""
    kept = {query: last for query, last in txns.items() if not query.startswith(ANONYMOUS)}
    return {**kept, query_id: (batch_id, timestamp_ms)}


def _record(
    plan: Plan, written: list[TaskResult], clock: Clock, codec: str | None
) -> tuple[CommitHeader, bytes]:
    lead = plan.leadership
    # Never back along the log, whatever the wall clock does.
    timestamp_ms = max(clock.now_ms(), lead.timestamp_ms)
    query_id, batch_id = written[0].query_id, written[0].batch_id
    batches = tuple(r.batch for r in written if r.batch)
    inlined = [
        (r.partition, r.inline[0], list(pa.ipc.open_stream(r.inline[1])))
        for r in written
        if r.inline
    ]
    header = CommitHeader(
        number=numbering.slot(plan.position, lead.window),
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
        floor=lead.floor,
        metrics={
            "put_ms": round(max((r.put_ms for r in written), default=0.0), 3),
            "tasks": len(written),
        },
    )
    return encode_record(header, inlined, lead.spark_schema, codec)


def encode_record(
    header: CommitHeader,
    inlined: Sequence[tuple[int, int, Sequence[pa.RecordBatch]]],
    spark_schema: str,
    codec: str | None,
) -> tuple[CommitHeader, bytes]:
    """The record with its rows behind the header, one partition after the other.

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
        frames = [writer.frame(schema.conform(batch, target)) for batch in batches]
        data = b"".join(frames)
        entries.append(Inline(partition, rows, len(frames), len(data), zlib.crc32(data)))
        chunks.append(data)
    stored = header.bytes + sum(entry.bytes for entry in entries)
    header = replace(header, inline=tuple(entries), bytes=stored)
    prefix, tail, _ = writer.finish(header)
    return header, b"".join([prefix, *chunks, tail])
