"""What writing and keeping a log costs, by period."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkwal.history.looking import Looked
from sparkwal.history.prices import MONTH_MS, Prices
from sparkwal.history.series import HOUR, Bucket, Series


@dataclass(frozen=True)
class Line:
    """The cost of a time.

    Attributes:
        stored: bytes in the store at its end, of what is there now.
        requests: of the writers, by kind, that the records prove.
        request_cost, storage_cost: in dollars.
    """

    start_ms: int
    end_ms: int
    commits: int
    rows: int
    bytes: int
    stored: int
    requests: Mapping[str, int]
    request_cost: float
    storage_cost: float

    @property
    def cost(self) -> float:
        """In dollars."""
        return self.request_cost + self.storage_cost


@dataclass(frozen=True)
class Projection:
    """A month at the present rate.

    Attributes:
        span_ms: the time whose rate it is: the last day, or all that there is.
        requests: in a month.
        stored: bytes in the store, as a mean of the month, if nothing is collected.
    """

    span_ms: int
    requests: Mapping[str, int]
    stored: int
    request_cost: float
    storage_cost: float


def lines(series: Series, held: int, since_ms: int, until_ms: int, prices: Prices) -> list[Line]:
    """One line for each period that something was written in, and one for each time between.

    Args:
        held: bytes that were there before.
        since_ms, until_ms: when the first line begins and the last one ends.
    """
    found: list[Line] = []
    reached = since_ms
    for bucket in series:
        start = max(bucket.start_ms, since_ms)
        if start > reached:
            found.append(_line(Bucket(reached), reached, start, held, prices))
        reached = max(min(series.end_of(bucket), until_ms), start)
        found.append(_line(bucket, start, reached, held, prices))
        held += bucket.stored
    if until_ms > reached:
        found.append(_line(Bucket(reached), reached, until_ms, held, prices))
    return found


def _line(bucket: Bucket, start_ms: int, end_ms: int, held: int, prices: Prices) -> Line:
    lasted = min(max(end_ms - bucket.mean_ms, 0), end_ms - start_ms)
    byte_ms = held * (end_ms - start_ms) + bucket.stored * lasted
    return Line(
        start_ms=start_ms, end_ms=end_ms, commits=bucket.commits, rows=bucket.rows,
        bytes=bucket.bytes, stored=held + bucket.stored, requests=dict(bucket.requests),
        request_cost=prices.of(bucket.requests), storage_cost=prices.of_storage(byte_ms),
    )  # fmt: skip


def total(every: Iterable[Line], since_ms: int, until_ms: int) -> Line:
    """All lines as one."""
    taken = list(every)
    requests: Counter[str] = Counter()
    for line in taken:
        requests.update(line.requests)
    return Line(
        start_ms=since_ms, end_ms=until_ms, commits=sum(line.commits for line in taken),
        rows=sum(line.rows for line in taken), bytes=sum(line.bytes for line in taken),
        stored=taken[-1].stored if taken else 0, requests=dict(requests),
        request_cost=sum(line.request_cost for line in taken),
        storage_cost=sum(line.storage_cost for line in taken),
    )  # fmt: skip


def projection(logs: Iterable[Looked], prices: Prices) -> Projection | None:
    """A month at the rate of the last day; None where not even an hour is told of."""
    requests: Counter[str] = Counter()
    stored = growing = 0.0
    span = 0
    taken = list(logs)
    for each in taken:
        begin = max(each.since_ms, each.history.recent.start_ms)
        first = each.history.first
        if first is not None and each.start <= each.floor:
            begin = max(begin, first.timestamp_ms)  # nothing was written before it
        span = max(span, each.until_ms - begin)
    if span < HOUR:
        return None
    for each in taken:
        requests.update(each.history.recent.requests)
        stored += each.stored
        growing += each.history.recent.stored
    monthly = {kind: round(count * MONTH_MS / span) for kind, count in requests.items()}
    mean = stored + growing / span * MONTH_MS / 2
    return Projection(
        span_ms=span, requests=monthly, stored=round(mean), request_cost=prices.of(monthly),
        storage_cost=prices.of_storage(mean * MONTH_MS),
    )  # fmt: skip


@dataclass(frozen=True)
class WholeRead:
    """One read of all rows from the first position to the last.

    Attributes:
        cost: in dollars; within the region bytes cost nothing.
    """

    requests: Mapping[str, int]
    bytes: int
    cost: float


def whole_read(logs: Iterable[Looked], prices: Prices) -> WholeRead:
    """What a reader pays for all that was told of; the records do not know who reads."""
    requests: Counter[str] = Counter()
    size = 0
    for each in logs:
        # The head, which is among the records where all is read, and the floor; each record; each
        # object or 8 MiB of it.
        beside = (each.history.after < each.gap) + (each.chain is not None)
        requests.update(LIST=2, GET=beside + each.history.gets)
        size += each.history.total.bytes
    return WholeRead(dict(requests), size, prices.of(requests))


# What no record knows, for people.
UNTOLD = (
    "requests of readers",
    "requests that were refused or repeated, and those of a task that Spark ran again",
    "a checkpoint on s3a, and the requests of compaction and collection but for the chain's PUTs",
    "positions that were collected, while they were there",
)
