"""Writes one data object: cuts rows into frames, and sends one PUT or several parts (PROTOCOL
§6)."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from isal.isal_zlib import crc32, crc32_combine

from sparkwal import events
from sparkwal.errors import (
    FencedError,
    InvalidLogError,
    RecomputedError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.format import arrowfile, frames, schema
from sparkwal.format.content import Content
from sparkwal.format.header import Batch, DataHeader, Frame, Header
from sparkwal.protocol.slots import OpenLog, SlotRecord, read_any, read_front
from sparkwal.protocol.takeover import fenced
from sparkwal.store.base import PART_SIZE, LogStore, NotFound, Upload, sound


@dataclass(frozen=True)
class TaskLimits:
    """The sizes, in bytes, at which a frame closes, rows leave the message, and a multipart upload
    begins.

    By default a record stays below 64 MiB, even with as many partitions as the window holds.
    """

    batch_size: int
    batch_timeout_ms: int
    inline_threshold: int | None
    multipart_threshold: int
    codec: str | None


def write_object(
    open_log: OpenLog,
    header: DataHeader,
    spark_schema: str,
    batches: Iterator[pa.RecordBatch],
    limits: TaskLimits,
    *,
    compare: bool = False,
) -> Batch:
    """Stream the rows into one object: one PUT, or parts if it grows too large.

    Args:
        open_log: opens the log.
        header: with the widest number as `rows`, until the count is known.
        spark_schema: the log's schema.
        batches: the rows.
        limits: see `TaskLimits`.
        compare: compute the rows' content even if the rows do not stay in memory.

    Raises:
        FencedError: another writer took the window.
        RecomputedError: an earlier attempt of the task stored other rows.
        StoreUnavailableError: the store did not answer, or lost the object.
    """
    log = open_log()
    writer = arrowfile.FileWriter(header, spark_schema, limits.codec)
    key = log.key(header.number)
    buffer: list[bytes] = []
    upload: _Parts | None = None
    content = Content() if compare else None
    tables = schema.gathered(batches, limits.batch_size, most_ms=limits.batch_timeout_ms)
    combined = (batch for table in tables for batch in table.combine_chunks().to_batches())
    parts = (part for batch in combined for part in schema.cut(batch, arrowfile.LARGEST_FRAME))
    try:
        for batch in parts:
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
    size, stored = writer.size + len(tail), tuple(writer.frames)
    sent = Batch(header.number, header.partition, writer.rows, size, crc, stored)
    # SAFETY(adopt-what-is-there) §6: a task whose key is taken names what is there
    if not created:
        if upload is None:
            rows = b"".join(buffer)
            name = log.locate(header.number)
            content = Content.of(arrowfile.read_frames(rows, spark_schema, name))
        return adopt(log, header, content, sent)
    return sent


class _Parts:
    """Cuts an object into parts. The first is sent last: its header holds the number of rows."""

    def __init__(self, upload: Upload, prefix_size: int) -> None:
        self.upload = upload
        self._first = b""
        # The number of the last full part.
        self._number = 0
        self._pieces: list[memoryview] = []
        self._room = PART_SIZE - prefix_size

    def add(self, data: bytes) -> None:
        """Append to the object. The data is copied once, into its part."""
        view = memoryview(data)
        while len(view) >= self._room:
            self._pieces.append(view[: self._room])
            view = view[self._room :]
            self._send()
        if view:
            self._pieces.append(view)
            self._room -= len(view)

    def _send(self) -> None:
        part = b"".join(self._pieces)
        self._pieces.clear()
        self._room = PART_SIZE
        self._number += 1
        if self._number == 1:
            self._first = part
        else:
            self.upload.part(self._number, (self._number - 1) * PART_SIZE, part)

    def finish(self, prefix: bytes) -> bool:
        if self._pieces:
            self._send()
        self.upload.part(1, 0, prefix + self._first)
        return self.upload.complete()


def adopt(log: LogStore, own: DataHeader, content: Content | None, sent: Batch) -> Batch:
    """The object at our key, if an attempt of this same task wrote it.

    The first attempt wins. So a retried task, a speculative one and a PUT whose reply was lost all
    end with the same object.

    Args:
        log: the log.
        own: the header of our object.
        content: the content of our rows, or None if it is unknown.
        sent: our object.

    Raises:
        FencedError: the object is another writer's.
        RecomputedError: the object holds other rows.
        StoreUnavailableError: the object is missing or incomplete.
        InvalidLogError: the object is damaged.
    """
    name = log.locate(own.number, own.window)

    def read() -> tuple[Header, Batch | None]:
        opened = read_front(log, own.number, own.window)
        header = opened.header
        if header.plan_id != own.plan_id or not isinstance(header, DataHeader):
            return header, None
        try:
            batch, stored = measure(log, opened)
        except InvalidLogError as error:
            raise _Unequal(_incomplete(name, str(error))) from None
        _check_equal(name, header, own, (batch, stored), (sent, content))
        return header, batch

    key = log.key(own.number)
    try:
        header, batch = sound(key, read, read)
    except _Unequal as unequal:
        raise unequal.error from None
    except NotFound:
        # The store may have dropped an upload with its parts after it lost the reply of Complete.
        raise StoreUnavailableError(
            f"{name} was not stored, although the store reported its key as taken. This run "
            "committed nothing. Run again with the same checkpoint"
        ) from None
    if batch is None:
        leader = read_any(log, own.position, own.window)
        if isinstance(leader, SlotRecord):
            raise fenced(log, leader)
        raise FencedError(
            f"another writer, {header.leader_id} (term {header.term}), holds {name}. This "
            "microbatch was not committed. Stop one of the two; a restart with the same "
            "checkpoint takes the log over again"
        )
    events.emit(events.Adopted(key=key, partition=own.partition))
    return batch


class _Unequal(InvalidLogError):
    """An object is not the one that this task sent. A proxy may have changed its bytes.

    Attributes:
        error: the error to raise, if a second read finds the same.
    """

    def __init__(self, error: SparkWalError) -> None:
        super().__init__(str(error))
        self.error = error


def _check_equal(
    name: str,
    header: DataHeader,
    own: DataHeader,
    candidate: tuple[Batch, Content],
    expected: tuple[Batch, Content | None],
) -> None:
    """Check that an object has the rows of this task.

    Raises:
        _Unequal: it has others.
    """
    batch, stored = candidate
    sent, content = expected
    is_own = header.stage_attempt == own.stage_attempt
    # Frames of other sizes come from another run of this attempt: a stall cuts them elsewhere. That
    # object is complete, or `measure` would have failed.
    is_cut_alike = [frame[:3] for frame in batch.frames] == [frame[:3] for frame in sent.frames]
    if is_own and is_cut_alike and batch.bytes == sent.bytes and batch.crc32 != sent.crc32:
        raise _Unequal(_incomplete(name, f"{batch.bytes} other bytes"))
    # A recomputed stage may distribute rows otherwise, so an old object would lose or double some.
    # Equal frames hold the same rows, even at other offsets: one header may be longer.
    is_same = stored == content or [f[1:] for f in batch.frames] == [f[1:] for f in sent.frames]
    if not is_own and not is_same:
        fault = "stored other rows than this one computed"
        if content is None:
            fault = (
                "stored its rows, and this one no longer has its own to compare: Spark's next "
                "attempt can"
            )
        raise _Unequal(
            RecomputedError(
                f"{name}: an earlier attempt of this task {fault}. This run of the microbatch "
                "commits nothing. Restart with the same checkpoint: the microbatch gets another "
                "window"
            )
        )


def _incomplete(name: str, what: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{name} does not hold the bytes that this task sent ({what}). This run committed "
        "nothing. Run again with the same checkpoint: the microbatch gets another window"
    )


class _Tape(io.RawIOBase):
    """Reads an object in ranges, and measures the bytes since the last `cut`."""

    def __init__(self, log: LogStore, number: int) -> None:
        self._store = log.store
        self._key = log.key(number)
        self._offset = 0
        self._ahead = b""
        self._length = self._crc = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self._ahead) < size:
            length = max(PART_SIZE, size - len(self._ahead))
            more = self._store.get_range(self._key, self._offset, length)
            if not more:
                break
            self._offset += len(more)
            self._ahead += more
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        self._length, self._crc = self._length + len(data), crc32(data, self._crc)
        return data

    def cut(self) -> tuple[int, int]:
        """(bytes, CRC-32) since the last cut."""
        measured = (self._length, self._crc)
        self._length = 0
        self._crc = 0
        return measured


def measure(log: LogStore, opened: arrowfile.Opened) -> tuple[Batch, Content]:
    """Read a data object. Returns its entry in a commit, and its content.

    Raises:
        NotFound: it is missing.
        InvalidLogError: it is damaged.
    """
    header = opened.header
    assert isinstance(header, DataHeader)
    tape = _Tape(log, header.number)
    tape.read(opened.body)
    size, crc = tape.cut()
    arrow = schema.to_arrow(opened.spark_schema)
    stored: list[Frame] = []
    content = Content()
    try:
        for message in pa.ipc.MessageReader.open_stream(tape):
            announced = frames.announced(message.metadata.to_pybytes(), message.body)
            if announced is None:
                raise ValueError("a message that is no record batch")
            frames.check_size(announced, message.body.size)
            batch = pa.ipc.read_record_batch(message, arrow)
            # A wrong offset would crash the process.
            frames.check_values(batch)
            content += Content.of([batch])
            length, part = tape.cut()
            stored.append(Frame(size, length, batch.num_rows, part))
            size, crc = size + length, crc32_combine(crc, part, length)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidLogError(f"{log.locate(header.number)}: cannot be decoded: {error}") from None
    end = b""
    while more := tape.read(PART_SIZE):
        end = (end + more)[-PART_SIZE:]
    if not end.endswith(arrowfile.END):
        raise InvalidLogError(f"{log.locate(header.number)}: it is cut off")
    length, part = tape.cut()
    if content.rows != header.rows:
        name = log.locate(header.number)
        raise InvalidLogError(f"{name}: {content.rows} rows in frames, not {header.rows}")
    size, crc = size + length, crc32_combine(crc, part, length)
    return Batch(header.number, header.partition, content.rows, size, crc, tuple(stored)), content
