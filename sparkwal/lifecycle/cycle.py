"""One run over the logs of a path, in its order, and the steps of a range of their table.

    look → recover → promise → write → done → move the floors → collect

The intent fixes the range before the first row is written, so every process writes the same rows.
The table's transaction (log_id, k) prevents a second write. A range is done after the table was
read again and holds it. Any process can finish a range that a crashed process left open.

A promised range must reach the table, or be given up. So the columns of each log are checked before
the promise. Only the table decides whether it takes the rows. If it refuses those of several logs,
the range is given up, and each half of the logs gets a range of its own, until the logs are found
whose rows it refuses. A log that does not fit, or is refused, stops no other. It waits, or, if the
policy says so, the next range of it alone goes to the table without the rows that it refuses: they
step aside into a table of their own first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from sparkwal import events
from sparkwal.errors import OptionError, PlanError, ReadError, SparkWalError, WriteError
from sparkwal.format.keys import ROOT
from sparkwal.format.lifecycle_record import (
    ChainRecord,
    LogInChain,
    OpenRange,
    Promise,
    TableInChain,
    Target,
)
from sparkwal.format.merging import union_of
from sparkwal.lifecycle.collecting.collection import Safeguards, collect, forget_old_records
from sparkwal.lifecycle.consumers.readers import look_at_readers
from sparkwal.lifecycle.known_log import (
    Collection,
    KnownLog,
    Range,
    added_by,
    noted,
    other_logs,
    report_done,
    rows_aside,
)
from sparkwal.lifecycle.opening import check_same_target
from sparkwal.lifecycle.policy import Policy, at_rest, decide_together, measure
from sparkwal.lifecycle.range_rows import unreadable
from sparkwal.lifecycle.table import (
    Table,
    TableConflict,
    TableState,
    confirm,
    confirmed,
    is_burned,
    with_refused,
    write_open_range,
)
from sparkwal.protocol.chain import Chain, MovedOn
from sparkwal.protocol.lifecycle_steps import burned, done, promised, with_logs, with_table
from sparkwal.protocol.records import first_at_or_after
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.listing import list_logs
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
R = TypeVar("R")
# After this number of new versions of the table the newest is recorded, at most once an hour.
_VERSIONS = 20
# Attempts to write a range while other writers of the table commit first.
CONFLICTS = 8
# The first pause after such a conflict, in seconds.
_FIRST_PAUSE = 0.5
# A log whose rows the table refused is tried again after this time, and then more and more rarely.
_SHORTEST_WAIT_MS = 60_000
# After so many refused logs, and none that the table took, a run ends: the rows are not the cause.
_MOST_REFUSED = 8
# A PUT costs as much as a dozen GETs.
_WORTH_A_RECORD = 12
# In a chain of more logs the notes would fill its record.
_MOST_NOTED = 2000


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
class Cycle:
    """A run over some logs.

    Attributes:
        chain: the chain of their path.
        policy: decides when rows go to the table, and when they leave the log.
        safeguards: the table, and what keeps objects from collection.
        begun: the newest record of the chain at the beginning.
        logs: the logs, by name.
        record: the newest record of the chain.
        errors: of logs, also of others, that cannot be read, or whose rows the table refused.
        has_written: a range went into the table, or was finished.
    """

    chain: Chain
    policy: Policy
    safeguards: Safeguards
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
        return [log for log in self.logs.values() if log.takes_part]

    @property
    def results(self) -> dict[str, Run | SparkWalError]:
        """The result of each log by name, also of logs that the chain has and that vanished."""
        results: dict[str, Run | SparkWalError] = {
            name: Run("no log", log.cut, log.floor) for name, log in self.record.logs.items()
        }
        results |= self.errors
        for name, log in self.logs.items():
            results[name] = log.error or log.floor_error or self._run_of(log)
        return dict(sorted(results.items(), key=lambda item: (item[0] != ROOT, item[0])))

    def _run_of(self, log: KnownLog) -> Run:
        if log.found == "no log":
            return Run("no log")
        state = log.state(self.record)
        return Run(log.found, state.cut, state.floor, log.finished, log.compacted, log.collection)

    def run(self, *, whole: bool, collects: bool) -> None:
        """Finish an open range, compact what is due, move the floors, and collect.

        Args:
            whole: compact the whole logs now, and ignore the policy's thresholds.
            collects: whether objects are deleted.
        """
        self.recover()
        if not self.sound:
            return
        self._compact(whole=whole)
        before = self.record
        self._move_floors()
        if collects:
            self.collect([log for log in self.sound if self._has_uncollected(log)])
        self._note()
        if not self.has_written:
            self._confirm_forward(floor_moved=self.record is not before)

    def recover(self) -> None:
        """Finish the open range of the logs' table, if there is one."""
        table = self.safeguards.table
        for log in self.sound:
            fixed = self.record.target_of(log.log.name)
            if fixed is not None and table is not None:
                with noted(log):
                    check_same_target(table.target, fixed)
            elif fixed is not None and promise_to(self.record, fixed).is_open:
                raise no_table(log.log, fixed)
        if table is None or not self.sound or table.target.table not in self.record.tables:
            return
        # A log that is new to the table may find an open range of others there.
        promise = promise_to(self.record, table.target)
        check_same_target(table.target, promise.target)
        # SAFETY(one-open-range) §10: at most one range of a table is open, of whichever logs
        if promise.is_open:
            ranges = self._finish(table)
            for log in self.sound:
                log.finished = ranges.get(log.log.name)
                if log.finished is not None:
                    log.found = "an open range"

    def _compact(self, *, whole: bool) -> None:
        """Promise what is due of each log by one intent, and write it by one transaction."""
        now_ms = self.chain.clock.now_ms()
        policy = replace(self.policy, late_window_seconds=0) if whole else self.policy
        self._each(lambda log: self._measure(log, policy, now_ms))
        measured = {log.log.name: log.measured for log in self.sound if log.measured}
        decisions = decide_together(measured, policy, now_ms)
        for log in self.sound:
            log.report_limit(self.policy, decisions[log.log.name].limit)
        table = self.safeguards.table
        if table is None:
            return

        def range_of(log: KnownLog) -> OpenRange | None:
            before_ms = decisions[log.log.name].before_ms
            live = log.head.live if log.head else None
            if whole and live and log.measured and log.measured.first_ms is not None:
                before_ms = live.header.timestamp_ms
            return self._range_until(log, before_ms)

        ranges = self._each(range_of)
        states = {one.sequencer: self.logs[one.sequencer].state(self.record) for one in ranges}
        alone = [one for one in ranges if states[one.sequencer].is_alone]
        self._bring([one for one in ranges if one not in alone], table)
        for one in alone:
            self._bring([one], table)

    def _bring(self, ranges: Sequence[OpenRange], table: Table) -> None:
        """Promise ranges and write them by one transaction, or, if the table refuses them, by more.

        Raises:
            WriteError: the table refused the rows of many logs, and took those of none.
        """
        refusals = [error for error in self.errors.values() if is_refusal(error)]
        has_taken = any(log.finished or log.compacted for log in self.logs.values())
        if len(refusals) >= _MOST_REFUSED and not has_taken:
            raise refusals[0]
        promise = self._promise(ranges, table)
        if promise is None:
            return
        written = self._finish(table)
        for name, range_ in written.items():
            self.logs[name].compacted = range_
        if written:
            return
        remaining = self._fitting(promise.ranges)
        if len(remaining) < len(promise.ranges) or len(remaining) == 1:
            # Without the logs that could not be read.
            self._bring(remaining, table)
            return
        middle = len(remaining) // 2
        self._bring(remaining[:middle], table)
        self._bring(remaining[middle:], table)

    def _each(self, work: Callable[[KnownLog], R | None]) -> list[R]:
        """Do something for each log, side by side. A log that fails takes no further part."""

        def guarded(log: KnownLog) -> R | None:
            with noted(log):
                return work(log)
            return None

        results = run_parallel(self.chain.log.store, guarded, self.sound)
        return [result for result in results if result is not None]

    def _measure(self, log: KnownLog, policy: Policy, now_ms: int) -> None:
        state = log.state(self.record)
        if log.head is None:
            log.measured = at_rest(state)
            return
        with self.chain.unless_moved_on(self.record):
            log.measured = measure(
                log.log,
                log.live_head,
                state,
                policy,
                now_ms,
                has_table=self.safeguards.table is not None,
                before=log.measured,
            )

    def _range_until(self, log: KnownLog, before_ms: int | None) -> OpenRange | None:
        """The new positions of a log up to a time, or None without any.

        Raises:
            SparkWalError: the log is unreadable, or waits because the table refused its rows.
            MovedOn: another process changed the lifecycle first.
        """
        state = log.state(self.record)
        if before_ms is None:
            return None
        tries_aside = self.policy.sets_aside and not state.aside
        wait_ms = 0 if tries_aside else self._wait_of(state)
        if len(self.logs) > 1 and wait_ms > 0:
            raise WriteError(
                f"{state.table} refused rows of {log.log.url} from position {state.start} on. They "
                f"are tried again in {wait_ms // 1000} s, or at once by a run of this log alone. "
                "Change the table so that it takes them"
            )
        head = log.live_head
        view = head.view(log.log)
        with self.chain.unless_moved_on(self.record):
            to = first_at_or_after(view, before_ms + 1, start=state.start, end=head.gap)
        if to <= state.start:
            return None
        range_ = OpenRange(log.log.name, state.log_id, state.start, to)
        # SAFETY(marked-read-first) §10: a log that could not be read is promised when all its rows
        # can
        if state.unreadable and (errors := unreadable(log.log.root, [range_])):
            raise next(iter(errors.values()))
        return range_

    def _wait_of(self, state: LogInChain) -> int:
        """How long a log still waits whose rows the table refused: as long as it has waited.

        So a fault that passes costs minutes, and one that stays a few ranges a day.
        """
        waited_ms = state.tried_ms - state.refused_ms
        pause_ms = min(max(waited_ms, _SHORTEST_WAIT_MS), _HOUR_MS) if state.refused_ms else 0
        return state.tried_ms + pause_ms - self.chain.clock.now_ms()

    def _promise(self, ranges: Sequence[OpenRange], table: Table) -> Promise | None:
        """Put the intent for the ranges of all logs that the table takes.

        Args:
            ranges: one for each log. A log that the table does not take gets its error.
            table: the table. It has no open range.

        Returns:
            The promise, or None if the table takes none of the logs.

        Raises:
            PlanError: the table holds ranges that the lifecycle does not have.
            ConfirmError: the table may have lost rows.
            MovedOn: another process changed the lifecycle first.
        """
        if not ranges:
            return None
        before = self.record.promise(table.target.table)
        assert not (before and before.is_open) and all(range_.to > range_.cut for range_ in ranges)
        if before is not None:
            # Before `prepare`, which would create an empty table if the table was dropped.
            with self.chain.unless_moved_on(self.record):
                confirm(before, table)
        self._prepare(ranges, table, is_first=before is None)
        ranges = self._fitting(ranges)
        if not ranges:
            return None
        in_chain = before.table if before else self._new_table(ranges[0].log_id, table)
        aside = self._steps_aside(ranges)
        if aside and in_chain.refused is None:
            with noted(self.logs[ranges[0].sequencer]):
                in_chain = with_refused(in_chain, table)
            if in_chain.refused is None:
                return None
        record = promised(self.record, in_chain, ranges, self.safeguards.grace_ms, aside=aside)
        self.record = put_promise(self.chain, record, table.target)
        return promise_to(self.record, table.target)

    def _steps_aside(self, ranges: Sequence[OpenRange]) -> bool:
        """Whether these are the range of one log, from which the refused rows step aside now."""
        states = [self.logs[range_.sequencer].state(self.record) for range_ in ranges]
        is_refused = [bool(state.refused_ms) for state in states] == [True]
        return is_refused and self.policy.sets_aside

    def _fitting(self, ranges: Sequence[OpenRange]) -> list[OpenRange]:
        """The ranges of the logs without an error."""
        return [range_ for range_ in ranges if self.logs[range_.sequencer].error is None]

    def _prepare(self, ranges: Sequence[OpenRange], table: Table, *, is_first: bool) -> None:
        """Check the table for the columns of all logs, and if it does not fit, of each.

        One may lack what others have. A log that does not fit gets its error.
        """
        logs = [self.logs[range_.sequencer] for range_ in ranges]
        try:
            union = _union(logs)
            table.prepare(logs[0].log, union, first=is_first)
            if {log.schema for log in logs} == {union}:
                return
        except (OptionError, PlanError, ReadError) as error:
            if len(logs) == 1:
                logs[0].error = error
                return
        union = ""
        checked: dict[str, SparkWalError | None] = {}
        for log in logs:
            columns = log.schema
            if columns not in checked:
                with noted(log):
                    table.prepare(log.log, columns, first=is_first)
                    union = union_of([(union or columns, "the others"), (columns, log.log.url)])
                checked[columns] = log.error
            log.error = checked[columns]

    def try_target(self, table: Table, name: str) -> None:
        """Check a table, and try its target on rows of the log `name`, or of another one.

        Raises:
            PlanError: the table does not fit, or its delete condition fails on these rows.
            SparkWalError: none of the logs of the table can be read.
        """

        def read(log: KnownLog) -> None:
            if log.head is None:
                log.look(log.state(self.record))

        # The columns of the logs at rest count too.
        self._each(read)
        of_table = [
            log for log in self.present if log.state(self.record).table == table.target.table
        ]
        logs = sorted(
            (log for log in of_table if log.error is None), key=lambda log: log.log.name != name
        )
        if logs:
            table.prepare(logs[0].log, _union(logs), first=True)
        elif of_table and of_table[0].error is not None:
            raise of_table[0].error

    def _new_table(self, app_id: str, table: Table) -> TableInChain:
        """The table before its first range.

        Raises:
            PlanError: the table holds ranges that the lifecycle does not have.
            MovedOn: another process changed the lifecycle first.
        """
        snapshot = table.snapshot(app_id, None)
        url = table.target.table
        if snapshot is None:
            raise PlanError(f"{url} was just created and does not exist; run it again")
        # Another process may have written the first range meanwhile.
        with self.chain.unless_moved_on(self.record):
            if snapshot.k:
                raise PlanError(
                    f"{url} holds {snapshot.k} ranges of this log, and the log's lifecycle has "
                    "none: its records were deleted, or the log was restored from an older copy. "
                    "Name a new table"
                )
        if table.tombstones is not None:
            snapshot = replace(snapshot, tombstones=table.tombstones.snapshot(app_id, None))
        in_chain = TableInChain(table.target, app_id, 0, table_id=snapshot.table_id)
        return confirmed(in_chain, snapshot)

    def _finish(self, table: Table) -> dict[str, Range]:
        """Finish the open range, as `finish_range`. A log that was left out gets its error."""
        present = {log.log.name: log.head.live if log.head else None for log in self.present}
        promise = promise_to(self.record, table.target)
        gives_up = self.policy.sets_aside or promise.is_aside
        self.record, ranges, bad = finish_range(
            self.chain, self.record, table, present, gives_up=gives_up
        )
        self.has_written = True
        if promise.is_again or (self.policy.sets_aside and not promise.is_aside):
            # Its next range, in this run, leaves these rows out, or they are aside already.
            bad = {name: error for name, error in bad.items() if not is_refusal(error)}
        self.errors |= bad
        for name in bad.keys() & self.logs.keys():
            self.logs[name].error = bad[name]
        return ranges

    def _move_floors(self) -> None:
        """Move the floors as far as policy, consumers and confirmed table allow, by one record."""
        wanted = []
        retention = (self.policy.retain_seconds, self.policy.retain_bytes)
        for log in self.sound:
            state, measured = log.state(self.record), log.measured
            if measured is None:
                continue
            floor = measured.retained_from
            # This includes a table that has no range yet.
            if measured.has_table:
                # SAFETY(floor-below-cut) §10: with a table the floor never passes the cut
                floor = state.cut if retention == (None, None) else min(floor, state.cut)
            if floor > state.floor:
                wanted.append((log, state, floor))
        if not wanted:
            return
        small = [log.log.name for log, _, _ in wanted if log.is_small]
        walked = list_logs(self.chain.log.root, small)
        readers = look_at_readers([log.log for log, _, _ in wanted], walked)
        floors = [(log.log, state.log_id, floor) for log, state, floor in wanted]
        allowed = readers.bounds(floors, self.safeguards.expiry_ms)
        moved = {}
        for (log, state, _), result in zip(wanted, allowed, strict=True):
            if isinstance(result, SparkWalError):
                log.floor_error = result
            # SAFETY(floor-never-back) §10: the floor never goes back
            elif result > state.floor:
                moved[log.log.name] = replace(state, floor=result)
        if not moved:
            return
        record = with_logs(self.record, moved, self.safeguards.grace_ms)
        self.record = self.chain.put(with_logs(record, self._notes(record), 0))
        for name, state in moved.items():
            events.emit(events.FloorMoved(path=self.logs[name].log.url, floor=state.floor))

    def _notes(self, record: ChainRecord) -> dict[str, LogInChain]:
        """The logs of a record that change by what spares the next process requests."""
        if len(record.logs) > _MOST_NOTED:
            bare = {
                name: replace(log, at_rest="", collected=0) for name, log in record.logs.items()
            }
        else:
            bare = {
                log.log.name: log.with_notes(record.logs[log.log.name])
                for log in self.sound
                if log.log.name in record.logs
            }
        return {name: log for name, log in bare.items() if log != record.logs[name]}

    def _note(self) -> None:
        """Put a record with such notes, if it spares more than it costs."""
        notes = self._notes(self.record)
        # A process may have no permission to put one.
        with suppress(MovedOn, OptionError):
            if len(notes) >= _WORTH_A_RECORD:
                self.record = self.chain.put(with_logs(self.record, notes, 0))

    def _has_uncollected(self, log: KnownLog) -> bool:
        """Whether a collection may take something of a log that the last one did not."""
        floor = log.state(self.record).floor
        is_passed = floor > min(log.collected, log.first_unread(self.record))
        return log.floor_error is None and is_passed

    def collect(
        self, logs: Sequence[KnownLog], *, forgets_records: bool = False, dry_run: bool = False
    ) -> None:
        """Collect what the logs no longer need, and delete old records of the chain.

        Args:
            logs: the logs.
            forgets_records: delete the records also if few came since the beginning.
            dry_run: only count the objects.
        """
        collections, self.record = collect(
            self.chain, self.record, logs, self.safeguards, dry_run=dry_run
        )
        for name, collection in collections.items():
            self.logs[name].take(collection, dry_run=dry_run)
        if not dry_run:
            before = None if forgets_records else self.begun
            forget_old_records(self.chain.log, before, self.record, self.safeguards.grace_ms)

    def _confirm_forward(self, *, floor_moved: bool) -> None:
        """Record a newer version of the table from time to time.

        Without it, the table could delete the history that follows the recorded version, and
        readers would have to check ever more of it.
        """
        table = self.safeguards.table
        if table is None or not any(log.state(self.record).table for log in self.sound):
            return
        promise = self.record.promise(table.target.table)
        if promise is None or promise.is_open:
            return
        with self.chain.unless_moved_on(self.record):
            snapshot = confirm(promise, table)
        age_ms = self.chain.clock.now_ms() - self.record.timestamp_ms
        # At most hourly: a busy table would cause a record in each run, also without new rows.
        is_late = age_ms >= DAY_MS or (snapshot.newer >= _VERSIONS and age_ms >= _HOUR_MS)
        # While the floor moves often, no record gets a day old: a moved floor counts too.
        if snapshot.newer and (is_late or floor_moved):
            newer = with_table(self.record, confirmed(promise.table, snapshot))
            self.record = self.chain.put(newer)


