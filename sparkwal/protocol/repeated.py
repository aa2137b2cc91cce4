"""Compares a repeated microbatch or batch write with its rows in the log."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
from sparkwal.protocol.records import first_at_or_after, live_records
from sparkwal.protocol.slots import GLANCE, OpenLog, SlotRecord, read_front, read_slot
from sparkwal.protocol.task import TaskResult
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore, NotFound, sound


def check_newest(open_log: OpenLog, memory: Memory, app_id: str, version: int) -> int:
    """Check that no write of a txnAppId has a higher txnVersion. Returns the time of its last
    write.

    Raises:
        OptionError: the last txnVersion is higher.
    """
    last, timestamp_ms = knowing(open_log, memory, app_id).txns.get(app_id, (-1, 0))
    # SAFETY(version-never-lower) §6: a batch write with a lower txnVersion is refused, not skipped
    if version < last:
        raise OptionError(
            f"txnVersion is {version}, but {open_log().url} has the version {last} of txnAppId "
            f"{app_id!r} already: versions of one txnAppId grow. sparkwal wrote nothing. Use a "
            "separate txnAppId for a write that is not the next one, such as a backfill"
        )
    return timestamp_ms


def check_transaction(
    open_log: OpenLog, lead: Leadership, app_id: str, version: int, content: Callable[[], Content]
) -> None:
    """Check a batch write before it is skipped because the log holds its txnVersion.

    Raises:
        OptionError: the txnVersion is lower than the last.
        DivergedCheckpointError: the log holds other rows.
    """
    if app_id.startswith(ANONYMOUS):
        # No other write has this name, so the record is this write's own.
        return
    timestamp_ms = check_newest(open_log, lead, app_id, version)
    log = open_log()
    other = other_rows(log, lead, app_id, version, content(), timestamp_ms=timestamp_ms)
    # SAFETY(batch-same-rows) §6: a repeated batch write is skipped only if its rows are the log's
    if other is not None:
        raise DivergedCheckpointError(
            f"{log.url} has txnVersion {version} of txnAppId {app_id!r} already, with other rows: "
            f"{other}. sparkwal wrote nothing, no row is lost. Write other rows with a higher "
            "txnVersion; a repetition must produce the same rows (not uuid() or "
            "current_timestamp())"
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
    """Describe how repeated rows differ from those of the log's record, or None if they are the
    same.

    It reads all rows of that record, a part at a time. If the record was collected, the rows count
    as the same, and an event reports that.

    Args:
        log: the log.
        lead: the leadership.
        query_id: the query.
        batch_id: the microbatch.
        content: the content of the repeated rows.
        position: the position of the record, if it is known.
        timestamp_ms: the time of the record, which finds it without its position.

    Raises:
        InvalidLogError: the record or an object is missing or damaged.
    """
    state = chain.newest_lifecycle(log, lead.log_id)
    floor = state.floor if state else 0
    if position is None:
        record = _find(log, lead, (query_id, batch_id), timestamp_ms, floor)
    else:
        record = read_slot(log, position, lead.window) if position >= floor else None
    if record is None and floor > (position or 0):
        events.emit(events.ReplayNotCompared(query_id=query_id, batch_id=batch_id))
        return None
    header = record.header if record else None
    if isinstance(header, CommitHeader) and header.erased:
        events.emit(events.ReplayNotCompared(query_id=query_id, batch_id=batch_id))
        return None
    if (
        record is None
        or not isinstance(header, CommitHeader)
        or (header.query_id, header.batch_id) != (query_id, batch_id)
    ):
        raise InvalidLogError(
            f"{log.url} has number {batch_id} of {query_id!r} in its transactions and no record of "
            "it: it was deleted from outside. Restore it; until then its rows cannot be compared"
        )
    name = f"position {header.position} of the log"
    if header.rows != content.rows:
        return f"it has {content.rows} rows now, but {header.rows} at {name}"
    if stored_content(log, record, header) != content:
        return f"it has {content.rows} rows now as at {name}, but not the same ones"
    return None


def _find(
    log: LogStore, lead: Leadership, write: tuple[str, int], timestamp_ms: int, floor: int
) -> SlotRecord | None:
    """Find the record of a write (query, number) with this time: log₂(length of the log) GETs."""
    view = LogView(log, lead.window)
    end = lead.next_position
    start = first_at_or_after(view, timestamp_ms, start=floor, end=end)
    for record in live_records(view, start, end, size=GLANCE):
        header = record.header
        if header.timestamp_ms > timestamp_ms:
            return None
        if isinstance(header, CommitHeader) and (header.query_id, header.batch_id) == write:
            return record
    return None


def stored_content(log: LogStore, record: SlotRecord, header: CommitHeader) -> Content:
    """The content of a commit record and its objects."""
    name, key = log.locate(header.number), log.key(header.number)

    def read() -> bytes:
        return log.store.get_range(key, record.body, record.size - record.body)

    def parts(data: bytes) -> list[bytes]:
        rows: list[bytes] = []
        for entry in header.inline:
            rows.append(data[: entry.bytes])
            arrowfile.check_crc(rows[-1], entry.crc32, name)
            data = data[entry.bytes :]
        return rows

    first = record.inlined
    rows = sound(key, lambda: parts(read() if first is None else first), lambda: parts(read()))
    inlined = [arrowfile.read_frames(part, record.spark_schema, name) for part in rows]
    return _content(log, header.batches, inlined)


def content_of(open_log: OpenLog, results: Sequence[TaskResult]) -> Content:
    """The content of the tasks' rows. Rows that a task stored are read.

    Raises:
        InvalidLogError: an object is missing or damaged.
    """
    computed = sum((result.content for result in results if result.content), Content())
    objects = [result.batch for result in results if result.batch]
    inlined = [pa.ipc.open_stream(result.inline) for result in results if result.inline]
    return computed + _content(open_log(), objects, inlined)


def _content(
    log: LogStore, objects: Iterable[Batch], inlined: Iterable[Iterable[pa.RecordBatch]]
) -> Content:
    content = Content.of(joined.from_iterable(inlined))
    for batch in objects:
        read = partial(_content_of, log, batch)
        content += sound(log.key(batch.number), read, read)
    return content


def _content_of(log: LogStore, batch: Batch) -> Content:
    name = log.locate(batch.number)
    try:
        stored, rows = measure(log, read_front(log, batch.number, None, GLANCE))
    except NotFound:
        raise InvalidLogError(f"{name} is missing, and so are its rows") from None
    if stored != batch:
        raise InvalidLogError(f"{name} is not the object that its record names")
    return rows
