"""What the policy has to know of a log, with few requests."""

from __future__ import annotations

from dataclasses import replace

from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.format.lifecycle import LifecycleRecord
from sparkwal.lifecycle.policy import LogState, Policy, late_before, split_point
from sparkwal.protocol.recovery import Head, last_live
from sparkwal.protocol.replay import about_bytes, first_at_or_after, live_records
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.store.listing import all_entries
from sparkwal.store.log_store import LogStore

# Records whose sizes stand for all, where a limit is to be kept.
_SAMPLES = 32
# Records counted in one call, at most; the next goes on from there.
MOST_COUNTED = 10_000


def split(log: LogStore, head: Head, cut: int, before_ms: int) -> int:
    """The first position from `cut` on whose record is newer than `before_ms`, at most the head's
    gap: log₂ n GETs, none where nothing is newer."""
    if head.live is None or head.live.header.timestamp_ms <= before_ms:
        return max(head.gap, cut)
    return first_at_or_after(log, head, before_ms + 1, start=cut)


def measure(
    log: LogStore,
    head: Head,
    chain: LifecycleRecord,
    policy: Policy,
    now_ms: int,
    *,
    table: bool = False,
    before: LogState | None = None,
) -> LogState:
    """The state that `decide` needs.

    Requests: with a table 1 GET for the first commit after `cut`; then, unless the log is cold or
    that commit is old enough by itself, 1 GET for each commit that has waited out the window, until
    they reach a threshold, at most MOST_COUNTED; those that `before` has counted are not read
    again. With a limit up to 32 GETs. With `retainSeconds` 1 GET, and log₂ n where anything is too
    old. With `retainBytes` 1 LIST for every thousand objects that stay.

    Args:
        chain: the log's newest lifecycle record, or `beginning`.
        table: there is one to go to, though no intent names it yet.
        before: an earlier measure of this log.
    """
    state = LogState(
        log_id=chain.log_id,
        cut=chain.cut,
        to=chain.to,
        floor=chain.floor,
        gap=head.gap,
        table=table or chain.target is not None,
        last_ms=head.live.header.timestamp_ms if head.live else None,
        counted=chain.cut,
        retained_from=chain.floor,
    )
    if before and (before.log_id, before.cut) == (state.log_id, state.cut):
        state = replace(
            state, first_ms=before.first_ms, counted=before.counted, rows=before.rows,
            bytes=before.bytes,
        )  # fmt: skip
    if state.table and not chain.is_open:
        state = _count(log, head, state, policy, now_ms)
    if policy.soft_limit is not None or policy.hard_limit is not None:
        start = state.cut if state.table else state.floor
        size = about_bytes(log, head.window, start, head.gap, _SAMPLES)
        state = replace(state, waiting_bytes=size)
    return replace(state, retained_from=_retained_from(log, head, state, policy, now_ms))


def _count(log: LogStore, head: Head, state: LogState, policy: Policy, now_ms: int) -> LogState:
    """With the first commit's time and, where it matters, what has waited out the window."""
    before_ms = late_before(policy, now_ms)

    def is_decided(state: LogState) -> bool:
        if state.first_ms is None:
            return False
        return state.first_ms > before_ms or split_point(state, policy, now_ms) is not None

    if is_decided(state):
        return state
    end = min(head.gap, state.counted + MOST_COUNTED)
    for record in live_records(
        log, head.window, state.counted, end, log_id=state.log_id or None, size=GLANCE
    ):
        header = record.header
        if isinstance(header, CommitHeader):
            if state.first_ms is None:
                state = replace(state, first_ms=header.timestamp_ms)
            if header.timestamp_ms > before_ms:
                break
            state = replace(state, rows=state.rows + header.rows, bytes=state.bytes + header.bytes)
        state = replace(state, counted=header.position + 1)
        if is_decided(state):
            break
    return state


def _retained_from(log: LogStore, head: Head, state: LogState, policy: Policy, now_ms: int) -> int:
    """The first position that is to stay, by age and by size."""
    first = state.floor
    if policy.retain_seconds is not None and state.floor < head.gap:
        expired_ms = now_ms - policy.retain_seconds * 1000
        record = read_slot(log, state.floor, head.window, GLANCE)
        if record is None or last_live(log, record).header.timestamp_ms <= expired_ms:
            first = split(log, head, state.floor, expired_ms)
    if policy.retain_bytes is not None:
        first = max(first, _newest(log, head, first, policy.retain_bytes))
    return first


def _newest(log: LogStore, head: Head, start: int, limit: int) -> int:
    """The first position from `start` on from which the log's objects are at most `limit` bytes."""
    prefix = keys.batches_prefix(log.prefix)
    size = 0
    # The newest come first.
    for entry in all_entries(log.store, prefix):
        number = keys.decode(entry.key.removeprefix(prefix))
        if number is None:
            continue
        position = keys.position(number, head.window)
        if position < start:
            break
        size += entry.size
        if size > limit:
            # What is under way at the gap does not push the head's own position out.
            return min(position + 1, head.gap)
    return start
