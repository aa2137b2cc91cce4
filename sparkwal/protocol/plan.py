"""Plans the window of the next microbatch: from the hint (no request) or by a cold start."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace

import pyarrow as pa

from sparkwal import events
from sparkwal.errors import OptionError
from sparkwal.format import keys, limits
from sparkwal.format.header import QueryProgress
from sparkwal.format.merging import merge
from sparkwal.protocol.archive import decode, encode
from sparkwal.protocol.clock import Clock, is_old
from sparkwal.protocol.hint import Committed, Fenced, Hints, LeaderNote, Planned, Put
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.slots import GLANCE, OpenLog, fetch_slot
from sparkwal.protocol.takeover import Claim, fenced_by, lead
from sparkwal.store.base import LogStore, NotFound


@dataclass(frozen=True)
class Plan:
    """The claim of one microbatch on the window of `leadership.next_position`, made on the driver.

    Attributes:
        plan_id: unique.
        checked_by: the query's run on whose commit or look this plan builds; None if the planner
            itself looked at the log.
        looked_ms, boot_id: the time of the last look at the log, on the driver's boot-time clock.
        leadership: the leadership before the microbatch.
        last_put: the PUT of the record before, if this leader put it and no record reports it yet.
    """

    plan_id: str
    checked_by: str | None
    looked_ms: int
    boot_id: str
    leadership: Leadership
    last_put: Put | None = None

    @property
    def position(self) -> int:
        return self.leadership.next_position

    def may_skip_look(self, run_id: str) -> bool:
        """Whether this run may write under this plan without a look at the log.

        Another run than `checked_by` must look first: the log may have been deleted in between.
        """
        return self.checked_by in (None, run_id)

    def for_tasks(self) -> TaskPlan:
        """The plan as it travels to the tasks."""
        lead = self.leadership
        return TaskPlan(
            replace(self, leadership=replace(lead, txns={}, checkpoints={})),
            pa.compress(encode(QueryProgress(lead.txns, {})), codec="zstd", asbytes=True),
            pa.compress(encode(QueryProgress({}, lead.checkpoints)), codec="zstd", asbytes=True),
        )


@dataclass(frozen=True)
class TaskPlan:
    """A plan as it travels to every task, and from the task of partition 0 to the commit.

    Most of a plan are the transactions of up to a thousand queries, and only the commit needs them.
    So they stay compressed beside the `bare` plan, and only one task sends them back.
    """

    bare: Plan
    txns: bytes
    checkpoints: bytes

    def progress(self) -> QueryProgress:
        """The transactions of the log's queries, without the checkpoints."""
        return QueryProgress(_unpack(self.txns).txns, {}, self.bare.leadership.txns_archive)

    def full_plan(self) -> Plan:
        """The plan with all transactions and checkpoints, for the commit."""
        txns, checkpoints = _unpack(self.txns).txns, _unpack(self.checkpoints).checkpoints
        lead = replace(self.bare.leadership, txns=txns, checkpoints=checkpoints)
        return replace(self.bare, leadership=lead)


def _unpack(packed: bytes) -> QueryProgress:
    return decode(bytes(limits.inflate(packed, limits.ARCHIVE)), "the plan of a microbatch")


def make_plan(
    open_log: OpenLog,
    claim: Claim,
    hints: Hints,
    clock: Clock,
    ttl_ms: int,
    open_reader: OpenLog | None = None,
) -> Plan:
    """Plan one microbatch of a stream.

    A warm plan costs no request and opens no client; for a cold one see `cold_plan`. A run that has
    ended is never fenced: the query's next run takes the log over. Its first plan costs 1 GET,
    which finds out whether another writer led the log in between.

    Args:
        open_log: opens the log for a writer.
        claim: the writer.
        hints: the hints of this machine.
        clock: the clock.
        ttl_ms: how long a look at the log counts.
        open_reader: opens the log for that GET; by default `open_log`.

    Raises:
        FencedError: another leader took the log over since this leader's last microbatch. It is
            raised once; the next start takes the log over again.
        SparkWalError: see `takeover.lead`.
    """
    hint = hints.load(claim.leader_id)
    if isinstance(hint, Fenced):
        hints.forget(claim.leader_id)
        # While the note is pending, the run that commits the plan is fenced, not this one.
        # SAFETY(fenced-run-stops) §6: a fenced run stops; it does not take the log back
        # SAFETY(ended-run-not-fenced) §6: a run that has ended is fenced by nobody
        if not hint.is_pending and not hints.has_ended(hint.run_id):
            raise fenced_by(open_log(), hint.by)
        hint = None
    plan = None
    if isinstance(hint, Committed) and not _was_led(hint, hints, open_reader or open_log):
        plan = _plan_warm(hint, claim, hints, clock, ttl_ms)
    if plan is None:
        # If the last plan was not committed, its user saw the failure and started again. If it was
        # committed, the run has ended or it slept. Only a run that slept must not take the log back
        # from another leader.
        former = None
        if isinstance(hint, Committed) and not hints.has_ended(hint.last_run_id):
            former = hint.leadership
        with hints.forgotten_when_fenced(claim.leader_id):
            plan = cold_plan(open_log(), claim, hints, clock, ttl_ms, former)
        hints.save(claim.leader_id, Planned(claim.leader_id, claim.plan_id))
    else:
        events.emit(events.Planned(plan.position, plan.plan_id, plan.leadership.term, "warm"))
    return plan


