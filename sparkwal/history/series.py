"""Records by the time they bear, in a bounded number of buckets."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sparkwal.history.quantiles import Quantiles

SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000
# As many buckets a series spans at most, whatever its length.
MOST = 500
# Each divides the next, so that buckets are joined whole; then 52 weeks, twice that, and so on.
WIDTHS = (SECOND, 5 * SECOND, 15 * SECOND, 60 * SECOND, 300 * SECOND, 900 * SECOND, HOUR,
          4 * HOUR, DAY, 7 * DAY, 28 * DAY, 364 * DAY)  # fmt: skip
# The last moment that a calendar knows; later ones count as it.
LAST_MS = 253_402_300_799_999


@dataclass
class Bucket:
    """What was written between two moments.

    Attributes:
        start_ms: of the period, milliseconds since 1970.
        rows, bytes: of the commits, as their records say.
        dead: positions whose record counts for nothing.
        put_ms: how long the slowest data object of each commit took, from its first rows until it
            was durable; commits whose rows travel in their record have none.
        sizes: bytes of each commit.
        in_flight: most records that an appender had under way.
        requests: that the records prove, by kind.
        first_position: of its first record; positions of one log rise with the buckets.
        stamp: the sum of the records' times, to tell their mean.
        stored, objects: what lies in the store now of these positions.
    """

    start_ms: int
    commits: int = 0
    rows: int = 0
    bytes: int = 0
    leaders: int = 0
    dead: int = 0
    put_ms: Quantiles = field(default_factory=Quantiles)
    sizes: Quantiles = field(default_factory=Quantiles)
    in_flight: float = 0
    requests: Counter[str] = field(default_factory=Counter)
    first_position: int = 0
    records: int = 0
    stamp: int = 0
    stored: int = 0
    objects: int = 0

    def join(self, later: Bucket) -> None:
        """Take in a bucket of the time after this one, or of another log."""
        for name in ("commits", "rows", "bytes", "leaders", "dead", "records", "stamp", "stored",
                     "objects"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.put_ms.join(later.put_ms)
        self.sizes.join(later.sizes)
        self.in_flight = max(self.in_flight, later.in_flight)
        self.requests.update(later.requests)

    @property
    def mean_ms(self) -> int:
        """When its records were written, on average."""
        return self.stamp // self.records if self.records else self.start_ms


def next_period(start_ms: int, by: str) -> int:
    """When the period after the one that begins at `start_ms` begins."""
    if by != "month":
        return start_ms + (HOUR if by == "hour" else DAY)
    first = datetime.fromtimestamp(start_ms / 1000, UTC)
    year, month = divmod(first.year * 12 + first.month, 12)
    if year > 9999:
        return LAST_MS + 1
    return int(first.replace(year=year, month=month + 1).timestamp()) * 1000


def period_of(timestamp_ms: int, by: str) -> int:
    """When the hour, day or month (UTC) of a moment began."""
    if by != "month":
        return timestamp_ms - timestamp_ms % (HOUR if by == "hour" else DAY)
    first = datetime.fromtimestamp(min(timestamp_ms, LAST_MS) / 1000, UTC)
    first = first.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(first.timestamp()) * 1000


class Series:
    """Buckets in the order of time, only those that hold something.

    Args:
        by: "hour", "day", "month" (UTC; as many as there are), or None: of equal width, which
            grows so that the series never spans more than `most`.
    """

    def __init__(self, by: str | None = None, most: int = MOST) -> None:
        self.by, self.width_ms, self._most = by, WIDTHS[0], most
        self._buckets: dict[int, Bucket] = {}
        self._first = self._last = 0

    def at(self, timestamp_ms: int) -> Bucket:
        """The bucket of a moment, to be written into; those got before may be joined into it."""
        start = self._start(timestamp_ms)
        if self.by is None:
            self._first = min(self._first, start) if self._buckets else start
            self._last = max(self._last, start) if self._buckets else start
            while (self._last - self._first) // self.width_ms >= self._most:
                self._widen()
            start = self._start(timestamp_ms)
        found = self._buckets.get(start)
        if found is None:
            found = self._buckets[start] = Bucket(start)
        return found

    def _start(self, timestamp_ms: int) -> int:
        if self.by is not None:
            return period_of(timestamp_ms, self.by)
        return timestamp_ms - timestamp_ms % self.width_ms

    def _widen(self) -> None:
        following = bisect_right(WIDTHS, self.width_ms)
        self.width_ms = WIDTHS[following] if following < len(WIDTHS) else 2 * self.width_ms
        before, self._buckets = self._buckets, {}
        for start in sorted(before):
            wide = self._start(start)
            if wide in self._buckets:
                self._buckets[wide].join(before[start])
            else:
                before[start].start_ms = wide
                self._buckets[wide] = before[start]
        self._first, self._last = self._start(self._first), self._start(self._last)

    def __iter__(self) -> Iterator[Bucket]:
        return iter([self._buckets[start] for start in sorted(self._buckets)])

    def __len__(self) -> int:
        return len(self._buckets)

    def end_of(self, bucket: Bucket) -> int:
        """When the bucket's time is over."""
        if self.by is None:
            return bucket.start_ms + self.width_ms
        return next_period(bucket.start_ms, self.by)

    def join(self, other: Series) -> None:
        """Take in the series of another log, by the same periods."""
        for bucket in other:
            self.at(bucket.start_ms).join(bucket)


def holding(buckets: list[Bucket], position: int) -> Bucket | None:
    """Of the buckets of one log, in order, the one that a position belongs to; None for a position
    before all of them."""
    place = bisect_right(buckets, position, key=lambda each: each.first_position)
    return buckets[place - 1] if place else None
