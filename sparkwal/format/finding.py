"""Looks for a value in the bytes of an object, whichever format these have."""

import io
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

import pyarrow as pa

from sparkwal.format.arrowfile import MAGIC
from sparkwal.format.header import HEADER_KEY

_PARQUET = b"PAR1"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PACKED = {_ZSTD: "zstd", b"\x1f\x8b": "gzip"}
# Hadoop keeps the checksums of `name`, a file on a disk, in `.name.crc`.
_CHECKSUMS = b"crc\0"
# The file format of Iceberg's statistics and deletion vectors.
_PUFFIN = b"PFA1"
# Delta's statistics keep so many characters of a text.
_STATISTICS = 32
# A shorter bound of a column counts as a whole text.
_SHORTEST_CUT = 16
# The fields of a table's history that hold values of rows.
_OF_ROWS = ("minValues", "maxValues", "partitionValues")
_CHUNK = 2**20
# The most bytes to which a part of an object unpacks.
_LARGEST = 2**31
_DAMAGED = (
    OSError,
    EOFError,
    pa.ArrowException,
    ValueError,
    LookupError,
    TypeError,
    RecursionError,
)


class CannotTell(Exception):
    """The bytes may hold the value. The message is the reason."""


@dataclass(frozen=True)
class Value:
    """A value, as objects may hold it. Its text is in no message and no `repr`.

    Attributes:
        texts: its bytes: as a text, in JSON, in SQL, in a URL, and as binary.
        number: the same as a number, or None if it is none.
    """

    texts: tuple[bytes, ...]
    number: Decimal | None

    def __repr__(self) -> str:
        return "Value(***)"

    @classmethod
    def of(cls, text: str) -> "Value":
        """The value that a text names: 0x… is binary, a UUID is also its 16 bytes."""
        quotes = text.replace("'", "\\'"), text.replace("'", "''"), text.replace('"', '\\"')
        in_json = json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]
        forms = {text, text[:_STATISTICS], *quotes, *in_json, quote(text, safe="")}
        texts = {form.encode() for form in forms}
        with suppress(ValueError):
            texts.add(UUID(text).bytes)
        if re.fullmatch("0x([0-9a-fA-F]{2})+", text):
            texts |= {bytes.fromhex(text[2:]), text.lower().encode()}
        try:
            number = Decimal(text)
        except InvalidOperation:
            return cls(tuple(texts), None)
        return cls(tuple(texts), number if number.is_finite() else None)

    def is_in(self, data: bytes) -> bool:
        """Whether bytes hold the value. A number counts only between other signs than its own."""
        if self.number is None:
            return any(text in data for text in self.texts)
        return any(
            re.search(rb"(?<![0-9A-Za-z.])" + re.escape(text) + rb"(?![0-9A-Za-z])", data)
            for text in self.texts
        )

    def is_cut_to(self, bound: str) -> bool:
        """Whether a bound of a column is the beginning of the value, or the next text after it."""
        if len(bound) < _SHORTEST_CUT:
            return False
        before = f"{bound[:-1]}{chr(max(ord(bound[-1]) - 1, 0))}"
        begins = [text.encode(errors="replace") for text in (bound, before)]
        return any(text.startswith(begin) for text in self.texts for begin in begins)

    def without(self, name: str) -> str:
        """A name of an object without the value."""
        if not self.is_in(name.encode()) and not self.is_in(unquote(name).encode()):
            return name
        for text in sorted(self.texts, key=len, reverse=True):
            name = name.replace(text.decode(errors="replace"), "***")
        return name if "***" in name else "***"


def is_found(name: str, body: bytes, value: Value) -> bool:
    """Whether an object holds a value, in its name or in its bytes.

    Raises:
        CannotTell: a part of it cannot be read, and the others do not hold the value.
    """
    if value.is_in(unquote(name).encode()) or value.is_in(name.encode()):
        return True
    try:
        return _is_in_body(name, body, value)
    except _DAMAGED:
        if value.is_in(body):
            return True
        raise CannotTell("it is damaged, or of an unknown format") from None


def _is_in_body(name: str, body: bytes, value: Value) -> bool:
    if body.startswith(MAGIC):
        return _is_in_arrow(body, value)
    if body.startswith(_PARQUET):
        return _is_in_parquet(body, value)
    for begins, codec in _PACKED.items():
        if body.startswith(begins):
            return _is_in_body(name, _unpacked(body, codec), value)
    if name.rpartition("/")[2].startswith("deletion_vector"):
        # It holds numbers of rows.
        return False
    if body.startswith(_PUFFIN):
        # Numbers of rows, or hashes, and a description.
        return value.is_in(body)
    if name.endswith(".crc") and body.startswith(_CHECKSUMS):
        return False
    text = body.decode()
    return any(_is_in_text(line, value) for line in text.splitlines())


