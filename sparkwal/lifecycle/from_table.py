"""A read that begins with a table: the rows of one version of it, and then the log from there on.

The version is chosen once, and held: the log keeps what the version does not have. How far a stream
has come is the number of files of that version that it has read, so it reads each row once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sparkwal.errors import ConfirmError, InvalidLogError, OptionError, TableReadError
from sparkwal.format import schema, versions
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.current import (
    ATTEMPTS,
    CurrentPlan,
    lacking_in_log,
    plan_current,
    target_of,
)
from sparkwal.lifecycle.current_rows import table_rows
from sparkwal.lifecycle.opening import open_table
from sparkwal.lifecycle.table import ReadTable, TableColumns, TableFile, VersionFiles
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import ALL
from sparkwal.protocol.chain import newest_record
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.planning import Budget
from sparkwal.reading.sequencers import all_logs
from sparkwal.store.base import LogStore

# While a stream reads the table, its offset has these entries beside the positions of the logs. No
# name of a log contains a colon.
NOTES = "table:"
_URL, _ID, _VERSION, _FILE = (NOTES + name for name in ("url", "id", "version", "file"))
_END = "end"
# A file whose number of rows is unknown uses up any limit of rows.
_UNKNOWN = 2**62


def choose_start(
    look: Callable[[], Sequence[LogRange]],
    hold: Callable[[Sequence[LogRange]], object],
    opening: Callable[[Target], TableColumns],
    *,
    is_all: bool,
) -> CurrentPlan:
    """Choose the version of the table to read first.

    Args:
        look: finds the logs to read, with their heads.
        hold: lets logs keep all that they have.
        opening: opens a table to read its history.
        is_all: the read is of all logs of the path.

    Returns:
        The plan. Its tails begin where the version ends.

    Raises:
        ConfirmError: the table is not the one that the logs' lifecycles confirmed.
        OptionError: there is no log, or the table holds rows of a log that is not read.
        InvalidLogError: a record is damaged or missing.
    """
    for _ in range(ATTEMPTS):
        logs = look()
        # SAFETY(held-then-chosen) §10: the logs keep what they have before a version is chosen, so
        # no floor passes the end of that version
        hold(logs)
        plan = plan_current(logs, opening, listed=is_all)
        unread = plan.in_table - plan.starts.keys()
        if unread and not is_all:
            raise _of_several(plan, unread)
        # §10: a log that began and was compacted since `look` has rows in the version
        if unread.isdisjoint(all_logs(logs[0].log.root) if unread else ()):
            return plan
    raise ConfirmError(
        f"new logs went to the table during {ATTEMPTS} attempts to begin with it: try again"
    )


def _of_several(plan: CurrentPlan, unread: frozenset[str]) -> OptionError:
    table = plan.target.table if plan.target else ""
    return OptionError(
        f"the table {table} also holds rows of the sequencers {', '.join(sorted(unread)[:3])}"
        f"{', …' if len(unread) > 3 else ''}, and no column tells whose a row is: read all logs "
        'that are compacted into it (sequencers="*"), or the log alone (startingPosition=earliest)'
    )


def newest_columns(root: LogStore, options: SourceOptions) -> str | None:
    """The columns of the logs' table now, with the types of a log; None without a table.

    Raises:
        OptionError: the logs have different tables, or a column has a type that a log cannot have.
        TableReadError: the table is unreadable.
    """
    record = newest_record(root)
    is_all = options.sequencers == ALL
    names = [*record.logs] if record and is_all else [options.sequencer]
    target = target_of(record, names)
    if target is None or record is None:
        return None
    table = open_table(target, options)
    snapshot = table.snapshot(record.tables[target.table].app_id, None)
    return table.spark_schema if snapshot is not None else None


@dataclass(frozen=True)
class TablePlace:
    """How far a stream has read the version of the table with which it began.

    Attributes:
        url: the table, or "" if the logs had none.
        table_id: its id.
        version: the version.
        file: the number of its files that were read, or None if the next rows are the logs'.
    """

    url: str
    table_id: str
    version: int
    file: int | None = 0

    def notes(self) -> dict[str, str]:
        """The entries of an offset."""
        file = _END if self.file is None else str(self.file)
        texts = {_URL: self.url, _ID: self.table_id, _VERSION: str(self.version), _FILE: file}
        # A version that does not read the entries would begin with the log.
        return {**texts, f"{versions.FIELD}:": str(versions.VERSIONS[versions.OFFSET])}


def first_place(plan: CurrentPlan) -> TablePlace:
    """The place before the first row of a plan's table."""
    url = plan.target.table if plan.target else ""
    return TablePlace(url, plan.table_id, plan.table_version)


