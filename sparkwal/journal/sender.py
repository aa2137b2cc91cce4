"""Which appender sends a journal's entries. What another appender sent is not the journal's."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256

from sparkwal.journal.files import failed, is_full, no_room
from sparkwal.journal.storage import Folder, Handle, content_of, sync_folder

SENDER = "sender"
# The note is written twice, one copy after the other: no crash and no flipped bit hides it. The
# file is overwritten in place: a full disk has no room for a new one, and only sending makes room.
_PLACE = 4096
_HEAD = struct.Struct("<IIQ")


@dataclass(frozen=True)
class Sender:
    """An appender that may send entries: each of its records names `leader_id`, and the log had the
    entries up to `sequence` when it began. `whose`: see there."""

    whose: str
    leader_id: str
    sequence: int


def whose(log_id: str, producer: str) -> str:
    """A short name for a producer of a log, however long its own."""
    return sha256(f"{log_id}\0{producer}".encode()).hexdigest()


def read_sender(folder: Folder) -> Sender | str:
    """The last sender that was written, or why it is unknown. Raises OSError."""
    found = _places(folder)
    if found:
        return max(found, key=lambda each: each[0])[1]
    if SENDER in folder.names():
        return f"the note of who sent last ({folder.path}/{SENDER}) cannot be read"
    return f"there is no note of who sent last ({folder.path}/{SENDER})"


def _places(folder: Folder) -> list[tuple[int, Sender]]:
    """(number of the write, sender) of each intact copy."""
    data = content_of(folder, SENDER, 2 * _PLACE) or b""
    found = []
    for place in (data[:_PLACE], data[_PLACE:]):
        if len(place) < _HEAD.size:
            continue
        crc, length, count = _HEAD.unpack_from(place)
        body = place[_HEAD.size :][:length]
        if length and zlib.crc32(place[4 : _HEAD.size] + body) == crc:
            found.append((count, Sender(**json.loads(body))))
    return found


def write_sender(folder: Folder, sender: Sender) -> None:
    """Durable when it returns. Raises JournalError, OptionError if there is no room."""
    body = json.dumps(vars(sender)).encode()
    try:
        is_new = SENDER not in folder.names()
        writer = folder.create(SENDER) if is_new else folder.open(SENDER)
        with closing(Handle(writer, SENDER)) as file:
            if file.size < 2 * _PLACE:
                file.append([bytes(2 * _PLACE - file.size)])
            count = max([each for each, _ in _places(folder)], default=0) + 1
            head = _HEAD.pack(0, len(body), count)[4:]
            crc = zlib.crc32(head + body).to_bytes(4, "little")
            # SAFETY(sender-twice) §11: the sender's note is written twice
            for place in (0, _PLACE):
                file.write_at(place, crc + head + body)
                # SAFETY(sender-before-rows) §11: the sender's note is durable before a row is sent
                file.sync()
    except OSError as error:
        if is_full(error):
            raise no_room(folder.path) from error
        raise failed(f"{folder.path}/{SENDER}", error) from error
    if is_new:
        sync_folder(folder)
