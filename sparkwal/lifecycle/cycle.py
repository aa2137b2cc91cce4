"""What a run over the logs of a path holds: their states, and the result for each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sparkwal import events
from sparkwal.errors import InvalidLogError, PlanError, SparkWalError
from sparkwal.format.keys import ROOT
from sparkwal.format.lifecycle_record import ChainRecord, LifecycleRecord, Target
from sparkwal.lifecycle.collection import Collected, Collection
from sparkwal.lifecycle.compaction import Range
from sparkwal.lifecycle.erasing import Erasure
from sparkwal.lifecycle.policy import LogState, Policy
from sparkwal.lifecycle.table import check_same_target
from sparkwal.protocol.chain import beginning
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.reading.floor import ends_before
from sparkwal.store.base import Entry, LogStore, Page


@dataclass(frozen=True)
class Run:
    """The result of one run for one log.

    Attributes:
        found: the state before the run: "no log", "no lifecycle", "at rest" or "an open range",
            which another run began and did not publish. A log of the chain that was deleted, or
            moved away, is "no log" too.
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
        floor_error: why its floor stays: a damaged consumer.
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
    floor_error: SparkWalError | None = None

    def collected(
        self, collection: Collection | InvalidLogError | None, known: "Remembered | None"
    ) -> None:
        """Take the result of a collection, and note in `known` what it deleted."""
        if isinstance(collection, InvalidLogError):
            self.floor_error = collection
            return
        self.collection = collection
        if collection is not None and known is not None:
            # What the store kept is tried again.
            known.collected = 0 if collection.kept else collection.bound
            known.looked_below = collection.looked_below
            known.left = collection.left

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
        page: its records in that LIST, until its head is looked up.
        is_small: that LIST shows all of its records, and many logs were listed.
        collected: the bound of the last collection.
        looked_below: this process has read the records below this position, to erase their rows.
        left: the erasures that failed among them. The next process tries them again.
        reached: the size limit that the log has reached, for which an event was emitted.
    """

    head: Head | None = None
    newest: Entry | None = None
    page: Page | None = None
    is_small: bool = False
    measured: LogState | None = None
    collected: int = 0
    looked_below: int = 0
    left: Erasure = field(default_factory=Erasure)
    reached: str = ""

    def listed(self, newest: Entry, page: Page | None) -> None:
        """Take what a LIST shows of the log, and forget a head that may be old."""
        is_same = self.newest == newest and self.newest.etag == newest.etag != ""
        # §10: a head counts while the log's newest object is its record
        if not is_same:
            self.head = None
        self.newest, self.page = newest, page
        self.is_small = page is not None and not page.more

    def head_of(self, log: LogStore) -> Head:
        """The head of the log: the one that is known, or that of a look.

        Raises:
            InvalidLogError: a record is damaged, or was written and is missing.
        """
        page, self.page = self.page, None
        return self.head or find_head(log, page=page)


@dataclass
class Cycle:
    """A run over some logs.

    Attributes:
        record: the newest record of the chain.
        parts: the logs that exist, by name.
        runs: the results of the others.
        has_written: a range went into the table, or was finished.
        begun: the newest record of the chain at the beginning.
    """

    record: ChainRecord | None
    parts: dict[str, Part] = field(default_factory=dict)
    runs: dict[str, Run | SparkWalError] = field(default_factory=dict)
    has_written: bool = False
    begun: ChainRecord | None = field(init=False)

    def __post_init__(self) -> None:
        self.begun = self.record

    @property
    def results(self) -> dict[str, Run | SparkWalError]:
        """The result of each log by name, also of logs that the chain has and that vanished."""
        logs = self.record.logs if self.record else {}
        results: dict[str, Run | SparkWalError] = {
            name: Run("no log", log.cut, log.floor) for name, log in logs.items()
        }
        results |= self.runs
        for name, part in self.parts.items():
            results[name] = part.error or part.floor_error or part.run
        return dict(sorted(results.items(), key=lambda item: (item[0] != ROOT, item[0])))

    @property
    def sound(self) -> list[Part]:
        """The logs that still take part."""
        return [part for part in self.parts.values() if part.error is None]

    @property
    def collections(self) -> dict[str, Collection | SparkWalError | None]:
        """The collection of each log by name, its error, or None without a lifecycle."""
        failed = {
            name: run if isinstance(run, SparkWalError) else None for name, run in self.runs.items()
        }
        return failed | {
            name: part.error or part.floor_error or part.collection
            for name, part in self.parts.items()
        }

    def in_chain(self, known: Mapping[str, Remembered], *, looks_again: bool) -> list[Collected]:
        """The logs that the chain has, for a collection that takes all that it may."""
        return [
            Collected(
                part.log,
                part.head,
                part.state,
                is_small=known[part.log.name].is_small,
                looks_again=looks_again,
            )
            for part in self.sound
            if part.found != "no lifecycle"
        ]

    def refuse_copies(self) -> None:
        """Give each log an error whose rows are those of another name: a table takes them once.

        The name that the chain has counts, or else the first one.
        """
        logs = self.record.logs if self.record else {}
        names = {log.log_id: name for name, log in logs.items()}
        for name, part in self.parts.items():
            first = names.setdefault(part.state.log_id, name)
            # §10: a log that lies under two names goes into a table under one of them
            if first != name and part.error is None:
                part.error = PlanError(
                    f"{part.log.url} is a copy of sequencer {first}, or was moved from there: both "
                    f"are the log {part.state.log_id}, and a table would hold its rows twice. "
                    f"Delete the copy, or move it back to {first}"
                )

    def uncollected(self, known: Mapping[str, Remembered]) -> Iterator[Collected]:
        """The logs of which a collection may take something. `known` has what one took before."""
        for part in self.sound:
            before = known[part.log.name]
            log = Collected(
                part.log,
                part.head,
                part.state,
                before.collected,
                before.looked_below,
                before.left,
                before.is_small,
            )
            if part.floor_error is None and part.state.floor > min(log.above, log.first):
                yield log

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


def report_limit(part: Part, known: Remembered, policy: Policy, limit: str) -> None:
    """Emit an event when a log reaches a size limit, once until it falls below."""
    if limit not in ("", known.reached) and part.measured is not None:
        is_hard = limit == "hardLimitBytes"
        most = policy.hard_limit if is_hard else policy.soft_limit
        waiting = part.measured.waiting_bytes
        events.emit(events.SizeLimit(part.log.url, limit, waiting, most or 0))
    known.reached = limit


def states_of(cycle: Cycle, target: Target | None) -> list[LifecycleRecord]:
    """The states of the logs, and of a log of the same table: the logs may be new to it.

    Raises:
        PlanError: another log of the path fills the table in another way.
    """
    states = [part.state for part in cycle.sound]
    if target is not None and states and cycle.record is not None:
        other = part_with_table(cycle.record, target.table)
        if other is not None and other.target is not None:
            check_same_target(target, other.target)
            states.append(other)
    return states


def check_chain(log: LogStore, gap: int, log_id: str, state: LifecycleRecord) -> None:
    """Check that a lifecycle belongs to the log at its path.

    Args:
        log: the log.
        gap: its first gap, read after `state`.
        log_id: its id.
        state: the newest record of the lifecycle.

    Raises:
        PlanError: the log was recreated, or restored from an older copy.
    """
    # SAFETY(chain-of-this-log) §10: a chain applies only to the log whose log_id it carries
    if state.log_id != log_id:
        raise PlanError(
            f"the lifecycle under {log.url} belongs to the log {state.log_id}, and the log there "
            f"now is {log_id}: it was deleted and recreated. Delete lifecycle/ and consumers/ "
            "there too, and give the new log a table of its own. If other logs of the path remain, "
            "move the new log to a sequencer with another name instead"
        )
    # A log that ends below its floor was restored from an older copy.
    if gap < state.floor:
        cut = ends_before(log.url, gap, state.floor)
        raise PlanError(f"{cut}. Restore lifecycle/ of that copy too")
