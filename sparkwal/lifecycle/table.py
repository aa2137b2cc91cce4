"""The interface of a table that a lifecycle fills, and the checks of the table's history.

Each commit of a range carries a transaction (log_id, k), and the newest snapshot names the last
range that it holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sparkwal.errors import ConfirmError, OptionError, PlanError
from sparkwal.format.keys import sequencers_prefix
from sparkwal.format.lifecycle_record import MERGE, NO_TABLE_VERSION, Promise, TableInChain, Target
from sparkwal.options.store import StoreOptions
from sparkwal.store.base import LogStore
from sparkwal.store.path import overlap, refuse_credentials, scheme_of

# A number above every version of a table.
NEWEST = 2**63
# File systems on which Spark and delta-rs keep tables.
_S3 = ("s3", "s3a", "s3n")
# Texts that Delta Lake stores as null in a column that a table is partitioned by.
NULL_PARTITIONS = ("", "__HIVE_DEFAULT_PARTITION__")


class TableConflict(Exception):
    """Another writer of the table committed first, so this transaction was not committed."""


@dataclass(frozen=True)
class Change:
    """One version of the table, from its history.

    Attributes:
        version: the version's number.
        operation: the table format's name of the operation, e.g. "WRITE", "RESTORE".
        log_id, k: the name of the transactions and the range that this version added; "" and 0
            for other commits.
        undoes: it may have removed rows of earlier versions: a restore, an overwrite, a new table.
        rows, bytes: the added rows and bytes; None if unknown.
        cut, to: the positions cut … to−1 of the range, as its writer recorded them; 0 and 0 if
            unknown. Of a range of several logs, those of the first one.
        ranges: the positions of a range of several logs, by sequencer.
        is_burned: it added no rows, and gave its range up.
        restores: the version that a RESTORE brings back, if it names it.
    """

    version: int
    operation: str
    log_id: str = ""
    k: int = 0
    undoes: bool = False
    rows: int | None = None
    bytes: int | None = None
    cut: int = 0
    to: int = 0
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    is_burned: bool = False
    restores: int | None = None


@dataclass(frozen=True)
class TableState:
    """The newest snapshot of the table.

    Attributes:
        table_id: the random id of the table.
        version: the snapshot's version.
        k: the last range of the log that it holds; 0 for none.
        changes: the versions since the confirmed one, oldest first.
        complete: `changes` has all of these versions. Otherwise the history begins later.
        tombstones: the newest snapshot of the table's tombstones, read after it.
    """

    table_id: str
    version: int
    k: int
    changes: tuple[Change, ...]
    complete: bool = True
    tombstones: "TableState | None" = None


class Snapshots(Protocol):
    """A table that is only read."""

    def snapshot(self, log_id: str, since: int, k: int | None = None) -> TableState | None:
        """Read the newest snapshot.

        Args:
            log_id: the name of the transactions whose last range to find.
            since: include the versions after this one. With NEWEST, `changes` is empty.
            k: the last range that `since` is confirmed to hold. Then versions that removed no file
                and added no range may be left out. None: every version counts.

        Returns:
            The snapshot, or None if there is no table.
        """


class Tombstones(Snapshots, Protocol):
    """The table that keeps the sequences of the deleted keys of another table."""

    def prepare(self) -> None:
        """Create it if it does not exist, with the columns of the other table, which was read.

        Raises:
            PlanError: it is not of that table, or does not hold its keys.
        """

    def write(self, promise: Promise, *, is_repeated: bool = False) -> None:
        """Write the keys that the open range deletes, and drop those beyond the horizon.

        Args:
            promise: the open range.
            is_repeated: write them although the transaction (log_id, k) may be there. The same
                keys change nothing.

        Raises:
            TableConflict: another writer committed first.
            ReadError: the range is unreadable.
            WriteError: the keys were not written.
        """


class Table(Snapshots, Protocol):
    """A table that takes ranges of logs, each in one transaction."""

    @property
    def target(self) -> Target:
        """The table, and the way rows reach it."""

    @property
    def tombstones(self) -> Tombstones | None:
        """Of the table; None if its target keeps none, or this process does not read them."""

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

    def check_rows(self, promise: Promise, spark_schema: str) -> None:
        """Check that the table takes each row of a range, before the range is promised.

        Args:
            promise: the range, whose record is not put yet.
            spark_schema: the columns of its logs.

        Raises:
            PlanError: a row breaks a rule of the table, such as a CHECK.
            ReadError: the log's rows are unreadable.
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
            promise: the open range.
            tombstones_version: the version of the tombstones. A row that is older than the
                tombstone of its key is dropped.

        Raises:
            TableConflict: another writer committed first.
            ReadError: the log's rows are unreadable.
            WriteError: the write failed. The transaction may have been committed all the same.
        """


def check_apart(path: str, target: Target) -> None:
    """Check that neither of a log and its table is inside the other.

    Raises:
        OptionError: a VACUUM of the table would delete the log, or a log of a sequencer under
            `path`.
    """
    above, separator, name = path.strip().rstrip("/").rpartition("/" + sequencers_prefix(""))
    # The path may be that of a sequencer's log: then check the path above it.
    log = above if separator and "/" not in name else path
    if target.keeps_tombstones:
        _, scheme_end, location = target.table.partition("://")
        if scheme_end and "/" not in location:
            raise OptionError(
                f"{target.table} is a whole bucket, and the deleted keys of a table are kept "
                "beside it: give the table a folder, or tombstoneHorizon=0"
            )
        if overlap(log, target.tombstones):
            raise OptionError(
                f"{target.tombstones} keeps the deleted keys of the table {target.table}, and the "
                f"log {path} is there: name another table"
            )
    if overlap(log, target.table):
        raise OptionError(
            f"of the log {path} and the table {target.table} one is inside the other, and a VACUUM "
            "of the table would delete the log: give the table a folder beside the log"
        )


def check_place(table: str, options: StoreOptions) -> None:
    """Check a table that only the log names, before it is opened with this process's rights.

    Raises:
        OptionError: it may hold a secret, or it is on another store than the log and the options
            do not name it: a reader would connect to any server that the log names.
    """
    refuse_credentials(table, "the table's URL in the log")
    scheme, of_log = scheme_of(table), scheme_of(options.path)
    is_same = scheme == of_log or (scheme in _S3 and of_log in _S3)
    named = [each.strip().rstrip("/") for each in (options.table_location or "").split(",")]
    if not table.isprintable() or not (is_same or table.rstrip("/") in named):
        raise OptionError(
            f"the log names the table {table[:200]!r}, which is on another store than the log. "
            "Whoever writes the log could name any server, so a reader opens this table only with "
            "the option tableLocation: give it the URL of the table"
        )


def snapshot_of(promise: Promise, table: Snapshots) -> TableState | None:
    """Read the newest snapshot, with the versions since the confirmed one that count.

    In an append table, only a version that removed files can take rows of the log away. A MERGE
    removes files too, and a RESTORE may bring back only those: then replaced and deleted rows
    return, and no file is removed. So in such a table every version counts.
    """
    # §10: files that return count in a MERGE table
    k = None if promise.target.mode == MERGE else promise.confirmed_k
    return table.snapshot(promise.table.app_id, promise.table.table_version, k)


def check_history(promise: Promise, table: TableState | None) -> None:
    """Check that the table still holds all rows that the lifecycle has confirmed.

    A transaction survives a RESTORE of the table, so its number proves nothing. So no version since
    the confirmed one may have removed rows. And only the open range may have been added since then,
    once, if the table's transaction is that of the open range.

    Raises:
        ConfirmError: the table may have lost rows, or holds others of the log.
    """
    name = promise.target.table
    in_chain = promise.table
    if table is None:
        raise ConfirmError(
            f"{name} does not exist any more. The log still has its positions from "
            f"{_positions(promise, 'floor')} on. Restore the table, or begin a new log"
        )
    # §10: the table has the id that the first intent found
    if table.table_id != in_chain.table_id:
        raise ConfirmError(
            f"{name} was dropped and recreated: it is table {table.table_id}, the log was "
            f"compacted into {in_chain.table_id}. Put the old table back, or begin a new log"
        )
    held = f"confirmed to hold the log up to {_positions(promise, 'cut')}"
    before = f"version {in_chain.table_version}, {held}"
    if not table.complete or table.version < in_chain.table_version:
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
    return promise.is_open and any(
        change.is_burned
        for change in table.changes
        if (change.log_id, change.k) == promise.range_id
    )


def is_as_promised(promise: Promise, change: Change) -> bool:
    """Whether a version of the table added the positions that the open range promises.

    A version that names no positions may have added any.
    """
    promised = {range_.sequencer: (range_.cut, range_.to) for range_ in promise.ranges}
    if change.ranges:
        return dict(change.ranges) == promised
    return not change.to or (change.cut, change.to) == next(iter(promised.values()), None)


def confirmed(table: TableInChain, snapshot: TableState) -> TableInChain:
    """The table in the chain, with the version that was confirmed, and that of the tombstones."""
    table = replace(table, table_version=snapshot.version)
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
        f"RESTORE it to version {promise.table.table_version}, or overwrite it with the log's rows "
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


def check_same_target(target: Target, fixed: Target) -> None:
    """Check that a run has the target that the first intent fixed.

    Raises:
        PlanError: it has another.
    """
    values = vars(target)
    if differences := [
        f"{name}: {_flag_text(value)} first, {_flag_text(values[name])} now"
        for name, value in vars(fixed).items()
        if values[name] != value
    ]:
        raise PlanError(
            "the first run of this log's compaction fixed its target: "
            f"{'; '.join(differences)}. Use the first target, or begin a new log"
        )


def _flag_text(value: int | str | tuple[str | tuple[str, str], ...]) -> str:
    """A value of a target, as the job's flag takes it."""
    if isinstance(value, int):
        return str(value)
    parts = (value,) if isinstance(value, str) else value
    texts = [part if isinstance(part, str) else "=".join(part) for part in parts]
    return ", ".join(texts) or "none"
