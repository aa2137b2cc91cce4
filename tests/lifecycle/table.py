"""A table in memory that behaves as Delta does where the lifecycle depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sparkwal.errors import InvalidLogError, OptionError, PlanError, ReadError
from sparkwal.format import schema
from sparkwal.format.header import CommitHeader
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION, Promise, Target
from sparkwal.format.merging import union_of
from sparkwal.lifecycle.table import (
    Change,
    TableConflict,
    TableState,
    Tombstones,
    named_range,
)
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.store.base import LogStore


class Died(BaseException):
    """The process was killed."""


@dataclass(frozen=True)
class Version:
    change: Change
    rows: tuple[int, ...]
    txns: dict[str, int]


@dataclass
class ModelTable:
    """Its versions, one for each commit; `before` is called with the name of each step.

    A transaction survives a restore, and one that the table has is not written again.
    """

    log: LogStore
    target: Target = Target("memory://table")
    table_id: str = "table-1"
    versions: list[Version] = field(default_factory=list)
    before: Callable[[str], None] = lambda step: None
    tombstones: Tombstones | None = None
    columns: str = ""

    def check_rows(self, promise: Promise, spark_schema: str) -> None:
        """It takes any row."""

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        self.before("prepare")
        try:
            columns = union_of(
                [(self.columns or spark_schema, "the table"), (spark_schema, log.url)]
            )
        except OptionError as error:
            raise PlanError(f"the table does not take {log.url}: {error}") from error
        self.columns = columns
        if not self.versions:
            self._commit("CREATE TABLE", (), {})

    def snapshot(self, log_id: str, since: int, k: int | None = None) -> TableState | None:
        self.before("look")
        if not self.versions:
            return None
        changes = tuple(each.change for each in self.versions if each.change.version > since)
        k = self.versions[-1].txns.get(log_id, 0)
        return TableState(self.table_id, len(self.versions) - 1, k, changes)

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        read_at = len(self.versions)
        try:
            rows = self._read(promise)
        except InvalidLogError as error:
            raise ReadError(str(error)) from error
        self.before("write")
        if self.versions[-1].txns.get(promise.table.app_id, 0) >= promise.table.k:
            return
        if len(self.versions) != read_at and self.versions[-1].change.operation == "OPTIMIZE":
            raise TableConflict("OPTIMIZE was faster")
        txns = {**self.versions[-1].txns, promise.table.app_id: promise.table.k}
        self._commit("WRITE", (*self.versions[-1].rows, *rows), txns, promise)
        self.before("written")

    def burn(self, promise: Promise) -> None:
        self.before("burn")
        if self.versions[-1].txns.get(promise.table.app_id, 0) >= promise.table.k:
            return
        txns = {**self.versions[-1].txns, promise.table.app_id: promise.table.k}
        self._commit("WRITE", self.versions[-1].rows, txns, promise)
        version = self.versions.pop()
        self.versions.append(replace(version, change=replace(version.change, is_burned=True)))
        self.before("burned")

    def optimize(self) -> None:
        self._commit("OPTIMIZE", self.versions[-1].rows, self.versions[-1].txns)

    def restore(self, version: int) -> None:
        # Delta keeps the newest transactions over a restore.
        self._commit(
            "RESTORE",
            self.versions[version].rows,
            self.versions[-1].txns,
            undoes=True,
            restores=version,
        )

    def overwrite(self, rows: list[int]) -> None:
        self._commit("WRITE", tuple(rows), self.versions[-1].txns, undoes=True)

    def make_again(self) -> None:
        self.table_id, self.versions = self.table_id + "'", []
        self._commit("CREATE TABLE", (), {})

    @property
    def rows(self) -> list[int]:
        return list(self.versions[-1].rows) if self.versions else []

    @property
    def ranges(self) -> list[int]:
        return [each.change.k for each in self.versions if each.change.k]

    def _commit(
        self,
        operation: str,
        rows: tuple[int, ...],
        txns: dict[str, int],
        promise: Promise | None = None,
        undoes: bool = False,
        restores: int | None = None,
    ) -> None:
        change = Change(len(self.versions), operation, undoes=undoes, restores=restores)
        if promise is not None:
            named = named_range(promise)
            del named["sequencer"]
            change = replace(change, **named)
        self.versions.append(Version(change, rows, txns))

    def _read(self, promise: Promise) -> list[int]:
        found: list[int] = []
        for part in promise.ranges:
            log = self.log.root.sequencer(part.sequencer)
            window = find_head(log).window
            for record in live_records(log, window, part.cut, part.to, log_id=part.log_id):
                if isinstance(record.header, CommitHeader):
                    target = schema.to_arrow(record.spark_schema)
                    pieces = pieces_of(log, record)
                    for batch in read_pieces(log, pieces, target):
                        found += batch.column(0).to_pylist()
        return found


@contextmanager
def dying_at(table: ModelTable, step: str, nth: int = 0) -> Iterator[None]:
    """A process that uses the table dies at a step, the `nth` time after the first."""
    count = 0

    def die(now: str) -> None:
        nonlocal count
        count += now == step
        if now == step and count == nth + 1:
            raise Died

    table.before = die
    try:
        yield
    finally:
        table.before = lambda step: None
