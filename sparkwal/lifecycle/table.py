"""The interface of a table that a lifecycle fills, in any format, and the checks of its history.

A version of a table is a number that the table gives: only the table orders versions. What a
compaction promises, writes and checks names no format:

- A promise fixes the id of the table, and its version before the range.
- A write makes the rows of the range and the number k of the range visible together, or neither.
  The table takes each number (log_id, k) once. The keys that a range deletes go before its rows
  into the tombstones, in a transaction of their own under the same number. A MERGE removes the row
  of a deleted key, and with it the sequence of the delete; an older row that arrives in a later
  range would bring the key back, so rows that are older than the tombstone of their key are
  dropped.
- Rows that the table refuses may step aside, in the same run: they go before the range into the
  table of refused rows, in a transaction of their own under the same number, and the table gets the
  range without them. A range may also write such rows again: that table first marks those that the
  table still refuses with its number, and the table gets the others.
- The history answers which ranges came since a version, whether something may have taken rows
  away, and whether it reaches back to that version.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from sparkwal.errors import ConfirmError, PlanError
from sparkwal.format.lifecycle_record import (
    MERGE,
    NO_TABLE_VERSION,
    BesideTable,
    Promise,
    TableInChain,
    Target,
)
from sparkwal.store.base import LogStore

# Reads these columns of all rows of a version, in no particular order; None for all columns. It
# raises TableReadError.
ReadRows = Callable[[Sequence[str] | None], Iterator[pa.RecordBatch]]
# Columns of the tombstones, besides the keys; no column of a log has such a name.
SEQUENCE = "_wal_sequence"
DELETED_AT = "_wal_deleted_at"
# The property that names the table whose keys these are.
OWNER = "sparkwal.tombstonesOf"
# The property that names the table which refused these rows.
REFUSED_BY = "sparkwal.refusedBy"


class TableConflict(Exception):
    """Another writer of the table committed first, so this transaction was not committed."""


@dataclass(frozen=True)
class Change:
    """One version of the table, from its history.

    Attributes:
        version: the version.
        operation: the format's name of the operation, for people, such as "WRITE".
        log_id, k: the name of the transactions and the range that this version added; "" and 0
            for other commits.
        undoes: it may have removed rows of earlier versions: a restore, an overwrite, a new table.
        rows, files, bytes: the added rows, and the data files that were added; None if unknown.
        cut, to: the positions cut … to−1 of the range, as its writer recorded them; 0 and 0 if
            unknown. Of a range of several logs, those of the first one.
        ranges: the positions of a range of several logs, by sequencer.
        is_burned: it added no rows, and gave its range up.
    """

    version: int
    operation: str
    log_id: str = ""
    k: int = 0
    undoes: bool = False
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    cut: int = 0
    to: int = 0
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    is_burned: bool = False


@dataclass(frozen=True)
class TableState:
    """The newest snapshot of the table.

    Attributes:
        table_id: the random id of the table.
        version: the snapshot's version.
        k: the last range of the log whose number the table took; 0 for none. A restore of the
            table does not lower it.
        changes: the versions since the one that was asked for, oldest first.
        complete: `changes` has each of them that counts. Otherwise the history does not reach back
            to the version that was asked for, or the table does not have it.
        newer: the number of versions since that one.
        tombstones: the newest snapshot of the table's tombstones, read after it.
        refused: the same of the table of refused rows.
    """

    table_id: str
    version: int
    k: int
    changes: tuple[Change, ...]
    complete: bool = True
    newer: int = 0
    tombstones: "TableState | None" = None
    refused: "TableState | None" = None

    def of_range(self, range_id: tuple[str, int]) -> list[Change]:
        """The versions that a range added, oldest first."""
        return [change for change in self.changes if (change.log_id, change.k) == range_id]


@dataclass(frozen=True)
class Held:
    """What the newest snapshot of a table holds, compared with a former version.

    Attributes:
        table: the newest snapshot.
        ranges: the versions that added the ranges of the log that it holds and the former version
            does not, oldest first. A range that was burned is none.
        overwrite: the version since the former one that may have replaced all of its rows.
        unknown: why none of this is known, for people; "" if it is. It is unknown if the table was
            restored to a version before the former one.
    """

    table: TableState
    ranges: tuple[Change, ...] = ()
    overwrite: Change | None = None
    unknown: str = ""


@dataclass(frozen=True)
class TableFile:
    """A file with rows of one version of a table.

    Attributes:
        name: its name, for people.
        bytes: its size.
        rows: the number of its rows, or None if the table does not tell it.
        text: all that the format needs to find and read it, besides the version's `head`.
    """

    name: str
    bytes: int
    rows: int | None
    text: str


@dataclass(frozen=True)
class VersionFiles:
    """The files of one version of a table.

    Attributes:
        table_id: the id of the table.
        spark_schema: the columns of the version, with the types of a log.
        head: what the format needs to read each of the files.
        files: the files, in an order that only the version decides.
    """

    table_id: str
    spark_schema: str
    head: str
    files: tuple[TableFile, ...]


class Snapshots(Protocol):
    """A table whose history is read."""

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """Read the newest snapshot.

        Args:
            log_id: the name of the transactions whose last range to find.
            since: the version since which changes are wanted; None for no changes.
            k: the last range that `since` is confirmed to hold. Then versions that took no rows
                away and added no range may be left out. None: every version counts.

        Returns:
            The snapshot, or None if there is no table.
        """


class TableColumns(Snapshots, Protocol):
    """A table whose columns are read. They are those of the last `snapshot`."""

    @property
    def spark_schema(self) -> str:
        """The columns, with the types of a log.

        Raises:
            OptionError: a column has a type that a log cannot have.
            TableReadError: the schema is damaged.
        """

    @property
    def computed(self) -> Sequence[str]:
        """The columns that only a write to the table computes for a row that has no value."""


class ReadTable(TableColumns, Protocol):
    """A table whose rows a process reads without Spark. It is that of the last `snapshot`."""

    def as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows of the log to the values that the table stores."""

    def rows_at(self, version: int) -> ReadRows:
        """Open a version of the table.

        Raises:
            TableReadError: the version does not exist, or is unreadable.
        """

    def files_at(self, version: int) -> VersionFiles:
        """List the files of a version, each time the same.

        Raises:
            OptionError: a file cannot be read by itself.
            TableReadError: the version does not exist any more, or is unreadable.
        """

    def rows_of(
        self, head: str, file: TableFile, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read these columns of the rows of one file, in no particular order.

        Args:
            head: the `head` of the version.
            file: one of its files.
            columns: columns of the version.

        Raises:
            TableReadError: the file does not exist any more, or is unreadable.
        """


class SearchedObjects(Protocol):
    """All objects of a folder or a table, for a search of their bytes."""

    def names(self) -> Sequence[str]:
        """List the objects, also those that no version needs.

        Raises:
            StoreUnavailableError: the store did not answer.
        """

    def url(self, name: str) -> str:
        """The URL of an object."""

    def read(self, name: str) -> bytes:
        """Read an object. Several threads may read at once.

        Raises:
            NotFound: it was deleted.
            CannotTell: its bytes cannot be searched.
            SparkWalError: it is unreadable.
        """

    def until(self, name: str) -> str:
        """Describe how an object ends, for people. Call it after all objects were read."""

    def unread(self) -> Iterator[tuple[str, str, str]]:
        """Find the objects that cannot be read: the URL, the reason, and how each ends.

        Call it after all objects were read.
        """


class WrittenTable(Snapshots, Protocol):
    """A table that takes ranges, or the deleted keys of ranges."""

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        """Find the ranges that the newest snapshot holds, and the version `since` does not.

        Unlike `snapshot`, it takes restores and overwrites into account.

        Args:
            log_id: the name of the transactions of the ranges.
            since: the former version.
            k: the last range that it holds. If the table took later ones, and the history does not
                reach back to `since`, the ranges are unknown. None: as much of the history as there
                is counts.

        Returns:
            What the snapshot holds, or None if there is no table.
        """


class Tombstones(WrittenTable, Protocol):
    """The table that keeps the sequences of the deleted keys of another table."""

    def prepare(self) -> None:
        """Create it if it does not exist, with the columns of the other table, which was read.

        Raises:
            PlanError: it is not of that table, or does not hold its keys.
        """

    def write(self, promise: Promise, *, is_repeated: bool = False) -> None:
        """Write the keys that the open range deletes. It may drop those beyond the horizon.

        Args:
            promise: the open range.
            is_repeated: write them although the transaction (log_id, k) may be there. A key may
                have several tombstones.

        Raises:
            TableConflict: another writer committed first.
            ReadError: the range is unreadable.
            WriteError: the keys were not written.
        """


class Refused(WrittenTable, Protocol):
    """The table that keeps the rows of logs which another table refuses."""

    def prepare(self) -> None:
        """Create it if it does not exist, for the other table, which was read.

        Raises:
            PlanError: it is of another table.
        """

    def write(self, promise: Promise) -> None:
        """Find the rows of the open range that the table refuses, and write them.

        One transaction, also without such rows, removes rows of the log from the range's first
        position on, which are left of ranges that were given up, and adds these. If the range
        writes refused rows again, those that the table still refuses get its number.

        Args:
            promise: the open range of one log. To write rows again it names their newest version.

        Raises:
            TableConflict: another writer committed first.
            ReadError: the range is unreadable.
            WriteError: the rows cannot be found, or were not written.
        """

    def remove_taken(self, promise: Promise) -> None:
        """Remove rows that were written again. It saves space only.

        Raises:
            TableConflict, WriteError: they were not removed.
        """


class Table(WrittenTable, Protocol):
    """A table that takes ranges of logs, each in one transaction."""

    @property
    def target(self) -> Target:
        """The table, and the way rows reach it."""

    @property
    def tombstones(self) -> Tombstones | None:
        """Of the table; None if its target keeps none, or this process does not read them."""

    @property
    def refused(self) -> Refused | None:
        """The table of the rows that this one refuses, which may not exist; None if its format has
        none."""

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        """Check the table, and create it if it does not exist.

        Args:
            log: the log.
            spark_schema: the log's columns.
            first: no intent has fixed the target yet.

        Raises:
            PlanError: the table does not fit the target, or its properties let it forget
                transactions.
            ReadError: a first run cannot read the log.
        """

    def burn(self, promise: Promise) -> None:
        """Give the open range up: commit its transaction without rows, and mark it.

        Raises:
            TableConflict: another writer committed first.
            WriteError: the table did not take it.
        """

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        """Write the rows of the open range in one transaction, which carries its `range_id`.

        It skips dead records. Every record of a range must carry the id of its log.

        Args:
            promise: the open range. If rows step aside, it names the version of the refused rows
                that holds them.
            tombstones_version: the version of the tombstones. A row that is older than the
                tombstone of its key is dropped.

        Raises:
            TableConflict: another writer committed first.
            ReadError: the log's rows are unreadable.
            WriteError: the write failed. The transaction may have been committed all the same.
        """


def confirm(promise: Promise, table: Table) -> TableState:
    """Read the newest snapshot of a table, and check that it holds all confirmed ranges.

    It may also hold the open range.

    Raises:
        ConfirmError: the table, or its tombstones, may have lost rows.
    """
    snapshot = snapshot_of(promise, table)
    check_history(promise, snapshot)
    assert snapshot is not None
    # SAFETY(table-knows-k) §10: the table's last range is the confirmed one or the open one
    if snapshot.k not in (promise.confirmed_k, promise.table.k):
        raise ConfirmError(
            f"the last range of the log in {promise.target.table} is {snapshot.k}, and it must "
            f"be {promise.confirmed_k} or {promise.table.k}: the table forgot its transactions, or "
            "the log was restored from an older copy"
        )
    if table.tombstones is not None:
        # Read after the table, which they may not be behind.
        is_written = holds_open_range(promise, snapshot)
        tombstones = snapshot_of_tombstones(promise, table.tombstones)
        check_beside(promise, tombstones_of(promise), tombstones, is_due=is_written)
        snapshot = replace(snapshot, tombstones=tombstones)
    if promise.table.refused is not None and table.refused is not None:
        is_written = holds_open_range(promise, snapshot)
        refused = snapshot_of_refused(promise, table.refused)
        is_due = is_written and promise.is_aside
        check_beside(promise, refused_of(promise), refused, is_due=is_due)
        snapshot = replace(snapshot, refused=refused)
    return snapshot


def write_open_range(promise: Promise, table: Table, snapshot: TableState) -> None:
    """Write the open range, and before it the rows that step aside, and the keys that it deletes.

    Each write may be repeated: a table takes each transaction once.

    Args:
        promise: the open range.
        table: the table.
        snapshot: its newest snapshot, which lacks the range.

    Raises:
        TableConflict: another writer committed first.
        CompactionError: the range was not written, or the tombstones do not hold its keys.
    """
    if promise.is_aside:
        assert table.refused is not None and snapshot.refused is not None
        # SAFETY(aside-first) §10: the rows that step aside are written before the others, and the
        # first write of them decides which
        aside = _with_refused(promise, table.refused, snapshot.refused)
        refused = BesideTable(aside.table_id, aside.version)
        promise = replace(promise, table=replace(promise.table, refused=refused))
    if table.tombstones is None or snapshot.tombstones is None:
        table.write(promise)
        return
    # SAFETY(tombstones-first) §10: the keys that a range deletes are written before its rows
    tombstones = _with_keys_of(promise, table.tombstones, snapshot.tombstones)
    table.write(promise, tombstones.version)


def _with_keys_of(promise: Promise, tombstones: Tombstones, snapshot: TableState) -> TableState:
    """Write the keys that the open range deletes, unless an earlier process did."""
    if snapshot.of_range(promise.range_id):
        return snapshot
    tombstones.write(promise)
    now = snapshot_of_tombstones(promise, tombstones)
    check_beside(promise, tombstones_of(promise), now, is_due=True)
    assert now is not None
    return now


def _with_refused(promise: Promise, refused: Refused, snapshot: TableState) -> TableState:
    """Write the rows that step aside from the open range, unless an earlier process did.

    The version of the result decides which rows go to the table.
    """
    now: TableState | None = snapshot
    if not snapshot.of_range(promise.range_id):
        newest = BesideTable(snapshot.table_id, snapshot.version)
        looked = replace(promise, table=replace(promise.table, refused=newest))
        refused.write(looked if promise.is_again else promise)
        now = snapshot_of_refused(promise, refused)
        check_beside(promise, refused_of(promise), now, is_due=True)
    assert now is not None
    if not promise.is_again:
        return now
    # §10: refused rows that are written again are those of the version that the first write made
    return replace(now, version=now.of_range(promise.range_id)[0].version)


def snapshot_of_refused(promise: Promise, refused: Snapshots) -> TableState | None:
    """Read the newest snapshot of the refused rows, with the versions since the confirmed one."""
    assert promise.table.refused is not None
    return refused.snapshot(promise.table.app_id, promise.table.refused.version)


def snapshot_of_tombstones(promise: Promise, tombstones: Snapshots) -> TableState | None:
    """Read the newest snapshot of tombstones, with the versions since the confirmed one."""
    return tombstones.snapshot(promise.table.app_id, promise.table.tombstones_version)


def snapshot_of(promise: Promise, table: Snapshots) -> TableState | None:
    """Read the newest snapshot, with the versions since the confirmed one that count.

    In an append table, only a version that takes rows away can harm the log's rows. In a MERGE
    table also one that brings replaced or deleted rows back, and takes none away. So in such a
    table every version counts.
    """
    # §10: rows that return count in a MERGE table
    k = None if promise.target.mode == MERGE else promise.confirmed_k
    return table.snapshot(promise.table.app_id, promise.table.table_version, k)


def check_history(promise: Promise, table: TableState | None) -> None:
    """Check that the table still holds all rows that the lifecycle has confirmed.

    The number of a range survives a restore of the table, so it proves nothing. So no version
    since the confirmed one may have removed rows. And only the open range may have been added since
    then, once, if the last range whose number the table took is the open one.

    Raises:
        ConfirmError: the table may have lost rows, or holds others of the log.
    """
    name = promise.target.table
    in_chain = promise.table
    if table is None:
        raise ConfirmError(
            f"{name} does not exist any more. The log still has its positions from "
            f"{_positions(promise, 'floor')} on. Restore the table; if it was moved, run once with "
            "its new place and --accept-table; or begin a new log"
        )
    # §10: the table has the id that the first intent found
    if table.table_id != in_chain.table_id:
        raise ConfirmError(
            f"{name} was dropped and recreated: it is table {table.table_id}, the log was "
            f"compacted into {in_chain.table_id}. Put the old table back, or begin a new log"
        )
    confirmed_rows = f"confirmed to hold the log up to {_positions(promise, 'cut')}"
    before = f"version {in_chain.table_version}, {confirmed_rows}"
    if not table.complete:
        raise ConfirmError(
            f"the history of {name} does not reach back to {before}: rows may have been removed "
            "since. Compare the table's rows with yours; if none is missing, continue with "
            f"--accept-table. If some are: {way_back(promise)}"
        )
    # SAFETY(history-undoes-nothing) §10: no version since the confirmed one may have taken rows
    # away
    for change in table.changes:
        if change.undoes:
            raise ConfirmError(
                f"version {change.version} of {name} is a {change.operation}: it may have removed "
                f"rows of earlier versions, also of {before}. {way_back(promise)}"
            )
    expected = [in_chain.k] if promise.is_open else []
    ranges = [x for x in table.changes if x.log_id == in_chain.app_id and x.k]
    ks = [change.k for change in ranges]
    # §10: since the confirmed version only the open range came, at most once
    if ks not in ([], expected):
        raise ConfirmError(
            f"{name} holds the ranges {ks} of the log since version {in_chain.table_version}, and "
            f"the lifecycle expects {expected}: was the log restored from an older copy? "
            f"{way_back(promise)}"
        )
    # §10: the open range counts only if a version since the confirmed one brought it
    if promise.is_open and table.k == in_chain.k and not ks:
        raise ConfirmError(
            f"{name} has the transaction of range {in_chain.k}, and no version since "
            f"{in_chain.table_version} added that range: its rows were removed. {way_back(promise)}"
        )
    for change in ranges:
        # A lifecycle that was restored from an older copy may promise other positions as this k.
        if not is_as_promised(promise, change):
            promised = named_range(promise)
            raise ConfirmError(
                f"{name} has positions {change.cut} … {change.to - 1} as range {change.k} of the "
                f"log, whose lifecycle promises {promised['cut']} … {promised['to'] - 1}: the log "
                f"was restored from an older copy, or exists twice. {way_back(promise)}"
            )


def named_range(promise: Promise) -> dict[str, Any]:
    """The open range, as the commit of the table names it. `Change` has the same fields."""
    parts = promise.ranges
    log_id, k = promise.range_id
    named: dict[str, Any] = {"log_id": log_id, "k": k}
    named |= {"cut": parts[0].cut, "to": parts[0].to, "sequencer": parts[0].sequencer}
    if len(parts) > 1:
        named["ranges"] = {part.sequencer: (part.cut, part.to) for part in parts}
    return named


def holds_open_range(promise: Promise, table: TableState) -> bool:
    """Whether the snapshot holds all ranges, also the open one if there is one.

    A range that was burned has its transaction in the table, and none of its rows.
    """
    # SAFETY(burned-has-no-rows) §10: a burned transaction holds no rows of its range
    return table.k == promise.table.k and not is_burned(promise, table)


def is_burned(promise: Promise, table: TableState) -> bool:
    """Whether the open range was given up in the table."""
    of_range = table.of_range(promise.range_id)
    return promise.is_open and any(change.is_burned for change in of_range)


def is_as_promised(promise: Promise, change: Change) -> bool:
    """Whether a version of the table added the positions that the open range promises.

    A version that names no positions may have added any.
    """
    promised = {range_.sequencer: (range_.cut, range_.to) for range_ in promise.ranges}
    if change.ranges:
        return dict(change.ranges) == promised
    return not change.to or (change.cut, change.to) == next(iter(promised.values()), None)


def with_refused(in_chain: TableInChain, table: Table) -> TableInChain:
    """The table in the chain with that of its refused rows, which is made if there is none.

    Raises:
        PlanError: it cannot be made.
    """
    if table.refused is None:
        raise PlanError(f"{table.target.table} keeps no refused rows: give refusedRows=wait")
    table.refused.prepare()
    snapshot = table.refused.snapshot(in_chain.app_id, None)
    if snapshot is None:
        raise PlanError(f"{table.target.refused} was just made and does not exist; run it again")
    return replace(in_chain, refused=BesideTable(snapshot.table_id, snapshot.version))


def confirmed(table: TableInChain, snapshot: TableState) -> TableInChain:
    """The table in the chain, with the version that was confirmed, and that of the tombstones."""
    table = replace(table, table_version=snapshot.version)
    if (refused := snapshot.refused) is not None:
        table = replace(table, refused=BesideTable(refused.table_id, refused.version))
    if snapshot.tombstones is None:
        return table
    return replace(
        table,
        tombstones_id=snapshot.tombstones.table_id,
        tombstones_version=snapshot.tombstones.version,
    )


def way_back(promise: Promise) -> str:
    """For people: the steps that bring the table back to the confirmed rows."""
    return (
        f"Restore it to version {promise.table.table_version}, or overwrite it with the log's rows "
        f"below position {_positions(promise, 'cut')} and none from there on; then continue with "
        "--accept-table"
    )


def _positions(promise: Promise, name: str) -> str:
    """For people: the cut or the floor of the log, or those of the first of several logs."""
    positions = {log: str(getattr(state, name)) for log, state in sorted(promise.logs.items())}
    if len(positions) == 1:
        return next(iter(positions.values()))
    first = [f"{position} (sequencer {log})" for log, position in positions.items()][:3]
    return ", ".join(first) + (", …" if len(positions) > 3 else "")


@dataclass(frozen=True)
class Beside:
    """What a table beside the table is for, in errors.

    Attributes:
        url: its URL.
        keeps: what it keeps.
        risk: what follows if something of it is missing.
        confirmed: its version in the chain.
    """

    url: str
    keeps: str
    risk: str
    confirmed: BesideTable

    def missing(self, why: str) -> ConfirmError:
        return ConfirmError(f"{why}. {self.risk}. {self.way_back()}")

    def way_back(self) -> str:
        """For people: the steps that bring it back."""
        return (
            f"Restore {self.url} to version {self.confirmed.version}, or delete that table, which "
            f"forgets {self.keeps} so far; then continue with --accept-table"
        )


def tombstones_of(promise: Promise) -> Beside:
    """The tombstones, for errors."""
    in_chain = promise.table
    return Beside(
        promise.target.tombstones,
        f"the deleted keys of {promise.target.table}",
        "A late row could bring a deleted key back",
        BesideTable(in_chain.tombstones_id, in_chain.tombstones_version),
    )


def refused_of(promise: Promise) -> Beside:
    """The table of refused rows, for errors. The chain has one."""
    assert promise.table.refused is not None
    return Beside(
        promise.target.refused,
        f"the rows that {promise.target.table} refused",
        "Such rows could be in neither table",
        promise.table.refused,
    )


def check_owner(found: str | None, table_id: str, url: str, keeps: str, way_out: str) -> None:
    """Check that a table beside a table belongs to it.

    Args:
        found: the id of the table that it names as its own, if any.
        table_id: the id of the table.
        url: the URL of the table beside it.
        keeps: what that keeps, for people.
        way_out: how one that is left from an earlier table is removed.

    Raises:
        PlanError: it belongs to another table, or to none.
    """
    if found != table_id:
        raise PlanError(
            f"{url} should keep {keeps}, and it is of {f'table {found}' if found else 'none'}: "
            f"{way_out}, or name another table"
        )


def check_beside(
    promise: Promise, beside: Beside, snapshot: TableState | None, *, is_due: bool
) -> None:
    """Check that a table beside the table holds all that the lifecycle relies on.

    It may be ahead of the table, which gets the same range next. It may not be behind.

    Args:
        promise: that of the newest record of the chain.
        beside: what it is for.
        snapshot: its newest snapshot, or None if there is none.
        is_due: whether it must hold the open range, if there is one.

    Raises:
        ConfirmError: rows of it may be missing.
    """
    url, confirmed = beside.url, beside.confirmed
    named = f"{url}, which keeps {beside.keeps},"
    if snapshot is None:
        raise beside.missing(f"{named} is missing")
    if snapshot.table_id != confirmed.table_id:
        raise beside.missing(
            f"{named} was dropped and recreated: it is table {snapshot.table_id}, and was "
            f"{confirmed.table_id}"
        )
    if not snapshot.complete:
        before = f"version {confirmed.version}, the last confirmed one"
        raise beside.missing(f"the history of {url} does not reach back to {before}")
    # SAFETY(beside-undoes-nothing) §10: no version of a table beside the table since the confirmed
    # one may have taken rows away
    for change in snapshot.changes:
        if change.undoes:
            what = f"version {change.version} of {url} is a {change.operation}"
            raise beside.missing(f"{what}: {beside.keeps} may be missing")
    ranges = [x.k for x in snapshot.changes if x.log_id == promise.table.app_id and x.k]
    # A slow writer may bring those of a range that was given up: the log still has their rows.
    if max(ranges, default=0) > promise.table.k:
        raise beside.missing(
            f"{url} holds the ranges {ranges} of the log since version {confirmed.version}, and "
            f"the last one promised is {promise.table.k}"
        )
    # §10: tombstones and refused rows hold each range that the table holds
    if is_due and promise.is_open and promise.table.k not in ranges:
        table = promise.target.table
        raise beside.missing(
            f"{table} holds range {promise.table.k} of the log, and {url} does not"
        )


def with_tombstones(target: Target, horizon_ms: int) -> Target:
    """The target with tombstones, if it needs them.

    A row is late only by its sequence, and a key is deleted only by a condition.
    """
    is_needed = bool(target.sequence_by and target.delete_when)
    return replace(target, tombstone_horizon_ms=horizon_ms if is_needed else 0)
