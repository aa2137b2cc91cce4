"""What a message of Arrow's IPC format announces, and whether the values in it hold together.

Arrow unpacks as much as a message announces, and goes wherever the offsets in its buffers lead. A
CRC-32 says no more than that the bytes are those that somebody wrote. So both are checked first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyarrow import types

# What one record batch may unpack to: this much; or, if it is stored as more than a thousandth of
# it, twice as much as one column of texts can hold.
LARGEST = 256 * 2**20
_LARGEST_OF_ALL = 2**32
_MOST_PACKED = 1000

_CONTINUATION = 0xFFFFFFFF
_FRAMING = struct.Struct("<Ii")  # continuation marker, length of the metadata
_TABLE = struct.Struct("<I")
_LAYOUT = struct.Struct("<i")
_SHORT = struct.Struct("<H")
_LONG = struct.Struct("<q")
_PAIR = struct.Struct("<qq")
_BLOCK = struct.Struct("<qi4xq")
_END = _FRAMING.pack(_CONTINUATION, 0)
_TAIL = 10  # bytes after a footer: its length, a magic
# Kinds of messages.
_DICTIONARY, _RECORD_BATCH = 2, 3
# Below so many rows Arrow's own check takes less time than to prepare another.
_FEW_ROWS = 256
_CHUNK = 2**20


class Announced(NamedTuple):
    """What a message says that it holds: `rows`, and `unpacked` bytes of their buffers."""

    rows: int
    unpacked: int


def announced(metadata: bytes, body: bytes | memoryview) -> Announced | None:
    """What a record batch or a dictionary announces; None for another kind of message.

    A compressed buffer counts with its length before compression, and as often as columns share it.

    Raises:
        ValueError: the metadata is damaged, or a buffer lies outside of the body.
    """
    try:
        return _announced(metadata, body)
    except struct.error:
        raise ValueError("the metadata of a message is damaged") from None


def _announced(metadata: bytes, body: bytes | memoryview) -> Announced | None:
    message = _table(metadata, 0)
    kind = _field(metadata, message, 1)
    if not kind or metadata[kind] not in (_DICTIONARY, _RECORD_BATCH):
        return None
    batch = _table(metadata, _field(metadata, message, 2, needed=True))
    if metadata[kind] == _DICTIONARY:
        batch = _table(metadata, _field(metadata, batch, 1, needed=True))
    length = _field(metadata, batch, 0)
    is_packed = _field(metadata, batch, 3) > 0
    unpacked = 0
    for offset, size in _vector(metadata, _field(metadata, batch, 2, needed=True), _PAIR):
        if size <= 0:
            continue
        if not 0 <= offset <= len(body) - size:
            raise ValueError("a buffer lies outside of its message")
        unpacked += max(size, _LONG.unpack_from(body, offset)[0] if is_packed else 0)
    return Announced(max(0, _LONG.unpack_from(metadata, length)[0] if length else 0), unpacked)


def check_size(found: Announced, stored: int) -> None:
    """Raises ValueError for a record batch that unpacks to more than readers take."""
    # Rows without a buffer count too: readers give each some columns.
    size = max(found)
    if size > LARGEST and (size > _MOST_PACKED * stored or size > _LARGEST_OF_ALL):
        raise ValueError(
            f"{stored} bytes announce {found.rows} rows and unpack to {found.unpacked} bytes; "
            f"at most {LARGEST} are read"
        )


def batches_in(data: bytes) -> Iterator[Announced]:
    """What each record batch announces in the bytes of whole, consecutive ones.

    Raises:
        ValueError: something else is there, or a record batch is cut off or too large to unpack.
    """
    at = 0
    while at < len(data):
        begin = at
        body, at = _message(data, begin)
        found = announced(data[begin + _FRAMING.size : body], memoryview(data)[body:at])
        if found is None:
            raise ValueError("a message that is no record batch")
        check_size(found, at - begin)
        yield found


def _message(data: bytes, begin: int) -> tuple[int, int]:
    """Where the body of the message that begins there begins, and where it ends."""
    try:
        mark, length = _FRAMING.unpack_from(data, begin)
        body = begin + _FRAMING.size + length
        if mark != _CONTINUATION or length <= 0 or body > len(data):
            raise ValueError("no message begins where one is expected")
        metadata = data[begin + _FRAMING.size : body]
        size = _field(metadata, _table(metadata, 0), 3)
        end = body + (_LONG.unpack_from(metadata, size)[0] if size else 0)
    except struct.error:
        raise ValueError("the metadata of a message is damaged") from None
    if not body <= end <= len(data):
        raise ValueError("a message is cut off")
    return body, end


# (offset, bytes of its metadata, bytes of its body) of a record batch in a file.
Block = tuple[int, ...]


def in_stream(data: bytes, begin: int) -> list[Block]:
    """The messages of a file from `begin` to the mark that ends its stream. Raises ValueError."""
    found: list[Block] = []
    while data[begin : begin + _FRAMING.size] != _END:
        body, end = _message(data, begin)
        found.append((begin, body - begin, end - body))
        begin = end
    return found


def in_footer(data: bytes) -> list[Block]:
    """The record batches that the footer of a file names. Raises ValueError."""
    try:
        end = len(data) - _TAIL
        footer = data[end - int(_LAYOUT.unpack_from(data, end)[0]) : end]
        at = _field(footer, _table(footer, 0), 3)
        return [*_vector(footer, at, _BLOCK)] if at else []
    except struct.error:
        raise ValueError("the footer is damaged") from None


def _vector(data: bytes, at: int, item: struct.Struct) -> Iterator[tuple[int, ...]]:
    vector = _table(data, at)
    begin = vector + 4
    (count,) = _TABLE.unpack_from(data, vector)
    if count * item.size > len(data) - begin:
        raise ValueError("the metadata of a message is cut off")
    return item.iter_unpack(data[begin : begin + count * item.size])


def _table(data: bytes, at: int) -> int:
    """The target of the offset stored at `at`; FlatBuffers' offsets are relative."""
    return at + int(_TABLE.unpack_from(data, at)[0])


