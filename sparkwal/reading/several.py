"""Reads the heads and floors of several logs of one path side by side."""

from collections.abc import Sequence

from sparkwal.reading.log_range import LogRange
from sparkwal.store.parallel import run_parallel


def refresh_all(logs: Sequence[LogRange], *, floor: bool = True) -> None:
    """Refresh logs of one path side by side, as `LogRange.refresh`.

    One look at the chain shows the floors of all logs that are read for the first time.
    """
    new = [log for log in logs if log.head is None and not log.floor.is_known]
    if floor and len(new) > 1:
        seen = new[0].floor.look_at_chain()
        for log in new:
            log.floor.take(seen)
    if logs:
        list(run_parallel(logs[0].log.store, lambda log: log.refresh(floor=floor), logs))
