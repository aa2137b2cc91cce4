"""Runs the lifecycle of logs: intent → write → confirm → publish → floor → collect.

Every step begins at the newest record of the chain, and any process can finish a range that a
crashed process left open. All logs under a path share the chain, and a run takes any number of them
together: one intent, one version of the table, one record for their floors.
"""

import socket
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from sparkwal import events
from sparkwal.errors import CompactionError, PlanError, PublishError, SparkWalError
from sparkwal.format.keys import ROOT, slot
from sparkwal.format.lifecycle_record import FLOOR, LifecycleRecord, Target
from sparkwal.lifecycle.collection import Collected, Collection, Safeguards, collect
from sparkwal.lifecycle.compaction import (
    Chain,
    MovedOn,
    Range,
    accept,
    confirm_table,
    unless_moved_on,
    versions_of,
    with_target,
)
from sparkwal.lifecycle.cycle import (
    Cycle,
    Part,
    Remembered,
    Run,
    check_chain,
    noted,
    part_with_table,
    report_limit,
    states_of,
)
from sparkwal.lifecycle.floors import move_floors
from sparkwal.lifecycle.giving_up import (
    ClosedRange,
    finish_or_give_up,
    give_up_open_range,
    open_range,
)
from sparkwal.lifecycle.old_records import forget_old_records
from sparkwal.lifecycle.policy import Policy, decide_together, measure
from sparkwal.lifecycle.promising import promise, range_until
from sparkwal.lifecycle.table import Table, check_same_target
from sparkwal.protocol.chain import beginning, part_of
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.recovery import Head
from sparkwal.reading.listing import list_logs
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

DAY_MS = 86_400_000
R = TypeVar("R")
# Attempts of a run while other processes change the lifecycle first.
_ATTEMPTS = 10
# After this number of new versions of the table the newest is recorded, at most once an hour.
_VERSIONS = 20
_HOUR_MS = 3_600_000


