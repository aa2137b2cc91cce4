"""Finds the place in a log from which a query is forked (PROTOCOL §12)."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparkwal.checkpoints import packing
from sparkwal.checkpoints.fork import Fork, after_the_end, query_id_of
from sparkwal.checkpoints.forkable import (
    Kept,
    carrying,
    first_forkable,
    not_carried,
    not_forkable,
)
from sparkwal.checkpoints.offsets import by_source, listed
from sparkwal.errors import CollectedError, InvalidLogError, OptionError
from sparkwal.format import keys
from sparkwal.format.header import REMOTE, STATEFUL, Checkpoint, Origin, SlotHeader
from sparkwal.protocol import chain
from sparkwal.protocol.archive import named_records, recall
from sparkwal.protocol.liveness import live_until, settled_run
from sparkwal.protocol.missing import MissingRecord
from sparkwal.protocol.records import first_at_or_after
from sparkwal.protocol.recovery import DEFAULT_WINDOW, LIST_LIMIT, Head, find_head
from sparkwal.protocol.slots import GLANCE, SlotRecord, WrongWindow, copied, read_any, read_slot
from sparkwal.protocol.view import LENIENT, LogView, Slot
from sparkwal.store.base import LogStore, Refusal, first_entries

# The advice for a record that carries no checkpoint, by its `reason`.
_ADVICE = {
    STATEFUL: "Start the new query without a fork, and let its source begin at a time or at "
    "offsets of your choice",
    REMOTE: "Start that query with the folder of sparkwal.checkpoint: every later position can be "
    "forked",
    "": "Start that query with a larger checkpointMaxBytes: every later position can be forked",
}
_LATER = "Fork at a later position: sparkwal queries names the first one"
# Numbers of the newest objects that show the newest record.
_FEW = 10


@dataclass(frozen=True)
class Base:
    """The checkpoint from which a forked query begins.

    Attributes:
        log: the log that is forked.
        window: its window.
        origin: the place.
        entry: the checkpoint of the forked query there.
        record: the record that carries it.
        files: the files of the checkpoint, by name.
        newest: the newest record of the log, if it was read.
    """

    log: LogStore
    window: int
    origin: Origin
    entry: Checkpoint
    record: SlotRecord
    files: Mapping[str, bytes]
    newest: SlotRecord | None


@dataclass(frozen=True)
class _Begin:
    """The last live record at or before a position."""

    position: int
    record: SlotRecord

    @property
    def header(self) -> SlotHeader:
        return self.record.header


def find_base(fork: Fork, log: LogStore) -> Base:
    """Find the last commit of the forked query at or before a place.

    For a position it costs 1 GET; 1 more if the record there is not the query's; 1 for each
    compacted list in an earlier record; and 1 LIST for the floor, and 1 GET if the log has a
    lifecycle. If the query reads files, 1 LIST and 1 GET look at the newest record, and at the
    floor only if the position is far from it.

    Raises:
        OptionError: the log does not carry the query's checkpoint at that place, or the store
            refuses to show it.
        CollectedError: a record was collected.
        InvalidLogError: a record is damaged or missing.
    """
    try:
        return _find_base(fork, log)
    except Refusal as refused:
        raise OptionError(
            f"{log.url}, the log that is forked, cannot be read: {refused}. A fork only reads that "
            "log: it needs s3:GetObject and s3:ListBucket there"
        ) from None


def _find_base(fork: Fork, log: LogStore) -> Base:
    begin = _find_begin(fork, log)
    header, window = begin.header, begin.header.window
    query_id = query_id_of(header.log_id, fork.name)
    batch_id, entry = recall(lambda: log, header, query_id)
    if batch_id < 0 or entry is None:
        raise _no_query(fork, log, begin, query_id)
    what = f"cannot fork query {fork.name!r} at position {entry.position} of {log.url}"
    if why := not_carried(entry):
        advice = _LATER if entry.state else _ADVICE.get(entry.reason, "")
        raise OptionError(f"{what}: {why}. {advice}".rstrip(". "))
    record: SlotRecord | None = None
    files: Mapping[str, bytes] = {}
    damage: InvalidLogError | None = None
    newest: SlotRecord | None = None
    try:
        is_own = entry.position == header.position and begin.record.front
        record = begin.record if is_own else read_slot(log, entry.position, window)
        files = packing.read_files(log, window, query_id, entry, record)
    except InvalidLogError as error:
        damage = error
    offsets = by_source(files.get(f"offsets/{batch_id}", b"")) or {}
    if any(listed(offset) is not None for offset in offsets.values()):
        newest = _newest(log, window)
    # The floor is not above the newest record, and a collection leaves records below it.
    is_near = newest is not None and begin.position > newest.header.position - LIST_LIMIT + 1
    if damage is not None or not is_near or entry.state is not None:
        _check_kept(log, begin, query_id, entry if damage or entry.state else None)
    if damage is not None or record is None:
        raise InvalidLogError(f"{what}: {damage}. Restore the record")
    origin = Origin(
        log.identity, header.log_id, query_id, fork.name, fork.text, entry.position, batch_id
    )
    return Base(log, window, origin, entry, record, files, newest)


def _find_begin(fork: Fork, log: LogStore) -> _Begin:
    """Find the last live record at or before the fork's position or moment."""
    window, position = DEFAULT_WINDOW, fork.position
    if position is None:
        window, position = _before_moment(fork, log)
    if position > keys.last_position(window):
        raise OptionError(f"at is {position}: no log has such a position")
    begin = _read(log, position, window)
    if begin is None:
        head = _head_of(log)
        if position > head.position:
            raise after_the_end(log, position, head.position)
        begin = _read(log, position, head.window)
        if begin is None:
            state = chain.newest_lifecycle(log, head.live.header.log_id if head.live else None)
            if state is not None and position < state.floor:
                raise _collected(log, f"position {position}", state.floor, state.floor)
            raise MissingRecord(log, position, head.window)
    # A writer with one request in flight puts no record after a gap. The log may end before a
    # torn record.
    if begin.header.in_flight_limit > 1 or begin.header.position < position:
        end = find_head(log, damage=LENIENT).position
        if position > end:
            raise after_the_end(log, position, end)
    return begin