def _was_led(hint: Committed, hints: Hints, open_reader: OpenLog) -> bool:
    """Whether another writer led the log since the last run of the query ended.

    Such a writer put its leader record into the first gap. An appender, or a writer on another
    machine, leaves no note in the hints.
    """
    if not hints.has_ended(hint.last_run_id):
        return False
    lead = hint.leadership
    return fetch_slot(open_reader(), lead.next_position, lead.window, GLANCE) is not None


def cold_plan(
    log: LogStore, claim: Claim, hints: Hints, clock: Clock, ttl_ms: int, former: Leadership | None
) -> Plan:
    """Take the log over and plan its next window; see `takeover.lead`."""
    looked_ms = clock.boot_ms()
    leadership = lead(log, claim, clock, ttl_ms, former)
    last = leadership.next_position - 1
    term = leadership.term
    since_ms = leadership.timestamp_ms
    hints.fence_others(LeaderNote(claim.leader_id, claim.host, last, term, since_ms))
    plan = Plan(claim.plan_id, None, looked_ms, clock.boot_id(), leadership)
    events.emit(events.Planned(plan.position, plan.plan_id, leadership.term, "cold"))
    return plan


def _plan_warm(
    hint: Committed, claim: Claim, hints: Hints, clock: Clock, ttl_ms: int
) -> Plan | None:
    """Plan from the hint, or return None if it is too old or of another log: then start cold."""
    if is_old(clock, hint.boot_ms, hint.boot_id, ttl_ms):
        return None
    leadership = hint.leadership
    # The cold start finds out which of the two logs exists.
    if claim.log_id not in (None, leadership.log_id):
        return None
    claim.check_window(leadership.window)
    merged = merge(leadership.spark_schema, claim.spark_schema, allow_new=claim.merge_schema)
    # Save before any task uses the plan: if this planner dies, the next one finds the hint in the
    # state planned and starts cold. If the write fails, start cold; otherwise the next planner
    # would plan the window again.
    if not hints.save(claim.leader_id, Planned(claim.leader_id, claim.plan_id)):
        return None
    return Plan(
        claim.plan_id,
        hint.checked_by,
        hint.looked_ms,
        hint.boot_id,
        replace(leadership, spark_schema=merged),
        hint.last_put,
    )


def remember_committed(hints: Hints, plan: Plan, run_id: str, clock: Clock) -> None:
    """Note for the next planner that the run `run_id` has committed a plan. Never fails a commit.

    Args:
        hints: the hints of this machine.
        plan: the plan, with the leadership after it. Its `checked_by` is None if this run looked at
            the log or wrote last.
        run_id: the run.
        clock: the clock.
    """
    # Change the hint only if it is of this plan: a commit that slept for hours must not overwrite a
    # newer one.
    leadership = plan.leadership
    hint = hints.load(leadership.leader_id)
    if isinstance(hint, Planned) and hint.plan_id == plan.plan_id:
        checked_by = plan.checked_by or run_id
        now = clock.boot_ms(), clock.boot_id()
        # SAFETY(hint-names-run) §6: a hint names the run whose microbatch was done last
        hint = Committed(leadership, checked_by, run_id, plan.looked_ms, *now, plan.last_put)
        hints.save(leadership.leader_id, hint)
    # Another leader took the log over meanwhile, so the next plan of this run must raise.
    # SAFETY(note-gets-run) §6: a commit under a fencing note adds its run to the note
    elif isinstance(hint, Fenced) and hint.is_pending:
        hints.save(leadership.leader_id, replace(hint, run_id=run_id, is_pending=False))


def check_visible(log: LogStore, plan: TaskPlan) -> None:
    """Check that a task sees the local disk on which the driver planned. 1 GET.

    No reader could find rows on another machine's disk.

    Raises:
        OptionError: the task is on another disk.
    """
    lead = plan.bare.leadership
    number = keys.slot(lead.next_position - 1, lead.window)
    try:
        log.store.get_range(log.key(number), 0, 1)
    except NotFound:
        raise OptionError(
            f"{log.url} on host {socket.gethostname()} does not hold the log that the driver on "
            f"host {lead.host} writes: {log.key(number)} is missing. A log that several "
            "machines write needs a store that all of them see: use s3://…, or a folder that is "
            "mounted on each of them. (If the log was deleted just now: restart the query)"
        ) from None
