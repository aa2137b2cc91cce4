"""Refuses a batch append to a log that a stream leads, so that it does not stop the stream."""

from collections.abc import Callable

from sparkwal.errors import OptionError
from sparkwal.format.header import CommitHeader, LeaderHeader, SlotHeader, host_of
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.hint import Committed, Hints
from sparkwal.protocol.recovery import Head
from sparkwal.store.base import LogStore

STREAM_START = "stream start"
BATCH_APPEND = "batch append"
# Spark reports the end of a run to another thread, a little later. So ask up to this often for it,
# with a pause between.
_ASKS = 100
_PAUSE_SECONDS = 0.1


def refuse_stream_leader(
    log: LogStore,
    head: Head,
    hints: Hints,
    clock: Clock,
    ttl_ms: int,
    is_gone: Callable[[str], bool],
) -> None:
    """Check that no running stream leads the log.

    A stream that leads is taken for ended if its last record is older than `ttl_ms`, or if this
    machine can prove that its run or its application has ended.

    Args:
        log: the log.
        head: its head.
        hints: the hints of this machine.
        clock: the clock.
        ttl_ms: a stream whose last record is older than this leads no more.
        is_gone: whether the application of a leader has certainly ended.

    Raises:
        OptionError: a stream leads the log, as far as this machine can see.
    """
    if head.live is None or not _is_of_stream(header := head.live.header):
        return
    age_ms = clock.now_ms() - header.timestamp_ms
    if age_ms >= ttl_ms or is_gone(header.leader_id) or _has_ended(hints, header, clock):
        return
    raise OptionError(
        f"a stream leads {log.url}: {header.leader_id} on host {host_of(header)} wrote position "
        f"{header.position} {max(age_ms, 0) // 1000} s ago. sparkwal wrote nothing: an append to "
        "this log would stop that stream with FencedError. Append to a separate log under the same "
        "path with the option sequencer, or stop the stream first. To append to this log and stop "
        "the stream, set takeOver=true"
    )


def _is_of_stream(header: SlotHeader) -> bool:
    if isinstance(header, CommitHeader):
        # Only the record of a stream names the position of its query's checkpoint.
        entry = header.checkpoints.get(header.query_id)
        return entry is not None and entry.position == header.position
    return isinstance(header, LeaderHeader) and header.reason == STREAM_START


def _has_ended(hints: Hints, header: SlotHeader, clock: Clock) -> bool:
    """Whether the last run of the stream ended in this session."""
    hint = hints.load(header.leader_id)
    if not isinstance(hint, Committed):
        return False
    for _ in range(_ASKS):
        if hints.has_ended(hint.last_run_id):
            return True
        clock.sleep(_PAUSE_SECONDS)
    return False
