"""Reading one slot: the record at a position, or nothing."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader, LeaderHeader, SlotHeader, check_parts
from sparkwal.store.base import LogStore, NotFound, numbered
from sparkwal.store.parallel import GetRange, Range

# Reads any record of up to some ten thousand frames; a longer header costs a second request.
WHOLE = 4 * 2**20
# For a caller that looks at many records and does not read their rows.
GLANCE = 64 * 2**10
# Keys of a LIST of which one is needed.
_FEW = 10

# Opened when it is needed: a client costs tens of milliseconds.
OpenLog = Callable[[], LogStore]


class WrongWindow(InvalidLogError):
    """The log has another window than was assumed: `window`."""

    def __init__(self, message: str, window: int) -> None:
        super().__init__(message)
        self.window = window


@dataclass(frozen=True)
class SlotRecord(arrowfile.Opened):
    """A commit or leader record. Its inlined rows begin at `body`; `inlined` are their bytes, if
    all came along with the header."""

    header: SlotHeader
    inlined: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes up to the end of its inlined rows."""
        return self.body + _inlined(self.header)

    def knows(self, position: int, log_id: str | None) -> bool:
        """Whether its writer knew that the log `log_id` had a durable record at `position`."""
        return self.header.decided >= position and log_id in (None, self.header.log_id)


def read_front(
    log: LogStore, number: int, window: int | None, size: int = WHOLE
) -> arrowfile.Opened:
    """The header of an object from its first `size` bytes, more if it is longer. With `window`,
    errors name the position too. Raises NotFound, InvalidLogError."""
    where = log.locate(number, window)
    opened = arrowfile.open_front(_front(log, number, window, size), where)
    # In a copied or renamed object the number differs from the key's.
    if opened.header.number != number:
        raise InvalidLogError(f"{where}: the header says number {opened.header.number}")
    return opened


def _front(
    log: LogStore,
    number: int,
    window: int | None,
    size: int,
    get_range: GetRange | None = None,
) -> bytes:
    key = log.key(number)
    front = (get_range or log.store.get_range)(key, 0, size)
    needed = arrowfile.needed(front)
    if len(front) == size < needed:
        if needed > arrowfile.LARGEST_FRONT:
            where = log.locate(number, window)
            raise InvalidLogError(f"{where}: the schema message claims {needed} bytes")
        front = log.store.get_range(key, 0, needed)
    return front


def read_slot(
    log: LogStore,
    position: int,
    window: int,
    size: int = WHOLE,
    get_range: GetRange | None = None,
    *,
    tolerant: bool = False,
) -> SlotRecord | None:
    """The record at `position`, or None. Inlined rows among the first `size` bytes come along.
    Raises InvalidLogError for anything else, unless tolerant; one of them is WrongWindow.
    `get_range` reads in place of the store's."""
    try:
        fetched = fetch_slot(log, position, window, size, get_range)
        record = open_slot(log, position, window, fetched)
        # SAFETY(whole-rows) §4: no writer builds on a record whose rows are cut off
        if record is not None and isinstance(fetched, bytes) and len(fetched) < size:
            check_whole(log, record, len(fetched))
        return record
    except InvalidLogError:
        if not tolerant:
            raise
        return None


def read_back(
    log: LogStore, position: int, window: int, data: bytes
) -> tuple[SlotRecord, bool] | None:
    """The record of a slot that refused a PUT of `data`, and whether it is these bytes: the PUT may
    have broken off, and its front alone be there. None if there is no record. 1 GET. Raises
    InvalidLogError."""
    size = max(WHOLE, len(data) + 1)
    fetched = fetch_slot(log, position, window, size)
    record = open_slot(log, position, window, fetched)
    return None if record is None else (record, fetched == data)


def check_whole(log: LogStore, record: SlotRecord, size: int) -> None:
    """Raises InvalidLogError for a record of which the store has `size` bytes, and not all rows."""
    if size < record.size:
        header = record.header
        error = InvalidLogError(
            f"{log.locate(header.number, header.window)}: it is cut off, {size} bytes of "
            f"{record.size}. A store that keeps a part of what was sent leaves such a record, and "
            "no writer reported it as durable. If it is the last one, delete the object: the log "
            "then ends before it, and the next writer continues there. Else restore it"
        )
        error.position = header.position
        raise error


def broken_off(log: LogStore, number: int, size: int) -> InvalidLogError:
    """The error for an object that is not the `size` bytes that its writer sent."""
    return InvalidLogError(
        f"{log.locate(number)} is not what was sent: of {size} bytes the store kept a part, or "
        "others"
    )


def fetch_slot(
    log: LogStore,
    position: int,
    window: int,
    size: int = WHOLE,
    get_range: GetRange | None = None,
) -> bytes | InvalidLogError | None:
    """The first bytes at `position`, for `open_slot`; an InvalidLogError is returned."""
    try:
        return _front(log, keys.slot(position, window), window, size, get_range)
    except NotFound:
        return None
    except InvalidLogError as error:
        return error


def first_range(log: LogStore, position: int, window: int, size: int, likely: int) -> Range:
    """The range that a read of a slot reads first, for `read_parallel`."""
    return Range(log.key(keys.slot(position, window)), 0, size, likely)


def open_slot(
    log: LogStore, position: int, window: int, fetched: bytes | InvalidLogError | None
) -> SlotRecord | None:
    """The record at `position` from what `fetch_slot` returned. Raises as `read_slot`."""
    if fetched is None:
        return None
    number = keys.slot(position, window)
    where = log.locate(number, window)
    try:
        if isinstance(fetched, InvalidLogError):
            raise fetched
        opened = arrowfile.open_front(fetched, where)
        header = opened.header
        if header.window != window:
            raise WrongWindow(
                f"{where}: the log's window is {header.window}, not {window}", header.window
            )
        if not isinstance(header, (CommitHeader, LeaderHeader)):
            raise InvalidLogError(
                f"{where}: a {header.kind} object; the record of position {position} is expected"
            )
        # In a copied or renamed object the number differs from the key's.
        if header.number != number:
            raise InvalidLogError(f"{where}: the header says number {header.number}")
        if isinstance(header, CommitHeader):
            check_parts(header, where)
    except InvalidLogError as error:
        error.position = position
        raise
    body, end = opened.body, opened.body + _inlined(header)
    inlined = fetched[body:end] if end <= len(fetched) else None
    return SlotRecord(header, opened.spark_schema, body, inlined)


def _inlined(header: SlotHeader) -> int:
    inline = header.inline if isinstance(header, CommitHeader) else ()
    return sum(each.bytes for each in inline)


def first_listed(log: LogStore, window: int, start: int, end: int) -> int:
    """The first position of start … end−1 of which a LIST shows an object; `end` if there is none.
    As many LISTs as `end` − `start` has binary digits."""

    def reaches(position: int) -> bool:
        return last_listed(log, window, position + 1) >= start

    return start + bisect_left(range(start, end), True, key=reaches)


def last_listed(log: LogStore, window: int, end: int) -> int:
    """The last position before `end` of which a LIST shows an object; −1 if there is none."""
    # Numbers count down: those of earlier positions come after a slot's.
    after = log.key(keys.slot(end, window))
    found = numbered(log.store, keys.batches_prefix(log.prefix), after, limit=_FEW)
    return next((keys.position(number, window) for number, _ in found), -1)
