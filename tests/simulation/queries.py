"""Streaming queries of the simulated world, with a checkpoint folder on their machine's disk.

Spark is a model (`spark.py`). The project's own code carries, skips and commits microbatches, and
rebuilds folders (`sparkwal.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwal.checkpoints import folder, names, rebuild
from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.checkpoints.fork import Fork
from sparkwal.errors import (
    DivergedCheckpointError,
    FencedError,
    OptionError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.protocol.commit import commit
from sparkwal.protocol.holds import Span
from sparkwal.protocol.object_writer import TaskLimits
from sparkwal.protocol.plan import make_plan
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.takeover import Claim
from sparkwal.protocol.task import TaskAttempt, write_partition
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.simulation.clients import WorldClock, WorldHints, WorldStore, world_log
from tests.simulation.data import PREFIX, SCHEMA, source_batch
from tests.simulation.folders import real, replacing
from tests.simulation.machine import Ask, Process
from tests.simulation.spark import Query, Stopped
from tests.simulation.world import TTL_MS, Call

# A query that has its id from its user, as one has that Spark started without sparkwal.checkpoint.
BY_ID = "00000000-0000-4000-8000-000000000001"
_LIMITS = TaskLimits(2**20, 10**9, 1000, 2**30, None)


@dataclass(frozen=True)
class Kind:
    """The parameters that all lives of one query share.

    Attributes:
        name: the name for `sparkwal.checkpoint`.
        blind: a start uses an existing folder without `sparkwal.checkpoint`, and calls that only
            without a folder or after a DivergedCheckpointError.
        remote: the checkpoint is in an object store, which the sink cannot read.
        shared: two lives may run on one machine at the same time.
        lists, archives, consumer: see `spark.Query`.
        forked: the log of another query of the same source, and a position there; a query that
            has no row in its log begins after it.
    """

    name: str = "q"
    blind: bool = False
    remote: bool = False
    shared: bool = False
    lists: bool = False
    archives: bool = False
    consumer: bool = False
    forked: tuple[Forked, int] | None = None


@dataclass(frozen=True)
class Forked:
    """The log of another world, which no process changes."""

    objects: tuple[tuple[str, bytes], ...]

    def open(self) -> LogStore:
        store = MemoryStore("memory://forked")
        store.objects.update(self.objects)
        return LogStore(store, PREFIX)


@dataclass(frozen=True)
class _Checkpoint(StreamCheckpoint):
    """A checkpoint on a simulated disk."""

    ask: Ask
    machine: str

    def _save(self, path: Path, spans: Mapping[str, Sequence[Span]], note: bytes) -> bool:
        for held in spans.values():
            self.ask(Call("hold", (self.machine, tuple(held))))
        self.ask(Call("put_file", (self.machine, names.EMPTY, note)))
        return True


def query(
    life: str, machine: str, kind: Kind = Kind(), *, most: int = 10**9, restarts: int = 1
) -> Process:
    """One life of a query: until it has read its source, or has failed.

    Args:
        life: unique; makes the plan ids unique.
        machine: the machine whose disk has its checkpoint.
        restarts: the number of starts after a DivergedCheckpointError.
    """

    def run(ask: Ask) -> str:
        ask(Call("mount", (machine,)))
        log = world_log(WorldStore(ask), 1)
        spark = Query(ask, machine, kind.lists, kind.archives, kind.consumer, most)
        outcome = ""
        for start in range(restarts + 1):
            try:
                if kind.remote and not start:
                    if not spark.read():
                        spark.add(names.METADATA, b'{"id":"%s"}' % BY_ID.encode())
                elif start or not kind.blind or not spark.read():
                    _checkpoint(ask, log, machine, kind, life, f"{life}-{start}")
                elif names.METADATA not in spark.read():
                    # Spark takes it for a new query.
                    spark.add(names.METADATA, b'{"id":"%s"}' % life.encode())
                _stream(ask, log, life, machine, kind, spark, f"{life}-{start}")
                return "done"
            except (Stopped, SparkWalError) as error:
                outcome = type(error).__name__
                if not isinstance(error, DivergedCheckpointError):
                    break
        return outcome

    return run


def _checkpoint(ask: Ask, log: LogStore, machine: str, kind: Kind, life: str, drawn: str) -> None:
    """`sparkwal.checkpoint`: one at a time on a machine."""
    if kind.shared:
        ask(Call("lock", (machine, life)))
    try:
        _rebuild(ask, log, machine, kind, drawn)
    except SparkWalError:
        ask(Call("unlock", (life,)))
        raise
    ask(Call("unlock", (life,)))


def _rebuild(ask: Ask, log: LogStore, machine: str, kind: Kind, drawn: str) -> None:
    head = find_head(log)
    before = ask(Call("read_folder", (machine,)))
    forking = None
    if kind.forked is not None:
        forked, position = kind.forked
        fork = Fork("memory://forked", kind.name, at=position)
        forking = rebuild.Forking(fork, forked.open())
    try:
        decision = rebuild.decide(log, head, kind.name, real(before), drawn, forking)
    except OptionError:
        # The query began with another fork: its user corrects the job.
        decision = rebuild.decide(log, head, kind.name, real(before), drawn)
    if decision.why is not None:
        for content in replacing(before, tuple(decision.files.items())):
            ask(Call("set_folder", (machine, content)))


def _stream(
    ask: Ask, log: LogStore, life: str, machine: str, kind: Kind, spark: Query, run_id: str
) -> None:
    clock, hints = WorldClock(ask), WorldHints(ask)
    for microbatch in spark.microbatches():
        path = real(ask(Call("read_folder", (machine,))))
        query_id, owner = folder.query_of(path), folder.owner_of(path)
        if query_id is None:
            raise Stopped("the checkpoint was deleted")
        claim = Claim(
            leader_id=f"{machine}:{life}",
            host=machine,
            plan_id=f"{run_id}-{microbatch.number}",
            spark_schema=SCHEMA,
            merge_schema=False,
            window=None,
            in_flight_limit=1,
            reason="cold start",
            log_id=owner.log_id if owner and not kind.remote else None,
        )
        try:
            plan = make_plan(lambda: log, claim, hints, clock, TTL_MS).for_tasks()
            results = [
                write_partition(
                    lambda: log,
                    plan,
                    TaskAttempt(query_id, microbatch.number, 0, run_id=run_id),
                    iter([source_batch(microbatch.rows)]),
                    _LIMITS,
                )
            ]
            seen = real(ask(Call("read_folder", (machine,))))
            location = "s3a://bucket/checkpoint" if kind.remote else str(seen)
            carrier = _Checkpoint(location, query_id, 2**20, ask, machine)
            committed = commit(lambda: log, results, hints, clock, TTL_MS, None, carrier)
        except (FencedError, StoreUnavailableError, DivergedCheckpointError):
            # These errors promise that no row of this microbatch counts.
            ask(Call("deny", (claim.plan_id, microbatch.number)))
            raise
        if committed is not None:
            ask(Call("acknowledge", (query_id, microbatch.number, committed.position)))


def source(*growth: int) -> Process:
    """The source gets so many more rows, one time after the other."""

    def run(ask: Ask) -> str:
        for rows in growth:
            ask(Call("grow", (rows,)))
        return "done"

    return run


def backup(machine: str) -> Process:
    """Copies the folder of a machine at some time."""

    def run(ask: Ask) -> str:
        ask(Call("copy_folder", (machine,)))
        return "done"

    return run
