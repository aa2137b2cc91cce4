"""The files of a journal's folder. Each is made whole, or not at all.

{id:020d}.wal   a segment
cursor          the last entry that the log has
accepted        the last accepted entry, twice; openings sync it, and appends do not
sender          which appender sends the entries; overwritten in place
reserve         removed on a full disk, so that the journal can still remove what the log has
lost            which accepted entries damage took, and which files in quarantine had them
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

from sparkwal.errors import JournalEncodeError, JournalRenameError, JournalWriteError, OptionError
from sparkwal.journal.segment import LARGEST_HEADER, Header, Invalid
from sparkwal.journal.storage import Folder, Handle, Writer, content_of, sync_folder

CURSOR = "cursor"
ACCEPTED = "accepted"
RESERVE = "reserve"
LOST = "lost"
SENDER = "sender"
TEMPORARY = ".tmp"
# Room for a cursor and the header of a segment, each in blocks of its own.
_RESERVED = 2**16
# No journal counts up to this: a name with a higher number is not a journal's.
HIGHEST = 10**18
_SEGMENT = re.compile(r"(?:quarantine/)?(00[0-9]{18})\.wal.*")
UNFINISHED = re.compile(r"(?:cursor|accepted|reserve|lost|00[0-9]{18}\.wal)\.tmp")
# The most bytes of a cursor.
_MOST = 2**16
# Each copy of the sender's note has so many bytes.
_PLACE = 4096
_MARK = struct.Struct("<Qq")

T = TypeVar("T")


def segment_name(number: int) -> str:
    return f"{number:020d}.wal"


def segment_id(name: str) -> int:
    """The id in a segment's name, also in quarantine; −1 for any other file."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1]) if found else -1


def is_ours(name: str) -> bool:
    """Whether a file shows that the journal was in use: each is made after the mark."""
    return segment_id(name) >= 0 or name in (CURSOR, SENDER, LOST)


def is_full(error: OSError) -> bool:
    """Whether there is no room: that passes, and nothing is broken."""
    return error.errno in (ENOSPC, EDQUOT)


def note_of(name: str, plain: object) -> bytes:
    """A note with its CRC-32."""
    document = json.dumps(plain)
    return json.dumps({"crc32": crc32(document.encode()), name: document}).encode()


def read_note(name: str, data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Raises Invalid. The decoder is made at import: threads that made one at once would crash."""
    try:
        outer = json.loads(data)
        if crc32(outer[name].encode()) != outer["crc32"]:
            raise Invalid("its CRC-32 is not that of its content")
        return decoder.decode(outer[name])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Invalid("it is torn") from None


@dataclass(frozen=True)
class Cursor:
    """How much of a journal the log has."""

    log_id: str
    producer: str
    sequence: int  # all entries up to it are in the log
    first_segment: int  # segments with a lower id were removed; one that is there was restored
    next_segment: int  # neither this id nor a higher one was ever used
    # Of a closed journal: its last segment, that one's size and its last entry; every byte of it is
    # synced. The next opening removes it.
    ends: list[int] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first_segment <= self.next_segment < HIGHEST:
            raise ValueError("its segments contradict each other")

    @property
    def owner(self) -> tuple[str, str]:
        return self.log_id, self.producer

    @property
    def end(self) -> tuple[int, int] | None:
        """(segment, sequence) of a closed journal's last entry; None if it may be open."""
        if self.ends is None or len(self.ends) < 3:
            return None
        segment, _, last = self.ends
        return segment, last


_CURSORS = msgspec.json.Decoder(Cursor)


def read_cursor(folder: Folder) -> tuple[Cursor | None, str]:
    """The cursor, or None and why it cannot be used; "" if there is none. Raises OSError."""
    data = content_of(folder, CURSOR, _MOST)
    try:
        if data is None:
            return None, ""
        return read_note(CURSOR, data, _CURSORS), ""
    except Invalid as wrong:
        return None, str(wrong)


def write_cursor(folder: Folder, cursor: Cursor) -> None:
    """Durable when it returns. Raises the JournalError of a failed stage, OSError without room."""
    put_with_reserve(folder, CURSOR, note_of(CURSOR, asdict(cursor)))


@dataclass(frozen=True)
class Sender:
    """An appender that may send entries: each of its records names `leader_id`, and the log had the
    entries up to `sequence` when it began. What another one sent is not the journal's."""

    whose: str
    leader_id: str
    sequence: int


_SENDERS = msgspec.json.Decoder(Sender)


def whose(log_id: str, producer: str) -> str:
    """A short name for a producer of a log, however long its own."""
    return sha256(f"{log_id}\0{producer}".encode()).hexdigest()


def read_sender(folder: Folder) -> Sender | str:
    """The last sender that was written, or why it is unknown. Raises OSError."""
    data = content_of(folder, SENDER, 2 * _PLACE)
    if data is None:
        return f"there is no note of who sent last ({folder.path}/{SENDER})"
    for place in (data[:_PLACE], data[_PLACE:]):  # the first is written first
        with suppress(Invalid):
            return read_note(SENDER, place, _SENDERS)
    return f"the note of who sent last ({folder.path}/{SENDER}) cannot be read"


def write_sender(folder: Folder, sender: Sender) -> None:
    """Durable when it returns. Raises JournalError, OptionError if there is no room.

    The file is overwritten in place: a full disk has no room for a new one, and only sending makes
    room. The note is written twice: no crash and no flipped bit hides it.
    """
    note = note_of(SENDER, asdict(sender)).ljust(_PLACE)
    try:
        is_new = SENDER not in folder.names()
        writer = folder.create(SENDER) if is_new else folder.open(SENDER)
        with closing(Handle(writer, SENDER)) as file:
            # SAFETY(sender-twice) §11: the sender's note is written twice
            for place in (0, _PLACE):
                file.writer.write_at(place, note)
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
    """Make a segment's file with these entries. It replaces a file of its name. Returns where its
    entries begin. On a full disk `spare` uses the reserve's room. Raises as `write_cursor`."""
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
    """Make the reserve if it is missing and there is room. Raises JournalError."""
    if RESERVE not in folder.names():
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
    """The error of a write that failed, but not because the disk is full."""
    return JournalWriteError(
        f"{what} was not written ({error}). Look at the disk, then open the journal again: what "
        "was accepted before is there"
    )


def no_room(path: str) -> OptionError:
    return OptionError(
        f"the disk of {path} is full: the journal cannot be opened. Make room; nothing is lost"
    )


# The mark names the newest accepted entry and its segment. It distinguishes an entry that a crash
# tore, which was never accepted, from an accepted entry that is damaged now. A loss of power may
# put an earlier mark back, but none from before the last opening.


def put_mark(writer: Writer, segment: int, sequence: int) -> None:
    """Every entry up to `sequence`, which is in this segment, is accepted. Raises OSError."""
    writer.write_at(0, _mark(segment, sequence))


def keep_mark(folder: Folder, segment: int, sequence: int) -> None:
    """As `put_mark`, and durable when it returns. Raises as `write_cursor`.

    The file is overwritten in place: a full disk has no room for a new one."""
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
    """(segment, sequence) as in `put_mark`; None if it is missing or damaged. Raises OSError."""
    size = 4 + _MARK.size
    data = content_of(folder, ACCEPTED, 2 * size) or b""
    copies = (data[:size], data[size:])
    sound = [each[4:] for each in copies if crc32(each[4:]).to_bytes(4, "little") == each[:4]]
    marks = [_MARK.unpack(body) for body in sound if len(body) == _MARK.size]
    return max((mark for mark in marks if max(mark) < HIGHEST), default=None)
