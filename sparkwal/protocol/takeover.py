"""Becoming the one writer: a leader record in the first gap, then the seals after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparkwal import events
from sparkwal.errors import (
    DivergedCheckpointError,
    FencedError,
    InvalidLogError,
    OptionError,
    StoreUnavailableError,
)
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import SEAL, LeaderHeader, QueryProgress, host_of
from sparkwal.format.merging import merge
from sparkwal.protocol.archive import put_archive, shortened
from sparkwal.protocol.clock import Clock, is_old, next_timestamp, utc
from sparkwal.protocol.handover import Requests
from sparkwal.protocol.hint import FencingNote
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.recovery import DEFAULT_WINDOW, Head, find_head, is_unchanged
from sparkwal.protocol.slots import SlotRecord, read_back, read_slot
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

# How often others may take the gap first; this one asks them to stop meanwhile, for 20 seconds.
ATTEMPTS = 40
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5  # seconds
# How often a second look may take as long as `planTtl` too.
_SLOW_LOOKS = 3


@dataclass(frozen=True)
class Claim:
    """What a writer that wants to lead brings along.

    Attributes:
        leader_id: stays the same over recycled workers of one query.
        plan_id: unique; a read-back compares this and nothing else.
        spark_schema: of the rows to be written (normalized JSON).
        window: the `windowSize` that the user set, or None.
        in_flight_limit: slots this writer will have in flight; the sink: 1.
        log_id: of the log of the writer's checkpoint. A log that this writer begins gets it.
        continues: whether that checkpoint has committed microbatches. Then its log must exist.
        check_place: called before a log begins; raises if no log may be there.
        check_head: called with the head and the log's id before anything is written; may raise.
    """

    leader_id: str
    host: str
    plan_id: str
    spark_schema: str
    merge_schema: bool
    window: int | None
    in_flight_limit: int
    reason: str
    log_id: str | None = None
    continues: bool = False
    check_place: Callable[[LogStore], None] | None = None
    check_head: Callable[[Head, str], None] | None = None
    attempts: int = ATTEMPTS

    def check_window(self, window: int) -> None:
        """Raises OptionError if the user set another window than the log's."""
        if self.window not in (None, window):
            raise OptionError(
                f"windowSize is {self.window}, but this log was created with {window}; "
                "leave the option out, or write to a new path"
            )


def lead(
    log: LogStore, claim: Claim, clock: Clock, ttl_ms: int, known: Leadership | None = None
) -> Leadership:
    """Take over the log: 1 LIST, 1 GET (none when empty), 1 conditional PUT.

    `known` is what this leader led before it slept, or None after a restart. Raises OptionError
    if schema or window contradict the log's, DivergedCheckpointError if the writer's checkpoint is
    of another log, FencedError if others take the gap or led since `known`, StoreUnavailableError
    if no look is shorter than `ttl_ms`; InvalidLogError.
    """
    asks = Requests(log, claim.leader_id)
    try:
        looked_ms, head, header, spark_schema = _take_gap(log, claim, clock, ttl_ms, known, asks)
    finally:
        asks.withdraw()
    # As many as the former leader could have in flight, not as many as this one will.
    reach = head.in_flight_limit
    # SAFETY(seal-the-zone) §5: the m−1 slots after the leader record are sealed before other writes
    _seal(log, header, spark_schema, reach, head.after)
    # This writer may have slept since its look: its PUTs then lie outside of the log.
    if is_old(clock, looked_ms, clock.boot_id(), ttl_ms):
        live = find_head(log, header.window).live
        if live is None:
            raise FencedError(
                f"this process slept while it took {log.url} over, and the log is gone; start again"
            )
        if (live.header.log_id, live.header.term) != (header.log_id, header.term):
            raise fenced(log, live)
    events.emit(events.LeaderClaimed(log.url, header.position, header.term, claim.leader_id))
    return Leadership(
        log_id=header.log_id,
        leader_id=claim.leader_id,
        host=claim.host,
        term=header.term,
        window=header.window,
        began=header.position,
        next_position=header.position + reach,
        in_flight_limit=claim.in_flight_limit,
        txns=header.txns,
        checkpoints=header.checkpoints,
        txns_archive=header.txns_archive,
        timestamp_ms=header.timestamp_ms,
        spark_schema=spark_schema,
    )


