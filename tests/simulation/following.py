"""Readers of a log that is collected, by the reading code of the library."""

from __future__ import annotations

from collections.abc import Iterable

from sparkwal.errors import CollectedError, SparkWalError
from sparkwal.format import keys, schema
from sparkwal.format.consumer_record import encode
from sparkwal.format.header import CommitHeader
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION, Target
from sparkwal.lifecycle.consumers.objects import ConsumerObject
from sparkwal.lifecycle.current import plan_current
from sparkwal.lifecycle.from_table import choose_start
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.planning import StreamedLog
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.store.base import LogStore
from tests.consumers import consumer, join, publish
from tests.simulation.clients import WorldClock, WorldStore, world_log
from tests.simulation.compacting import TARGET, WorldTable, WorldTombstones, outsider
from tests.simulation.data import PREFIX
from tests.simulation.machine import Ask, Machine, Process
from tests.simulation.outside import Row
from tests.simulation.world import Call, State, apply

_OPTIONS = SourceOptions(path="/sim")


def follower(
    name: str,
    rounds: int = 1,
    *,
    joins: bool = False,
    is_new: bool = False,
    of_all: bool = False,
) -> Process:
    """A stream from the earliest position on, with so many microbatches; it may sleep anywhere.

    Args:
        joins: it registers as a consumer first, and reports how far it is after each microbatch.
        is_new: it reads other logs already, and the log is new to it.
        of_all: it is a consumer of all logs.
    """

    def run(ask: Ask) -> str:
        Machine.current.name = name
        log = world_log(WorldStore(ask, concurrency=1), 1)
        reading = StreamedLog(_OPTIONS, "default", log, WorldClock(ask))
        position = -1
        found: list[Row] = []
        try:
            reading.refresh()
            position = 0
            start = 0 if is_new else reading.start()
            begin = reading.entry() if is_new else start
            position = begin
            if reading.log_id is None:
                return "nothing"
            log_id = reading.log_id
            if joins:
                me = consumer(name, position, log_id, run_id=name)
                position = join(log, me, is_of_all=of_all)["default"]
                start = 0 if is_new else position
                ask(Call("join", (ConsumerObject(log, name, of_all).key,)))
                if is_new and position > begin:
                    # As a stream does, which looks again where the floor passed it.
                    reading.floor.refresh()
                    reading.floor.check(begin)
            for each in range(rounds):
                if each:
                    ask(Call("idle"))
                end = reading.refresh()
                found += _rows(reading, position, end)
                position = end
                if joins:
                    me = consumer(name, position, log_id, run_id=name)
                    publish(log, me, is_of_all=of_all)
        except CollectedError:
            return f"collected {position}"
        except SparkWalError as error:
            return type(error).__name__
        return f"delivered {(log_id, start, position, tuple(found))!r}"

    return run


def current(name: str) -> Process:
    """Reads table and log as one, as the library plans it; it may sleep anywhere."""

    def run(ask: Ask) -> str:
        Machine.current.name = name
        log = world_log(WorldStore(ask, concurrency=1), 1)
        clock = WorldClock(ask)
        try:
            planning = LogRange(_OPTIONS, "default", log, clock)
            plan = plan_current([planning], lambda target: _opened(ask, log, target))
            (tail,) = plan.tails
            found = ()
            if plan.target is not None:
                found = ask(Call("table_rows", (plan.table_version,)))
            reading = LogRange(_OPTIONS, "default", log, clock)
            reading.refresh()
            newer = _rows(reading, tail.start, tail.end)
            if plan.tombstones_version != NO_TABLE_VERSION:
                deleted = ask(Call("tombstones_rows", (plan.tombstones_version,)))
                # A delete that is not read yet drops rows that are.
                if any(row[1] >= tail.end for row in deleted):
                    newer = []
            # Only the rows of this log: another one may share the table.
            rows = (*(row for row in found if row[0] == tail.pinned.log_id), *newer)
        except SparkWalError as error:
            return type(error).__name__
        return f"delivered {(tail.pinned.log_id, 0, tail.end, rows)!r}"

    return run


