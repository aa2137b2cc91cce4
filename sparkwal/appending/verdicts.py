"""What became of appends that are not acknowledged, when an appender has stopped."""

from __future__ import annotations

from sparkwal.errors import (
    FencedError,
    InvalidLogError,
    OutcomeUnknownError,
    SparkWalError,
    StoreUnavailableError,
)


def verdict(before: SparkWalError | None, own: SparkWalError | None) -> SparkWalError | None:
    """What became of a slot that is not acknowledged, from the one before it and its own.

    A slot that surely holds no record of ours makes all behind it dead, for whoever
    leads next begins there. Behind one that may hold it, all may count.
    """
    if before is None or (isinstance(before, OutcomeUnknownError) and _is_definite(own)):
        return own
    return before


def _is_definite(error: SparkWalError | None) -> bool:
    return error is not None and not isinstance(error, (OutcomeUnknownError, InvalidLogError))


def unsent(error: SparkWalError) -> SparkWalError:
    """For what was accepted and never sent, when the appender stopped for `error`."""
    if isinstance(error, FencedError):
        return error
    return StoreUnavailableError(f"not sent, because the appender has stopped: {error}")


def unexpected(what: str, error: BaseException) -> OutcomeUnknownError:
    """For what no one foresaw: only the log can tell what is durable."""
    return OutcomeUnknownError(
        f"{what} ({type(error).__name__}: {error}); what was sent may be durable. Open a new "
        "appender: its last_sequence tells"
    )
