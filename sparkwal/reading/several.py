"""Reads the heads and floors of several logs of one path side by side."""

from collections.abc import Sequence
from typing import TypeVar

from sparkwal.errors import OptionError
from sparkwal.reading.listing import Listed, list_logs
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.sequencers import no_log_at
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

L = TypeVar("L", bound=LogRange)
# So few logs are listed one by one, all at once.
_FEW = 8


def refresh_all(logs: Sequence[LogRange], *, floor: bool = True) -> dict[str, Listed]:
    """Refresh logs of one path side by side, as `LogRange.refresh`, after `look_at_all`.

    Returns:
        What the walk showed of each log, by name.
    """
    listed = look_at_all(logs, floor=floor)
    if logs:
        list(run_parallel(logs[0].log.store, lambda log: log.refresh(floor=floor), logs))
    return listed


def look_at_all(logs: Sequence[LogRange], *, floor: bool = True) -> dict[str, Listed]:
    """Look together at logs of one path that are read for the first time.

    One look at the chain shows the floors of all of them, and one walk lists them if they are many.

    Returns:
        What the walk showed of each log, by name.
    """
    listed = dict[str, Listed]()
    new = [log for log in logs if log.head is None]
    unknown = [log for log in new if not log.floor.is_known]
    if floor and len(unknown) > 1:
        seen = unknown[0].floor.look_at_chain()
        for log in unknown:
            log.floor.take(seen)
    if len(new) > _FEW:
        listed = list_logs(new[0].log.root, [log.log.name for log in new])
        for log in new:
            listing = listed.get(log.log.name)
            log.page = listing.page if listing else None
    return listed


def existing(root: LogStore, logs: Sequence[L], *, listed: bool) -> list[L]:
    """The logs that exist, of logs of one path whose heads were read.

    Args:
        root: the log at the path, for messages.
        logs: the logs.
        listed: they come from a LIST. A writer may be about to begin one of them.

    Raises:
        OptionError: none exists, or one that was named does not.
    """
    present = [log for log in logs if log.log_id is not None]
    if len(present) < len(logs) and not listed:
        raise OptionError(no_log_at(next(log for log in logs if log.log_id is None).log))
    if not present:
        raise OptionError(no_log_at(root))
    return present
