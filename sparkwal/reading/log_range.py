"""One log as every reader sees it: where a read begins and ends, and how far it has come."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count

import pyarrow as pa

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.events import RowsInTable, emit
from sparkwal.format import schema
from sparkwal.format.header import CommitHeader
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.recovery import Head, MissingRecord, find_head, last_live
from sparkwal.protocol.replay import (
    WIDEST_PROBE,
    AnotherLog,
    check_log,
    first_at_or_after,
    live_records,
    newer,
)
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord, read_slot
from sparkwal.reading.floor import KEPT_SLOTS, Floor, Looked, ends_before
from sparkwal.reading.rows import PassedOver, Piece, pieces_of, read_pieces
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

# Up to this many positions are planned record by record on the driver.
PLANNED_RECORDS = 512
# Pieces that are fetched at once for a reader who has not shown yet that it reads on.
_AT_ONCE = 4
# Records seen while looking for the head are kept up to this size, headers and rows.
_KEPT_BYTES = 8 * 2**20


class LogRange:
    """One sequencer's log; it remembers the head that it has seen.

    Args:
        root: the log at the path; the log itself unless the option is `*`.
        passed_over: gets each record that is damaged or missing; then no damage ends a read.
        pinned: of a read that was planned before; a look raises InvalidLogError for another log.
    """

    def __init__(
        self,
        options: SourceOptions,
        name: str,
        root: LogStore,
        clock: Clock = SYSTEM,
        passed_over: PassedOver | None = None,
        pinned: Looked | None = None,
    ) -> None:
        self.options, self.name = options, name
        self.passed_over = None if options.on_corruption == "stop" else passed_over
        several = options.sequencers is not None
        self.log = root.sequencer(name) if several else root
        self._pinned = pinned
        self.floor = Floor(self.log, clock=clock, looked=pinned)
        self._path = f"{options.path}, sequencer {name}" if several else options.log_path
        self.head: Head | None = None
        self.gap = 0
        # Records seen while looking for the head, until their microbatch is planned.
        self._known: dict[int, SlotRecord] = {}
        # Position → the term of the last live record before it.
        self._terms: dict[int, int] = {}
        self._kept = 0
        self._mentioned_table = False

    @property
    def window(self) -> int:
        assert self.head is not None
        return self.head.window

    @property
    def live(self) -> SlotRecord | None:
        """The last live record at the head that was seen, if there was a log."""
        return self.head.live if self.head else None

    @property
    def log_id(self) -> str | None:
        return self.live.header.log_id if self.live else None

    @property
    def spark_schema(self) -> str | None:
        return self.live.spark_schema if self.live else None

    def records(
        self, start: int, end: int, *, at_once: int = WIDEST_PROBE, size: int = GLANCE
    ) -> Iterator[SlotRecord]:
        """The live records of start … end−1, as `live_records`. Raises CollectedError where the
        floor is above `start`, or comes above what is not delivered yet."""
        term = self._terms.get(start)
        # Who steps back from a damaged end has a head of which less is sure.
        head = self.head if self.options.tolerant or not self._steps_back else None
        found = live_records(
            self.log,
            self.window,
            start,
            end,
            log_id=self.log_id,
            term=term,
            head=head,
            tolerant=self.options.tolerant,
            known=self._known,
            size=size,
            at_once=at_once,
            passed_over=self.passed_over,
        )
        for record in self.floor.usable(start, end, found):
            term = record.header.term
            yield record
        # A stream goes on here: it need not look back once more, for every trigger m − 1 GETs.
        if term is not None:
            self._terms[end] = term

    def rows(self, found: Iterable[Piece], target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of pieces of this log with `target`'s columns. Raises CollectedError where the
        floor overtakes the read, InvalidLogError."""
        return read_pieces(
            self.log.store,
            found,
            target,
            verify=self.options.verify_checksums,
            texts=self.options.verify_texts,
            at_once=_AT_ONCE,
            check=self.floor.check,
            passed_over=self.passed_over,
        )

    def scan(self, start: int, end: int, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of positions start … end−1 in the log's order, as they are needed; as `rows`."""
        records = self.records(start, end, at_once=1, size=WHOLE)
        return self.rows((x for each in records for x in pieces_of(self.log, each)), target)

    def look(self, *, floor: bool = True) -> int:
        """The first gap now: 1 LIST + 1 GET the first time, then 1 GET when idle. With `floor` it
        looks for the floor too where the last look is old, before it is needed: 1 LIST, and 1 GET
        where the log has a lifecycle."""
        if self.live is None:
            return self._find(floor)
        begin = self.gap
        failed = None
        due = not self.floor.is_known
        try:
            for record in newer(self.log, self.window, self.gap, self.log_id):
                self.know(record)
                self.gap = record.header.position + 1
        except InvalidLogError as error:
            failed = error
        another = isinstance(failed, AnotherLog)
        lost = isinstance(failed, MissingRecord) and self.options.tolerant
        passes = failed is not None and not another and (lost or self.passed_over is not None)
        # A slot that is free again, or whose record was lost, stays empty, or holds a stray.
        if passes or floor and (self.floor.current() > begin or due and self.gap == begin):
            return self._find(floor)
        # What is before the damaged record is read all the same.
        if failed is not None and (another or self.options.on_corruption != "stop"):
            raise failed
        return self.gap

    def _find(self, floor: bool) -> int:
        self._known = {}
        self._terms = {}
        self._kept = 0
        steps: list[Callable[[], None]] = [self._find_head]
        # At once, where the log is likely to be there: who waits for one does not ask twice.
        if floor and self.head is None and not self.floor.is_known:
            steps.append(self.floor.look)
        list(run_parallel(self.log.store, lambda step: step(), steps))
        if floor and self.floor.current() > self.gap:
            self.look_again()
        if self.live is not None:
            self.know(self.live)
        return self.gap

    def look_again(self) -> None:
        """A head below the floor is an old one, if the log went on meanwhile; else raises
        InvalidLogError."""
        self._find_head()
        if self.floor.current() > self.gap:
            raise ends_before(self._path, self.gap, self.floor.current())

    def _find_head(self) -> None:
        before = self.log_id
        # Who waits for a log looks again and again.
        proven = self.head is None or self.head.live is not None
        self.head, self.gap = find_end(self.log, self._steps_back, self.passed_over, proven)
        if before is not None and self.live is not None:
            check_log(self.log, self.live, before)
        if self._pinned is not None and self._pinned.log_id != self.log_id:
            raise InvalidLogError(
                f"the log {self._pinned.log_id} at {self._path} is gone, or was recreated, since "
                "this read was planned: plan it anew"
            )
        self.floor.log_id = self.log_id

    @property
    def _steps_back(self) -> bool:
        # A damaged end does not matter to who stops at damage, or before it anyway.
        options = self.options
        stops = options.on_corruption == "stop" or options.ending_position is not None
        return options.tolerant or stops

    def know(self, record: SlotRecord) -> None:
        # Rows that came along travel in the task, where many are better fetched.
        if record.inlined is not None and len(record.inlined) > GLANCE:
            record = replace(record, inlined=None)
        size = record.body + len(record.inlined or b"")
        # The oldest stay: they are planned first. What is not kept is fetched again.
        if self._kept + size <= _KEPT_BYTES and len(self._known) <= PLANNED_RECORDS:
            self._known[record.header.position] = record
            self._kept += size

    def forget(self, below: int) -> None:
        """Records of planned microbatches are not needed again."""
        self._known = {p: r for p, r in self._known.items() if p >= below}
        self._terms = {p: term for p, term in self._terms.items() if p >= below}
        self._kept = sum(r.body + len(r.inlined or b"") for r in self._known.values())

    def start(self, *, from_floor: bool = False) -> int:
        """The first position to read, from the options.

        Args:
            from_floor: a startingTimestamp below the floor means the floor.

        Raises:
            CollectedError: rows that the options ask for were collected.
        """
        options = self.options
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
        """The table that alone has the rows below the floor, by this process's look at it."""
        state = self.floor.state
        is_above = self.floor.current() > 0
        return state.target.table if is_above and state and state.target else None

    def first_of_new(self, what: str) -> int:
        """The first position to read of a log that its reader has not seen, though it read others
        before: 0, or the floor if the options say earliest.

        Raises:
            CollectedError: rows were collected before the reader saw the log.
        """
        if self.options.starting_position == "earliest":
            return self.floor.current()
        # SAFETY(new-log-from-0) §9: a log that is new to a reader is read from position 0
        return self.usable(0, what)

    def checked(self, start: int, what: str) -> int:
        """A first position to read, which `what` gave; as `usable` below the floor. Raises
        OptionError beyond the next position, where those stand who have read everything."""
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
        """A first position to read, which `what` gave; below the floor the floor with
        failOnDataLoss=false, else CollectedError is raised."""
        if self.options.fail_on_data_loss:
            self.floor.check(start, what)
            return start
        return max(start, self.floor.current())

    def until(self, last: int, what: str) -> int:
        """The position after the last to read, which `what` gave; as `usable` below the floor."""
        if self.options.fail_on_data_loss:
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
        if options.ending_position >= self.gap and options.fail_on_data_loss:
            raise self._after_the_end("endingPosition", options.ending_position)
        return self.until(options.ending_position, "endingPosition")

    def _start_at(self, timestamp_ms: int, *, from_floor: bool) -> int:
        start = self.at(timestamp_ms)
        floor = self.floor.current()
        # Above the floor all that was collected is older.
        if start <= floor and not from_floor and self._last_since(timestamp_ms, floor):
            return self.usable(floor - 1, "startingTimestamp")
        return start

    def _last_since(self, timestamp_ms: int, floor: int) -> bool:
        """Whether rows below the floor may be of this time or later."""
        position = floor - 1
        # No collection deletes these records.
        while position >= max(floor - KEPT_SLOTS, 0):
            record = read_slot(self.log, position, self.window, GLANCE, tolerant=True)
            if record is None:
                return True
            live = last_live(self.log, record, tolerant=True, head=self.head)
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
        """Raise CollectedError if all that the log held at a time before its floor was collected.

        Without `failOnDataLoss` nothing is raised.
        """
        floor = self.floor.current()
        if self._began_by(timestamp_ms, floor):
            self.usable(floor - 1, what)

    def _began_by(self, timestamp_ms: int, floor: int) -> bool:
        """Whether the log, of which positions were collected, may have begun by this time."""
        if floor > KEPT_SLOTS:
            return True
        first = read_slot(self.log, 0, self.window, GLANCE, tolerant=True) if floor else None
        return floor > 0 and (first is None or first.header.timestamp_ms <= timestamp_ms)

    def at(self, timestamp_ms: int) -> int:
        """The first position that is not older, or the gap, as `first_at_or_after`."""
        assert self.head is not None
        start, tolerant = self.floor.current(), self.options.tolerant or bool(self.passed_over)
        return first_at_or_after(self.log, self.head, timestamp_ms, start=start, tolerant=tolerant)

    def intact_end(self, start: int, end: int) -> int:
        """`end`; with onCorruption=stop the first position at or after `start` that is not intact.
        Reads everything then: a replay may only deliver what is known to be intact."""
        if self.options.on_corruption != "stop":
            return end
        position = start
        try:
            for record in self.records(start, end):
                position = record.header.position
                target = schema.to_arrow(record.spark_schema)
                for _ in self.rows(pieces_of(self.log, record), target):
                    pass
                position += 1
        except AnotherLog:
            raise
        except InvalidLogError as error:
            # Damage in the records before `start` is no end: nobody knows what is live after it.
            if error.position is not None and error.position < start:
                raise
            return position
        return end


def find_end(
    log: LogStore,
    tolerant: bool = False,
    passed_over: PassedOver | None = None,
    proven: bool = True,
) -> tuple[Head, int]:
    """The head as `find_head`, and the first position after it that holds nothing: between the two
    lie damaged records, where damage is passed over. Else, and where not one record is intact,
    raises InvalidLogError."""
    try:
        head = find_head(log, tolerant=tolerant, proven=proven)
        return head, head.gap
    except InvalidLogError as error:
        if passed_over is None:
            raise
        passed_over(error)
    head = find_head(log, tolerant=True)
    for gap in count(head.gap):
        try:
            if read_slot(log, gap, head.window, GLANCE) is None:
                break
        except InvalidLogError as error:
            passed_over(error)
    return head, gap