def look(chain: Chain, policy: Policy, safeguards: Safeguards, logs: Iterable[KnownLog]) -> Cycle:
    """Read the newest record of the chain, and then the head of each log, side by side.

    A log whose rows belong into no table gets an error, see `other_logs`.
    """
    record = chain.newest() or ChainRecord(gc_grace_ms=safeguards.grace_ms)
    logs = [*logs]
    [*run_parallel(chain.log.store, lambda log: log.begin_run(record), logs)]
    cycle = Cycle(chain, policy, safeguards, record, {log.log.name: log for log in logs})
    read = [(log.log, log.log_id) for log in cycle.present if log.head is not None]
    for name, error in other_logs(record, read).items():
        cycle.logs[name].error = error
    return cycle


def _union(logs: Iterable[KnownLog]) -> str:
    """The columns of all logs."""
    return union_of((log.schema, f"sequencer {log.log.name}") for log in logs)


def promise_to(record: ChainRecord, target: Target) -> Promise:
    """The promise of a record to a table, which has one."""
    promise = record.promise(target.table)
    assert promise is not None
    return promise


def no_table(log: LogStore, target: Target) -> PlanError:
    """The error of a run without the table of a log."""
    return PlanError(
        f"{log.url} is compacted into {target.table}: a run without a table cannot write it"
    )


