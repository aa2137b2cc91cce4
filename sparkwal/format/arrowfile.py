"""One object: an Arrow IPC file whose schema metadata holds the header (PROTOCOL §2)."""

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from isal.isal_zlib import crc32, crc32_combine

from sparkwal.errors import InvalidLogError
from sparkwal.format import frames, schema
from sparkwal.format.header import Frame, Header, crc_hex, from_metadata, to_json, to_metadata

MAGIC = b"ARROW1\x00\x00"
END = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_PREAMBLE = len(MAGIC) + 8  # magic, continuation marker, length of the schema message
# Placeholder for the header's CRC until the header is final; no name or JSON contains it.
_DRAFT_CRC = b"\x01draft\x01\x02"
_END_OF_STREAM = _CONTINUATION + b"\x00\x00\x00\x00"
# Arrow's zstd costs 0.1 ms for a frame however small, in writing and in reading, and lz4 0.02 ms.
_SMALL = 64 * 2**10
# A reader holds a frame whole. Beyond some 100 MB the JVM of a small driver cannot.
LARGEST_FRAME = 64 * 2**20
# Bytes before the first frame. Readers accept no more, so that a damaged length allocates nothing.
LARGEST_FRONT = 256 * 2**20


class FileWriter:
    """Writes one object, frame by frame.

    `frame` returns the bytes of one record batch; `finish` the prefix that stands before the first
    frame and the bytes after the last. The caller joins them, or uploads them in parts. `draft` is
    the header with every number that is not known yet at its widest. A file whose first frame is
    smaller than 64 KiB is compressed by lz4 instead of zstd.
    """

    def __init__(self, draft: Header, spark_schema: str, compression: str | None) -> None:
        self._draft = to_json(draft)
        metadata = to_metadata(self._draft, _DRAFT_CRC, spark_schema)
        self._schema = schema.to_arrow(spark_schema).with_metadata(metadata)
        self._compression = compression
        self._sink = io.BytesIO()
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._prefix = b""  # Arrow writes it together with what comes first after it
        self.size = 0  # bytes so far, the prefix included
        self.prefix_size = 0  # known after the first frame
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
        """Close the file: (final prefix, bytes after the last frame, CRC-32 of the whole).

        A `block` of other bytes stands between the mark that ends the stream and the footer:
        readers of streams stop before it, readers of files follow the footer, and neither fetches
        it with the header. Raises InvalidLogError for a header that readers would refuse.
        """
        (self._writer or self._open(0)).close()
        final = to_json(header)
        room = len(self._draft) - len(final)
        if room < 0:
            raise ValueError("the final header is longer than its draft")
        final = final[:-1] + b" " * room + b"}"
        tail = self._replace(self._written(), final)
        if block:
            padding = bytes(-len(block) % 8)
            tail = b"".join([_END_OF_STREAM, block, padding, tail.removeprefix(_END_OF_STREAM)])
        prefix = _readable(self._replace(self._prefix, final), header)
        crc = crc32(prefix)
        for frame in self.frames:
            crc = crc32_combine(crc, frame.crc32, frame.length)
        return prefix, tail, crc32_combine(crc, crc32(tail), len(tail))

    def _open(self, first: int) -> pa.ipc.RecordBatchFileWriter:
        codec = "lz4" if self._compression == "zstd" and first < _SMALL else self._compression
        if first > frames.LARGEST:
            # One row, which readers take only if it is not packed too tightly.
            codec = None
        # A frame is small, and other tasks have the other cores: Arrow's threads would be slower.
        options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        return pa.ipc.new_file(self._sink, self._schema, options=options)

    def _written(self) -> bytes:
        """What Arrow wrote since the last time, without the prefix, which `finish` returns."""
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        if not self._prefix:
            self.prefix_size = self.size = needed(data)
            self._prefix, data = data[: self.size], data[self.size :]
        return data

    def _replace(self, data: bytes, final: bytes) -> bytes:
        patched = data.replace(self._draft, final, 1)
        return patched.replace(_DRAFT_CRC, crc_hex(final), 1)


def block_offset(frames_end: int) -> int:
    """Where the block of an object begins, after frames that end there."""
    return frames_end + len(_END_OF_STREAM)


def encode(header: Header, spark_schema: str, block: bytes = b"") -> bytes:
    """A whole object without rows: a leader record, or a commit. Raises as `FileWriter.finish`."""
    prefix, tail, _ = FileWriter(header, spark_schema, None).finish(header, block)
    return prefix + tail


