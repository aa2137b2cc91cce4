"""One data object: rows cut into frames, one PUT, or parts once it grows too large."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from sparkwal.format import arrowfile
from sparkwal.format.content import Content
from sparkwal.format.header import Batch, DataHeader
from sparkwal.protocol.adopt import adopt
from sparkwal.store.base import PART_SIZE, Upload
from sparkwal.store.log_store import LogStore


@dataclass(frozen=True)
class TaskLimits:
    """When a frame closes, when rows stay in the message, when a multipart upload begins; in bytes.
    `inline_threshold` None: a record stays below 64 MiB, even of as many partitions as the window
    holds."""

    batch_size: int
    batch_timeout_ms: int
    inline_threshold: int | None
    multipart_threshold: int
    codec: str | None


def frames(
    batches: Iterator[pa.RecordBatch], size: int, timeout_ms: int
) -> Iterator[pa.RecordBatch]:
    """Join batches into frames: one closes when it reaches `size` bytes (the batch that crosses is
    included) or its first row is `timeout_ms` old."""
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


def write_object(
    open_log: Callable[[], LogStore],
    header: DataHeader,
    spark_schema: str,
    batches: Iterator[pa.RecordBatch],
    limits: TaskLimits,
    *,
    compare: bool = False,
) -> Batch:
    """Stream the rows into one object: one PUT, or parts once it grows too large.

    Args:
        header: with `rows` at its widest, until the count is known.
        compare: compute the rows' content even if the rows do not stay in memory.

    Raises FencedError, RecomputedError, StoreUnavailableError.
    """
    log = open_log()
    writer = arrowfile.FileWriter(header, spark_schema, limits.codec)
    key = log.key(header.number)
    buffer: list[bytes] = []
    upload: _Parts | None = None
    content = Content() if compare else None
    try:
        for batch in frames(batches, limits.batch_size, limits.batch_timeout_ms):
            data = writer.frame(batch)
            if content is not None:
                content += Content.of([batch])
            if upload is not None:
                upload.add(data)
                continue
            buffer.append(data)
            if writer.size > limits.multipart_threshold:
                upload = _Parts(log.store.upload(key), writer.prefix_size)
                while buffer:
                    upload.add(buffer.pop(0))
        prefix, tail, crc = writer.finish(replace(header, rows=writer.rows))
        if upload is None:
            created = log.store.put_if_absent(key, b"".join([prefix, *buffer, tail]))
        else:
            upload.add(tail)
            created = upload.finish(prefix)
    except BaseException:
        if upload is not None:
            upload.upload.abort()
        raise
    # SAFETY(adopt-what-is-there) §6: a task whose key is taken names what is there, not its own
    # bytes
    if not created:
        if upload is None:
            rows = b"".join(buffer)
            where = log.where(header.number)
            content = Content.of(arrowfile.read_frames(rows, spark_schema, where))
        return adopt(log, header, content)
    return Batch(
        number=header.number,
        partition=header.partition,
        rows=writer.rows,
        bytes=writer.size + len(tail),
        crc32=crc,
        frames=tuple(writer.frames),
    )


class _Parts:
    """Cuts a growing object into parts and sends the first one last: its header gives the number of
    rows."""

    def __init__(self, upload: Upload, prefix_size: int) -> None:
        self.upload = upload
        self._first: bytes | None = None
        self._number = 1
        self._offset = prefix_size
        self._held: list[memoryview] = []
        self._room = PART_SIZE - prefix_size

    def add(self, data: bytes) -> None:
        """Append to the object. The data is copied once, into its part."""
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
