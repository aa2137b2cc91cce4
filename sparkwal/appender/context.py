"""What a session needs and what outlives it."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwal.appender.rows import RowSchema
from sparkwal.appender.subscribers import Subscribers
from sparkwal.options.writing import AppenderOptions
from sparkwal.protocol.clock import Clock
from sparkwal.store.log_store import LogStore


@dataclass(frozen=True)
class AppenderContext:
    """Who appends what, and where. The store of `log` retries transient failures."""

    log: LogStore
    settings: AppenderOptions
    rows: RowSchema
    producer_id: str
    subscribers: Subscribers
    clock: Clock