def _take_gap(
    log: LogStore,
    claim: Claim,
    clock: Clock,
    ttl_ms: int,
    known: Leadership | None,
    requests: Requests,
) -> tuple[int, Head, LeaderHeader, str]:
    """Put our leader record into the first gap: (when it looked, the head, header, schema)."""
    pause = _FIRST_PAUSE
    for attempt in range(claim.attempts):
        looked_ms, boot_id = clock.boot_ms(), clock.boot_id()
        # SAFETY(read-all-after-gap) §4: a writer reads all records after the gap before it leads
        head = find_head(log, claim.window or DEFAULT_WINDOW, thorough=True)
        _check_head(log, head, claim, known)
        if attempt == 0 and head.live is None and claim.check_place is not None:
            claim.check_place(log)
        events.emit(events.Recovered(path=log.url, position=head.position))
        header, spark_schema, archived = _leader_header(log, head, claim, clock)
        if claim.check_head is not None:
            claim.check_head(head, header.log_id)
        # SAFETY(archive-first) §5: the archive is durable before the leader record that names it
        put_archive(log, header.txns_archive, archived)
        if is_old(clock, looked_ms, boot_id, ttl_ms):
            again_ms = _look_again(log, head, clock, ttl_ms)
            if again_ms is None:
                continue
            looked_ms = again_ms
        # Into the FIRST gap, so that no late PUT of the former leader can fill it.
        if put_leader(log, header, spark_schema):
            return looked_ms, head, header, spark_schema
        # Look again, never overwrite. A leader with many slots in flight is faster each time.
        if head.live is not None:
            # SAFETY(loser-asks) §7: a newcomer that loses the race asks for the log
            # SAFETY(request-no-right) §7: only a record in the first gap makes a leader
            requests.ask(head.live.header)
        clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    raise FencedError(
        f"other writers took the next position of {log.url} {claim.attempts} times "
        "while this one tried to lead; stop all writers of this log but one"
    )


def _look_again(log: LogStore, head: Head, clock: Clock, ttl_ms: int) -> int | None:
    """When a short look, after one that took `ttl_ms`, found the same head; None if it found
    another: others may have filled the gap, and what they wrote may be collected. Raises
    StoreUnavailableError if the short look takes as long."""
    for _ in range(_SLOW_LOOKS):
        looked_ms, boot_id = clock.boot_ms(), clock.boot_id()
        if not is_unchanged(log, head):
            return None
        if not is_old(clock, looked_ms, boot_id, ttl_ms):
            return looked_ms
    took = (clock.boot_ms() - looked_ms) / 1000
    raise StoreUnavailableError(
        f"a look at {log.url} takes {took:.1f} s, and counts for {ttl_ms / 1000:.1f} s "
        "(planTtl). Nothing was written: run again once the store is faster, or raise planTtl"
    )


def _check_head(log: LogStore, head: Head, claim: Claim, known: Leadership | None) -> None:
    """Raises InvalidLogError where the log lost its beginning, DivergedCheckpointError if the rows
    of the writer's checkpoint are in another log, FencedError if another led since `known`."""
    if head.oldest:
        # It was deleted while a writer went on. Readers would never reach a new record.
        number = keys.slot(0, head.window)
        raise InvalidLogError(
            f"the record of position 0 is missing ({log.locate(number)}), yet the log has one at "
            f"position {head.oldest}: its beginning was deleted. Restore it, or delete the rest to "
            "begin a new log here. Nothing was written"
        )
    found = head.live.header.log_id if head.live else None
    if found is None and claim.continues:
        raise DivergedCheckpointError(
            f"the checkpoint goes on in the log {claim.log_id}, but there is no log at {log.url}: "
            "it was deleted. Nothing was written. sparkwal.checkpoint(path, name) makes the "
            "checkpoint of a new query, which begins with the source's first rows"
        )
    # SAFETY(checkpoint-of-this-log) §12: a checkpoint writes only to the log that its log_id names
    if found and claim.log_id and found != claim.log_id:
        raise DivergedCheckpointError(
            f"the checkpoint belongs to the log {claim.log_id}, but {log.url} holds the log "
            f"{found}: it was deleted and recreated, or another writer began it first. "
            "Nothing was written. sparkwal.checkpoint(path, name) makes the checkpoint anew"
        )
    if head.live and known:
        live = head.live.header
        is_newer = live.log_id != known.log_id or live.term > known.term
        if is_newer and live.leader_id != claim.leader_id:
            raise fenced(log, head.live)


