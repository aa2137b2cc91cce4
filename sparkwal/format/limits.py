"""How much of an object readers take, by its kind (docs/security.md lists all limits).

Anybody may have written what is read. So its size is checked before memory is allocated for it, and
writers check the same limits: no reader could take what is beyond.
"""

import json
from itertools import accumulate
from typing import Any, NoReturn

import pyarrow as pa

_KIB = 2**10
_MIB = 2**20
# Bytes of the JSON text of a header. A commit takes some 160 for each object, and 45 for each frame
# after its first.
HEADER = 20 * _MIB
# Bytes of an object that is read as one piece.
CONSUMER = 64 * _KIB
# The positions of a consumer of all logs: some 100 bytes for each log.
CONSUMER_OF_ALL = 4 * _MIB
HANDOVER = 4 * _KIB
LIFECYCLE_RECORD = _MIB
ARCHIVE = 256 * _MIB
# Bytes of the JSON text that the checkpoint in a record unpacks to, and files in it.
CHECKPOINT = 256 * _MIB
CHECKPOINT_FILES = 100_000
# Records that carry the state of one query together, and bytes of it in one of them.
STATE_RECORDS = 2**16
STATE = 2**31
# Objects that Python makes of a JSON text: each takes up to some 90 bytes.
JSON_VALUES = 2**22
# Objects and lists inside each other, so that no recursion over a document is too deep.
JSON_LEVELS = 64
_STEPS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())
_CHUNK = _MIB


def inflate(packed: bytes, most: int) -> bytearray:
    """Unpack what zstd packed.

    Raises:
        ValueError: it unpacks to more than `most` bytes, or no zstd made it.
    """
    data = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            # Not `read`, which leaks a chunk where it fails.
            while (chunk := stream.read_buffer(_CHUNK)).size:
                if len(data) + chunk.size > most:
                    raise ValueError(f"{len(packed)} bytes unpack to more than {most}")
                data += memoryview(chunk)
    except (OSError, pa.ArrowException):
        raise ValueError("it is no data that zstd packed") from None
    return data


def check_values(text: bytes) -> None:
    """Check a JSON text before Python makes objects of it.

    Raises:
        ValueError: it may hold more than JSON_VALUES values.
    """
    # Each value comes after one of these; a text may hold them too.
    if len(text) > JSON_VALUES and sum(map(text.count, (b",", b"[", b"{"))) > JSON_VALUES:
        raise ValueError(f"it holds more than {JSON_VALUES} values")


def json_in(text: bytes) -> Any:
    """Parse a JSON text that may be hostile.

    Raises:
        ValueError: it is no JSON, has more than JSON_LEVELS levels, or holds a text that UTF-8
            cannot encode.
    """
    brackets = text.translate(None, _NO_BRACKETS)
    try:
        # Not from the bytes: then Python takes UTF-16 and lone surrogates too.
        document = _DECODER.decode(text.decode())
        # Texts may hold brackets too, so this is an upper limit of the levels.
        if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > JSON_LEVELS:
            _check_levels(document)
        # An escape may be a lone surrogate.
        if b"\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return document


def _check_levels(document: Any) -> None:
    level = [document]
    for _ in range(JSON_LEVELS):
        inner = [parent.values() if isinstance(parent, dict) else parent for parent in level]
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
    if level:
        raise ValueError("it is nested too deeply")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


# Python takes NaN and Infinity, which other parsers refuse.
_DECODER = json.JSONDecoder(parse_constant=_refuse)
