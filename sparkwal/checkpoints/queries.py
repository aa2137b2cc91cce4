"""The queries of a log: how far each is, and where its sources stand."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwal.checkpoints import carry
from sparkwal.checkpoints.fork import after_the_end
from sparkwal.checkpoints.history import floor_of, parsed
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format.header import REMOTE, STATEFUL, Origin
from sparkwal.protocol.archive import read_archive
from sparkwal.protocol.records import first_at_or_after
from sparkwal.protocol.recovery import Head, find_head, last_live
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot
from sparkwal.store.base import LogStore


@dataclass(frozen=True)
class QueryInfo:
    """A streaming query of a log.

    Attributes:
        name: its name, or its id if the log does not name it.
        query_id: its id.
        batch_id: its last microbatch in the log.
        position: the position of the last record that carries its checkpoint.
        timestamp_ms: the time of its last record, in milliseconds since 1970.
        rows: the rows in that record.
        sources: the offset of each source after that microbatch, as its source writes it. Empty if
            the record carries none.
        fork_from: the first position at which it can be forked, or None.
        fork_until: the last position at which it can be forked, or None.
        not_forkable: the reason if it cannot be forked at the last position, or "".
        origin: the place from which it was forked, or None.
    """

    name: str
    query_id: str
    batch_id: int
    position: int
    timestamp_ms: int
    rows: int
    sources: Mapping[str, Any]
    fork_from: int | None
    fork_until: int | None
    not_forkable: str
    origin: Origin | None


def read_queries(
    log: LogStore, at: int | None = None, moment_ms: int | None = None
) -> list[QueryInfo]:
    """Read the queries of a log at its end, at a position or at a moment.

    It costs 2 LIST, 1 GET for head and floor each, 1 GET for each query, and log₂ n GETs for the
    first position of each.

    Args:
        log: the log.
        at: a position: only what the log held up to it.
        moment_ms: a moment: only what the log held before it.

    Raises:
        OptionError: there is no log, or no such position.
        InvalidLogError: a record is damaged or missing.
    """
    head = find_head(log)
    if head.live is None:
        raise OptionError(f"there is no log at {log.url}; check the path")
    floor = floor_of(log, head)
    if moment_ms is not None:
        at = first_at_or_after(log, head, moment_ms, start=floor) - 1
        if at < floor:
            return []
    live = head.live
    last = head.position
    if at is not None:
        if at > last:
            raise after_the_end(log, at, last)
        last = at
        live = _live_at(log, head, at)
    header = live.header
    entries = dict(header.checkpoints)
    txns = dict(header.txns)
    if header.txns_archive:
        archive = read_archive(log, header.txns_archive)
        entries = {**archive.checkpoints, **entries}
        txns = {**archive.txns, **txns}
    queries = []
    for query_id, entry in entries.items():
        batch_id, timestamp_ms = txns.get(query_id, (-1, 0))
        reason = _REASONS.get(entry.reason, entry.reason)
        if entry.too_large:
            reason = "a file of its checkpoint was larger than checkpointMaxBytes"
        sources: dict[str, Any] = {}
        if entry.bytes:
            try:
                files = carry.read_block(log, head.window, query_id, entry.position)
                sources = parsed(files.get(f"offsets/{batch_id}", b"")) or {}
            except InvalidLogError:
                # A collection keeps only the records that the head names.
                if entry.position >= floor:
                    raise
                reason = "its record was collected"
        begin = None if reason else _first(log, head, query_id, floor, entry.position)
        queries.append(
            QueryInfo(
                name=entry.name or query_id,
                query_id=query_id,
                batch_id=batch_id,
                position=entry.position,
                timestamp_ms=timestamp_ms,
                rows=entry.rows,
                sources=sources,
                fork_from=begin,
                fork_until=None if reason else last,
                not_forkable=reason,
                origin=entry.origin,
            )
        )
    return sorted(queries, key=lambda query: query.position)


_REASONS = {
    STATEFUL: "it is stateful, and its state is not in the log",
    REMOTE: "its checkpoint was not on the driver's disk",
}


def _live_at(log: LogStore, head: Head, at: int) -> SlotRecord:
    record = read_slot(log, at, head.window)
    if record is None:
        raise OptionError(
            f"the record of position {at} of {log.url} is not in the log any more: choose a "
            "position from its floor on"
        )
    return last_live(log, record, head=head)


def _first(log: LogStore, head: Head, query_id: str, floor: int, position: int) -> int:
    """The first position from the floor on whose record names the query: log₂ n GETs."""
    if position <= floor:
        return min(floor, head.position)

    def names(at: int) -> bool:
        record = read_slot(log, at, head.window, GLANCE)
        if record is None:
            return False
        return query_id in last_live(log, record, head=head).header.checkpoints

    return floor + bisect_left(range(floor, position), True, key=names)
