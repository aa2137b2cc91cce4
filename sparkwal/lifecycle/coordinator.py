"""Runs a log's lifecycle: intent → write → confirm → publish → floor → collect.

Every step begins at the newest record of the chain, and any process can finish a range that a
crashed process left open.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from sparkwal import events
from sparkwal.errors import CompactionError, PlanError, PublishError
from sparkwal.format.keys import ROOT
from sparkwal.format.lifecycle_record import FLOOR, LifecycleRecord, Target
from sparkwal.lifecycle.collection import Collection, Safeguards, collect
from sparkwal.lifecycle.compaction import (
    Chain,
    MovedOn,
    Range,
    accept,
    check_log,
    confirm_table,
    finish_range,
    put_intent,
    unless_moved_on,
    versions_of,
)
from sparkwal.lifecycle.consumers import bound as consumers_bound
from sparkwal.lifecycle.policy import Due, LogState, Policy, decide, measure
from sparkwal.lifecycle.table import Table, check_same_target
from sparkwal.protocol.chain import beginning, newest_lifecycle
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.records import first_at_or_after
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.store.base import LogStore

DAY_MS = 86_400_000
R = TypeVar("R")
# Attempts of a run while other processes change the lifecycle first.
_ATTEMPTS = 10
# After this number of new versions of the table the newest is recorded, at most once an hour.
_VERSIONS = 20
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Run:
    """The result of one run.

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


