"""Limits of a log's size, as appenders and the lifecycle's policy both take them."""

from __future__ import annotations

from sparkwal.errors import OptionError


def check_limits(soft: int | None, hard: int | None) -> None:
    """Raises OptionError for limits that no log could keep or that contradict each other."""
    for name, limit in (("softLimitBytes", soft), ("hardLimitBytes", hard)):
        if limit == 0:
            raise OptionError(f"{name} must be greater than 0; leave it out for no limit")
    if soft is not None and hard is not None and soft > hard:
        raise OptionError(
            f"softLimitBytes {soft} is above hardLimitBytes {hard}: raise the one or lower the "
            "other"
        )
