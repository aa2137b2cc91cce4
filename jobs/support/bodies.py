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
    """The rows of a request exceed the limit; the text contains the limit."""


class Bodies:
    """Parses bodies for a log.

    Args:
        schema: the log's columns.
        limit: the most bytes that the rows of one body may have as Arrow without compression.
    """

    def __init__(self, schema: pa.Schema, limit: int) -> None:
        self._limit = limit
        self._json = JsonRows(schema)
        # In the body, a column of nulls is only a length. As rows it is a column of the log's type.
        self._row_bytes = sum(_width(field.type) for field in schema)

    def json(self, body: bytes) -> Rows:
        """Parse JSON lines.

        Raises:
            OptionError: the body does not fit the schema, or has no rows.
            TooLarge: the rows exceed the limit.
        """
        batches: list[pa.RecordBatch] = []
        size = 0
        for batch in self._json.batches(body):
            size += batch.nbytes
            self._check(size)
            batches.append(batch)
        return _not_empty(batches)

    def arrow(self, body: bytes) -> Rows:
        """Parse an Arrow IPC stream.

        Raises:
            OptionError: the body is no valid stream, or has no rows.
            TooLarge: the rows exceed the limit.
        """
        try:
            rows = size = 0
            for batch_rows, unpacked in _announced(body):
                rows += batch_rows
                size += unpacked
                self._check(max(size, rows * self._row_bytes))
            with pa.ipc.open_stream(body) as stream:
                batches = list(stream)
            for batch in batches:
                # Validate offsets and texts too: damaged ones would crash the log's readers.
                batch.validate(full=True)
            self._check(sum(_decoded_size(batch) for batch in batches))
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, OptionError):
                raise
            reason = str(error).partition("\n")[0]
            raise OptionError(f"the body is no Arrow IPC stream: {reason}") from None
        return _not_empty(batches)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge(f"its rows unpack to more than {self._limit} bytes; send several")


def _not_empty(batches: list[pa.RecordBatch]) -> Rows:
    if not sum(batch.num_rows for batch in batches):
        raise OptionError("there are no rows in the body")
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches)


def _width(kind: pa.DataType) -> int:
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:
        return 4  # at least an offset


def _announced(body: bytes) -> Iterator[Announced]:
    """The numbers of rows and bytes that each batch and dictionary of a stream announces.

    Arrow allocates the size that a compressed buffer announces, and columns may share one region.
    So count every buffer at its decompressed length before any is unpacked.
    """
    for message in pa.ipc.MessageReader.open_stream(body):
        numbers = announced(message.metadata.to_pybytes(), memoryview(message.body or b""))
        if numbers is not None:
            yield numbers


def _decoded_size(batch: pa.RecordBatch) -> int:
    """Bytes of the columns whose values share memory, as if each value had its own."""
    size = 0
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        size += _decoded_column_size(array, name)
    return size


def _decoded_column_size(column: pa.Array, name: str) -> int:
    kind = column.type
    if types.is_nested(kind):
        if _shares_memory(kind):
            raise OptionError(
                f"column {name!r} is {kind}: dictionaries and views are accepted only at the top "
                "level; cast it"
            )
        return 0
    if not _shares_memory(kind):
        return 0
    if types.is_dictionary(kind):
        if types.is_nested(kind.value_type) or types.is_dictionary(kind.value_type):
            raise OptionError(f"column {name!r} is {kind}: decode it")
        values = column.dictionary
        if not _is_text(values.type):
            return len(column) * _width(values.type)
        return int(pc.sum(pc.binary_length(values).take(column.indices)).as_py() or 0)
    # A view is 16 bytes and begins with its length; the length of a null is undefined.
    lengths = memoryview(column.buffers()[1]).cast("i")[4 * column.offset :: 4][: len(column)]
    valid = zip(lengths, column.is_valid(), strict=True)
    return sum(length for length, is_valid in valid if is_valid.as_py())


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
        or _is_view(kind)
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _shares_memory(kind: pa.DataType) -> bool:
    """Whether several values of this type may refer to the same bytes."""
    if types.is_nested(kind):
        return any(_shares_memory(kind.field(i).type) for i in range(kind.num_fields))
    return bool(types.is_dictionary(kind)) or _is_view(kind)
