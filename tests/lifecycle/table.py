"""A table in memory, and its history as plain functions, for the tests and for the simulation.

It behaves as a table format does where a lifecycle depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparkwal.errors import InvalidLogError, OptionError, PlanError, ReadError, WriteError
from sparkwal.format import schema
from sparkwal.format.header import CommitHeader
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION, Promise, Target
from sparkwal.format.merging import union_of
from sparkwal.lifecycle.table import (
    Change,
    Held,
    TableConflict,
    TableState,
    named_range,
)
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.store.base import LogStore


class Died(BaseException):
    """The process was killed."""


class Version(NamedTuple):
    """The result of one commit to a table.

    Attributes:
        log_id, k: the range that it wrote; "" and 0 for commits of others.
        undoes: it may have removed rows of earlier versions.
        txns: (log_id, k) of the last range of each log. They survive a restore.
        restores: the place of the version that a restore brought back.
        named: the positions of the range, as fields of a `Change`.
    """

    operation: str
    log_id: str = ""
    k: int = 0
    undoes: bool = False
    rows: tuple[Any, ...] = ()
    txns: tuple[tuple[str, int], ...] = ()
    restores: int | None = None
    named: tuple[tuple[str, Any], ...] = ()


Versions = tuple[Version, ...]
IN_MEMORY = Target("memory://table")
CREATED: Versions = (Version("CREATE TABLE"),)


@dataclass(frozen=True)
class History:
    """The history of a table, as `sparkwal.lifecycle.table.WrittenTable` reads it.

    Attributes:
        versions: all versions, oldest first. The place of one is its number, unless `numbers` has
            another.
        oldest: the place of the first one that the table still lists.
        numbers: the number of the version at each place. Those of a format may be in no order.
    """

    table_id: str
    versions: Versions
    oldest: int = 0
    numbers: Callable[[int], int] = int

    @property
    def _places(self) -> dict[int, int]:
        places = {self.numbers(place): place for place in range(len(self.versions))}
        return {NO_TABLE_VERSION: -1, **places}

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        if not self.versions:
            return None
        last = len(self.versions) - 1
        begin = last if since is None else self._places.get(since)
        places = range(max(self.oldest, last + 1 if begin is None else begin + 1), last + 1)
        return TableState(
            self.table_id,
            self.numbers(last),
            dict(self.versions[-1].txns).get(log_id, 0),
            tuple(map(self._change, places)),
            complete=begin is not None and self.oldest <= begin + 1,
            newer=0 if begin is None else last - begin,
        )

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        """Walk from the newest version back to `since`, by way of the versions restored."""
        table = self.snapshot(log_id, since)
        if table is None:
            return None
        begin = self._places.get(since, -1)
        former, place = self._restored(begin), self._restored(len(self.versions) - 1)
        ranges: list[Change] = []
        while place != former:
            if place < begin:
                why = f"it was restored to version {self.numbers(place)}, which is older"
                return Held(table, unknown=why)
            if place < self.oldest and k not in (None, table.k):
                why = f"its history does not reach back to version {since}"
                return Held(table, unknown=why)
            if place < self.oldest:
                break
            change = self._change(place)
            if change.undoes:
                return Held(table, tuple(reversed(ranges)), overwrite=change)
            if change.log_id == log_id and not change.is_burned:
                ranges.append(change)
            place = self._restored(place - 1)
        return Held(table, tuple(reversed(ranges)))

    def _restored(self, place: int) -> int:
        """The place of the version whose rows the version at `place` has."""
        while place >= 0 and (restores := self.versions[place].restores) is not None:
            place = restores
        return place

    def _change(self, place: int) -> Change:
        version = self.versions[place]
        return Change(
            self.numbers(place),
            version.operation,
            version.log_id,
            version.k,
            version.undoes,
            files=1,
            bytes=100,
            is_burned=version.operation == "BURN",
            **dict(version.named),
        )


def written(
    versions: Versions,
    begun: int,
    range_id: tuple[str, int],
    rows: tuple[Any, ...] | None,
    named: tuple[tuple[str, Any], ...] = (),
) -> Versions:
    """Commit a transaction that began with a look at the version at place `begun`.

    Args:
        rows: of the range; None burns it.

    Raises:
        TableConflict: another writer was faster.
    """
    log_id, k = range_id
    later = versions[begun + 1 :]
    if any(version.log_id == log_id for version in later):
        raise TableConflict("the same log was written at the same time")
    if any(version.operation == "OPTIMIZE" for version in later):
        raise TableConflict("OPTIMIZE was faster")
    # As an append it conflicts with nothing else, a restore included.
    txns = tuple(sorted({**dict(versions[-1].txns), log_id: k}.items()))
    operation = "BURN" if rows is None else "WRITE"
    all_rows = versions[-1].rows + (rows or ())
    return (*versions, Version(operation, log_id, k, False, all_rows, txns, named=named))


def optimized(versions: Versions) -> Versions:
    """Another writer's version, with the same rows."""
    return (*versions, Version("OPTIMIZE", rows=versions[-1].rows, txns=versions[-1].txns))


