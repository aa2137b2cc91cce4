"""Replays one log or all logs under a path, from a cursor, in one order over all of them.

Entries come in the order of their commit times; within one log that is the order of its positions.
A replay stops at the first damaged entry and reports it, because later entries may depend on it.
(After otel-arrow's Quiver.)
"""

import heapq
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import msgspec
import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.errors import InvalidLogError, NewerFormatError, OptionError
from sparkwal.format import keys, schema, versions
from sparkwal.format.checked import Whole
from sparkwal.format.header import CommitHeader
from sparkwal.format.merging import union_of
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.missing import AnotherLog
from sparkwal.protocol.recovery import LIST_LIMIT, Head
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord, read_slot
from sparkwal.reading.floor import CURSOR, NEW_IN_CURSOR
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.reading.sequencers import no_log_at
from sparkwal.reading.several import look_at_all
from sparkwal.store.base import LogStore, first_entries
from sparkwal.store.parallel import run_parallel


@dataclass(frozen=True)
class Entry:
    """One commit.

    Attributes:
        sequencer: the name of its log.
        header: the header of its record: position, time, producer or query.
        rows: its rows in the log's order, with the schema that they were written with.
    """

    sequencer: str
    header: CommitHeader
    rows: tuple[pa.RecordBatch, ...]


@dataclass(frozen=True)
class Stop:
    """The missing or damaged object at which a replay ended.

    Attributes:
        sequencer: the name of its log.
        position: the position of its record.
        key: the name of the object.
        reason: the fault.
        following: the number of positions after it.
    """

    sequencer: str
    position: int
    key: str
    reason: str
    following: int


class Progress(NamedTuple):
    """How far one log was replayed.

    Attributes:
        log_id: the log.
        position: the first position that was not replayed.
        last: the id of the record before it, or "" before the first replayed record. If a log is
            restored from an older copy and then written to, its record there has another id.
    """

    log_id: str
    position: Whole
    last: str


# Create the decoder at import: threads that create decoders at the same time crash.
_PROGRESS = msgspec.json.Decoder(dict[str, Progress])


def _record_id(record: SlotRecord) -> str:
    return f"{record.header.plan_id}:{record.header.timestamp_ms}"


def progress_of(cursor: str) -> dict[str, Progress]:
    """The progress in each log, by sequencer, that a cursor holds.

    Raises:
        OptionError: the text is damaged, or no cursor.
        NewerFormatError: a newer version wrote it.
    """
    return _decoded(cursor)[0]


def table_notes(cursor: str) -> dict[str, str] | None:
    """The place in a table that a cursor holds, or None if it has passed the table.

    Raises:
        OptionError: as `progress_of`.
    """
    return _decoded(cursor)[1]


def cursor_text(progress: Mapping[str, Progress], table: Mapping[str, str] | None = None) -> str:
    """One line of text: the progress in each log, and the place in a table before them."""
    body = json.dumps(dict(sorted(progress.items())))
    place = json.dumps(table) if table is not None else ""
    return json.dumps(
        {
            versions.FIELD: versions.VERSIONS[versions.CURSOR] if place else 1,
            "crc32": crc32((body + place).encode()),
            "logs": body,
            **({"table": place} if place else {}),
        }
    )


