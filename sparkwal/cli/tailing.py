"""Rows that come while a command waits for them: each once, whoever leads the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkwal.cli.following import IDLE_LOOKS, made_again, still_there, wait
from sparkwal.cli.rows import Shown, kept, known_columns, read
from sparkwal.errors import CollectedError, StoreUnavailableError
from sparkwal.protocol.slots import WHOLE, SlotRecord
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.pieces import pieces_of

_LONGEST_MS = 30_000


@dataclass
class _Place:
    """How far one log was shown: up to `position`, and `rows` of that commit."""

    log: LogRange
    log_id: str | None
    position: int
    spark_schema: str | None
    rows: int = 0
    idle: int = 0


def followed(
    logs: Sequence[LogRange],
    shown: Callable[[pa.Schema], Shown],
    interval_ms: int,
    tell: Callable[[str], None],
) -> Iterator[tuple[Shown, pa.RecordBatch | None]]:
    """The rows after those that `logs` had when they were looked at last, without end.

    None stands for a pause: everything that is there was shown. 1 GET of each log for each look
    that finds nothing.

    Args:
        shown: what is shown of a log with these columns, which may become more.
        tell: what people should know: rows that were collected meanwhile, a store that is away.

    Raises Failed where a log was made again or is gone, InvalidLogError, BrokenPipeError.
    """
    places = [_Place(log, log.log_id, log.gap, log.spark_schema) for log in logs]
    known = known_columns(place.spark_schema for place in places)
    now, patience = shown(known), interval_ms
    while True:
        try:
            for place in places:
                try:
                    for record in _new_records(place):
                        # A writer may have added columns.
                        if place.spark_schema != record.spark_schema:
                            place.spark_schema = record.spark_schema
                            known = known_columns(place.spark_schema for place in places)
                            now = shown(known)
                        for batch in _fresh_rows(place, record, now):
                            yield now, batch
                except CollectedError as error:
                    tell(
                        f"positions {place.position}…{error.floor - 1} were collected before they "
                        f"were shown; going on at {error.floor}"
                    )
                    place.position, place.rows = error.floor, 0
            patience = interval_ms
        except StoreUnavailableError as error:
            if patience == interval_ms:
                tell(f"{error}; still trying")
            patience = max(interval_ms, min(2 * patience + 1, _LONGEST_MS))
        yield now, None
        wait(patience)


def _new_records(place: _Place) -> Iterator[SlotRecord]:
    log = place.log
    end = log.look()
    if log.log_id != place.log_id:
        raise made_again(log, place.log_id)
    if log.log_id is None:
        return
    place.idle = 0 if end > place.position else place.idle + 1
    if place.idle >= IDLE_LOOKS:
        place.idle = 0
        if not still_there(log):
            raise made_again(log, place.log_id)
    for record in log.records(place.position, end, at_once=1, size=WHOLE):
        if record.header.position != place.position:
            place.position, place.rows = record.header.position, 0
        yield record
        place.position, place.rows = record.header.position + 1, 0
    place.position = max(place.position, end)
    log.forget(place.position)


def _fresh_rows(place: _Place, record: SlotRecord, shown: Shown) -> Iterator[pa.RecordBatch]:
    """Those of a record that were not shown before the store went away."""
    skip = place.rows
    for batch in read(place.log, pieces_of(place.log.log, record), shown):
        fresh = batch.slice(min(skip, batch.num_rows))
        skip -= batch.num_rows - fresh.num_rows
        place.rows += fresh.num_rows
        yield from kept([fresh], shown)
