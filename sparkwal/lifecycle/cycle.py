"""What a run over the logs of a path holds: their states, and the result for each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle_record import ChainRecord, LifecycleRecord
from sparkwal.lifecycle.collection import Collection
from sparkwal.lifecycle.compaction import Range
from sparkwal.lifecycle.policy import LogState
from sparkwal.protocol.chain import beginning
from sparkwal.protocol.recovery import Head
from sparkwal.store.base import Entry, LogStore


@dataclass(frozen=True)
class Run:
    """The result of one run for one log.

    Attributes:
        found: the state before the run: "no log", "no lifecycle", "at rest" or "an open range",
            which another run began and did not publish.
        cut: the table holds all rows below this position.
        floor: the log may lose all objects below this position.
        finished: the range that was open, and that this run finished.
        compacted: the range that was due, and that this run wrote.
        collection: the deleted objects, or None if collection did not run.
        segments: the number of segments that this run made.
    """

    found: str
    cut: int = 0
    floor: int = 0
    finished: Range | None = None
    compacted: Range | None = None
    collection: Collection | None = None
    segments: int = 0


@dataclass
class Part:
    """One log during a cycle.

    Attributes:
        state: its part of the newest record. Without one, what its first record derives from.
        measured: what the policy decides from.
        error: why the log takes no further part.
    """

    log: LogStore
    head: Head
    state: LifecycleRecord
    found: str = "no lifecycle"
    finished: Range | None = None
    compacted: Range | None = None
    collection: Collection | None = None
    measured: LogState | None = None
    error: SparkWalError | None = None

    @property
    def run(self) -> Run:
        """The result for the log."""
        cut, floor = self.state.cut, self.state.floor
        return Run(self.found, cut, floor, self.finished, self.compacted, self.collection)


@dataclass
class Remembered:
    """What this process remembers of a log from one cycle to the next.

    Attributes:
        head: its head, while `newest` is the object of its last record. The store must list ETags:
            a recreated log may have the same numbers.
        newest: its newest object in the last LIST.
        collected: the bound of the last collection.
        is_bad: its rows could not be read, and a range of several logs was given up for it.
        reached: the size limit that the log has reached, for which an event was emitted.
    """

    head: Head | None = None
    newest: Entry | None = None
    measured: LogState | None = None
    collected: int = 0
    reached: str = ""
    is_bad: bool = False


@dataclass
class Cycle:
    """A run over some logs.

    Attributes:
        record: the newest record of the chain.
        parts: the logs that exist, by name.
        runs: the results of the others.
        has_written: a range went into the table, or was finished.
    """

    record: ChainRecord | None
    parts: dict[str, Part] = field(default_factory=dict)
    runs: dict[str, Run | SparkWalError] = field(default_factory=dict)
    has_written: bool = False

    @property
    def sound(self) -> list[Part]:
        """The logs that still take part."""
        return [part for part in self.parts.values() if part.error is None]

    def moved(self, record: ChainRecord | None) -> None:
        """Take the state of each log from a new record."""
        assert record is not None
        self.record = record
        for part in self.parts.values():
            name, before = part.log.name, part.state
            part.state = record.of(name) or beginning(
                before.log_id, name, before.gc_grace_ms, record
            )


@contextmanager
def noted(part: Part, *, several: bool) -> Iterator[None]:
    """Do something for a log. If it is one of several, its failure stops no other.

    Raises:
        SparkWalError: the only log failed.
    """
    try:
        yield
    except SparkWalError as error:
        if not several:
            raise
        part.error = error


def part_with_table(record: ChainRecord, table: str) -> LifecycleRecord | None:
    """The part of any log that has this table, or None if none has it."""
    names = (name for name, log in record.logs.items() if log.table == table)
    return next((record.of(name) for name in sorted(names)), None)
