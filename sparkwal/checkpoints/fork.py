"""Finds the place in another log from which a query is forked (PROTOCOL §12)."""

import dataclasses
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sparkwal.checkpoints import carry
from sparkwal.checkpoints.offsets import by_source, listed
from sparkwal.errors import CollectedError, InvalidLogError, OptionError
from sparkwal.format import keys
from sparkwal.format.header import REMOTE, STATEFUL, Checkpoint, Origin, SlotHeader
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import timestamp
from sparkwal.protocol import chain
from sparkwal.protocol.archive import recall
from sparkwal.protocol.records import first_at_or_after
from sparkwal.protocol.recovery import DEFAULT_WINDOW, LIST_LIMIT, find_head, last_live
from sparkwal.protocol.slots import (
    SlotRecord,
    TornRecord,
    WrongWindow,
    fetch_slot,
    open_again,
    open_slot,
)
from sparkwal.store.base import LogStore, first_entries
from sparkwal.store.path import absolute

# The advice for a record that carries no checkpoint, by its `reason`.
_NOT_CARRIED = {
    STATEFUL: "the query is stateful there, and its state is not in the log. Start the new query "
    "without a fork, and let its source begin at a time or at offsets of your choice",
    REMOTE: "its checkpoint was not on the driver's disk there, so the record carries nothing of "
    "it. Start that query with the folder of sparkwal.checkpoint: every later position can be "
    "forked",
}
# Numbers of the newest objects that show the newest record.
_FEW = 10


class Fork:
    """The place in another log at which a new query begins.

    The new query continues after the last commit of the query `name` at or before `at`, with the
    source's offsets of that commit. `sparkwal.checkpoint` takes it as `fork`.

    Examples:
        >>> fork = sparkwal.Fork("s3://bucket/wal", "orders", at=70_412)
        >>> folder = sparkwal.checkpoint("s3://bucket/wal-v2", "orders-v2", fork=fork)

    Args:
        path: the path of the log that holds the query.
        name: the name of the query, as for `sparkwal.checkpoint`, or its id.
        at: a position of that log; or a moment, as for `startingTimestamp`: the new query then
            writes again what that log holds since that moment.
        **options: options of that log's store, and its `sequencer`. The default is those of
            `sparkwal.checkpoint`, without the sequencer.

    Raises:
        OptionError: an argument is wrong.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        at: int | str | datetime,
        **options: object,
    ) -> None:
        self.path = path
        self.name = check_name(name)
        self.at = at
        self._options = options
        position, moment_ms = parse_at(at)
        self.position = position
        self.moment_ms = moment_ms or 0

    def __repr__(self) -> str:
        return f"Fork({str(self.path)!r}, {self.name!r}, at={self.text!r})"

    @property
    def text(self) -> str:
        """The place as a text: digits for a position."""
        if self.position is not None:
            return str(self.position)
        moment = datetime.fromtimestamp(self.moment_ms / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def open_forked(fork: Fork, inherited: Mapping[str, object]) -> LogStore:
    """Open the log that is forked, without a request.

    Args:
        fork: the fork.
        inherited: the options of the new log's store.

    Raises:
        OptionError: an option or the path is wrong.
    """
    own = {name.lower() for name in fork._options} | {"sequencer"}
    of_store = {field.metadata["name"].lower() for field in dataclasses.fields(StoreOptions)}
    options = {
        name: value
        for name, value in inherited.items()
        if name.lower() in of_store and name.lower() not in own
    }
    parsed = from_keywords(StoreOptions, fork.path, {**options, **fork._options})
    parsed = dataclasses.replace(parsed, path=absolute(parsed.path))
    return open_log(parsed, fail_fast=True)


def parse_at(at: int | str | datetime) -> tuple[int | None, int | None]:
    """Parse a place in a log.

    Returns:
        The position or None, and the moment in milliseconds since 1970 or None.

    Raises:
        OptionError: it is neither a position nor a moment.
    """
    if isinstance(at, int) and not isinstance(at, bool) and at >= 0:
        return at, None
    try:
        if not isinstance(at, (str, datetime)):
            raise ValueError
        return None, timestamp(at if isinstance(at, str) else at.isoformat())
    except ValueError:
        raise OptionError(
            f"at is {str(at)[:80]!r}; a position such as 70412 or a moment such as "
            "2026-01-31T12:00:00Z is expected"
        ) from None


def check_name(name: object) -> str:
    """Check the name of a query.

    Raises:
        OptionError: it is no short printable text.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
        raise OptionError(f"name is {repr(name)[:80]}; a short printable text is expected")
    return name


