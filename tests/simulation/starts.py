"""A reader that starts in the middle of the log comes to the same verdict as one that reads all."""

from __future__ import annotations

from typing import Any

from sparkwal.format.header import CommitHeader
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore
from tests.simulation import oracle
from tests.simulation.clients import WorldStore
from tests.simulation.data import PREFIX
from tests.simulation.world import Call, State, apply


def check(state: State, verdict: oracle.Verdict) -> None:
    """Read from every position, and find the head, with the real code.

    Raises:
        Violation: a result differs from that of a complete read.
    """

    def ask(call: Call) -> Any:
        _, answer = apply(state, call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    truth = oracle.live(state)
    if not truth:
        return
    log = LogStore(WorldStore(ask, concurrency=1), PREFIX)
    head = find_head(log)
    assert head.live is not None
    if head.live.header.position != truth[-1]["position"]:
        raise oracle.Violation(
            f"recovery takes {head.live.header.position} for the last live record of a log that "
            f"ends at {head.position}; it is {truth[-1]['position']}"
        )
    for start in range(head.gap):
        seen = tuple(
            (record.header.position, record.header.query_id, record.header.batch_id)
            for record in live_records(LogView(log, head.window), start, head.gap)
            if isinstance(record.header, CommitHeader)
        )
        expected = tuple(entry for entry in verdict if entry[0] >= start)
        if seen != expected:
            raise oracle.Violation(f"from position {start} on a reader sees {seen}, not {expected}")
