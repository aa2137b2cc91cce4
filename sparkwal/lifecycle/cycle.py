"""What a run over the logs of a path holds: the newest record, and what is known of each log."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sparkwal import events
from sparkwal.errors import InvalidLogError, PlanError, SparkWalError
from sparkwal.format.keys import ROOT, slot
from sparkwal.format.lifecycle_record import ChainRecord, LogInChain
from sparkwal.lifecycle.collecting.collection import Collection
from sparkwal.lifecycle.collecting.erasing import Erasure
from sparkwal.lifecycle.compaction import Range
from sparkwal.lifecycle.policy import LogState, Policy
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
class KnownLog:
    """What a process knows of a log beside the chain, from one run to the next.

    Attributes:
        head: its head at the last look.
        newest: its newest object in the last LIST of the path.
        page: its records in that LIST, until its head is looked up.
        is_small: that LIST shows all of its records, and many logs were listed.
        is_head_newest: `head` counts while `newest` is the object of its last record. The store
            must list ETags: a recreated log may have the same numbers.
        measured: what the policy decides from.
        collected: the bound of the last collection.
        looked_below: this process has read the records below this position, to erase their rows.
        left: the erasures that failed among them. The next process tries them again.
        reached: the size limit that the log has reached, for which an event was emitted.
        found: the state before this run, as in `Run`.
        finished, compacted, collection: as in `Run`.
        error: why the log takes no further part in this run.
        floor_error: why its floor stays: a damaged consumer.
    """

    log: LogStore
    head: Head | None = None
    newest: Entry | None = None
    page: Page | None = None
    is_small: bool = False
    is_head_newest: bool = False
    measured: LogState | None = None
    collected: int = 0
    looked_below: int = 0
    left: Erasure = field(default_factory=Erasure)
    reached: str = ""
    found: str = "no log"
    finished: Range | None = None
    compacted: Range | None = None
    collection: Collection | None = None
    error: SparkWalError | None = None
    floor_error: SparkWalError | None = None

    @property
    def live_head(self) -> Head:
        """The head of a log that takes part in the run."""
        assert self.head is not None
        return self.head

    @property
    def log_id(self) -> str:
        """The id of a log that takes part in the run."""
        assert self.head is not None and self.head.live is not None
        return self.head.live.header.log_id

    @property
    def schema(self) -> str:
        """The columns of a log that takes part in the run."""
        assert self.head is not None and self.head.live is not None
        return self.head.live.spark_schema

    def listed(self, newest: Entry, page: Page | None) -> None:
        """Take what a LIST shows of the log, and forget a head that may be old."""
        is_same = self.newest == newest and self.newest.etag == newest.etag != ""
        # §10: a head counts while the log's newest object is its record
        self.is_head_newest = self.is_head_newest and is_same
        self.newest, self.page = newest, page
        self.is_small = page is not None and not page.more

    def begin_run(self, record: ChainRecord) -> None:
        """Find the head of the log, unless it is known, and compare the log with the chain.

        A log that cannot take part in the run gets its error. A log without an error that does not
        exist has no live head.
        """
        self.found = "no log"
        self.finished = self.compacted = self.collection = None
        self.error = self.floor_error = None
        try:
            self._find_head()
        except SparkWalError as error:
            self.error = error
            return
        head = self.live_head
        state = record.log(self.log.name)
        if head.live is None:
            # The chain shows that these records were complete once.
            self.error = head.torn[0] if head.torn and state else None
            return
        self.found = "no lifecycle"
        if state is not None:
            self.found = "an open range" if state.is_open else "at rest"
            try:
                check_chain(self.log, head.gap, self.log_id, state)
            except SparkWalError as error:
                self.error = error

    def _find_head(self) -> None:
        page, self.page = self.page, None
        if self.head is None or not self.is_head_newest:
            self.head = None
            self.head = find_head(self.log, page=page)
        head = self.head
        self.is_head_newest = False
        if head.live is None:
            return
        # Any new record of a log without gaps is its newest object.
        last = self.log.key(slot(head.position, head.window))
        is_newest = self.newest is not None and self.newest.key == last
        self.is_head_newest = is_newest and not head.torn and head.free == head.gap

    def take(self, collection: Collection | InvalidLogError | None, *, dry_run: bool) -> None:
        """Take the result of a collection, and note what it deleted."""
        if isinstance(collection, InvalidLogError):
            self.floor_error = collection
            return
        self.collection = collection
        if collection is not None and not dry_run:
            # What the store kept is tried again.
            self.collected = 0 if collection.kept else collection.bound
            self.looked_below = collection.looked_below
            self.left = collection.left

    def report_limit(self, policy: Policy, limit: str) -> None:
        """Emit an event when the log reaches a size limit, once until it falls below."""
        if limit not in ("", self.reached) and self.measured is not None:
            is_hard = limit == "hardLimitBytes"
            most = policy.hard_limit if is_hard else policy.soft_limit
            waiting = self.measured.waiting_bytes
            events.emit(events.SizeLimit(self.log.url, limit, waiting, most or 0))
        self.reached = limit


@dataclass
class Cycle:
    """A run over some logs.

    Attributes:
        begun: the newest record of the chain at the beginning.
        logs: the logs, by name.
        record: the newest record of the chain.
        errors: of other logs, whose open ranges this run could not finish.
        has_written: a range went into the table, or was finished.
    """

    begun: ChainRecord
    logs: dict[str, KnownLog]
    record: ChainRecord = field(init=False)
    errors: dict[str, SparkWalError] = field(default_factory=dict)
    has_written: bool = False

    def __post_init__(self) -> None:
        self.record = self.begun

    @property
    def present(self) -> list[KnownLog]:
        """The logs that exist, and whose heads could be read."""
        return [log for log in self.logs.values() if log.found != "no log"]

    @property
    def sound(self) -> list[KnownLog]:
        """The logs that still take part."""
        return [log for log in self.present if log.error is None]

    def state(self, member: KnownLog) -> LogInChain:
        """The state of a log in the newest record, or the one that its first record begins with."""
        return self.record.log(member.log.name) or LogInChain(member.log_id)

    @property
    def results(self) -> dict[str, Run | SparkWalError]:
        """The result of each log by name, also of logs that the chain has and that vanished."""
        results: dict[str, Run | SparkWalError] = {
            name: Run("no log", log.cut, log.floor) for name, log in self.record.logs.items()
        }
        results |= self.errors
        for name, log in self.logs.items():
            results[name] = log.error or log.floor_error or self._run(log)
        return dict(sorted(results.items(), key=lambda item: (item[0] != ROOT, item[0])))

    def _run(self, log: KnownLog) -> Run:
        if log.found == "no log":
            return Run("no log")
        state = self.state(log)
        return Run(log.found, state.cut, state.floor, log.finished, log.compacted, log.collection)

    @property
    def collections(self) -> dict[str, Collection | SparkWalError | None]:
        """The collection of each log by name, its error, or None without a lifecycle."""
        return {
            name: log.error or log.floor_error or log.collection for name, log in self.logs.items()
        }

    def refuse_copies(self) -> None:
        """Give each log an error whose rows are those of another name: a table takes them once.

        The name that the chain has counts, or else the first one.
        """
        names = {log.log_id: name for name, log in self.record.logs.items()}
        for member in self.present:
            name = member.log.name
            log_id = self.state(member).log_id
            first = names.setdefault(log_id, name)
            # §10: a log that lies under two names goes into a table under one of them
            if first != name and member.error is None:
                member.error = PlanError(
                    f"{member.log.url} is a copy of sequencer {first}, or was moved from there: "
                    f"both are the log {log_id}, and a table would hold its rows twice. "
                    f"Delete the copy, or move it back to {first}"
                )


@contextmanager
def noted(member: KnownLog) -> Iterator[None]:
    """Do something for a log. Its failure stops no other log."""
    try:
        yield
    except SparkWalError as error:
        member.error = error


def check_chain(log: LogStore, gap: int, log_id: str, state: LogInChain) -> None:
    """Check that a lifecycle belongs to the log at its path.

    Args:
        log: the log.
        gap: its first gap, read after `state`.
        log_id: its id.
        state: the log in the newest record of the chain.

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
