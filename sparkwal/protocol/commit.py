"""Commits a microbatch with one PUT, and decides what the store's answer means."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

from sparkwal import events
from sparkwal.errors import (
    FencedError,
    InvalidLogError,
    OptionError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from sparkwal.format.content import Content
from sparkwal.format.header import ANONYMOUS, Checkpoint, CommitHeader, SlotHeader
from sparkwal.protocol.archive import last_batch, recall
from sparkwal.protocol.claim_age import ClaimAge, check_same_log
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.commit_record import Carried, microbatch_record
from sparkwal.protocol.hint import Hints, Put
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.new_query import report_new_query
from sparkwal.protocol.plan import Plan, remember_committed
from sparkwal.protocol.repeated import check_transaction, content_of
from sparkwal.protocol.slots import OpenLog, TornRecord, broken_off, read_back
from sparkwal.protocol.takeover import deleted, fenced
from sparkwal.protocol.task import TaskResult
from sparkwal.store.base import LogStore

# After this many microbatches without rows, or this many milliseconds, a record carries the
# checkpoint forward.
FORWARD, FORWARD_MS = 100, 300_000


class Carrier(Protocol):
    """The checkpoint of a query. `checkpoints.carry` implements it."""

    def capture(self, batch_id: int, last: Checkpoint | None, *, again: bool) -> Carried | None: ...

    def without_rows(
        self,
        batch_id: int,
        last_record: Callable[[], tuple[int, Checkpoint | None]],
        *,
        must_carry: bool,
        again: bool,
    ) -> Carried | None: ...

    def check_repeated(
        self, open_log: OpenLog, lead: Leadership, batch_id: int, content: Callable[[], Content]
    ) -> None: ...


@dataclass(frozen=True)
class _Microbatch:
    """The inputs of one commit."""

    open_log: OpenLog
    plan: Plan
    results: Sequence[TaskResult]
    hints: Hints
    clock: Clock
    ttl_ms: int
    codec: str | None
    carrier: Carrier | None

    @property
    def task(self) -> TaskResult:
        """The first task: all name the same query, run and microbatch."""
        return self.results[0]

    @cached_property
    def written(self) -> list[TaskResult]:
        """The tasks that wrote rows, in partition order."""
        with_rows = (result for result in self.results if result.batch or result.inline)
        return sorted(with_rows, key=lambda result: result.partition)

    @property
    def is_repeated(self) -> bool:
        """Whether the log holds this microbatch already: then its tasks wrote nothing."""
        return not self.written and any(result.content is not None for result in self.results)

    @property
    def begins_run(self) -> bool:
        """Whether this run has committed nothing under a plan that this one continues."""
        return self.plan.checked_by != self.task.run_id

    @cached_property
    def last_record(self) -> tuple[int, Checkpoint | None]:
        """The query's last microbatch in the log, and the entry of its checkpoint."""
        return recall(self.open_log, self.plan.leadership, self.task.query_id)


@dataclass(frozen=True)
class Committed:
    """A durable microbatch: the position of its record, and the measures of its PUT."""

    position: int
    put: Put


def commit(
    open_log: OpenLog,
    results: Sequence[TaskResult],
    hints: Hints,
    clock: Clock,
    ttl_ms: int,
    codec: str | None,
    carrier: Carrier | None = None,
) -> Committed | None:
    """Make one microbatch durable: 1 PUT.

    A repeated microbatch costs no PUT. One without rows costs none either, except an occasional
    record that carries the checkpoint.

    Args:
        open_log: opens the log.
        results: the results of all tasks, at least one.
        hints: the hints of this machine.
        clock: the clock.
        ttl_ms: how long a look at the log counts.
        codec: compresses inlined rows.
        carrier: the checkpoint of a stream; None in a batch write.

    Returns:
        The position and the PUT, or None if no record was necessary.

    Raises:
        FencedError: another writer leads. The microbatch is not committed.
        StoreUnavailableError: the store did not answer. The microbatch is not committed.
        DivergedCheckpointError: the log has other rows of this microbatch.
        OptionError: a batch write has a lower version than the last.
        OutcomeUnknownError: the microbatch may be committed. A restart finds out.
    """
    plan = _plan_of(results)
    batch = _Microbatch(open_log, plan, results, hints, clock, ttl_ms, codec, carrier)
    with hints.forgotten_when_fenced(plan.leadership.leader_id):
        if batch.is_repeated:
            _skip_repeated(batch)
            return None
        if not batch.written:
            return _commit_without_rows(batch)
        return _commit_rows(batch)


