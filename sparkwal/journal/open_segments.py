"""The segments of an open journal: append to the newest, read from any, remove the oldest."""

import secrets
import threading
from contextlib import suppress

from sparkwal.errors import JournalReadError
from sparkwal.journal import files
from sparkwal.journal.files import segment_name
from sparkwal.journal.segment import VERSION, Header, Invalid, Scan, Segment, entry
from sparkwal.journal.storage import Bytes, Folder, Handle, Reader


class Segments:
    """The segments in order. Entries go to the last one, whose file is `file`.

    One thread at a time may append, and one may remove. Reading may run beside both.
    """

    def __init__(
        self, folder: Folder, segments: list[Segment], slots: int, file: Handle, next_id: int
    ) -> None:
        self._folder = folder
        self._list = segments
        self.slots = slots
        self.file = file
        self.next_id = next_id
        self._reading = threading.Lock()
        # The segment that was read last, and the scan that continues in it.
        self._read: tuple[Segment, Reader, Scan] | None = None
        # An append has begun and not ended.
        self._appending = False
        # The name of a segment whose creation has begun and not ended.
        self._making = ""

    @property
    def size(self) -> int:
        return sum(segment.size for segment in tuple(self._list))

    @property
    def oldest(self) -> Segment:
        return self._list[0]

    @property
    def newest(self) -> Segment:
        return self._list[-1]

    def done(self, acked: int) -> list[Segment]:
        """The segments whose entries the log has, except the newest."""
        # SAFETY(remove-when-acked) §11: a segment goes only if the log has its last entry
        return [segment for segment in tuple(self._list)[:-1] if segment.last <= acked]

    def newest_is_done(self, acked: int) -> bool:
        return self.newest.header.first <= self.newest.last <= acked

    def append(self, content: Bytes, crc: int) -> int:
        """Append an entry. After an error call `undo`, or append no more.

        Returns:
            The entry's sequence.

        Raises:
            OSError: the write failed.
        """
        self.undo()
        segment, writer = self.newest, self.file.writer
        sequence = segment.last + 1
        self._appending = True
        writer.append(entry(sequence, content, crc, segment.header.salt))
        segment.end = writer.size, sequence
        self._appending = False
        return sequence

    def undo(self) -> None:
        """Undo an append or a rotation that an OSError or a signal handler's exception ended.

        Raises:
            OSError: the disk failed.
        """
        segment = self.newest
        if self._making and self._making != segment.name:
            with suppress(FileNotFoundError):
                self._folder.remove(self._making)
        self._making = ""
        if self.file.name != segment.name:
            self.file = Handle(self._folder.open(segment.name), segment.name)
        if self._appending:
            # The next entry overwrites this one. If it is shorter, a part of this one would follow
            # it.
            # SAFETY(undo-append) §11: an append that did not finish leaves no sequence and no bytes
            self.file.writer.truncate(segment.size)
            self._appending = False

    def rotate(self, *, spare: bool) -> None:
        """Begin a new segment. The last one must be synced. `spare` may use the reserve.

        Raises:
            JournalError: a step failed.
            OSError: the disk is full.
        """
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
        """Read and check an entry. Reading in order is cheap.

        Returns:
            (content, schema) of the entry.

        Raises:
            JournalReadError: the entry cannot be read.
        """
        with self._reading:
            segment = next(segment for segment in self._list if segment.last >= sequence)
            try:
                read = self._read
                if read is None or read[0] is not segment or read[2].next > sequence:
                    self._forget_reader()
                    reader = self._folder.read(segment.name)
                    read = self._read = segment, reader, Scan(reader, segment.begin, segment.header)
                scan = read[2]
                scan.size = segment.size
                for read_sequence, content in scan:
                    if read_sequence == sequence:
                        return content, segment.header.schema
                raise Invalid(scan.wrong)
            except (Invalid, OSError) as error:
                raise JournalReadError(
                    f"{self._folder.path}/{segment.name}: {error}. Open the journal again: it "
                    "moves unreadable files to quarantine, and lists the appends to send again"
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
