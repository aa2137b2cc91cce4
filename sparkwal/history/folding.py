"""The records of one log, one after the other, into what a person wants to know of them."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, replace

from sparkwal.format.header import CommitHeader, LeaderHeader, SlotHeader
from sparkwal.history.quantiles import Quantiles
from sparkwal.history.requests import made, to_read
from sparkwal.history.series import LAST_MS, SECOND, Bucket, Series

# Kept of what there may be any number of: the newest terms, the longest pauses, the first dead.
TERMS, PAUSES, DEAD = 200, 10, 100


@dataclass(frozen=True)
class Term:
    """A time under one leader.

    Attributes:
        position: of its leader record.
        seals: leader records after it, in slots that the leader before could still reach.
    """

    term: int
    position: int
    timestamp_ms: int
    leader_id: str
    host: str
    reason: str
    seals: int = 0
    commits: int = 0


@dataclass(frozen=True, order=True)
class Pause:
    """A time without a commit; `after` and `before` are the positions around it."""

    length_ms: int
    after: int
    before: int
    start_ms: int


class History:
    """What the records of one log tell; give it the live ones in order.

    Memory is bounded but by the periods of `by`.

    Args:
        start: the first position that is given; what is missing before a record is dead.
        by: periods to be told beside the series: "hour", "day" or "month".
        recent_ms: what was written since then is also told by itself.

    Attributes:
        series: at most 500 buckets of equal width.
        total, recent: all of it, and the part since `recent_ms`.
        dead: runs of dead positions, (first, how many); at most the first 100.
        gets: that one read of it all makes.
    """

    def __init__(self, start: int = 0, by: str | None = None, recent_ms: int = 0) -> None:
        self.series = Series()
        self.periods = Series(by) if by else None
        self.total, self.recent = Bucket(0), Bucket(recent_ms)
        self.terms: deque[Term] = deque(maxlen=TERMS)
        self.term_count = 0
        self.dead: list[tuple[int, int]] = []
        self.intervals = Quantiles()
        self.first: SlotHeader | None = None
        self.last: SlotHeader | None = None
        self.last_commit: CommitHeader | None = None
        self.gets = 0
        self._start = self._expected = start
        self._pauses: list[Pause] = []

    @property
    def after(self) -> int:
        """The position after the last that was given."""
        return self._expected

    def add(self, header: SlotHeader) -> None:
        """Take in the next live record."""
        time = min(header.timestamp_ms, LAST_MS)
        buckets = self._buckets(time)
        for bucket in buckets:
            if not bucket.records:
                bucket.first_position = self._expected
        self._skip(header.position, buckets)
        proved = made(header, self.last)
        for bucket in buckets:
            bucket.records += 1
            bucket.stamp += time
            bucket.requests.update(proved)
            if isinstance(header, CommitHeader):
                _commit(bucket, header)
            else:
                bucket.leaders += 1
        if isinstance(header, CommitHeader):
            self._pause(header)
            if self.terms:
                self.terms[-1] = replace(self.terms[-1], commits=self.terms[-1].commits + 1)
        else:
            self._lead(header)
        self.gets += to_read(header)
        self.first, self.last = self.first or header, header
        self._expected = header.position + 1

    def end(self, position: int) -> None:
        """No live record comes before this position: what is left there is dead."""
        if self.last is not None and position > self._expected:
            self._skip(position, self._buckets(min(self.last.timestamp_ms, LAST_MS)))
            self._expected = position

    def _buckets(self, time: int) -> list[Bucket]:
        found = [self.total, self.series.at(time)]
        if self.periods is not None:
            found.append(self.periods.at(time))
        return [*found, self.recent] if time >= self.recent.start_ms else found

    def _skip(self, position: int, buckets: list[Bucket]) -> None:
        """The positions from the one that was expected on are dead: each was a PUT all the same."""
        dead = position - self._expected
        if not dead:
            return
        self.gets += dead
        for bucket in buckets:
            bucket.dead += dead
            bucket.requests["PUT"] += dead
        if len(self.dead) < DEAD:
            self.dead.append((self._expected, dead))

    def _lead(self, header: LeaderHeader) -> None:
        last = self.terms[-1] if self.terms else None
        if last is not None and last.term == header.term:
            self.terms[-1] = replace(last, seals=last.seals + 1)
            return
        self.term_count += 1
        self.terms.append(
            Term(header.term, header.position, header.timestamp_ms, header.leader_id,
                 header.host, header.reason)
        )  # fmt: skip

    def _pause(self, header: CommitHeader) -> None:
        before, self.last_commit = self.last_commit, header
        if before is None:
            return
        length = header.timestamp_ms - before.timestamp_ms
        self.intervals.add(length)
        heapq.heappush(
            self._pauses, Pause(length, before.position, header.position, before.timestamp_ms)
        )
        if len(self._pauses) > PAUSES:
            heapq.heappop(self._pauses)

    @property
    def pauses(self) -> list[Pause]:
        """The longest times without a commit, of at least a second and ten times what is usual;
        the longest first."""
        least = max(SECOND, 10 * (self.intervals.at(0.5) or 0))
        return sorted((each for each in self._pauses if each.length_ms >= least), reverse=True)


def _commit(bucket: Bucket, header: CommitHeader) -> None:
    bucket.commits += 1
    bucket.rows += header.rows
    bucket.bytes += header.bytes
    bucket.sizes.add(header.bytes)
    put_ms = header.metric("put_ms")
    # Without data objects it says nothing.
    if header.batches and put_ms is not None:
        bucket.put_ms.add(put_ms)
    bucket.in_flight = max(bucket.in_flight, header.metric("in_flight") or 0)
