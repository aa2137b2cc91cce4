"""What is due in a log's life: when rows go to the table, and up to which moment.

Rows come late and out of order, so what is younger than one window stays in the log: a range that
waits for it overlaps less with the next one. A log that nobody has written to for that window is
cold: all of it goes. `decide` picks the moment at which the log is split, by what `measure` found
with few requests. Whatever it says, no row is lost or doubled.
"""

from dataclasses import dataclass, fields, replace

from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.format.lifecycle_record import LifecycleRecord
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import duration, integer, option, size
from sparkwal.options.writing import check_limits
from sparkwal.protocol.recovery import Head, last_live
from sparkwal.protocol.replay import about_bytes, first_at_or_after, live_records
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.store.base import LogStore, numbered

# S3 refuses requests from a clock that is further off. Dates that are this far ahead of the
# reader's clock show nothing: to wait for them might take years.
MISDATED_MS = 15 * 60_000
_SMALLEST_GRACE_MS = 3_600_000
# Records whose sizes stand for all, where a limit is to be kept.
_SAMPLES = 32
# Records counted in one call, at most; the next goes on from there.
MOST_COUNTED = 10_000


@dataclass(frozen=True)
class Policy:
    """When what is due; each of the three thresholds is enough by itself."""

    late_window_seconds: int = option(
        "lateArriveWindowSeconds",
        integer,
        300,
        "a commit stays in the log alone for this long, so that what comes late goes with it; "
        "without a commit for so long the log is cold, and all of it goes; 0: all goes at once",
    )
    persist_rows: int = option(
        "persistRowThreshold",
        integer,
        1_000_000,
        "rows that have waited out that window go to the table when they are this many",
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
        "when they are about this large all of them go, late ones expected or not",
    )
    retain_seconds: int | None = option(
        "retainSeconds",
        integer,
        None,
        "what is older leaves the log; with a table only what the table has",
        "for ever; with a table: until the table has it",
    )
    retain_bytes: int | None = option(
        "retainBytes",
        size,
        None,
        "the log keeps its newest objects up to this size, and 1000 records before; with a "
        "table more, until the table has it",
        "all; with a table: what the table has not",
    )

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises OptionError for values out of range and for pairs that contradict each other."""
        for field in fields(Policy):
            value = getattr(self, field.name)
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
        "what the floor has passed is deleted so much later at the earliest, by the store's "
        "clock; at least 1h, and more than the planTtl of every writer plus 15min",
        "24h",
    )
    consumer_expiry_ms: int | None = option(
        "consumerExpiry",
        duration,
        None,
        "a consumer that has not published its position for so long holds nothing back any more",
        "never",
    )

    def check(self) -> None:
        StoreOptions.check(self)
        Policy.check(self)
        # §10: the grace is at least an hour, longer than any claim
        if self.gc_grace_ms < _SMALLEST_GRACE_MS:
            raise OptionError(
                f"gcGrace is {self.gc_grace_ms} ms; at least 1h is needed: a request that is under "
                "way must not outlive what it was made from"
            )
        if self.consumer_expiry_ms == 0:
            raise OptionError("consumerExpiry must be greater than 0; leave it out for never")


@dataclass(frozen=True)
class LogState:
    """What is known of a log; see `measure`.

    Attributes:
        cut, to: as in its chain; an intent is open while `to` is above `cut`.
        first_ms: when the first commit at or after `cut` was made; None: there is none.
        last_ms: of the log's last record; a writer that has just come makes it warm too.
        counted: the commits from `cut` to before this position, all old enough, hold `rows` and
            `bytes`.
        waiting_bytes: about how much is neither in a table nor below the floor.
        retained_from: the first position that is to stay in the log.
    """

    log_id: str
    cut: int
    to: int
    table: bool
    first_ms: int | None = None
    last_ms: int | None = None
    counted: int = 0
    rows: int = 0
    bytes: int = 0
    waiting_bytes: int = 0
    retained_from: int = 0


@dataclass(frozen=True)
class Due:
    """What is due: rows committed at or before `before_ms` go to the table, None: none do; `limit`
    is the option whose limit is reached by what waits, "" for none."""

    before_ms: int | None = None
    limit: str = ""


def decide(state: LogState, policy: Policy, now_ms: int) -> Due:
    """What is due now; it stays due while time goes on and nothing else happens.

    Dates a little ahead of `now_ms` count as new. A log whose last record is more than MISDATED_MS
    ahead goes to its table at once and whole, because no window would end before that date.
    """
    limit = ""
    if policy.hard_limit is not None and state.waiting_bytes >= policy.hard_limit:
        limit = "hardLimitBytes"
    elif policy.soft_limit is not None and state.waiting_bytes >= policy.soft_limit:
        limit = "softLimitBytes"
    # An open intent is finished before another range is begun.
    if state.to > state.cut or not state.table or state.first_ms is None:
        return Due(None, limit)
    last_ms = state.first_ms if state.last_ms is None else max(state.first_ms, state.last_ms)
    before = _late_before(policy, now_ms)
    # A log that is cold, or misdated, goes whole.
    is_whole = last_ms <= before or last_ms > now_ms + MISDATED_MS
    if is_whole or limit == "hardLimitBytes":
        return Due(last_ms, limit)
    is_enough = (
        state.rows >= policy.persist_rows
        or state.bytes >= policy.persist_bytes
        or now_ms - state.first_ms >= policy.persist_age_seconds * 1000
        or limit
    )
    return Due(before if is_enough and state.first_ms <= before else None, limit)


def _late_before(policy: Policy, now_ms: int) -> int:
    """The last moment whose rows have waited out the window."""
    return now_ms - policy.late_window_seconds * 1000


def measure(
    log: LogStore,
    head: Head,
    chain: LifecycleRecord,
    policy: Policy,
    now_ms: int,
    table: bool = False,
    before: LogState | None = None,
) -> LogState:
    """The state that `decide` needs, of a log whose newest lifecycle record is `chain`. `table`:
    there is one to go to, though no intent names it yet; `before`: an earlier measure.

    Requests: with a table 1 GET for the first commit after `cut`; then, unless the log is cold or
    that commit is old enough by itself, 1 GET for each commit that has waited out the window, until
    they reach a threshold, at most MOST_COUNTED; those that `before` has counted are not read
    again. With a limit up to 32 GETs. With `retainSeconds` 1 GET, and log₂ n where anything is too
    old. With `retainBytes` 1 LIST for every thousand objects that stay.
    """
    table = table or chain.target is not None
    last_ms = head.live.header.timestamp_ms if head.live else None
    state = LogState(chain.log_id, chain.cut, chain.to, table, last_ms=last_ms, counted=chain.cut)
    if before and (before.log_id, before.cut) == (state.log_id, state.cut):
        kept = {x: getattr(before, x) for x in ("first_ms", "counted", "rows", "bytes")}
        state = replace(state, **kept)
    if state.table and not chain.is_open:
        state = _count(log, head, state, policy, now_ms)
    if policy.soft_limit is not None or policy.hard_limit is not None:
        start = state.cut if state.table else chain.floor
        waiting = about_bytes(log, head.window, start, head.gap, _SAMPLES)
        state = replace(state, waiting_bytes=waiting)
    return replace(state, retained_from=_retained_from(log, head, chain.floor, policy, now_ms))


def _count(log: LogStore, head: Head, state: LogState, policy: Policy, now_ms: int) -> LogState:
    """With the first commit's time and, where it matters, what has waited out the window."""
    before_ms = _late_before(policy, now_ms)

    def is_decided() -> bool:
        is_young = state.first_ms is not None and state.first_ms > before_ms
        return is_young or decide(state, policy, now_ms).before_ms is not None

    if is_decided():
        return state
    end = min(head.gap, state.counted + MOST_COUNTED)
    for record in live_records(
        log, head.window, state.counted, end, log_id=state.log_id or None, size=GLANCE
    ):
        header = record.header
        if isinstance(header, CommitHeader):
            if state.first_ms is None:
                state = replace(state, first_ms=header.timestamp_ms)
            if header.timestamp_ms > before_ms:
                break
            state = replace(state, rows=state.rows + header.rows, bytes=state.bytes + header.bytes)
        state = replace(state, counted=header.position + 1)
        if is_decided():
            break
    return state


def _retained_from(log: LogStore, head: Head, first: int, policy: Policy, now_ms: int) -> int:
    """The first position from the floor `first` on that is to stay, by age and by size."""
    if policy.retain_seconds is not None and first < head.gap:
        expired_ms = now_ms - policy.retain_seconds * 1000
        record = read_slot(log, first, head.window, GLANCE)
        if record is None or last_live(log, record).header.timestamp_ms <= expired_ms:
            first = first_at_or_after(log, head, expired_ms + 1, start=first)
    if policy.retain_bytes is None:
        return first
    stored = 0
    # The newest come first.
    for number, entry in numbered(log.store, keys.batches_prefix(log.prefix)):
        position = keys.position(number, head.window)
        if position < first:
            break
        stored += entry.size
        if stored > policy.retain_bytes:
            # What is under way at the gap does not push the head's own position out.
            return min(position + 1, head.gap)
    return first