def _skip_repeated(batch: _Microbatch) -> None:
    """Skip a microbatch that the log holds already."""
    plan = batch.plan
    if not plan.may_skip_look(batch.task.run_id):
        check_same_log(batch.open_log(), plan.leadership)
    _skip(batch, plan.leadership)
    _free_window(batch)


def _commit_without_rows(batch: _Microbatch) -> Committed | None:
    """Put a record that carries the checkpoint, if it is time for one."""
    task = batch.task
    carried = None
    if batch.carrier is not None:
        before, then_ms = batch.plan.leadership.txns.get(task.query_id, (-1, 0))
        is_young = 0 <= batch.clock.now_ms() - then_ms < FORWARD_MS
        carried = batch.carrier.without_rows(
            task.batch_id,
            lambda: batch.last_record,
            must_carry=task.batch_id - before >= FORWARD or not is_young,
            again=batch.begins_run,
        )
    if carried is None:
        _free_window(batch)
        return None
    _report_new_query(batch)
    return _put(batch, [task], carried)


def _commit_rows(batch: _Microbatch) -> Committed | None:
    """Put the record of a microbatch with rows."""
    carried = None
    if batch.carrier is not None:
        _report_new_query(batch)
        carried = batch.carrier.capture(
            batch.task.batch_id, batch.last_record[1], again=batch.begins_run
        )
    return _put(batch, batch.written, carried)


def _free_window(batch: _Microbatch) -> None:
    """Free the planned window: every task has ended, and no record is put."""
    remember_committed(batch.hints, batch.plan, batch.task.run_id, batch.clock)


def _report_new_query(batch: _Microbatch) -> None:
    """Report a query that has no record in a log with other queries."""
    checkpoints = batch.plan.leadership.checkpoints
    if checkpoints and batch.last_record[0] < 0:
        report_new_query(batch.open_log().url, batch.task.query_id, checkpoints)


def _plan_of(results: Sequence[TaskResult]) -> Plan:
    if len({result.plan_id for result in results}) > 1:
        raise FencedError(
            "the tasks of this microbatch ran under different plans, and this run of it commits "
            "nothing. Restart with the same checkpoint"
        )
    for result in results:
        if result.plan is not None:
            return result.plan.full_plan()
    raise OutcomeUnknownError(
        "Spark asked to commit without the message of partition 0. This microbatch was not "
        "committed. Restart with the same checkpoint"
    )


def _put(
    batch: _Microbatch, written: list[TaskResult], carried: Carried | None
) -> Committed | None:
    """Put the record.

    Returns:
        The position and the PUT, or None if the driver slept and the log holds the microbatch
        already.
    """
    plan = batch.plan
    header, data = microbatch_record(plan, written, batch.clock, batch.codec, carried)
    log = batch.open_log()
    age = ClaimAge(
        log,
        batch.clock,
        batch.ttl_ms,
        plan.leadership.began,
        1,
        looked_ms=plan.looked_ms,
        boot_id=plan.boot_id,
    )
    began = age.before(header, at_once=not plan.may_skip_look(batch.task.run_id))
    before = log.store.retries
    started = time.monotonic()
    put_record(log, header, data, _advice(header))
    put_ms = round((time.monotonic() - started) * 1000, 3)
    try:
        other = age.confirm_after_put(header, began)
    except (StoreUnavailableError, OptionError) as error:
        # The record is in the store, but it is unknown whether it is in the log.
        raise unknown(log, header, error, _advice(header)) from None
    if other is not None:
        _outside(batch, header, other.header)
        return None
    events.emit(
        events.Durable(
            header.position,
            header.rows,
            header.query_id,
            header.batch_id,
            header.bytes,
            put_ms,
        )
    )
    put = Put(put_ms, log.store.retries - before)
    run_id = batch.task.run_id
    committed = replace(
        plan,
        leadership=plan.leadership.after(header),
        checked_by=run_id,
        looked_ms=age.looked_ms,
        last_put=put,
    )
    remember_committed(batch.hints, committed, run_id, batch.clock)
    return Committed(header.position, put)


