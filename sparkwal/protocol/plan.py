"""Which window the next microbatch owns: from the hint (no request) or by a cold start."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace

import pyarrow as pa

from sparkwal import events
from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.format.header import QueryProgress
from sparkwal.format.merging import merge
from sparkwal.protocol.archive import decode, encode
from sparkwal.protocol.clock import Clock, is_old
from sparkwal.protocol.hint import FencingNote, Hint, Hints, Put
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.slots import OpenLog
from sparkwal.protocol.takeover import Claim, fenced_by, lead
from sparkwal.store.base import LogStore, NotFound


@dataclass(frozen=True)
class Plan:
    """One microbatch's claim on the window of `leadership.next_position`, made once on the driver.

    Attributes:
        plan_id: no two plans have the same.
        run_id: of the run whose commit this plan builds on; None if the planner looked at the log.
            Another run must look before it writes: the log may have been deleted in between.
        looked_ms: when the log was last looked at, on the driver's boot-time clock.
        last_put: of the record before, if this leader put it and no record reports it yet.
    """

    plan_id: str
    run_id: str | None
    looked_ms: int
    boot_id: str
    leadership: Leadership
    last_put: Put | None = None

    @property
    def position(self) -> int:
        return self.leadership.next_position

    def is_for(self, run_id: str) -> bool:
        """Whether this run may write by this plan without a look at the log."""
        return self.run_id is None or self.run_id == run_id

    def for_tasks(self) -> TaskPlan:
        """The plan as it travels."""
        lead = self.leadership
        return TaskPlan(
            replace(self, leadership=replace(lead, txns={}, checkpoints={})),
            pa.compress(encode(QueryProgress(lead.txns, {})), codec="zstd", asbytes=True),
            pa.compress(encode(QueryProgress({}, lead.checkpoints)), codec="zstd", asbytes=True),
        )


@dataclass(frozen=True)
class TaskPlan:
    """A plan as it travels: to every task, and from the task of partition 0 to the commit. What the
    log remembers of a thousand queries is most of a plan, and only the commit needs it: so it stays
    compressed beside the `bare` plan, and only one task sends it back."""

    bare: Plan
    txns: bytes
    checkpoints: bytes

    def known_txns(self) -> QueryProgress:
        """What the log remembers, without the checkpoints."""
        return QueryProgress(_unpack(self.txns).txns, {}, self.bare.leadership.txns_archive)

    def whole(self) -> Plan:
        """The plan with all that the log remembers, for the commit."""
        txns, checkpoints = _unpack(self.txns).txns, _unpack(self.checkpoints).checkpoints
        lead = replace(self.bare.leadership, txns=txns, checkpoints=checkpoints)
        return replace(self.bare, leadership=lead)


def _unpack(packed: bytes) -> QueryProgress:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        return decode(stream.read(), "the plan of a microbatch")


def make_plan(open_log: OpenLog, claim: Claim, hints: Hints, clock: Clock, ttl_ms: int) -> Plan:
    """Plan one microbatch of a stream. Warm: no request, and no client. Cold: see `cold_plan`.

    Raises what `leadership.lead` raises. If another leader took the log over since this one's last
    microbatch, raises FencedError once; the next start takes it over again. Nobody fences a run
    that has ended: its query's next run takes the log over.
    """
    hint = hints.load(claim.leader_id)
    if isinstance(hint, FencingNote):
        hints.forget(claim.leader_id)
        # A note without a run was left for a planned microbatch: another run finds it.
        # SAFETY(fenced-run-stops) §6: a fenced run stops; it does not take the log back
        # SAFETY(ended-run-not-fenced) §6: a run that has ended is fenced by nobody
        if hint.run_id is not None and not hints.has_ended(hint.run_id):
            raise fenced_by(open_log(), hint)
        hint = None
    plan = _warm(hint, claim, hints, clock, ttl_ms) if hint is not None else None
    if plan is None:
        # If the last plan was not committed, its user saw the failure and starts again. Else the
        # run slept or has ended; only one that slept must not take back what another leader took.
        slept = hint is not None and hint.planned is None and not hints.has_ended(hint.goes_on)
        known = hint.leadership if hint is not None and slept else None
        with hints.forgotten_when_fenced(claim.leader_id):
            plan = cold_plan(open_log(), claim, hints, clock, ttl_ms, known)
        last = Hint(plan.leadership, claim.plan_id, "", "", plan.looked_ms, *_now(clock))
        hints.save(claim.leader_id, last)
    else:
        events.emit(events.Planned(plan.position, plan.plan_id, plan.leadership.term, "warm"))
    return plan


def cold_plan(
    log: LogStore, claim: Claim, hints: Hints, clock: Clock, ttl_ms: int, known: Leadership | None
) -> Plan:
    """Take the log over and plan its next window; see `leadership.lead`."""
    looked_ms = clock.boot_ms()
    leadership = lead(log, claim, clock, ttl_ms, known)
    last = leadership.next_position - 1
    term = leadership.term
    since_ms = leadership.timestamp_ms
    hints.fence_others(FencingNote(claim.leader_id, claim.host, last, term, since_ms))
    plan = Plan(claim.plan_id, None, looked_ms, clock.boot_id(), leadership)
    events.emit(events.Planned(plan.position, plan.plan_id, leadership.term, "cold"))
    return plan


def _warm(hint: Hint, claim: Claim, hints: Hints, clock: Clock, ttl_ms: int) -> Plan | None:
    # Tasks of an uncommitted plan may run still: its window is theirs until a leader takes it.
    if hint.planned is not None or is_old(clock, hint.boot_ms, hint.boot_id, ttl_ms):
        return None
    known = hint.leadership
    if claim.log_id not in (None, known.log_id):
        return None  # the cold start finds out which of the two logs is there
    claim.check_window(known.window)
    merged = merge(known.spark_schema, claim.spark_schema, allow_new=claim.merge_schema)
    leadership = replace(known, spark_schema=merged)
    # Save before any task may act on the plan: if this planner dies, the next one finds "planned"
    # and starts cold. Without that, a later planner would plan this window again: use no hint then.
    planned = Hint(leadership, claim.plan_id, hint.run_id, "", hint.looked_ms, *_now(clock))
    if not hints.save(claim.leader_id, planned):
        return None
    run_id, last_put = hint.run_id, hint.last_put
    return Plan(claim.plan_id, run_id, hint.looked_ms, hint.boot_id, leadership, last_put)


def _now(clock: Clock) -> tuple[int, str]:
    return clock.boot_ms(), clock.boot_id()


def remember_committed(hints: Hints, done: Plan, run_id: str, clock: Clock) -> None:
    """Note for the next planner that `run_id` is done with a plan. Never fails a commit.

    Args:
        done: the plan, with what holds after it; its `run_id` is None if this run saw the log last.
    """
    # A commit that slept for hours must not overwrite newer hints.
    lead, looked_by = done.leadership, done.run_id or run_id
    hint = hints.load(lead.leader_id)
    if isinstance(hint, Hint) and hint.planned == done.plan_id:
        # SAFETY(hint-names-run) §6: a hint names the run whose microbatch was done last
        last = Hint(lead, None, looked_by, run_id, done.looked_ms, *_now(clock), done.last_put)
        hints.save(lead.leader_id, last)
    # Another leader took the log over meanwhile, and this run goes on: its next plan must raise.
    # SAFETY(note-gets-run) §6: a commit under a fencing note adds its run to the note
    elif isinstance(hint, FencingNote) and hint.run_id is None:
        hints.save(lead.leader_id, replace(hint, run_id=run_id))


def check_visible(log: LogStore, plan: TaskPlan) -> None:
    """Check that a task sees the local disk on which the driver planned: 1 GET. No reader could
    find rows on another machine's disk. Raises OptionError."""
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
