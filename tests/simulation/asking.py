"""Random runs of a stream that is a consumer, under a model of when Spark commits its microbatches.

Spark writes offsets/N before it plans microbatch N, and commits/N after it. A restart begins at the
end of the last N that has both, or repeats the last N that has only the first. It tells a source of
the end of N−1 when N begins.

With asynchronous progress tracking it writes both in the background, of the first microbatch of a
run, and then at most once a second; it tells of what is stored. The model has one source then, and
a write in the background takes less than the interval of the consumer.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sparkwal.format.keys import ROOT
from sparkwal.lifecycle.consumers.objects import ConsumerObject, read
from sparkwal.lifecycle.consumers.publishing import Publisher
from sparkwal.protocol.holds import Holds
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import StoppedClock

# The name of these runs for the mutations of rules that they must notice.
RUNS = "random runs of a consumer that asks and is told"
SEEDS, STEPS = 60, 80
INTERVAL_MS = 60_000
_BETWEEN_WRITES_MS = 1000
_LOG_ID = "log"


class Broken(Exception):
    """The consumer has published a position after that at which a restart begins."""


class Run:
    """A query over one log, and its checkpoint.

    Attributes:
        is_async: Spark tracks progress asynchronously.
        head: the next position of the log.
    """

    def __init__(self, seed: int) -> None:
        self._chosen = random.Random(seed)
        self.is_async = self._chosen.random() < 0.5
        self.head = 0
        self._clock = StoppedClock()
        self._log = LogStore(MemoryStore(), "wal")
        self._offsets: dict[int, int] = {}
        self._commits: set[int] = set()
        self._start()

    def _start(self) -> None:
        """A process begins where the checkpoint is."""
        self._pending: list[Callable[[], None]] = []
        self._to_tell: list[int] = []
        self._persisted = max(self._offsets, default=-1)
        self._written_ms: int | None = None
        last = self._persisted
        self._number = last + 1 if last in self._commits else max(last, 0)
        self._position = self.restart
        self._resumes, self._has_asked = True, False
        holds = Holds(None)
        self._publisher = Publisher("daily", INTERVAL_MS, holds, self._clock)
        self._publisher.join([(self._log, _LOG_ID, self._position)])
        if last >= 0 and last not in self._commits:
            # Spark repeats it before it asks.
            self._plan(self._offsets[last], is_stored=True)

    @property
    def restart(self) -> int:
        """The position at which a restart begins now."""
        stored = sorted(self._offsets)
        if stored and stored[-1] not in self._commits:
            stored.pop()
        return self._offsets[stored[-1]] if stored else 0

    @property
    def published(self) -> int:
        consumer = read(ConsumerObject(self._log, "daily"))
        return consumer.logs[ROOT].position if consumer else 0

    def trigger(self) -> None:
        end, is_committed = self._now(self.head), self._resumes and self._has_asked
        self._has_asked = True
        if is_committed:
            self._publisher.committed({ROOT: self._position})
        # Another source of the query may have rows.
        is_of_other = not self.is_async and self._chosen.random() < 0.2
        if end == self._position:
            self._publisher.asked({ROOT: end})
            self.check()
            if not is_of_other:
                return
        is_stored = not self.is_async or self._is_due()
        if not self.is_async:
            self._offsets[self._number] = end
            if self._number:
                self._publisher.committed({ROOT: self._offsets[self._number - 1]})
        elif is_stored:
            self._pending.append(self._store_offset(self._number, end))
        while self._to_tell:
            self._publisher.committed({ROOT: self._to_tell.pop(0)})
        self.check()
        self._plan(end, is_stored=is_stored)

    def _now(self, head: int) -> int:
        """The end of the next microbatch: a limit may end it before the head."""
        return self._chosen.randint(self._position, head) if head > self._position else head

    def _is_due(self) -> bool:
        now_ms = self._clock.boot_ms()
        is_due = self._written_ms is None or now_ms - self._written_ms >= _BETWEEN_WRITES_MS
        if is_due:
            self._written_ms = now_ms
        return is_due

    def _plan(self, end: int, *, is_stored: bool) -> None:
        if end != self._position:
            self._publisher.planned({ROOT: self._position}, {ROOT: end})
            self._resumes = False
        self.check()
        number = self._number
        if not self.is_async:
            self._commits.add(number)
        elif is_stored:
            self._pending.append(lambda: self._commits.add(number))
        self._position = end
        self._number += 1

    def _store_offset(self, number: int, end: int) -> Callable[[], None]:
        def store() -> None:
            if self._persisted >= 0:
                self._to_tell.append(self._offsets[self._persisted])
            self._offsets[number] = end
            self._persisted = number

        return store

    def pass_time(self, ms: int) -> None:
        """Time passes, and with it writes in the background end, in their order."""
        self._clock.wall_ms += ms
        self._clock.since_boot_ms += ms
        while self._pending and (ms >= INTERVAL_MS or self._chosen.random() < 0.5):
            self._pending.pop(0)()
            self.check()

    def check(self) -> None:
        if self.published > self.restart:
            raise Broken(f"published {self.published}, and a restart begins at {self.restart}")

    def step(self) -> None:
        what = self._chosen.choices(("write", "trigger", "pass", "crash"), (3, 8, 4, 1))[0]
        if what == "write":
            self.head += self._chosen.randint(1, 3)
        elif what == "trigger":
            self.trigger()
        elif what == "pass":
            self.pass_time(self._chosen.choice((10, 500, 1500, INTERVAL_MS)))
        else:
            self._start()
        self.check()

    def read_all(self) -> None:
        """Read up to the head, and then ask for two intervals."""
        while self._position < self.head:
            self.trigger()
        for _ in range(3):
            while True:
                before = self._number
                self.trigger()
                if self._number == before:
                    break
            self.pass_time(INTERVAL_MS)
        self.trigger()


def run(seed: int) -> Run:
    """One random run.

    Raises:
        Broken: a rule does not hold.
    """
    one = Run(seed)
    for _ in range(STEPS):
        one.step()
    return one


def run_many() -> None:
    for seed in range(SEEDS):
        run(seed)
