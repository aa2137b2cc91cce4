"""About how large a log is and how fast it grows, with few requests."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from itertools import islice

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader, SlotHeader
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.reading.floor import KEPT_SLOTS
from sparkwal.reading.log_range import LogRange
from sparkwal.store.base import first_entries, numbered
from sparkwal.store.parallel import run_parallel

_PAGE = 1000  # keys of one LIST
_PAGES = 4
# Records that stand for all that a log got in a time.
_PROBES = 16


@dataclass(frozen=True)
class Size:
    """What a log stores; `exact` where all was listed, else about what is above the floor."""

    bytes: int
    objects: int
    exact: bool


def size_of(seen: LogRange) -> Size:
    """What lies under `batches/` of a log that has looked: 1 LIST, and 4 more where that does not
    show all of it. Of larger logs it is what lies above the floor, taken to be like four pages:
    each is of the end of a quarter."""
    log = seen.log
    window = seen.window
    floor = seen.floor.current()
    prefix = keys.batches_prefix(log.prefix)
    page = first_entries(log.store, prefix, _PAGE)
    if not page.more:
        return Size(sum(entry.size for entry in page.entries), len(page.entries), True)
    count = max(seen.gap - floor, 0)
    parts = [floor + count * part // _PAGES for part in range(1, _PAGES + 1)]

    def stretch(below: int) -> tuple[float, float]:
        """Bytes and objects for each position, of a page of those below."""
        # Numbers count down: what follows a slot are the positions below it.
        # What is under way at the gap is left out.
        after = log.key(keys.slot(below, window))
        page = islice(numbered(log.store, prefix, after), _PAGE)
        found = [(keys.position(number, window), entry.size) for number, entry in page]
        if not found:
            return 0.0, 0.0
        last = found[-1][0]
        # The last position of a page may be cut through.
        whole = [size for position, size in found if position > last] or [size for _, size in found]
        positions = max(below - 1 - last, 1)
        return sum(whole) / positions, len(whole) / positions

    sizes, objects = zip(*run_parallel(log.store, stretch, parts), strict=True)
    about = count / _PAGES
    return Size(round(sum(sizes) * about), round(sum(objects) * about), False)


@dataclass(frozen=True)
class Pace:
    """How fast a log grew over the last `seconds`, per second."""

    commits: float
    rows: float
    seconds: float


def pace_of(log: LogRange, now_ms: int, window_ms: int) -> Pace:
    """The pace over the last `window_ms` until now, of a log that has looked. No request where
    nothing came in it, else one GET each time that the positions are halved, and at
    most 16. Damaged records count as none; `passed_over` of the log gets each that is met."""
    assert log.live is not None
    newest = log.live.header
    # Of what the floor has passed a collection keeps the newest records.
    kept = max(min(log.floor.current(), newest.position) - KEPT_SLOTS, 0)
    since_ms = max(now_ms, newest.timestamp_ms) - window_ms
    if newest.timestamp_ms < since_ms:
        return Pace(0.0, 0.0, window_ms / 1000)

    @cache
    def fetch(position: int) -> SlotHeader | None:
        try:
            record = read_slot(log.log, position, log.window, GLANCE)
        except InvalidLogError as error:
            if log.passed_over is not None:
                log.passed_over(error)
            return None
        return record.header if record else None

    def time_ms(position: int) -> int:
        header = fetch(position)
        return header.timestamp_ms if header else 0

    first = bisect_left(range(newest.position), since_ms, lo=kept, key=time_ms)
    inside = range(first, newest.position + 1)
    count = min(len(inside), _PROBES)
    probed = [inside[len(inside) * part // count] for part in range(count)]
    found = [*filter(None, run_parallel(log.log.store, fetch, probed))] or [newest]
    commits = [each for each in found if isinstance(each, CommitHeader)]
    # Each record stands for as many as were not read.
    share = len(inside) / count
    # A log, or what is left of it, may be younger than the window.
    began_ms = since_ms if first > kept else found[0].timestamp_ms
    seconds = max(now_ms - began_ms, 1000) / 1000
    rows = sum(each.rows for each in commits)
    return Pace(len(commits) * share / seconds, rows * share / seconds, seconds)
