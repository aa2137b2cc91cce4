"""Makes the bytes of a record from which a collection erased the rows (PROTOCOL §10)."""

import json
from dataclasses import replace

from sparkwal.errors import InvalidLogError, NewerFormatError
from sparkwal.format import arrowfile
from sparkwal.format.header import CommitHeader, Header, to_json
from sparkwal.format.versions import NEWER
from sparkwal.protocol.slots import SlotRecord, TornRecord, open_slot
from sparkwal.store.base import Front, LogStore


def without_rows(
    log: LogStore, position: int, window: int, body: bytes, log_id: str
) -> bytes | None:
    """The record of a slot without its rows, with all else: its header and its checkpoint.

    A torn record stays torn: only its front is kept.

    Args:
        log: the log.
        position: the position of the record.
        window: the log's window.
        body: all bytes of the record.
        log_id: the id of the log.

    Returns:
        The bytes, or None if the record holds no rows.

    Raises:
        InvalidLogError: the record is damaged, belongs to another log, or has fields that this
            version does not know.
    """
    try:
        record = open_slot(log, position, window, Front.with_total(body, len(body)))
    except TornRecord as torn:
        return _front(body, torn, log_id)
    assert record is not None
    header = record.header
    _check_log(header, log_id, log.locate(header.number, window))
    if not isinstance(header, CommitHeader) or not header.inline:
        return None
    _check_fields(record, log.locate(header.number, window))
    begin = arrowfile.block_offset(record.size)
    block = body[begin : record.declared] if record.declared > record.size else b""
    erased = replace(
        header,
        inline=(),
        erased=header.inline,
        rows=sum(batch.rows for batch in header.batches),
        bytes=sum(batch.bytes for batch in header.batches),
    )
    return arrowfile.encode(erased, record.spark_schema, block)


def _front(body: bytes, torn: TornRecord, log_id: str) -> bytes | None:
    """The front of a torn record, or None if nothing follows it."""
    if arrowfile.is_cut_front(body):
        return None
    opened = arrowfile.open_front(body, torn.name)
    _check_log(opened.header, log_id, torn.name)
    is_bare = len(body) == opened.body
    holds_rows = isinstance(opened.header, CommitHeader) and opened.header.inline
    return body[: opened.body] if holds_rows and not is_bare else None


def _check_log(header: Header, log_id: str, name: str) -> None:
    # SAFETY(erase-this-log) §10: a collection erases no rows of another log at the path
    if header.log_id != log_id:
        raise InvalidLogError(f"{name}: it belongs to the log {header.log_id}")


def _check_fields(record: SlotRecord, name: str) -> None:
    """Check that a new header loses no field of this one."""
    lost = json.loads(record.text).keys() - json.loads(to_json(record.header)).keys()
    if lost:
        raise NewerFormatError(f"{name}: it has the fields {sorted(lost)}; {NEWER} record")
