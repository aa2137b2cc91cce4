"""The bytes of one segment file: a header, then entries, each at an offset divisible by 8.

Header: magic, length and CRC-32 of a JSON document, the document, zeros.
Entry: magic, CRC-32 of the next three, sequence, length, CRC-32 of the content, content, zeros.

The CRC-32 of an entry's head begins with the segment's salt. So an entry of another file, which a
reused disk block may show, is invalid.
"""

from __future__ import annotations

import base64
import json
import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import NamedTuple

from sparkwal.journal.storage import Bytes, Reader

VERSION = 1
MAGIC = b"SWJRNL1\n"
_HEAD = struct.Struct("<8sII")
_ENTRY_MAGIC = b"\x89wJe"
_ENTRY = struct.Struct("<4sIQII")
_CHECKED = struct.Struct("<QII")
ENTRY_BYTES = _ENTRY.size
_PAD = bytes(8)
_PLACE = struct.Struct("<QQQ")
# Larger than any header, which holds a table's schema. Limits a read of an unchecked length.
LARGEST_HEADER = 16 * 2**20
# The least that a scan reads at once.
_BLOCK = 2**20


@dataclass(frozen=True)
class Header:
    """The header of a segment."""

    id: int  # unique among all segments that this journal ever had
    log_id: str
    producer: str
    slots: int  # of the ring when the segment was made
    first: int  # sequence of its first entry
    salt: int  # the initial value of the CRC-32 of an entry's head
    schema: bytes  # how to read the entries' content; opaque here
    version: int = VERSION

    @property
    def owner(self) -> tuple[str, str]:
        return self.log_id, self.producer

    def encode(self) -> bytes:
        plain = asdict(self) | {"schema": base64.b64encode(self.schema).decode()}
        document = json.dumps(plain).encode()
        head = _HEAD.pack(MAGIC, len(document), zlib.crc32(document))
        return head + document + _PAD[: -(len(head) + len(document)) % 8]


class Invalid(Exception):
    """The bytes are not a segment's."""


def read_header(reader: Reader) -> tuple[Header, int]:
    """A file's header and where its entries begin. Raises Invalid, OSError."""
    head = reader.read_at(0, _HEAD.size)
    if len(head) < _HEAD.size:
        raise Invalid("it has no header")
    magic, length, crc = _HEAD.unpack(head)
    if magic != MAGIC:
        raise Invalid("it does not begin as a segment does")
    if length > LARGEST_HEADER:
        raise Invalid(f"a header of {length} bytes")
    document = reader.read_at(_HEAD.size, length)
    if len(document) < length or zlib.crc32(document) != crc:
        raise Invalid("its header is damaged")
    try:
        plain = json.loads(document)
        if plain["version"] != VERSION:
            raise Invalid(f"version {plain['version']}: this sparkwal reads {VERSION}")
        schema = base64.b64decode(plain.pop("schema"))
        end = _HEAD.size + length
        return Header(**plain, schema=schema), end + -end % 8
    except (ValueError, TypeError, KeyError) as error:
        raise Invalid(f"its header is not readable ({type(error).__name__})") from None


def entry(sequence: int, content: Bytes, crc: int, salt: int) -> list[Bytes]:
    """The parts of an entry, for one write; `crc` is the content's."""
    length = len(content)
    checked = _CHECKED.pack(sequence, length, crc)
    head = _ENTRY_MAGIC + zlib.crc32(checked, salt).to_bytes(4, "little") + checked
    pad = -length % 8
    return [head, content, _PAD[:pad]] if pad else [head, content]


def entry_size(length: int) -> int:
    """Bytes of an entry whose content has `length` bytes."""
    return ENTRY_BYTES + length + -length % 8


class Found(NamedTuple):
    """A complete entry of a file. A tuple for speed: a recovery makes one for each."""

    sequence: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + ENTRY_BYTES + self.length + -self.length % 8


