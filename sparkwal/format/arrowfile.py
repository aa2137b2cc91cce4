"""Writes and reads objects: Arrow IPC files with the header in the schema's metadata (§2)."""

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
from isal.isal_zlib import crc32, crc32_combine

from sparkwal.errors import InvalidLogError
from sparkwal.format import frames, schema
from sparkwal.format.header import (
    HEADER_KEY,
    Frame,
    Header,
    crc_hex,
    from_metadata,
    to_json,
    to_metadata,
)

MAGIC = b"ARROW1\x00\x00"
END = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
# The magic, the continuation marker and the length of the schema message.
_PREAMBLE = len(MAGIC) + 8
# A placeholder for the header's CRC until the header is final. No name or JSON contains it.
_DRAFT_CRC = b"\x01draft\x01\x02"
_END_OF_STREAM = _CONTINUATION + b"\x00\x00\x00\x00"
# Below this size frames are compressed by lz4, which takes 0.02 ms for one. zstd takes at least
# 0.1 ms, in writing and in reading.
_SMALL = 64 * 2**10
# A reader holds a complete frame. The JVM of a small driver cannot hold much more than 100 MB.
LARGEST_FRAME = 64 * 2**20
# The most bytes before the first frame. Readers refuse more before they allocate memory.
LARGEST_FRONT = 64 * 2**20


class FileWriter:
    """Writes one object, frame by frame.

    `frame` returns the bytes of one record batch. `finish` returns the prefix before the first
    frame and the bytes after the last frame. The caller joins them, or uploads them in parts.

    Args:
        draft: the header. Each number that is still unknown has as many digits as it may get.
        compression: "zstd", "lz4" or None. If the first frame is smaller than 64 KiB, lz4 replaces
            zstd.

    Attributes:
        size: the number of bytes so far, with the prefix.
        prefix_size: the size of the prefix, after the first frame.
    """

    def __init__(self, draft: Header, spark_schema: str, compression: str | None) -> None:
        self._draft = to_json(draft)
        metadata = to_metadata(self._draft, _DRAFT_CRC, spark_schema)
        self._schema = schema.to_arrow(spark_schema).with_metadata(metadata)
        self._compression = compression
        self._sink = io.BytesIO()
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        # Arrow writes the prefix together with the first frame, or with the end.
        self._prefix = b""
        self.size = 0
        self.prefix_size = 0
        self.frames: list[Frame] = []
        self.rows = 0

    def frame(self, batch: pa.RecordBatch) -> bytes:
        """The bytes of one record batch, which has this file's schema."""
        size = batch.nbytes
        self._writer = self._writer or self._open(size)
        self._writer.write_batch(batch)
        data = self._written()
        try:
            frames.check_size(frames.Announced(batch.num_rows, size), len(data))
        except ValueError as error:
            raise InvalidLogError(f"{error}: no reader would take these rows") from None
        self.frames.append(Frame(self.size, len(data), batch.num_rows, crc32(data)))
        self.size += len(data)
        self.rows += batch.num_rows
        return data

    def finish(self, header: Header, block: bytes = b"") -> tuple[bytes, bytes, int]:
        """Close the file.

        Args:
            header: the final header.
            block: other bytes, which are put between the end of the stream and the footer. Readers
                of streams and of files skip them.

        Returns:
            The prefix, the bytes after the last frame, and the CRC-32 of the file.

        Raises:
            InvalidLogError: readers would refuse the header.
        """
        (self._writer or self._open(0)).close()
        final = to_json(header)
        room = len(self._draft) - len(final)
        if room < 0:
            raise ValueError("the final header is longer than its draft")
        final = final[:-1] + b" " * room + b"}"
        tail = _patched(self._written(), self._draft, final)
        if block:
            padding = bytes(-len(block) % 8)
            tail = b"".join([_END_OF_STREAM, block, padding, tail.removeprefix(_END_OF_STREAM)])
        prefix = _readable(_patched(self._prefix, self._draft, final), header)
        crc = crc32(prefix)
        for frame in self.frames:
            crc = crc32_combine(crc, frame.crc32, frame.length)
        return prefix, tail, crc32_combine(crc, crc32(tail), len(tail))

    def _open(self, first: int) -> pa.ipc.RecordBatchFileWriter:
        codec = "lz4" if self._compression == "zstd" and first < _SMALL else self._compression
        if first > frames.LARGEST:
            # A frame so large has one row. Readers refuse it if it is compressed too much.
            codec = None
        # Arrow's threads would be slower: a frame is small, and other tasks use the other cores.
        options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        return pa.ipc.new_file(self._sink, self._schema, options=options)

    def _written(self) -> bytes:
        """The bytes that Arrow wrote since the last call, without the prefix."""
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        if not self._prefix:
            self.prefix_size = self.size = needed(data)
            self._prefix, data = data[: self.size], data[self.size :]
        return data