def place_of(offset: Mapping[str, object]) -> TablePlace | None:
    """The place in an offset, or None if the stream reads its logs.

    Raises:
        InvalidLogError: the entries are damaged.
    """
    if _FILE not in offset:
        return None
    try:
        file = str(offset[_FILE])
        return TablePlace(
            str(offset[_URL]),
            str(offset[_ID]),
            int(str(offset[_VERSION])),
            None if file == _END else int(file),
        )
    except (KeyError, ValueError):
        raise InvalidLogError(
            f"the checkpoint holds the offset {dict(offset)!r}, which names no place in a table; "
            "use a new checkpoint"
        ) from None


@dataclass(frozen=True)
class TableTask:
    """One file of a version of a table, for the process that reads it."""

    url: str
    head: str
    columns: tuple[str, ...]
    file: TableFile


class TablePart:
    """The versions of tables that a stream begins with. It lists the files of one at a time.

    Args:
        options: the options of the read.
        storage: the options of the table's store, if it is another than that of the log.
    """

    def __init__(self, options: SourceOptions, storage: Mapping[str, str] | None = None) -> None:
        self._options = options
        self._storage = storage
        self._listed: tuple[TablePlace, VersionFiles] | None = None

    def columns(self, place: TablePlace) -> str | None:
        """The columns of the version, or None without a table."""
        return self._files(place).spark_schema if place.url else None

    def advance(self, place: TablePlace, budget: Budget | None) -> TablePlace:
        """The place after the files that the next microbatch takes."""
        files = self._files(place).files if place.url else ()
        end = begin = place.file or 0
        for file in files[begin:]:
            rows = _UNKNOWN if file.rows is None else file.rows
            if budget is not None and not budget.takes(rows, file.bytes):
                break
            end += 1
        return replace(place, file=end if end < len(files) else None)

    def newest(self, place: TablePlace) -> dict[str, int]:
        """What the progress of a stream shows beside its place: the number of the files."""
        return {_FILE: len(self._files(place).files)} if place.url else {}

    def left(self, place: TablePlace) -> int | None:
        """The number of files after a place, or None if the next rows are the logs'."""
        if place.file is None or not place.url:
            return None
        return len(self._files(place).files) - place.file

    def next_file(self, place: TablePlace) -> TablePlace:
        """The place after one more file."""
        return self.advance(place, Budget(replace(self._options, max_commits=1)))

    def tasks(self, start: TablePlace | None, end: TablePlace) -> list[TableTask]:
        """The files of a microbatch, a task each."""
        if start == end or not end.url:
            return []
        # SAFETY(version-of-its-end) §9: a microbatch reads the version of the table that its end
        # names, because a restart chooses the start of the first one anew
        listed = self._files(end)
        columns = tuple(schema.columns(listed.spark_schema))
        files = listed.files[start.file if start else 0 : end.file]
        return [TableTask(end.url, listed.head, columns, file) for file in files]

    def rows(self, task: TableTask, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """As `task_rows_of_table`, in this process."""
        return task_rows_of_table(task, target, self._options, self._storage)

    def _files(self, place: TablePlace) -> VersionFiles:
        """The files of the version.

        Raises:
            TableReadError: the table was recreated, or the version is gone.
        """
        version = replace(place, file=None)
        if self._listed is None or self._listed[0] != version:
            files = open_table(Target(place.url), self._options, self._storage).files_at(
                place.version
            )
            if files.table_id != place.table_id:
                raise TableReadError(
                    f"{place.url} was dropped and recreated: it is table {files.table_id}, and "
                    f"this read began with {place.table_id}. Bring the old table back, or begin "
                    "again with a new checkpoint or cursor"
                )
            self._listed = version, files
        return self._listed[1]


def task_rows_of_table(
    task: TableTask,
    target: pa.Schema,
    options: StoreOptions,
    storage: Mapping[str, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task with the columns of `target`. What the file lacks is null.

    Raises:
        TableReadError: the file is gone, or unreadable.
    """
    table = open_table(Target(task.url), options, storage)

    def read(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        return table.rows_of(task.head, task.file, columns or task.columns)

    return table_rows(read, task.columns, target)


def check_computed(plan: CurrentPlan, table: ReadTable, wanted: Sequence[str]) -> None:
    """Refuse columns that only a write to the table computes for rows of the log.

    Raises:
        OptionError: one of the wanted columns is such a column.
    """
    names = {name.lower() for name in wanted}
    lacking = [name for name in lacking_in_log(plan, table.computed) if name.lower() in names]
    if lacking:
        raise OptionError(
            f"only a write to the table computes the column {lacking[0]!r}, and the rows of the "
            "log lack it: leave the column out (.schema(…)), or begin with "
            "startingPosition=earliest"
        )
