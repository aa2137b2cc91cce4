"""Decides when rows of a log go to the table, and up to which commit time.

Rows arrive late and out of order, so rows that are younger than a window stay in the log: then
ranges overlap less. A log without a commit in that window is cold, and all of its rows go.
`measure` reads the state of the log with few requests, and `decide` picks the commit time that
splits it. No decision can lose or duplicate a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.format.lifecycle_record import LogInChain
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import boolean, duration, integer, one_of, option, size
from sparkwal.options.writing import check_limits
from sparkwal.protocol.liveness import last_live
from sparkwal.protocol.records import about_bytes, first_at_or_after
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_any
from sparkwal.protocol.view import LogView
from sparkwal.reading.segments import read_records
from sparkwal.store.base import LogStore, numbered

# S3 refuses requests from a clock that is further off. A record that is dated further ahead of this
# machine's clock is misdated: to wait for its date might take years.
MISDATED_MS = 15 * 60_000
_SMALLEST_GRACE_MS = 3_600_000
# The values of refusedRows.
WAIT, ASIDE = "wait", "aside"
# The number of records that are read to estimate the size of the waiting rows.
_SAMPLES = 32
# The most records that one call of `measure` counts. The next call continues after them.
MOST_COUNTED = 10_000


@dataclass(frozen=True)
class Policy:
    """When rows go to the table and leave the log. Any of the three thresholds is sufficient."""

    late_window_seconds: int = option(
        "lateArriveWindowSeconds",
        integer,
        300,
        "rows stay only in the log for this long, so that late rows join the same range; without "
        "a commit for this long the log is cold, and all rows go; 0: all rows go at once",
    )
    persist_rows: int = option(
        "persistRowThreshold",
        integer,
        1_000_000,
        "rows older than that window go to the table when they are this many",
    )
    persist_age_seconds: int = option(
        "persistAgeThresholdSeconds", integer, 1800, "… or when the oldest of them is this old"
    )
    persist_bytes: int = option(
        "persistBytesThreshold", size, 2**30, "… or when they are this large, as stored", "1gb"
    )
    soft_limit: int | None = option(
        "softLimitBytes",
        size,
        None,
        "when the rows that are in no table yet are about this large, as stored, they go "
        "without waiting for a threshold",
    )
    hard_limit: int | None = option(
        "hardLimitBytes",
        size,
        None,
        "when they are about this large all of them go, also those within the window",
    )
    retain_seconds: int | None = option(
        "retainSeconds",
        integer,
        None,
        "older rows leave the log; with a table only rows that the table has",
        "for ever; with a table: until the table has them",
    )
    retain_bytes: int | None = option(
        "retainBytes",
        size,
        None,
        "the log keeps its newest objects up to this size, and 1000 records before; with a "
        "table also the rows that the table lacks",
        "all; with a table: the rows that the table lacks",
    )
    refused_rows: str = option(
        "refusedRows",
        one_of(WAIT, ASIDE),
        WAIT,
        "what a log does with rows that the table refuses: it waits with them, or they step aside "
        "into {table}_refused and the others go to the table",
    )

    @property
    def sets_aside(self) -> bool:
        """Whether rows that the table refuses step aside."""
        return self.refused_rows == ASIDE

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the values.

        Raises:
            OptionError: a value is out of range, or two contradict each other.
        """
        for field in fields(Policy):
            value = getattr(self, field.name)
            if field.name == "refused_rows":
                continue
            if value is not None and (not isinstance(value, int) or value < 0):
                raise OptionError(f"{field.metadata['name']} is {value!r}; a whole number ≥ 0")
        check_limits(self.soft_limit, self.hard_limit)


@dataclass(frozen=True)
class LifecycleOptions(StoreOptions, Policy):
    """Options of a lifecycle."""

    gc_grace_ms: int = option(
        "gcGrace",
        duration,
        86_400_000,
        "objects are deleted at the earliest this long after the floor passed them, by the "
        "store's clock; at least 1h, and more than the planTtl of every writer plus 15min",
        "24h",
    )
    consumer_expiry_ms: int | None = option(
        "consumerExpiry",
        duration,
        None,
        "a consumer that has not published its position for longer does not hold the floor back",
        "never",
    )

    tombstone_horizon_ms: int = option(
        "tombstoneHorizon",
        duration,
        7 * 86_400_000,
        "with keys, sequence_by and delete_when: for so long an older row that comes late brings "
        "no deleted key back; by the sequence's own time if it is a date or a timestamp, else "
        "from the compaction of the delete on; 0: no deleted key is kept; fixed by the first run",
        "7d",
    )
    make_segments: bool | None = option(
        "makeSegments",
        boolean,
        None,
        "a run also copies each thousand old records into a segment, for readers of long ranges",
        "true if rows stay in the log: without a table, or with retention",
    )

    def makes_segments(self, *, has_table: bool) -> bool:
        """Whether a run makes segments."""
        if self.make_segments is not None:
            return self.make_segments
        return not has_table or (self.retain_seconds, self.retain_bytes) != (None, None)

    def check(self) -> None:
        StoreOptions.check(self)
        Policy.check(self)
        # §10: the grace is at least an hour, longer than any claim
        if self.gc_grace_ms < _SMALLEST_GRACE_MS:
            raise OptionError(
                f"gcGrace is {self.gc_grace_ms} ms; at least 1h is needed, because a request in "
                "flight may still use an object that the floor has passed"
            )
        if self.consumer_expiry_ms == 0:
            raise OptionError("consumerExpiry must be greater than 0; leave it out for never")