def block_offset(frames_end: int) -> int:
    """The offset of an object's block. Its last frame ends at `frames_end`."""
    return frames_end + len(_END_OF_STREAM)


def encode(header: Header, spark_schema: str, block: bytes = b"") -> bytes:
    """An object without rows: a leader record, or a commit without inlined rows.

    Raises:
        InvalidLogError: readers would refuse the header.
    """
    prefix, tail, _ = FileWriter(header, spark_schema, None).finish(header, block)
    return prefix + tail


def _readable(front: bytes, header: Header) -> bytes:
    """Check the front of an object as readers do. A record that they refuse would break the log."""
    location = f"{header.kind} object {header.number}"
    try:
        if needed(front) > LARGEST_FRONT:
            raise InvalidLogError(f"{location}: a header of more than {LARGEST_FRONT} bytes")
        if open_front(front, location).header != header:
            raise InvalidLogError(f"{location}: the header reads back as another")
    except InvalidLogError as error:
        raise InvalidLogError(
            f"{error}. No reader would take this object, so it was not written"
        ) from None
    return front


def schema_crc(spark_schema: str) -> int:
    """The value of `Header.schema_crc32` for a normalized Spark schema."""
    return crc32(spark_schema.encode())


@dataclass(frozen=True)
class Opened:
    """The checked front of an object. `body` is the offset of the first frame."""

    header: Header
    spark_schema: str
    body: int
    # The text of the header, as its writer sent it.
    text: bytes = field(default=b"", kw_only=True, repr=False, compare=False)


def needed(front: bytes) -> int:
    """The number of bytes that `open_front` needs, from an object's first 16 bytes."""
    if len(front) < _PREAMBLE:
        return _PREAMBLE
    return _PREAMBLE + int(struct.unpack_from("<i", front, len(MAGIC) + 4)[0])


def is_cut_front(data: bytes) -> bool:
    """Whether a complete object is shorter than the front that it declares.

    A damaged length in a front does not count: the end of the file still exists then.
    """
    begin = MAGIC + _CONTINUATION
    if not begin.startswith(data[: len(begin)]):
        return False
    if len(data) < _PREAMBLE:
        return True
    return len(data) < needed(data) <= LARGEST_FRONT and not data.endswith(END)


def is_cut_end(data: bytes) -> bool:
    """Whether the end of a complete object is missing. A few damaged bytes do not count."""
    return sum(a == b for a, b in zip(data[-len(END) :], END, strict=True)) <= len(END) // 2


def open_front(data: bytes, location: str) -> Opened:
    """Decode the header of an object from its first bytes. A damaged length allocates no memory.

    Raises:
        InvalidLogError: the header is not intact.
    """
    if len(data) < _PREAMBLE or data[: len(MAGIC)] != MAGIC:
        raise InvalidLogError(
            f"{location}: not an Arrow IPC file; an object of the log is expected"
        )
    if data[len(MAGIC) : len(MAGIC) + 4] != _CONTINUATION:
        raise InvalidLogError(f"{location}: no schema message at the start")
    body = needed(data)
    if not _PREAMBLE < body <= len(data):
        raise InvalidLogError(f"{location}: the schema message is cut off")
    front = data[len(MAGIC) : body]
    for layout in _layouts.get(len(front), ()):
        text = layout.header_in(front)
        if text is not None:
            metadata = to_metadata(text, crc_hex(text), layout.spark_schema)
            header, _ = from_metadata(metadata, location)
            return Opened(header, layout.spark_schema, body, text=text)
    try:
        message = pa.ipc.read_schema(pa.BufferReader(front))
        metadata = message.metadata
    except (pa.ArrowException, ValueError, OSError, KeyError):
        raise InvalidLogError(f"{location}: the schema message is damaged") from None
    header, stored_schema = from_metadata(metadata, location)
    try:
        spark_schema = schema.read(stored_schema)
    except ValueError as error:
        raise InvalidLogError(f"{location}: the Spark schema is damaged: {error}") from None
    if not message.remove_metadata().equals(schema.to_arrow(spark_schema)):
        raise InvalidLogError(f"{location}: the Arrow schema does not match the Spark schema")
    _remember(_layout(spark_schema, len(metadata[HEADER_KEY])))
    return Opened(header, spark_schema, body, text=metadata[HEADER_KEY])


