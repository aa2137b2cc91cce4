"""Moves the floors of logs."""

from collections.abc import Mapping

from sparkwal import events
from sparkwal.errors import SparkWalError
from sparkwal.lifecycle.collection import Safeguards
from sparkwal.lifecycle.compaction import Chain
from sparkwal.lifecycle.cycle import Cycle, Remembered
from sparkwal.lifecycle.policy import Policy
from sparkwal.lifecycle.readers import bounds as readers_bounds


def move_floors(
    chain: Chain,
    cycle: Cycle,
    known: Mapping[str, Remembered],
    policy: Policy,
    safeguards: Safeguards,
) -> None:
    """Move the floors as far as policy, consumers and confirmed table allow, by one record."""
    floors: dict[str, int] = {}
    for part in cycle.sound:
        state, measured = part.state, part.measured
        if measured is None:
            continue
        floor = measured.retained_from
        # This includes a table that has no range yet.
        if measured.has_table:
            retention = (policy.retain_seconds, policy.retain_bytes)
            # SAFETY(floor-below-cut) §10: with a table the floor never passes the cut
            floor = state.cut if retention == (None, None) else min(floor, state.cut)
        floors[part.log.name] = floor
    wanted = [
        (part.log, part.state.log_id, floors[part.log.name])
        for part in cycle.sound
        if part.log.name in floors and floors[part.log.name] > part.state.floor
    ]
    if not wanted:
        return
    small = [log.name for log, _, _ in wanted if known[log.name].is_small]
    allowed = readers_bounds(wanted, safeguards.expiry_ms, small)
    moved: dict[str, int] = {}
    for (log, _, _), result in zip(wanted, allowed, strict=True):
        if isinstance(result, SparkWalError):
            cycle.parts[log.name].floor_error = result
            continue
        floor = result
        # SAFETY(floor-never-back) §10: the floor never goes back
        if floor > cycle.parts[log.name].state.floor:
            moved[log.name] = floor
    if not moved:
        return
    states = [cycle.parts[name].state for name in moved]
    # Readers of an earlier record rely on the grace in it.
    grace_ms = max(safeguards.grace_ms, states[0].gc_grace_ms)
    changes = {name: {"floor": floor} for name, floor in moved.items()}
    cycle.moved(chain.put_logs(states, changes, grace_ms))
    for name, floor in moved.items():
        events.emit(events.FloorMoved(path=cycle.parts[name].log.url, floor=floor))
