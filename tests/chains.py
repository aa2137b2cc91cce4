"""Puts records into the chain of a path, as a process of the lifecycle does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkwal.format.lifecycle_record import LifecycleRecord, with_log
from sparkwal.protocol.chain import put_record
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore


def put_next(
    log: LogStore, head: LifecycleRecord, kind: str, clock: Clock, host: str, **changes: Any
) -> LifecycleRecord | None:
    """Put the record after that of `head`, with `changes` in the log's part.

    Returns:
        The log's part of the record, or None if another process has put one there.
    """
    record = put_record(log, with_log(head, replace(head, kind=kind, **changes)), clock, host)
    return record.of(head.sequencer) if record else None
