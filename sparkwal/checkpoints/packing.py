"""The block of checkpoint files in a commit record: packed, encoded, decoded and read, and the
state after it (PROTOCOL §12)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.checkpoints import folder, names
from sparkwal.checkpoints.query_state import Part
from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys, limits, versions
from sparkwal.format.header import HERE, NOWHERE, Checkpoint, CommitHeader, QueryState
from sparkwal.protocol.commit_record import Carried
from sparkwal.protocol.missing import MissingRecord
from sparkwal.protocol.slots import SlotRecord, front_of, open_again, read_slot
from sparkwal.store.base import PART_SIZE, LogStore, sound
from sparkwal.store.parallel import Range, get_many

T = TypeVar("T")
# JSON writes a byte as six characters at most.
MAX_FILE_BYTES = limits.CHECKPOINT // 6
_string_at = json.JSONDecoder().raw_decode
# A JSON string after its first quote. Each escape in it stands for one byte, because a wider
# character would make Python take four bytes for each character.
_STRING = re.compile(r'[^"\\]*+(?:\\(?:[^u]|u00)[^"\\]*+)*+"')


def pack(
    sizes: Mapping[str, int],
    read: Callable[[str], bytes],
    carried: Mapping[str, tuple[int, int]],
    max_bytes: int,
    *,
    has_state: bool = False,
) -> Carried:
    """Pack the files into one block of at most `max_bytes`.

    A record carries a compacted list once, and the next records name that record. Files that do not
    fit, the largest first, get the position NOWHERE.

    Args:
        sizes: the sizes of the files, by name.
        read: returns the content of a file.
        carried: (position, bytes) of the files that earlier records carry, by name.
        max_bytes: the limit of the block.
        has_state: a state stands beside the block, so a version that lacks it must refuse the
            block.
    """
    version = {versions.FIELD: b"%d" % versions.VERSIONS[versions.CHECKPOINT]} if has_state else {}
    files = {
        name: carried[name]
        for name, size in sizes.items()
        if folder.is_compact(name) and carried.get(name, (0, -1))[1] == size
    }
    left = {name: size for name, size in sizes.items() if name not in files}
    while (len(left) > limits.CHECKPOINT_FILES or sum(left.values()) > MAX_FILE_BYTES) or (
        len(data := encode(version | {name: read(name) for name in left})) > max_bytes and left
    ):
        largest = max(left, key=lambda name: left[name])
        files[largest] = (NOWHERE, left.pop(largest))
    files |= {name: (HERE, size) for name, size in left.items() if folder.is_compact(name)}
    return Carried(data, "", files)


def encode(files: Mapping[str, bytes]) -> bytes:
    """Encode as JSON {name: content as Latin-1}, compressed: offsets/N and N−1 are nearly the same
    text."""
    text = json.dumps({name: data.decode("latin-1") for name, data in files.items()})
    return bytes(pa.compress(text.encode(), codec="zstd", asbytes=True))


def decode(block: bytes, label: str) -> dict[str, bytes]:
    """Decode a block that `encode` made.

    Raises:
        InvalidLogError: `encode` did not make the block; the text names it as `label`.
        NewerFormatError: a newer version made it.
    """
    try:
        files = _files_in(limits.inflate(block, limits.CHECKPOINT).decode("ascii"))
    except ValueError as error:
        raise InvalidLogError(f"{label}: its checkpoint cannot be decoded: {error}") from None
    if (version := files.get(versions.FIELD, b"")).isdigit():
        versions.check(versions.CHECKPOINT, int(version[:20]), f"{label}: its checkpoint")
        del files[versions.FIELD]
    folders = {name[:at] for name in files for at, c in enumerate(name) if c == "/"}
    for name in files:
        # The name becomes a path on the machine that rebuilds, so it must not leave the folder.
        if not names.is_carried(name) or name in folders:
            raise InvalidLogError(f"{label}: its checkpoint names a file {name!r}")
    return files


def _files_in(text: str) -> dict[str, bytes]:
    """The files in what `encode` makes, with no other object than these: a parser of JSON makes any
    number of them. Raises ValueError."""
    files: dict[str, bytes] = {}
    if text == "{}":
        return files
    at = _after(text, 0, "{")
    while len(files) < limits.CHECKPOINT_FILES:
        name, at = _string_at(text, _after(text, at, '"') - 1)
        begin = _after(text, at, ': "')
        if _STRING.match(text, begin) is None:
            raise ValueError(f"the content of {name[:80]!r} is no bytes")
        content, at = _string_at(text, begin - 1)
        if name in files:
            raise ValueError("it names a file twice")
        files[name] = content.encode("latin-1")
        if at == len(text) - 1 and text[at] == "}":
            return files
        at = _after(text, at, ", ")
    raise ValueError(f"it holds more than {limits.CHECKPOINT_FILES} files")


def _after(text: str, at: int, sign: str) -> int:
    """The index after `sign`, which must be at `at`.

    Raises:
        ValueError: the text has another sign there.
    """
    if not text.startswith(sign, at):
        raise ValueError(f"no {sign} at character {at}")
    return at + len(sign)


def read_files(
    log: LogStore,
    window: int,
    query_id: str,
    entry: Checkpoint,
    record: SlotRecord | None = None,
    cached: Mapping[str, bytes] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Read all files of a checkpoint: 1 GET, and 1 for each compacted list in an earlier record.

    Args:
        log: the log.
        window: its window.
        query_id: the query.
        entry: its checkpoint.
        record: the record of the entry, if it was read.
        cached: files by name. A compacted list among them is not read again.

    Raises:
        InvalidLogError: a record is missing, damaged, or not the one that the entry names.
    """
    files = read_block(log, window, query_id, entry.position, record, expected=entry)
    lists: dict[int, set[str]] = {}
    for name, (at, size) in entry.files.items():
        if at not in (NOWHERE, entry.position) and len(cached.get(name, b"")) != size:
            lists.setdefault(at, set()).add(name)
    for earlier, wanted in sorted(lists.items()):
        carried = read_block(log, window, query_id, earlier)
        if missing := wanted - carried.keys():
            raise InvalidLogError(
                f"the record of position {earlier} of {log.url} does not hold {min(missing)!r} of "
                f"the checkpoint of query {query_id}, as later records say"
            )
        files |= {name: carried[name] for name in wanted}
    return files


