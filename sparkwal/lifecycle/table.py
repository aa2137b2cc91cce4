"""What a lifecycle asks of the table it fills, and what it must find there.

Each commit of a range carries a transaction (log_id, k), and the newest snapshot names the last
range that it holds.
"""

from dataclasses import dataclass
from typing import Protocol

from sparkwal.errors import ConfirmError, OptionError, PlanError
from sparkwal.format.keys import sequencers_prefix
from sparkwal.format.lifecycle_record import LifecycleRecord, Target
from sparkwal.store.base import LogStore
from sparkwal.store.path import overlap

# Above every version of a table.
NEWEST = 2**63
# Texts that Delta Lake stores as null in a column that a table is partitioned by.
NULL_PARTITIONS = ("", "__HIVE_DEFAULT_PARTITION__")


class TableConflict(Exception):
    """Another writer of the table was faster; nothing of this range was written."""


@dataclass(frozen=True)
class Change:
    """One version of the table, as its history shows it.

    Attributes:
        operation: the table format's name for what was done, e.g. "WRITE", "RESTORE".
        log_id, k: which range of which log it holds; "" and 0 for what others did.
        undoes: it may take away what earlier versions held: a restore, an overwrite, a new table.
        rows, bytes: that it brought; None for unknown.
        cut, to: the positions cut … to−1 that its writer said the range has; 0 and 0 for unknown.
        restores: the version whose content a RESTORE brings back, if it names it.
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
    restores: int | None = None


@dataclass(frozen=True)
class TableState:
    """The newest snapshot of the table.

    Attributes:
        table_id: drawn when the table was made.
        k: of the last range of the log that was asked about; 0 for none.
        changes: the versions after the one that was asked about, oldest first.
        whole: whether these are all; else the history does not reach back so far.
    """

    table_id: str
    version: int
    k: int
    changes: tuple[Change, ...]
    whole: bool = True


class Snapshots(Protocol):
    """A table, as far as a reader needs it."""

    def look(self, log_id: str, since: int, k: int | None = None) -> TableState | None:
        """The newest snapshot, read anew, with the history after the version `since` (NEWEST: none
        of it); None where there is no table. `k` is the last range that this version is confirmed
        to hold: then versions that removed no file and brought no range may be left out."""


class Table(Snapshots, Protocol):
    """A table that takes ranges of a log, each in one transaction."""

    def prepare(self, log: LogStore, spark_schema: str, first: bool = False) -> None:
        """Make the table if there is none; `first`: no intent has fixed the target yet. Raises
        PlanError for one that does not fit the target, or whose settings would forget
        transactions; ReadError where a first run cannot read the log."""

    def write(self, state: LifecycleRecord) -> None:
        """The rows of the open intent's range, dead records skipped, in one transaction that
        carries (log_id, k). Every record of the range must carry the log's id. Raises
        TableConflict, ReadError, WriteError; the transaction may be there all the same."""


def check_apart(path: str, target: Target) -> None:
    """Raises OptionError where a log, of any sequencer under `path`, and its table are not apart: a
    VACUUM of the table would delete the log."""
    above, found, name = path.strip().rstrip("/").rpartition("/" + sequencers_prefix(""))
    # The path of a sequencer's log was given as if it were a log by itself.
    if overlap(above if found and "/" not in name else path, target.table):
        raise OptionError(
            f"of the log {path} and the table {target.table} one is inside the other, and a VACUUM "
            "of the table would delete the log: give the table a folder beside the log"
        )


def check_history(state: LifecycleRecord, table: TableState | None) -> None:
    """The table still holds all that the lifecycle believes to be there. Raises ConfirmError.

    A transaction survives a RESTORE of the table: the number alone proves nothing. So the history
    since the version that was last confirmed must show no version that takes rows of others away,
    and no range since then but the open one, once, if the table says it has that.
    """
    name = state.target.table if state.target else "the table"
    if table is None:
        raise ConfirmError(
            f"{name} is gone. The log keeps what it still has, from position {state.floor} on. "
            "Restore the table, or begin a new log"
        )
    # §10: the table has the id that the first intent found
    if table.table_id != state.table_id:
        raise ConfirmError(
            f"{name} was dropped and recreated: it is table {table.table_id}, the log was "
            f"compacted into {state.table_id}. Put the old table back, or begin a new log"
        )
    before = f"version {state.table_version}, confirmed to hold the log up to {state.cut}"
    if not table.whole or table.version < state.table_version:
        raise ConfirmError(
            f"the history of {name} does not reach back to {before}: rows may have been taken away "
            "since. Compare the table's rows with yours; if none is missing, go on with "
            f"--accept-table. If some are: {way_back(state)}"
        )
    # SAFETY(history-undoes-nothing) §10: no version since the confirmed one may have taken rows
    # away
    for change in table.changes:
        if change.undoes:
            raise ConfirmError(
                f"version {change.version} of {name} is a {change.operation}: what came before it "
                f"may be gone, also of {before}. {way_back(state)}"
            )
    expected = [state.k] if state.is_open else []
    came = [each for each in table.changes if each.log_id == state.log_id and each.k]
    found = [each.k for each in came]
    # §10: since the confirmed version only the open range came, at most once
    if found not in ([], expected):
        raise ConfirmError(
            f"{name} holds the ranges {found} of the log since version {state.table_version}, and "
            f"{expected} could be there: the log came back from an older copy? {way_back(state)}"
        )
    # §10: the open range counts only if a version since the confirmed one brought it
    if state.is_open and table.k == state.k and not found:
        raise ConfirmError(
            f"{name} says it holds range {state.k}, and no version since {state.table_version} "
            f"brought it: it was taken away. {way_back(state)}"
        )
    for change in came:
        # One that the log promised before it was restored is another.
        if change.to and (change.cut, change.to) != (state.cut, state.to):
            raise ConfirmError(
                f"{name} has positions {change.cut} … {change.to - 1} as range {change.k} of the "
                f"log, whose lifecycle promises {state.cut} … {state.to - 1}: the log was restored "
                f"from an older copy, or is there twice. {way_back(state)}"
            )


def way_back(state: LifecycleRecord) -> str:
    return (
        f"RESTORE it to version {state.table_version}, or overwrite it with the log's rows below "
        f"position {state.cut} and none from there on; then go on with --accept-table"
    )


def fits(target: Target, before: Target) -> None:
    """Raises PlanError where a later run asks for another table than the first intent fixed."""
    asked = vars(target)
    if differing := [
        f"{name}: {_said(fixed)} first, {_said(asked[name])} now"
        for name, fixed in vars(before).items()
        if asked[name] != fixed
    ]:
        raise PlanError(
            f"how this log is compacted was fixed by its first run: {'; '.join(differing)}. Leave "
            "it as it is, or begin a new log"
        )


def _said(value: str | tuple[str | tuple[str, str], ...]) -> str:
    """A value of a target, as a flag of the job is given."""
    parts = (value,) if isinstance(value, str) else value
    return ", ".join(p if isinstance(p, str) else "=".join(p) for p in parts) or "none"
