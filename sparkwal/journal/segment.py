"""The bytes of one segment file: a header, then entries, each at an offset divisible by 8.

Header: magic, length and CRC-32 of a JSON document, the document, zeros.

Entry: magic, CRC-32 of the next three, sequence, length, CRC-32 of the content, content, zeros.

The CRC-32 of an entry's head begins with the segment's salt. So an entry of another file, which a
reused disk block may show, is invalid.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import msgspec
from isal.isal_zlib import crc32

from sparkwal.errors import InvalidLogError, NewerFormatError
from sparkwal.format import versions
from sparkwal.journal.storage import Bytes, Reader

VERSION = versions.VERSIONS[versions.JOURNAL]
MAGIC = b"SWJRNL1\n"
_HEAD = struct.Struct("<8sII")
_ENTRY_MAGIC = b"\x89wJe"
_ENTRY = struct.Struct("<4sIQII")
_CHECKED = struct.Struct("<QII")
ENTRY_BYTES = _ENTRY.size
_PAD = bytes(8)
# No header is larger. It bounds the read of a header whose length is damaged.
LARGEST_HEADER = 16 * 2**20
# A scan reads at least this many bytes at once.
BLOCK = 2**20


@dataclass(frozen=True)
class Header:
    """The header of a segment.

    Attributes:
        id: unique among all segments that this journal ever had.
        log_id, producer: the owner of the entries.
        slots: the number of entries that could wait when the segment was created.
        first: the sequence of its first entry.
        salt: the initial value of the CRC-32 of an entry's head.
        schema: describes the content of the entries; opaque here.
        version: the version of the format.
    """

    id: int
    log_id: str
    producer: str
    slots: int
    first: int
    salt: int
    schema: bytes
    version: int

    @property
    def owner(self) -> tuple[str, str]:
        return self.log_id, self.producer

    def encode(self) -> bytes:
        document = msgspec.json.encode(self)
        head = _HEAD.pack(MAGIC, len(document), crc32(document))
        return head + document + _PAD[: -(len(head) + len(document)) % 8]


_HEADERS = msgspec.json.Decoder(Header)


@dataclass(frozen=True)
class _Versioned:
    """What the header of a segment has in each version."""

    version: int


_VERSIONED = msgspec.json.Decoder(_Versioned)


class Invalid(Exception):
    """The bytes are not a segment's."""


def read_header(reader: Reader) -> tuple[Header, int]:
    """Read a file's header.

    Returns:
        The header, and the offset of the first entry.

    Raises:
        Invalid: the file is no segment.
        NewerFormatError: a newer version wrote it.
        OSError: the disk failed.
    """
    head = reader.read_at(0, _HEAD.size)
    if len(head) < _HEAD.size:
        raise Invalid("it has no header")
    magic, length, crc = _HEAD.unpack(head)
    if magic != MAGIC:
        raise Invalid("it does not begin with a segment's magic")
    if length > LARGEST_HEADER:
        raise Invalid(f"a header of {length} bytes")
    document = reader.read_at(_HEAD.size, length)
    if len(document) < length or crc32(document) != crc:
        raise Invalid("its header is damaged")
    try:
        # First: a newer header may have other fields.
        versions.check(versions.JOURNAL, _VERSIONED.decode(document).version, "its segment")
        header = _HEADERS.decode(document)
    except NewerFormatError:
        raise
    except (ValueError, RecursionError, InvalidLogError) as error:
        raise Invalid(f"its header is not readable ({error})") from None
    end = _HEAD.size + length
    return header, end + -end % 8


def entry(sequence: int, content: Bytes, crc: int, salt: int) -> list[Bytes]:
    """The parts of an entry, for one write. `crc` is the content's."""
    length = len(content)
    checked = _CHECKED.pack(sequence, length, crc)
    head = _ENTRY_MAGIC + crc32(checked, salt).to_bytes(4, "little") + checked
    pad = -length % 8
    return [head, content, _PAD[:pad]] if pad else [head, content]


def entry_size(length: int) -> int:
    """The bytes of an entry whose content has `length` bytes."""
    return ENTRY_BYTES + length + -length % 8