def _outside(batch: _Microbatch, header: CommitHeader, head: SlotHeader) -> None:
    """Decide a microbatch whose record lies outside of the log, because the driver slept.

    Raises:
        FencedError: the log does not hold the microbatch.
        OutcomeUnknownError: the log may hold it.
    """
    log = batch.open_log()
    if last_batch(batch.open_log, head, header.query_id) < header.batch_id:
        raise FencedError(
            f"this driver slept, and {log.url} continued without it: the record that it put at "
            f"position {header.position} lies outside of the log. This microbatch was not "
            "committed. Restart with the same checkpoint"
        )
    try:
        _skip(batch, batch.plan.leadership.after(head))
    except InvalidLogError as error:
        # The microbatch's own objects lie outside of the log too, and may have been deleted.
        raise unknown(log, header, error, _advice(header)) from None


def _skip(batch: _Microbatch, lead: Leadership) -> None:
    """Skip a repeated microbatch if the log has the same rows. Another copy of the checkpoint has
    others.

    Raises:
        DivergedCheckpointError: the log has other rows.
    """
    content = partial(content_of, batch.open_log, batch.results)
    query_id, batch_id = batch.task.query_id, batch.task.batch_id
    if batch.carrier is not None:
        # SAFETY(compare-replay) §12: a replay is compared with the log before it is skipped
        batch.carrier.check_repeated(batch.open_log, lead, batch_id, content)
    else:
        check_transaction(batch.open_log, lead, query_id, batch_id, content)
    events.emit(events.SkippedReplay(query_id=query_id, batch_id=batch_id))


def _advice(header: CommitHeader) -> str:
    if header.query_id.startswith(ANONYMOUS):
        return (
            "only the rows themselves show whether it is: read the log before you write them "
            "again, and set txnAppId and txnVersion if a write may be repeated"
        )
    return (
        "restart with the same checkpoint (or the same txnAppId and txnVersion), and the log "
        "itself shows whether it is; no row is written twice"
    )


def put_record(log: LogStore, header: CommitHeader, data: bytes, advice: str) -> None:
    """Put a commit record at its slot.

    Args:
        log: the log.
        header: the header of the record.
        data: the bytes of the record.
        advice: tells the user what to do if the outcome is unknown.

    Raises:
        FencedError: another writer's record is at the slot.
        StoreUnavailableError: the record is not durable.
        OutcomeUnknownError: the record may be durable.
    """
    try:
        if log.store.put_if_absent(log.key(header.number), data):
            return
    except StoreUnavailableError as error:
        # SAFETY(no-answer-unknown) §6: a commit that may have arrived, unanswered, is unknown
        if not error.maybe_applied:
            raise
        raise unknown(log, header, error, advice) from None
    # The slot may hold our own record, put by an attempt whose reply was lost.
    try:
        stored = read_back(log, header, data)
    except TornRecord:
        # The store has a part of our record, or of another's. The next leader passes over it.
        # SAFETY(read-back-bytes) §6: a refused commit counts only if all of its bytes are there
        raise unknown(log, header, broken_off(log, header.number, len(data)), advice) from None
    except (StoreUnavailableError, OptionError, InvalidLogError) as error:
        raise unknown(log, header, error, advice) from None
    if stored is None:
        raise deleted(log, header.position)
    record, is_same = stored
    # Compare plan_ids, not leader_ids: another plan of the same leader is another microbatch.
    # SAFETY(refused-read-back) §6: a refused commit is read back and counts only if it is our own
    # SAFETY(read-back-plan) §6: a read-back compares plan_id, never leader_id
    if record.header.plan_id != header.plan_id:
        raise fenced(log, record)
    # A part without the end of the file is no torn record, and `verify` reports it.
    if not is_same:
        raise unknown(log, header, broken_off(log, header.number, len(data)), advice)


def unknown(
    log: LogStore, header: CommitHeader, error: Exception, advice: str
) -> OutcomeUnknownError:
    """The error for a commit that may have taken effect. `error` is the reason."""
    return OutcomeUnknownError(
        f"the commit of position {header.position} of {log.url} was sent and not answered "
        f"({error}). It may be durable: {advice}"
    )
