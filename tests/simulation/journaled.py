"""A service that appends with a journal: the library's own `JournalBackend`, its threads and all,
over a folder in memory and the simulated store."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

import pyarrow as pa

from sparkwal.appender import journal_backend, sender
from sparkwal.appender.batches import Ticket
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.journal_backend import JournalBackend
from sparkwal.appender.rows import RowSchema
from sparkwal.errors import BackPressureError, JournalError, SparkWalError
from sparkwal.format import schema
from sparkwal.journal import open_segments, opening
from sparkwal.options.writing import AppenderOptions
from tests.journal.disk import MemoryFolder
from tests.simulation import oracle
from tests.simulation.clients import WorldClock, WorldStore, world_log
from tests.simulation.codec import drawn, searching
from tests.simulation.data import JOURNALED, SCHEMA
from tests.simulation.disks import WorldFolder
from tests.simulation.machine import Ask, Machine, Process
from tests.simulation.processes import IgnoringSubscribers
from tests.simulation.threads import Thread
from tests.simulation.world import Call

# Values of one life, and of one of its threads.
LIFE, THREAD = 10_000, 1_000


@dataclass(frozen=True)
class Plan:
    """The plan of one life of the service.

    Attributes:
        appends: the number of appends of each of its `threads`.
        block: an append waits for room.
        idle: the number of times that others may run before it ends.
        flushes: it waits until the log has all rows.
        patience: the seconds that closing may take.
        resends: it sends lost rows again. Without this other rows get their sequences.
        closes: it closes the appender at its end. Without this the process just ends.
    """

    life: int
    appends: int
    threads: int = 1
    limit: int = 2
    batch_size: int = 1
    sync: str = "always"
    segment: int = 1100
    max_bytes: int = 8000
    slots: int | None = 8
    block: bool = True
    idle: int = 0
    flushes: bool = False
    closes: bool = True
    patience: float | None = 1.0
    resends: bool = True
    retries: int = 1


@dataclass
class Ledger:
    """The acknowledgements of the service.

    Attributes:
        where: asks the log for the values by position.
        keeps: no accepted row may be lost and reported.
        begun: values of appends that began.
        refused: values of appends that raised an error of refusal.
        accepted: by value: the sequence of an append that returned.
        weak: accepted values that a loss of power may take back.
        reported: values that the journal reported as lost.
        ever: values of appends that returned.
        had: by sequence: the values of these appends that had it.
        at: by sequence: the values that may have had it last. It is one, unless power took a weak
            one.
        marked, rotten: the journal was opened since a loss of power; it was not since a byte
            changed.
        alarmed: a loss may be reported although no file was damaged: power was lost, which may take
            the mark, or an append that it took had returned already.
        tickets: the number of checked answers.
    """

    where: Callable[[], dict[int, list[int]]]
    keeps: bool = True
    begun: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    accepted: dict[int, int] = field(default_factory=dict)
    weak: set[int] = field(default_factory=set)
    reported: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)
    had: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    at: dict[int, set[int]] = field(default_factory=dict)
    marked: bool = True
    rotten: bool = False
    alarmed: bool = False
    tickets: int = 0

    def open(self, last: int, lost: range) -> list[int]:
        """The values to send again, in order, from an appender that has just opened."""
        gone = sorted((s, v) for v, s in self.accepted.items() if s > last and v not in self.weak)
        unreported = [value for sequence, value in gone if sequence not in lost]
        if gone and (self.keeps or set(unreported) - self.reported):
            raise oracle.Violation(f"accepted and lost: {gone}; the journal ends at {last}, {lost}")
        if lost and self.keeps and not self.alarmed:
            raise oracle.Violation(f"{lost} are reported as lost, and nothing was damaged")
        self.marked, self.rotten = True, False
        self.reported |= {value for _, value in gone}
        return [value for _, value in gone]

    def find(self, sequence: int, values: list[int]) -> None:
        """The rows of a lost append in quarantine."""
        was = self.at.get(sequence, set())
        if (len(values) != 1 or values[0] not in was) and set(values) <= self.ever:
            raise oracle.Violation(f"lost append {sequence} was {was}, and quarantine has {values}")

    def accept(self, value: int, sequence: int, *, weak: bool) -> None:
        """An append has returned."""
        self.accepted[value], self.at[sequence] = sequence, {value}
        self.had[sequence].add(value)
        self.ever.add(value)
        if weak:
            self.weak.add(value)

    def report(self, value: int, position: int) -> None:
        """Note the position that a ticket returned."""
        self.tickets += 1
        there = self.where()
        found = sum(there.values(), []) if position < 0 else there.get(position, [])
        if value not in found:
            raise oracle.Violation(f"a ticket returned {position} for {value}, which is wrong")

    def power_lost(self) -> None:
        """Note that weak values may be lost."""
        self.marked = False
        self.alarmed = True
        for value in self.weak:
            self.accepted.pop(value, None)
        for sequence, values in self.at.items():
            if values & self.weak:
                # The quarantine may still hold one that had the number before.
                self.at[sequence] = self.had[sequence]
        self.weak.clear()


def service(plan: Plan, memory: MemoryFolder, ledger: Ledger) -> Process:
    """One life. It sends again what the journal has not any more of what was acknowledged."""
    rows = RowSchema(schema.to_arrow(SCHEMA))
    options = replace(
        AppenderOptions(path="wal"),
        max_in_flight=plan.limit,
        batch_size=plan.batch_size,
        batch_timeout_ms=0,
        journal="",
        journal_sync=plan.sync,
        journal_segment=plan.segment,
        journal_max=plan.max_bytes,
        journal_slots=plan.slots,
    )

    def run(ask: Ask) -> str:
        log = world_log(WorldStore(ask, patient=True), plan.retries)
        context = AppenderContext(
            log, options, rows, JOURNALED, IgnoringSubscribers(), WorldClock(ask)
        )
        try:
            appender = JournalBackend(context, WorldFolder(ask, memory))
        except SparkWalError as error:
            return f"{type(error).__name__} opening: {error}"
        append = partial(_append, ask, appender, rows, ledger, plan)
        last = appender.intake.last_sequence
        again = ledger.open(last, appender.journal.lost)
        for sequence, found in appender.journal.quarantine.entries(last):
            if found is not None:
                kept = pa.ipc.read_record_batch(pa.py_buffer(found[0]), rows.arrow)
                ledger.find(sequence, kept.column(0).to_pylist())
        for place, value in enumerate(again):
            if plan.resends:
                ledger.accepted[value] = last + 1 + place
                append([value])
            else:
                ledger.accepted.pop(value)
        if plan.resends:
            try:
                appender.journal.settle()
            except JournalError as error:
                return f"{type(error).__name__}: {error}"
        threads = [Thread(append, args=(values,)) for values in _values(plan)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(plan.idle):
            ask(Call("idle"))
        end = "done"
        try:
            if plan.flushes:
                appender.intake.flush(None)
            if plan.closes:
                appender.close(plan.patience)
        except (SparkWalError, TimeoutError) as error:
            end = f"{type(error).__name__} ending: {error}"
        failure = appender.intake.failure
        return end if failure is None else f"{type(failure.error).__name__}: {failure.error}"

    return run


def _values(plan: Plan) -> list[range]:
    firsts = [plan.life * LIFE + number * THREAD for number in range(plan.threads)]
    return [range(first, first + plan.appends) for first in firsts]


def _append(
    ask: Ask,
    appender: JournalBackend,
    rows: RowSchema,
    ledger: Ledger,
    plan: Plan,
    values: Sequence[int],
) -> None:
    for value in values:
        again = value in ledger.begun
        ledger.begun.add(value)
        try:
            ticket = appender.intake.append(rows.accept(_row(value)), block=plan.block or again)
        except JournalError:
            return  # it may be there
        except SparkWalError as error:
            if not again:
                ledger.refused.add(value)
            if not isinstance(error, BackPressureError):
                return
            ask(Call("idle"))
        else:
            ledger.accept(value, ticket.sequence, weak=plan.sync != "always")
            ticket.when_done(partial(_reported, ledger, value, ticket))


def _reported(ledger: Ledger, value: int, ticket: Ticket) -> None:
    try:
        position = ticket.result()
    except SparkWalError:
        return  # it stays in the journal
    ledger.report(value, position)


def _row(value: int) -> pa.RecordBatch:
    values = pa.array([value], pa.int64())
    return pa.RecordBatch.from_arrays([values], schema=schema.to_arrow(SCHEMA))


@contextmanager
def journaling(kept: int) -> Iterator[None]:
    """Set up as `searching` does, with random numbers that repeat.

    Args:
        kept: the number of slots below a floor that no collection deletes.
    """
    kept_before, journal_backend.KEPT_SLOTS = journal_backend.KEPT_SLOTS, kept
    before = sender.uuid, opening.secrets, open_segments.secrets
    proves = sender.prove_put_if_absent
    sender.uuid = SimpleNamespace(uuid4=drawn)  # type: ignore[assignment]
    opening.secrets = open_segments.secrets = SimpleNamespace(randbits=_salt)  # type: ignore[assignment]
    # Eight threads of a store that is known to keep its promise.
    sender.prove_put_if_absent = lambda *_: None
    try:
        with searching():
            yield
    finally:
        sender.uuid, opening.secrets, open_segments.secrets = before
        sender.prove_put_if_absent = proves
        journal_backend.KEPT_SLOTS = kept_before


def _salt(bits: int) -> int:
    machine = Machine.current
    machine.drawn += 1
    return 2 ** (bits - 1) + zlib.crc32(f"{machine.name} {machine.drawn}".encode()) % 2**30
