"""The one PUT that makes a microbatch durable, and what its answers mean."""

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
from sparkwal.protocol.slots import OpenLog, broken_off, read_back
from sparkwal.protocol.takeover import deleted, fenced
from sparkwal.protocol.task import TaskResult
from sparkwal.store.base import LogStore

# After this many microbatches without rows, or this long, a record carries the checkpoint forward.
FORWARD, FORWARD_MS = 100, 300_000


class Carrier(Protocol):
    """The checkpoint of a query, as `checkpoints.carry` implements it."""

    def capture(self, batch_id: int, last: Checkpoint | None) -> Carried | None: ...

    def without_rows(
        self,
        batch_id: int,
        last_record: Callable[[], tuple[int, Checkpoint | None]],
        *,
        must_carry: bool,
    ) -> Carried | None: ...

    def check_replay(
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
    carrier: Carrier | None

    @property
    def task(self) -> TaskResult:
        """One of its tasks: all name the query, its run and the microbatch."""
        return self.results[0]

    @cached_property
    def known(self) -> tuple[int, Checkpoint | None]:
        """The query's last microbatch in the log, and where its checkpoint is."""
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
    """Make one microbatch durable: 1 PUT. A replay costs none. Microbatches without rows cost none
    either, except an occasional record that carries the checkpoint. None: nothing was written.

    Args:
        results: of every task, at least one.
        carrier: the checkpoint of a stream; None in a batch write.

    Raises, if it is not committed, FencedError, StoreUnavailableError, DivergedCheckpointError (the
    log has other rows of this microbatch), OptionError (a batch write with a lower version than the
    last); OutcomeUnknownError if perhaps: the restart finds out.
    """
    plan = _plan_of(results)
    lead, run_id = plan.leadership, results[0].run_id
    batch = _Microbatch(open_log, plan, results, hints, clock, carrier)
    with hints.forgotten_when_fenced(lead.leader_id):
        written = sorted((r for r in results if r.batch or r.inline), key=lambda r: r.partition)
        carried = None
        if not written:
            # The log has this microbatch: its tasks wrote nothing.
            if any(result.content is not None for result in results):
                if not plan.is_for(run_id):
                    check_same_log(open_log(), lead)
                _skip(batch, lead)
            elif carrier is not None:
                before, then_ms = lead.txns.get(results[0].query_id, (-1, 0))
                is_young = 0 <= clock.now_ms() - then_ms < FORWARD_MS
                must_carry = batch.task.batch_id - before >= FORWARD or not is_young
                carried = carrier.without_rows(
                    batch.task.batch_id, lambda: batch.known, must_carry=must_carry
                )
            if carried is None:
                # Free the planned window: every task is done.
                remember_committed(hints, plan, run_id, clock)
                return None
            written = [results[0]]
        if carrier is not None:
            if lead.checkpoints and batch.known[0] < 0:
                report_new_query(open_log().url, batch.task.query_id, lead.checkpoints)
            if carried is None:
                carried = carrier.capture(batch.task.batch_id, batch.known[1])
        header, data = microbatch_record(plan, written, clock, codec, carried)
        return _put(batch, header, data, ttl_ms)


def _plan_of(results: Sequence[TaskResult]) -> Plan:
    if len({result.plan_id for result in results}) > 1:
        raise FencedError(
            "the tasks of this microbatch ran under different plans, and this run of it commits "
            "nothing. Restart with the same checkpoint"
        )
    for result in results:
        if result.plan is not None:
            return result.plan.whole()
    raise OutcomeUnknownError(
        "Spark asked to commit without the message of partition 0; nothing was committed. "
        "Restart with the same checkpoint"
    )


def _put(batch: _Microbatch, header: CommitHeader, data: bytes, ttl_ms: int) -> Committed | None:
    """Put the record. None if the driver slept and the log holds the microbatch already."""
    plan, log = batch.plan, batch.open_log()
    looked_ms = plan.looked_ms
    boot_id = plan.boot_id
    first = plan.leadership.began
    age = ClaimAge(log, batch.clock, ttl_ms, first, 1, looked_ms=looked_ms, boot_id=boot_id)
    began = age.before(header, look=not plan.is_for(batch.task.run_id))
    before = log.store.retries
    started = time.monotonic()
    put_record(log, header, data, _advice(header))
    put_ms = round((time.monotonic() - started) * 1000, 3)
    try:
        other = age.confirm_after_put(header, began)
    except (StoreUnavailableError, OptionError) as error:
        # The record is in the store. Whether it is in the log is not known.
        raise unknown(log, header, error, _advice(header)) from None
    if other is not None:
        _outside(batch, header, other.header)
        return None
    who, batch_id = header.query_id, header.batch_id
    events.emit(events.Durable(header.position, header.rows, who, batch_id, header.bytes, put_ms))
    put = Put(put_ms, log.store.retries - before)
    after = plan.leadership.after(header)
    run_id = batch.task.run_id
    done = replace(plan, leadership=after, run_id=run_id, looked_ms=age.looked_ms, last_put=put)
    remember_committed(batch.hints, done, run_id, batch.clock)
    return Committed(header.position, put)


def _outside(batch: _Microbatch, header: CommitHeader, head: SlotHeader) -> None:
    """The driver slept: its record lies outside of the log, which may hold the microbatch."""
    log = batch.open_log()
    if last_batch(batch.open_log, head, header.query_id) < header.batch_id:
        raise FencedError(
            f"this driver slept, and {log.url} went on without it: the record that it "
            f"put at position {header.position} lies outside of the log. Nothing of this "
            "microbatch was committed. Restart with the same checkpoint"
        )
    try:
        _skip(batch, batch.plan.leadership.after(head))
    except InvalidLogError as error:
        # The microbatch's own objects lie outside of the log too, and may be gone.
        raise unknown(log, header, error, _advice(header)) from None


def _skip(batch: _Microbatch, lead: Leadership) -> None:
    """Skip a replay if the log has the same rows: another copy of the checkpoint has others."""
    content = partial(content_of, batch.open_log, batch.results)
    query_id, batch_id = batch.task.query_id, batch.task.batch_id
    if batch.carrier is not None:
        # SAFETY(compare-replay) §12: a replay is compared with the log before it is skipped
        batch.carrier.check_replay(batch.open_log, lead, batch_id, content)
    else:
        check_transaction(batch.open_log, lead, query_id, batch_id, content)
    events.emit(events.SkippedReplay(query_id=query_id, batch_id=batch_id))


def _advice(header: CommitHeader) -> str:
    if header.query_id.startswith(ANONYMOUS):
        return (
            "only the rows themselves show whether it is: read the log before you write them "
            "again, and set txnAppId and txnVersion where a write may be repeated"
        )
    return (
        "restart with the same checkpoint (or the same txnAppId and txnVersion), and the log "
        "itself shows whether it is; nothing is written twice"
    )


def put_record(log: LogStore, header: CommitHeader, data: bytes, advice: str) -> None:
    """Put a commit record at its slot. `advice` is for the user if nobody knows whether it is
    durable. Raises FencedError, StoreUnavailableError (not durable), OutcomeUnknownError."""
    try:
        if log.store.put_if_absent(log.key(header.number), data):
            return
    except StoreUnavailableError as error:
        # SAFETY(no-answer-unknown) §6: a commit that may have arrived, unanswered, is unknown
        if not error.maybe_applied:
            raise
        raise unknown(log, header, error, advice) from None
    # The record at the slot may be ours, put by an attempt whose reply was lost.
    try:
        found = read_back(log, header.position, header.window, data)
    except (StoreUnavailableError, OptionError, InvalidLogError) as error:
        raise unknown(log, header, error, advice) from None
    if found is None:
        raise deleted(log, header.position)
    record, is_same = found
    # plan_id, never leader_id: another plan of the same leader is another microbatch.
    # SAFETY(refused-read-back) §6: a refused commit is read back and counts only if it is our own
    # SAFETY(read-back-plan) §6: a read-back compares plan_id, never leader_id
    if record.header.plan_id != header.plan_id:
        raise fenced(log, record)
    # SAFETY(read-back-bytes) §6: a refused commit counts only if all of its bytes are there
    if not is_same:
        raise unknown(log, header, broken_off(log, header.number, len(data)), advice)


def unknown(
    log: LogStore, header: CommitHeader, error: Exception, advice: str
) -> OutcomeUnknownError:
    """The error for a commit that may have taken effect; `error` is all that is known."""
    return OutcomeUnknownError(
        f"the commit of position {header.position} of {log.url} was sent and not answered "
        f"({error}). It may be durable: {advice}"
    )
