"""Takes a log over: a leader record in the first gap, then the seals after it."""

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
from sparkwal.protocol.hint import LeaderNote
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.liveness import report_passed
from sparkwal.protocol.recovery import DEFAULT_WINDOW, Head, find_head, is_unchanged
from sparkwal.protocol.slots import SlotRecord, TornRecord, read_any, read_back
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

# The number of times that others may take the gap first. This newcomer asks them to stop meanwhile,
# for 20 seconds.
ATTEMPTS = 40
# The first and the longest pause, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# The number of short looks that may take as long as `planTtl` too.
_SLOW_LOOKS = 3


@dataclass(frozen=True)
class Claim:
    """The parameters of a writer that wants to lead.

    Attributes:
        leader_id: stays the same over recycled workers of one query.
        host: the writer's host.
        plan_id: unique; a read-back compares only this.
        spark_schema: the schema of the rows (normalized JSON).
        merge_schema: whether the schema may add columns.
        window: the `windowSize` that the user set, or None.
        in_flight_limit: the number of slots that this writer will have in flight; the sink: 1.
        reason: for people.
        log_id: the log of the writer's checkpoint. A log that this writer begins gets it.
        continues: that checkpoint has committed microbatches, so its log must exist.
        check_place: called before a log begins; raises if no log may be at this path.
        check_head: called with the head and the log's id before any write; may raise.
        attempts: see `ATTEMPTS`.
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
        """Check the window that the user set.

        Raises:
            OptionError: the log has another window.
        """
        if self.window not in (None, window):
            raise OptionError(
                f"windowSize is {self.window}, but this log was created with {window}; "
                "leave the option out, or write to a new path"
            )


def lead(
    log: LogStore, claim: Claim, clock: Clock, ttl_ms: int, former: Leadership | None = None
) -> Leadership:
    """Take over the log: 1 LIST, 1 GET (none if it is empty), 1 conditional PUT.

    Args:
        log: the log.
        claim: the writer.
        clock: the clock.
        ttl_ms: how long a look counts.
        former: the leadership of this writer before it slept, or None after a restart.

    Raises:
        OptionError: schema or window contradict the log's.
        DivergedCheckpointError: the writer's checkpoint belongs to another log.
        FencedError: others took the gap, or led since `former`.
        StoreUnavailableError: every look took longer than `ttl_ms`.
        InvalidLogError: the log is damaged.
    """
    requests = Requests(log, claim.leader_id)
    for _ in range(claim.attempts):
        try:
            gap = _take_gap(log, claim, clock, ttl_ms, former, requests)
        finally:
            requests.withdraw()
        header = gap.header
        # The number of slots that the former leader may reach, which may differ from the new limit.
        reach = gap.head.in_flight_limit
        # SAFETY(seal-the-zone) §5: the m−1 slots after the leader record are sealed before other
        # writes
        if _seal(log, header, gap.spark_schema, reach, gap.head.after):
            break
    else:
        raise _outrun(log, claim)
    # If this writer slept since its look, its PUTs may lie outside of the log.
    if is_old(clock, gap.looked_ms, clock.boot_id(), ttl_ms):
        live = find_head(log, header.window).live
        if live is None:
            raise FencedError(
                f"this process slept while it took {log.url} over, and the log was deleted; start "
                "again"
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
        spark_schema=gap.spark_schema,
    )


@dataclass(frozen=True)
class _Gap:
    """The first gap, which now holds our leader record.

    Attributes:
        looked_ms: the time of the look that found the gap.
        head: the head before the gap.
        header: the header of the leader record.
        spark_schema: the log's schema.
    """

    looked_ms: int
    head: Head
    header: LeaderHeader
    spark_schema: str


def _take_gap(
    log: LogStore,
    claim: Claim,
    clock: Clock,
    ttl_ms: int,
    former: Leadership | None,
    requests: Requests,
) -> _Gap:
    """Put our leader record into the first gap."""
    pause = _FIRST_PAUSE
    for attempt in range(claim.attempts):
        looked_ms, boot_id = clock.boot_ms(), clock.boot_id()
        # SAFETY(read-all-after-gap) §4: a writer reads all records after the gap before it leads
        head = find_head(log, claim.window or DEFAULT_WINDOW, thorough=True)
        _check_head(log, head, claim, former)
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
        # Use the FIRST gap, so that no late PUT of the former leader can fill it.
        if put_leader(log, header, spark_schema):
            report_passed(log, head.torn)
            return _Gap(looked_ms, head, header, spark_schema)
        # Look again, never overwrite. A leader with many slots in flight is always faster.
        if head.live is not None:
            # SAFETY(loser-asks) §7: a newcomer that loses the race asks for the log
            # SAFETY(request-no-right) §7: only a record in the first gap makes a leader
            requests.ask(head.live.header)
        clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    raise _outrun(log, claim)


def _outrun(log: LogStore, claim: Claim) -> FencedError:
    return FencedError(
        f"other writers took the next position of {log.url} {claim.attempts} times "
        "while this one tried to lead; stop all writers of this log but one"
    )


def _look_again(log: LogStore, head: Head, clock: Clock, ttl_ms: int) -> int | None:
    """Check, after a look that took `ttl_ms`, that a short look finds the same head.

    Returns:
        The time of the short look. None if the head has changed: others may have filled the gap,
        and a collection may have deleted their records.

    Raises:
        StoreUnavailableError: the short look takes as long.
    """
    for _ in range(_SLOW_LOOKS):
        looked_ms, boot_id = clock.boot_ms(), clock.boot_id()
        if not is_unchanged(log, head):
            return None
        if not is_old(clock, looked_ms, boot_id, ttl_ms):
            return looked_ms
    took = (clock.boot_ms() - looked_ms) / 1000
    raise StoreUnavailableError(
        f"a look at {log.url} takes {took:.1f} s, and counts for {ttl_ms / 1000:.1f} s "
        "(planTtl). sparkwal wrote nothing: run again once the store is faster, or raise planTtl"
    )


def _check_head(log: LogStore, head: Head, claim: Claim, former: Leadership | None) -> None:
    """Check that this writer may lead the log.

    Raises:
        InvalidLogError: the log lost its beginning.
        DivergedCheckpointError: the rows of the writer's checkpoint are in another log.
        FencedError: another writer led since `former`.
    """
    if head.oldest:
        # The log was deleted while a writer continued. Readers would never reach a new record.
        number = keys.slot(0, head.window)
        raise InvalidLogError(
            f"the record of position 0 is missing ({log.locate(number)}), yet the log has one at "
            f"position {head.oldest}: its beginning was deleted. Restore it, or delete the rest to "
            "begin a new log here. sparkwal wrote nothing"
        )
    log_id = head.live.header.log_id if head.live else None
    if log_id is None and claim.continues:
        raise DivergedCheckpointError(
            f"the checkpoint continues the log {claim.log_id}, but there is no log at {log.url}: "
            "it was deleted. sparkwal wrote nothing. sparkwal.checkpoint(path, name) makes the "
            "checkpoint of a new query, which begins with the source's first rows"
        )
    # SAFETY(checkpoint-of-this-log) §12: a checkpoint writes only to the log that its log_id names
    if log_id and claim.log_id and log_id != claim.log_id:
        raise DivergedCheckpointError(
            f"the checkpoint belongs to the log {claim.log_id}, but {log.url} holds the log "
            f"{log_id}: it was deleted and recreated, or another writer began it first. "
            "sparkwal wrote nothing. sparkwal.checkpoint(path, name) recreates the checkpoint"
        )
    if head.live and former:
        live = head.live.header
        is_newer = live.log_id != former.log_id or live.term > former.term
        if is_newer and live.leader_id != claim.leader_id:
            raise fenced(log, head.live)


def _leader_header(
    log: LogStore, head: Head, claim: Claim, clock: Clock
) -> tuple[LeaderHeader, str, bytes]:
    """Build the leader record's header. Returns it with the log's schema and the archive to put
    first."""
    live = head.live.header if head.live else None
    window = head.window if live else (claim.window or DEFAULT_WINDOW)
    claim.check_window(window)
    spark_schema = claim.spark_schema
    progress, archived = QueryProgress({}, {}), b""
    if head.live is not None:
        spark_schema = merge(head.live.spark_schema, spark_schema, allow_new=claim.merge_schema)
        progress, archived = shortened(log, head.live.header, claim.plan_id)
    header = LeaderHeader(
        # The plan_id is random and unique to this claim, so it can be the id of a new log.
        # SAFETY(log-id-from-checkpoint) §12: a log gets the log_id that its first checkpoint drew
        log_id=live.log_id if live else claim.log_id or claim.plan_id,
        number=keys.slot(head.free, window),
        # SAFETY(leader-in-gap) §5: a leader record goes to the first free slot itself
        position=head.free,
        window=window,
        leader_id=claim.leader_id,
        # The term is strictly higher, so PUTs of the former leader that arrive later are dead
        # records.
        # SAFETY(higher-term) §5: a leader's term is higher than that of the last live record
        term=live.term + 1 if live else 1,
        plan_id=claim.plan_id,
        # SAFETY(limit-covers-former) §3: a leader record carries max(own, live head's limit)
        in_flight_limit=max(claim.in_flight_limit, head.in_flight_limit),
        timestamp_ms=next_timestamp(clock.now_ms(), live.timestamp_ms if live else 0),
        schema_crc32=arrowfile.schema_crc(spark_schema),
        prev_position=head.position,
        # Seals carry the same number: other seals of the zone may still be missing.
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
    """Put a leader record or a seal. Returns whether its slot holds it now."""
    data = arrowfile.encode(header, spark_schema)
    if log.store.put_if_absent(log.key(header.number), data):
        return True
    # The slot is taken, perhaps by our own PUT whose reply was lost.
    try:
        stored = read_back(log, header, data)
    except TornRecord:
        return False
    # SAFETY(leader-read-back) §5: a refused leader record counts only if all of it is there
    return stored is not None and stored[1]


def _seal(
    log: LogStore, leader: LeaderHeader, spark_schema: str, reach: int, after: Sequence[SlotRecord]
) -> bool:
    """Seal the slots that the former leader could still reach: `reach` slots from the gap on.

    Without seals its late PUTs could land between ours. A record of a lower term among those read
    `after` the gap is dead, so its slot needs no seal.

    Returns:
        False if a torn record lies in one of the slots. It ends the run of this leader too.
    """

    def seal(position: int) -> bool:
        number = keys.slot(position, leader.window)
        # SAFETY(seal-limit) §3: a seal carries the limit of its leader record
        # SAFETY(seal-decided) §4: a seal claims as decided only what its leader record claims
        header = replace(leader, number=number, position=position, reason=SEAL)
        if put_leader(log, header, spark_schema):
            return True
        record = read_any(log, position, leader.window)
        if record is None:
            raise deleted(log, position)
        # SAFETY(torn-seal) §5: a leader that finds a torn record in the zone leads again
        if isinstance(record, TornRecord):
            return False
        # A record of a lower term is dead, so its slot is decided.
        # SAFETY(refused-seal-fences) §5: a seal refused by an equal or higher term means fenced
        if record.header.term >= leader.term:
            raise fenced(log, record)
        return True

    dead = {record.header.position for record in after if record.header.term < leader.term}
    zone = range(leader.position + 1, leader.position + reach)
    unsealed = (position for position in zone if position not in dead)
    return all([*run_parallel(log.store, seal, unsealed)])


def deleted(log: LogStore, position: int) -> InvalidLogError:
    """The error for a slot that refused a PUT and holds no record."""
    return InvalidLogError(
        f"the record of position {position} of {log.url} existed and was deleted: restore it"
    )


def fenced(log: LogStore, other: SlotRecord) -> FencedError:
    """The error that names the leader of the log."""
    header = other.header
    leader = LeaderNote(
        header.leader_id,
        host_of(header),
        header.position,
        header.term,
        header.timestamp_ms,
    )
    return fenced_by(log, leader)


def fenced_by(log: LogStore, note: LeaderNote) -> FencedError:
    """The error that names the leader of the log, from a note instead of its record."""
    events.emit(events.Fenced(log.url, note.position, note.leader_id, note.term))
    leader = (
        f"another writer leads {log.url}: leader {note.leader_id} on host {note.host} "
        f"holds position {note.position} (term {note.term}) since {utc(note.timestamp_ms)}"
    )
    return FencedError(
        f"{leader}. This writer commits no more. Stop one of the two; a restart with the "
        "same checkpoint takes the log over again",
        leader=leader,
    )
