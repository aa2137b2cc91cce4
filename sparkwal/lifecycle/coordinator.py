"""Runs the lifecycle of logs: intent → write → confirm → publish → floor → collect.

Every step begins at the newest record of the chain, and any process can finish a range that a
crashed process left open. All logs under a path share the chain, and a run takes any number of them
together: one intent, one version of the table, one record for their floors.
"""

import socket
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from sparkwal import events
from sparkwal.errors import CompactionError, PlanError, PublishError, SparkWalError
from sparkwal.format.keys import ROOT
from sparkwal.format.lifecycle_record import ChainRecord, OpenRange, Target
from sparkwal.lifecycle.collecting.collection import Collected, Collection, Safeguards, collect
from sparkwal.lifecycle.collecting.old_records import forget_old_records
from sparkwal.lifecycle.compaction import Range, accept, confirm_table, promise_to
from sparkwal.lifecycle.cycle import Cycle, KnownLog, Run, noted
from sparkwal.lifecycle.floors import move_floors
from sparkwal.lifecycle.giving_up import ClosedRange, finish_or_give_up, give_up_open_range
from sparkwal.lifecycle.policy import Policy, decide_together, measure
from sparkwal.lifecycle.promising import promise, range_until
from sparkwal.lifecycle.table import Table, confirmed
from sparkwal.lifecycle.targets import check_same_target
from sparkwal.protocol.chain import Chain, MovedOn
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.lifecycle_steps import with_table
from sparkwal.protocol.segments import with_copies
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
        self._target = table.target if table else None
        self._collects = collects
        self._safeguards = Safeguards(table, gc_grace_ms, consumer_expiry_ms)
        self._known: dict[str, KnownLog] = {}

    def recover(self) -> Run:
        """Finish the range that an earlier run left open, if there is one.

        Returns:
            The state before the run, and the range that it finished.

        Raises:
            CompactionError: the range did not reach the table; the next run continues with it.
            InvalidLogError: a record of the log or of its lifecycle is damaged.
            StoreUnavailableError: the store did not answer.
        """
        return self._retry_if_moved(lambda: self._of_this_log(self._recover([self._log]).results))

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
        return self._retry_if_moved(
            lambda: self._of_this_log(self._run([self._log], whole=whole).results)
        )

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
        return self._retry_if_moved(lambda: self._run(self._list(), whole=whole).results)

    def accept_table(self) -> ChainRecord:
        """Accept the present table as one that holds all rows below the cut.

        Call it after you restored the table, or after you compared it with the log.

        Returns:
            The new record of the lifecycle.

        Raises:
            PlanError: the log has no table, or the table's history does not fit the log.
            CompactionError: the table is unreadable, or another run changed the lifecycle.
        """

        def work() -> ChainRecord:
            cycle = self._read_logs([self._log])
            error = cycle.logs[self._log.name].error
            if error is not None:
                raise error
            target = cycle.record.target_of(self._log.name) or self._target
            if target is None or target.table not in cycle.record.tables:
                raise PlanError(f"{self._log.url} has no table yet that could be accepted")
            if self._target is not None:
                check_same_target(self._target, cycle.record.tables[target.table].target)
            return accept(self._chain, cycle.record, self._require_table(target))

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
            record = self._chain.newest()
            target = record and (record.target_of(self._log.name) or self._target)
            opened = record and target and record.promise(target.table)
            if not record or not target or not opened or not opened.is_open:
                return None
            if self._target is not None:
                check_same_target(self._target, opened.target)
            # A range that another process promised meanwhile was refused by no table.
            if wanted - {opened.table.k}:
                return None
            wanted.add(opened.table.k)
            return give_up_open_range(self._chain, record, self._require_table(target))

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
        return self._of_this_log(results)

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
            in_chain = [
                Collected(
                    member.log,
                    member.live_head,
                    cycle.state(member),
                    is_small=member.is_small,
                    looks_again=looks_again,
                )
                for member in cycle.sound
                if member.found != "no lifecycle"
            ]
            if in_chain:
                self._collect(cycle, in_chain, forgets_records=True, dry_run=dry_run)
            return cycle.collections

        return self._retry_if_moved(work)

    def _list(self) -> list[LogStore]:
        """List the logs under the path together, and note what the LISTs show of each."""
        root = self._log.root
        listed = list_logs(root)
        for name, one in listed.items():
            self._known_log(root.sequencer(name)).listed(one.newest, one.page)
        return [*map(root.sequencer, listed)]

    def _known_log(self, log: LogStore) -> KnownLog:
        return self._known.setdefault(log.name, KnownLog(with_copies(log)))

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

    def _of_this_log(self, results: Mapping[str, R | SparkWalError]) -> R:
        """The result of the log that this was opened for.

        Raises:
            SparkWalError: the log failed.
        """
        result = results[self._log.name]
        if isinstance(result, SparkWalError):
            raise result
        return result

    def _read_logs(self, logs: Sequence[LogStore]) -> Cycle:
        """Read the newest record of the chain, and then the head of each log, side by side."""
        record = self._chain.newest() or ChainRecord(gc_grace_ms=self._safeguards.grace_ms)
        members = [self._known_log(log) for log in logs]
        [*run_parallel(self._log.store, lambda member: member.begin_run(record), members)]
        cycle = Cycle(record, {member.log.name: member for member in members})
        cycle.refuse_copies()
        return cycle

    def _recover(self, logs: Sequence[LogStore]) -> Cycle:
        cycle = self._read_logs(logs)
        record = cycle.record
        tables = {member.log.name: record.target_of(member.log.name) for member in cycle.sound}
        if self._target is not None:
            for member in cycle.sound:
                if (target := tables[member.log.name]) is not None:
                    with noted(member):
                        check_same_target(self._target, target)
            # A log that is new to the table may find an open range of others there.
            if self._target.table in record.tables and cycle.sound:
                check_same_target(self._target, record.tables[self._target.table].target)
        # Many logs share a table.
        targets = dict.fromkeys(tables[member.log.name] or self._target for member in cycle.sound)
        # SAFETY(one-open-range) §10: at most one range of a table is open, of whichever logs
        opened = [target for target in targets if target and self._is_open(record, target)]
        if opened:
            ranges = self._finish(cycle, self._require_table(opened[0]))
            for member in cycle.sound:
                member.finished = ranges.get(member.log.name)
                if member.finished is not None:
                    member.found = "an open range"
        return cycle

    def _is_open(self, record: ChainRecord, target: Target) -> bool:
        promise = record.promise(target.table)
        return promise is not None and promise.is_open

    def _require_table(self, target: Target) -> Table:
        if self._table is None:
            raise PlanError(
                f"{self._log.url} is compacted into {target.table}: a run without a table cannot "
                "write it"
            )
        return self._table

    def _run(self, logs: Sequence[LogStore], *, whole: bool) -> Cycle:
        cycle = self._recover(logs)
        if not cycle.sound:
            return cycle
        self._compact(cycle, whole=whole)
        before = cycle.record
        move_floors(self._chain, cycle, self._policy, self._safeguards)
        if self._collects:
            self._collect(cycle, self._uncollected(cycle))
        if not cycle.has_written:
            self._confirm_forward(cycle, floor_moved=cycle.record is not before)
        return cycle

    def _compact(self, cycle: Cycle, *, whole: bool) -> None:
        """Promise what is due of each log by one intent, and write it by one transaction."""
        now_ms = self._clock.now_ms()
        policy = replace(self._policy, late_window_seconds=0) if whole else self._policy
        self._measure(cycle, policy, now_ms)
        measured = {member.log.name: member.measured for member in cycle.sound if member.measured}
        due = decide_together(measured, policy, now_ms)
        for member in cycle.sound:
            member.report_limit(self._policy, due[member.log.name].limit)
        if self._table is None:
            return

        def range_of(member: KnownLog) -> OpenRange | None:
            before_ms = due[member.log.name].before_ms
            live = member.live_head.live
            if whole and live and member.measured and member.measured.first_ms is not None:
                before_ms = live.header.timestamp_ms
            return range_until(self._chain, cycle, member, before_ms)

        found = self._side_by_side(range_of, cycle.sound)
        ranges = [range_ for range_ in found if range_ is not None]
        if not ranges:
            return
        grace_ms = self._safeguards.grace_ms
        promised = promise(self._chain, cycle, ranges, self._table, grace_ms)
        if promised is None:
            return
        cycle.record = promised
        written = self._finish(cycle, self._table)
        for range_ in ranges:
            cycle.logs[range_.sequencer].compacted = written.get(range_.sequencer)
        if not written:
            # Without the logs that could not be read.
            self._compact(cycle, whole=whole)

    def _finish(self, cycle: Cycle, table: Table) -> dict[str, Range]:
        """Finish the open range, or give it up: then no log has a range, and bad ones leave."""
        promised = {range_.sequencer for range_ in promise_to(cycle.record, table).ranges}
        present = {member.log.name for member in cycle.present}
        record, ranges, bad = finish_or_give_up(
            self._chain, cycle.record, table, has_others=not present <= promised
        )
        for name, error in bad.items():
            cycle.errors[name] = error
            if name in cycle.logs:
                cycle.logs[name].error = error
        cycle.has_written = True
        cycle.record = record
        return ranges

    def _side_by_side(
        self, work: Callable[[KnownLog], R | None], logs: Sequence[KnownLog]
    ) -> list[R | None]:
        """Do something for each log. A log that fails takes no further part."""

        def guarded(member: KnownLog) -> R | None:
            with noted(member):
                return work(member)
            return None

        return [*run_parallel(self._log.store, guarded, logs)]

    def _measure(self, cycle: Cycle, policy: Policy, now_ms: int) -> None:
        def work(member: KnownLog) -> None:
            with self._chain.unless_moved_on(cycle.record):
                member.measured = measure(
                    member.log,
                    member.live_head,
                    cycle.state(member),
                    policy,
                    now_ms,
                    has_table=self._table is not None,
                    before=member.measured,
                )

        self._side_by_side(work, cycle.sound)

    def _confirm_forward(self, cycle: Cycle, *, floor_moved: bool) -> None:
        """Record a newer version of the table from time to time.

        Without it, the table could delete the history that follows the recorded version, and
        readers would have to check ever more of it.
        """
        table = self._table
        if table is None or not any(cycle.state(member).table for member in cycle.sound):
            return
        promise = cycle.record.promise(table.target.table)
        if promise is None or promise.is_open:
            return
        snapshot = confirm_table(self._chain, cycle.record, table)
        age_ms = self._clock.now_ms() - cycle.record.timestamp_ms
        # At most hourly: a busy table would cause a record in each run, also without new rows.
        is_late = age_ms >= DAY_MS or (snapshot.newer >= _VERSIONS and age_ms >= _HOUR_MS)
        # While the floor moves often, no record gets a day old: a moved floor counts too.
        if snapshot.newer and (is_late or floor_moved):
            newer = with_table(cycle.record, confirmed(promise.table, snapshot))
            cycle.record = self._chain.put(newer)

    def _uncollected(self, cycle: Cycle) -> list[Collected]:
        """The logs of which a collection may take something that the last one did not."""
        logs = []
        for member in cycle.sound:
            state = cycle.state(member)
            log = Collected(
                member.log,
                member.live_head,
                state,
                member.collected,
                member.looked_below,
                member.left,
                member.is_small,
            )
            if member.floor_error is None and state.floor > min(log.above, log.first):
                logs.append(log)
        return logs

    def _collect(
        self,
        cycle: Cycle,
        logs: Sequence[Collected],
        *,
        forgets_records: bool = False,
        dry_run: bool = False,
    ) -> None:
        before = None if forgets_records else cycle.begun
        collections, cycle.record = collect(
            self._chain, cycle.record, logs, self._safeguards, dry_run=dry_run
        )
        for name, collection in collections.items():
            cycle.logs[name].take(collection, dry_run=dry_run)
        if not dry_run:
            forget_old_records(self._log, before, cycle.record, self._safeguards.grace_ms)
