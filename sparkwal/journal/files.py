"""Reads and writes the files of a journal's folder. A crash leaves each file complete or absent.

{id:020d}.wal   a segment
cursor          the last entry that the log has
accepted        the last accepted entry, twice; openings sync it, and appends do not
sender          the appender that sends the entries; overwritten in place
reserve         deleted on a full disk, to make room for the files that let the journal shrink
lost            the accepted entries that damage took, and their files in quarantine
lock            held by the process that has the journal open
quarantine/     damaged files, unchanged
"""

import json
import re
import secrets
import struct
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from errno import EDQUOT, ENOSPC
from hashlib import sha256
from itertools import chain
from typing import TypeVar

import msgspec
from isal.isal_zlib import crc32

from sparkwal.errors import (
    InvalidLogError,
    JournalEncodeError,
    JournalRenameError,
    JournalWriteError,
    NewerFormatError,
    OptionError,
)
from sparkwal.format import versions
from sparkwal.journal.segment import LARGEST_HEADER, Header, Invalid
from sparkwal.journal.storage import Folder, Handle, Writer, content_of, sync_folder

CURSOR = "cursor"
ACCEPTED = "accepted"
RESERVE = "reserve"
LOST = "lost"
SENDER = "sender"
TEMPORARY = ".tmp"
# Room for a cursor and the header of a segment, in separate blocks.
_RESERVED = 2**16
# No journal counts up to this: a name with a higher number is not a journal's.
HIGHEST = 10**18
_SEGMENT = re.compile(r"(?:quarantine/)?(00[0-9]{18})\.wal.*")
UNFINISHED = re.compile(r"(?:cursor|accepted|reserve|lost|00[0-9]{18}\.wal)\.tmp")
_MAX_CURSOR_BYTES = 2**16
# The sender's file holds two copies of the note, of this many bytes each.
_COPY_BYTES = 4096
_MARK = struct.Struct("<Qq")

T = TypeVar("T")


def segment_name(number: int) -> str:
    return f"{number:020d}.wal"


