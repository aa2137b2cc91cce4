"""Bytes in place of a segment: whole ones, and parts from which a segment is made."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.errors import SparkWalError
from sparkwal.format import arrowfile, keys, schema, segment
from sparkwal.format.header import CRC_KEY, HEADER_KEY, SCHEMA_KEY, SegmentHeader, crc_hex
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.segments import Opened
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.rows import pieces_of
from sparkwal.reading.segmenting import make_segments, unusable_blocks
from sparkwal.reading.segments import Segments
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, Query, hints_in

_BLOCK = 3
_POSITIONS = 7


@contextmanager
def _short_blocks() -> Iterator[None]:
    before = keys.BLOCK
    keys.BLOCK = _BLOCK
    try:
        yield
    finally:
        keys.BLOCK = before


def _range_of(store: MemoryStore) -> LogRange:
    log = LogRange(SourceOptions(path="memory"), "default", LogStore(store, "wal"))
    log.refresh()
    return log


@cache
def _sound() -> dict[str, bytes]:
    """The objects of a log with two segments."""
    store = MemoryStore()
    with tempfile.TemporaryDirectory() as folder, _short_blocks():
        query = Query(store, hints_in(Path(folder)), limits=LIMITS)
        for batch_id in range(_POSITIONS - 1):
            query.microbatch(batch_id, (batch_id,), (batch_id, 7))
        make_segments(_range_of(store))
    return store.objects


def _key() -> str:
    """The key of the first segment."""
    return max(key for key in _sound() if "/segments/" in key)


def read(data: bytes) -> None:
    """Bytes in place of a segment, and as the parts of one."""
    with _short_blocks():
        _read_all(_joined(data) or data)


def _read_all(body: bytes) -> None:
    store = MemoryStore()
    store.objects.update({**_sound(), _key(): body})
    log = _range_of(store)
    assert log.spark_schema is not None
    target = schema.to_arrow(log.spark_schema)
    usable = [each for each in Segments(log.view).stretches(0, log.gap) if isinstance(each, Opened)]
    records = [record for each in usable for record in each.records(0, log.gap)]
    with suppress(SparkWalError):
        pieces = [piece for record in records for piece in pieces_of(log.log, record)]
        for columns in (target, pa.schema([]), pa.schema([*target, ("more", pa.string())])):
            for _ in log.rows(pieces, columns):
                pass
    # As `verify` and makers do.
    unusable_blocks(log, [0, 1], whole=True)


def _joined(data: bytes) -> bytes:
    """A segment with the right CRC-32s, from its header, its schema, its records and the bytes of
    its rows, with zero bytes between them."""
    parts = data.split(b"\0", 3)
    try:
        text, spark_schema, records, rows = parts
        header = json.loads(text)
        header["schema_crc32"] = crc32(spark_schema)
        frames = header["frames"]
        first = _frame_of(records, spark_schema.decode())
        frames[0] = [0, len(first), len(json.loads(records)), 0]
        for number, frame in enumerate(frames[1:], 1):
            before = frames[number - 1]
            frame[0] = before[0] + before[1]
        content = first + rows
        for frame in frames:
            frame[3] = crc32(content[frame[0] : frame[0] + frame[1]])
        body = b""
        # The length of the header depends on the offsets in it.
        for _ in range(4):
            body = _front(json.dumps(header).encode(), spark_schema)
            moved = len(body) - frames[0][0]
            for frame in frames:
                frame[0] += moved
        return body + content
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError):
        return b""
    except (RecursionError, pa.ArrowException, MemoryError, SparkWalError):
        return b""


def _front(header: bytes, spark_schema: bytes) -> bytes:
    metadata = {HEADER_KEY: header, CRC_KEY: crc_hex(header), SCHEMA_KEY: spark_schema}
    columns = schema.to_arrow(schema.read(spark_schema))
    return arrowfile.MAGIC + bytes(columns.with_metadata(metadata).serialize())


def _frame_of(records: bytes, spark_schema: str) -> bytes:
    """The frame of records: a list of [header, schema, offset of the rows, copied parts]."""
    target = schema.to_arrow(schema.read(spark_schema.encode()))
    values = dict(zip(segment.Segment.columns, zip(*json.loads(records), strict=True), strict=True))
    texts = [json.dumps(header).encode() for header in values[segment.Segment.columns[0]]]
    values[segment.Segment.columns[0]] = tuple(texts)
    arrays = [
        pa.array(values[column.name], column.type)
        if column.name in values
        else pa.nulls(len(texts), column.type)
        for column in target
    ]
    return bytes(pa.RecordBatch.from_arrays(arrays, schema=target).serialize())


def seeds() -> list[bytes]:
    """A segment, and its parts."""
    with _short_blocks():
        body = _sound()[_key()]
        front = arrowfile.open_front(body, "seed")
        assert isinstance(front.header, SegmentHeader)
        whole = segment.open_segment(body, front.header.number, _key(), "seed")
        records = [
            (json.loads(copy.text), copy.spark_schema, copy.body, "1" * len(copy.parts))
            for copy in whole.records(body[front.body : whole.end])
        ]
        end = whole.of_rows[-1].end
        assert front.text is not None
        parts: list[Any] = [front.text, front.spark_schema.encode(), json.dumps(records).encode()]
        seed = b"\0".join([*parts, body[whole.end : end]])
        joined = _joined(seed)
        sound = segment.open_segment(joined, front.header.number, _key(), "seed")
        assert sound.records(joined[sound.header.frames[0].offset : sound.end])
    return [body, seed]