def _is_in_text(text: str, value: Value) -> bool:
    """Whether a text, which may be JSON, holds the value."""
    if text[:1] in ("{", "["):
        try:
            return _is_in_json(json.loads(text), value)
        except ValueError:
            pass
    return value.is_in(text.encode())


def _is_in_json(document: Any, value: Value, *, of_rows: bool = False) -> bool:
    match document:
        case dict():
            return any(
                value.is_in(name.encode())
                or _is_in_json(child, value, of_rows=of_rows or name in _OF_ROWS)
                for name, child in document.items()
            )
        case list():
            return any(_is_in_json(child, value, of_rows=of_rows) for child in document)
        case str():
            return _is_in_text(document, value) or (of_rows and value.is_cut_to(document))
        case int() | float() if of_rows and not isinstance(document, bool):
            return value.number is not None and Decimal(str(document)) == value.number
    return False


def _is_in_arrow(body: bytes, value: Value) -> bool:
    with pa.ipc.open_file(body) as file:
        metadata = file.schema.metadata or {}
        if _is_in_schema(file.schema, value):
            return True
        for number in range(file.num_record_batches):
            batch = file.get_batch(number)
            batch.validate(full=True)
            if _is_in_columns(batch.columns, value):
                return True
    return _is_in_checkpoints(body, json.loads(metadata.get(HEADER_KEY, b"{}")), value)


def _is_in_checkpoints(body: bytes, header: Any, value: Value) -> bool:
    """Whether the files of checkpoints that a record carries hold the value."""
    checkpoints = (header.get("checkpoints") or {}).values()
    for size in filter(None, (checkpoint["bytes"] for checkpoint in checkpoints)):
        files = _block(body, size)
        if value.is_in(files) or _is_in_text(files.decode(), value):
            return True
    if any(checkpoint.get("state") for checkpoint in checkpoints):
        raise CannotTell("it carries the state of a query, which only Spark reads")
    return False


def _block(body: bytes, size: int) -> bytes:
    """The files of a checkpoint, unpacked, whose block has this size.

    Raises:
        CannotTell: there is no such block.
    """
    for frame in re.finditer(re.escape(_ZSTD), body):
        with suppress(OSError, pa.ArrowException):
            return _unpacked(body[frame.start() : frame.start() + size], "zstd")
    raise CannotTell("the checkpoint in it is damaged")


def _is_in_schema(schema: pa.Schema, value: Value) -> bool:
    """Whether names or metadata of columns hold the value."""
    texts = [*(schema.metadata or {}).values()]
    for field in schema:
        texts += [field.name.encode(), *(field.metadata or {}).values()]
    return any(_is_in_text(text.decode(errors="replace"), value) for text in texts)


def _is_in_parquet(body: bytes, value: Value) -> bool:
    import pyarrow.parquet as pq

    # The statistics of a file are values of its rows.
    file = pq.ParquetFile(io.BytesIO(body))
    if _is_in_schema(file.schema_arrow, value):
        return True
    return any(_is_in_columns(batch.columns, value) for batch in file.iter_batches(10_000))


def _is_in_columns(columns: Iterable[Any], value: Value) -> bool:
    return any(_is_in_column(column, value) for column in columns)


def _is_in_column(column: Any, value: Value) -> bool:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _is_in_column(column.storage, value)
    if pa.types.is_dictionary(kind):
        return _is_in_column(column.dictionary, value)
    if pa.types.is_struct(kind):
        return _is_in_columns(column.flatten(), value)
    if pa.types.is_map(kind):
        return _is_in_columns((column.keys, column.items), value)
    if pa.types.is_nested(kind):
        return _is_in_column(column.flatten(), value)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return value.number is not None and _has_number(column, value.number)
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return False
    cells = column.to_pylist()
    if pa.types.is_temporal(kind):
        return any(value.is_in(str(cell).encode()) for cell in cells if cell is not None)
    return any(_is_in_cell(cell, value) for cell in cells if cell)


def _has_number(column: Any, number: Decimal) -> bool:
    for cell in column.to_pylist():
        if cell is not None and cell == cell and Decimal(str(cell)) == number:
            return True
    return False


def _is_in_cell(cell: str | bytes, value: Value) -> bool:
    if isinstance(cell, str):
        return _is_in_text(cell, value)
    if cell.startswith((MAGIC, *_PACKED)):
        return value.is_in(cell) or _is_in_body("", cell, value)
    return value.is_in(cell)


def _unpacked(packed: bytes, codec: str) -> bytes:
    data = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(packed), codec) as stream:
        while (chunk := stream.read_buffer(_CHUNK)).size:
            data += memoryview(chunk)
            if len(data) > _LARGEST:
                raise ValueError("it unpacks to too many bytes")
    return bytes(data)