def restored(versions: Versions, to: int) -> Versions:
    """The version at place `to` again. The newest transactions stay."""
    rows, txns = versions[to].rows, versions[-1].txns
    return (*versions, Version("RESTORE", "", 0, True, rows, txns, to))


def overwritten(versions: Versions, rows: tuple[Any, ...]) -> Versions:
    """Other rows instead of all."""
    return (*versions, Version("OVERWRITE", "", 0, True, rows, versions[-1].txns))


def forgotten(versions: Versions) -> Versions:
    """Its transactions are cut off, as a retention of transactions does."""
    return (*versions, Version("OPTIMIZE", rows=versions[-1].rows))


class ModelTombstones:
    """The deleted keys of a table in memory: each row of the log deletes its key."""

    def __init__(self, table: ModelTable) -> None:
        self._table = table
        self.versions: Versions = ()

    def prepare(self) -> None:
        self.versions = self.versions or CREATED

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        return self._history.snapshot(log_id, since, k)

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        return self._history.held(log_id, since, k)

    def write(self, promise: Promise, *, is_repeated: bool = False) -> None:
        log_id, k = promise.range_id
        newest = self.versions[-1]
        txns = dict(newest.txns)
        if txns.get(log_id, 0) >= k and not is_repeated:
            return
        rows = tuple(sorted({*newest.rows, *self._table.read(promise)}))
        after = tuple(sorted({**txns, log_id: max(k, txns.get(log_id, 0))}.items()))
        self.versions = (*self.versions, Version("MERGE", log_id, k, False, rows, after))

    @property
    def _history(self) -> History:
        return History(f"{self._table.table_id} tombstones", self.versions)


class ModelRefused:
    """The rows that a table in memory refuses: (range, log_id, position, value)."""

    def __init__(self, table: ModelTable) -> None:
        self._table = table
        self.versions: Versions = ()

    def prepare(self) -> None:
        self.versions = self.versions or CREATED

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        return self._history.snapshot(log_id, since, k)

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        return self._history.held(log_id, since, k)

    def write(self, promise: Promise) -> None:
        begun = len(self.versions) - 1
        placed = self._table.placed(promise)
        self._table.before("find")
        bad = tuple((promise.table.k, *row) for row in placed if row[2] in self._table.refuses)
        self._table.before("aside")
        (part,) = promise.ranges
        taken = promise.logs[part.sequencer].taken
        if promise.is_again:
            waiting = waiting_rows(self.rows, promise)
            bad = tuple(row for row in waiting if row[3] in self._table.refuses)
            self.versions = still_aside(self.versions, begun, promise.range_id, bad)
        else:
            left = part.log_id, part.cut, taken
            self.versions = stepped_aside(self.versions, begun, promise.range_id, left, bad)
        self._table.before("went aside")

    def remove_taken(self, promise: Promise) -> None:
        self._table.before("remove")
        taken = {log.log_id: log.taken for log in promise.logs.values()}
        kept = tuple(row for row in self.rows if row[0] >= taken.get(row[1], 0))
        self.versions = (
            *self.versions,
            Version("DELETE", rows=kept, txns=self.versions[-1].txns),
        )

    @property
    def rows(self) -> list[tuple[int, str, int, int]]:
        return [*self.versions[-1].rows] if self.versions else []

    @property
    def _history(self) -> History:
        return History(f"{self._table.table_id} refused", self.versions)


