"""A replay that begins with the rows of a version of the table, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa

from sparkwal.format import schema
from sparkwal.format.keys import ROOT
from sparkwal.lifecycle.consumers.leases import Lease, leased
from sparkwal.lifecycle.from_table import TablePart, TablePlace, choose_start, first_place, place_of
from sparkwal.lifecycle.opening import open_table
from sparkwal.options.reading import SourceOptions
from sparkwal.options.types import ALL
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.replaying import (
    Entry,
    Progress,
    Replay,
    Stop,
    cursor_text,
    progress_of,
    table_notes,
)
from sparkwal.store.base import LogStore


@dataclass(frozen=True)
class TableRows:
    """The rows of one file of the table.

    Attributes:
        table: the table's URL.
        version: the version of the table.
        file: the file's name.
        rows: its rows, in no particular order, with the columns of the version.
    """

    table: str
    version: int
    file: str
    rows: tuple[pa.RecordBatch, ...]


class TableReplay(Iterator[Entry | TableRows]):
    """The files of one version of the table, and then the entries of the logs from there on.

    It is what `Log.replay(start="table")` returns. If its cursor has passed the table, it has the
    entries alone.

    Args:
        find: finds the logs, by sequencer.
        cursor: the cursor of an earlier replay.
        options: the options of reading.
        table_options: the options of the table's store, instead of the log's.
        sequencers: as for `Log.replay`.
    """

    def __init__(
        self,
        find: Callable[[], Mapping[str, LogStore]],
        cursor: str | None,
        options: SourceOptions,
        table_options: Mapping[str, str] | None,
        sequencers: str | Sequence[str] | None,
    ) -> None:
        self._leases: list[Lease] = []
        self._table = TablePart(options, table_options)
        self._place: TablePlace | None = None
        is_all = sequencers == ALL
        if sequencers is not None:
            # Of several logs one lease.
            options = replace(options, sequencers=ALL, sequencer=ROOT)
        with ExitStack() as stack:
            if cursor is None:
                cursor = self._begin(find, options, table_options, stack, is_all=is_all)
            progress = progress_of(cursor)
            if (notes := table_notes(cursor)) is not None:
                self._place = place_of(notes)
                if not self._leases:
                    # That of the replay that gave the cursor may expire before the table is read.
                    self._hold(_look(find, options), stack)
            self._progress = progress
            self._replay = Replay(find(), cursor_text(progress), listed=is_all)

    def _begin(
        self,
        find: Callable[[], Mapping[str, LogStore]],
        options: SourceOptions,
        table_options: Mapping[str, str] | None,
        stack: ExitStack,
        *,
        is_all: bool,
    ) -> str:
        """Choose the version. Return the cursor before its first row."""
        plan = choose_start(
            lambda: _look(find, options),
            lambda logs: self._hold(logs, stack),
            lambda target: open_table(target, options, table_options),
            is_all=is_all,
        )
        progress = {
            tail.name: Progress(tail.pinned.log_id or "", tail.start, "") for tail in plan.tails
        }
        place = first_place(plan)
        # Refuse a table whose files cannot be read one by one before the first row.
        self._table.columns(place)
        return cursor_text(progress, place.notes())

    def _hold(self, logs: Sequence[LogRange], stack: ExitStack) -> None:
        """Let the logs keep all that they have, if the options ask for it."""
        present = [log for log in logs if log.log_id is not None]
        if present:
            _, lease = stack.enter_context(leased(present, lambda log: log.floor.current()))
            self._leases += [] if lease is None else [lease]

    @property
    def cursor(self) -> str:
        """One line of text. The next replay begins after the last item that this one returned."""
        if self._place is not None and self._place.file is not None:
            return cursor_text(self._progress, self._place.notes())
        return self._replay.cursor

    @property
    def stopped(self) -> Stop | None:
        """The damaged entry at which the replay ended, or None if it reached the end."""
        return self._replay.stopped

    def __next__(self) -> Entry | TableRows:
        while (place := self._place) is not None and place.file is not None:
            after = self._table.next_file(place)
            rows = self._rows(place, after)
            self._place = after
            if rows is not None:
                return rows
        try:
            return next(self._replay)
        except StopIteration:
            while self._leases:
                self._leases.pop().release()
            raise

    def _rows(self, place: TablePlace, after: TablePlace) -> TableRows | None:
        """The rows of the file between two places."""
        for task in self._table.tasks(place, after):
            target = schema.to_arrow(self._table.columns(place) or "")
            batches = tuple(self._table.rows(task, target))
            return TableRows(place.url, place.version, task.file.name, batches)
        return None


def _look(find: Callable[[], Mapping[str, LogStore]], options: SourceOptions) -> list[LogRange]:
    """The logs to read, with their heads."""
    ranges = [
        LogRange(options, name, log.root if options.sequencers else log)
        for name, log in find().items()
    ]
    for log in ranges:
        log.refresh()
    return ranges
