"""The segments of an open journal, where each entry lies in them, and how they are let go."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress

from sparkwal.errors import JournalReadError
from sparkwal.journal import files
from sparkwal.journal.files import segment_name
from sparkwal.journal.scanning import Segment
from sparkwal.journal.segment import Found, Header, Invalid, Ring, entry, entry_size, read_content
from sparkwal.journal.storage import Bytes, Folder, Handle, Reader


class Segments:
    """The segments in order; the last takes entries. One thread at a time may append, and one may
    remove; reading goes on beside both. `writer` is the last segment's."""

    def __init__(
        self, folder: Folder, found: list[Segment], ring: Ring, writer: Handle, next_id: int
    ) -> None:
        self._folder, self._list, self._ring, self.writer = folder, found, ring, writer
        self.next_id = next_id
        self._reading = threading.Lock()
        self._reader: tuple[str, Reader] | None = None
        # Unfinished: (size, last) of the newest segment before an append, the name of a new one.
        self._begun: tuple[int, int] | None = None
        self._making: str | None = None

    @property
    def size(self) -> int:
        return sum(each.size for each in tuple(self._list))

    @property
    def slots(self) -> int:
        return self._ring.slots

    @property
    def oldest(self) -> Segment:
        return self._list[0]

    @property
    def newest(self) -> Segment:
        return self._list[-1]

    def done(self, acked: int) -> list[Segment]:
        """The segments that hold nothing after `acked`, except the newest."""
        # SAFETY(remove-when-acked) §11: a segment goes only if the log has its last entry
        return [each for each in tuple(self._list)[:-1] if each.last <= acked]

    def newest_is_done(self, acked: int) -> bool:
        return self.newest.header.first <= self.newest.last <= acked

    def append(self, content: Bytes, crc: int) -> int:
        """Append an entry; returns its sequence. Raises OSError; then `undo`, or append no more."""
        self.undo()
        segment = self.newest
        sequence = segment.last + 1
        self._begun = segment.size, segment.last
        offset = self.writer.append(entry(sequence, content, crc, segment.header.salt))
        self._ring.put(segment.header.id, Found(sequence, offset, len(content)))
        segment.size = self.writer.size
        segment.last = sequence
        self._begun = None
        return sequence

    def undo(self) -> None:
        """Undo an entry that did not fit, or an entry or rotation that a signal handler's exception
        interrupted. Raises OSError."""
        segment = self.newest
        if self._making is not None:
            if self._making != segment.name:
                with suppress(FileNotFoundError):
                    self._folder.remove(self._making)
            self._making = None
        if self.writer.name != segment.name:
            self.writer = Handle(self._folder.open(segment.name), segment.name)
        if self._begun is not None:
            # SAFETY(undo-append) §11: an append that did not finish leaves no sequence and no bytes
            segment.size, segment.last = self._begun
            # The next entry goes there; a shorter one would leave the rest of this one behind.
            self.writer.truncate(segment.size)
            self._begun = None

    def fits(self, length: int, limit: int) -> bool:
        segment = self.newest
        is_empty = segment.last < segment.header.first
        return is_empty or segment.size + entry_size(length) <= limit

    def rotate(self, spare: bool) -> None:
        """Go on in a new segment; `spare` may use the reserve. The former one must be synced.
        Raises JournalError, OSError if there is no room."""
        self.undo()
        former = self.newest
        owner, schema, salt = former.header.owner, former.header.schema, secrets.randbits(32)
        header = Header(self.next_id, *owner, self.slots, former.last + 1, salt, schema)
        self.next_id += 1
        name = self._making = segment_name(header.id)
        begin = files.make_segment(self._folder, header, spare=spare)
        self._list.append(Segment(name, header, begin, begin, former.last))
        self._making = None
        before, self.writer = self.writer, Handle(self._folder.open(name), name)
        before.close()

    def read(self, sequence: int) -> tuple[memoryview, bytes]:
        """(content, schema) of an entry, checked. Raises JournalReadError."""
        with self._reading:
            number, found = self._ring.get(sequence)
            segment = next(each for each in self._list if each.header.id == number)
            try:
                if self._reader is None or self._reader[0] != segment.name:
                    self._forget_reader()
                    self._reader = segment.name, self._folder.read(segment.name)
                content = read_content(self._reader[1], found, segment.header.salt)
            except (Invalid, OSError) as error:
                raise JournalReadError(
                    f"{self._folder.path}/{segment.name}: {error}. Open the journal again: what "
                    "cannot be read goes into quarantine, and it shows what to send again"
                ) from error
            return content, segment.header.schema

    def _forget_reader(self) -> None:
        if self._reader is not None:
            self._reader[1].close()
            self._reader = None

    def remove(self, segment: Segment) -> None:
        with self._reading:
            self._forget_reader()
            self._folder.remove(segment.name)
            self._list.remove(segment)

    def close(self) -> None:
        with self._reading:
            self._forget_reader()
        self.writer.close()