def query_id_of(log_id: str, name: str) -> str:
    """The id of a query of a log. `name` may be the id itself."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"sparkwal:{log_id}/{name}"))


@dataclass(frozen=True)
class Base:
    """The checkpoint from which a forked query begins.

    Attributes:
        log: the log that is forked.
        window: its window.
        origin: the place.
        entry: the checkpoint of the forked query there.
        front: the first bytes of the record that carries it.
        newest: the newest record of the log, if it was read, and its first bytes.
    """

    log: LogStore
    window: int
    origin: Origin
    entry: Checkpoint
    front: bytes
    newest: tuple[SlotRecord, bytes] | None


@dataclass(frozen=True)
class _Begin:
    """The last live record at or before a position, and its first bytes if it is at it."""

    position: int
    record: SlotRecord
    front: bytes | None

    @property
    def header(self) -> SlotHeader:
        return self.record.header


def find_base(fork: Fork, log: LogStore) -> Base:
    """Find the last commit of the forked query at or before a place.

    For a position it costs 1 GET; 1 more if the record there is not the query's; and 1 LIST for
    the floor, and 1 GET if the log has a lifecycle. If the query reads files, 1 LIST and 1 GET look
    at the newest record, and at the floor only if the position is far from it.

    Raises:
        OptionError: the log does not carry the query's checkpoint at that place.
        CollectedError: the record was collected.
        InvalidLogError: a record is damaged or missing.
    """
    begin = _find_begin(fork, log)
    header, window = begin.header, begin.header.window
    query_id = query_id_of(header.log_id, fork.name)
    batch_id, entry = recall(lambda: log, header, query_id)
    if batch_id < 0 or entry is None:
        raise _no_query(fork, log, begin, query_id)
    what = f"cannot fork query {fork.name!r} at position {entry.position} of {log.url}: "
    if entry.reason:
        raise OptionError(what + _NOT_CARRIED.get(entry.reason, "the record carries nothing of it"))
    if too_large := entry.too_large:
        raise OptionError(
            f"{what}{too_large[0]} was larger than checkpointMaxBytes there. Start that query with "
            "a larger checkpointMaxBytes: every later position can be forked"
        )
    is_own = begin.front is not None and entry.position == header.position
    front = begin.front if is_own else fetch_slot(log, entry.position, window)
    newest = None
    if isinstance(front, bytes):
        block = carry.read_block(log, window, query_id, entry.position, front)
        record = open_slot(log, entry.position, window, front)
        # In a freed slot another record may lie.
        if record is None or record.header.checkpoints.get(query_id) != entry:
            raise InvalidLogError(f"{what}that record is not the one which later records name")
        offsets = by_source(block.get(f"offsets/{batch_id}", b"")) or {}
        if any(listed(offset) is not None for offset in offsets.values()):
            newest = _newest(log, window)
    # The floor is not above the newest record, and a collection leaves records below it.
    is_near = newest is not None and begin.position > newest[0].header.position - LIST_LIMIT + 1
    if not is_near:
        _check_kept(log, begin)
    if not isinstance(front, bytes):
        raise InvalidLogError(
            f"{what}the record of position {entry.position} is missing, and it holds the "
            "checkpoint. Restore it"
        )
    origin = Origin(
        log.identity, header.log_id, query_id, fork.name, fork.text, entry.position, batch_id
    )
    return Base(log, window, origin, entry, front, newest)


def check_same_fork(
    fork: Fork, forked: LogStore, log: LogStore, name: str, origin: Origin | None
) -> None:
    """Check that a query which the log holds began with this fork.

    It costs no request, unless the fork names its log by another path or endpoint than then.

    Raises:
        OptionError: the query began elsewhere.
    """
    if origin is not None:
        is_place = fork.text in (origin.at, str(origin.position))
        is_query = query_id_of(origin.log_id, fork.name) == origin.query_id
        if is_place and is_query:
            if forked.identity == origin.log:
                return
            live = find_head(forked).live
            if live is not None and live.header.log_id == origin.log_id:
                return
    began = carry.beginning(origin)
    if origin is not None and origin.at != str(origin.position):
        began = f"{began} (at={origin.at})"
    raise OptionError(
        f"query {name!r} of {log.url} began {began}, and fork is {fork.name!r} at {fork.text} of "
        f"{forked.identity}. A query begins once: remove the fork or give the same one. For "
        "another begin use another name and another log"
    )


def _find_begin(fork: Fork, log: LogStore) -> _Begin:
    """Find the last live record at or before the fork's position or moment."""
    window = DEFAULT_WINDOW
    position = fork.position
    if position is None:
        head = find_head(log)
        if head.live is None:
            raise OptionError(f"there is no log at {log.url}; check the path of the fork")
        window = head.window
        state = chain.newest_lifecycle(log, head.live.header.log_id)
        first = max(state.floor - LIST_LIMIT, 0) if state else 0
        position = first_at_or_after(log, head, fork.moment_ms, start=first) - 1
        if position < first:
            if state is not None and first:
                raise _collected(log, f"the last commit before {fork.text}", state.floor)
            raise OptionError(
                f"{log.url} holds nothing that was written before {fork.text}, so there is nothing "
                "to continue. Without a fork the query begins with its source's first rows"
            )
    if position > keys.last_position(window):
        raise OptionError(f"at is {position}: no log has such a position")
    begin = _read(log, position, window)
    if begin is None:
        head = find_head(log)
        if head.live is None:
            raise OptionError(f"there is no log at {log.url}; check the path of the fork")
        if position > head.position:
            raise after_the_end(log, position, head.position)
        begin = _read(log, position, head.window)
        if begin is None:
            state = chain.newest_lifecycle(log, head.live.header.log_id)
            if state is not None and position < state.floor:
                raise _collected(log, f"position {position}", state.floor)
            raise InvalidLogError(f"position {position} of {log.url} is missing. Restore it")
    # A writer with one request in flight puts no record after a gap.
    if begin.header.in_flight_limit > 1 and position > (end := find_head(log).position):
        raise after_the_end(log, position, end)
    return begin


