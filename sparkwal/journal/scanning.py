"""What a journal's folder holds, read in order with the memory of one block; changes nothing.

After otel-arrow's Quiver: reading stops at the first invalid entry. What is invalid is a torn tail,
which a crash leaves and nobody was told of, or damage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkwal.errors import JournalReadError
from sparkwal.journal.files import Cursor, read_cursor, read_mark, segment_id
from sparkwal.journal.ring import Ring
from sparkwal.journal.segment import (
    ENTRY_BYTES,
    Header,
    Invalid,
    Scan,
    entry_size,
    read_header,
)
from sparkwal.journal.storage import QUARANTINE, Folder


@dataclass
class Segment:
    """A segment of a journal.

    Attributes:
        begin: where its entries begin.
        size: bytes up to the end of its last entry.
        last: sequence of its last entry, `header.first` − 1 while there is none.
    """

    name: str
    header: Header
    begin: int
    size: int
    last: int


@dataclass
class Damage:
    """The first invalid entry.

    Attributes:
        name: of its file; `also` are those after it.
        sequence: that it has, or would have.
        reason: what is wrong.
        complete: so many complete entries lie after it.
        newest: the highest sequence known to have been there; `sequence` − 1 where none is.
        torn: whether it is a torn tail and no damage.
    """

    name: str
    sequence: int
    reason: str
    complete: int = 0
    newest: int = -1
    torn: bool = False
    also: list[str] = field(default_factory=list)


@dataclass
class Contents:
    """What `scan_folder` found.

    Attributes:
        segments: in order, up to the damage; the last may be the damaged one's intact beginning.
        rejected: why the cursor cannot be used; "" where it can, or there is none.
        stale: files that are left of what was removed before.
        next_id: no segment from it on was ever there.
    """

    segments: list[Segment]
    ring: Ring
    cursor: Cursor | None
    rejected: str
    damage: Damage | None
    stale: list[str]
    next_id: int

    @property
    def last(self) -> int:
        """The last sequence that can be read; −1 for none."""
        return self.segments[-1].last if self.segments else -1

    @property
    def first(self) -> int:
        """The first sequence that can be read; `last` + 1 for none."""
        return self.segments[0].header.first if self.segments else 0


def scan_folder(folder: Folder, largest: int, slots: int | None, default_slots: int) -> Contents:
    """Read everything.

    Args:
        largest: bytes of the largest content of an entry.
        slots: of the ring; None: as many as the newest segment has, else `default_slots`.

    Raises JournalReadError where the disk does not give the bytes.
    """
    try:
        return _scan(folder, largest, slots, default_slots)
    except OSError as error:
        raise JournalReadError(
            f"journal {folder.path} cannot be read ({error}): look at the disk"
        ) from error


def _scan(folder: Folder, largest: int, slots: int | None, default_slots: int) -> Contents:
    names = folder.names()
    ids = {name: number for name in names if (number := segment_id(name)) is not None}
    cursor, rejected = read_cursor(folder)
    stale = [name for name in names if name.endswith(".tmp")]
    live = sorted(name for name in ids if not name.startswith(QUARANTINE) and name.endswith(".wal"))
    if cursor is not None:
        # Defends against: a segment that was removed comes back
        stale += [name for name in live if ids[name] < cursor.first_segment]
        live = [name for name in live if ids[name] >= cursor.first_segment]
    next_id = max([*ids.values(), -1]) + 1
    if cursor is not None:
        next_id = max(next_id, cursor.next_segment)
    reading = _Reading(folder, largest, slots, default_slots, read_mark(folder))
    reading.first = cursor.sequence + 1 if cursor is not None else 0
    for place, name in enumerate(live):
        if reading.damage is None:
            reading.read(name, ids[name], live[place + 1 :])
    return Contents(
        reading.segments, reading.ring, cursor, rejected, reading.damage, stale, next_id
    )


class _Reading:
    def __init__(
        self,
        folder: Folder,
        largest: int,
        slots: int | None,
        default_slots: int,
        mark: tuple[int, int],
    ) -> None:
        self._folder, self._largest, self._given, self._mark = folder, largest, slots, mark
        self.ring = Ring(slots or default_slots)
        self.segments: list[Segment] = []
        self.damage: Damage | None = None
        self.first = 0  # the least that an entry without one before it can be

    def read(self, name: str, number: int, after: list[str]) -> None:
        """One file; sets `damage` where that ends the reading."""
        reader = self._folder.read(name)
        try:
            try:
                header, begin = read_header(reader)
                self._check(header, number)
            except Invalid as wrong:
                self.damage = Damage(name, self._next(), str(wrong))
                self._look_beyond(None, after)
                return
            segment = Segment(name, header, begin, begin, header.first - 1)
            self.segments.append(segment)
            scan = Scan(reader, begin, header.salt, self._largest)
            for found in scan:
                if found.sequence != segment.last + 1:
                    scan.end = found.offset
                    scan.wrong = f"entry {found.sequence} follows entry {segment.last}"
                    break
                self.ring.put(header.id, found)
                segment.last, segment.size = found.sequence, found.end
            if scan.wrong:
                self.damage = Damage(name, self._next(), scan.wrong)
                rest = reader.size - scan.end
                self._look_beyond(scan, after)
                self.damage.torn = (
                    not after
                    and not self.damage.complete
                    and rest <= ENTRY_BYTES + entry_size(self._largest)
                    # Defends against: an entry that was acknowledged is cut off as torn
                    and not self._acknowledged(number, self.damage.sequence)
                )
        finally:
            reader.close()

    def _check(self, header: Header, number: int) -> None:
        if header.id != number:
            raise Invalid(f"it says that it is segment {header.id}")
        if not self.segments:
            self._use(header)
            return
        before = self.segments[-1]
        if (header.log_id, header.producer) != (before.header.log_id, before.header.producer):
            raise Invalid("it is of another log or producer than the segments before it")
        if header.first != before.last + 1:
            raise Invalid(f"it begins at entry {header.first} after entry {before.last}")
        self._use(header)

    def _use(self, header: Header) -> None:
        """The newest segment's ring, unless another was asked for."""
        if self._given is not None or header.slots == self.ring.slots:
            return
        former, self.ring = self.ring, Ring(header.slots)
        for segment in self.segments:
            # Those that the former one still has; more can't be live.
            for sequence in range(
                max(segment.header.first, segment.last + 1 - former.slots), segment.last + 1
            ):
                self.ring.put(*former.get(sequence))
        former.close()

    def _next(self) -> int:
        return self.segments[-1].last + 1 if self.segments else self.first

    def _acknowledged(self, number: int, sequence: int) -> bool:
        segment, upto = self._mark
        return number < segment or (number == segment and sequence <= upto)

    def _look_beyond(self, scan: Scan | None, after: list[str]) -> None:
        """Count what is complete after the invalid entry, here and in the files after."""
        damage = self.damage
        assert damage is not None
        damage.also = after
        sequences = [found.sequence for found in scan.rest()] if scan is not None else []
        for name in after:
            reader = self._folder.read(name)
            try:
                header, begin = read_header(reader)
                other = Scan(reader, begin, header.salt, self._largest)
                sequences += [found.sequence for found in other]
                if other.wrong:
                    sequences += [found.sequence for found in other.rest()]
            except Invalid:
                continue
            finally:
                reader.close()
        beyond = [sequence for sequence in sequences if sequence >= damage.sequence]
        damage.complete = len(set(beyond))
        damage.newest = max([*beyond, damage.sequence - 1])
        number = segment_id(damage.name)
        assert number is not None
        if self._acknowledged(number, self._mark[1]):
            damage.newest = max(damage.newest, self._mark[1])
