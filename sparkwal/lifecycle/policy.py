"""What is due in a log's life: when rows go to the table, and up to which moment.

Rows come late and out of order, so what is younger than one window stays in the log: a range
that waits for it overlaps less with the next one. A log that nobody has written to for that
window is cold: nothing late is expected any more, all of it goes. The policy picks the moment
at which the log is split; `measuring.split` finds its position.

Nothing here is needed for safety: whatever the policy says, or a clock, no row is lost or
doubled.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from sparkwal.errors import OptionError
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import duration, option, size, whole
from sparkwal.options.writing import check_limits

# S3 refuses requests from a clock that is further off. Dates that are this far ahead of the
# reader's clock show nothing: to wait for them might take years.
MISDATED_MS = 15 * 60_000
_SMALLEST_GRACE_MS = 3_600_000


@dataclass(frozen=True)
class Policy:
    """When what is due; each of the three thresholds is enough by itself."""

    late_window_seconds: int = option("lateArriveWindowSeconds", whole, 300, "a commit stays in the log alone for this long, so that what comes late goes with it; without a commit for so long the log is cold, and all of it goes; 0: all goes at once")  # fmt: skip  # noqa: E501
    persist_rows: int = option("persistRowThreshold", whole, 1_000_000, "rows that have waited out that window go to the table when they are this many")  # fmt: skip  # noqa: E501
    persist_age_seconds: int = option("persistAgeThresholdSeconds", whole, 1800, "… or when the oldest of them is this old")  # fmt: skip  # noqa: E501
    persist_bytes: int = option("persistBytesThreshold", size, 2**30, "… or when they are this large, as stored", "1gb")  # fmt: skip  # noqa: E501
    soft_limit: int | None = option("softLimitBytes", size, None, "when the rows that are in no table yet are about this large, as stored, they go without waiting for a threshold")  # fmt: skip  # noqa: E501
    hard_limit: int | None = option("hardLimitBytes", size, None, "when they are about this large all of them go, late ones expected or not")  # fmt: skip  # noqa: E501
    retain_seconds: int | None = option("retainSeconds", whole, None, "what is older leaves the log; with a table only what the table has", "for ever; with a table: until the table has it")  # fmt: skip  # noqa: E501
    retain_bytes: int | None = option("retainBytes", size, None, "the log keeps its newest objects up to this size; with a table more, until the table has it", "all; with a table: what the table has not")  # fmt: skip  # noqa: E501

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
    """Options of a lifecycle; a Policy too."""

    gc_grace_ms: int = option("gcGrace", duration, 86_400_000, "what the floor has passed is deleted so much later at the earliest, by the store's clock; at least 1h, and more than the planTtl of every writer plus 15min", "24h")  # fmt: skip  # noqa: E501
    consumer_expiry_ms: int | None = option("consumerExpiry", duration, None, "a consumer that has not published its position for so long holds nothing back any more", "never")  # fmt: skip  # noqa: E501

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
    """What is known of a log; see `measuring.measure`.

    Attributes:
        cut, to, floor: as in its chain; an intent is open while `to` is above `cut`.
        gap: the first position that no record holds.
        table: whether it has a table to go to.
        first_ms: when the first commit at or after `cut` was made; None: there is none.
        last_ms: of the log's last record; a writer that has just come makes it warm too.
        counted: the commits from `cut` to before this position hold `rows` and `bytes`: old
            enough, all of them, and at least these.
        waiting_bytes: about how much is neither in a table nor below the floor.
        retained_from: the first position that is to stay in the log.
    """

    log_id: str
    cut: int
    to: int
    floor: int
    gap: int
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
    """What is due.

    Attributes:
        before_ms: rows committed at or before this moment go to the table; None: none do.
        limit: the option whose limit is reached by what waits; "" for none.
    """

    before_ms: int | None = None
    limit: str = ""


def decide(state: LogState, policy: Policy, now_ms: int) -> Due:
    """What is due now.

    While time goes on and nothing else happens, what is due stays due. Dates a little ahead of
    `now_ms` count as new; a log whose last record is more than MISDATED_MS ahead is brought
    into its table at once and whole, because no window would end before that date.
    """
    limit = ""
    if _reached(state.waiting_bytes, policy.hard_limit):
        limit = "hardLimitBytes"
    elif _reached(state.waiting_bytes, policy.soft_limit):
        limit = "softLimitBytes"
    return Due(split_point(state, policy, now_ms), limit)


def split_point(state: LogState, policy: Policy, now_ms: int) -> int | None:
    """Up to which moment rows are due for the table; None: none are."""
    # An open intent is finished before another range is begun.
    if state.to > state.cut or not state.table or state.first_ms is None:
        return None
    last_ms = state.first_ms if state.last_ms is None else max(state.first_ms, state.last_ms)
    before = late_before(policy, now_ms)
    # A log that is cold, or misdated, goes whole.
    is_whole = last_ms <= before or last_ms > now_ms + MISDATED_MS
    if is_whole or _reached(state.waiting_bytes, policy.hard_limit):
        return last_ms
    if state.first_ms > before:
        return None
    due = (
        state.rows >= policy.persist_rows
        or state.bytes >= policy.persist_bytes
        or now_ms - state.first_ms >= policy.persist_age_seconds * 1000
        or _reached(state.waiting_bytes, policy.soft_limit)
    )
    return before if due else None


def late_before(policy: Policy, now_ms: int) -> int:
    """The last moment whose rows have waited out the window."""
    return now_ms - policy.late_window_seconds * 1000


def _reached(value: int, limit: int | None) -> bool:
    return limit is not None and value >= limit
