"""One Spark partition of a microbatch: its rows into one object, or into the message."""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from sparkwal import arrowfile, events, numbering, schema
from sparkwal.errors import FencedError, InvalidLogError, OptionError, StoreUnavailableError
from sparkwal.protocol.leadership import fenced
from sparkwal.protocol.plan import Plan
from sparkwal.protocol.slots import read_front, read_slot
from sparkwal.record import Batch, DataHeader
from sparkwal.store.base import NotFound, Store, Upload

PART_SIZE = 8 * 2**20
_MANY = 2**63 - 1  # the widest row count, until the count is known


# Measured: rows save a PUT's time on their way through the driver up to 250 KiB a partition.
# 64 KiB keeps 200 partitions at 13 MB there.
_INLINE_THRESHOLD = 64 * 2**10
# Of a log with room for 999 partitions; more room must not make larger records.
_MOST_INLINED = 64 * 2**20


@dataclass(frozen=True)
class TaskLimits:
    """When a frame closes, when rows stay in the message, when an upload begins.

    Sizes in bytes, `batch_timeout_ms` in milliseconds; `inline_threshold` None for a
    default that keeps the record of as many partitions as the window holds below 64 MiB.
    """

    batch_size: int
    batch_timeout_ms: int
    inline_threshold: int | None
    multipart_threshold: int
    codec: str | None


@dataclass(frozen=True)
class TaskResult:
    """What one task did, for the commit.

    Attributes:
        skipped: the log already holds this microbatch; nothing was written.
        batch: the data object, or None.
        inline: (rows, record batches as an Arrow IPC stream), or None.
    """

    plan: Plan
    query_id: str
    batch_id: int
    partition: int
    skipped: bool
    batch: Batch | None
    inline: tuple[int, bytes] | None
    put_ms: float


def write_partition(
    open_store: Callable[[], Store],
    plan: Plan,
    query_id: str,
    batch_id: int,
    partition: int,
    batches: Iterator[pa.RecordBatch],
    limits: TaskLimits,
) -> TaskResult:
    """Write the rows of one partition under `plan`; safe to run any number of times.

    Args:
        batches: the partition's rows in order; always consumed to the end, because
            stateful operators upstream commit their state only then.

    Raises FencedError, StoreUnavailableError, OptionError (too many partitions).
    """
    most = numbering.max_partitions(plan.leadership.window)
    if partition >= most:
        raise OptionError(
            f"partition {partition} of a microbatch, but this log's window holds {most}: "
            f"coalesce({most}) before writing, or create a log with a larger windowSize"
        )
    result = TaskResult(plan, query_id, batch_id, partition, False, None, None, 0.0)
    # A replay: the reply of the commit was lost, the checkpoint was restored, or
    # Spark's own commit log lost its last entry. The log already has these rows.
    if batch_id <= plan.leadership.txns.get(query_id, (-1, 0))[0]:
        for _ in batches:
            pass
        return replace(result, skipped=True)
    target = schema.to_arrow(plan.leadership.spark_schema)
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
        return replace(result, inline=(sum(b.num_rows for b in first), _stream(first, target)))
    started = time.monotonic()
    batch = _write_object(open_store, result, _chain(first, rows), limits)
    return replace(result, batch=batch, put_ms=(time.monotonic() - started) * 1000)


