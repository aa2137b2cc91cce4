"""Replaying one log or all logs under a path, from a cursor, in one order over all of them.

Entries come in the order of their commit times; within one log that is the order of its positions.
A replay stops at the first invalid entry and says what it is: what comes after it may build on what
it held. (After otel-arrow's Quiver.)
"""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import keys, schema
from sparkwal.format.checked import LARGEST_NUMBER
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.clock import Clock, SystemClock
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.replay import AnotherLog, live_records
from sparkwal.protocol.slots import WHOLE, SlotRecord, read_slot
from sparkwal.reading.floor import Floor, ends_before
from sparkwal.reading.pieces import pieces_of
from sparkwal.reading.rows import read_pieces
from sparkwal.store.log_store import LogStore

_FORMAT = 1
_CLOCK = SystemClock()


@dataclass(frozen=True)
class Entry:
    """One commit; its rows in the log's order, with the schema that they were written with."""

    sequencer: str
    header: CommitHeader
    rows: tuple[pa.RecordBatch, ...]


@dataclass(frozen=True)
class Stop:
    """Why a replay ended before the end of the log, which goes on for `following` positions: the
    object `key` is missing or damaged."""

    sequencer: str
    position: int
    key: str
    reason: str
    following: int


@dataclass(frozen=True)
class Place:
    """How far one log was replayed: up to `position`, exclusive. `last` names the record before it:
    a log that was restored from an older copy and written on has another there."""

    log_id: str
    position: int
    last: str


def _name(record: SlotRecord) -> str:
    return f"{record.header.plan_id}:{record.header.timestamp_ms}"