def _before_moment(fork: Fork, log: LogStore) -> tuple[int, int]:
    """The log's window, and the last position before the fork's moment.

    A record that the fork does not need may be damaged.

    Raises:
        OptionError: no record was written before the moment, or none at it or later. Then the next
            start would find another position, because the log goes on.
        CollectedError: the record before the moment was collected.
        InvalidLogError: the first record at the moment or later is damaged, so its time is unknown.
    """
    head = _head_of(log)
    state = chain.newest_lifecycle(log, head.live.header.log_id if head.live else None)
    first = max(state.floor - LIST_LIMIT, 0) if state else 0
    view = head.view(log, LENIENT)
    position = first_at_or_after(view, fork.moment_ms, start=first, end=head.gap)
    if position > head.position:
        raise OptionError(
            f"{log.url} holds nothing that was written at {fork.text} or later, so each start "
            f"could begin at another place. Fork at its last position, {head.position}, or at an "
            "earlier moment"
        )
    if position == first and state is not None and first:
        raise _collected(log, f"the last commit before {fork.text}", state.floor, state.floor)
    if position == first:
        raise OptionError(
            f"{log.url} holds nothing that was written before {fork.text}, so there is nothing "
            "to continue. Without a fork the query begins with its source's first rows"
        )
    try:
        if live_until(LogView(log, head.window), position, GLANCE) is None:
            raise MissingRecord(log, position, head.window)
    except InvalidLogError as damage:
        raise InvalidLogError(
            f"{damage}. Whether that record was written before {fork.text} is unknown: restore it, "
            "or fork at a position"
        ) from None
    return head.window, position - 1


