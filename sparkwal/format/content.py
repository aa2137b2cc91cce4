"""A fingerprint of rows, the same whatever record batches and objects hold them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass
class Content:
    """Rows in their order: two are equal where the rows are, by every bit of every value.

    For each column, and each level within a nested one: how many bytes its validity, its
    lengths and its values take, and their CRC-32. What lies under a null does not count.
    """

    parts: dict[tuple[Any, ...], tuple[int, int]] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """More rows, after those that were added before."""
        # There and back: no buffer holds more than these rows, or begins before them.
        batch = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
        for place, column in enumerate(batch.columns):
            self._add((place,), column)

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> Content:
        """The content of these rows."""
        content = cls()
        for batch in batches:
            content.add(batch)
        return content

    @property
    def sizes(self) -> dict[tuple[Any, ...], int]:
        """What the order of the rows does not change."""
        return {path: size for path, (size, _) in self.parts.items()}

    @property
    def size(self) -> int:
        """Of all parts, in bytes."""
        return sum(self.sizes.values())

    def _add(self, path: tuple[Any, ...], array: pa.Array) -> None:
        self._feed((*path, "valid"), _bytes_of(array.is_valid()))
        kind = array.type
        if pa.types.is_null(kind):
            return
        if pa.types.is_struct(kind):
            for place, child in enumerate(array.flatten()):
                self._add((*path, place), child)
            return
        dense = array.drop_null()
        if pa.types.is_map(kind):
            entries = pa.struct([kind.key_field, kind.item_field])
            dense = dense.cast(pa.list_(pa.field("entries", entries, nullable=False)))
        if pa.types.is_list(dense.type):
            self._feed((*path, "length"), _bytes_of(pc.list_value_length(dense)))
            self._add((*path, "element"), dense.flatten())
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            lengths = pc.binary_length(dense)
            self._feed((*path, "length"), _bytes_of(lengths))
            self._feed(path, memoryview(dense.buffers()[2] or b"")[: pc.sum(lengths).as_py() or 0])
        else:
            self._feed(path, _bytes_of(dense))

    def _feed(self, path: tuple[Any, ...], data: memoryview) -> None:
        size, crc = self.parts.get(path, (0, 0))
        self.parts[path] = size + len(data), zlib.crc32(data, crc)


def in_any_order(batches: Iterable[pa.RecordBatch]) -> Content:
    """The content of these rows once they are sorted, by all columns that Arrow can sort by.

    Where two are equal the rows are the same. Where they differ they may be the same all the
    same: rows that differ in nested columns only keep their order.
    """
    table = pa.Table.from_batches(batches)
    nested = (pa.types.is_nested, pa.types.is_null)
    keys = [f.name for f in table.schema if not any(kind(f.type) for kind in nested)]
    if keys:
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys])
        table = table.take(order)
    return Content.of(table.to_batches())


def _bytes_of(array: pa.Array) -> memoryview:
    """The bytes of an array of one width, without nulls."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    width = array.type.bit_width // 8
    first = array.offset * width
    return memoryview(array.buffers()[1] or b"").cast("B")[first : first + len(array) * width]
