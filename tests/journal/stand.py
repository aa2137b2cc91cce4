"""A journal on any folder, small enough to be killed at every call and hurt in every byte."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from sparkwal.errors import BackPressureError
from sparkwal.events import Event
from sparkwal.journal.files import segment_id
from sparkwal.journal.journal import Journal, Settings
from sparkwal.journal.open_segments import Segments
from sparkwal.journal.opening import Opening, Owner
from sparkwal.journal.quarantine import Quarantine
from sparkwal.journal.scanning import Contents, scan_folder
from sparkwal.journal.segment import Invalid, read_header
from sparkwal.journal.storage import Folder

OWNER = Owner("memory:log", "log-1", "orders", -1, b"schema")
SMALL = Settings(segment_bytes=1032, max_bytes=6 * 1032)
# Events that an undamaged journal must not emit.
WARNINGS = ("tail_truncated", "replay_stopped", "quarantined", "cursor_rejected")


@dataclass
class Run:
    """An open journal and what it reported.

    Attributes:
        segments: its live segments. Only this module reads a journal's private names.
    """

    folder: Folder
    journal: Journal
    lost: range
    quarantine: Quarantine
    reported: list[Event]
    contents: Contents

    @property
    def segments(self) -> Segments:
        return self.journal._segments

    def has_room(self) -> bool:
        """Whether an append that waits for room tries again at once."""
        return self.journal._room.is_set()

    def abandon(self) -> None:
        """End its thread without a sync, as a kill does."""
        self.journal._ending.set()

    def names(self) -> list[str]:
        return [event.name for event in self.reported]

    def warnings(self) -> list[Event]:
        return [event for event in self.reported if event.name in WARNINGS]

    def only(self, name: str) -> Event:
        (event,) = [each for each in self.reported if each.name == name]
        return event

    def entries(self, durable: int = -1) -> dict[int, bytes]:
        """The entries that the log lacks, read one by one."""
        first = max(durable + 1, self.segments.oldest.header.first)
        return {
            sequence: bytes(self.journal.read(sequence)[0])
            for sequence in range(first, self.journal.last + 1)
        }

    def append(self, content: bytes) -> int:
        sequence = self.journal.write(content)
        self.journal.wait(sequence)
        return sequence


def open_journal(
    folder: Folder, durable: int = -1, settings: Settings = SMALL, owner: Owner = OWNER
) -> Run:
    reported: list[Event] = []
    contents = scan_folder(folder, settings)
    opening = Opening(folder, contents, replace(owner, durable=durable))
    journal = opening.begin(settings, reported.append)
    return Run(folder, journal, journal.lost, journal.quarantine, reported, contents)


def content(sequence: int, length: int) -> bytes:
    """Bytes that are no other entry's."""
    return random.Random(sequence * 1000 + length).randbytes(length)


def fill(run: Run, lengths: list[int]) -> dict[int, bytes]:
    """Append one entry of each length; each is acknowledged."""
    written = {}
    for length in lengths:
        sequence = run.journal.last + 1
        written[sequence] = content(sequence, length)
        assert run.append(written[sequence]) == sequence
    return written


def segments(folder: Folder) -> list[str]:
    """Names of the live ones."""
    return [name for name in folder.names() if name.endswith(".wal") and "/" not in name]


def data(folder: Folder, name: str) -> bytes:
    reader = folder.read(name)
    try:
        return reader.read_at(0, reader.size)
    finally:
        reader.close()


def everything(folder: Folder) -> dict[str, bytes]:
    """Each file but the hints, which each process leaves."""
    return {name: data(folder, name) for name in folder.names() if name not in ("lock", "accepted")}


@dataclass
class Ids:
    """Which segment had which id: by its salt, which no two share."""

    seen: dict[int, int] = field(default_factory=dict)

    def look(self, folder: Folder) -> None:
        for name in folder.names():
            number = segment_id(name)
            if number < 0 or name.endswith(".tmp"):
                continue
            reader = folder.read(name)
            try:
                header, _ = read_header(reader)
            except Invalid:
                continue
            finally:
                reader.close()
            assert self.seen.setdefault(number, header.salt) == header.salt, name


def write_once_there_is_room(journal: Journal, body: bytes) -> int:
    while True:
        try:
            return journal.write(body)
        except BackPressureError:
            journal.wait_for_room(60)