def places_of(cursor: str) -> dict[str, Place]:
    """Raises OptionError for a text that is not a whole cursor."""
    damaged = OptionError(
        "the cursor is damaged or none of a replay: give the one that was kept before, or none to "
        "replay everything"
    )
    try:
        outer = json.loads(cursor)
        if outer["format"] != _FORMAT or zlib.crc32(outer["logs"].encode()) != outer["crc32"]:
            raise damaged
        logs = json.loads(outer["logs"])
        for place in logs.values():
            is_place = [type(part) for part in place] == [str, int, str]
            if not is_place or not 0 <= place[1] <= LARGEST_NUMBER:
                raise damaged
        return {name: Place(*place) for name, place in logs.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise damaged from None


class Replay:
    """An iterator of entries; ends at the heads that the logs had when it began, or `stopped` says
    why before.

    >>> replay = log.replay(cursor=kept)
    >>> for entry in replay:
    ...     apply(entry.rows)
    ...     keep(replay.cursor)
    >>> replay.stopped is None
    """

    def __init__(
        self, logs: Mapping[str, LogStore], cursor: str | None, clock: Clock = _CLOCK
    ) -> None:
        given = places_of(cursor) if cursor is not None else {}
        self.stopped: Stop | None = None
        self._logs = [_OneLog(name, log, given.get(name), clock) for name, log in logs.items()]
        for name in given.keys() - logs.keys():
            raise InvalidLogError(
                f"the cursor goes on in the log of sequencer {name!r}, which is not among those "
                "to replay: name it, or it was deleted"
            )
        self._places = {each.name: each.place for each in self._logs if each.place is not None}
        self._entries = self._merged()

    @property
    def cursor(self) -> str:
        """One line of text; a later replay goes on with the entry after the last that was taken."""
        places = sorted(self._places.items())
        body = json.dumps({name: list(vars(each).values()) for name, each in places})
        return json.dumps({"format": _FORMAT, "crc32": zlib.crc32(body.encode()), "logs": body})

    @property
    def schema(self) -> pa.Schema:
        """All columns of the logs, as their heads say. Raises pa.ArrowException where two logs have
        a column of other types."""
        schemas = [each.schema for each in self._logs if each.schema is not None]
        return pa.unify_schemas(schemas) if schemas else pa.schema([])

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def _merged(self) -> Iterator[Entry]:
        def keyed(log: _OneLog) -> Iterator[tuple[int, str, int, _OneLog, SlotRecord | Stop]]:
            for item in log.records():
                position = (item if isinstance(item, Stop) else item.header).position
                yield log.timestamp_ms, log.name, position, log, item

        for _, name, position, log, item in heapq.merge(
            *(keyed(log) for log in self._logs), key=lambda found: found[:3]
        ):
            if isinstance(item, Stop):
                self.stopped = item
                return
            try:
                rows = log.rows(item)
            except InvalidLogError as error:
                self.stopped = log.stop(position, log.damaged_key(item), error)
                return
            self._places[name] = Place(item.header.log_id, position + 1, _name(item))
            if isinstance(item.header, CommitHeader):
                yield Entry(name, item.header, tuple(rows))


class _OneLog:
    """One of the logs, as far as it goes now. Raises InvalidLogError, AnotherLog for a cursor
    that does not fit it, CollectedError for one below its floor."""

    def __init__(self, name: str, log: LogStore, place: Place | None, clock: Clock) -> None:
        self.name, self._log, self.place = name, log, place
        self._damage: InvalidLogError | None = None
        try:
            head = find_head(log)
        except InvalidLogError as error:
            # What is before the damage is replayed all the same.
            head, self._damage = find_head(log, tolerant=True), error
        self._head: Head = head
        self.log_id = head.live.header.log_id if head.live else ""
        self.timestamp_ms = 0
        self._floor = Floor(log, self.log_id or None, clock)
        # As it was at the time of the head: a replay begins there.
        self._first = self._floor.current()
        if self._first > self._head.gap and self._damage is None:
            # The log went on meanwhile.
            self._head = find_head(log)
            if self._first > self._head.gap:
                raise ends_before(log.url, self._head.gap, self._first)
        if place is not None:
            self._check(place)

    @property
    def schema(self) -> pa.Schema | None:
        return schema.to_arrow(self._head.live.spark_schema) if self._head.live else None

    def _check(self, place: Place) -> None:
        if not self.log_id:
            raise InvalidLogError(
                f"the cursor is at position {place.position} of {self._log.url}, and there is no "
                "log: it was deleted. Replay without the cursor what is there later"
            )
        if place.log_id != self.log_id:
            raise AnotherLog(
                f"{self._log.url} is not the log that the cursor belongs to: it was deleted and "
                "recreated. Replay it without the cursor"
            )
        if place.position > self._head.gap:
            if self._damage is not None:
                return
            raise self._older(place)
        # First: what stands below the floor may be a stray. The record at the floor − 1 is kept.
        self._floor.check(place.position, "the cursor")
        try:
            last = read_slot(self._log, place.position - 1, self._head.window)
        except InvalidLogError:
            return  # damaged since, and read before
        if last is not None and _name(last) != place.last:
            raise self._older(place)

    def _older(self, place: Place) -> InvalidLogError:
        return InvalidLogError(
            f"the cursor is at position {place.position} of {self._log.url}, whose record before "
            "that is not the one that was replayed: the log was cut or restored from an older "
            "copy. Replay it without the cursor, or from one of that copy's time"
        )

    def records(self) -> Iterator[SlotRecord | Stop]:
        """The live records in order; the first that is invalid comes as a Stop and ends it. Raises
        CollectedError where the floor overtakes the replay."""
        begin = self.place.position if self.place else self._first
        expected = begin
        try:
            head = self._head if self._damage is None else None
            found = live_records(
                self._log, self._head.window, begin, self._head.gap,
                log_id=self.log_id or None, head=head, size=WHOLE,
            )  # fmt: skip
            for record in self._floor.usable(begin, self._head.gap, found):
                expected = record.header.position + 1
                self.timestamp_ms = record.header.timestamp_ms
                yield record
        except InvalidLogError as error:
            position = self._first_invalid(expected)
            yield self.stop(position, self._slot_key(position), error)
            return
        if self._damage is not None:
            yield self.stop(self._head.gap, self._slot_key(self._head.gap), self._damage)

    def _first_invalid(self, position: int) -> int:
        """Dead records may come before it."""
        while position < self._head.gap:
            try:
                if read_slot(self._log, position, self._head.window) is None:
                    break
            except InvalidLogError:
                break
            position += 1
        return position

    def _slot_key(self, position: int) -> str:
        return self._log.key(keys.slot(position, self._head.window))

    def rows(self, record: SlotRecord) -> list[pa.RecordBatch]:
        """Checked to the last byte. Raises InvalidLogError, CollectedError."""
        target, found = schema.to_arrow(record.spark_schema), pieces_of(self._log, record)
        check = self._floor.check
        return list(read_pieces(self._log.store, found, target, full=True, check=check))

    def damaged_key(self, record: SlotRecord) -> str:
        """Of the object whose rows cannot be read."""
        target = schema.to_arrow(record.spark_schema)
        for piece in pieces_of(self._log, record):
            try:
                for _ in read_pieces(self._log.store, [piece], target, full=True):
                    pass
            except InvalidLogError:
                return piece.key
        return self._slot_key(record.header.position)

    def stop(self, position: int, key: str, error: InvalidLogError) -> Stop:
        following = max(self._head.gap - position - 1, 0)
        return Stop(self.name, position, key, str(error), following)
