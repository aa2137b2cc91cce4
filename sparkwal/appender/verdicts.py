"""The errors of unacknowledged appends, once an appender has stopped. FencedError: another writer
leads. OutcomeUnknownError: a new appender's `last_sequence` shows what is durable."""

from sparkwal.errors import (
    FencedError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
    StoreUnavailableError,
)

ASK = "open a new appender with the same producer_id, its last_sequence shows what is durable"


def used_up(position: int, error: BaseException) -> SparkWalError:
    """The error of a slot whose request failed for good."""
    if not isinstance(error, SparkWalError):
        return unexpected(f"position {position}: the request failed", error)
    # A store's refusal is an OptionError; from a ticket that would blame its own rows alone.
    if isinstance(error, (StoreUnavailableError, OptionError)):
        return OutcomeUnknownError(f"{error}; the appender has stopped: {ASK}")
    return fenced(error) if isinstance(error, FencedError) else error


def fenced(error: FencedError, journal: str | None = None) -> FencedError:
    """The error in terms of an appender, which has no microbatch; `journal`: its folder, if any."""
    if not error.leader:
        return error
    where = "has not acknowledged is not in the log"
    todo = (
        "the same producer_id takes the log over again, and its last_sequence shows what is durable"
    )
    if journal is not None:
        where = f"has accepted is in the log or in the journal {journal}"
        todo = "this journal takes the log over again, and sends what waits"
    said = f"What this appender {where}. Stop one of the two; a new appender with {todo}"
    return FencedError(f"{error.leader}. {said}", leader=error.leader)


def without_advice(error: SparkWalError) -> str:
    """The error's text without advice, for an appender that goes on by itself."""
    return str(error).replace(f"; the appender has stopped: {ASK}", "").replace(f": {ASK}", "")


def verdict(before: SparkWalError | None, own: SparkWalError | None) -> SparkWalError | None:
    """The error of an unacknowledged slot, from that of the slot before it and its own. After a
    slot that may hold our record each may count, until one shows another leader."""
    if before is None or (isinstance(before, OutcomeUnknownError) and isinstance(own, FencedError)):
        return own
    # SAFETY(after-unknown-unknown) §7: after a slot of unknown outcome every later slot is unknown
    # too
    return before


def unsent(error: SparkWalError) -> SparkWalError:
    """The error of accepted rows that were never sent, after the appender stopped for `error`."""
    if isinstance(error, FencedError):
        return error
    return OutcomeUnknownError(f"not sent, because the appender has stopped: {error}")


def unexpected(what: str, error: BaseException) -> OutcomeUnknownError:
    """The error for an unexpected one: only the log can show what is durable."""
    return OutcomeUnknownError(
        f"{what} ({type(error).__name__}: {error}); what was sent may be durable: {ASK}"
    )
