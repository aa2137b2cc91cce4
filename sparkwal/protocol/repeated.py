"""Compares a repeated microbatch or batch write with the rows that the log has of it."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain as joined

import pyarrow as pa

from sparkwal import events
from sparkwal.errors import DivergedCheckpointError, InvalidLogError, OptionError
from sparkwal.format import arrowfile
from sparkwal.format.content import Content
from sparkwal.format.header import ANONYMOUS, Batch, CommitHeader
from sparkwal.protocol import chain
from sparkwal.protocol.archive import Memory, knowing
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.object_writer import measure
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.replay import first_at_or_after, live_records
from sparkwal.protocol.slots import GLANCE, OpenLog, SlotRecord, read_front, read_slot
from sparkwal.protocol.task import TaskResult
from sparkwal.store.base import LogStore, NotFound


def check_newest(open_log: OpenLog, memory: Memory, app_id: str, version: int) -> int:
    """When a txnAppId wrote last. Raises OptionError if its last txnVersion is higher."""
    last, timestamp_ms = knowing(open_log, memory, app_id).txns.get(app_id, (-1, 0))
    # SAFETY(version-never-lower) §6: a batch write with a lower txnVersion is refused, not skipped
    if version < last:
        raise OptionError(
            f"txnVersion is {version}, but {open_log().url} has the version {last} of txnAppId "
            f"{app_id!r} already: versions of one txnAppId grow. Nothing was written. Give a write "
            "that is not the next one, such as a backfill, a txnAppId of its own"
        )
    return timestamp_ms


def check_transaction(
    open_log: OpenLog, lead: Leadership, app_id: str, version: int, content: Callable[[], Content]
) -> None:
    """Check a batch write before it is skipped because the log has its txnVersion. Raises
    OptionError for a lower version, DivergedCheckpointError for other rows."""
    if app_id.startswith(ANONYMOUS):
        return  # no other write has this name, so the record is its own
    timestamp_ms = check_newest(open_log, lead, app_id, version)
    log = open_log()
    other = other_rows(log, lead, app_id, version, content(), timestamp_ms=timestamp_ms)
    # SAFETY(batch-same-rows) §6: a repeated batch write is skipped only if its rows are the log's
    if other is not None:
        raise DivergedCheckpointError(
            f"{log.url} has txnVersion {version} of txnAppId {app_id!r} already, with other rows: "
            f"{other}. Nothing was written, nothing is lost. Write other rows with a higher "
            "txnVersion; a repetition must give the same rows (not uuid() or current_timestamp())"
        )


def other_rows(
    log: LogStore,
    lead: Leadership,
    query_id: str,
    batch_id: int,
    content: Content,
    *,
    position: int | None = None,
    timestamp_ms: int = 0,
) -> str | None:
    """How repeated rows differ from those of the log's record; None if they are the same. Reads all
    rows of that record, a part at a time; `timestamp_ms` finds it if its `position` is not known.
    If it was collected, an event says so, and the rows count as the same. Raises
    InvalidLogError."""
    state = chain.look(log, lead.log_id)
    floor = state.floor if state else 0
    if position is None:
        record = _find(log, lead, (query_id, batch_id), timestamp_ms, floor)
    else:
        record = read_slot(log, position, lead.window) if position >= floor else None
    if record is None and floor > (position or 0):
        events.emit(events.ReplayNotCompared(query_id=query_id, batch_id=batch_id))
        return None
    header = record.header if record else None
    if (
        record is None
        or not isinstance(header, CommitHeader)
        or (header.query_id, header.batch_id) != (query_id, batch_id)
    ):
        raise InvalidLogError(
            f"{log.url} remembers number {batch_id} of {query_id!r} and holds no record of it: it "
            "was deleted from outside. Restore it; until then nothing can be said of its rows"
        )
    place = f"position {header.position} of the log"
    if header.rows != content.rows:
        return f"it has {content.rows} rows now, but {header.rows} at {place}"
    if _stored(log, record, header) != content:
        return f"it has {content.rows} rows now as at {place}, but not the same ones"
    return None


def _find(
    log: LogStore, lead: Leadership, wanted: tuple[str, int], timestamp_ms: int, floor: int
) -> SlotRecord | None:
    """The record of a write (query, number) with this time: log₂(length of the log) GETs."""
    head = Head(lead.next_position - 1, None, lead.window)
    start = first_at_or_after(log, head, timestamp_ms, start=floor)
    for found in live_records(log, lead.window, start, head.gap, size=GLANCE):
        header = found.header
        if header.timestamp_ms > timestamp_ms:
            return None
        if isinstance(header, CommitHeader) and (header.query_id, header.batch_id) == wanted:
            return found
    return None


def _stored(log: LogStore, record: SlotRecord, header: CommitHeader) -> Content:
    """The rows of a commit record and of its objects."""
    where = log.locate(header.number)
    data = record.inlined
    if data is None:
        data = log.store.get_range(log.key(header.number), record.body, record.size - record.body)
    inlined: list[Iterable[pa.RecordBatch]] = []
    for entry in header.inline:
        rows, data = data[: entry.bytes], data[entry.bytes :]
        arrowfile.check_crc(rows, entry.crc32, where)
        inlined.append(arrowfile.read_frames(rows, record.spark_schema, where))
    return _content(log, header.batches, inlined)


def content_of(open_log: OpenLog, results: Sequence[TaskResult]) -> Content:
    """The content of the tasks' rows; what a task stored is read. Raises InvalidLogError."""
    known = sum((result.content for result in results if result.content), Content())
    objects = [result.batch for result in results if result.batch]
    inlined = [pa.ipc.open_stream(result.inline) for result in results if result.inline]
    return known + _content(open_log(), objects, inlined)


def _content(
    log: LogStore, objects: Iterable[Batch], inlined: Iterable[Iterable[pa.RecordBatch]]
) -> Content:
    content = Content.of(joined.from_iterable(inlined))
    for batch in objects:
        where = log.locate(batch.number)
        try:
            found, rows = measure(log, read_front(log, batch.number, None, GLANCE))
        except NotFound:
            raise InvalidLogError(f"{where} is missing, and its rows with it") from None
        if found != batch:
            raise InvalidLogError(f"{where} is not the object that its record names")
        content += rows
    return content