def _chain(first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while first:
        yield first.pop(0)
    yield from rest


def _stream(batches: list[pa.RecordBatch], target: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, target) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def frames(
    batches: Iterator[pa.RecordBatch], size: int, timeout_ms: int
) -> Iterator[pa.RecordBatch]:
    """Join batches into frames: one closes when it reaches `size` bytes (the batch
    that crosses is included) or its first row is `timeout_ms` old."""
    held: list[pa.RecordBatch] = []
    held_size, opened = 0, 0.0
    for batch in batches:
        if not held:
            opened = time.monotonic()
        held.append(batch)
        held_size += batch.nbytes
        if held_size >= size or (time.monotonic() - opened) * 1000 >= timeout_ms:
            yield _joined(held)
            held, held_size = [], 0
    if held:
        yield _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def _write_object(
    open_store: Callable[[], Store],
    task: TaskResult,
    batches: Iterator[pa.RecordBatch],
    limits: TaskLimits,
) -> Batch:
    """Stream the rows into one object: one PUT, or parts once it grows too large."""
    header = _data_header(task)
    lead = task.plan.leadership
    writer = arrowfile.FileWriter(header, lead.spark_schema, limits.codec)
    key = numbering.key(task.plan.prefix, header.number)
    buffer: list[bytes] = []
    upload: _Parts | None = None
    try:
        for batch in frames(batches, limits.batch_size, limits.batch_timeout_ms):
            data = writer.frame(batch)
            if upload is not None:
                upload.add(data)
                continue
            buffer.append(data)
            if writer.size > limits.multipart_threshold:
                upload = _Parts(open_store().upload(key), writer.prefix_size)
                while buffer:
                    upload.add(buffer.pop(0))
        prefix, tail, crc = writer.finish(replace(header, rows=writer.rows))
        if upload is None:
            created = open_store().put_if_absent(key, b"".join([prefix, *buffer, tail]))
        else:
            upload.add(tail)
            created = upload.finish(prefix)
    except BaseException:
        if upload is not None:
            upload.upload.abort()
        raise
    if not created:
        return _adopt(open_store(), task, header, key)
    return Batch(
        number=header.number,
        partition=task.partition,
        rows=writer.rows,
        bytes=writer.size + len(tail),
        crc32=crc,
        frames=tuple(writer.frames),
    )


class _Parts:
    """Cuts a growing object into parts, and holds back its beginning: the header
    there tells the number of rows, which is known only at the end."""

    def __init__(self, upload: Upload, prefix_size: int) -> None:
        self.upload = upload
        self._first: bytes | None = None
        self._number = 1
        self._offset = prefix_size
        self._held: list[memoryview] = []
        self._room = PART_SIZE - prefix_size

    def add(self, data: bytes) -> None:
        """More of the object; copied once, into its part."""
        view = memoryview(data)
        while len(view) >= self._room:
            self._held.append(view[: self._room])
            view = view[self._room :]
            self._send()
        if view:
            self._held.append(view)
            self._room -= len(view)

    def _send(self) -> None:
        part = b"".join(self._held)
        self._held.clear()
        self._room = PART_SIZE
        if self._first is None:
            self._first = part
        else:
            self._number += 1
            self.upload.part(self._number, self._offset, part)
        self._offset += len(part)

    def finish(self, prefix: bytes) -> bool:
        if self._held:
            self._send()
        self.upload.part(1, 0, prefix + (self._first or b""))
        return self.upload.complete()


def _data_header(task: TaskResult) -> DataHeader:
    lead = task.plan.leadership
    return DataHeader(
        number=numbering.data(task.plan.position, lead.window, task.partition),
        position=task.plan.position,
        window=lead.window,
        leader_id=lead.leader_id,
        term=lead.term,
        plan_id=task.plan.plan_id,
        in_flight_limit=lead.in_flight_limit,
        timestamp_ms=lead.timestamp_ms,
        schema_crc32=arrowfile.schema_crc(lead.spark_schema),
        query_id=task.query_id,
        batch_id=task.batch_id,
        partition=task.partition,
        rows=_MANY,
    )


def _adopt(store: Store, task: TaskResult, ours: DataHeader, key: str) -> Batch:
    """The object that stands at our key, if another attempt of this very task wrote it.

    The first attempt wins, so that a retried or speculative task, and a PUT whose
    reply was lost, all end with the same object. Anyone else's: we are fenced.
    """
    where = f"{store.url}/{key}"
    try:
        _, opened = read_front(store, key)
    except NotFound:
        # An upload whose Complete got lost may have vanished with its parts.
        raise StoreUnavailableError(
            f"{where} was not stored, though the store said its key was taken; nothing was "
            "acknowledged. Run again with the same checkpoint"
        ) from None
    header = opened.header
    if header.plan_id != ours.plan_id or not isinstance(header, DataHeader):
        leader = read_slot(store, task.plan.prefix, ours.position, ours.window)
        if leader is not None:
            raise fenced(store, task.plan.prefix, leader)
        raise FencedError(
            f"another writer, {header.leader_id} (term {header.term}), holds {where}. Nothing of "
            "this microbatch was committed. Stop one of the two; a restart with the same "
            "checkpoint takes the log over again"
        )
    events.emit("adopted", key=key, partition=task.partition)
    return _measure(store, key, header, opened)


class _Tape(io.RawIOBase):
    """Reads an object in ranges and keeps what was read since `cut`."""

    def __init__(self, store: Store, key: str, offset: int) -> None:
        self._store, self._key, self._offset = store, key, offset
        self._ahead = b""
        self._kept: list[bytes] = []

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self._ahead) < size:
            more = self._store.get_range(
                self._key, self._offset, max(PART_SIZE, size - len(self._ahead))
            )
            if not more:
                break
            self._offset += len(more)
            self._ahead += more
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        self._kept.append(data)
        return data

    def cut(self) -> bytes:
        data = b"".join(self._kept)
        self._kept.clear()
        return data


def _measure(store: Store, key: str, header: DataHeader, opened: arrowfile.Opened) -> Batch:
    """What the commit record says of an object, from the object itself."""
    tape = _Tape(store, key, 0)
    tape.read(opened.body)
    crc = zlib.crc32(tape.cut())
    arrow = schema.to_arrow(opened.spark_schema)
    found: list[arrowfile.Frame] = []
    offset, rows = opened.body, 0
    for message in pa.ipc.MessageReader.open_stream(tape):
        count = pa.ipc.read_record_batch(message, arrow).num_rows
        data = tape.cut()
        found.append((offset, len(data), count, zlib.crc32(data)))
        crc = zlib.crc32(data, crc)
        offset += len(data)
        rows += count
    while tape.read(PART_SIZE):
        pass
    tail = tape.cut()
    if rows != header.rows:
        raise InvalidLogError(
            f"{store.url}/{key}: {rows} rows in the frames, {header.rows} in the header"
        )
    return Batch(
        number=header.number,
        partition=header.partition,
        rows=rows,
        bytes=offset + len(tail),
        crc32=zlib.crc32(tail, crc),
        frames=tuple(found),
    )