def segment_id(name: str) -> int:
    """The id in a segment's name, also in quarantine, or −1 for any other file."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else -1


def is_ours(name: str) -> bool:
    """Whether a file proves that the journal was in use. The mark is older than all of these."""
    return segment_id(name) >= 0 or name in (CURSOR, SENDER, LOST)


def is_full(error: OSError) -> bool:
    """Whether the disk is full. The journal then waits for room and does not stop."""
    return error.errno in (ENOSPC, EDQUOT)


def note_of(name: str, plain: object) -> bytes:
    """Encode a note with its CRC-32."""
    document = json.dumps(plain)
    return json.dumps({"crc32": crc32(document.encode()), name: document}).encode()


def read_note(name: str, data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a note.

    The decoder is a parameter, made at import: threads that create decoders at the same time crash.

    Raises:
        Invalid: the note is damaged.
        NewerFormatError: a newer version wrote it.
    """
    try:
        outer = json.loads(data)
        versions.check_optional(versions.JOURNAL, outer, f"its file {name}")
        if crc32(outer[name].encode()) != outer["crc32"]:
            raise Invalid("its CRC-32 does not match its content")
        return decoder.decode(outer[name])
    except NewerFormatError:
        raise
    except (InvalidLogError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Invalid("it is torn") from None


@dataclass(frozen=True)
class Cursor:
    """The last entry of a journal that the log has.

    Attributes:
        log_id, producer: the owner of the entries.
        sequence: the log has all entries up to it.
        first_segment: segments with lower ids were removed. If one is back, an old copy was
            restored.
        next_segment: no segment ever had this id or a higher one.
        ends: of a closed journal, whose bytes are all synced: the id and size of its last segment,
            and its last sequence. The next opening removes it.
    """

    log_id: str
    producer: str
    sequence: int
    first_segment: int
    next_segment: int
    ends: list[int] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first_segment <= self.next_segment < HIGHEST:
            raise ValueError("its segments contradict each other")

    @property
    def owner(self) -> tuple[str, str]:
        return self.log_id, self.producer

    @property
    def end(self) -> tuple[int, int] | None:
        """(segment, sequence) of a closed journal's last entry, or None if it may be open."""
        if self.ends is None or len(self.ends) < 3:
            return None
        segment, _, last = self.ends
        return segment, last


CURSORS = msgspec.json.Decoder(Cursor)


def read_cursor(folder: Folder) -> tuple[Cursor | None, str]:
    """Read the cursor.

    Returns:
        The cursor, or None and the reason why it cannot be used. The reason is "" without a cursor.

    Raises:
        OSError: the disk failed.
    """
    data = content_of(folder, CURSOR, _MAX_CURSOR_BYTES)
    try:
        if data is None:
            return None, ""
        return read_note(CURSOR, data, CURSORS), ""
    except Invalid as error:
        return None, str(error)


def write_cursor(folder: Folder, cursor: Cursor) -> None:
    """Write the cursor. It is durable when this returns.

    Raises:
        JournalError: a step failed.
        OSError: the disk is full.
    """
    put_with_reserve(folder, CURSOR, note_of(CURSOR, asdict(cursor)))


@dataclass(frozen=True)
class Sender:
    """An appender that may send entries. Entries that another appender sent are not this journal's.

    Attributes:
        whose: a hash of log and producer, see `whose`.
        leader_id: the one in each of its records.
        sequence: the log had the entries up to it when the appender began.
    """

    whose: str
    leader_id: str
    sequence: int


_SENDERS = msgspec.json.Decoder(Sender)


def whose(log_id: str, producer: str) -> str:
    """A short hash that stands for a producer of a log: a producer's name may be long."""
    return sha256(f"{log_id}\0{producer}".encode()).hexdigest()


def read_sender(folder: Folder) -> Sender | str:
    """Read the last sender, or the reason why it is unknown.

    Raises:
        OSError: the disk failed.
    """
    data = content_of(folder, SENDER, 2 * _COPY_BYTES)
    if data is None:
        return f"the note of the last sender ({folder.path}/{SENDER}) is missing"
    # `write_sender` writes the first copy first, so that one is the newer one.
    for copy in (data[:_COPY_BYTES], data[_COPY_BYTES:]):
        with suppress(Invalid):
            return read_note(SENDER, copy, _SENDERS)
    return f"the note of the last sender ({folder.path}/{SENDER}) cannot be read"


def write_sender(folder: Folder, sender: Sender) -> None:
    """Write the sender. It is durable when this returns.

    The file is overwritten in place: a full disk has no room for a new one, and only sending makes
    room. The note is written twice, so no crash and no flipped bit destroys both copies.

    Raises:
        JournalError: a step failed.
        OptionError: the disk is full.
    """
    note = note_of(SENDER, asdict(sender)).ljust(_COPY_BYTES)
    try:
        is_new = SENDER not in folder.names()
        writer = folder.create(SENDER) if is_new else folder.open(SENDER)
        with closing(Handle(writer, SENDER)) as file:
            # SAFETY(sender-twice) §11: the sender's note is written twice
            for offset in (0, _COPY_BYTES):
                file.writer.write_at(offset, note)
                # SAFETY(sender-before-rows) §11: the sender's note is durable before a row is sent
                file.sync()
    except OSError as error:
        if is_full(error):
            raise no_room(folder.path) from error
        raise failed(f"{folder.path}/{SENDER}", error) from error
    if is_new:
        sync_folder(folder)


def make_segment(
    folder: Folder, header: Header, entries: Iterable[bytes] = (), *, spare: bool = False
) -> int:
    """Create a segment's file with these entries. It replaces a file of its name.

    Args:
        folder: the journal's folder.
        header: the segment's header.
        entries: the bytes of its entries.
        spare: on a full disk use the reserve's room.

    Returns:
        The offset of the first entry.

    Raises:
        JournalEncodeError: the header is too large.
        JournalError: a step failed.
        OSError: the disk is full.
    """
    head = header.encode()
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
    """Create the reserve if it is missing and the disk has room.

    Raises:
        JournalError: a step failed.
    """
    if RESERVE not in folder.names():
        with suppress(OSError):
            # A file system may store zeros as a hole, which reserves no room.
            _put(folder, RESERVE, [secrets.token_bytes(_RESERVED)])


def put_with_reserve(folder: Folder, name: str, data: bytes) -> None:
    """Write a file. On a full disk use the reserve's room.

    Raises:
        JournalError: a step failed.
        OSError: the disk is full.
    """
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
                file.writer.append([part])
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
    """The error of a failed write, unless the disk was full."""
    return JournalWriteError(
        f"{what} was not written ({error}). Check the disk, then open the journal again: it still "
        "holds the entries that it accepted before"
    )


def no_room(path: str) -> OptionError:
    """The error of an opening on a full disk."""
    return OptionError(
        f"the disk of {path} is full: the journal cannot be opened. Make room; no entry is lost"
    )


# The mark names the newest accepted entry and its segment. It tells a torn tail, which was never
# accepted, from damage to an accepted entry. A loss of power may bring back an earlier mark, but
# none from before the last opening.


def put_mark(writer: Writer, segment: int, sequence: int) -> None:
    """Note that every entry up to `sequence`, which is in this segment, is accepted. Does not sync.

    Raises:
        OSError: the write failed.
    """
    writer.write_at(0, _mark(segment, sequence))


def keep_mark(folder: Folder, segment: int, sequence: int) -> None:
    """Write the mark as `put_mark` does, and sync it.

    The file is overwritten in place: a full disk has no room for a new one.

    Raises:
        JournalError: a step failed.
        OSError: the disk is full.
    """
    mark = _mark(segment, sequence)
    if ACCEPTED not in folder.names():
        put_with_reserve(folder, ACCEPTED, mark)
        return
    with closing(Handle(folder.open(ACCEPTED), ACCEPTED)) as file:
        file.writer.write_at(0, mark)
        file.sync()


def _mark(segment: int, sequence: int) -> bytes:
    body = _MARK.pack(segment, sequence)
    # SAFETY(mark-twice) §11: the mark is written twice
    return 2 * (crc32(body).to_bytes(4, "little") + body)


def read_mark(folder: Folder) -> tuple[int, int] | None:
    """Read the (segment, sequence) of `put_mark`, or None if the mark is missing or damaged.

    Raises:
        OSError: the disk failed.
    """
    size = 4 + _MARK.size
    data = content_of(folder, ACCEPTED, 2 * size) or b""
    copies = (data[:size], data[size:])
    sound = [copy[4:] for copy in copies if crc32(copy[4:]).to_bytes(4, "little") == copy[:4]]
    marks = [_MARK.unpack(body) for body in sound if len(body) == _MARK.size]
    return max((mark for mark in marks if max(mark) < HIGHEST), default=None)
