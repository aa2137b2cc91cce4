"""About how large a log is and how fast it grows, with few requests."""

from collections.abc import Iterable
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader, SlotHeader
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot
from sparkwal.reading.rows import PassedOver
from sparkwal.store.base import first_entries
from sparkwal.store.log_store import LogStore
from sparkwal.store.parallel import run_parallel

_PAGE = 1000  # keys of one LIST
_PAGES = 4
# Probes at 2⁰, 2¹, … positions before the head, so many at once, and then between two of them.
_PROBES = 8


@dataclass(frozen=True)
class Size:
    """What a log stores; `exact` where all was listed, else about what is above the floor."""

    bytes: int
    objects: int
    exact: bool


def size_of(log: LogStore, head: Head, floor: int) -> Size:
    """What lies under `batches/`: 1 LIST, and 4 more where that does not show all of it. Of larger
    logs it is what lies above the floor, taken to be like four pages: each is of the end of a
    quarter."""
    prefix = keys.batches_prefix(log.prefix)
    page = first_entries(log.store, prefix, _PAGE)
    if not page.more:
        return Size(sum(entry.size for entry in page.entries), len(page.entries), True)
    count = max(head.gap - floor, 1)
    parts = [floor + count * part // _PAGES for part in range(1, _PAGES + 1)]

    def stretch(below: int) -> tuple[float, float]:
        """Bytes and objects for each position, of a page of those below."""
        # Numbers count down: what follows a slot are the positions below it.
        after = log.key(keys.slot(below, head.window))
        # What is under way at the gap is left out.
        named = (
            (keys.decode(entry.key.removeprefix(prefix)), entry.size)
            for entry in log.store.list(prefix, _PAGE, after).entries
        )
        found = [(keys.position(n, head.window), size) for n, size in named if n is not None]
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


def pace_of(
    log: LogStore,
    head: Head,
    floor: int,
    now_ms: int,
    window_ms: int,
    passed_over: PassedOver | None = None,
) -> Pace:
    """The pace until now. No request where nothing came in the window, else 16 GETs at most for up
    to 255 records in it, 24 for up to 65,535, and 8 more for each 256 times as many. Damaged
    records count as none; `passed_over` gets each that is met."""
    assert head.live is not None
    newest = head.live.header
    floor = min(floor, newest.position)
    since_ms = max(now_ms, newest.timestamp_ms) - window_ms
    if newest.timestamp_ms < since_ms:
        return Pace(0.0, 0.0, window_ms / 1000)
    seen: dict[int, SlotHeader] = {newest.position: newest}

    def look(positions: Iterable[int]) -> None:
        wanted = sorted({each for each in positions if each >= floor} - seen.keys())
        for record in filter(None, run_parallel(log.store, fetch, wanted)):
            seen[record.header.position] = record.header

    def fetch(position: int) -> SlotRecord | None:
        try:
            return read_slot(log, position, head.window, GLANCE)
        except InvalidLogError as error:
            if passed_over is not None:
                passed_over(error)
            return None

    def first() -> int:
        """The first position after those seen that are older than the window."""
        old = (each for each, header in seen.items() if header.timestamp_ms < since_ms)
        return max(old, default=floor - 1) + 1

    step = 0
    while first() == floor and head.position - 2**step >= floor:
        look(head.position - 2**each for each in range(step, step + _PROBES))
        step += _PROBES
    low = first()
    high = min(position for position in seen if position >= low)
    look(low + (high - low) * part // _PROBES for part in range(_PROBES))
    low, commits, rows = first(), 0, 0
    inside = sorted(position for position in seen if position >= low)
    # Each record stands for those up to the next one that was seen.
    for position, following in zip(inside, [*inside[1:], inside[-1] + 1], strict=True):
        header = seen[position]
        if isinstance(header, CommitHeader):
            commits += following - position
            rows += header.rows * (following - position)
    # A log, or what is left of it, may be younger than the window.
    began_ms = since_ms if low > min(seen) else seen[inside[0]].timestamp_ms
    seconds = max(now_ms - began_ms, 1000) / 1000
    return Pace(commits / seconds, rows / seconds, seconds)
