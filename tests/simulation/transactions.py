"""Configurations of batch writes that have a transaction: txnAppId and txnVersion."""

from __future__ import annotations

import pyarrow as pa

from sparkwal.errors import FencedError, SparkWalError, StoreUnavailableError
from sparkwal.protocol.commit import commit
from sparkwal.protocol.object_writer import TaskLimits
from sparkwal.protocol.plan import cold_plan
from sparkwal.protocol.takeover import Claim
from sparkwal.protocol.task import TaskAttempt, write_partition
from tests.simulation.clients import WorldClock, WorldHints, WorldStore, world_log
from tests.simulation.configuration import Configuration
from tests.simulation.data import SCHEMA, record_batch, rows_of, source_batch
from tests.simulation.explore import Budget
from tests.simulation.machine import Ask, Process
from tests.simulation.processes import reader
from tests.simulation.world import TTL_MS, Call

_LIMITS = TaskLimits(2**20, 10**9, 0, 2**30, None)


def batch_write(name: str, version: int, *, others: bool = False) -> Process:
    """One `df.write` of the txnAppId "t".

    Args:
        others: it has other rows than the version should, and as many.
    """

    def run(ask: Ask) -> str:
        clock, log = WorldClock(ask), world_log(WorldStore(ask), 1)
        claim = Claim(f"host:{name}", "host", name, SCHEMA, False, None, 1, "cold start")
        try:
            plan = cold_plan(log, claim, WorldHints(ask), clock, TTL_MS, None).for_tasks()
            result = write_partition(
                lambda: log,
                plan,
                TaskAttempt("t", version, 0),
                iter([_rows(version, others)]),
                _LIMITS,
            )
            committed = commit(lambda: log, [result], WorldHints(ask), clock, TTL_MS, None)
        except SparkWalError as error:
            if isinstance(error, (FencedError, StoreUnavailableError)):
                ask(Call("deny", (name, version)))
            return type(error).__name__
        if committed is not None:
            ask(Call("acknowledge", ("t", version, committed.position)))
        return "done"

    return run


def _rows(version: int, others: bool) -> pa.RecordBatch:
    rows = rows_of("t", version, 0)
    return source_batch((rows[0], rows[1] + 1)) if others else record_batch("t", version, 0)


def exhaustive() -> dict[str, Configuration]:
    """Name → what is searched to the end."""
    return {
        "batch writes repeat a transaction, a fault": Configuration(
            {
                "A": batch_write("A", 1),
                "B": batch_write("B", 1),
            },
            Budget(0, 1),
            ends=dict.fromkeys("AB", "done FencedError OutcomeUnknownError StoreUnavailableError"),
        ),
        "batch writes with other rows and with a lower version": Configuration(
            {
                "A": batch_write("A", 1),
                "B": batch_write("B", 1, others=True),
                "C": batch_write("C", 0),
                "R": reader(),
            },
            follows={"B": "A", "C": "B"},
            ends={"A": "done", "B": "DivergedCheckpointError", "C": "OptionError"},
        ),
    }
