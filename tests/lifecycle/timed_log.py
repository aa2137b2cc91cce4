"""A log in memory, for tests of what happens to it after its rows were written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkwal.appender.appender import Appender
from sparkwal.format.lifecycle_record import LogInChain
from sparkwal.lifecycle.policy import LogState, Policy, measure
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import StoppedClock

SCHEMA = pa.schema([("v", pa.int64())])
SECOND = 1000


class TimedLog:
    """A log in memory that one appender at a time writes, at moments that a test gives."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), StoppedClock()
        self.log = LogStore(self.store, "wal")
        self.began_ms = self.clock.wall_ms
        self.values: list[int] = []

    def write(self, *seconds: int, rows: int = 1) -> None:
        """One commit of so many rows at each of these seconds, by a writer that comes for them."""
        with Appender(
            self.log, SCHEMA, producer_id="p", clock=self.clock, maxInFlightRequests=1
        ) as wal:
            for second in seconds:
                self.clock.wall_ms = self.at(second)
                values = range(len(self.values), len(self.values) + rows)
                wal.append([{"v": value} for value in values]).result()
                self.values += values

    def at(self, second: float) -> int:
        return self.began_ms + round(second * SECOND)

    def head(self) -> Head:
        return find_head(self.log)

    def chain(self, **changes: Any) -> LogInChain:
        live = self.head().live
        return LogInChain(live.header.log_id if live else "", table="t", **changes)

    def measure(self, policy: Policy, second: int, **changes: object) -> LogState:
        return measure(self.log, self.head(), self.chain(**changes), policy, self.at(second))

    def requests(self) -> int:
        made = sum(self.store.counts.values())
        self.store.counts.clear()
        return made