def beginner(name: str) -> Process:
    """A stream that begins with a version of the table; it may sleep anywhere.

    It is a consumer, joins before it chooses the version or, if it did not, before it reads the
    log, and notes how far it is only in the end.
    """

    def run(ask: Ask) -> str:
        Machine.current.name = name
        log = world_log(WorldStore(ask, concurrency=1), 1)
        reading = StreamedLog(_OPTIONS, "default", log, WorldClock(ask))
        joined: list[str] = []

        def look() -> list[StreamedLog]:
            reading.refresh()
            return [reading]

        def hold(_: object, position: int = 0) -> None:
            if not joined and reading.log_id is not None:
                join(log, consumer(name, position, reading.log_id, run_id=name))
                joined.append(name)

        try:
            plan = choose_start(look, hold, lambda target: _opened(ask, log, target), is_all=False)
            (tail,) = plan.tails
            hold(None, tail.start)
            found = ask(Call("table_rows", (plan.table_version,))) if plan.target else ()
            ask(Call("idle"))
            end = reading.refresh()
            newer = _rows(reading, tail.start, end)
        except SparkWalError as error:
            return type(error).__name__
        return f"delivered {(tail.pinned.log_id, 0, end, (*found, *newer))!r}"

    return run


def _opened(ask: Ask, log: LogStore, target: Target) -> WorldTable | WorldTombstones:
    is_table = target.table == TARGET.table
    return WorldTable(ask, log, target) if is_table else WorldTombstones(ask, log)


def _rows(reading: LogRange, start: int, end: int) -> list[Row]:
    return rows_of_records(reading, reading.records(start, end))


def rows_of_records(reading: LogRange, records: Iterable[SlotRecord]) -> list[Row]:
    """The rows of records, in order."""
    found: list[Row] = []
    for record in records:
        header = record.header
        if isinstance(header, CommitHeader):
            target = schema.to_arrow(record.spark_schema)
            pieces = pieces_of(reading.log, record)
            batches = read_pieces(reading.log, pieces, target, check=reading.floor.check)
            values = [v for batch in batches for v in batch.column(0).to_pylist()]
            found.append((header.log_id, header.position, tuple(values)))
    return found


def without_a_log(name: str, run_id: str = "another") -> Call:
    """A consumer of all logs under the path publishes before it has seen one."""
    return _published(name, encode(consumer(name, {}, run_id=run_id), None))


def reader_of_all(state: State, name: str) -> State:
    """The world in which a consumer of all logs under the path has registered at the path."""
    return apply(state, without_a_log(name, "first"))[0]


def reader_of_the_log(state: State, name: str, log_id: str) -> State:
    """The world in which it has registered in the log too, at position 0."""
    body = encode(consumer(name, 0, log_id, run_id=name), None)
    return apply(state, _published(name, body))[0]


def _published(name: str, body: bytes) -> Call:
    return Call("overwrite", (keys.consumer_key(PREFIX, name + keys.OF_ALL), body))


def namesake(name: str) -> Process:
    """A consumer of all logs with that name, on another machine, joins at the end of the log."""

    def run(ask: Ask) -> str:
        Machine.current.name = "namesake"
        log = world_log(WorldStore(ask, concurrency=1), 1)
        head = find_head(log)
        if head.live is None:
            return "nothing"
        log_id = head.live.header.log_id
        join(log, consumer(name, head.gap, log_id, run_id="another"), is_of_all=True)
        return "done"

    return run


def latecomer(name: str, log_id: str, position: int) -> Process:
    """A consumer that comes back and reports an old position."""
    body = encode(consumer(name, position, log_id, run_id=name), "default")
    return outsider(Call("overwrite", (keys.consumer_key(PREFIX, name), body)))