def _readable(front: bytes, header: Header) -> bytes:
    """`front`, checked as readers do: a record that they refuse makes the log unreadable."""
    where = f"{header.kind} object {header.number}"
    try:
        if needed(front) > LARGEST_FRONT:
            raise InvalidLogError(f"{where}: a header of more than {LARGEST_FRONT} bytes")
        if open_front(front, where).header != header:
            raise InvalidLogError(f"{where}: the header reads back as another")
    except InvalidLogError as error:
        raise InvalidLogError(
            f"{error}. No reader would take this object, so it was not written"
        ) from None
    return front


def schema_crc(spark_schema: str) -> int:
    """What `Header.schema_crc32` holds for a normalized Spark schema."""
    return crc32(spark_schema.encode())


@dataclass(frozen=True)
class Opened:
    """The front of an object, each part checked; `body` is the offset of the first frame."""

    header: Header
    spark_schema: str
    body: int


def needed(front: bytes) -> int:
    """How many bytes `open_front` needs, computed from an object's first 16 bytes."""
    if len(front) < _PREAMBLE:
        return _PREAMBLE
    return _PREAMBLE + int(struct.unpack_from("<i", front, len(MAGIC) + 4)[0])


def is_cut_front(data: bytes) -> bool:
    """Whether a whole object is less than the front that it declares itself. A damaged length in a
    front does not count: the end of the file is still there."""
    begin = MAGIC + _CONTINUATION
    if not begin.startswith(data[: len(begin)]):
        return False
    if len(data) < _PREAMBLE:
        return True
    return len(data) < needed(data) <= LARGEST_FRONT and not data.endswith(END)


def open_front(data: bytes, where: str) -> Opened:
    """Decode the header of an object from its first bytes. Raises InvalidLogError for anything but
    an intact header. A damaged length allocates nothing."""
    if len(data) < _PREAMBLE or data[: len(MAGIC)] != MAGIC:
        raise InvalidLogError(f"{where}: not an Arrow IPC file; an object of the log is expected")
    if data[len(MAGIC) : len(MAGIC) + 4] != _CONTINUATION:
        raise InvalidLogError(f"{where}: no schema message at the start")
    body = needed(data)
    if not _PREAMBLE < body <= len(data):
        raise InvalidLogError(f"{where}: the schema message is cut off")
    try:
        message = pa.ipc.read_schema(pa.BufferReader(data[len(MAGIC) : body]))
        metadata = message.metadata
    except (pa.ArrowException, ValueError, OSError, KeyError):
        raise InvalidLogError(f"{where}: the schema message is damaged") from None
    header, text = from_metadata(metadata, where)
    try:
        spark_schema = schema.read(text)
    except ValueError as error:
        raise InvalidLogError(f"{where}: the Spark schema is damaged: {error}") from None
    if not message.remove_metadata().equals(schema.to_arrow(spark_schema)):
        raise InvalidLogError(f"{where}: the Arrow schema does not match the Spark schema")
    return Opened(header, spark_schema, body)


def read_frames(
    data: bytes,
    spark_schema: str,
    where: str,
    columns: list[int] | None = None,
    *,
    texts: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The record batches of whole, consecutive frames, whose CRCs were checked. Raises
    InvalidLogError.

    Args:
        columns: indices of the columns to decode; None for all.
        texts: whether to check that texts are UTF-8. Offsets are always checked.
    """
    source = _stream_start(spark_schema) + data + _END_OF_STREAM
    # As in `frame`: threads for the columns of a small frame cost more than they save.
    options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    try:
        for _ in frames.batches_in(data):
            pass
        for batch in pa.ipc.open_stream(source, options=options):
            frames.check_values(batch, texts=texts)
            yield batch
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidLogError(f"{where}: a frame cannot be decoded: {error}") from None


@lru_cache(maxsize=64)
def _stream_start(spark_schema: str) -> bytes:
    return bytes(schema.to_arrow(spark_schema).serialize())


def check_crc(data: bytes, expected: int, where: str) -> None:
    """Raises InvalidLogError unless the bytes have this CRC-32."""
    if crc32(data) != expected:
        raise InvalidLogError(f"{where}: its rows do not match their CRC-32")


def check_footer(data: bytes, where: str) -> None:
    """Raises InvalidLogError unless a whole file's end and front have the same schema, metadata and
    record batches. Readers of the log use the front, all other readers of Arrow the footer."""
    try:
        front, footer = pa.ipc.open_stream(data[len(MAGIC) :]), pa.ipc.open_file(data)
        same = footer.schema.equals(front.schema, check_metadata=True)
        same = same and frames.in_footer(data) == frames.in_stream(data, needed(data))
    except (pa.ArrowException, ValueError, OSError, KeyError) as error:
        raise InvalidLogError(f"{where}: its rows or its footer are damaged: {error}") from None
    if not same:
        raise InvalidLogError(f"{where}: its footer says something else than its front")