def _head_of(log: LogStore) -> Head:
    """The head of the log that is forked. Records that the fork does not need may be damaged.

    Raises:
        OptionError: there is no log.
    """
    head = find_head(log, damage=LENIENT)
    if head.live is None:
        raise OptionError(f"there is no log at {log.url}; check the path of the fork")
    return head


def _read(log: LogStore, position: int, window: int) -> _Begin | None:
    """Read the last live record at or before a position. Return None if the slot is empty."""
    slot: Slot | None
    try:
        slot = read_any(log, position, window)
    except WrongWindow as wrong:
        return _read(log, position, wrong.window)
    slot = slot or copied(log, position, window)
    if slot is None:
        return None
    live = settled_run(LogView(log, window), slot).live
    if live is None:
        raise OptionError(
            f"{log.url} holds no record up to position {position}: fork at a later position"
        )
    return _Begin(position, live)


def _newest(log: LogStore, window: int) -> SlotRecord | None:
    """The newest record that a LIST shows: 1 LIST and 1 GET."""
    start = keys.batches_prefix(log.prefix)
    listing = first_entries(log.store, start, _FEW).entries
    names = (keys.listed(entry.key.removeprefix(start)) for entry in listing)
    numbers = [number for number in names if number is not None]
    slots = [keys.position(n, window) for n in numbers if keys.is_slot(n, window)]
    # The slot before a window with data is taken.
    before = [keys.position(n, window) - 1 for n in numbers]
    for position in [*slots[:1], *before[:1]]:
        try:
            record = read_slot(log, position, window) if position >= 0 else None
        except InvalidLogError:
            return None
        if record is not None and record.front:
            return record
    return None


def _check_kept(log: LogStore, begin: _Begin, query_id: str, lost: Checkpoint | None) -> None:
    """Check that no collection may have freed the slot of the record at the fork's place.

    A freed slot may hold the late PUT of a fenced writer.

    Args:
        log: the log.
        begin: the record.
        query_id: the query.
        lost: its checkpoint there, if a record that carries it could not be read, or was not.

    Raises:
        CollectedError: the slot may have been freed, or such a record may have been collected.
    """
    header = begin.header
    state = chain.newest_lifecycle(log, header.log_id)
    if state is None:
        return
    needed = {header.position} | (carrying(lost) if lost else set())
    kept = Kept(state.floor)
    if all(map(kept.holds, needed)):
        return
    head = find_head(log, damage=LENIENT)
    live = head.live.header if head.live else header
    kept = Kept(state.floor, named_records(log, live))
    if all(map(kept.holds, needed)):
        return
    first = state.floor
    _, entry = recall(lambda: log, live, query_id)
    if entry is not None and not not_forkable(log, head.window, query_id, entry, kept):
        first = first_forkable(log, head, query_id, entry, kept, head.position)
    raise _collected(log, f"position {begin.position}", state.floor, first)


def _collected(log: LogStore, what: str, floor: int, first: int) -> CollectedError:
    return CollectedError(
        f"{what} of {log.url}: the record with the query's checkpoint is below the log's floor "
        f"{floor}, and may be deleted. Fork at a position from {first} on, or let the source of a "
        "new query begin at offsets of your choice",
        floor=first,
    )


def _no_query(fork: Fork, log: LogStore, begin: _Begin, query_id: str) -> OptionError:
    """The error for a name that no query with a checkpoint has at the place."""
    header = begin.header
    here = f"up to position {begin.position} of {log.url}"
    if fork.name in header.txns or query_id in header.txns:
        return OptionError(
            f"{fork.name!r} wrote {here} as an appender, as a batch, or before records carried "
            "checkpoints: such commits name no offsets of a source, so there is nothing to fork"
        )
    names = sorted(entry.name or query for query, entry in header.checkpoints.items())
    if not names:
        return OptionError(f"no query wrote anything {here}: fork at a later position")
    return OptionError(
        f"query {fork.name!r} wrote nothing {here}: the queries there are "
        f"{', '.join(map(repr, names[:10]))}. Name one of them, or a later position"
    )
