"""Processes of the simulated world. They run the project's own protocol code; only what
they call of the world is simulated."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from sparkwal.appender.backend import StopReporter
from sparkwal.appender.batches import Ticket
from sparkwal.appender.context import AppenderContext, Subscribers
from sparkwal.appender.rows import RowSchema
from sparkwal.appender.sender import Session, Takeover
from sparkwal.errors import FencedError, InvalidLogError, SparkWalError, StoreUnavailableError
from sparkwal.events import Event
from sparkwal.format import keys, schema
from sparkwal.format.header import Checkpoint, CommitHeader
from sparkwal.options.writing import AppenderOptions
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.commit import commit
from sparkwal.protocol.handover import Lookout
from sparkwal.protocol.object_writer import TaskLimits
from sparkwal.protocol.plan import TaskPlan, make_plan
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.takeover import ATTEMPTS, Claim, lead
from sparkwal.protocol.task import TaskAttempt, TaskResult, write_partition
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore
from tests.simulation.clients import ReadersStore, WorldClock, WorldHints, WorldStore, world_log
from tests.simulation.data import PREFIX, SCHEMA, partitions_of, record_batch
from tests.simulation.machine import Ask, Process
from tests.simulation.world import TTL_MS, Call


def driver(
    name: str,
    query_id: str,
    batches: int,
    *,
    leader_id: str | None = None,
    retries: int = 1,
    inline: int = 0,
    empty: frozenset[int] = frozenset(),
    session: bool = False,
) -> Process:
    """One life of a Spark driver: microbatches from its checkpoint on, until done or failed.

    Args:
        name: unique; makes the plan ids unique.
        leader_id: the same for two lives means: restarted inside one application.
        inline: `inlineThreshold` in bytes.
        empty: microbatches without rows.
        session: whether it is one run of a query in the one session of all drivers, which notes
            the end of each run.
    """

    def run(ask: Ask) -> str:
        outcome = live(ask)
        if session:
            ask(Call("end_run", (name,)))
        return outcome

    def live(ask: Ask) -> str:
        clock, log = WorldClock(ask), world_log(WorldStore(ask), retries)
        hints = WorldHints(ask, shared=session)
        run_id, term = name if session else "", 0
        limits = TaskLimits(2**20, 10**9, inline, 2**30, None)
        done = int(ask(Call("read_checkpoint", (query_id,))))
        for batch_id in range(done + 1, batches):
            claim = Claim(
                leader_id=leader_id or f"host:{name}",
                host="host",
                plan_id=f"{name}-{batch_id}",
                spark_schema=SCHEMA,
                merge_schema=False,
                window=None,
                in_flight_limit=1,
                reason="cold start",
            )
            try:
                plan = make_plan(lambda: log, claim, hints, clock, TTL_MS).for_tasks()
                # Its own cold start after itself makes a difference of one.
                if session and 0 < term < plan.bare.leadership.term - 1:
                    ask(Call("blame", (f"{name} was fenced, and took the log back",)))
                term = plan.bare.leadership.term
                ask(Call("publish_plan", ((plan, query_id, batch_id),)))
                if session:
                    # The tasks take a while, and other processes run meanwhile.
                    ask(Call("idle"))
                results = [
                    _task(
                        log, plan, query_id, batch_id, partition, limits, batch_id in empty, run_id
                    )
                    for partition in range(partitions_of(query_id))
                ]
                committed = commit(lambda: log, results, hints, clock, TTL_MS, None, Repeating())
            except SparkWalError as error:
                # These errors promise that no row of this microbatch counts.
                if isinstance(error, (FencedError, StoreUnavailableError)):
                    ask(Call("deny", (claim.plan_id, batch_id)))
                return type(error).__name__
            if committed is not None:
                ask(Call("acknowledge", (query_id, batch_id, committed.position)))
            ask(Call("write_checkpoint", (query_id, batch_id)))
        return "done"

    return run


def appender(
    name: str,
    producer_id: str,
    appends: int,
    limit: int,
    *,
    leader_id: str | None = None,
    retries: int = 1,
    idle: bool = False,
    looks: bool = False,
    waits: bool = False,
    attempts: int = ATTEMPTS,
    segments: bool = False,
) -> Process:
    """One life of an appender: its records in flight together, acknowledged in order.

    Args:
        appends: how many the service has to make; it resends from the log's last on.
        limit: slots in flight.
        idle: time may pass before each append.
        looks: whether it looks, after each record, if another writer asks for the log.
        waits: for each record to be acknowledged before it makes the next.
        attempts: how often it may find the gap taken when it was about to lead.
        segments: it makes segments of its own blocks.
    """

    rows = RowSchema(schema.to_arrow(SCHEMA))

    def run(ask: Ask) -> str:
        clock, log = WorldClock(ask), world_log(WorldStore(ask, patient=True), retries)
        claim = Claim(leader_id or f"host:{name}", "host", name, SCHEMA, False, None, limit, "open")
        claim = replace(claim, attempts=attempts)
        looked_ms = clock.boot_ms()
        try:
            leadership = lead(log, claim, clock, TTL_MS)
            first = last_batch(lambda: log, leadership, producer_id) + 1
        except FencedError:
            return "FencedError before it led"
        except SparkWalError as error:
            return type(error).__name__
        every = 1 if looks else 10**9
        # Each append is a separate batch, and is sent at once.
        options = replace(
            AppenderOptions(path="wal"),
            max_in_flight=limit,
            plan_ttl_ms=TTL_MS,
            batch_size=1,
            batch_timeout_ms=0,
            max_buffered=2**30,
            compression="none",
            make_segments=segments,
        )
        context = AppenderContext(log, options, rows, producer_id, IgnoringSubscribers(), clock)
        takeover = Takeover(leadership, name, first - 1, looked_ms)
        wal = Session(context, takeover, StopReporter(context))
        wal._lookout = Lookout(log, leadership.log_id, leadership.term, clock, every, 0)
        intake = wal.intake

        def reported(ticket: Ticket) -> None:
            try:
                position = ticket.result()
            except FencedError:
                ask(Call("deny", (name, ticket.sequence)))
            except SparkWalError:
                pass  # a new life asks the log
            else:
                ask(Call("acknowledge", (producer_id, ticket.sequence, position)))
            ask(Call("promise", (producer_id, intake.last_sequence)))

        ask(Call("promise", (producer_id, intake.last_sequence)))
        try:
            for sequence in range(first, appends):
                if idle:
                    ask(Call("idle"))
                batch = record_batch(producer_id, sequence, 0)
                ticket = intake.append(rows.accept(batch), block=True)
                ticket.when_done(partial(reported, ticket))
                if waits:
                    ticket.result()
        except SparkWalError:
            pass  # it has stopped
        wal.close(None)
        return type(intake.failure.error).__name__ if intake.failure else "done"

    return run


class Repeating:
    """A query that gives the same rows whenever Spark repeats a microbatch, and is known to;
    `queries` and `transactions` compare them."""

    def capture(self, batch_id: int, last: Checkpoint | None, *, again: bool) -> None:
        pass

    def without_rows(self, *_: object, **__: object) -> None:
        pass

    def check_repeated(self, *_: object) -> None:
        pass


class IgnoringSubscribers(Subscribers):
    """A listener that ignores all events."""

    retried = 0

    def __init__(self) -> None:
        pass

    def publish(self, event: Event) -> None:
        pass

    def overhearing(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()


def _task(
    log: LogStore,
    plan: TaskPlan,
    query_id: str,
    batch_id: int,
    partition: int,
    limits: TaskLimits,
    empty: bool = False,
    run_id: str = "",
) -> TaskResult:
    def attempt() -> TaskResult:
        rows = iter([] if empty else [record_batch(query_id, batch_id, partition)])
        return write_partition(
            lambda: log,
            plan,
            TaskAttempt(query_id, batch_id, partition, run_id=run_id),
            rows,
            limits,
        )

    try:
        return attempt()
    except StoreUnavailableError:
        return attempt()  # as Spark does: another attempt of the task, elsewhere


def straggler(partition: int, inline: int = 0) -> Process:
    """A task attempt that outlives its driver: it takes the last plan and runs whenever.

    It compresses, unlike the driver's own attempts, so that its bytes differ.
    """

    def run(ask: Ask) -> str:
        taken = ask(Call("take_plan"))
        if taken is None:
            return "nothing to do"
        plan, query_id, batch_id = taken
        limits = TaskLimits(2**20, 10**9, inline, 2**30, "zstd")
        try:
            _task(world_log(WorldStore(ask), 0), plan, query_id, batch_id, partition, limits)
        except SparkWalError as error:
            return type(error).__name__
        return "done"

    return run


def collector(grace_ms: int) -> Process:
    """Deletes, oldest first, everything that was below the head `grace_ms` ago."""

    def run(ask: Ask) -> str:
        log = world_log(WorldStore(ask), 3)
        head = find_head(log)
        ask(Call("sleep", (grace_ms,)))
        for position in range(head.position):
            number = keys.slot(position, head.window)
            ask(Call("delete", (keys.key(PREFIX, number),)))
        return "done"

    return run


def reader(start: int = 0, *, refuses: bool = False) -> Process:
    """Read from `start` on by the real reading code. The oracle checks its verdict.

    Args:
        refuses: it may meet a lost record. Without this a lost record ends the search.
    """

    def run(ask: Ask) -> str:
        store = ReadersStore(ask)
        log = world_log(store, 3)
        try:
            head = find_head(log)
            seen = [
                (record.header.position, record.header.query_id, record.header.batch_id)
                for record in live_records(LogView(log, head.window), start, head.gap)
                if isinstance(record.header, CommitHeader)
            ]
        except StoreUnavailableError:
            return "StoreUnavailableError"
        except InvalidLogError:
            if not refuses:
                raise
            return "InvalidLogError"
        return f"read {(start, store.committed[-1], seen)!r}"

    return run