def put_promise(chain: Chain, record: ChainRecord, target: Target) -> ChainRecord:
    """Put a record that promises a range to a table, and emit an event for each log of it.

    Raises:
        PublishError: the store did not answer.
        MovedOn: another process put a record first.
    """
    record = chain.put(record)
    promise = promise_to(record, target)
    for range_ in promise.ranges:
        url = chain.log.root.sequencer(range_.sequencer).url
        events.emit(events.CompactionPlanned(url, promise.table.k, range_.cut, range_.to))
    return record


def finish_range(
    chain: Chain,
    record: ChainRecord,
    table: Table,
    present: Mapping[str, SlotRecord | None],
    *,
    gives_up: bool = False,
) -> tuple[ChainRecord, dict[str, Range], dict[str, SparkWalError]]:
    """Finish the open range, or give it up if a log in it is bad and others wait.

    Bad is a log that cannot be read, or whose rows the table refuses. Of several logs that the
    table refuses together, nobody knows which is bad.

    Args:
        chain: puts the record.
        record: the newest record, with the open range.
        table: the table.
        present: the logs that wait for the table, and the last record of each, if it was read. A
            single one waits until it is repaired.
        gives_up: a single one gives a range up that the table refuses.

    Returns:
        As `close_range`, and the errors of the bad logs.

    Raises:
        CompactionError: as `write_range` and `close_range`.
        MovedOn: another process changed the lifecycle first.
    """
    promise = promise_to(record, table.target)
    names = {range_.sequencer for range_ in promise.ranges}
    failed: ReadError | WriteError | None = None
    bad: dict[str, SparkWalError] = {}
    try:
        snapshot = write_range(chain, record, table, present)
    except (ReadError, WriteError) as error:
        failed = error
    if isinstance(failed, WriteError):
        # SAFETY(refused-alone) §10: only a log whose rows the table refused alone is marked
        bad = {name: failed for name in names if len(names) == 1}
    # If the process that burned the range died, only its rows show why.
    elif failed is not None or is_burned(promise, snapshot):
        bad = unreadable(chain.log.root, promise.ranges)
        if failed is not None and not bad:
            raise failed
    if failed is not None:
        if len(present.keys() | names) == 1 and not (gives_up and is_refusal(failed)):
            raise failed
        if promise.is_aside or not (gives_up and is_refusal(failed)):
            reason = str(failed)
            events.emit(events.CompactionSuspended(chain.log.root.url, failed.stage, reason))
        snapshot = write_range(chain, record, table, burns=True)
        if not is_burned(promise, snapshot):
            # The table took the rows, and only its answer was lost.
            bad = {}
    # SAFETY(unreadable-marked) §10: a record that gives a range up marks the logs that cannot be
    # read
    return *close_range(chain, record, table, snapshot, bad), bad


