"""Reads a journal's folder in order, with one block in memory at a time. Changes no file.

As in otel-arrow's Quiver, reading stops at the first invalid entry. That is either a torn tail,
which a crash leaves and which was never accepted, or damage.
"""

from collections import deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field

from sparkwal.errors import JournalReadError, NewerFormatError
from sparkwal.journal import files
from sparkwal.journal.journal import DEFAULT_SLOTS, Settings
from sparkwal.journal.quarantine import Quarantine, read_quarantine
from sparkwal.journal.segment import (
    Header,
    Invalid,
    Scan,
    Segment,
    entry_size,
    intact,
    read_header,
)
from sparkwal.journal.storage import Folder

# The reason of an incident with an unknown end.
UNKNOWN = "the number of accepted entries is unknown: the file `accepted` is missing or damaged"


@dataclass
class Damage:
    """The first invalid entry, or the first accepted entry that is missing.

    Attributes:
        name: its file.
        sequence: its sequence, or that of the entry before it plus 1.
        reason: a description.
        complete: the number of complete entries after it.
        newest: the highest sequence that certainly existed; `sequence` − 1 without one.
        more: an unknown number of later entries may have been accepted.
        torn: it is a torn tail and no damage.
        also: the files after it.
    """

    name: str
    sequence: int
    reason: str
    complete: int = 0
    newest: int = -1
    more: bool = False
    torn: bool = False
    also: list[str] = field(default_factory=list)


@dataclass
class Contents:
    """The result of `scan_folder`.

    Attributes:
        segments: those before the damage, and the intact beginning of the damaged one.
        slots: the number of entries that may wait.
        cursor: the cursor, or None.
        rejected: the reason why the cursor cannot be used; "" if it can, or without one.
        damage: the damage, or None.
        stale: unfinished files, and restored segments that had been removed.
        next_id: no segment ever had this id or a higher one.
        sender: the last one that may have sent entries, or the reason why it is unknown.
        quarantine: earlier losses.
    """

    segments: list[Segment]
    slots: int
    cursor: files.Cursor | None
    rejected: str
    damage: Damage | None
    stale: list[str]
    next_id: int
    sender: files.Sender | str
    quarantine: Quarantine

    @property
    def last(self) -> int:
        """The last readable sequence; −1 without one."""
        return self.segments[-1].last if self.segments else -1

    @property
    def first(self) -> int:
        """The first readable sequence; `last` + 1 without one."""
        return self.segments[0].header.first if self.segments else 0

    def done(self, owner: tuple[str, str]) -> int:
        """The sequence up to which the log has this owner's entries according to the cursor, or
        −1."""
        return self.cursor.sequence if self.cursor and self.cursor.owner == owner else -1


def scan_folder(folder: Folder, settings: Settings) -> Contents:
    """Read the complete folder.

    Raises:
        JournalReadError: the folder or the note of losses is unreadable.
        NewerFormatError: a newer version wrote a file.
    """
    try:
        return _scan(folder, settings)
    except NewerFormatError as error:
        raise NewerFormatError(f"journal {folder.path}: {error}") from None
    except OSError as error:
        raise JournalReadError(
            f"journal {folder.path} cannot be read ({error}): check the disk"
        ) from error


def _scan(folder: Folder, settings: Settings) -> Contents:
    names = folder.names()
    ids = {name: number for name in names if (number := files.segment_id(name)) >= 0}
    cursor, rejected = files.read_cursor(folder)
    mark = _mark(folder, names, cursor)
    stale = [name for name in names if files.UNFINISHED.fullmatch(name)]
    live = sorted(name for name in ids if name == files.segment_name(ids[name]))
    next_id = max([*ids.values(), -1 if mark is None else mark[0]]) + 1
    reading = _Reading(folder, settings, mark)
    oldest = 0
    if cursor is not None:
        # SAFETY(removed-stays-removed) §11: a segment below the cursor's first_segment is old,
        # whatever the disk brings back
        old = [name for name in live if ids[name] < cursor.first_segment]
        whose = {name: _owner(folder, name) for name in old}
        # Skip segments of another owner. Leave unreadable ones: they may be another owner's.
        restored = [name for name in old if whose[name] == cursor.owner]
        live = [name for name in live if name not in restored and whose.get(name, name) is not None]
        stale += restored
        next_id = max(next_id, cursor.next_segment)
        reading.first, oldest = cursor.sequence + 1, cursor.first_segment
    for index, name in enumerate(live):
        if reading.damage is None:
            reading.read(name, ids[name], live[index + 1 :])
    if reading.damage is None:
        reading.check_end(oldest, next_id)
    return Contents(
        reading.segments,
        reading.slots,
        cursor,
        rejected,
        reading.damage,
        stale,
        next_id,
        files.read_sender(folder),
        read_quarantine(folder),
    )


