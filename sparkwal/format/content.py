"""A fingerprint of rows that does not depend on their order, record batches or objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_BITS = 2**64 - 1
_UNSIGNED = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}


@dataclass(frozen=True)
class Content:
    """The number of rows, and the 64-bit sum of their hashes (PROTOCOL §12).

    Equal rows have equal contents. The hash of a value includes its column's name. The width of a
    whole number or a float does not matter, nor the order of a map. A double counts with 28 binary
    digits.
    """

    rows: int = 0
    hash: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(self.rows + other.rows, self.hash + other.hash & _BITS)

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> Content:
        """The content of the rows of batches, of which one is in memory at a time."""
        content = cls()
        for batch in batches:
            hashes = _struct(batch.num_rows, zip(batch.schema.names, batch.columns, strict=True))
            # Arrow's unsigned numbers overflow to 0, as this sum does.
            content += cls(batch.num_rows, pc.sum(hashes).as_py() or 0)
        return content


def _hashes(array: pa.Array) -> pa.Array:
    """A number for each value; 0 for a null."""
    if not array.null_count:
        return _dense(array)
    dense = _dense(array.drop_null())
    return pc.replace_with_mask(_zeros(len(array)), array.is_valid(), dense)


def _dense(array: pa.Array) -> pa.Array:
    """As `_hashes`, for values without nulls."""
    kind = array.type
    if not len(array):
        return _zeros(0)
    if pa.types.is_struct(kind):
        return _struct(len(array), zip([f.name for f in kind], array.flatten(), strict=True))
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        as_list = array.cast(pa.list_(pa.field("entries", entries, nullable=False)))
        return _list(as_list, ordered=False)
    if pa.types.is_list(kind):
        return _list(array, ordered=True)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _bytes(array.cast(pa.binary()))
    if pa.types.is_boolean(kind):
        return _mixed(array.cast(pa.uint8()).cast(pa.uint64()))
    # A column may have become wider since the rows were stored.
    if pa.types.is_signed_integer(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_float32(kind):
        array = array.cast(pa.float64())
    kind = array.type
    width = kind.bit_width // 8
    values = pa.Array.from_buffers(
        _UNSIGNED.get(width, pa.binary(width)),
        len(array),
        [None, array.buffers()[1]],
        0,
        array.offset,
    )
    if width not in _UNSIGNED:
        return _bytes(values)
    numbers = values.cast(pa.uint64())
    if pa.types.is_float64(kind):
        dropped = 24
        numbers = pc.add(numbers, _number(1 << dropped - 1))
        numbers = pc.bit_wise_and(numbers, _number(_BITS >> dropped << dropped))
    return _mixed(numbers)


def _struct(length: int, fields: Iterable[tuple[str, pa.Array]]) -> pa.Array:
    total = _zeros(length)
    for name, column in fields:
        value = _mixed(pc.add(_hashes(column), _number(_digest(name.encode()))))
        total = pc.add(total, pc.if_else(column.is_valid(), value, _number(0)))
    return _mixed(pc.add(total, _number(1)))


def _list(array: pa.Array, *, ordered: bool) -> pa.Array:
    lengths = pc.list_value_length(array).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    starts = pc.subtract(ends, lengths)
    elements = _hashes(array.flatten())
    if ordered:
        begin = starts.take(pc.list_parent_indices(array))
        index = pc.subtract(pa.array(range(len(elements)), pa.int64()), begin)
        elements = pc.add(elements, _mixed(index.cast(pa.uint64())))
    sums = pa.concat_arrays([_zeros(1), pc.cumulative_sum(_mixed(elements))])
    total = pc.subtract(sums.take(ends), sums.take(starts))
    return _mixed(pc.add(total, _mixed(lengths.cast(pa.uint64()))))


def _bytes(array: pa.Array) -> pa.Array:
    """A number for each value of any length. Each distinct value is hashed once."""
    encoded = array.dictionary_encode()
    hashes = pa.array([_digest(value) for value in encoded.dictionary.to_pylist()], pa.uint64())
    return hashes.take(encoded.indices)


def _mixed(numbers: pa.Array) -> pa.Array:
    """Mix the bits of numbers (SplitMix64): each bit of a result depends on every bit.

    0, which stands for a null, becomes another number.
    """
    numbers = pc.add(numbers, _number(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = pc.bit_wise_xor(numbers, pc.shift_right(numbers, _number(shift)))
        numbers = pc.multiply(numbers, _number(factor))
    return pc.bit_wise_xor(numbers, pc.shift_right(numbers, _number(31)))


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest())


def _zeros(length: int) -> pa.Array:
    return pa.repeat(_number(0), length)


@lru_cache(maxsize=64)
def _number(value: int) -> Any:
    return pa.scalar(value, pa.uint64())