class _Layout(NamedTuple):
    """The schema message that this library writes for one schema and one size of the header.

    A message that differs from it only in the header and the header's CRC-32 has that schema. So
    Arrow need not decode it, which would take longer than all other checks of a record.

    Attributes:
        spark_schema: the schema.
        draft: the text in place of the header.
        message: the message with `draft` and a draft of the CRC-32.
        begin: the offset of `draft`. The four bytes before it hold its size.
    """

    spark_schema: str
    draft: bytes
    message: bytes
    begin: int

    def header_in(self, message: bytes) -> bytes | None:
        """The text of the header in a message, or None if the message has another layout."""
        size = slice(self.begin - 4, self.begin)
        if message[size] != self.message[size]:
            return None
        text = message[self.begin : self.begin + len(self.draft)]
        return text if _patched(self.message, self.draft, text) == message else None


# The layouts of the messages that were read lately, by the size of the message.
_layouts: dict[int, tuple[_Layout, ...]] = {}
_MOST_LAYOUTS = 16


@lru_cache(maxsize=256)
def _layout(spark_schema: str, size: int) -> _Layout:
    draft = b"\x01" * size
    metadata = to_metadata(draft, _DRAFT_CRC, spark_schema)
    message = schema.to_arrow(spark_schema).with_metadata(metadata).serialize().to_pybytes()
    return _Layout(spark_schema, draft, message, message.index(draft))


def _remember(layout: _Layout) -> None:
    if len(_layouts) >= _MOST_LAYOUTS:
        _layouts.clear()
    size = len(layout.message)
    others = tuple(other for other in _layouts.get(size, ()) if other is not layout)
    _layouts[size] = (layout, *others)[:_MOST_LAYOUTS]


def _patched(data: bytes, draft: bytes, header: bytes) -> bytes:
    """Put a header in place of its draft, and its CRC-32."""
    return data.replace(draft, header, 1).replace(_DRAFT_CRC, crc_hex(header), 1)


def read_frames(
    data: bytes,
    spark_schema: str,
    location: str,
    columns: list[int] | None = None,
    *,
    texts: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Decode complete, consecutive frames, whose CRCs were checked.

    Args:
        columns: the indices of the columns to decode, by default all.
        texts: whether to check that texts are UTF-8. Offsets are always checked.

    Raises:
        InvalidLogError: a frame cannot be decoded, or is too large.
    """
    source = _stream_start(spark_schema) + data + _END_OF_STREAM
    # Arrow's threads would be slower, as in `FileWriter._open`.
    options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    try:
        for _ in frames.batches_in(data):
            pass
        for batch in pa.ipc.open_stream(source, options=options):
            frames.check_values(batch, texts=texts)
            yield batch
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidLogError(f"{location}: a frame cannot be decoded: {error}") from None


@lru_cache(maxsize=64)
def _stream_start(spark_schema: str) -> bytes:
    return bytes(schema.to_arrow(spark_schema).serialize())


def check_crc(data: bytes, expected: int, location: str) -> None:
    """Check the CRC-32 of rows.

    Raises:
        InvalidLogError: the CRC-32 differs.
    """
    if crc32(data) != expected:
        raise InvalidLogError(f"{location}: its rows do not match their CRC-32")


def check_footer(data: bytes, location: str) -> None:
    """Check that the footer of a file agrees with its front: schema, metadata and record batches.

    Readers of the log use the front, and other readers of Arrow use the footer.

    Raises:
        InvalidLogError: they differ, or one is damaged.
    """
    try:
        front, footer = pa.ipc.open_stream(data[len(MAGIC) :]), pa.ipc.open_file(data)
        same = footer.schema.equals(front.schema, check_metadata=True)
        same = same and frames.in_footer(data) == frames.in_stream(data, needed(data))
    except (pa.ArrowException, ValueError, OSError, KeyError) as error:
        raise InvalidLogError(f"{location}: its rows or its footer are damaged: {error}") from None
    if not same:
        raise InvalidLogError(f"{location}: its footer differs from its front")
