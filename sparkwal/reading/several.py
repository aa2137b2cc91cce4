"""Reads the heads and floors of several logs of one path side by side."""

from collections.abc import Sequence

from sparkwal.reading.listing import Listed, list_logs
from sparkwal.reading.log_range import LogRange
from sparkwal.store.parallel import run_parallel

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
