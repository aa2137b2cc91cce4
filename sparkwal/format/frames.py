"""Checks messages of Arrow's IPC format before Arrow decodes them.

Arrow allocates the size that a message announces, and follows the offsets in its buffers. A CRC-32
proves only that the bytes are those that a writer sent, and the writer may be hostile. So sizes and
offsets are checked here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

# The most bytes of an unpacked record batch. If it is compressed by a factor of at most
# `_MOST_PACKED`, it may have `_LARGEST_OF_ALL`: twice the most that a column of texts can hold.
LARGEST = 256 * 2**20
_LARGEST_OF_ALL = 2**32
_MOST_PACKED = 1000

_CONTINUATION = 0xFFFFFFFF
# The continuation marker, and the length of the metadata.
_FRAMING = struct.Struct("<Ii")
_TABLE = struct.Struct("<I")
_LAYOUT = struct.Struct("<i")
_SHORT = struct.Struct("<H")
_OFFSETS = struct.Struct("<4H")
# The size of a table's layout that has four fields.
_FOUR_FIELDS = 4 + _OFFSETS.size
_LONG = struct.Struct("<q")
_PAIR = struct.Struct("<qq")
_BLOCK = struct.Struct("<qi4xq")
_END = _FRAMING.pack(_CONTINUATION, 0)
# The bytes after a footer: its length and a magic.
_TAIL = 10
# The kinds of messages.
_DICTIONARY, _RECORD_BATCH = 2, 3
# Below so many rows, Arrow's own check is faster than a check of views as bytes.
_FEW_ROWS = 256


class Announced(NamedTuple):
    """The number of rows that a message announces, and the bytes of its unpacked buffers."""

    rows: int
    unpacked: int


def announced(metadata: bytes, body: bytes | memoryview) -> Announced | None:
    """The size that a record batch or a dictionary announces, or None for another message.

    A compressed buffer counts with its uncompressed length, and once for each column that has it.

    Raises:
        ValueError: the metadata is damaged, or a buffer lies outside of the body.
    """
    try:
        return _announced(metadata, _fields(metadata, _table(metadata, 0)), body)
    except struct.error:
        raise ValueError("the metadata of a message is damaged") from None


def _announced(
    metadata: bytes, message: Sequence[int], body: bytes | memoryview
) -> Announced | None:
    _, kind, content, _ = message
    if not kind or metadata[kind] not in (_DICTIONARY, _RECORD_BATCH):
        return None
    batch = _fields(metadata, _target(metadata, content))
    if metadata[kind] == _DICTIONARY:
        batch = _fields(metadata, _target(metadata, batch[1]))
    length, _, buffers, compression = batch
    unpacked = 0
    for offset, size in _vector(metadata, _target(metadata, buffers), _PAIR):
        if size <= 0:
            continue
        if not 0 <= offset <= len(body) - size:
            raise ValueError("a buffer lies outside of its message")
        unpacked += max(size, _LONG.unpack_from(body, offset)[0] if compression else 0)
    return Announced(max(0, _LONG.unpack_from(metadata, length)[0] if length else 0), unpacked)


def check_size(size: Announced, stored: int) -> None:
    """Check the announced size of a record batch of `stored` bytes.

    Raises:
        ValueError: readers would refuse the record batch.
    """
    # Rows without buffers count too, because a reader may add columns to them.
    largest = max(size)
    if largest > LARGEST and (largest > _MOST_PACKED * stored or largest > _LARGEST_OF_ALL):
        raise ValueError(
            f"{stored} bytes announce {size.rows} rows and unpack to {size.unpacked} bytes; "
            f"at most {LARGEST} are read"
        )


def batches_in(data: bytes) -> Iterator[Announced]:
    """The announced sizes of complete, consecutive record batches.

    Raises:
        ValueError: a message is no record batch, is cut off, or is too large.
    """
    at = 0
    while at < len(data):
        begin = at
        metadata, message, body, at = _message(data, begin)
        try:
            size = _announced(metadata, message, memoryview(data)[body:at])
        except struct.error:
            raise ValueError("the metadata of a message is damaged") from None
        if size is None:
            raise ValueError("a message that is no record batch")
        check_size(size, at - begin)
        yield size


class _Message(NamedTuple):
    """A message: its metadata, their fields, and the offsets of the begin and end of its body."""

    metadata: bytes
    fields: Sequence[int]
    body: int
    end: int


def _message(data: bytes, begin: int) -> _Message:
    try:
        mark, length = _FRAMING.unpack_from(data, begin)
        body = begin + _FRAMING.size + length
        if mark != _CONTINUATION or length <= 0 or body > len(data):
            raise ValueError("a message is expected, and none begins here")
        metadata = data[begin + _FRAMING.size : body]
        fields = _fields(metadata, _table(metadata, 0))
        size = fields[3]
        end = body + (_LONG.unpack_from(metadata, size)[0] if size else 0)
    except struct.error:
        raise ValueError("the metadata of a message is damaged") from None
    if not body <= end <= len(data):
        raise ValueError("a message is cut off")
    return _Message(metadata, fields, body, end)


# The offset of a record batch in a file, and the sizes of its metadata and its body.
Block = tuple[int, ...]


def in_stream(data: bytes, begin: int) -> list[Block]:
    """The messages of a file from `begin` to the end of its stream.

    Raises:
        ValueError: a message is damaged or cut off.
    """
    blocks: list[Block] = []
    while data[begin : begin + _FRAMING.size] != _END:
        _, _, body, end = _message(data, begin)
        blocks.append((begin, body - begin, end - body))
        begin = end
    return blocks


def in_footer(data: bytes) -> list[Block]:
    """The record batches that the footer of a file names.

    Raises:
        ValueError: the footer is damaged.
    """
    try:
        end = len(data) - _TAIL
        footer = data[end - int(_LAYOUT.unpack_from(data, end)[0]) : end]
        at = _fields(footer, _table(footer, 0))[3]
        return [*_vector(footer, _table(footer, at), _BLOCK)] if at else []
    except struct.error:
        raise ValueError("the footer is damaged") from None


def _vector(data: bytes, vector: int, item: struct.Struct) -> Iterator[tuple[int, ...]]:
    begin = vector + 4
    (count,) = _TABLE.unpack_from(data, vector)
    if count * item.size > len(data) - begin:
        raise ValueError("the metadata of a message is cut off")
    return item.iter_unpack(data[begin : begin + count * item.size])


def _table(data: bytes, at: int) -> int:
    """The target of the offset at `at`. FlatBuffers' offsets are relative."""
    return at + int(_TABLE.unpack_from(data, at)[0])