def is_refusal(error: SparkWalError) -> bool:
    """Whether the table refused the rows of a log, which can be read."""
    return isinstance(error, WriteError)


def write_range(
    chain: Chain,
    record: ChainRecord,
    table: Table,
    read: Mapping[str, SlotRecord | None] = MappingProxyType({}),
    *,
    burns: bool = False,
) -> TableState:
    """Write until the newest snapshot has the transaction of the range, and return that snapshot.

    Args:
        chain: the chain of the path.
        record: the newest record, with the open range.
        table: the table.
        read: the last records of logs, which were read already.
        burns: write the transaction without the rows. The table decides between this and a slow
            writer of the range: the first commit wins.

    Raises:
        ReadError: the log's rows are unreadable.
        WriteError: the table did not take them.
        ConfirmError: the table may have lost rows.
        MovedOn: another process changed the lifecycle first.
    """
    read_records = {name: head for name, head in read.items() if head is not None}
    promise = replace(promise_to(record, table.target), read=read_records)
    attempts = 0
    with chain.unless_moved_on(record):
        while (snapshot := confirm(promise, table)).k != promise.table.k:
            if attempts == CONFLICTS:
                raise _busy(table)
            attempts += 1
            try:
                # SAFETY(burn-in-table) §10: a range is given up only after its transaction is in
                # the table
                if burns:
                    table.burn(promise)
                else:
                    # SAFETY(range-is-fixed) §10: every process writes exactly [cut, to) of an open
                    # range
                    # SAFETY(read-table-after-write) §10: a range is published only after the loop
                    # read the table again
                    write_open_range(promise, table, snapshot)
            except TableConflict as conflict:
                events.emit(events.CompactionRetried(chain.log.url, promise.table.k, str(conflict)))
                if attempts < CONFLICTS:
                    chain.clock.sleep(_FIRST_PAUSE * 2 ** (attempts - 1))
    return snapshot


