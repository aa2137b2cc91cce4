"""Moves the floors of logs."""

from dataclasses import replace

from sparkwal import events
from sparkwal.errors import SparkWalError
from sparkwal.lifecycle.collecting.collection import Safeguards
from sparkwal.lifecycle.consumers.readers import look_at_readers
from sparkwal.lifecycle.cycle import Cycle
from sparkwal.lifecycle.policy import Policy
from sparkwal.protocol.chain import Chain
from sparkwal.protocol.lifecycle_steps import with_logs
from sparkwal.reading.listing import list_logs


def move_floors(chain: Chain, cycle: Cycle, policy: Policy, safeguards: Safeguards) -> None:
    """Move the floors as far as policy, consumers and confirmed table allow, by one record."""
    wanted = []
    for member in cycle.sound:
        state, measured = cycle.state(member), member.measured
        if measured is None:
            continue
        floor = measured.retained_from
        # This includes a table that has no range yet.
        if measured.has_table:
            retention = (policy.retain_seconds, policy.retain_bytes)
            # SAFETY(floor-below-cut) §10: with a table the floor never passes the cut
            floor = state.cut if retention == (None, None) else min(floor, state.cut)
        if floor > state.floor:
            wanted.append((member, state, floor))
    if not wanted:
        return
    logs = [member.log for member, _, _ in wanted]
    small = [member.log.name for member, _, _ in wanted if member.is_small]
    floors = [(member.log, state.log_id, floor) for member, state, floor in wanted]
    readers = look_at_readers(logs, list_logs(logs[0].root, small))
    allowed = readers.bounds(floors, safeguards.expiry_ms)
    moved = {}
    for (member, state, _), result in zip(wanted, allowed, strict=True):
        if isinstance(result, SparkWalError):
            member.floor_error = result
        # SAFETY(floor-never-back) §10: the floor never goes back
        elif result > state.floor:
            moved[member.log.name] = replace(state, floor=result)
    if not moved:
        return
    cycle.record = chain.put(with_logs(cycle.record, moved, safeguards.grace_ms))
    for name, state in moved.items():
        events.emit(events.FloorMoved(path=cycle.logs[name].log.url, floor=state.floor))
