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
    # The hint lives in a planner; a driver may sleep between plan and commit for
    # longer than a collected position stays protected.
    if clock.boot_id() != plan.boot_id or clock.boot_ms() - plan.planned_ms >= ttl_ms:
        _check_claim(store, plan)
    header, data = _record(plan, written, clock, codec)
    _put(store, plan, header, data)
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


def _put(store: Store, plan: Plan, header: CommitHeader, data: bytes) -> None:
    where = f"position {header.position} of {store.url}/{plan.prefix}"
    try:
        created = store.put_if_absent(numbering.key(plan.prefix, header.number), data)
        if created:
            return
        found = read_slot(store, plan.prefix, header.position, header.window)
    except StoreUnavailableError as error:
        # Once a request may have arrived, "failed" would be a guess.
        if not error.maybe_applied:
            raise
        raise OutcomeUnknownError(
            f"the commit of {where} was sent and not answered ({error}). It may be durable: "
            "restart with the same checkpoint, and the log itself tells whether it is; "
            "nothing is written twice"
        ) from None
    if found is None:
        raise InvalidLogError(
            f"the record of {where} was there and is gone; nothing may delete records of a live log"
        )
    # plan_id, never leader_id: another plan of this very leader is another microbatch.
    if found.header.plan_id != plan.plan_id:
        raise fenced(store, plan.prefix, found)


def _check_claim(store: Store, plan: Plan) -> None:
    """An old claim may have been passed by the log, and even collected behind it: then
    its number is free again, and a PUT there would succeed outside the log."""
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
    inlined = [(r.partition, *r.inline) for r in written if r.inline]
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
        bytes=sum(b.bytes for b in batches) + sum(len(data) for _, _, data in inlined),
        batches=batches,
        inline=(),
        txns=with_txn(lead.txns, query_id, batch_id, timestamp_ms),
        floor=lead.floor,
        metrics={
            "put_ms": round(max((r.put_ms for r in written), default=0.0), 3),
            "tasks": len(written),
        },
    )
    if not inlined:
        return header, arrowfile.encode(header, lead.spark_schema)
    return _with_inline(header, inlined, lead.spark_schema, codec)


def _with_inline(
    header: CommitHeader,
    inlined: list[tuple[int, int, bytes]],
    spark_schema: str,
    codec: str | None,
) -> tuple[CommitHeader, bytes]:
    """The record with its rows behind the header, one partition after the other."""
    widest = tuple(
        Inline(partition, rows, 2**63 - 1, 2**63 - 1, 2**32 - 1) for partition, rows, _ in inlined
    )
    writer = arrowfile.FileWriter(replace(header, inline=widest), spark_schema, codec)
    target = schema.to_arrow(spark_schema)
    chunks: list[bytes] = []
    entries: list[Inline] = []
    for partition, rows, stream in inlined:
        frames = [
            writer.frame(schema.conform(batch, target)) for batch in pa.ipc.open_stream(stream)
        ]
        data = b"".join(frames)
        entries.append(Inline(partition, rows, len(frames), len(data), zlib.crc32(data)))
        chunks.append(data)
    header = replace(header, inline=tuple(entries))
    prefix, tail, _ = writer.finish(header)
    return header, b"".join([prefix, *chunks, tail])
