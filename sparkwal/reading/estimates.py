"""Estimates the size of a log and its growth, with few requests."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from itertools import islice

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader, SlotHeader
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.slots import GLANCE, TornRecord, read_slot
from sparkwal.reading.floor import KEPT_SLOTS
from sparkwal.reading.log_range import LogRange
from sparkwal.store.base import LogStore, Page, first_entries, numbered
from sparkwal.store.parallel import run_parallel

# The number of keys in one LIST.
_PAGE = 1000
_PAGES = 4
# The number of records that represent all records of a time span.
_PROBES = 16


# A glance compares the newest record with the one so many positions before.
_GLANCE_BACK = 60


@dataclass(frozen=True)
class Size:
    """The stored bytes and objects of a log. Unless `exact`, they are an estimate above the
    floor."""

    bytes: int
    objects: int
    exact: bool


def size_of(seen: LogRange, listed: Page | None = None) -> Size:
    """The size of `batches/` of a log that has looked: 1 LIST, and 4 more if that shows only a
    part.

    The size of a larger log is estimated above its floor, from four pages: one at the end of each
    quarter.

    Args:
        seen: the log.
        listed: its first LIST, if the caller has made it.
    """
    log = seen.log
    window = seen.window
    floor = seen.floor.current()
    prefix = keys.batches_prefix(log.prefix)
    page = listed or first_entries(log.store, prefix, _PAGE)
    if not page.more:
        return Size(sum(entry.size for entry in page.entries), len(page.entries), True)
    count = max(seen.gap - floor, 0)
    parts = [floor + count * part // _PAGES for part in range(1, _PAGES + 1)]

    def stretch(below: int) -> tuple[float, float]:
        """The bytes and objects for each position, from one page of the positions below `below`."""
        # Numbers count down, so the keys after a slot belong to the positions below it. The objects
        # of the running microbatch at the gap are left out.
        after = log.key(keys.slot(below, window))
        page = islice(numbered(log.store, prefix, after), _PAGE)
        sizes = [(keys.position(number, window), entry.size) for number, entry in page]
        if not sizes:
            return 0.0, 0.0
        last = sizes[-1][0]
        # The page may hold only a part of its last position.
        complete = [size for position, size in sizes if position > last]
        complete = complete or [size for _, size in sizes]
        positions = max(below - 1 - last, 1)
        return sum(complete) / positions, len(complete) / positions

    sizes, objects = zip(*run_parallel(log.store, stretch, parts), strict=True)
    about = count / _PAGES
    return Size(round(sum(sizes) * about), round(sum(objects) * about), False)


@dataclass(frozen=True)
class Pace:
    """The growth of a log per second, over the last `seconds`."""

    commits: float
    rows: float
    seconds: float


def pace_at_a_glance(log: LogRange, now_ms: int, window_ms: int) -> Pace:
    """The growth of a log that has looked, from its newest record and one before: at most 1 GET.

    The time between them may be longer or shorter than `window_ms`.
    """
    assert log.live is not None
    newest = log.live.header
    if newest.timestamp_ms < max(now_ms, newest.timestamp_ms) - window_ms:
        return Pace(0.0, 0.0, window_ms / 1000)
    lowest = max(min(log.floor.current(), newest.position) - KEPT_SLOTS, 0)
    position = max(newest.position - _GLANCE_BACK, lowest)
    older: SlotHeader | None = newest
    if position < newest.position:
        try:
            record = read_slot(log.log, position, log.window, GLANCE, tolerant=True)
            older = record.header if record else None
        except InvalidLogError as error:
            if log.damage.report is not None:
                log.damage.report(error)
            older = None
    if older is None:
        return Pace(0.0, 0.0, 0.0)
    seconds = max(now_ms - older.timestamp_ms, 1000) / 1000
    commits = [header for header in (older, newest) if isinstance(header, CommitHeader)]
    # Each of the two represents half of the records.
    share = len(commits) / 2 * (newest.position - position + 1)
    rows = sum(header.rows for header in commits) / max(len(commits), 1)
    return Pace(share / seconds, share * rows / seconds, seconds)


def pace_of(log: LogRange, now_ms: int, window_ms: int) -> Pace:
    """The growth of a log that has looked, over the last `window_ms`.

    It costs no request if the log did not grow, else one GET for each time that the positions are
    halved, and at most 16 more. Damaged records do not count; the log's policy reports them.
    """
    assert log.live is not None
    newest = log.live.header
    # A collection keeps the newest records below the floor.
    lowest = max(min(log.floor.current(), newest.position) - KEPT_SLOTS, 0)
    since_ms = max(now_ms, newest.timestamp_ms) - window_ms
    if newest.timestamp_ms < since_ms:
        return Pace(0.0, 0.0, window_ms / 1000)

    @cache
    def fetch(position: int) -> SlotHeader | None:
        try:
            record = read_slot(log.log, position, log.window, GLANCE)
        except TornRecord:
            return None
        except InvalidLogError as error:
            if log.damage.report is not None:
                log.damage.report(error)
            return None
        return record.header if record else None

    def time_ms(position: int) -> int:
        header = fetch(position)
        return header.timestamp_ms if header else 0

    first = bisect_left(range(newest.position), since_ms, lo=lowest, key=time_ms)
    inside = range(first, newest.position + 1)
    count = min(len(inside), _PROBES)
    probed = [inside[len(inside) * part // count] for part in range(count)]
    headers = [*filter(None, run_parallel(log.log.store, fetch, probed))] or [newest]
    commits = [header for header in headers if isinstance(header, CommitHeader)]
    # Each probed record represents this many records.
    share = len(inside) / count
    # The log, or its remaining part, may be younger than the window.
    began_ms = since_ms if first > lowest else headers[0].timestamp_ms
    seconds = max(now_ms - began_ms, 1000) / 1000
    rows = sum(header.rows for header in commits)
    return Pace(len(commits) * share / seconds, rows * share / seconds, seconds)


def lag_ms(log: LogStore, head: Head, position: int) -> int | None:
    """The time between the record at a position and the newest one: 1 GET."""
    assert head.live is not None
    if position >= head.gap:
        return 0
    try:
        record = read_slot(log, position, head.window, GLANCE)
    except InvalidLogError:
        return None
    newest_ms = head.live.header.timestamp_ms
    return max(0, newest_ms - record.header.timestamp_ms) if record else None
