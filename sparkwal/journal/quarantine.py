"""The losses of a journal: a note of each incident, and the damaged files in `quarantine/`.

The sequences of lost appends are used again, and may be lost again. So each incident names its own
files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace

import msgspec

from sparkwal.errors import JournalReadError
from sparkwal.journal import files
from sparkwal.journal.files import LOST
from sparkwal.journal.segment import Invalid, intact
from sparkwal.journal.storage import QUARANTINE, Folder, content_of

# The limit of a read of the note, above the size of any note.
_MAX_NOTE_BYTES = 2**24

# (content, schema) of an entry.
Entry = tuple[memoryview, bytes]


@dataclass(frozen=True)
class Incident:
    """The appends that one damage took, accepted or perhaps accepted.

    Attributes:
        name: the file in which the damage begins.
        first, last: the sequences of the first and the last append.
        files: the names of the damaged files in the journal's folder, in the order of entries.
        reason: a description of the damage.
        unknown: the number of appends at the end that may never have been accepted.
    """

    name: str
    first: int
    last: int
    files: tuple[str, ...]
    reason: str
    unknown: int = 0

    def __post_init__(self) -> None:
        segments = map(files.segment_id, (self.name, *self.files))
        if not 0 <= self.first <= self.last < files.HIGHEST or -1 in segments:
            raise ValueError("it names no appends or no segments")
        if not 0 <= self.unknown <= self.last - self.first + 1:
            raise ValueError("more appends are unknown than it names")

    @property
    def known(self) -> int:
        """The last append that was certainly accepted; `first` − 1 without one."""
        return self.last - self.unknown

    def covers(self, name: str) -> bool:
        """Whether this incident took a segment. It takes all segments from the damaged one to the
        last."""
        numbers = [*map(files.segment_id, (self.name, *self.files))]
        return min(numbers) <= files.segment_id(name) <= max(numbers)


# The log's id, the producer and its incidents.
_NOTES = msgspec.json.Decoder(tuple[str, str, tuple[Incident, ...]])


@dataclass(frozen=True)
class Quarantine:
    """All incidents of a producer's journal, the oldest first."""

    folder: Folder
    log_id: str
    producer: str
    incidents: tuple[Incident, ...] = ()

    def waiting(self, last: int) -> list[tuple[Incident, range]]:
        """The incidents with sequences after `last`, each with those sequences, in order."""
        incidents = []
        # SAFETY(newest-incident) §11: of the incidents that took a sequence only the newest counts
        for incident in reversed(self.incidents):
            if incident.last > last:
                incidents.append(
                    (incident, range(max(incident.first, last + 1), incident.last + 1))
                )
                last = max(last, incident.known)
        return incidents

    def lost(self, last: int) -> range:
        """The sequences after `last` that were lost and not sent again."""
        newest = max((incident.last for incident in self.incidents), default=-1)
        return range(last + 1, max(newest, last) + 1)

    def entries(self, last: int) -> Iterator[tuple[int, Entry | None]]:
        """Read the lost appends after `last` in order, except those that may never have been
        accepted.

        Returns:
            (sequence, entry) of each append; the entry is None if it cannot be read.

        Raises:
            JournalReadError: the disk failed.
        """
        for incident, waiting in self.waiting(last):
            sequences = range(waiting.start, incident.known + 1)
            if not sequences:
                continue
            for sequence in range(last + 1, sequences.start):
                yield sequence, None
            readable = self.read_files(incident)
            entry = next(readable, None)
            for last in sequences:
                while entry is not None and entry[0] < last:
                    entry = next(readable, None)
                yield last, entry[1] if entry is not None and entry[0] == last else None

    def read_files(self, incident: Incident) -> Iterator[tuple[int, Entry]]:
        """Read the intact entries in an incident's files.

        Returns:
            (sequence, entry) of each.

        Raises:
            JournalReadError: the disk failed.
        """
        for name in incident.files:
            try:
                with closing(self.folder.read(name)) as reader:
                    header, entries = intact(reader)
                    if header.owner == (self.log_id, self.producer):
                        for sequence, content in entries:
                            yield sequence, (content, header.schema)
            except (FileNotFoundError, Invalid):
                # The user removed the file, or it has no header.
                continue
            except OSError as error:
                raise JournalReadError(
                    f"{self.folder.path}/{name} cannot be read ({error}): check the disk. If you "
                    "remove that file, the other files can be read"
                ) from error

    def add(self, new: Incident) -> Quarantine:
        """This quarantine with one more incident. It is durable when this returns.

        Raises:
            JournalError: a step failed.
            OSError: the disk is full.
        """
        names, before = set(self.folder.names()), list(self.incidents)
        # An opening that died may have noted this incident and moved its last files. Only the files
        # of one incident have these numbers.
        # SAFETY(one-incident) §11: a damaged file numbered among the last incident's belongs to it
        if before and before[-1].covers(new.name):
            same = before.pop()
            moved = [name for name in same.files if name not in new.files]
            last = max(new.last, same.last)
            accepted = max(new.known, same.known)
            names_of_both = (*new.files, *moved)
            new = replace(new, last=last, unknown=last - accepted, files=names_of_both)
        # Drop an incident if its appends were sent again and the user removed its files.
        older = [old for old in before if old.last >= new.first or names & {*old.files}]
        return self._write((*older, new))

    def settled(self) -> Quarantine:
        """This quarantine without the appends that may never have been accepted, durable.

        Raises:
            JournalError: a step failed.
            OSError: the disk is full.
        """
        if not any(incident.unknown for incident in self.incidents):
            return self
        certain = (incident for incident in self.incidents if incident.known >= incident.first)
        return self._write(
            tuple(replace(incident, last=incident.known, unknown=0) for incident in certain)
        )

    def _write(self, incidents: tuple[Incident, ...]) -> Quarantine:
        plain = [self.log_id, self.producer, [asdict(incident) for incident in incidents]]
        # Write the note twice, so one flipped bit does not destroy it.
        files.put_with_reserve(self.folder, LOST, 2 * files.note_of(LOST, plain))
        return replace(self, incidents=incidents)


def read_quarantine(folder: Folder) -> Quarantine:
    """Read the note of losses.

    Raises:
        OSError: the disk failed.
        JournalReadError: the note is unreadable, and it may name losses.
    """
    data = content_of(folder, LOST, _MAX_NOTE_BYTES)
    if data is None:
        return Quarantine(folder, "", "")

    half = len(data) // 2
    for copy in (data[:half], data[half:]):
        with suppress(Invalid):
            return Quarantine(folder, *files.read_note(LOST, copy, _NOTES))
    # SAFETY(unreadable-note-error) §11: an unreadable note of losses is an error, not an empty note
    raise JournalReadError(
        f"{folder.path}/{LOST} cannot be read. It lists the accepted appends that damage took, so "
        f"these are unknown now. The damaged files are in {folder.path}/{QUARANTINE}: find out "
        f"which of their rows the log lacks, then remove {LOST} and open the journal again. No "
        "other append is lost"
    )
