"""What a process holds of a log beside the chain, and the results of its runs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256

from sparkwal import events
from sparkwal.errors import InvalidLogError, PlanError, SparkWalError
from sparkwal.format.keys import slot
from sparkwal.format.lifecycle_record import (
    Added,
    ChainRecord,
    LogInChain,
    OpenRange,
    Promise,
    TableInChain,
)
from sparkwal.lifecycle.collecting.erasing import Erasure
from sparkwal.lifecycle.policy import LogState, Policy
from sparkwal.lifecycle.table import TableState
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.reading.floor import ends_before
from sparkwal.store.base import Entry, LogStore, Page


@dataclass(frozen=True)
class Range:
    """A range of the log that is in the table: positions start … end−1.

    One without positions wrote refused rows again.

    Attributes:
        k: the range's number.
        table_version: the table's version after it.
        rows, bytes: the rows, and their bytes as stored in the table; None if unknown.
    """

    k: int
    start: int
    end: int
    table_version: int
    rows: int | None = None
    bytes: int | None = None

    @property
    def is_again(self) -> bool:
        """Whether it wrote refused rows again."""
        return self.start == self.end


def rows_aside(promise: Promise, refused: TableState | None) -> int:
    """The number of rows that stepped aside from the open range, as far as it is known."""
    changes = refused.of_range(promise.range_id) if refused else ()
    return sum(change.rows or 0 for change in changes) if promise.is_aside else 0


def added_by(promise: Promise, snapshot: TableState) -> Added:
    """What the open range added, by the newest snapshots of its table and of those beside it."""
    tables = (snapshot, snapshot.tombstones, snapshot.refused)
    changes = [x for table in tables if table for x in table.of_range(promise.range_id)]
    return Added(
        versions=len(changes),
        files=sum(change.files or 0 for change in changes),
        bytes=sum(change.bytes or 0 for change in changes),
    )


def report_done(root: LogStore, promise: Promise, table: TableInChain, aside: int) -> None:
    """Emit an event for each log of a range that is done, and one for rows that stepped aside.

    Args:
        root: the log at the path.
        promise: the range.
        table: its table, as it was published.
        aside: the number of rows that stepped aside.
    """
    assert table.added is not None
    for range_ in promise.ranges:
        path = root.sequencer(range_.sequencer).url
        events.emit(
            events.CompactionDone(
                path,
                table.k,
                range_.to,
                table.target.table,
                table.table_version,
                **vars(table.added),
            )
        )
        if aside:
            events.emit(events.RowsAside(path, table.k, aside, promise.target.refused))


@dataclass(frozen=True)
class ClosedRange:
    """A range that was open, and that a user wanted to give up.

    Attributes:
        k: its number.
        table: the URL of the table to which it was promised.
        parts: its positions of each log.
        is_written: the table holds its rows, so the range is done. Otherwise it was given up.
        table_version: the table's version after it.
    """

    k: int
    table: str
    parts: tuple[OpenRange, ...]
    is_written: bool
    table_version: int


@dataclass(frozen=True)
class Again:
    """Refused rows of a log that were written again.

    Attributes:
        written: the rows that the table took; None if their number is unknown. With keys they are
            one for each key.
        refused: the rows that it still refuses.
    """

    written: int | None
    refused: int


@dataclass(frozen=True)
class Collection:
    """The objects below position `bound` that were deleted, or may be.

    Attributes:
        bound: every position below it may be collected.
        objects, uploads: how many objects and unfinished uploads.
        bytes: the size of the objects.
        records: how many records below `bound` stay: a log keeps its newest 1,000 records, and
            those with a query's checkpoint.
        erased: how many of them lost their rows now, or may lose them.
        with_rows: how many of them may hold rows after that.
        kept: how many more objects the store kept: it compared another ETag than its LIST shows.
        held_by: for people: what keeps objects in the store. It is "the grace", the names of
            consumers and leases that keep `bound` from being higher, or the records that stay with
            their rows, and why; "" if nothing does.
        without_rows: no record below this position holds rows.
        looked: how many records were read for that.
        looked_below: every record below this position was read, now or earlier.
        left: the erasure of these records failed, now or earlier.
    """

    bound: int
    objects: int = 0
    uploads: int = 0
    bytes: int = 0
    records: int = 0
    erased: int = 0
    with_rows: int = 0
    kept: int = 0
    held_by: str = ""
    without_rows: int = 0
    looked: int = 0
    looked_below: int = 0
    left: Erasure = field(default_factory=Erasure)

    @property
    def failure(self) -> str:
        """For people: the part of the work that failed; "" if none did."""
        faults = []
        if self.kept:
            faults.append(
                f"the store kept {self.kept} objects: it compared another ETag than its LIST "
                "shows. Run it again; if they stay, the store does not compare ETags as S3 does"
            )
        if self.left.failure:
            faults.append(f"the rows of a record could not be erased: {self.left.failure}")
        return "; ".join(faults)


@dataclass
class KnownLog:
    """What a process knows of a log beside the chain, from one run to the next.

    Attributes:
        head: its head at the last look; None if nothing is new since the chain noted it at rest.
        newest: its newest object in this run's LIST of the path.
        page: its records in that LIST, until its head is looked up.
        is_listed: that LIST belongs to the next run.
        is_small: that LIST shows all of its records, and many logs were listed.
        is_head_newest: `head` counts while `newest` is the object of its last record. The store
            must list ETags: a recreated log may have the same numbers.
        measured: what the policy decides from.
        collected: the bound of the last collection.
        looked_below: this process has read the records below this position, to erase their rows.
        left: the erasures that failed among them. The next process tries them again.
        looks_again: a collection reads all records, also those in which an earlier one left no
            rows.
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
    is_listed: bool = False
    is_small: bool = False
    is_head_newest: bool = False
    measured: LogState | None = None
    collected: int = 0
    looked_below: int = 0
    left: Erasure = field(default_factory=Erasure)
    looks_again: bool = False
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

    def state(self, record: ChainRecord) -> LogInChain:
        """The log in a record of the chain, or as its first record begins with it."""
        return record.log(self.log.name) or LogInChain(self.log_id)

    def first_unread(self, record: ChainRecord) -> int:
        """The first position whose record a collection must read."""
        return 0 if self.looks_again else max(self.looked_below, self.state(record).without_rows)

    def listed(self, newest: Entry, page: Page | None) -> None:
        """Take what a LIST shows of the log, and forget a head that may be old."""
        is_same = self.newest == newest and self.newest.etag == newest.etag != ""
        # §10: a head counts while the log's newest object is its record
        self.is_head_newest = self.is_head_newest and is_same
        self.newest = newest
        self.page = page
        self.is_listed = True
        self.is_small = page is not None and not page.more

    def begin_run(self, record: ChainRecord) -> None:
        """Find the head of the log, unless it is known, and its state in the chain.

        A log that cannot be read gets its error. A log without an error that does not exist has no
        live head.
        """
        self.found = "no log"
        self.finished = self.compacted = self.collection = None
        self.error = self.floor_error = None
        if not self.is_listed:
            # A LIST of an earlier run shows nothing of this one.
            self.newest = None
            self.page = None
            self.is_head_newest = False
        self.is_listed = False
        state = record.log(self.log.name)
        if state is not None and not self.is_head_newest and self._is_at_rest(state):
            self.head, self.found = None, "at rest"
        else:
            with noted(self):
                self.look(state)
        if state is not None and self.takes_part:
            self.collected = max(self.collected, state.collected)

    @property
    def takes_part(self) -> bool:
        """Whether the log exists, and nothing keeps it from the run."""
        return self.found != "no log" and self.error is None

    def look(self, state: LogInChain | None) -> None:
        """Find the head of the log, unless it is known, and its state in the chain.

        Args:
            state: the log in the newest record of the chain.

        Raises:
            SparkWalError: the log cannot take part in the run.
        """
        self.found = "no log"
        self._find_head()
        head = self.live_head
        if head.live is None:
            if head.torn and state:
                # The chain shows that these records were complete once.
                raise head.torn[0]
            return
        self.found = "no lifecycle"
        if state is not None:
            self.found = "an open range" if state.is_open else "at rest"
            # A log that ends below its floor was restored from an older copy.
            if head.gap < state.floor:
                cut = ends_before(self.log.url, head.gap, state.floor)
                raise PlanError(f"{cut}. Restore lifecycle/ of that copy too")

    def _is_at_rest(self, state: LogInChain) -> bool:
        """Whether the chain shows that nothing of the log is left to bring or to release."""
        return state.is_released and state.at_rest == self._name_of_newest(state) != ""

    def _name_of_newest(self, state: LogInChain) -> str:
        """The log's newest object, as a short text; "" without a LIST that shows its ETag.

        The text counts only for this table and this cut.
        """
        newest = self.newest
        if newest is None or not newest.etag:
            return ""
        # SAFETY(unread-same-object) §10: a head stays unread only while the log's newest object, by
        # its ETag, is the one that the chain noted. A recreated log may have the same numbers
        parts = (newest.key, newest.etag, state.log_id, state.table, str(state.cut))
        return sha256("\n".join(parts).encode()).hexdigest()[:16]

    def with_notes(self, state: LogInChain) -> LogInChain:
        """The log in the chain, with what spares the next process requests."""
        state = replace(state, collected=max(state.collected, min(self.collected, state.floor)))
        if self.head is None or not self.is_head_newest or not state.is_released:
            return state
        gap, seen = self.head.gap, self.measured
        # The records after the cut may be those of leaders.
        has_no_rows = seen is not None and seen.first_ms is None and seen.counted >= gap
        if state.cut >= gap or has_no_rows:
            return replace(state, at_rest=self._name_of_newest(state))
        return state

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


