"""Who appends what, and where: all that a session needs and that outlives one."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwal.appender.rows import RowSchema
from sparkwal.appender.subscribers import Subscribers
from sparkwal.options.appender import AppenderOptions
from sparkwal.protocol.clock import Clock
from sparkwal.store.log_store import LogStore


@dataclass(frozen=True)
class AppenderContext:
    """Of one appender; `log`'s store repeats what fails for a moment."""

    log: LogStore
    settings: AppenderOptions
    rows: RowSchema
    producer_id: str
    subscribers: Subscribers
    clock: Clock
