"""One log as its readers see it: the range of a read, the head, and the records that were seen."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.events import RowsInTable, emit
from sparkwal.format import schema
from sparkwal.format.header import CommitHeader
from sparkwal.options.reading import SourceOptions
from sparkwal.options.types import TABLE
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.liveness import last_live
from sparkwal.protocol.missing import check_log
from sparkwal.protocol.records import WIDEST_PROBE, first_at_or_after, newer
from sparkwal.protocol.recovery import Head, find_end
from sparkwal.protocol.segments import with_copies
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord, read_slot
from sparkwal.protocol.view import LENIENT, DamagePolicy, LogView, OnDamage
from sparkwal.reading.floor import KEPT_SLOTS, Floor, Looked, ends_before
from sparkwal.reading.pieces import Piece
from sparkwal.reading.rows import Checks, pieces_of, read_pieces
from sparkwal.reading.segments import read_records
from sparkwal.store.base import LogStore, Page
from sparkwal.store.parallel import run_parallel

# Ranges up to this many positions are planned record by record on the driver.
PLANNED_RECORDS = 512
# The number of pieces that a read fetches first: its caller may stop early.
_AT_ONCE = 4
# Records that `refresh` has read are stored up to this size, headers and rows.
_STORED_BYTES = 8 * 2**20


def damage_policy(options: SourceOptions, report: OnDamage | None = None) -> DamagePolicy:
    """The policy of a read. A read that stops at damage reports none."""
    stops = options.on_corruption == "stop"
    has_end = options.ending_position is not None
    return DamagePolicy(not options.fail_on_data_loss, stops, has_end, None if stops else report)


class LogRange:
    """One sequencer's log. It stores the last head that it has seen.

    Args:
        options: the options of the read.
        name: the sequencer's name.
        root: the log at the path; the log itself without the option `sequencers`.
        clock: the clock.
        on_damage: gets each damaged or missing record, and the read continues after it.
        pinned: the planner's look, for a read that was planned before. If the log is another one, a
            look raises InvalidLogError.
    """

    def __init__(
        self,
        options: SourceOptions,
        name: str,
        root: LogStore,
        clock: Clock = SYSTEM,
        on_damage: OnDamage | None = None,
        pinned: Looked | None = None,
    ) -> None:
        self.options = options
        self.name = name
        self.damage = damage_policy(options, on_damage)
        several = options.sequencers is not None
        self.log = with_copies(root.sequencer(name) if several else root)
        self._pinned = pinned
        self.floor = Floor(self.log, clock=clock, looked=pinned)
        self._path = f"{options.path}, sequencer {name}" if several else options.log_path
        self.head: Head | None = None
        self.gap = 0
        # The log's first LIST, if it was made for several logs together; the next look takes it.
        self.page: Page | None = None
        # The records that `refresh` has read, until their microbatch is planned.
        self._records: dict[int, SlotRecord] = {}
        # By position: the term of the last live record before it.
        self._terms: dict[int, int] = {}
        self._stored_bytes = 0
        self._mentioned_table = False

    @property
    def window(self) -> int:
        assert self.head is not None
        return self.head.window

    @property
    def live(self) -> SlotRecord | None:
        """The last live record at the last head, or None without a log."""
        return self.head.live if self.head else None

    @property
    def log_id(self) -> str | None:
        return self.live.header.log_id if self.live else None

    @property
    def spark_schema(self) -> str | None:
        return self.live.spark_schema if self.live else None

    @property
    def view(self) -> LogView:
        """What this read reads, with the last head that it has seen."""
        newest = self.live if self.damage.trusts_head else None
        return LogView(self.log, self.window, self.log_id, newest, self.damage)

    def records(
        self, start: int, end: int, *, at_once: int = WIDEST_PROBE, size: int = GLANCE
    ) -> Iterator[SlotRecord]:
        """Read the live records of positions start … end−1, as `live_records`.

        Raises:
            CollectedError: the floor passed a position before its record was delivered.
            InvalidLogError: a record is damaged or missing.
        """
        term = self._terms.get(start)
        live = read_records(
            self.view, start, end, term=term, cached=self._records, size=size, at_once=at_once
        )
        last = start - 1
        for record in self.floor.usable(start, end, live):
            term, last = record.header.term, record.header.position
            yield record
        # A stream continues here. With the term it needs no look-back (m − 1 GETs) for the next
        # trigger. After a torn record at the end it must look back.
        if term is not None and last == end - 1:
            self._terms[end] = term

    def rows(self, pieces: Iterable[Piece], target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows of pieces of this log with `target`'s columns.

        Raises:
            CollectedError: the floor passed a position before its rows were delivered.
            InvalidLogError: an object is damaged or missing.
        """
        return read_pieces(
            self.log,
            pieces,
            target,
            checks=Checks(self.options.verify_checksums, self.options.verify_texts),
            at_once=_AT_ONCE,
            check=self.floor.check,
            on_damage=self.damage.report,
        )

    def scan(self, start: int, end: int, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows of positions start … end−1 in the log's order, as the caller consumes them.

        Raises:
            CollectedError: the floor passed a position before its rows were delivered.
            InvalidLogError: a record or an object is damaged or missing.
        """
        records = self.records(start, end, at_once=1, size=WHOLE)
        pieces = (piece for record in records for piece in pieces_of(self.log, record))
        return self.rows(pieces, target)

    def refresh(self, *, floor: bool = True) -> int:
        """Find the first gap: 1 LIST and 1 GET at first, then 1 GET if no record is new.

        With `floor`, and if the last look at the floor is old, it also looks at the floor before
        that is needed: 1 LIST, and 1 GET if the log has a lifecycle.

        Raises:
            InvalidLogError: the log is damaged, was cut, deleted or recreated.
        """
        if self.live is None:
            return self._find(floor=floor)
        begin = self.gap
        failed = None
        is_floor_old = not self.floor.is_known
        try:
            for record in newer(self.view, self.gap):
                self.remember(record)
                self.gap = record.header.position + 1
        except InvalidLogError as error:
            failed = error
        if self.gap > begin:
            # A block that had no segment may have one now.
            self.log = with_copies(self.log)
        # A collected slot, or one whose record was lost, stays empty or holds a stray record.
        is_passed = failed is not None and self.damage.continues_after(failed)
        is_collected = floor and (
            self.floor.current() > begin or (is_floor_old and self.gap == begin)
        )
        if is_passed or is_collected:
            return self._find(floor=floor)
        # A read that stops at damage still reads the records before it.
        if failed is not None and not self.damage.ends_before(failed):
            raise failed
        return self.gap

    def see(self, head: Head) -> None:
        """Take the head that the caller has read. It saves the requests of `refresh`."""
        self.head = head
        self.gap = head.gap
        self.floor.log_id = self.log_id

    def _find(self, *, floor: bool) -> int:
        self._records = {}
        self._terms = {}
        self._stored_bytes = 0
        steps: list[Callable[[], None]] = [self._find_head]
        # Look at the floor at the same time if the log probably exists. A caller that waits for a
        # log looks at the head alone.
        if floor and self.head is None and not self.floor.is_known:
            steps.append(self.floor.refresh)
        list(run_parallel(self.log.store, lambda step: step(), steps))
        if floor and self.floor.current() > self.gap:
            self.check_not_cut()
        if self.live is not None:
            self.remember(self.live)
        return self.gap

    def begin_at(self, other: "LogRange") -> None:
        """Take the head of another range of this log instead of looking."""
        self.head, self.gap = other.head, other.gap
        self.floor.log_id = other.log_id
        if self.live is not None:
            self.remember(self.live)

    def check_not_cut(self) -> None:
        """Read the head again: a head below the floor may be old.

        Raises:
            InvalidLogError: the head is still below the floor.
        """
        self._find_head()
        if self.floor.current() > self.gap:
            raise ends_before(self._path, self.gap, self.floor.current())

    def _find_head(self) -> None:
        before = self.log_id
        # A caller that waits for a log looks often, so prove only once that there is none.
        proven = self.head is None or self.head.live is not None
        page, self.page = self.page, None
        self.head, self.gap = find_end(self.log, self.damage, proven=proven, page=page)
        if before is not None and self.live is not None:
            check_log(self.log, self.live, before)
        if self._pinned is not None and self._pinned.log_id != self.log_id:
            raise InvalidLogError(
                f"the log {self._pinned.log_id} at {self._path} was deleted or recreated since "
                "this read was planned: plan it again"
            )
        self.floor.log_id = self.log_id

    def remember(self, record: SlotRecord) -> None:
        """Store a record until its microbatch is planned, if there is room."""
        # Inlined rows would travel in the task. Many rows are better fetched by the task.
        is_small = record.size - record.body <= GLANCE
        record = replace(record, front=record.front[: record.size] if is_small else b"")
        size = max(record.body, len(record.front))
        # Store the oldest records: they are planned first. The others are read again.
        if self._stored_bytes + size <= _STORED_BYTES and len(self._records) <= PLANNED_RECORDS:
            self._records[record.header.position] = record
            self._stored_bytes += size

    def forget(self, below: int) -> None:
        """Delete the stored records of planned microbatches."""
        self._records = {p: r for p, r in self._records.items() if p >= below}
        self._terms = {p: term for p, term in self._terms.items() if p >= below}
        self._stored_bytes = sum(max(r.body, len(r.front)) for r in self._records.values())

    def start(self, *, from_floor: bool = False) -> int:
        """The first position to read, from the options.

        Args:
            from_floor: a startingTimestamp below the floor means the floor.

        Raises:
            CollectedError: rows that the options ask for were collected.
            OptionError: the options ask for the rows of a table.
        """
        options = self.options
        if options.starting_position == TABLE:
            raise OptionError(
                "startingPosition=table is for spark.readStream; read_current and Log.current read "
                "table and log as one"
            )
        if options.starting_timestamp_ms is not None:
            return self._start_at(options.starting_timestamp_ms, from_floor=from_floor)
        if options.starting_position in (None, "earliest"):
            self._mention_table()
            return self.floor.current()
        if options.starting_position == "latest":
            return self.gap
        return self.checked(int(options.starting_position or 0), "startingPosition")

    def _mention_table(self) -> None:
        """Emit an event once if the first rows of the log are in a table only."""
        floor = self.floor.current()
        if table := self.table_below_floor():
            if not self._mentioned_table:
                emit(RowsInTable(self.log.url, floor, table))
            self._mentioned_table = True

    def table_below_floor(self) -> str | None:
        """The table that alone holds the rows below the floor, from this process's last look."""
        state = self.floor.state
        is_above = self.floor.current() > 0
        return state.table if is_above and state and state.table else None

    def first_of_new(self, what: str) -> int:
        """The first position of a log that is new to a reader of other logs.

        It is 0, or the floor with startingPosition=earliest.

        Raises:
            CollectedError: rows were collected before the reader saw the log.
        """
        if self.options.starting_position == "earliest":
            return self.floor.current()
        # SAFETY(new-log-from-0) §9: a log that is new to a reader is read from position 0
        return self.usable(0, what)

    def checked(self, start: int, what: str) -> int:
        """Check a first position to read, and return it; see `usable`.

        Args:
            start: the position. A reader that has read all is at the next position.
            what: the origin of the position, for errors.

        Raises:
            OptionError: the position is beyond the next position.
            CollectedError: it is below the floor.
        """
        if start < 0:
            raise OptionError(f"{what} {start} is no position: the first one is 0")
        if start > self.gap:
            raise self._after_the_end(what, start)
        return self.usable(start, what)

    def _after_the_end(self, what: str, position: int) -> OptionError:
        return OptionError(
            f"{what} {position} is after the end of the log: its last position is "
            f"{self.gap - 1}, the next position is {self.gap}"
            if self.gap
            else f"{what} is {position}, and there is no log at {self.log.url}; check the path"
        )

    def usable(self, start: int, what: str) -> int:
        """Check a first position to read against the floor.

        Args:
            start: the position.
            what: the origin of the position, for errors.

        Returns:
            The position; with failOnDataLoss=false at least the floor.

        Raises:
            CollectedError: the position is below the floor.
        """
        if self.damage.skips_lost:
            return max(start, self.floor.current())
        self.floor.check(start, what)
        return start

    def until(self, last: int, what: str) -> int:
        """The position after the last to read. Its origin is `what`.

        Raises:
            CollectedError: the last position is below the floor.
        """
        if not self.damage.skips_lost:
            self.floor.check(last, what)
        return min(last + 1, self.gap)

    def end(self, *, from_floor: bool = False) -> int:
        """The position after the last to read, from the options.

        Args:
            from_floor: an endingTimestamp below the floor means the floor.

        Raises:
            CollectedError: rows that the options ask for were collected.
        """
        options = self.options
        if options.ending_timestamp_ms is not None:
            return self._end_at(options.ending_timestamp_ms, from_floor=from_floor)
        if options.ending_position is None:
            return self.gap
        if options.ending_position >= self.gap and not self.damage.skips_lost:
            raise self._after_the_end("endingPosition", options.ending_position)
        return self.until(options.ending_position, "endingPosition")

    def _start_at(self, timestamp_ms: int, *, from_floor: bool) -> int:
        start = self.at(timestamp_ms)
        floor = self.floor.current()
        # If the first position is above the floor, all collected rows are older.
        if start <= floor and not from_floor and self._last_since(timestamp_ms, floor):
            return self.usable(floor - 1, "startingTimestamp")
        return start

    def _last_since(self, timestamp_ms: int, floor: int) -> bool:
        """Whether rows below the floor may be of this time or later."""
        position = floor - 1
        assert self.head is not None
        view = self.head.view(self.log, LENIENT)
        # No collection deletes these records.
        while position >= max(floor - KEPT_SLOTS, 0):
            record = read_slot(self.log, position, self.window, GLANCE, tolerant=True)
            if record is None:
                return True
            live = last_live(view, record)
            if live.header.timestamp_ms < timestamp_ms:
                return False
            if isinstance(live.header, CommitHeader) and live.header.rows:
                return True
            position = live.header.position - 1
        return position >= 0

    def _end_at(self, timestamp_ms: int, *, from_floor: bool) -> int:
        options = self.options
        end = self.at(timestamp_ms + 1)
        floor = self.floor.current()
        begins_at_floor = options.starting_timestamp_ms is None and (
            options.starting_position in (None, "earliest")
        )
        if begins_at_floor and end <= floor and not from_floor:
            self.check_reached(timestamp_ms, "endingTimestamp")
        return end

    def check_reached(self, timestamp_ms: int, what: str) -> None:
        """Check that the log still holds a record of a time, unless `failOnDataLoss` is false.

        Raises:
            CollectedError: all records up to that time were collected.
        """
        floor = self.floor.current()
        if self._began_by(timestamp_ms, floor):
            self.usable(floor - 1, what)

    def _began_by(self, timestamp_ms: int, floor: int) -> bool:
        """Whether the log may have begun by this time, before its floor."""
        if floor > KEPT_SLOTS:
            return True
        first = read_slot(self.log, 0, self.window, GLANCE, tolerant=True) if floor else None
        return floor > 0 and (first is None or first.header.timestamp_ms <= timestamp_ms)

    def at(self, timestamp_ms: int) -> int:
        """The first position that is not older than a time, or the gap; see `first_at_or_after`."""
        assert self.head is not None
        view = self.head.view(self.log, self.damage)
        start = self.floor.current()
        return first_at_or_after(view, timestamp_ms, start=start, end=self.head.gap)

    def intact_end(self, start: int, end: int) -> int:
        """With onCorruption=stop the position of the first damage from `start` on, or `end` without
        damage.

        It reads all rows then, because a replay may deliver only intact rows. With other options it
        returns `end` at once.
        """
        if not self.damage.stops:
            return end
        position = start
        try:
            for record in self.records(start, end):
                position = record.header.position
                target = schema.to_arrow(record.spark_schema)
                for _ in self.rows(pieces_of(self.log, record), target):
                    pass
                position += 1
        except InvalidLogError as error:
            # Without an intact record before `start`, later records may be dead or live.
            is_before = error.position is not None and error.position < start
            if is_before or not self.damage.ends_before(error):
                raise
            return position
        return end