def _read(log: LogStore, position: int, window: int) -> _Begin | None:
    """Read the last live record at or before a position. Return None if the slot is empty."""
    for at in range(position, -1, -1):
        try:
            front = fetch_slot(log, at, window)
            record = open_again(log, at, window, front)
        except WrongWindow as wrong:
            return _read(log, position, wrong.window)
        except TornRecord:
            continue
        if record is None:
            return None
        live = last_live(log, record)
        is_own = live is record and isinstance(front, bytes)
        return _Begin(position, live, front if is_own and isinstance(front, bytes) else None)
    return None


def _newest(log: LogStore, window: int) -> tuple[SlotRecord, bytes] | None:
    """The newest record that a LIST shows, and its first bytes: 1 LIST and 1 GET."""
    start = keys.batches_prefix(log.prefix)
    listing = first_entries(log.store, start, _FEW).entries
    names = (keys.listed(entry.key.removeprefix(start)) for entry in listing)
    numbers = [number for number in names if number is not None]
    slots = [keys.position(n, window) for n in numbers if keys.is_slot(n, window)]
    # The slot before a window with data is taken.
    before = [keys.position(n, window) - 1 for n in numbers]
    for position in [*slots[:1], *before[:1]]:
        front = fetch_slot(log, position, window) if position >= 0 else None
        try:
            record = open_again(log, position, window, front)
        except InvalidLogError:
            return None
        if record is not None and isinstance(front, bytes):
            return record, front
    return None


def _check_kept(log: LogStore, begin: _Begin) -> None:
    """Check that no collection may have freed the slot of the record at the fork's place.

    A freed slot may hold the late PUT of a fenced writer.

    Raises:
        CollectedError: the slot may have been freed.
    """
    header = begin.header
    state = chain.newest_lifecycle(log, header.log_id)
    if state is None or header.position >= state.floor - LIST_LIMIT:
        return
    live = find_head(log).live
    entries = live.header.checkpoints.values() if live else ()
    named = {other.position for other in entries}
    named.update(position for other in entries for position, _ in other.files.values())
    if header.position not in named:
        raise _collected(log, f"position {begin.position}", state.floor)


def _collected(log: LogStore, what: str, floor: int) -> CollectedError:
    return CollectedError(
        f"{what} of {log.url} lies below the log's floor {floor}: the record with the query's "
        f"checkpoint may be deleted. Fork at a position from {floor} on, or let the source of a "
        "new query begin at offsets of your choice",
        floor=floor,
    )


def after_the_end(log: LogStore, position: int, last: int) -> OptionError:
    """The error for a position that the log does not have."""
    return OptionError(
        f"at is {position}, and the last position of {log.url} is {last}: fork at a position that "
        "the log has"
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
    others = (
        f"the queries there are {', '.join(map(repr, names[:10]))}" if names else "no query did"
    )
    return OptionError(
        f"query {fork.name!r} wrote nothing {here}: {others}. Name one of them, or a later position"
    )