def _field(data: bytes, table: int, number: int, *, needed: bool = False) -> int:
    """The position of a field of a FlatBuffers table; 0 if the field is absent."""
    layout = table - int(_LAYOUT.unpack_from(data, table)[0])
    # `unpack_from` counts a negative offset from the end.
    if layout < 0:
        raise ValueError("the metadata of a message is damaged")
    entry = 4 + 2 * number
    is_known = entry + 2 <= _SHORT.unpack_from(data, layout)[0]
    offset = int(_SHORT.unpack_from(data, layout + entry)[0]) if is_known else 0
    if table + offset >= len(data):
        raise ValueError("the metadata of a message is damaged")
    if offset:
        return table + offset
    if needed:
        raise ValueError("a message without the fields of its kind")
    return 0


def check_values(batch: pa.RecordBatch, *, texts: bool = True) -> None:
    """Check every offset, and every text. Raises pa.ArrowInvalid for a wrong one.

    Args:
        batch: just unpacked, with no dictionaries.
        texts: whether texts must be UTF-8.
    """
    if batch.num_rows < _FEW_ROWS and texts:
        batch.validate(full=True)
        return
    batch.validate()
    whole = batch.to_struct_array()
    # As bytes, because Arrow looks at each text by itself, which takes ten times as long.
    whole.view(_without_texts(whole.type)).validate(full=True)
    for column in _texts_in(batch.columns) if texts else ():
        content = memoryview(column.buffers()[2] or b"")
        chunks = (content[at : at + _CHUNK] for at in range(0, len(content), _CHUNK))
        if not all(bytes(chunk).isascii() for chunk in chunks):
            column.validate(full=True)


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