def _mark(folder: Folder, names: list[str], cursor: files.Cursor | None) -> tuple[int, int] | None:
    """(segment, sequence) of the newest accepted entry; (-1, -1) in a new folder, None if
    unknown."""
    mark = files.read_mark(folder)
    if mark is None and cursor is not None and cursor.end is not None:
        # SAFETY(close-is-proof) §11: the cursor of a closed journal names its last entry
        mark = cursor.end
    # SAFETY(unknown-is-not-nothing) §11: without a mark only a new journal has accepted nothing
    if mark is None and not any(files.is_ours(name) for name in names):
        mark = -1, -1
    return mark


def _owner(folder: Folder, name: str) -> tuple[str, str] | None:
    with closing(folder.read(name)) as reader:
        try:
            return read_header(reader)[0].owner
        except Invalid:
            return None


class _Reading:
    """Reads segments in order. Sets `damage` if it has to stop."""

    def __init__(self, folder: Folder, settings: Settings, mark: tuple[int, int] | None) -> None:
        self._folder = folder
        self._settings = settings
        self._mark = mark
        self.slots = settings.slots or DEFAULT_SLOTS
        self.segments: list[Segment] = []
        self.damage: Damage | None = None
        # The expected sequence if the folder has no segment.
        self.first = 0

    def read(self, name: str, number: int, after: list[str]) -> None:
        """Read one file."""
        with closing(self._folder.read(name)) as reader:
            try:
                header, begin = read_header(reader)
                self._check(header, number)
            except Invalid as error:
                damage = self._damaged(name, str(error), after)
                self._count_entries([name, *after], number, damage)
                return
            scan = Scan(reader, begin, header)
            deque(scan, maxlen=0)
            self.segments.append(Segment(name, header, begin, (scan.end, scan.next - 1)))
            # Use the number of the newest segment, unless the caller passed one.
            self.slots = self._settings.slots or header.slots
            if scan.wrong:
                damage = self._damaged(name, scan.wrong, after)
                _count(scan.rest(), damage)
                self._count_entries(after, number, damage)
                # At least a part of the invalid entry exists.
                damage.newest = max(damage.newest, damage.sequence)
                damage.torn = (
                    not after
                    # SAFETY(torn-is-last) §11: a torn tail has no complete entry after it
                    and not damage.complete
                    and reader.size - scan.end <= entry_size(0) + entry_size(self._settings.largest)
                    and self._mark is not None
                    # SAFETY(accepted-not-torn) §11: an entry that the mark counts as accepted is
                    # never cut off
                    and not (number, damage.sequence) <= self._mark
                )

    def check_end(self, oldest: int, next_id: int) -> None:
        """Check that every accepted entry exists.

        Args:
            oldest: segments below it were removed.
            next_id: the id of the next segment.
        """
        if self._mark is None:
            self._damaged(files.segment_name(next_id), UNKNOWN, [])
            return
        number, upto = self._mark
        last_id = self.segments[-1].header.id if self.segments else oldest
        # SAFETY(missing-is-damage) §11: an entry that the mark knows and that is missing is damage
        if number >= last_id and upto >= self._next():
            reason = f"entries up to {upto} were accepted and are missing"
            damage = self._damaged(files.segment_name(number), reason, [])
            self._count_entries([], number, damage)

    def _check(self, header: Header, number: int) -> None:
        if header.id != number:
            raise Invalid(f"its header names segment {header.id}")
        if not self._has_same_owner(header):
            raise Invalid("it is of another log or producer than the segments before it")
        if self.segments and header.first != self._next():
            raise Invalid(f"it begins at entry {header.first} after entry {self._next() - 1}")

    def _next(self) -> int:
        return self.segments[-1].last + 1 if self.segments else self.first

    def _has_same_owner(self, header: Header) -> bool:
        return not self.segments or header.owner == self.segments[0].header.owner

    def _damaged(self, name: str, reason: str, after: list[str]) -> Damage:
        sequence = self._next()
        more = self._mark is None
        reason = f"{reason}; {UNKNOWN}" if more and reason != UNKNOWN else reason
        self.damage = Damage(name, sequence, reason, newest=sequence - 1, more=more, also=after)
        return self.damage

    def _count_entries(self, names: list[str], number: int, damage: Damage) -> None:
        """Count the complete entries in these files. The damage is in segment `number`."""
        for name in names:
            with closing(self._folder.read(name)) as reader:
                try:
                    header, entries = intact(reader)
                    if self._has_same_owner(header):
                        _count(entries, damage)
                except Invalid:
                    # Without a salt an entry may be part of another's content, so count only the
                    # next one.
                    _count(Scan(reader, 0, None).rest(), damage, chained=True)
        if self._mark is not None and number <= self._mark[0]:
            damage.newest = max(damage.newest, self._mark[1])


def _count(
    entries: Iterable[tuple[int, memoryview]], damage: Damage, *, chained: bool = False
) -> None:
    for sequence, _ in entries:
        expected = damage.newest + 1
        if sequence == expected or (sequence > expected and not chained):
            damage.complete += 1
            damage.newest = sequence