def _leader_header(
    log: LogStore, head: Head, claim: Claim, clock: Clock
) -> tuple[LeaderHeader, str, bytes]:
    """The leader record's header, the log's schema, and the archive to put before the record."""
    live = head.live.header if head.live else None
    window = head.window if live else (claim.window or DEFAULT_WINDOW)
    claim.check_window(window)
    spark_schema = claim.spark_schema
    progress, archived = QueryProgress({}, {}), b""
    if head.live is not None:
        known = head.live.spark_schema
        spark_schema = merge(known, spark_schema, allow_new=claim.merge_schema)
        progress, archived = shortened(log, head.live.header, claim.plan_id)
    header = LeaderHeader(
        # The plan_id is random and unique to this claim, so it can be the id of a new log.
        # SAFETY(log-id-from-checkpoint) §12: a log gets the log_id that its first checkpoint drew
        log_id=live.log_id if live else claim.log_id or claim.plan_id,
        number=keys.slot(head.gap, window),
        # SAFETY(leader-in-gap) §5: a leader record goes to the first gap itself
        position=head.gap,
        window=window,
        leader_id=claim.leader_id,
        # Strictly higher: PUTs of the former leader that arrive later are dead records.
        # SAFETY(higher-term) §5: a leader's term is higher than that of the last live record
        term=live.term + 1 if live else 1,
        plan_id=claim.plan_id,
        # SAFETY(limit-covers-former) §3: a leader record carries max(own, live head's limit)
        in_flight_limit=max(claim.in_flight_limit, head.in_flight_limit),
        timestamp_ms=next_timestamp(clock.now_ms(), live.timestamp_ms if live else 0),
        schema_crc32=arrowfile.schema_crc(spark_schema),
        prev_position=head.position,
        # Seals carry the same: the zone's other seals may still be missing.
        decided=head.position,
        # SAFETY(inherit-txns) §5: a leader inherits txns from the last live record
        txns=progress.txns,
        # SAFETY(inherit-checkpoints) §12: a leader inherits checkpoints from the last live record
        checkpoints=progress.checkpoints,
        # SAFETY(leader-names-archive) §5: a leader record names the archive
        txns_archive=progress.txns_archive,
        reason=claim.reason,
        host=claim.host,
    )
    return header, spark_schema, archived


def put_leader(log: LogStore, header: LeaderHeader, spark_schema: str) -> bool:
    """Whether the record is in its slot now; False if another one is there."""
    data = arrowfile.encode(header, spark_schema)
    if log.store.put_if_absent(log.key(header.number), data):
        return True
    # The slot is taken, perhaps by our own PUT whose reply was lost.
    found = read_back(log, header.position, header.window, data)
    # SAFETY(leader-read-back) §5: a refused leader record counts only if all of it is there
    return found is not None and found[1]


def _seal(
    log: LogStore, leader: LeaderHeader, spark_schema: str, reach: int, there: Sequence[SlotRecord]
) -> None:
    """Decide every slot that the former leader could still reach, `reach` from the gap on, but for
    records of a lower term that are `there`: its late PUTs could land between ours."""

    def seal(position: int) -> None:
        number = keys.slot(position, leader.window)
        # SAFETY(seal-limit) §3: a seal carries the limit of its leader record
        # SAFETY(seal-decided) §4: a seal claims as decided only what its leader record claims
        header = replace(leader, number=number, position=position, reason=SEAL)
        if put_leader(log, header, spark_schema):
            return
        found = read_slot(log, position, leader.window)
        if found is None:
            raise deleted(log, position)
        # A record of a lower term is dead, and decides its slot.
        # SAFETY(refused-seal-fences) §5: a seal refused by an equal or higher term means fenced
        if found.header.term >= leader.term:
            raise fenced(log, found)

    dead = {record.header.position for record in there if record.header.term < leader.term}
    zone = range(leader.position + 1, leader.position + reach)
    list(run_parallel(log.store, seal, (each for each in zone if each not in dead)))


def deleted(log: LogStore, position: int) -> InvalidLogError:
    """The error for a slot that refused a PUT and holds no record."""
    return InvalidLogError(
        f"the record of position {position} of {log.url} was there and is gone: restore it"
    )


def fenced(log: LogStore, other: SlotRecord) -> FencedError:
    """The error that names the leader of the log."""
    it, host = other.header, host_of(other.header)
    return fenced_by(log, FencingNote(it.leader_id, host, it.position, it.term, it.timestamp_ms))


def fenced_by(log: LogStore, note: FencingNote) -> FencedError:
    """As `fenced`, for a leader known from a note instead of its record."""
    events.emit(events.Fenced(log.url, note.position, note.leader_id, note.term))
    leader = (
        f"another writer leads {log.url}: leader {note.leader_id} on host {note.host} "
        f"holds position {note.position} (term {note.term}) since {utc(note.timestamp_ms)}"
    )
    return FencedError(
        f"{leader}. This writer commits nothing more. Stop one of the two; a restart with the "
        "same checkpoint takes the log over again",
        leader=leader,
    )
