"""Processes that compact and collect a log, and those that interfere with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sparkwal.errors import (
    CollectedError,
    CompactionError,
    InvalidLogError,
    ReadError,
    SparkWalError,
    StoreUnavailableError,
    WriteError,
)
from sparkwal.format.lifecycle_record import FLOOR, MERGE, NO_TABLE_VERSION, Promise, Target
from sparkwal.lifecycle.collecting.collection import forget_old_records
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import ASIDE, Policy
from sparkwal.lifecycle.table import Held, TableState
from sparkwal.protocol.chain import newest_record
from sparkwal.store.base import LogStore, Transient
from tests.chains import Seen, put_next
from tests.lifecycle.table import rows_of, waiting_rows
from tests.simulation.clients import WorldClock, WorldStore, world_log
from tests.simulation.machine import Ask, Machine, Process
from tests.simulation.outside import Row
from tests.simulation.world import EXPIRY_MS, Call

TARGET = Target("sim://lake/table")
# As if each row deleted its key.
WITH_TOMBSTONES = Target(
    "sim://lake/table", MERGE, ("k",), "s", delete_when="d", tombstone_horizon_ms=1
)

AT_ONCE = Policy(late_window_seconds=0)
SETS_ASIDE = Policy(late_window_seconds=0, refused_rows=ASIDE)
# The least there is: more than a reader or a writer trusts what it saw.
GRACE_MS = 3_600_000


@dataclass(frozen=True)
class _InWorld:
    """A table of the world, of which a process asks the history."""

    ask: Ask
    log: LogStore
    of: ClassVar[str]
    # The rows of the world have no columns.
    spark_schema: ClassVar[str] = ""
    computed: ClassVar[tuple[str, ...]] = ()

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        found: TableState | None = self._asked("look", log_id, since)
        return found

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        found: Held | None = self._asked("held", log_id, since, k)
        return found

    def _asked(self, operation: str, *arguments: Any) -> Any:
        try:
            return self.ask(Call(f"{self.of}_{operation}", arguments))
        except Transient as error:
            raise WriteError(error.reason) from error


@dataclass(frozen=True)
class WorldTable(_InWorld):
    """The table of a simulated process.

    Attributes:
        refuses: it refuses rows of this sequencer.
        refused_at: only those at this position; −1: all.
    """

    target: Target
    tombstones: WorldTombstones | None = None
    refuses: str = ""
    refused_at: int = -1
    of = "table"

    @property
    def refused(self) -> WorldRefused:
        return WorldRefused(self.ask, self.log, self)

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        self.ask(Call("table_make"))
        if self.tombstones is not None:
            self.tombstones.prepare()

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        begun = self.snapshot(promise.table.app_id, -1)
        if begun is None:
            raise WriteError("the table was deleted")
        if begun.k >= promise.table.k:
            return
        rows = _rows(self.log, promise)
        if promise.is_aside:
            assert promise.table.refused is not None
            aside = self.ask(Call("refused_rows", (promise.table.refused.version,)))
            rows = tuple(row for row in rows if (promise.table.k, *row) not in aside)
        if promise.is_again:
            rows = tuple(row[1:] for row in waiting_rows(aside, promise))
        if self.refusal(promise, rows):
            raise WriteError("the table refuses a row")
        self._commit(promise, (begun.table_id, begun.version), rows)

    def refusal(self, promise: Promise, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """The rows of the open range that it refuses."""
        bad = {part.log_id for part in promise.ranges if part.sequencer == self.refuses}
        return tuple(row for row in rows if row[0] in bad and self.refused_at in (-1, row[1]))

    def burn(self, promise: Promise) -> None:
        begun = self.snapshot(promise.table.app_id, -1)
        if begun is None:
            raise WriteError("the table was deleted")
        if begun.k < promise.table.k:
            self._commit(promise, (begun.table_id, begun.version), None)

    def _commit(
        self, promise: Promise, begun: tuple[str, int], rows: tuple[Row, ...] | None
    ) -> None:
        """Commit the transaction of the range with its rows; None burns it."""
        self._asked("write", begun, promise.range_id, rows)


@dataclass(frozen=True)
class WorldTombstones(_InWorld):
    """The tombstones of that table."""

    of = "tombstones"

    def prepare(self) -> None:
        self.ask(Call("tombstones_make"))

    def write(self, promise: Promise, *, is_repeated: bool = False) -> None:
        begun = self.snapshot(promise.table.app_id, -1)
        if begun is None:
            raise WriteError("the tombstones were deleted")
        if begun.k >= promise.table.k and not is_repeated:
            return
        rows = _rows(self.log, promise)
        self._asked("write", begun.version, promise.range_id, rows, not is_repeated)


@dataclass(frozen=True)
class WorldRefused(_InWorld):
    """The table of the rows that it refuses."""

    table: WorldTable
    of = "refused"

    def prepare(self) -> None:
        self.ask(Call("refused_make"))

    def write(self, promise: Promise) -> None:
        begun = self.snapshot(promise.table.app_id, -1)
        if begun is None:
            raise WriteError("the refused rows were deleted")
        if begun.k >= promise.table.k:
            return
        (part,) = promise.ranges
        if promise.is_again:
            waiting = waiting_rows(self.ask(Call("refused_rows", (begun.version,))), promise)
            bad = self.table.refusal(promise, tuple(row[1:] for row in waiting))
            still = tuple(row for row in waiting if row[1:] in bad)
            self._asked("mark", begun.version, promise.range_id, still)
            return
        bad = self.table.refusal(promise, _rows(self.log, promise))
        rows = tuple((promise.table.k, *row) for row in bad)
        left = part.log_id, part.cut, promise.logs[part.sequencer].taken
        self._asked("write", begun.version, promise.range_id, left, rows)

    def remove_taken(self, promise: Promise) -> None:
        for log in promise.logs.values():
            self._asked("remove", log.log_id, log.taken)


def _rows(log: LogStore, promise: Promise) -> tuple[Row, ...]:
    """The rows of the open range."""
    try:
        found: list[Row] = []
        for part in promise.ranges:
            log = log.root.sequencer(part.sequencer)
            for header, values in rows_of(log, part.cut, part.to, log_id=part.log_id):
                found.append((header.log_id, header.position, tuple(values)))
        return tuple(found)
    except (InvalidLogError, CollectedError) as error:
        raise ReadError(str(error)) from error


def world_table(
    ask: Ask, log: LogStore, target: Target, refuses: str = "", refused_at: int = -1
) -> WorldTable:
    """The table of a simulated process, with its tombstones."""
    tombstones = WorldTombstones(ask, log) if target.keeps_tombstones else None
    return WorldTable(ask, log, target, tombstones, refuses, refused_at)


def _life(
    name: str,
    ask: Ask,
    *,
    policy: Policy = AT_ONCE,
    target: Target | None = TARGET,
    collects: bool = True,
    sequencer: str = "default",
    refuses: str = "",
    refused_at: int = -1,
) -> Coordinator:
    Machine.current.name = name
    log = world_log(WorldStore(ask), 1).sequencer(sequencer)
    return Coordinator(
        log,
        policy,
        table=world_table(ask, log, target, refuses, refused_at) if target else None,
        gc_grace_ms=GRACE_MS,
        consumer_expiry_ms=EXPIRY_MS,
        collects=collects,
        clock=WorldClock(ask),
        host=name,
    )


def compactor(
    name: str,
    *,
    runs: int = 1,
    collects: bool = True,
    policy: Policy = AT_ONCE,
    target: Target | None = TARGET,
    of: str = "default",
    refuses: str = "",
    refused_at: int = -1,
) -> Process:
    """One life of a compactor: so many runs, and others may come between them.

    Args:
        name: unique; makes the names that it draws unique.
        of: the name of its log, or "*" for all under the path.
        refuses: the table refuses the rows of this sequencer.
        refused_at: only those at this position; −1: all.
    """

    def run(ask: Ask) -> str:
        sequencer = "default" if of == "*" else of
        life = _life(
            name,
            ask,
            policy=policy,
            target=target,
            collects=collects,
            sequencer=sequencer,
            refuses=refuses,
            refused_at=refused_at,
        )
        for each in range(runs):
            if each:
                ask(Call("idle"))
            try:
                if of == "*":
                    for result in life.run_all().values():
                        if isinstance(result, SparkWalError):
                            raise result
                else:
                    life.run_once()
            except SparkWalError as error:
                return type(error).__name__
        return "done"

    return run


def mender(
    name: str, restore: Call, tries: int = 3, target: Target = TARGET, **others: Any
) -> Process:
    """A user who restores the table, accepts it, and compacts the remaining rows into it."""

    def run(ask: Ask) -> str:
        life = _life(name, ask, target=target, collects=False, **others)
        outcome = "gave up"
        for _ in range(tries):
            ask(restore)
            try:
                life.accept_table()
                life.run_once()
                return "done"
            except CompactionError as error:
                outcome = type(error).__name__
        return outcome

    return run


def giver(name: str, **others: Any) -> Process:
    """A user who gives the open range up, and compacts what waits."""

    def run(ask: Ask) -> str:
        life = _life(name, ask, collects=False, **others)
        try:
            life.give_up_range()
            life.run_once()
        except SparkWalError as error:
            return type(error).__name__
        return "done"

    return run


def mended(name: str, **others: Any) -> Process:
    """A user who mended the table, and writes its refused rows again."""

    def run(ask: Ask) -> str:
        life = _life(name, ask, collects=False, **others)
        try:
            life.refused_again()
        except SparkWalError as error:
            return type(error).__name__
        return "done"

    return run


def changer(name: str) -> Process:
    """A user who changes the target."""

    def run(ask: Ask) -> str:
        life = _life(name, ask, target=replace(TARGET, cluster_by=("v",)), collects=False)
        try:
            life.change_target()
        except SparkWalError as error:
            return type(error).__name__
        return "done"

    return run


def keeper(name: str, records: int, pause_ms: int) -> Process:
    """Puts records without a range, and deletes old ones after a pause."""

    def run(ask: Ask) -> str:
        Machine.current.name = name
        log = world_log(WorldStore(ask), 1).sequencer("default")
        begun = newest_record(log)
        assert begun is not None
        seen: Seen | None = Seen(begun)
        for _ in range(records):
            assert seen is not None
            seen = put_next(log, seen, FLOOR, WorldClock(ask), name)
        ask(Call("sleep", (pause_ms,)))
        assert seen is not None
        forget_old_records(log, begun, seen.record, GRACE_MS)
        return "done"

    return run


def collector(name: str) -> Process:
    """Only collects."""

    def run(ask: Ask) -> str:
        life = _life(name, ask)
        try:
            life.collect(dry_run=False)
        except SparkWalError as error:
            return type(error).__name__
        return "done"

    return run


def outsider(*operations: Call) -> Process:
    """Does this, one after the other, at any time."""

    def run(ask: Ask) -> str:
        for call in operations:
            try:
                ask(call)
            except StoreUnavailableError:
                return "StoreUnavailableError"
        return "done"

    return run


def others(*processes: Process) -> Process:
    """Processes that run one after the other and are not disturbed."""
    return outsider(*(Call("undisturbed", (each,)) for each in processes))


def hours(*milliseconds: int) -> Process:
    """Time passes."""
    return outsider(*(Call("sleep", (each,)) for each in milliseconds))
