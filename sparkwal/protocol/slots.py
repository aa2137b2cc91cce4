"""Reads one slot: the record at a position, or none."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sparkwal.errors import InvalidLogError, NewerFormatError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader, LeaderHeader, SlotHeader, check_parts
from sparkwal.format.segment import Copied
from sparkwal.store.base import Front, LogStore, NotFound, numbered, sound
from sparkwal.store.parallel import Range

R = TypeVar("R")

# A read of this size holds any record of up to some ten thousand frames. A longer header costs a
# second request.
WHOLE = 4 * 2**20
# The size for a caller that reads many records without their rows.
GLANCE = 64 * 2**10
# The number of keys in a LIST that needs only one.
_FEW = 10

# What to do about a damaged object.
WHAT_TO_DO = (
    "Restore it (sparkwal help damaged), or read up to the position before it (endingPosition, or "
    "onCorruption=stop)"
)

# Opens the log when it is needed: a client costs tens of milliseconds.
OpenLog = Callable[[], LogStore]


class TornRecord(InvalidLogError):
    """The store has a part of a PUT: the object is shorter than it declares.

    Its writer reported no success. The records after it decide whether it counts as damage (§4).

    Attributes:
        name: the object's URL, with its position.
        position: its position.
        size: the bytes of the object.
    """

    position: int

    def __init__(self, name: str, position: int, size: int, declared: int | None = None) -> None:
        of = "" if declared is None else f" of {declared}"
        super().__init__(
            f"{name}: it is cut off, {size} bytes{of}. A later object shows that its record was "
            "complete once: restore the object"
        )
        self.name = name
        self.position = position
        self.size = size


class WrongWindow(InvalidLogError):
    """The log has another window, `window`, than the caller assumed."""

    def __init__(self, message: str, window: int) -> None:
        super().__init__(message)
        self.window = window


@dataclass(frozen=True)
class SlotRecord(arrowfile.Opened):
    """A commit or leader record.

    Attributes:
        body: the offset of its inlined rows.
        front: the first bytes of its object, as they were read. None are read of a copy.
        copied: the parts of its rows that a segment has, by partition.
    """

    header: SlotHeader
    front: bytes = field(default=b"", compare=False, repr=False)
    copied: Mapping[int, Copied] = field(default_factory=dict, compare=False)

    @property
    def inlined(self) -> bytes | None:
        """The bytes of its inlined rows, if they were read with the header."""
        return self.front[self.body : self.size] if self.size <= len(self.front) else None

    @property
    def size(self) -> int:
        """The bytes up to the end of its inlined rows."""
        return self.body + _inlined(self.header)

    @property
    def declared(self) -> int:
        """The bytes up to the end of its inlined rows, or of the checkpoint and the state in
        it."""
        header, end = self.header, self.size
        if isinstance(header, CommitHeader):
            entry = header.checkpoints.get(header.query_id)
            if entry is not None and entry.position == header.position and entry.size:
                return arrowfile.block_offset(end) + entry.size
        return end

    @property
    def likely_front(self) -> int:
        """The bytes to read of the next record for its rows, if this one is like it.

        What stands after the rows may be a part of a state, which readers of rows do not need.
        """
        return max(2 * self.size, GLANCE) if self.declared - self.size > GLANCE else WHOLE

    def proves_filled(self, position: int, log_id: str | None) -> bool:
        """Whether its writer had proof that the log `log_id` had a durable record at `position`."""
        return self.header.decided >= position and log_id in (None, self.header.log_id)


def read_front(
    log: LogStore, number: int, window: int | None, size: int = WHOLE
) -> arrowfile.Opened:
    """Read the header of an object from its first `size` bytes, or more if it is longer.

    With `window`, errors name the position too.

    Raises:
        NotFound: the object is missing.
        InvalidLogError: its header is damaged.
    """
    name = log.locate(number, window)

    def read() -> arrowfile.Opened:
        front = _with_header(log, number, name, _first(log, number, size))
        opened = arrowfile.open_front(front, name)
        # In a copied or renamed object the number differs from that of the key.
        if opened.header.number != number:
            raise InvalidLogError(f"{name}: the header holds number {opened.header.number}")
        return opened

    return sound(log.key(number), read, read)


def _first(log: LogStore, number: int, size: int) -> bytes:
    return Front.of(log.store.get_range(log.key(number), 0, size), 0, size)


def _with_header(log: LogStore, number: int, name: str, front: bytes) -> bytes:
    """The first bytes of an object up to its rows: 1 GET if `front` ends before.

    Raises:
        NotFound: the object is missing now.
        InvalidLogError: its header is damaged.
    """
    needed = arrowfile.needed(front)
    if len(front) in (needed, Front.size_of(front)) or needed < len(front):
        return front
    if needed > arrowfile.LARGEST_FRONT:
        raise InvalidLogError(f"{name}: the schema message claims {needed} bytes")
    return _first(log, number, needed)


def read_slot(
    log: LogStore,
    position: int,
    window: int,
    size: int = WHOLE,
    *,
    tolerant: bool = False,
) -> SlotRecord | None:
    """Read the record at `position`, or None. It holds the inlined rows among the first `size`
    bytes.

    Args:
        log: the log.
        position: the position.
        window: the log's window.
        size: the bytes to read.
        tolerant: return None for a damaged record.

    Raises:
        InvalidLogError: the record is damaged, or another object is there.
        WrongWindow: the log has another window.
    """
    slot = read_any(log, position, window, size, tolerant=tolerant)
    if not isinstance(slot, TornRecord):
        return slot
    if not tolerant:
        raise slot
    return None


def copied(
    log: LogStore, position: int, window: int, log_id: str | None = None
) -> SlotRecord | None:
    """The copy of a record that is lost or damaged, or None without one (§13).

    With `log_id` it is a copy of that log: a deleted log may have left segments.
    """
    # SAFETY(copy-for-readers) §13: a reader takes a lost or damaged record from its segment
    copy = log.copy_of(log, position, window) if log.copy_of is not None else None
    if not isinstance(copy, SlotRecord) or log_id not in (None, copy.header.log_id):
        return None
    return copy


def open_again(
    log: LogStore,
    position: int,
    window: int,
    fetched: bytes | None,
    size: int = WHOLE,
) -> SlotRecord | None:
    """Decode the record at `position` as `open_slot`, but read damaged bytes once more.

    A reader gets the copy of a record that is damaged, if a segment has one.

    Raises:
        InvalidLogError: see `read_slot`.
        WrongWindow: see `read_slot`.
    """

    def decode(fetched: bytes | None) -> SlotRecord | WrongWindow | None:
        try:
            return open_slot(log, position, window, fetched)
        except WrongWindow as sound_record:
            return sound_record

    try:
        record = _second_look(log, position, window, fetched, size, decode)
    except NewerFormatError:
        raise
    except InvalidLogError:
        copy = copied(log, position, window)
        if copy is None:
            raise
        return copy
    if isinstance(record, WrongWindow):
        raise record
    return record


def _second_look(
    log: LogStore,
    position: int,
    window: int,
    fetched: bytes | None,
    size: int,
    decode: Callable[[bytes | None], R],
) -> R:
    """Decode the first bytes at `position`, and read them once more if they are damaged."""

    def again() -> R:
        bytes_now = fetch_slot(log, position, window, size)
        if bytes_now is None:
            raise NotFound(position)
        return decode(bytes_now)

    return sound(log.key(keys.slot(position, window)), lambda: decode(fetched), again)


def read_any(
    log: LogStore,
    position: int,
    window: int,
    size: int = WHOLE,
    *,
    tolerant: bool = False,
) -> SlotRecord | TornRecord | None:
    """Read the record at `position` as `read_slot`, but return a torn record instead of raising.

    Raises:
        InvalidLogError: see `read_slot`.
        WrongWindow: see `read_slot`.
    """
    try:
        fetched = fetch_slot(log, position, window, size)
        return open_again(log, position, window, fetched, size)
    except TornRecord as torn:
        return torn
    except NewerFormatError:
        raise
    except InvalidLogError:
        if not tolerant:
            raise
        return None


class _OtherBytes(InvalidLogError):
    """A record that this writer sent has other bytes."""

    def __init__(self, message: str, record: SlotRecord) -> None:
        super().__init__(message)
        self.record = record


def read_back(log: LogStore, sent: SlotHeader, data: bytes) -> tuple[SlotRecord, bool] | None:
    """Read the record of a slot that refused a PUT: 1 GET, and 1 more if our record seems damaged.

    Args:
        log: the log.
        sent: the header of the record that was sent.
        data: its bytes.

    Returns:
        The record, and whether it consists of these bytes: the PUT may have broken off after its
        front. None if the slot is empty.

    Raises:
        InvalidLogError: the record is damaged.
    """
    position, window = sent.position, sent.window
    size = max(WHOLE, len(data) + 1)

    def decode(fetched: bytes | None) -> tuple[SlotRecord, bool] | None:
        record = open_slot(log, position, window, fetched)
        if record is None:
            return None
        if record.header.plan_id == sent.plan_id and fetched != data:
            raise _OtherBytes(str(broken_off(log, sent.number, len(data))), record)
        return record, fetched == data

    fetched = fetch_slot(log, position, window, size)
    try:
        return _second_look(log, position, window, fetched, size, decode)
    except _OtherBytes as other:
        return other.record, False


def broken_off(log: LogStore, number: int, size: int) -> InvalidLogError:
    """The error for an object that differs from the `size` bytes that its writer sent."""
    return InvalidLogError(
        f"{log.locate(number)} differs from the {size} bytes that were sent: the store has a part "
        "of them, or others"
    )


def front_of(log: LogStore, position: int, window: int, size: int = WHOLE) -> Range:
    """The first bytes at `position`, for `get_many`."""
    return Range(log.key(keys.slot(position, window)), 0, size, is_front=True)


def fetch_slot(log: LogStore, position: int, window: int, size: int = WHOLE) -> bytes | None:
    """Read the first bytes at `position`, for `open_slot`."""
    try:
        return _first(log, keys.slot(position, window), size)
    except NotFound:
        return None


def open_slot(
    log: LogStore, position: int, window: int, fetched: bytes | None
) -> SlotRecord | None:
    """Decode the record at `position` from the result of `fetch_slot`.

    It costs 1 GET if the header is longer than what was fetched.

    Raises:
        InvalidLogError: see `read_slot`.
        WrongWindow: see `read_slot`.
    """
    if fetched is None:
        return None
    number = keys.slot(position, window)
    name = log.locate(number, window)
    try:
        fetched = _with_header(log, number, name, fetched)
        total = Front.size_of(fetched)
        if total == len(fetched) and arrowfile.is_cut_front(fetched):
            raise TornRecord(name, position, total)
        opened = arrowfile.open_front(fetched, name)
        header = opened.header
        if header.window != window:
            raise WrongWindow(
                f"{name}: the log's window is {header.window}, not {window}", header.window
            )
        if not isinstance(header, (CommitHeader, LeaderHeader)):
            raise InvalidLogError(
                f"{name}: a {header.kind} object; the record of position {position} is expected"
            )
        # In a copied or renamed object the number differs from that of the key.
        if header.number != number:
            raise InvalidLogError(f"{name}: the header holds number {header.number}")
        if isinstance(header, CommitHeader):
            check_parts(header, name)
    except NotFound:
        return None
    except (TornRecord, WrongWindow, NewerFormatError) as error:
        error.position = position
        raise
    except InvalidLogError as error:
        damage = InvalidLogError(f"{error}. {WHAT_TO_DO}")
        damage.position = position
        raise damage from None
    record = SlotRecord(header, opened.spark_schema, opened.body, fetched, text=opened.text)
    # SAFETY(whole-rows) §4: a record whose rows are cut off is torn
    if total is not None and total < record.declared:
        raise TornRecord(name, position, total, record.declared)
    return record


def _inlined(header: SlotHeader) -> int:
    inline = header.inline if isinstance(header, CommitHeader) else ()
    return sum(part.bytes for part in inline)


def first_listed(log: LogStore, window: int, start: int, end: int) -> int:
    """The first position of start … end−1 that has an object in a LIST, or `end`.

    It costs as many LISTs as `end` − `start` has binary digits.
    """

    def reaches(position: int) -> bool:
        return last_listed(log, window, position + 1) >= start

    return start + bisect_left(range(start, end), True, key=reaches)


def last_listed(log: LogStore, window: int, end: int) -> int:
    """The last position before `end` that has an object in a LIST, or −1."""
    # Numbers count down, so the numbers of earlier positions come after a slot's.
    after = log.key(keys.slot(end, window))
    objects = numbered(log.store, keys.batches_prefix(log.prefix), after, limit=_FEW)
    return next((keys.position(number, window) for number, _ in objects), -1)