@dataclass(frozen=True)
class LogState:
    """The state of a log, as `measure` reads it. A run has finished its open range before.

    Attributes:
        log_id: the log.
        cut: as in its newest lifecycle record.
        has_table: rows go to a table.
        first_ms: the time of the first commit at or after `cut`, or None without such a commit. Of
            a cold log it may be that of its last commit.
        last_ms: the time of the log's last record, which may be a leader record.
        counted: the first position that was not counted. Commits from `cut` to before it are older
            than the window.
        rows, bytes: the rows and bytes of these commits.
        waiting_bytes: the estimated size of the rows that are neither in a table nor below the
            floor.
        retained_from: the first position that the policy's retention keeps in the log.
    """

    log_id: str
    cut: int
    has_table: bool
    first_ms: int | None = None
    last_ms: int | None = None
    counted: int = 0
    rows: int = 0
    bytes: int = 0
    waiting_bytes: int = 0
    retained_from: int = 0


@dataclass(frozen=True)
class Due:
    """A decision.

    Attributes:
        before_ms: rows that were committed at or before this time go to the table. If it is None,
            no rows go.
        limit: the option whose size limit the waiting rows have reached, or "".
    """

    before_ms: int | None = None
    limit: str = ""


def decide(state: LogState, policy: Policy, now_ms: int) -> Due:
    """Decide which rows go to the table now.

    A decision stays true while time passes and the log does not change. Dates up to MISDATED_MS
    ahead of `now_ms` count as new. If the last record is dated further ahead, the whole log goes at
    once, because its window would not end before that date.
    """
    limit = ""
    if policy.hard_limit is not None and state.waiting_bytes >= policy.hard_limit:
        limit = "hardLimitBytes"
    elif policy.soft_limit is not None and state.waiting_bytes >= policy.soft_limit:
        limit = "softLimitBytes"
    if not state.has_table or state.first_ms is None:
        return Due(None, limit)
    last_ms = state.first_ms if state.last_ms is None else max(state.first_ms, state.last_ms)
    window_start_ms = _window_start(policy, now_ms)
    is_cold = last_ms <= window_start_ms
    is_misdated = last_ms > now_ms + MISDATED_MS
    if is_cold or is_misdated or limit == "hardLimitBytes":
        return Due(last_ms, limit)
    is_enough = (
        state.rows >= policy.persist_rows
        or state.bytes >= policy.persist_bytes
        or now_ms - state.first_ms >= policy.persist_age_seconds * 1000
        or limit
    )
    is_due = is_enough and state.first_ms <= window_start_ms
    return Due(window_start_ms if is_due else None, limit)


def decide_together(states: Mapping[str, LogState], policy: Policy, now_ms: int) -> dict[str, Due]:
    """Decide for the logs of a path, by name.

    The logs go into the table by one transaction. So if one of them has something due, or all of
    them together reach a threshold, the rows of all that are older than the window go too.
    """
    decisions = {name: decide(state, policy, now_ms) for name, state in states.items()}
    is_any_due = (
        any(one.before_ms is not None for one in decisions.values())
        or sum(state.rows for state in states.values()) >= policy.persist_rows
        or sum(state.bytes for state in states.values()) >= policy.persist_bytes
    )
    if not is_any_due:
        return decisions
    start_ms = _window_start(policy, now_ms)
    for name, state in states.items():
        has_old = state.first_ms is not None and state.first_ms <= start_ms
        if decisions[name].before_ms is None and state.has_table and has_old:
            decisions[name] = replace(decisions[name], before_ms=start_ms)
    return decisions


def _window_start(policy: Policy, now_ms: int) -> int:
    """The time at or before which rows are older than the window."""
    return now_ms - policy.late_window_seconds * 1000