def _target(data: bytes, field: int) -> int:
    """The table or vector of a field that must be present."""
    if not field:
        raise ValueError("a message without the fields of its kind")
    return _table(data, field)


def _fields(data: bytes, table: int) -> tuple[int, ...]:
    """The positions of the first four fields of a FlatBuffers table, 0 for an absent one."""
    layout = table - int(_LAYOUT.unpack_from(data, table)[0])
    # Refuse a negative offset, which `unpack_from` counts from the end.
    if layout < 0:
        raise ValueError("the metadata of a message is damaged")
    (size,) = _SHORT.unpack_from(data, layout)
    if size >= _FOUR_FIELDS:
        offsets = _OFFSETS.unpack_from(data, layout + 4)
    else:
        present = max(0, size - 4) // _SHORT.size
        offsets = struct.unpack_from(f"<{present}H", data, layout + 4) + (0,) * (4 - present)
    if table + max(offsets) >= len(data):
        raise ValueError("the metadata of a message is damaged")
    return tuple([offset and table + offset for offset in offsets])


def check_values(batch: pa.RecordBatch, *, texts: bool = True) -> None:
    """Check every offset, and every text, of a decoded batch without dictionaries.

    Args:
        texts: whether texts must be UTF-8.

    Raises:
        pa.ArrowInvalid: an offset or a text is wrong.
    """
    if batch.num_rows < _FEW_ROWS and texts:
        batch.validate(full=True)
        return
    batch.validate()
    rows = batch.to_struct_array()
    # View texts as bytes: Arrow's check of texts takes ten times as long, as it checks each text.
    rows.view(_without_texts(rows.type)).validate(full=True)
    for column in _texts_in(batch.columns) if texts else ():
        if not _is_ascii(column.buffers()[2]):
            column.validate(full=True)


def _is_ascii(content: pa.Buffer | None) -> bool:
    if not content:
        return True
    # As signed numbers, the bytes of ASCII are those that are not negative.
    smallest = pc.min(pa.Array.from_buffers(pa.int8(), content.size, [None, content]))
    return bool(smallest.as_py() >= 0)


def _without_texts(kind: pa.DataType) -> pa.DataType:
    if types.is_string(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_without_texts(field.type)) for field in kind])
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_without_texts(key.type)), item.with_type(_without_texts(item.type))
        )
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_texts(kind.value_type)))
    return kind


def _texts_in(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    for array in arrays:
        if types.is_string(array.type):
            yield array
        elif types.is_struct(array.type):
            yield from _texts_in(map(array.field, range(array.type.num_fields)))
        elif types.is_map(array.type):
            yield from _texts_in((array.keys, array.items))
        elif types.is_list(array.type):
            yield from _texts_in((array.values,))
