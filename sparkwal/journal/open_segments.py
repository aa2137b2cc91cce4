"""The segments of an open journal: append to the newest, read any, let the oldest go."""

import secrets
import threading
from contextlib import suppress

from sparkwal.errors import JournalReadError
from sparkwal.journal import files
from sparkwal.journal.files import segment_name
from sparkwal.journal.segment import VERSION, Header, Invalid, Scan, Segment, entry
from sparkwal.journal.storage import Bytes, Folder, Handle, Reader


class Segments:
    """The segments in order; the last takes entries. One thread at a time may append, and one may
    remove; reading goes on beside both. `file` is the last segment's."""

    def __init__(
        self, folder: Folder, found: list[Segment], slots: int, file: Handle, next_id: int
    ) -> None:
        self._folder = folder
        self._list = found
        self.slots = slots
        self.file = file
        self.next_id = next_id
        self._reading = threading.Lock()
        # The segment that was read last, and how far.
        self._read: tuple[Segment, Reader, Scan] | None = None
        # Unfinished: whether an append is, the name of a new segment.
        self._appending, self._making = False, ""

    @property
    def size(self) -> int:
        return sum(each.size for each in tuple(self._list))

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
        segment, writer = self.newest, self.file.writer
        sequence = segment.last + 1
        self._appending = True
        writer.append(entry(sequence, content, crc, segment.header.salt))
        segment.end = writer.size, sequence
        self._appending = False
        return sequence

    def undo(self) -> None:
        """Undo what did not fit, or what a signal handler's exception ended. Raises OSError."""
        segment = self.newest
        if self._making and self._making != segment.name:
            with suppress(FileNotFoundError):
                self._folder.remove(self._making)
        self._making = ""
        if self.file.name != segment.name:
            self.file = Handle(self._folder.open(segment.name), segment.name)
        if self._appending:
            # The next entry goes there; a shorter one would leave the rest of this one behind.
            # SAFETY(undo-append) §11: an append that did not finish leaves no sequence and no bytes
            self.file.writer.truncate(segment.size)
            self._appending = False

    def rotate(self, spare: bool) -> None:
        """Go on in a new segment; `spare` may use the reserve. The former one must be synced.
        Raises JournalError, OSError if there is no room."""
        self.undo()
        former = self.newest
        owner = former.header.owner
        schema = former.header.schema
        salt = secrets.randbits(32)
        header = Header(self.next_id, *owner, self.slots, former.last + 1, salt, schema, VERSION)
        self.next_id += 1
        name = self._making = segment_name(header.id)
        begin = files.make_segment(self._folder, header, spare=spare)
        self._list.append(Segment(name, header, begin, (begin, former.last)))
        self._making = ""
        before, self.file = self.file, Handle(self._folder.open(name), name)
        before.close()

    def read(self, sequence: int) -> tuple[memoryview, bytes]:
        """(content, schema) of an entry, checked; cheap in order. Raises JournalReadError."""
        with self._reading:
            segment = next(each for each in self._list if each.last >= sequence)
            try:
                read = self._read
                if read is None or read[0] is not segment or read[2].next > sequence:
                    self._forget_reader()
                    reader = self._folder.read(segment.name)
                    read = self._read = segment, reader, Scan(reader, segment.begin, segment.header)
                scan = read[2]
                scan.size = segment.size
                for found, content in scan:
                    if found == sequence:
                        return content, segment.header.schema
                raise Invalid(scan.wrong)
            except (Invalid, OSError) as error:
                raise JournalReadError(
                    f"{self._folder.path}/{segment.name}: {error}. Open the journal again: what "
                    "cannot be read goes into quarantine, and it shows what to send again"
                ) from error

    def _forget_reader(self) -> None:
        if self._read is not None:
            self._read[1].close()
            self._read = None

    def remove(self, segment: Segment) -> None:
        with self._reading:
            if self._read is not None and self._read[0] is segment:
                self._forget_reader()
            self._folder.remove(segment.name)
            self._list.remove(segment)

    def close(self) -> None:
        with self._reading:
            self._forget_reader()
        self.file.close()
