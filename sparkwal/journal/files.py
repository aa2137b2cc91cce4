"""The files of a journal's folder. Each is made whole, or not at all.

{id:020d}.wal   a segment
cursor          the last entry that the log has
accepted        the last accepted entry, as a hint: never synced by itself
reserve         removed on a full disk, so that the journal can still remove what the log has
lost            which accepted entries damage took, and which files in quarantine had them
lock            held by the process that has the journal open
quarantine/     damaged files, unchanged
"""

from __future__ import annotations

import json
import re
import secrets
import struct
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from errno import EDQUOT, ENOSPC
from itertools import chain

from sparkwal.errors import JournalEncodeError, JournalRenameError, JournalWriteError, OptionError
from sparkwal.journal.segment import LARGEST_HEADER, Header
from sparkwal.journal.storage import Folder, Handle, content_of, sync_folder

CURSOR, ACCEPTED, RESERVE, LOST = "cursor", "accepted", "reserve", "lost"
TEMPORARY = ".tmp"
# Room for a cursor and the header of a segment, each in blocks of its own.
_RESERVED = 2**16
_SEGMENT = re.compile(r"(?:quarantine/)?([0-9]{20})\.wal.*")
# No journal counts so far: a name with a higher number is not a journal's.
_IDS = 10**18
# The most bytes of a cursor.
_MOST = 2**16
_MARK = struct.Struct("<IQq")


def segment_name(number: int) -> str:
    return f"{number:020d}.wal"


def segment_id(name: str) -> int:
    """The id in a segment's name, also in quarantine; −1 for any other file."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1]) if found and int(found[1]) < _IDS else -1


def is_temporary(name: str) -> bool:
    whole = name.removesuffix(TEMPORARY)
    number = segment_id(whole)
    is_segment = number >= 0 and whole == segment_name(number)
    return whole != name and (whole in (CURSOR, ACCEPTED, RESERVE, LOST) or is_segment)


def is_full(error: OSError) -> bool:
    """Whether there is no room: that passes, and nothing is broken."""
    return error.errno in (ENOSPC, EDQUOT)


@dataclass(frozen=True)
class Cursor:
    """How much of a journal the log has."""

    log_id: str
    producer: str
    sequence: int  # all entries up to it are in the log
    first_segment: int  # segments with a lower id were removed; one that is there was restored
    next_segment: int  # neither this id nor a higher one was ever used
    # Of a closed journal: its last segment and that one's size; every byte of it is synced.
    ends: tuple[int, int] | None = None

    @property
    def owner(self) -> tuple[str, str]:
        return self.log_id, self.producer

    def encode(self) -> bytes:
        document = json.dumps(asdict(self))
        return json.dumps({"crc32": zlib.crc32(document.encode()), "cursor": document}).encode()


def read_cursor(folder: Folder) -> tuple[Cursor | None, str]:
    """The cursor, or None and why it cannot be used; "" if there is none. Raises OSError."""
    data = content_of(folder, CURSOR, _MOST)
    if data is None:
        return None, ""
    try:
        outer = json.loads(data)
        if zlib.crc32(outer["cursor"].encode()) != outer["crc32"]:
            return None, "its CRC-32 is not that of its content"
        plain = json.loads(outer["cursor"])
        plain["ends"] = plain["ends"] and tuple(plain["ends"])
        return Cursor(**plain), ""
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None, "it is torn"


def write_cursor(folder: Folder, cursor: Cursor) -> None:
    """Durable when it returns. Raises the JournalError of the stage that failed, OSError if there
    is no room."""
    try:
        data = cursor.encode()
    except (TypeError, ValueError) as error:
        raise JournalEncodeError(f"the cursor cannot be encoded: {error}") from error
    put_with_reserve(folder, CURSOR, data)


def make_segment(
    folder: Folder, header: Header, entries: Iterable[bytes] = (), *, spare: bool = False
) -> int:
    """Make a segment's file with these entries. It replaces a file of its name. Returns where its
    entries begin. On a full disk `spare` uses the reserve's room. Raises as `write_cursor`."""
    try:
        head = header.encode()
    except (TypeError, ValueError) as error:
        raise JournalEncodeError(f"segment {header.id} cannot be encoded: {error}") from error
    # SAFETY(header-readable) §11: a segment whose header readers refuse is not written
    if len(head) > LARGEST_HEADER:
        raise JournalEncodeError(
            f"segment {header.id} cannot be encoded: its header with the schema has {len(head)} "
            f"bytes; {LARGEST_HEADER} are read"
        )
    name = segment_name(header.id)
    if spare:
        put_with_reserve(folder, name, head)
    else:
        _put(folder, name, chain([head], entries))
    return len(head)