def waiting_rows(rows: Iterable[Any], promise: Promise) -> tuple[Any, ...]:
    """The refused rows that the open range writes again.

    Args:
        rows: all refused rows, each (range, log_id, position, …).
        promise: the open range.
    """
    (part,) = promise.ranges
    ks = range(promise.logs[part.sequencer].taken, promise.table.k)
    return tuple(
        row for row in rows if row[0] in ks and row[1] == part.log_id and row[2] < part.cut
    )


def still_aside(
    versions: Versions, begun: int, range_id: tuple[str, int], rows: tuple[Any, ...]
) -> Versions:
    """Give rows that a table still refuses the number of a range, unless the table took it.

    Args:
        versions, begun, range_id: as for `stepped_aside`.
        rows: those of the refused rows.

    Raises:
        TableConflict: another writer was faster.
    """
    _, k = range_id
    marked = tuple((k, *row[1:]) if row in rows else row for row in versions[-1].rows)
    return _with_refused(versions, begun, range_id, marked, len(rows))


def stepped_aside(
    versions: Versions,
    begun: int,
    range_id: tuple[str, int],
    left: tuple[str, int, int],
    rows: tuple[Any, ...],
) -> Versions:
    """Commit the rows that step aside from a range, unless the table took its number.

    Args:
        versions: those of the refused rows, each (range, log_id, position, …).
        begun: the place of the version at which the transaction began.
        range_id: its name.
        left: the log, the position from which on its rows are removed, and the range below which
            they are.
        rows: the new ones.

    Raises:
        TableConflict: another writer was faster.
    """
    log_id, cut, taken = left
    kept = (
        row for row in versions[-1].rows if row[1] != log_id or (row[2] < cut and row[0] >= taken)
    )
    return _with_refused(versions, begun, range_id, (*kept, *rows), len(rows))


def _with_refused(
    versions: Versions, begun: int, range_id: tuple[str, int], rows: tuple[Any, ...], count: int
) -> Versions:
    log_id, k = range_id
    txns = dict(versions[-1].txns)
    if txns.get(log_id, 0) >= k:
        return versions
    if len(versions) - 1 != begun:
        raise TableConflict("the refused rows were written at the same time")
    of_all = tuple(sorted({**txns, log_id: k}.items()))
    named = (("rows", count),)
    return (*versions, Version("MERGE", log_id, k, False, rows, of_all, named=named))


