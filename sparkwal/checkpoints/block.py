"""Files of a checkpoint as one block of bytes in a commit record."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.slots import fetch_slot, open_slot
from sparkwal.store.log_store import LogStore

# What a block may name. It becomes a path on the machine that rebuilds.
_NAME = re.compile(r"(offsets|commits)/[0-9]{1,19}|sources(/[^/\0]+){2,}")
_LONGEST = 4 * 2**30  # of the JSON text
LARGEST = _LONGEST // 6  # of all files together: JSON writes a byte as six characters at most
_CHUNK = 2**20


def encode(files: Mapping[str, bytes]) -> bytes:
    """JSON {name: content as Latin-1}, compressed: mostly text, and nearly the same text twice."""
    text = json.dumps({name: data.decode("latin-1") for name, data in files.items()})
    return bytes(pa.compress(text.encode(), codec="zstd", asbytes=True))


def decode(block: bytes, where: str) -> dict[str, bytes]:
    """Raises InvalidLogError for what `encode` does not make."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
            text = _read(stream)
        document = json.loads(text)
        files = {name: data.encode("latin-1") for name, data in document.items()}
    except (ValueError, AttributeError, RecursionError, OSError, pa.ArrowException):
        raise InvalidLogError(f"{where}: its checkpoint cannot be decoded") from None
    folders = {name[:at] for name in files for at, c in enumerate(name) if c == "/"}
    for name in files:
        parts = name.split("/")
        if (
            not _NAME.fullmatch(name)
            or not name.isprintable()
            or {".", ".."} & set(parts)
            or max(len(part.encode()) for part in parts) > 255
            or name in folders
        ):
            raise InvalidLogError(f"{where}: its checkpoint names a file {name!r}")
    return files


def _read(stream: pa.NativeFile) -> bytearray:
    """All of it. Raises ValueError as soon as it is more than `encode` ever makes."""
    text = bytearray()
    while chunk := stream.read(_CHUNK):
        text += chunk
        if len(text) > _LONGEST:
            raise ValueError("a checkpoint that is too large")
    return text


def read_block(log: LogStore, window: int, query_id: str, position: int) -> dict[str, bytes]:
    """The files that the record at `position` carries for a query: 1 GET, of large ones 2. Raises
    InvalidLogError where the record is missing, another's or damaged."""
    number = keys.slot(position, window)
    where = log.where(number, window)
    front = fetch_slot(log, position, window)
    record = open_slot(log, position, window, front)
    if record is None or not isinstance(front, bytes):
        raise InvalidLogError(
            f"the record of position {position} of {log.url} is missing, and it holds the "
            f"checkpoint of query {query_id}"
        )
    entry = record.header.checkpoints.get(query_id)
    if not isinstance(record.header, CommitHeader) or entry is None or entry.position != position:
        raise InvalidLogError(f"{where}: it carries no checkpoint of query {query_id}")
    if not entry.bytes:
        return {}
    start = arrowfile.block_offset(record.size)
    block = front[start : start + entry.bytes]
    if len(block) < entry.bytes:
        block = log.store.get_range(log.key(number), start, entry.bytes)
    if zlib.crc32(block) != entry.crc32:
        raise InvalidLogError(f"{where}: the checkpoint in it does not match its CRC-32")
    return decode(block, where)
