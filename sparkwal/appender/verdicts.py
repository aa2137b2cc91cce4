"""The errors of unacknowledged appends after an appender has stopped.

FencedError: another writer leads. OutcomeUnknownError: a new appender's `last_sequence` shows what
is durable.
"""

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
    # A store's refusal is an OptionError. Raised from a ticket, that would blame only the ticket's
    # rows.
    if isinstance(error, (StoreUnavailableError, OptionError)):
        return OutcomeUnknownError(f"{error}; the appender has stopped: {ASK}")
    return fenced(error) if isinstance(error, FencedError) else error


def fenced(error: FencedError, journal: str | None = None) -> FencedError:
    """The error in terms of an appender, which has no microbatch.

    Args:
        error: the error of the takeover.
        journal: the journal's folder, if any.
    """
    if not error.leader:
        return error
    state = "The log has none of the appends that this appender has not acknowledged"
    action = (
        "the same producer_id takes the log over again, and its last_sequence shows what is durable"
    )
    if journal is not None:
        state = (
            f"The appends that this appender accepted are in the log or in the journal {journal}"
        )
        action = "this journal takes the log over again, and sends the waiting rows"
    advice = f"{state}. Stop one of the two writers; a new appender with {action}"
    return FencedError(f"{error.leader}. {advice}", leader=error.leader)


def without_advice(error: SparkWalError) -> str:
    """The error's text without advice, for an appender that continues by itself."""
    return str(error).replace(f"; the appender has stopped: {ASK}", "").replace(f": {ASK}", "")


def verdict(before: SparkWalError | None, own: SparkWalError | None) -> SparkWalError | None:
    """The error of an unacknowledged slot, from its own error and that of the slot before it.

    After a slot of unknown outcome each slot may count, until one shows another leader.
    """
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
    """The error for an unexpected exception: only the log can show what is durable."""
    return OutcomeUnknownError(
        f"{what} ({type(error).__name__}: {error}); what was sent may be durable: {ASK}"
    )