def read_block(
    log: LogStore,
    window: int,
    query_id: str,
    position: int,
    record: SlotRecord | None = None,
    *,
    expected: Checkpoint | None = None,
) -> dict[str, bytes]:
    """Read the files that the record at `position` carries for a query: 1 GET, or 2 for a large
    block. If the `record` was read, one GET less.

    Raises:
        InvalidLogError: the record is missing, of another query or damaged, or its entry is not
            the `expected` one: in a freed slot another record may lie.
    """
    _check_position(log, window, position)
    if record is None or not record.front:
        record = read_slot(log, position, window)
    record, entry = _carrying(log, window, query_id, position, record)
    label = log.locate(record.header.number, window)
    if expected not in (None, entry):
        raise InvalidLogError(f"{label}: that record is not the one which later records name")
    if not entry.bytes:
        return {}

    def checked(block: bytes) -> dict[str, bytes]:
        if crc32(block) != entry.crc32:
            raise InvalidLogError(f"{label}: the checkpoint in it does not match its CRC-32")
        return decode(block, label)

    return _section(log, record, arrowfile.block_offset(record.size), entry.bytes, checked)


def read_state(
    log: LogStore, window: int, query_id: str, state: QueryState
) -> Iterator[tuple[str, Part]]:
    """Read the parts of a state that records carry, in order: 1 GET each, or more for a large one.

    It holds one part in memory, and what `get_many` requests ahead.

    Yields:
        The name of the record and its part.

    Raises:
        InvalidLogError: a record is missing, of another query or damaged.
    """
    positions = state.positions
    _check_position(log, window, max(positions, default=0))
    fronts = get_many(log.store, ((at, front_of(log, at, window)) for at in positions))
    for position, front in fronts:
        opened = open_again(log, position, window, front)
        record, entry = _carrying(log, window, query_id, position, opened)
        label = log.locate(record.header.number, window)
        if entry.state is None or entry.state.bytes > limits.STATE:
            raise InvalidLogError(f"{label}: it carries no state of query {query_id}")
        begin = arrowfile.block_offset(record.size) + entry.bytes
        yield label, _part(log, record, label, begin, entry.state)


def _part(log: LogStore, record: SlotRecord, label: str, begin: int, state: QueryState) -> Part:
    """The part of a state that begins at an offset of a record. Raises InvalidLogError."""
    key = log.key(record.header.number)
    end = begin + state.bytes

    def read(front: bytes) -> Part:
        part: Part = front
        if len(front) < state.bytes:
            part = bytearray(front)
            starts = range(begin + len(front), end, PART_SIZE)
            slices = ((at, Range(key, at, min(PART_SIZE, end - at))) for at in starts)
            for _, data in get_many(log.store, slices):
                part += data or b""
        if crc32(part) != state.crc32:
            raise InvalidLogError(f"{label}: the state in it does not match its CRC-32")
        return part

    return sound(key, lambda: read(record.front[begin:end]), lambda: read(b""))


def _check_position(log: LogStore, window: int, position: int) -> None:
    """Raises InvalidLogError."""
    if position > keys.last_position(window):
        raise InvalidLogError(f"{log.url}: no log comes to position {position}, which it names")


def _carrying(
    log: LogStore, window: int, query_id: str, position: int, record: SlotRecord | None
) -> tuple[SlotRecord, Checkpoint]:
    """The record that was read at `position`, and the checkpoint of the query in it.

    Raises:
        InvalidLogError: the record is missing or not of this query.
    """
    if record is None:
        raise InvalidLogError(
            f"{MissingRecord(log, position, window)}. It holds the checkpoint of query {query_id}, "
            "which no segment has"
        )
    header = record.header
    entry = header.checkpoints.get(query_id)
    # Only its own query: a forged record may name thousands, and each would unpack the block.
    is_own = isinstance(header, CommitHeader) and header.query_id == query_id
    if not is_own or entry is None or entry.position != position:
        label = log.locate(header.number, window)
        raise InvalidLogError(f"{label}: it carries no checkpoint of query {query_id}")
    return record, entry


def _section(
    log: LogStore, record: SlotRecord, begin: int, size: int, checked: Callable[[bytes], T]
) -> T:
    """A part of a record, as `checked` returns it. It is read if it was not."""
    key = log.key(record.header.number)

    def again() -> T:
        return checked(log.store.get_range(key, begin, size))

    part = record.front[begin : begin + size]
    return sound(key, again if len(part) < size else partial(checked, part), again)