@dataclass
class Segment:
    """A segment of a journal.

    Attributes:
        begin: the offset of its first entry.
        end: (offset after its last entry, sequence of that entry). Before the first entry the
            sequence is `header.first` − 1. It is one value, so that both change at once.
    """

    name: str
    header: Header
    begin: int
    end: tuple[int, int]

    @property
    def size(self) -> int:
        return self.end[0]

    @property
    def last(self) -> int:
        return self.end[1]


class Scan:
    """Reads the entries of one file, (sequence, content), up to the first invalid one, block by
    block.

    Attributes:
        size: the number of bytes to read. Those bytes must not change any more.
        end: the offset after the last entry that was read.
        next: the sequence of the entry that begins there.
        wrong: the reason why that entry is invalid; "" if the file ends there.
    """

    def __init__(self, reader: Reader, begin: int, header: Header | None) -> None:
        """Without a header only `rest` works, and it does not check the heads of entries."""
        self._reader = reader
        self._salt = None if header is None else header.salt
        self.next = 0 if header is None else header.first
        self.size = reader.size
        self.end = begin
        self.wrong = ""
        # The block that was read last, and its offset in the file.
        self._base = begin
        self._block = b""
        self._view = memoryview(self._block)

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        while self.end < self.size:
            try:
                sequence, content = self._entry_at(self.end)
                if sequence != self.next:
                    raise Invalid(f"entry {sequence} follows entry {self.next - 1}")
            except Invalid as error:
                self.wrong = str(error)
                return
            self.end += entry_size(len(content))
            self.next += 1
            yield sequence, content

    def _entry_at(self, offset: int) -> tuple[int, memoryview]:
        # A scan of small entries spends most of its time here: copy and look up little.
        at = self._find(offset, ENTRY_BYTES)
        magic, head_crc, sequence, length, crc = _ENTRY.unpack_from(self._block, at)
        if magic != _ENTRY_MAGIC:
            raise Invalid("no entry begins here")
        salt = self._salt
        if salt is not None and crc32(self._block[at + 8 : at + ENTRY_BYTES], salt) != head_crc:
            raise Invalid("the CRC-32 of an entry's head does not match its content")
        begin = self._find(offset, entry_size(length)) + ENTRY_BYTES
        content = self._view[begin : begin + length]
        # SAFETY(content-crc) §11: an entry counts only if its content matches its CRC-32
        if crc32(content) != crc:
            raise Invalid("an entry's CRC-32 does not match its content")
        return sequence, content

    def _find(self, offset: int, size: int) -> int:
        """Load bytes into the block if necessary, and return their offset in it.

        Raises:
            Invalid: the file ends before them.
            OSError: the disk failed.
        """
        at = offset - self._base
        if at < 0 or at + size > len(self._block):
            # Check before reading or allocating: the length may be damaged.
            if offset + size <= self.size:
                # Load the next entry's head too, so that each large entry is read once.
                most = max(size + ENTRY_BYTES, BLOCK)
                self._block = self._reader.read_at(offset, min(most, self.size - offset))
                self._base = offset
                self._view = memoryview(self._block)
                at = 0
            if at < 0 or at + size > len(self._block):
                raise Invalid("the file ends within an entry")
        return at

    def rest(self) -> Iterator[tuple[int, memoryview]]:
        """Find complete entries anywhere after `end`, behind the damage."""
        offset = self.end
        while offset + ENTRY_BYTES <= self.size:
            try:
                at = self._find(offset, ENTRY_BYTES)
            except Invalid:
                # The file became shorter meanwhile.
                return
            magic = self._block.find(_ENTRY_MAGIC, at)
            if magic < 0:
                # An entry may begin in the block's last bytes.
                offset = self._base + len(self._block) - len(_ENTRY_MAGIC) + 1
                offset += -offset % 8
                continue
            magic += self._base
            offset = magic + -magic % 8
            if offset == magic:
                try:
                    sequence, content = self._entry_at(magic)
                except Invalid:
                    offset += 8
                else:
                    offset += entry_size(len(content))
                    yield sequence, content


def intact(reader: Reader) -> tuple[Header, Iterator[tuple[int, memoryview]]]:
    """Read a file's header and every complete entry, also those after damage.

    Raises:
        Invalid: the file has no valid header.
        OSError: the disk failed.
    """
    header, begin = read_header(reader)
    scan = Scan(reader, begin, header)
    return header, chain(scan, scan.rest())
