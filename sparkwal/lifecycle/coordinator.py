"""The lifecycle of the logs under a path: cycles, and again if another process was first.

All logs under a path share the chain, and a run takes any number of them together: one intent, one
version of the table, one record for their floors.
"""

import socket
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from sparkwal import events
from sparkwal.errors import CompactionError, PlanError, PublishError, SparkWalError, WriteError
from sparkwal.format.keys import ROOT
from sparkwal.format.lifecycle_record import ChainRecord
from sparkwal.lifecycle.accepting import accept
from sparkwal.lifecycle.collecting.collection import Safeguards
from sparkwal.lifecycle.collecting.erasing import Erasure
from sparkwal.lifecycle.cycle import (
    DAY_MS,
    Cycle,
    Run,
    close_range,
    finish_range,
    look,
    no_table,
    promise_to,
    put_promise,
    write_range,
)
from sparkwal.lifecycle.known_log import Again, ClosedRange, Collection, KnownLog
from sparkwal.lifecycle.opening import check_again, check_change, check_same_target
from sparkwal.lifecycle.policy import Policy
from sparkwal.lifecycle.table import Table, TableConflict, confirm
from sparkwal.protocol.chain import Chain, MovedOn
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.lifecycle_steps import promised_again, with_target
from sparkwal.protocol.segments import with_copies
from sparkwal.reading.listing import list_logs
from sparkwal.store.base import LogStore