def keep_reserve(folder: Folder) -> None:
    """Make the reserve if it is missing and there is room. Raises JournalError."""
    if RESERVE in folder.names():
        return
    with suppress(OSError):
        _put(folder, RESERVE, [secrets.token_bytes(_RESERVED)])  # zeros may be stored as a hole


def put_with_reserve(folder: Folder, name: str, data: bytes) -> None:
    """Write a file, on a full disk in the reserve's room. Raises as `write_cursor`."""
    try:
        _put(folder, name, [data])
    except OSError:
        if RESERVE not in folder.names():
            raise
        # SAFETY(reserve-frees) §11: on a full disk the reserve gives way to the cursor
        folder.remove(RESERVE)
        _put(folder, name, [data])


def _put(folder: Folder, name: str, parts: Iterable[bytes]) -> None:
    temporary = name + TEMPORARY
    try:
        if temporary in folder.names():
            folder.remove(temporary)
        with closing(Handle(folder.create(temporary), temporary)) as file:
            for part in parts:
                file.append([part])
            # SAFETY(sync-before-name) §11: a file is synced before it gets its name
            file.sync()
    except OSError as error:
        with suppress(OSError):
            folder.remove(temporary)
        if is_full(error):
            raise
        raise failed(f"{folder.path}/{name}", error) from error
    try:
        folder.rename(temporary, name)
    except OSError as error:
        raise JournalRenameError(f"{folder.path}/{name} was not replaced ({error})") from error
    sync_folder(folder)


def failed(what: str, error: OSError) -> JournalWriteError:
    """The error of a write that failed, but not because the disk is full."""
    return JournalWriteError(
        f"{what} was not written ({error}). Look at the disk, then open the journal again: what "
        "was accepted before is there"
    )


def no_room(path: str) -> OptionError:
    return OptionError(
        f"the disk of {path} is full: the journal cannot be opened. Make room; nothing of it is "
        "lost"
    )


class Mark:
    """The newest accepted entry: a lower bound, whatever the disk did with it. It distinguishes an
    entry that a crash tore, which was never accepted, from an accepted one that is damaged now. It
    is never synced by itself: it helps most if the process died and the machine did not."""

    def __init__(self, folder: Folder) -> None:
        there = ACCEPTED in folder.names()
        self._writer = folder.open(ACCEPTED) if there else folder.create(ACCEPTED)

    def put(self, segment: int, sequence: int) -> None:
        """Every entry up to `sequence`, which is in this segment, is accepted."""
        with suppress(OSError):  # it is a hint
            self._writer.write_at(0, _mark(segment, sequence))

    def close(self) -> None:
        self._writer.close()


def write_mark(folder: Folder, segment: int, sequence: int) -> None:
    """As `Mark.put`, and durable when it returns. Raises as `write_cursor`."""
    _put(folder, ACCEPTED, [_mark(segment, sequence)])


def _mark(segment: int, sequence: int) -> bytes:
    body = _MARK.pack(0, segment, sequence)[4:]
    return zlib.crc32(body).to_bytes(4, "little") + body


def read_mark(folder: Folder) -> tuple[int, int]:
    """(segment, sequence) as in `Mark.put`; (-1, -1) if nothing is known. Raises OSError."""
    data = content_of(folder, ACCEPTED, _MARK.size)
    if data is None or len(data) < _MARK.size:
        return -1, -1
    crc, segment, sequence = _MARK.unpack(data)
    return (segment, sequence) if zlib.crc32(data[4:]) == crc else (-1, -1)
