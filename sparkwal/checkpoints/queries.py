"""The queries of a log: how far each is, and where its sources stand."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwal.checkpoints import packing
from sparkwal.checkpoints.fork import after_the_end
from sparkwal.checkpoints.forkable import Kept, first_forkable, not_forkable
from sparkwal.checkpoints.history import floor_of, parsed
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format.header import Checkpoint, Origin, SlotHeader
from sparkwal.protocol.archive import named_records, read_archive
from sparkwal.protocol.liveness import live_until
from sparkwal.protocol.records import first_at_or_after
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.protocol.slots import SlotRecord
from sparkwal.protocol.view import STRICT, DamagePolicy
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
        fork_from: a fork is accepted at each position from this one, not below the floor, …
        fork_until: … up to this one. None for both if it cannot be forked at the last position. The
            records between them are not read: a damaged one is found by the fork that needs it.
        not_forkable: the reason if it cannot be forked at the last position, or "".
        origin: the place from which it was forked, or None.
        state_bytes: the bytes of its state that a rebuild reads: the last copy, and the changes
            since. 0 for a query without state.
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
    state_bytes: int = 0


def read_queries(
    log: LogStore,
    at: int | None = None,
    moment_ms: int | None = None,
    *,
    damage: DamagePolicy = STRICT,
) -> list[QueryInfo]:
    """Read the queries of a log at its end, at a position or at a moment.

    It costs 2 LIST, 1 GET for head and floor each, and 1 GET for each query. A query that needs
    records before the floor, keeps a state above one, or that an older version wrote, costs log₂ n
    GETs more.

    Args:
        log: the log.
        at: a position: only what the log held up to it.
        moment_ms: a moment: only what the log held before it.
        damage: STRICT; or LENIENT, to pass over records that the answer does not need.

    Raises:
        OptionError: there is no log, or no such position.
        InvalidLogError: a record is damaged or missing.
    """
    log = with_copies(log)
    head = find_head(log, damage=damage)
    if head.live is None:
        raise OptionError(f"there is no log at {log.url}; check the path")
    floor = floor_of(log, head)
    if moment_ms is not None:
        view = head.view(log, damage)
        at = first_at_or_after(view, moment_ms, start=floor, end=head.gap) - 1
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
    entries, txns = _queries_in(log, header)
    kept = Kept(floor, named_records(log, head.live.header))
    if not kept.holds(header.position):
        raise _not_there(log, last)
    _check_positions(log, entries)
    queries = [
        _info(log, head, query_id, entry, kept, last=last, wrote=txns.get(query_id, (-1, 0)))
        for query_id, entry in entries.items()
    ]
    return sorted(queries, key=lambda query: query.position)


def _info(
    log: LogStore,
    head: Head,
    query_id: str,
    entry: Checkpoint,
    kept: Kept,
    *,
    last: int,
    wrote: tuple[int, int],
) -> QueryInfo:
    """One query. `last` is the last position that counts, `wrote` its last transaction."""
    batch_id, timestamp_ms = wrote
    sources, fault = _sources(log, head.window, query_id, batch_id, entry)
    reason = not_forkable(log, head.window, query_id, entry, kept)
    if fault is not None and not reason:
        reason = str(fault)
    begin = None if reason else first_forkable(log, head, query_id, entry, kept, last)
    state = entry.state
    return QueryInfo(
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
        state_bytes=state.base_bytes + state.since if state else 0,
    )


def _queries_in(
    log: LogStore, header: SlotHeader
) -> tuple[dict[str, Checkpoint], dict[str, tuple[int, int]]]:
    """The checkpoints and the transactions of all queries of a record and its archive."""
    entries = dict(header.checkpoints)
    txns = dict(header.txns)
    if header.txns_archive:
        archive = read_archive(log, header.txns_archive)
        entries = {**archive.checkpoints, **entries}
        txns = {**archive.txns, **txns}
    return entries, txns


def _check_positions(log: LogStore, entries: Mapping[str, Checkpoint]) -> None:
    """Check that each record carries the checkpoint of one query.

    A forged record may name thousands of queries at one position, and each would read it again.

    Raises:
        InvalidLogError: two queries name one record.
    """
    counts = Counter(entry.position for entry in entries.values() if entry.bytes)
    for position, count in counts.items():
        if count > 1:
            raise InvalidLogError(
                f"{log.url}: {count} queries name the record of position {position}, and a record "
                "carries the checkpoint of one"
            )


def _sources(
    log: LogStore, window: int, query_id: str, batch_id: int, entry: Checkpoint
) -> tuple[dict[str, Any], InvalidLogError | None]:
    """The offset of each source in a checkpoint, and the error if its record cannot be read."""
    if not entry.bytes:
        return {}, None
    try:
        files = packing.read_block(log, window, query_id, entry.position, expected=entry)
    except InvalidLogError as error:
        return {}, error
    return parsed(files.get(f"offsets/{batch_id}", b"")) or {}, None


def _live_at(log: LogStore, head: Head, at: int) -> SlotRecord:
    live = live_until(head.view(log), at)
    if live is None:
        raise _not_there(log, at)
    return live


def _not_there(log: LogStore, at: int) -> OptionError:
    return OptionError(
        f"the record of position {at} of {log.url} is not in the log any more: choose a position "
        "from its floor on"
    )