R = TypeVar("R")
# Attempts of a run while other processes change the lifecycle first.
_ATTEMPTS = 10


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
        self._chain = Chain(log, clock or SYSTEM, host or socket.gethostname())
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

        def work() -> Run:
            cycle = self._look([self._log])
            cycle.recover()
            return self._of_this_log(cycle.results)

        return self._retry_if_moved(work)

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
        return self._of_this_log(self._run(lambda: [self._log], whole=whole))

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
        return self._run(self._list, whole=whole)

    def _run(
        self, logs: Callable[[], Sequence[LogStore]], *, whole: bool
    ) -> dict[str, Run | SparkWalError]:
        def work() -> dict[str, Run | SparkWalError]:
            cycle = self._look(logs())
            cycle.run(whole=whole, collects=self._collects)
            return cycle.results

        return self._retry_if_moved(work)

    def accept_table(self) -> ChainRecord:
        """Accept the present table as one that holds all rows below the cut.

        Call it after you restored the table, compared it with the log, or moved it: then this has
        its new place, and all else as before.

        Returns:
            The new record of the lifecycle.

        Raises:
            PlanError: the log has no table, or the table's history does not fit the log.
            CompactionError: the table is unreadable, or another run changed the lifecycle.
        """

        def work() -> ChainRecord:
            cycle = self._look([self._log])
            error = cycle.logs[self._log.name].error
            if error is not None:
                raise error
            table, former = self._own_table(cycle.record, may_move=True)
            return accept(self._chain, cycle.record, table, former)

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
            if not record or not opened or not opened.is_open:
                return None
            table, _ = self._own_table(record)
            # A range that another process promised meanwhile was refused by no table.
            if wanted - {opened.table.k}:
                return None
            wanted.add(opened.table.k)
            snapshot = write_range(self._chain, record, table, burns=True)
            _, written = close_range(self._chain, record, table, snapshot)
            url, version = table.target.table, snapshot.version
            return ClosedRange(opened.table.k, url, opened.ranges, bool(written), version)

        return self._retry_if_moved(work)

    def change_target(self) -> ChainRecord:
        """Change how the table takes rows to the way that this process has, for all later ranges.

        Rows that the table has stay as they are. An open range is given up, as by `give_up_range`,
        and promised again the new way.

        Returns:
            The newest record of the lifecycle.

        Raises:
            PlanError: the log has no table or another one, the rows of the table contradict the new
                way, or it fails on rows of the log.
            CompactionError: the table does not fit the log.
        """

        def work() -> ChainRecord:
            cycle = self._look(self._list())
            record = cycle.record
            target = self._target
            table = self._safeguards.table
            if target is None or table is None or target.table not in record.tables:
                raise self._no_table_yet()
            fixed = record.tables[target.table].target
            check_change(target, fixed)
            with self._chain.unless_moved_on(record):
                confirm(promise_to(record, target), table)
            if fixed == target:
                return record
            cycle.try_target(table, self._log.name)
            # SAFETY(target-between-ranges) §10: a target changes only while no range of its table
            # is open, so one target makes all rows and tombstones of a range
            if promise_to(record, target).is_open:
                snapshot = write_range(self._chain, record, table, burns=True)
                record, _ = close_range(self._chain, record, table, snapshot)
            return self._chain.put(with_target(record, target))

        return self._retry_if_moved(work)

    def refused_again(self) -> Again:
        """Write rows that the table refused again, after you changed the table or the target.

        They are those of this log in the table of refused rows. A row that the table takes leaves
        it; one that the table still refuses stays there, with its new reason. Of a table with keys
        only rows with a greater `sequence_by` replace a row.

        Returns:
            How many rows the table took, and how many it still refuses.

        Raises:
            PlanError: the log has no table, this has another one, or the rows cannot be written
                again into such a table.
            CompactionError: the rows did not reach the table; they wait as before.
            StoreUnavailableError: the store did not answer.
        """
        written: int | None = 0
        # The range that this process promised.
        own_k = 0
        given_up = WriteError("another process gave the range of refused rows up: run it again")

        def work() -> Again:
            nonlocal written, own_k
            cycle = self._look([self._log])
            table, url = self._own_table(cycle.record)
            check_again(table.target)
            cycle.recover()
            log = cycle.logs[self._log.name]
            if log.error is not None:
                raise log.error
            if log.finished is not None and log.finished.is_again:
                # A process promised them, and died.
                written = log.finished.rows
            if not log.takes_part:
                raise PlanError(f"there is no log at {self._log.url}")
            promise, state = promise_to(cycle.record, table.target), log.state(cycle.record)
            if promise.table.refused is None or state.table != url:
                return Again(0, 0)
            if own_k and state.taken < own_k:
                # A process for which the table refuses the rows would give up the next one too.
                raise given_up
            if own_k:
                # Another process finished that range.
                return Again(written or None, state.rows_aside)
            with self._chain.unless_moved_on(cycle.record):
                confirm(promise, table)
            if log.head is None:
                log.look(state)
            table.prepare(log.log, log.schema)
            record = promised_again(cycle.record, promise.table, log.log.name)
            record = put_promise(self._chain, record, table.target)
            own_k = promise.table.k + 1
            present = {log.log.name: log.live_head.live}
            record, ranges, bad = finish_range(self._chain, record, table, present, gives_up=True)
            for error in bad.values():
                raise error
            if not ranges:
                raise given_up
            rows = ranges[log.log.name].rows
            with suppress(CompactionError, TableConflict):
                assert table.refused is not None
                table.refused.remove_taken(promise_to(record, table.target))
            written = None if rows is None or written is None else written + rows
            return Again(written, record.logs[log.log.name].rows_aside)

        return self._retry_if_moved(work)

    def _no_table_yet(self) -> PlanError:
        return PlanError(f"{self._log.url} has no table yet: compact it first")

    def _own_table(self, record: ChainRecord, *, may_move: bool = False) -> tuple[Table, str]:
        """The table of the log in a record, which is that of this process, and its URL there.

        Args:
            record: the newest record.
            may_move: this process may have it at another place.

        Raises:
            PlanError: the log has another table, or this process has none.
        """
        targets = {url: table.target for url, table in record.tables.items()}
        fixed, own = record.target_of(self._log.name), self._target
        if fixed is None and own is not None:
            only = next(iter(targets.values())) if may_move and len(targets) == 1 else None
            fixed = targets.get(own.table, only)
        if fixed is None:
            raise self._no_table_yet()
        if own is not None:
            check_same_target(replace(own, table=fixed.table) if may_move else own, fixed)
            if own.table in targets and own.table != fixed.table:
                raise PlanError(f"{own.table} is the table of other logs of {self._log.root.url}")
        if self._safeguards.table is None:
            raise no_table(self._log, fixed)
        return self._safeguards.table, fixed.table

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
            cycle = self._look(logs())
            # As if this process had never collected.
            afresh = [
                replace(log, collected=-1, looked_below=0, left=Erasure(), looks_again=looks_again)
                for log in cycle.sound
                if log.found != "no lifecycle"
            ]
            if afresh:
                cycle.collect(afresh, forgets_records=True, dry_run=dry_run)
            return {
                name: log.error or log.floor_error or log.collection
                for name, log in cycle.logs.items()
            }

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

    def _look(self, logs: Sequence[LogStore]) -> Cycle:
        known_logs = [self._known_log(log) for log in logs]
        return look(self._chain, self._policy, self._safeguards, known_logs)