class Ring:
    """The places of the newest `slots` entries. Each takes 24 bytes of memory once it is used."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._places = mmap.mmap(-1, slots * _PLACE.size)

    def put(self, segment: int, found: Found) -> None:
        """Note where an entry lies. It replaces the entry `slots` sequences before it."""
        at = found.sequence % self.slots * _PLACE.size
        _PLACE.pack_into(self._places, at, segment, found.offset, found.length)

    def get(self, sequence: int) -> tuple[int, Found]:
        """(segment id, place) of an entry, which must be among the newest `slots`."""
        at = sequence % self.slots * _PLACE.size
        segment, offset, length = _PLACE.unpack_from(self._places, at)
        return segment, Found(sequence, offset, length)

    def shift(self, sequences: range, by: int, into: int) -> None:
        """These entries now lie `by` bytes further on, in the segment `into`."""
        for sequence in sequences[-self.slots :]:
            _, found = self.get(sequence)
            self.put(into, Found(sequence, found.offset + by, found.length))

    def close(self) -> None:
        self._places.close()


class Scan:
    """The entries of one file in order, up to the first incomplete one. Holds one block, or the
    largest entry, in memory. `salt` is the header's; None if unknown, for `rest` only."""

    def __init__(self, reader: Reader, begin: int, salt: int | None) -> None:
        self._reader, self._salt = reader, salt
        self._size = reader.size
        self._base, self._block = begin, b""
        self._view = memoryview(self._block)
        # Where the last complete entry ends; why none begins there, "" if the file ends.
        self.end, self.wrong = begin, ""

    def __iter__(self) -> Iterator[Found]:
        while True:
            try:
                found = self._at(self.end)
            except Invalid as wrong:
                self.wrong = str(wrong)
                return
            if found is None:
                return
            self.end = found.end
            yield found

    def _at(self, offset: int) -> Found | None:
        # The cost of small entries is here: copy and look up no more than needed.
        at, there = offset - self._base, len(self._block)
        if at < 0 or at + ENTRY_BYTES > there:
            if offset == self._size:
                return None
            at, there = self._load(offset)
            if there < ENTRY_BYTES:
                raise Invalid("the file ends within an entry")
        magic, own, sequence, length, crc = _ENTRY.unpack_from(self._block, at)
        begin = at + ENTRY_BYTES
        if magic != _ENTRY_MAGIC:
            raise Invalid("no entry begins here")
        salt = self._salt
        if salt is not None and zlib.crc32(self._block[at + 8 : begin], salt) != own:
            raise Invalid("the CRC-32 of an entry's head is not that of its content")
        end = begin + length + -length % 8
        if end > there:
            # Check before anything is read or allocated: the length is not verified.
            if offset + entry_size(length) > self._size:
                raise Invalid("the file ends within an entry")
            # Load the next entry's head too: so each large entry is read once.
            at, there = self._load(offset, entry_size(length) + ENTRY_BYTES)
            begin = at + ENTRY_BYTES
            if entry_size(length) > there:
                raise Invalid("the file ends within an entry")
        # SAFETY(content-crc) §11: an entry counts only if its content matches its CRC-32
        if zlib.crc32(self._view[begin : begin + length]) != crc:
            raise Invalid("an entry's CRC-32 is not that of its content")
        return Found(sequence, offset, length)

    def _load(self, offset: int, size: int = ENTRY_BYTES) -> tuple[int, int]:
        self._base, self._block = offset, self._reader.read_at(offset, max(size, _BLOCK))
        self._view = memoryview(self._block)
        return 0, len(self._block)

    def rest(self) -> Iterator[Found]:
        """Complete entries anywhere after `end`: those that lie behind the damage."""
        offset = self.end
        while offset + ENTRY_BYTES <= self._size:
            at = offset - self._base
            if (at < 0 or at + ENTRY_BYTES > len(self._block)) and not self._load(offset)[1]:
                return  # it became shorter
            place = self._block.find(_ENTRY_MAGIC, offset - self._base)
            if place < 0:
                # An entry may begin in the block's last bytes.
                offset = self._base + len(self._block) - len(_ENTRY_MAGIC) + 1
                offset += -offset % 8
                continue
            place += self._base
            offset = place + -place % 8
            if offset != place:
                continue
            try:
                found = self._at(place)
            except Invalid:
                found = None
            if found is None:
                offset = place + 8
            else:
                yield found
                offset = found.end


def intact(reader: Reader) -> tuple[Header, Iterator[Found]]:
    """A file's header and every complete entry, also after damage. Raises Invalid, OSError."""
    header, begin = read_header(reader)
    scan = Scan(reader, begin, header.salt)
    return header, chain(scan, scan.rest())


def read_content(reader: Reader, found: Found, salt: int) -> memoryview:
    """An entry's content, checked again. Raises Invalid, OSError."""
    data = reader.read_at(found.offset, ENTRY_BYTES + found.length)
    if len(data) < ENTRY_BYTES + found.length:
        raise Invalid("the file ends within an entry")
    magic, own, sequence, length, crc = _ENTRY.unpack_from(data)
    checked = zlib.crc32(memoryview(data)[8:ENTRY_BYTES], salt)
    is_it = (sequence, length) == (found.sequence, found.length)
    if magic != _ENTRY_MAGIC or checked != own or not is_it:
        raise Invalid(f"entry {found.sequence} is not where it was written")
    content = memoryview(data)[ENTRY_BYTES:]
    if zlib.crc32(content) != crc:
        raise Invalid(f"the CRC-32 of entry {found.sequence} is not that of its content")
    return content