def _busy(table: Table) -> WriteError:
    return WriteError(
        f"other writers of {table.target.table} committed first {CONFLICTS} times; run it "
        "again after they end (maintenance of the table, or another job)"
    )


def close_range(
    chain: Chain,
    record: ChainRecord,
    table: Table,
    snapshot: TableState,
    bad: Mapping[str, SparkWalError] = MappingProxyType({}),
) -> tuple[ChainRecord, dict[str, Range]]:
    """Publish the open range as done, or as given up if the table has it burned.

    Args:
        chain: puts the record.
        record: the newest record, with the open range.
        table: the table.
        snapshot: the newest snapshot of the table, which has the transaction of the range.
        bad: the errors of the bad logs, if the range was burned.

    Returns:
        The new record, and the range of each log; none if the range was burned. The rows and bytes
        are known of a range of one log.

    Raises:
        PublishError: the store did not answer.
        MovedOn: another process changed the lifecycle first.
    """
    promise = promise_to(record, table.target)
    now = confirmed(promise.table, snapshot)
    if is_burned(promise, snapshot):
        refused = {name for name, error in bad.items() if is_refusal(error)}
        now_ms = chain.clock.now_ms()
        given_up = burned(
            record, now, unreadable=bad.keys() - refused, refused=refused, now_ms=now_ms
        )
        return chain.put(given_up), {}
    record = put_done(chain, record, promise, now, snapshot)
    rows = size = None
    of_range = snapshot.of_range(promise.range_id)
    if of_range and len(promise.ranges) == 1:
        rows = of_range[-1].rows
        size = of_range[-1].bytes
    return record, {
        part.sequencer: Range(now.k, part.cut, part.to, snapshot.version, rows, size)
        for part in promise.ranges
    }


def put_done(
    chain: Chain, record: ChainRecord, promise: Promise, table: TableInChain, snapshot: TableState
) -> ChainRecord:
    """Publish the open range as done in the table, which `snapshot` confirms. Emit its events."""
    aside = rows_aside(promise, snapshot.refused)
    table = replace(table, added=added_by(promise, snapshot))
    record = chain.put(done(record, table, aside))
    report_done(chain.log.root, promise, table, aside)
    return record