class ModelTable:
    """A table in memory, as `sparkwal.lifecycle.table.Table`.

    Attributes:
        before: is called with the name of each step.
        oldest: the first version that the table still lists.
        refuses: the table takes no range with one of these rows.
    """

    def __init__(
        self,
        log: LogStore,
        target: Target = IN_MEMORY,
        numbers: Callable[[int], int] = int,
    ) -> None:
        self.log = log
        self.target = target
        self.table_id = "table-1"
        self.versions: Versions = ()
        self.before: Callable[[str], None] = lambda step: None
        self.tombstones = ModelTombstones(self) if target.keeps_tombstones else None
        self.oldest = 0
        self.refuses: set[int] = set()
        self.refused = ModelRefused(self)
        self._columns = ""
        self._numbers = numbers

    @property
    def _history(self) -> History:
        return History(self.table_id, self.versions, self.oldest, self._numbers)

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        self.before("prepare")
        try:
            self._columns = union_of(
                [(self._columns or spark_schema, "the table"), (spark_schema, log.url)]
            )
        except OptionError as error:
            raise PlanError(f"the table does not take {log.url}: {error}") from error
        self.versions = self.versions or CREATED
        if self.tombstones is not None:
            self.tombstones.prepare()

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        self.before("look")
        return self._history.snapshot(log_id, since, k)

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        self.before("look")
        return self._history.held(log_id, since, k)

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        begun = len(self.versions) - 1
        try:
            rows = self.read(promise)
        except InvalidLogError as error:
            raise ReadError(str(error)) from error
        self.before("write")
        if bad := self.refuses & {*rows}:
            raise WriteError(f"the table refuses the row {min(bad)}")
        self._commit(promise, begun, tuple(rows))
        self.before("written")

    def burn(self, promise: Promise) -> None:
        begun = len(self.versions) - 1
        self.before("burn")
        self._commit(promise, begun, None)
        self.before("burned")

    def optimize(self) -> None:
        self.versions = optimized(self.versions)

    def restore(self, to: int) -> None:
        self.versions = restored(self.versions, to)

    def overwrite(self, rows: list[int]) -> None:
        self.versions = overwritten(self.versions, tuple(rows))

    def make_again(self) -> None:
        self.table_id, self.versions = self.table_id + "'", CREATED

    @property
    def rows(self) -> list[int]:
        return list(self.versions[-1].rows) if self.versions else []

    @property
    def ranges(self) -> list[int]:
        return [version.k for version in self.versions if version.k]

    def _commit(self, promise: Promise, begun: int, rows: tuple[int, ...] | None) -> None:
        """Commit the transaction of the range, unless the table has it."""
        log_id, k = promise.range_id
        if dict(self.versions[-1].txns).get(log_id, 0) >= k:
            return
        named = named_range(promise)
        for name in ("log_id", "k", "sequencer"):
            del named[name]
        named["rows"] = len(rows or ())
        self.versions = written(self.versions, begun, (log_id, k), rows, tuple(named.items()))

    def read(self, promise: Promise) -> list[int]:
        """The values of the open range, without those that stepped aside."""
        if promise.is_again:
            assert promise.table.refused is not None
            version = self.refused.versions[promise.table.refused.version]
            return [row[3] for row in waiting_rows(version.rows, promise)]
        return [row[2] for row in self.placed(promise) if row not in self._aside(promise)]

    def _aside(self, promise: Promise) -> set[tuple[str, int, int]]:
        if not promise.is_aside or promise.table.refused is None:
            return set()
        rows = self.refused.versions[promise.table.refused.version].rows
        return {(log_id, at, value) for k, log_id, at, value in rows if k == promise.table.k}

    def placed(self, promise: Promise) -> list[tuple[str, int, int]]:
        """The rows of the open range: (log_id, position, value)."""
        found: list[tuple[str, int, int]] = []
        for part in promise.ranges:
            log = self.log.root.sequencer(part.sequencer)
            for header, values in rows_of(log, part.cut, part.to, part.log_id):
                found += [(part.log_id, header.position, value) for value in values]
        return found


def rows_of(
    log: LogStore, cut: int, to: int, log_id: str | None
) -> Iterator[tuple[CommitHeader, list[Any]]]:
    """The values of the first column of each commit of a range."""
    window = find_head(log).window
    for record in live_records(LogView(log, window, log_id), cut, to):
        header = record.header
        if isinstance(header, CommitHeader):
            columns = schema.to_arrow(record.spark_schema)
            batches = read_pieces(log, pieces_of(log, record), columns)
            yield header, [value for batch in batches for value in batch.column(0).to_pylist()]


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