def _decoded(cursor: str) -> tuple[dict[str, Progress], dict[str, str] | None]:
    damaged = OptionError(
        "the cursor is damaged or not a replay's: use the one that was saved before, or none to "
        "replay everything"
    )
    try:
        outer = json.loads(cursor)
        versions.check(versions.CURSOR, outer[versions.FIELD], "the cursor")
        place = outer.get("table", "")
        if crc32((outer["logs"] + place).encode()) != outer["crc32"]:
            raise damaged
        return _PROGRESS.decode(outer["logs"]), json.loads(place) if place else None
    except NewerFormatError:
        raise
    except (InvalidLogError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged from None


class Replay(Iterator[Entry]):
    """An iterator of entries, as `Log.replay` returns it.

    It ends where the logs ended when it began, or earlier at a damaged entry.

    Examples:
        >>> replay = log.replay(saved_cursor)
        >>> for entry in replay:
        ...     apply(entry.rows)
        ...     save(replay.cursor)
        >>> replay.stopped is None

    Args:
        logs: the open logs, by sequencer.
        cursor: the cursor of an earlier replay.
        clock: replaces the system's clock.
        listed: the logs come from a LIST, so a log may have no record yet; it is left out.
        new_at_floor: a log that the cursor does not name begins at its floor, not at position 0.

    Attributes:
        stopped: the damaged entry at which the replay ended, or None if it reached the end.
    """

    def __init__(
        self,
        logs: Mapping[str, LogStore],
        cursor: str | None,
        clock: Clock = SYSTEM,
        *,
        listed: bool = False,
        new_at_floor: bool = False,
    ) -> None:
        saved = progress_of(cursor) if cursor is not None else {}
        if cursor is not None and table_notes(cursor) is not None:
            raise OptionError(
                'the cursor is in the rows of a table: continue it with replay(start="table")'
            )
        self.stopped: Stop | None = None
        self._logs = [_OneLog(name, log, saved.get(name), clock) for name, log in logs.items()]
        for name in saved.keys() - logs.keys():
            raise InvalidLogError(
                f"the cursor continues the log of sequencer {name!r}, which is not among those to "
                "replay. Name it; if it was deleted, replay without the cursor into a new place"
            )
        look_at_all(self._logs)
        if self._logs:
            list(run_parallel(self._logs[0].log.store, _OneLog.open, self._logs))
        for log in self._logs:
            # A writer may be about to begin a listed log.
            if log.log_id is None and log.saved is None and not listed:
                raise OptionError(no_log_at(log.log))
            if cursor is not None and log.saved is None and not new_at_floor:
                log.begin_new()
        # The cursor also names the logs without a replayed record. So a later replay finds the new
        # ones.
        self._progress = {log.name: log.begin for log in self._logs if log.begin is not None}
        self._entries = self._merged()

    @property
    def cursor(self) -> str:
        """One line of text. The next replay begins after the last entry that this one returned."""
        return cursor_text(self._progress)

    @property
    def schema(self) -> pa.Schema:
        """All columns of the logs at their heads.

        Raises:
            OptionError: no type holds the values of a column in two logs.
        """
        schemas = [(log.spark_schema, log.name) for log in self._logs]
        text = union_of((text, f"sequencer {name}") for text, name in schemas if text)
        return schema.to_arrow(text) if text else pa.schema([])

    def __next__(self) -> Entry:
        return next(self._entries)

    def _merged(self) -> Iterator[Entry]:
        def keyed(log: _OneLog) -> Iterator[tuple[int, str, _OneLog, SlotRecord | Stop]]:
            for item in log.items():
                yield log.timestamp_ms, log.name, log, item

        # The merge needs the first item of each log.
        new = [log for log in self._logs if log.has_new]
        if new:
            list(run_parallel(new[0].log.store, _OneLog.read_first, new))
        for _, name, log, item in heapq.merge(*map(keyed, self._logs), key=itemgetter(0, 1)):
            if isinstance(item, Stop):
                self.stopped = item
                return
            header = item.header
            target = _columns_as_at_head(item.spark_schema, log.spark_schema)
            pieces = pieces_of(log.log, item)
            try:
                # Read all rows before delivering one: damage must end the replay before the entry.
                rows = tuple(read_pieces(log.log, pieces, target, check=log.floor.check))
            except InvalidLogError as error:
                self.stopped = log.stop(header.position, error)
                return
            self._progress[name] = Progress(header.log_id, header.position + 1, _record_id(item))
            if isinstance(header, CommitHeader):
                yield Entry(name, header, rows)


@lru_cache(maxsize=64)
def _columns_as_at_head(spark_schema: str, head: str | None) -> pa.Schema:
    """The columns of a record, with the types that they have at the head of its log."""
    stored = schema.to_arrow(spark_schema)
    newest = schema.to_arrow(head or spark_schema)
    return pa.schema([newest.field(f.name) if f.name in newest.names else f for f in stored])


class _OneLog(LogRange):
    """One of the logs, up to its end when it was opened."""

    def __init__(self, name: str, log: LogStore, saved: Progress | None, clock: Clock) -> None:
        super().__init__(SourceOptions(path=log.url), name, log, clock)
        self.saved = saved
        self.timestamp_ms = 0
        # The damage at which the log's readable part ends.
        self._end_error: InvalidLogError | None = None
        self._first = 0
        self._items: Iterator[SlotRecord | Stop] | None = None

    def open(self) -> None:
        """Find the end of the log, and check the cursor.

        Raises:
            InvalidLogError: the cursor is ahead of the log, or no record is readable.
            AnotherLog: the cursor belongs to another log.
            CollectedError: the cursor is below the floor.
        """
        if self.saved is not None and (head := self._unchanged(self.saved)) is not None:
            self.see(head)
        else:
            self._find_end()
        # The floor at the time of the head: a replay without a cursor begins there.
        self._first = self.floor.current()
        if self._first > self.gap and self._end_error is None:
            self.check_not_cut()
        if self.saved is not None:
            self._check(self.saved)

    def _unchanged(self, saved: Progress) -> Head | None:
        """The head if nothing follows the record that the cursor names: 1 LIST and 1 GET.

        That record was live, so it needs no look-back.
        """
        if self.page is None:
            prefix = keys.batches_prefix(self.log.prefix)
            self.page = first_entries(self.log.store, prefix, LIST_LIMIT)
        if not saved.last or not self.page.entries:
            return None
        position = saved.position - 1
        newest = self.page.entries[0].key
        windows = (window for window in keys.WINDOWS if position <= keys.last_position(window))
        for window in windows:
            if newest != self.log.key(keys.slot(position, window)):
                continue
            with suppress(InvalidLogError):
                record = read_slot(self.log, position, window, GLANCE)
                is_last = record is not None and _record_id(record) == saved.last
                if record is not None and is_last and record.header.log_id == saved.log_id:
                    return Head(position, record, window, taken=position)
        return None

    def _find_end(self) -> None:
        try:
            self.refresh(floor=False)
        except InvalidLogError as error:
            # Replay the records before the damage.
            self._end_error = error
            self.damage = replace(self.damage, stops=True)
            self.refresh(floor=False)

    @property
    def begin(self) -> Progress | None:
        """The progress at which the replay begins, or None without a log."""
        if self.saved is not None or self.log_id is None:
            return self.saved
        return Progress(self.log_id, self._first, "")

    def begin_new(self) -> None:
        """Begin at position 0: the log is new to its reader.

        Raises:
            CollectedError: rows were collected before the reader saw the log.
        """
        if self.log_id is not None:
            self._first = self.first_of_new(NEW_IN_CURSOR)

    def _check(self, saved: Progress) -> None:
        if saved.log_id != self.log_id:
            present = f"{self.log_id} is" if self.log_id else "there is no log"
            raise AnotherLog(
                f"the cursor belongs to the log {saved.log_id}, and {present} at {self.log.url}: "
                "the cursor is another log's, or this log was deleted or recreated. Replay it "
                "without a cursor into a new place"
            )
        is_cut = saved.position > self.gap
        if is_cut and self._end_error is not None:
            return
        if not is_cut:
            # Below the floor a slot may hold a stray record, but the record at floor − 1 stays.
            self.floor.check(saved.position, CURSOR)
        if not is_cut and saved.last:
            last = self.live
            if last is None or last.header.position != saved.position - 1:
                # The replay has read this record before, so damage in it does not matter now.
                last = read_slot(self.log, saved.position - 1, self.window, tolerant=True)
            is_cut = last is not None and _record_id(last) != saved.last
        if is_cut:
            raise InvalidLogError(
                f"the cursor is at position {saved.position} of {self.log.url}, whose record "
                "before that is not the one that was replayed: the log was cut or restored from an "
                "older copy. Replay it without the cursor, or from one of that copy's time"
            )

    @property
    def has_new(self) -> bool:
        """Whether the log has records that were not replayed."""
        return self.begin is not None and self.begin.position < self.gap

    def read_first(self) -> None:
        """Read the first item ahead."""
        items = self._read()
        first = next(items, None)
        self._items = items if first is None else chain((first,), items)

    def items(self) -> Iterator[SlotRecord | Stop]:
        """The items of `_read`."""
        return self._read() if self._items is None else self._items

    def _read(self) -> Iterator[SlotRecord | Stop]:
        """Read the live records in order. The first damaged one ends it, as a Stop.

        Raises:
            CollectedError: the floor passes the replay.
        """
        begin = expected = self.begin.position if self.begin else 0
        try:
            for record in self.records(begin, self.gap, at_once=1, size=WHOLE):
                expected = record.header.position + 1
                self.timestamp_ms = record.header.timestamp_ms
                yield record
        except InvalidLogError as error:
            # The damage may lie before the cursor: later records are live or dead depending on it.
            yield self.stop(expected if error.position is None else error.position, error)
            return
        if self._end_error is not None:
            yield self.stop(self.gap, self._end_error)

    def stop(self, position: int, error: InvalidLogError) -> Stop:
        key = error.key or self.log.key(keys.slot(position, self.window))
        return Stop(self.name, position, key, str(error), max(self.gap - position - 1, 0))