def other_logs(
    record: ChainRecord | None, logs: Iterable[tuple[LogStore, str]]
) -> dict[str, PlanError]:
    """Find the logs whose rows belong into no table of the chain.

    A compaction and a reader of table and log refuse the same ones: the reader shows what the table
    has after the next run.

    Args:
        record: the newest record of the chain of their path.
        logs: the logs of the path that exist, each with its id.

    Returns:
        The errors of the logs that were recreated, or whose rows are those of another name, by
        name.
    """
    errors: dict[str, PlanError] = {}
    states = record.logs if record else {}
    names = {state.log_id: name for name, state in states.items()}
    for log, log_id in logs:
        state = states.get(log.name)
        # SAFETY(chain-of-this-log) §10: a chain applies only to the log whose log_id it carries
        if state is not None and state.log_id != log_id:
            errors[log.name] = PlanError(
                f"the lifecycle under {log.url} belongs to the log {state.log_id}, and the "
                f"log there now is {log_id}: it was deleted and recreated. Delete lifecycle/ "
                "and consumers/ there too, and give the new log a table of its own. If other logs "
                "of the path remain, move the new log to a sequencer with another name instead"
            )
            continue
        first = names.setdefault(log_id, log.name)
        # §10: a log that lies under two names goes into a table under one of them
        if first != log.name:
            errors[log.name] = PlanError(
                f"{log.url} is a copy of sequencer {first}, or was moved from there: "
                f"both are the log {log_id}, and a table would hold its rows twice. "
                f"Delete the copy, or move it back to {first}"
            )
    return errors


@contextmanager
def noted(member: KnownLog) -> Iterator[None]:
    """Do something for a log. Its failure stops no other log."""
    try:
        yield
    except SparkWalError as error:
        member.error = error