def measure(
    log: LogStore,
    head: Head,
    chain: LogInChain,
    policy: Policy,
    now_ms: int,
    *,
    has_table: bool = False,
    before: LogState | None = None,
) -> LogState:
    """Read the state that `decide` needs.

    Requests with a table: none if the log is cold. Else 1 GET for the first commit after `cut`,
    and, unless that one is old enough by itself, 1 GET for each commit that is older than the
    window, until they reach a threshold, at most MOST_COUNTED. Commits that `before` has counted
    are not read again; of many, segments are read. With a size limit up to 32 GETs more. With
    `retainSeconds` 1 GET, and log₂ n if a record is too old. With `retainBytes` 1 LIST for each
    thousand objects that stay.

    Args:
        log: the log.
        head: its head.
        chain: the log in the newest record of the chain, without an open range.
        policy: the policy.
        now_ms: the present time.
        has_table: rows go to a table, although none was promised yet.
        before: an earlier result for this log.
    """
    has_table = has_table or bool(chain.table)
    cut = chain.start if has_table else chain.cut
    state = LogState(
        log_id=chain.log_id,
        cut=cut,
        has_table=has_table,
        last_ms=head.live.header.timestamp_ms if head.live else None,
        counted=cut,
    )
    if before and (before.log_id, before.cut) == (state.log_id, state.cut):
        state = replace(
            state,
            first_ms=before.first_ms,
            counted=before.counted,
            rows=before.rows,
            bytes=before.bytes,
        )
    if state.has_table:
        state = _count(log, head, state, policy, now_ms)
    if policy.soft_limit is not None or policy.hard_limit is not None:
        start = state.cut if state.has_table else chain.floor
        waiting = about_bytes(log, head.window, start, head.gap, _SAMPLES)
        state = replace(state, waiting_bytes=waiting)
    return replace(state, retained_from=_retained_from(log, head, chain.floor, policy, now_ms))


def at_rest(chain: LogInChain) -> LogState:
    """The state of a log without new rows. It costs no request."""
    return LogState(
        chain.log_id,
        chain.start,
        has_table=bool(chain.table),
        counted=chain.start,
        retained_from=chain.floor,
    )


def _count(log: LogStore, head: Head, state: LogState, policy: Policy, now_ms: int) -> LogState:
    """Add the first commit's time, and the commits that are older than the window if needed."""
    window_start_ms = _window_start(policy, now_ms)

    def is_decided() -> bool:
        is_young = state.first_ms is not None and state.first_ms > window_start_ms
        return is_young or decide(state, policy, now_ms).before_ms is not None

    if is_decided():
        return state
    last = head.live
    newest = {last.header.position: last} if last else {}
    if last and isinstance(last.header, CommitHeader) and last.header.position >= state.cut:
        last_ms = last.header.timestamp_ms
        # All rows of a cold log are due, and its last commit proves that there are some.
        if last_ms <= window_start_ms:
            return replace(state, first_ms=state.first_ms or last_ms)
    end = min(head.gap, state.counted + MOST_COUNTED)
    for record in read_records(head.view(log), state.counted, end, cached=newest):
        header = record.header
        if isinstance(header, CommitHeader):
            if state.first_ms is None:
                state = replace(state, first_ms=header.timestamp_ms)
            if header.timestamp_ms > window_start_ms:
                break
            state = replace(state, rows=state.rows + header.rows, bytes=state.bytes + header.bytes)
        state = replace(state, counted=header.position + 1)
        if is_decided():
            break
    return state


def _retained_from(log: LogStore, head: Head, first: int, policy: Policy, now_ms: int) -> int:
    """The first position, from the floor `first` on, that retention by age and size keeps."""
    if policy.retain_seconds is not None and first < head.gap:
        expired_ms = now_ms - policy.retain_seconds * 1000
        record = read_any(log, first, head.window, GLANCE)
        view = LogView(log, head.window)
        live = last_live(view, record) if isinstance(record, SlotRecord) else None
        if live is None or live.header.timestamp_ms <= expired_ms:
            first = first_at_or_after(head.view(log), expired_ms + 1, start=first, end=head.gap)
    if policy.retain_bytes is None:
        return first
    stored = 0
    # The newest objects come first.
    for number, entry in numbered(log.store, keys.batches_prefix(log.prefix)):
        position = keys.position(number, head.window)
        if position < first:
            break
        stored += entry.size
        if stored > policy.retain_bytes:
            # Objects of the next record, at the gap, must not push the head's position out.
            return min(position + 1, head.gap)
    return first