class Coordinator:
    """The lifecycle of one log; each sequencer's log has its own.

    Args:
        log: the open log.
        policy: decides when rows go to the table and when they leave the log.
        sequencer: the log's name.
        table: receives the rows. Without one, only the policy's retention moves the floor.
        target: how the rows are written to the table.
        gc_grace_ms: collection deletes only objects that the floor passed at least this long ago.
        consumer_expiry_ms: the floor does not wait for a consumer that has not published for
            longer.
        collects: whether `run_once` deletes objects.
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
        self._sequencer = sequencer
        self._clock = clock or SYSTEM
        self._chain = Chain(log, self._clock, host or socket.gethostname())
        self._table = table
        self._target = target
        self._collects = collects
        self._safeguards = Safeguards(table, gc_grace_ms, consumer_expiry_ms)
        # The bound of the last collection of this process.
        self._collected = 0
        # The size limit that the log has reached, for which an event was emitted.
        self._reached = ""
        self._measured: LogState | None = None
        # The head that this process read last.
        self._head: Head | None = None

    def recover(self) -> Run:
        """Finish the range that an earlier run left open, if there is one.

        Returns:
            The state before the run, and the range that it finished.

        Raises:
            CompactionError: the range did not reach the table; the next run continues with it.
            InvalidLogError: a record of the log or of its lifecycle is damaged.
            StoreUnavailableError: the store did not answer.
        """
        return self._retry_if_moved(self._recover)[0]

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
        return self._retry_if_moved(lambda: self._run(whole=whole))

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
            _, state = self._read_state()
            if state is None or state.target is None:
                raise PlanError(f"{self._log.url} has no table yet that could be accepted")
            return accept(self._chain, state, self._require_table(state))

        return self._retry_if_moved(work)

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

    def _read_state(self) -> tuple[Head, LifecycleRecord | None]:
        """Read the log's head, and the newest record of the chain of this log."""
        state = newest_lifecycle(self._log)
        head = self._head = find_head(self._log)
        if state is not None and head.live is not None:
            check_log(self._log, head.gap, head.live.header.log_id, state)
        return head, state if head.live else None

    def _recover(self) -> tuple[Run, Head, LifecycleRecord | None]:
        head, state = self._read_state()
        if head.live is None or state is None:
            return Run("no lifecycle" if head.live else "no log"), head, None
        if self._target is not None and state.target is not None:
            check_same_target(self._target, state.target)
        # §10: at most one range is open
        if not state.is_open:
            return Run("at rest", state.cut, state.floor), head, state
        done, finished = finish_range(self._chain, state, self._require_table(state))
        return Run("an open range", done.cut, done.floor, finished), head, done

    def _require_table(self, state: LifecycleRecord) -> Table:
        if self._table is None:
            assert state.target is not None
            raise PlanError(
                f"{self._log.url} is compacted into {state.target.table}: a run without a table "
                "cannot write it"
            )
        return self._table

    def _run(self, *, whole: bool) -> Run:
        run, head, state = self._recover()
        if head.live is None:
            return run
        log_id = head.live.header.log_id
        state = state or beginning(log_id, self._sequencer, self._safeguards.grace_ms)
        if self._table is not None and state.target is None and state.floor > state.cut:
            # A new table begins at the floor: retention has released the rows below it.
            state = replace(state, cut=state.floor, to=state.floor)
        now_ms = self._clock.now_ms()
        policy = replace(self._policy, late_window_seconds=0) if whole else self._policy
        has_table = self._table is not None
        with unless_moved_on(self._log, state):
            measured = measure(
                self._log,
                head,
                state,
                policy,
                now_ms,
                has_table=has_table,
                before=self._measured,
            )
        self._measured = measured
        decision = decide(measured, policy, now_ms)
        self._report_limit(decision, policy, measured)
        before_ms = decision.before_ms
        compacted = None
        if whole and measured.first_ms is not None:
            before_ms = head.live.header.timestamp_ms
        if before_ms is not None and self._table is not None and self._target is not None:
            with unless_moved_on(self._log, state):
                to = first_at_or_after(self._log, head, before_ms + 1, start=state.cut)
            if to > state.cut:
                columns = head.live.spark_schema
                state = put_intent(self._chain, state, to, self._target, self._table, columns)
                state, compacted = finish_range(self._chain, state, self._table)
        before = state
        state = self._move_floor(state, measured)
        collected = None
        if self._collects and state.floor > self._collected:
            collected = collect(self._log, head, state, self._safeguards, above=self._collected)
            self._collected = collected.bound if collected else self._collected
        if compacted is None and run.finished is None:
            self._confirm_forward(state, floor_moved=state is not before)
        return Run(run.found, state.cut, state.floor, run.finished, compacted, collected)

    def _report_limit(self, decision: Due, policy: Policy, measured: LogState) -> None:
        """Emit an event when the log reaches a size limit, once until it falls below."""
        if decision.limit not in ("", self._reached):
            limit = policy.hard_limit if decision.limit == "hardLimitBytes" else policy.soft_limit
            waiting = measured.waiting_bytes
            events.emit(events.SizeLimit(self._log.url, decision.limit, waiting, limit or 0))
        self._reached = decision.limit

    def _confirm_forward(self, state: LifecycleRecord, *, floor_moved: bool) -> None:
        """Record a newer version of the table from time to time.

        Without it, the table could delete the history that follows the recorded version, and
        readers would have to check ever more of it.
        """
        if self._table is None or state.target is None or state.is_open:
            return
        snapshot = confirm_table(self._log, state, self._table)
        new_versions = snapshot.version - state.table_version
        age_ms = self._clock.now_ms() - state.timestamp_ms
        # At most hourly: a busy table would cause a record in each run, also without new rows.
        is_late = age_ms >= DAY_MS or (new_versions >= _VERSIONS and age_ms >= _HOUR_MS)
        # While the floor moves often, no record gets a day old, so a moved floor counts too.
        if new_versions and (is_late or floor_moved):
            self._chain.put(state, FLOOR, **versions_of(snapshot))

    def _move_floor(self, state: LifecycleRecord, measured: LogState) -> LifecycleRecord:
        """Move the floor as far as the policy, the consumers and the confirmed table allow."""
        floor = measured.retained_from
        # This includes a table that has no range yet.
        if measured.has_table:
            retention = (self._policy.retain_seconds, self._policy.retain_bytes)
            # SAFETY(floor-below-cut) §10: with a table the floor never passes the cut
            floor = state.cut if retention == (None, None) else min(floor, state.cut)
        floor = consumers_bound(self._log, state.log_id, floor, self._safeguards.expiry_ms)
        # SAFETY(floor-never-back) §10: the floor never goes back
        if floor <= state.floor:
            return state
        # Never shorten the grace: readers of an earlier record rely on the grace in it.
        grace_ms = max(self._safeguards.grace_ms, state.gc_grace_ms)
        state = self._chain.put(state, FLOOR, floor=floor, gc_grace_ms=grace_ms)
        events.emit(events.FloorMoved(path=self._log.url, floor=floor))
        return state

    def collect(self, *, dry_run: bool) -> Collection | None:
        """Delete the objects that may be deleted now, or only count them.

        Args:
            dry_run: only count them.

        Returns:
            The objects that were deleted or may be deleted, or None if the log has no lifecycle.

        Raises:
            ConfirmError: the table no longer holds what the log would lose.
            InvalidLogError: a record of the log or of its lifecycle is damaged.
            StoreUnavailableError: the store did not answer.
        """

        def work() -> Collection | None:
            head, state = self._read_state()
            if state is None:
                return None
            return collect(self._log, head, state, self._safeguards, dry_run=dry_run)

        return self._retry_if_moved(work)
