"""A streaming query without Spark: plan, tasks, commit, as Spark calls them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from sparkwal.format import schema
from sparkwal.protocol.commit import Carrier, commit
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.object_writer import TaskLimits
from sparkwal.protocol.plan import Plan, make_plan
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.takeover import Claim
from sparkwal.protocol.task import TaskAttempt, TaskResult, write_partition
from sparkwal.protocol.view import LogView
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.store.base import LogStore, Store

SCHEMA = schema.from_arrow(pa.schema([("v", pa.int64())]))
TTL_MS = 600_000
# No time limit: frames are cut by size alone, so a stall changes no test.
LIMITS = TaskLimits(2**20, 10**9, 0, 16 * 2**20, "zstd")
_ids = itertools.count()


class StoppedClock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.since_boot_ms = 1_000_000
        self.boot = "boot"

    def now_ms(self) -> int:
        return self.wall_ms

    def boot_ms(self) -> int:
        return self.since_boot_ms

    def boot_id(self) -> str:
        return self.boot

    def sleep(self, seconds: float) -> None:
        pass


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], names=["v"])


@dataclass
class Query:
    """One streaming query; `restarted` gives the same query in a new application."""

    store: Store
    hints: Hints
    query_id: str = "query"
    leader_id: str = "host:1:1:x"
    prefix: str = "wal"
    window: int | None = None
    limits: TaskLimits = LIMITS
    clock: StoppedClock = field(default_factory=StoppedClock)
    spark_schema: str = SCHEMA
    merge_schema: bool = False
    run_id: str = "run"
    carrier: Carrier | None = None
    reason: str = "cold start"

    def restarted(self) -> Query:
        return replace(self, leader_id=f"host:restarted:{next(_ids)}")

    def open(self) -> LogStore:
        return LogStore(self.store, self.prefix)

    def plan(self) -> Plan:
        claim = Claim(
            leader_id=self.leader_id,
            host="host",
            plan_id=f"plan-{next(_ids)}",
            spark_schema=self.spark_schema,
            merge_schema=self.merge_schema,
            window=self.window,
            in_flight_limit=1,
            reason=self.reason,
        )
        return make_plan(self.open, claim, self.hints, self.clock, TTL_MS)

    def task(
        self, plan: Plan, batch_id: int, partition: int, *values: int, attempt: int = 0
    ) -> TaskResult:
        batches = iter([rows(*values)] if values else [])
        return write_partition(
            self.open,
            plan.for_tasks(),
            TaskAttempt(self.query_id, batch_id, partition, run_id=self.run_id, attempt=attempt),
            batches,
            self.limits,
        )

    def commit(self, results: list[TaskResult]) -> int | None:
        codec = self.limits.codec
        args = self.hints, self.clock, TTL_MS, codec, self.carrier
        committed = commit(self.open, results, *args)
        return None if committed is None else committed.position

    def microbatch(self, batch_id: int, *partitions: tuple[int, ...]) -> int | None:
        plan = self.plan()
        return self.commit(
            [self.task(plan, batch_id, p, *values) for p, values in enumerate(partitions)]
        )


def hints_in(folder: Path) -> Hints:
    return Hints("wal", folder / "hints")


def values_of(store: Store) -> list[int]:
    """Every row of the log, in order."""
    log = LogStore(store, "wal")
    head = find_head(log)
    found: list[int] = []
    for record in live_records(LogView(log, head.window), 0, head.gap):
        target = schema.to_arrow(record.spark_schema)
        for batch in read_pieces(log, pieces_of(log, record), target):
            found += batch.column("v").to_pylist()
    return found
