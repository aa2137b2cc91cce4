"""Parses a request's body into Arrow rows, and checks their size before unpacking them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.errors import OptionError
from sparkwal.format.frames import Announced, announced
from support.json_rows import JsonRows

Rows: TypeAlias = pa.RecordBatch | pa.Table


class TooLarge(Exception):
    """The rows take more memory than one request may; the text says how much that is."""


class Bodies:
    """Parses bodies for a log of this schema; the rows of one have at most `most` bytes of Arrow,
    without compression."""

    def __init__(self, schema: pa.Schema, most: int) -> None:
        self._most = most
        self._json = JsonRows(schema)
        # A column of nulls is only a length in the body, but grows to a column of the log's type.
        self._row_bytes = sum(_width(field.type) for field in schema)

    def json(self, body: bytes) -> Rows:
        """JSON lines. Raises OptionError, TooLarge."""
        found: list[pa.RecordBatch] = []
        size = 0
        for batch in self._json.batches(body):
            size += batch.nbytes
            self._check(size)
            found.append(batch)
        return _some(found)

    def arrow(self, body: bytes) -> Rows:
        """An Arrow IPC stream. Raises OptionError, TooLarge."""
        try:
            rows = size = 0
            for more, unpacked in _announced(body):
                rows, size = rows + more, size + unpacked
                self._check(max(size, rows * self._row_bytes))
            with pa.ipc.open_stream(body) as stream:
                found = list(stream)
            for batch in found:
                # Check offsets and texts too: damaged ones would crash the log's readers.
                batch.validate(full=True)
            self._check(sum(_decoded(batch) for batch in found))
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, OptionError):
                raise
            said = str(error).partition("\n")[0]
            raise OptionError(f"the body is no Arrow IPC stream: {said}") from None
        return _some(found)

    def _check(self, size: int) -> None:
        if size > self._most:
            raise TooLarge(f"its rows unpack to more than {self._most} bytes; send several")


def _some(batches: list[pa.RecordBatch]) -> Rows:
    if not sum(batch.num_rows for batch in batches):
        raise OptionError("there are no rows in the body")
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches)


def _width(kind: pa.DataType) -> int:
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:
        return 4  # at least an offset


def _announced(body: bytes) -> Iterator[Announced]:
    """What each batch and dictionary of a stream announces.

    Arrow allocates the size that a compressed buffer announces, and columns may share one region.
    So count every buffer at its decompressed length before any is unpacked.
    """
    for message in pa.ipc.MessageReader.open_stream(body):
        found = announced(message.metadata.to_pybytes(), memoryview(message.body or b""))
        if found is not None:
            yield found


def _decoded(batch: pa.RecordBatch) -> int:
    """Bytes of the columns whose values share memory, as if each value had its own."""
    return sum(
        _each(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, name)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    )


def _each(column: pa.Array, name: str) -> int:
    kind = column.type
    if types.is_nested(kind):
        if _shares(kind):
            raise OptionError(
                f"column {name!r} is {kind}: dictionaries and views are taken at the top level "
                "only; cast it"
            )
        return 0
    if not _shares(kind):
        return 0
    if types.is_dictionary(kind):
        if types.is_nested(kind.value_type) or types.is_dictionary(kind.value_type):
            raise OptionError(f"column {name!r} is {kind}: decode it")
        values = column.dictionary
        if not _texts(values.type):
            return len(column) * _width(values.type)
        return int(pc.sum(pc.binary_length(values).take(column.indices)).as_py() or 0)
    # A view is 16 bytes and begins with its length; the length of a null is undefined.
    lengths = memoryview(column.buffers()[1]).cast("i")[4 * column.offset :: 4][: len(column)]
    return sum(n for n, there in zip(lengths, column.is_valid(), strict=True) if there.as_py())


def _texts(kind: pa.DataType) -> bool:
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
        or _is_view(kind)
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _shares(kind: pa.DataType) -> bool:
    if types.is_nested(kind):
        return any(_shares(kind.field(i).type) for i in range(kind.num_fields))
    return bool(types.is_dictionary(kind)) or _is_view(kind)
