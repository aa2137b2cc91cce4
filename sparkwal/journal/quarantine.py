"""What damage took from a journal: a note of each incident, and the files in `quarantine/`. A lost
append's sequence is used again, and may be lost again: so each incident names its own files."""

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

# The most bytes of the note that are read: more than any note has.
_MOST = 2**24

# (content, schema) of an entry.
Entry = tuple[memoryview, bytes]


@dataclass(frozen=True)
class Incident:
    """Accepted appends that one damage took, and those that may have been accepted."""

    name: str  # of the file in which the damage begins
    first: int  # sequence of the first append
    last: int  # and of the last
    files: tuple[str, ...]  # names in the journal's folder of what is left, in the order of entries
    reason: str
    unknown: int = 0  # so many of them, at the end, may never have been accepted

    def __post_init__(self) -> None:
        segments = map(files.segment_id, (self.name, *self.files))
        if not 0 <= self.first <= self.last < files.HIGHEST or -1 in segments:
            raise ValueError("it names no appends or no segments")
        if not 0 <= self.unknown <= self.last - self.first + 1:
            raise ValueError("more appends are unknown than it names")

    @property
    def known(self) -> int:
        """The last that is known to have been accepted; `first` − 1 if none is."""
        return self.last - self.unknown

    def took(self, name: str) -> bool:
        """Whether this incident took a segment: it takes all from the damaged one to the last."""
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
        """Incidents with sequences after `last`, not appended again, and those, in order."""
        found = []
        # SAFETY(newest-incident) §11: of the incidents that took a sequence only the newest counts
        for incident in reversed(self.incidents):
            if incident.last > last:
                found.append((incident, range(max(incident.first, last + 1), incident.last + 1)))
                last = max(last, incident.known)
        return found

    def lost(self, last: int) -> range:
        newest = max([each.last for each in self.incidents], default=-1)
        return range(last + 1, max(newest, last) + 1)

    def entries(self, last: int) -> Iterator[tuple[int, Entry | None]]:
        """Each append after `last` that is known to be lost, in order; None if it is unreadable.
        Raises as `kept`."""
        for incident, waiting in self.waiting(last):
            sequences = range(waiting.start, incident.known + 1)
            if not sequences:
                continue
            for sequence in range(last + 1, sequences.start):
                yield sequence, None
            kept = self.kept(incident)
            found = next(kept, None)
            for last in sequences:
                while found is not None and found[0] < last:
                    found = next(kept, None)
                yield last, found[1] if found is not None and found[0] == last else None

    def kept(self, incident: Incident) -> Iterator[tuple[int, Entry]]:
        """(sequence, entry) of all that is intact in its files. Raises JournalReadError."""
        for name in incident.files:
            try:
                with closing(self.folder.read(name)) as reader:
                    header, entries = intact(reader)
                    if header.owner == (self.log_id, self.producer):
                        for sequence, content in entries:
                            yield sequence, (content, header.schema)
            except (FileNotFoundError, Invalid):
                continue  # somebody has removed it; or it has no header
            except OSError as error:
                raise JournalReadError(
                    f"{self.folder.path}/{name} cannot be read ({error}): look at the disk. "
                    "Without that file, which you may remove then, the rest can be"
                ) from error

    def add(self, new: Incident) -> Quarantine:
        """This quarantine with one more incident, durable. Raises as `files.write_cursor`."""
        names, before = set(self.folder.names()), list(self.incidents)
        # An opening that died may have noted this incident and moved its last files. No other
        # segment has the number of one of these.
        # SAFETY(one-incident) §11: a damaged file numbered among the last incident's belongs to it
        if before and before[-1].took(new.name):
            same = before.pop()
            moved = [name for name in same.files if name not in new.files]
            last, known = max(new.last, same.last), max(new.known, same.known)
            names_of_both = (*new.files, *moved)
            new = replace(new, last=last, unknown=last - known, files=names_of_both)
        # Drop an incident if its appends were sent again and somebody removed its files.
        kept = [each for each in before if each.last >= new.first or names & {*each.files}]
        return self._write((*kept, new))

    def settled(self) -> Quarantine:
        """This quarantine without what may never have been accepted, durable. Raises as `add`."""
        if not any(each.unknown for each in self.incidents):
            return self
        known = (each for each in self.incidents if each.known >= each.first)
        return self._write(tuple(replace(each, last=each.known, unknown=0) for each in known))

    def _write(self, incidents: tuple[Incident, ...]) -> Quarantine:
        plain = [self.log_id, self.producer, [asdict(each) for each in incidents]]
        # Written twice: one flipped bit does not hide it.
        files.put_with_reserve(self.folder, LOST, 2 * files.note_of(LOST, plain))
        return replace(self, incidents=incidents)


def read_quarantine(folder: Folder) -> Quarantine:
    """Raises OSError, and JournalReadError for an unreadable note, which may name losses."""
    data = content_of(folder, LOST, _MOST)
    if data is None:
        return Quarantine(folder, "", "")

    half = len(data) // 2
    for copy in (data[:half], data[half:]):
        with suppress(Invalid):
            return Quarantine(folder, *files.read_note(LOST, copy, _NOTES))
    # SAFETY(unreadable-note-error) §11: an unreadable note of losses is an error, not an empty note
    raise JournalReadError(
        f"{folder.path}/{LOST} cannot be read: it says which accepted appends are lost to damage, "
        f"and nobody knows these now. What is left of them is in {folder.path}/{QUARANTINE}: look "
        "there what the log lacks; then remove it and open the journal again. Nothing else is lost"
    )
