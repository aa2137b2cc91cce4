"""Which window the next microbatch owns: from the hint (no request) or by a cold start."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparkwal import events
from sparkwal.errors import OptionError
from sparkwal.format import keys, schema
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.hint import Hint, Hints, fresh
from sparkwal.protocol.leadership import Claim, Leadership, lead
from sparkwal.protocol.log_store import LogStore
from sparkwal.store.base import NotFound


@dataclass(frozen=True)
class Plan:
    """One microbatch's claim on the window of `leadership.next_position`.

    Made once on the driver, carried to every task and, in the tasks' messages,
    to the commit. Two plans never have the same `plan_id`.

    Attributes:
        planned_ms, boot_id: when it was made, on the driver's boot-time clock.
    """

    plan_id: str
    leadership: Leadership
    planned_ms: int
    boot_id: str

    @property
    def position(self) -> int:
        return self.leadership.next_position


def make_plan(
    open_log: Callable[[], LogStore],
    claim: Claim,
    hints: Hints,
    clock: Clock,
    ttl_ms: int,
) -> Plan:
    """Plan one microbatch. Warm: no request. Cold: see `leadership.lead`.

    Args:
        open_log: called on a cold start only; a client costs tens of milliseconds.
        claim: its plan_id becomes the plan's.

    Raises what `leadership.lead` raises.
    """
    leadership = _warm(claim, hints, clock, ttl_ms)
    if leadership is None:
        leadership = lead(open_log(), claim, clock)
        hints.forget_others(claim.leader_id)
        _save(hints, leadership, claim.plan_id, clock)
        kind = "cold"
    else:
        kind = "warm"
    events.emit(
        events.Planned(
            position=leadership.next_position,
            plan_id=claim.plan_id,
            term=leadership.term,
            start=kind,
        )
    )
    return Plan(claim.plan_id, leadership, clock.boot_ms(), clock.boot_id())


def _warm(claim: Claim, hints: Hints, clock: Clock, ttl_ms: int) -> Leadership | None:
    hint = hints.load(claim.leader_id)
    # A plan that was not committed may still have tasks running: its window is
    # theirs, and only a leader record in its slot takes it away from them.
    if hint is None or hint.planned is not None or not fresh(hint, clock, ttl_ms):
        return None
    known = hint.leadership
    if claim.window not in (None, known.window):
        raise OptionError(
            f"windowSize is {claim.window}, but this log was created with {known.window}; "
            "leave the option out, or write to a new path"
        )
    leadership = replace(
        known,
        spark_schema=schema.merge(
            known.spark_schema, claim.spark_schema, allow_new=claim.merge_schema
        ),
    )
    # Written down before anyone may act on it: a planner that dies here leaves
    # "planned", and the next one starts cold. Where it cannot be written, a later
    # planner would plan this window again, so do not use the hint at all.
    return leadership if _save(hints, leadership, claim.plan_id, clock) else None


def _save(hints: Hints, leadership: Leadership, planned: str | None, clock: Clock) -> bool:
    return hints.save(Hint(leadership, planned, clock.boot_ms(), clock.boot_id()))


def remember_committed(hints: Hints, plan: Plan, after: Leadership, clock: Clock) -> None:
    """Tell the next planner that `plan` is done and `after` holds. Never fails a commit."""
    # Only if the hint still speaks of this plan: a commit that was stopped for
    # hours must not wake up and overwrite what happened since.
    hint = hints.load(plan.leadership.leader_id)
    if hint is not None and hint.planned == plan.plan_id:
        _save(hints, after, None, clock)


def check_visible(log: LogStore, plan: Plan) -> None:
    """For a task on a local disk: is it the disk that the driver planned on? 1 GET.

    What a task writes to another machine's disk would be committed, and nobody could read it.

    Raises OptionError where the record before the plan's window is not there.
    """
    number = keys.slot(plan.position - 1, plan.leadership.window)
    try:
        log.store.get_range(log.key(number), 0, 1)
    except NotFound:
        raise OptionError(
            f"{log.url} on host {socket.gethostname()} does not hold the log that the driver on "
            f"host {plan.leadership.host} writes: {log.key(number)} is missing. A log that several "
            "machines write needs a store that all of them see: use s3://…, or a folder that is "
            "mounted on each of them. (If the log was deleted just now: restart the query)"
        ) from None