class Coordinator:
    """The lifecycle of the logs under a path.

    Args:
        log: the open log.
        policy: decides when rows go to the table and when they leave the log.
        sequencer: the log's name, for callers; the place of the log decides.
        table: receives the rows. Without one, only the policy's retention moves the floor.
        target: how the rows are written to the table.
        gc_grace_ms: collection deletes only objects that the floor passed at least this long ago.
        consumer_expiry_ms: the floor waits for no consumer that last published longer ago.
        collects: whether a run deletes objects.
        clock: replaces the system's clock.
        host: names this machine in the records.
    """

    def __init__(
        self,
        log: LogStore,
        policy: Policy,
        *,
        sequencer: str = ROOT,
        table: Table | None = None,
        target: Target | None = None,
        gc_grace_ms: int = DAY_MS,
        consumer_expiry_ms: int | None = None,
        collects: bool = True,
        clock: Clock | None = None,
        host: str | None = None,
    ) -> None:
        self._log = log
        self._policy = policy
        self._clock = clock or SYSTEM
        self._chain = Chain(log, self._clock, host or socket.gethostname())
        self._table = table
        self._target = target
        self._collects = collects
        self._safeguards = Safeguards(table, gc_grace_ms, consumer_expiry_ms)
        self._known: dict[str, Remembered] = {}
        self._heads: dict[str, Head] = {}

    def recover(self) -> Run:
        """Finish the range that an earlier run left open, if there is one.

        Returns:
            The state before the run, and the range that it finished.

        Raises:
            CompactionError: the range did not reach the table; the next run continues with it.
            InvalidLogError: a record of the log or of its lifecycle is damaged.
            StoreUnavailableError: the store did not answer.
        """
        return self._of_one(self._retry_if_moved(lambda: self._recover([self._log])))

    def run_once(self, *, whole: bool = False) -> Run:
        """Finish an open range, compact the range that is due, move the floor, and collect.

        Args:
            whole: compact the whole log now, and ignore the policy's thresholds.

        Returns:
            The state before the run, and the ranges that it finished.

        Raises:
            CompactionError: a range did not reach the table. It was not skipped; the next run
                continues with it.
            InvalidLogError: a record of the log or of its lifecycle is damaged.
            StoreUnavailableError: the store did not answer.
        """
        return self._of_one(self._retry_if_moved(lambda: self._run([self._log], whole=whole)))

    def run_all(self, *, whole: bool = False) -> dict[str, Run | SparkWalError]:
        """As `run_once`, for all logs under the path together.

        All that is due makes one version of the table, after that of a range that was open. A log
        that is damaged does not stop the others.

        Args:
            whole: compact the whole logs now, and ignore the policy's thresholds.

        Returns:
            The result of each log by name, or its error. A log that the chain has, and that does
            not exist any more, is among them: it was found as "no log".

        Raises:
            CompactionError: a range did not reach the table; the next run continues with it.
            InvalidLogError, StoreUnavailableError: the chain could not be read.
        """

        def work() -> dict[str, Run | SparkWalError]:
            root = self._log.root
            listed = list_logs(root)
            for name, one in listed.items():
                self._known.setdefault(name, Remembered()).listed(one.newest, one.page)
            return self._run([*map(root.sequencer, listed)], whole=whole).results

        return self._retry_if_moved(work)

    def accept_table(self) -> LifecycleRecord:
        """Accept the present table as one that holds all rows below the cut.

        Call it after you restored the table, or after you compared it with the log.

        Returns:
            The new record of the lifecycle.

        Raises:
            PlanError: the log has no table, or the table's history does not fit the log.
            CompactionError: the table is unreadable, or another run changed the lifecycle.
        """

        def work() -> LifecycleRecord:
            cycle = self._read_logs([self._log])
            part = cycle.parts.get(self._log.name)
            if part is not None and part.error is not None:
                raise part.error
            state = part.state if part else None
            if (state is None or state.target is None) and cycle.record and self._target:
                state = part_with_table(cycle.record, self._target.table)
            if state is None or state.target is None:
                raise PlanError(f"{self._log.url} has no table yet that could be accepted")
            return accept(self._chain, state, self._require_table(state))

        return self._retry_if_moved(work)

    def give_up_range(self) -> ClosedRange | None:
        """Give the open range of the table up, so that another run promises its positions again.

        No row is lost: the rows stay in the log. A range that the table has already becomes done.

        Returns:
            The range, or None if none is open, or another process closed it first.

        Raises:
            CompactionError: this has another table or none, or the table does not fit the log.
        """
        wanted: set[int] = set()

        def work() -> ClosedRange | None:
            state = open_range(self._chain, self._target)
            # A range that another process promised meanwhile was refused by no table.
            if state is None or wanted - {state.k}:
                return None
            wanted.add(state.k)
            return give_up_open_range(self._chain, state, self._require_table(state))

        return self._retry_if_moved(work)

    def collect(self, *, dry_run: bool, looks_again: bool = False) -> Collection | None:
        """Delete the objects that may be deleted now, or only count them.

        Args:
            dry_run: only count them.
            looks_again: read also the records in which earlier collections left no rows. A restore
                of the bucket brings rows back.

        Returns:
            The objects that were deleted or may be deleted, or None if the log has no lifecycle.

        Raises:
            ConfirmError: the table no longer holds what the log would lose.
            InvalidLogError: a record of the log or of its lifecycle is damaged.
            StoreUnavailableError: the store did not answer.
        """
        results = self._collect_logs(lambda: [self._log], dry_run=dry_run, looks_again=looks_again)
        result = results[self._log.name]
        if isinstance(result, SparkWalError):
            raise result
        return result

    def collect_all(
        self, names: Container[str], *, dry_run: bool, looks_again: bool = False
    ) -> dict[str, Collection | SparkWalError | None]:
        """As `collect`, for logs under the path together. A log with an error stops no other.

        Args:
            names: the logs. Those with a table have the table of this process.
            dry_run: only count the objects.
            looks_again: as for `collect`.

        Returns:
            The result of each log by name.

        Raises:
            ConfirmError: the table no longer holds what the logs would lose.
            InvalidLogError, StoreUnavailableError: the chain could not be read.
        """

        def listed() -> list[LogStore]:
            return [log for log in self._list() if log.name in names]

        return self._collect_logs(listed, dry_run=dry_run, looks_again=looks_again)

    def _collect_logs(
        self, logs: Callable[[], Sequence[LogStore]], *, dry_run: bool, looks_again: bool
    ) -> dict[str, Collection | SparkWalError | None]:
        def work() -> dict[str, Collection | SparkWalError | None]:
            cycle = self._read_logs(logs())
            cycle.begun = None
            if in_chain := cycle.in_chain(self._known, looks_again=looks_again):
                self._collect(cycle, in_chain, dry_run=dry_run)
            return cycle.collections

        return self._retry_if_moved(work)

    def _list(self) -> list[LogStore]:
        """List the logs under the path together, and note what the LISTs show of each."""
        root = self._log.root
        listed = list_logs(root)
        for name, one in listed.items():
            self._known.setdefault(name, Remembered()).listed(one.newest, one.page)
        return [*map(root.sequencer, listed)]

    def _retry_if_moved(self, work: Callable[[], R]) -> R:
        try:
            for _ in range(_ATTEMPTS):
                with suppress(MovedOn):
                    return work()
            raise PublishError(
                f"other processes changed the lifecycle of {self._log.url} first {_ATTEMPTS} times "
                "in a row: run fewer of them"
            )
        except CompactionError as error:
            events.emit(events.CompactionSuspended(self._log.url, error.stage, str(error)))
            raise

    def _of_one(self, cycle: Cycle) -> Run:
        result = cycle.results[self._log.name]
        if isinstance(result, SparkWalError):
            raise result
        return result

    def _read_logs(self, logs: Sequence[LogStore]) -> Cycle:
        """Read the newest record of the chain, and then the head of each log, side by side."""
        cycle = Cycle(self._chain.newest())

        def begin(log: LogStore) -> Part | SparkWalError | None:
            known = self._known.setdefault(log.name, Remembered())
            try:
                head = self._heads[log.name] = known.head_of(log)
            except SparkWalError as error:
                return error
            if head.live is None:
                # The chain shows that these records were complete once.
                is_compacted = part_of(log, cycle.record) is not None
                return head.torn[0] if head.torn and is_compacted else None
            # Any new record of a log without gaps is its newest object.
            last = log.key(slot(head.position, head.window))
            is_newest = known.newest is not None and known.newest.key == last
            known.head = head if is_newest and not head.torn and head.free == head.gap else None
            log_id = head.live.header.log_id
            state = part_of(log, cycle.record)
            if state is None:
                state = beginning(log_id, log.name, self._safeguards.grace_ms, cycle.record)
                return Part(log, head, state)
            part = Part(log, head, state, "an open range" if state.to > state.cut else "at rest")
            try:
                check_chain(log, head.gap, log_id, state)
            except SparkWalError as error:
                part.error = error
            return part

        for log, part in zip(logs, run_parallel(self._log.store, begin, logs), strict=True):
            if isinstance(part, Part):
                cycle.parts[log.name] = part
            else:
                cycle.runs[log.name] = Run("no log") if part is None else part
        cycle.refuse_copies()
        return cycle

    def _recover(self, logs: Sequence[LogStore]) -> Cycle:
        cycle = self._read_logs(logs)
        for part in cycle.sound:
            if self._target is not None and part.state.target is not None:
                with noted(part, several=len(logs) > 1):
                    check_same_target(self._target, part.state.target)
        # SAFETY(one-open-range) §10: at most one range of a table is open, of whichever logs
        opened = [state for state in states_of(cycle, self._target) if state.is_open]
        if opened:
            ranges = self._finish(cycle, opened[0], self._require_table(opened[0]))
            for part in cycle.sound:
                part.finished = ranges.get(part.log.name)
                if part.finished is not None:
                    part.found = "an open range"
        return cycle

    def _require_table(self, state: LifecycleRecord) -> Table:
        if self._table is None:
            assert state.target is not None
            raise PlanError(
                f"{self._log.url} is compacted into {state.target.table}: a run without a table "
                "cannot write it"
            )
        return self._table

    def _run(self, logs: Sequence[LogStore], *, whole: bool) -> Cycle:
        cycle = self._recover(logs)
        if not cycle.sound:
            return cycle
        self._compact(cycle, whole=whole)
        before = cycle.record
        move_floors(self._chain, cycle, self._known, self._policy, self._safeguards)
        if self._collects:
            self._collect(cycle, [*cycle.uncollected(self._known)])
        if not cycle.has_written:
            self._confirm_forward(cycle, floor_moved=cycle.record is not before)
        return cycle

    def _compact(self, cycle: Cycle, *, whole: bool) -> None:
        """Promise what is due of each log by one intent, and write it by one transaction."""
        now_ms = self._clock.now_ms()
        policy = replace(self._policy, late_window_seconds=0) if whole else self._policy
        for part in cycle.sound:
            if self._target is not None and part.state.target is None:
                part.state = with_target(part.state, self._target)
        self._measure(cycle.sound, policy, now_ms)
        due = decide_together(
            {part.log.name: part.measured for part in cycle.sound if part.measured}, policy, now_ms
        )
        for part in cycle.sound:
            report_limit(part, self._known[part.log.name], self._policy, due[part.log.name].limit)
        if self._table is None or self._target is None:
            return
        befores = {
            part.log.name: part.head.live.header.timestamp_ms
            if whole and part.measured and part.measured.first_ms is not None and part.head.live
            else due[part.log.name].before_ms
            for part in cycle.sound
        }

        found = self._side_by_side(
            lambda part: range_until(part, befores[part.log.name]), cycle.sound
        )
        ranges = [range_ for range_ in found if range_ is not None]
        if not ranges:
            return
        parts = [cycle.parts[range_.sequencer] for range_ in ranges]
        several = len(cycle.parts) > 1
        intent = promise(self._chain, parts, ranges, self._target, self._table, several=several)
        if intent is None:
            return
        written = self._finish(cycle, intent, self._table)
        for part in parts:
            part.compacted = written.get(part.log.name)
        if not written:
            # Without the logs that could not be read.
            self._compact(cycle, whole=whole)

    def _finish(self, cycle: Cycle, intent: LifecycleRecord, table: Table) -> dict[str, Range]:
        """Finish the open range, or give it up: then no log has a range, and bad ones leave."""
        promised = {part.sequencer for part in intent.ranges}
        has_others = not cycle.parts.keys() <= promised
        done, ranges, bad = finish_or_give_up(self._chain, intent, table, has_others=has_others)
        for name, error in bad.items():
            cycle.runs[name] = error
            if name in cycle.parts:
                cycle.parts[name].error = error
        cycle.has_written = True
        cycle.moved(done.chain)
        return ranges

    def _side_by_side(
        self, work: Callable[[Part], R | None], parts: Sequence[Part]
    ) -> list[R | None]:
        """Do something for each log. Of several logs, a log that fails takes no further part.

        Raises:
            SparkWalError: the only log failed.
        """

        def guarded(part: Part) -> R | None:
            with noted(part, several=len(parts) > 1):
                return work(part)
            return None

        return [*run_parallel(self._log.store, guarded, parts)]

    def _measure(self, parts: Sequence[Part], policy: Policy, now_ms: int) -> None:
        def work(part: Part) -> None:
            known = self._known[part.log.name]
            with unless_moved_on(part.log, part.state):
                part.measured = known.measured = measure(
                    part.log,
                    part.head,
                    part.state,
                    policy,
                    now_ms,
                    has_table=self._table is not None,
                    before=known.measured,
                )

        self._side_by_side(work, parts)

    def _confirm_forward(self, cycle: Cycle, *, floor_moved: bool) -> None:
        """Record a newer version of the table from time to time.

        Without it, the table could delete the history that follows the recorded version, and
        readers would have to check ever more of it.
        """
        with_table = [part.state for part in cycle.sound if part.state.table_id]
        if self._table is None or not with_table or with_table[0].is_open:
            return
        state = with_table[0]
        snapshot = confirm_table(self._log, state, self._table)
        new_versions = snapshot.version - state.table_version
        age_ms = self._clock.now_ms() - state.timestamp_ms
        # At most hourly: a busy table would cause a record in each run, also without new rows.
        is_late = age_ms >= DAY_MS or (new_versions >= _VERSIONS and age_ms >= _HOUR_MS)
        # While the floor moves often, no record gets a day old: a moved floor counts too.
        if new_versions and (is_late or floor_moved):
            cycle.moved(self._chain.put(state, FLOOR, **versions_of(snapshot)).chain)

    def _collect(self, cycle: Cycle, logs: Sequence[Collected], *, dry_run: bool = False) -> None:
        collections, record = collect(self._chain, logs, self._safeguards, dry_run=dry_run)
        for name, collection in collections.items():
            cycle.parts[name].collected(collection, None if dry_run else self._known[name])
        if record is not None:
            cycle.moved(record)
        if not dry_run:
            forget_old_records(self._log, cycle.begun, cycle.record, self._safeguards.grace_ms)
