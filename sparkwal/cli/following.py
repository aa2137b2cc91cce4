"""New records of a log as they come."""

from __future__ import annotations

import select
from collections.abc import Iterator

from sparkwal.cli.exits import Failed
from sparkwal.errors import CollectedError
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.reading.history import Collected, Found, is_seal
from sparkwal.reading.log_range import LogRange

# Idle looks after which it is asked whether the last record is still there: a log that was
# made again has free positions where the former one goes on.
IDLE_LOOKS = 10


def follow(log: LogRange, reached: int, interval_ms: int) -> Iterator[Found]:
    """The live records from `reached` on, as they come, until the reader of standard output goes.

    1 GET each time that nothing came, now and then 1 more.

    Args:
        log: has looked.

    Raises Failed where the log was made again or is gone, BrokenPipeError, InvalidLogError,
    StoreUnavailableError.
    """
    log_id = log.log_id
    idle = 0
    while True:
        gap = log.look()
        if log.log_id != log_id:
            raise made_again(log, log_id)
        if gap > reached:
            idle = 0
            try:
                for record in log.records(reached, gap):
                    if not is_seal(record):
                        yield record
                    reached = record.header.position + 1
                reached = gap
            except CollectedError as error:
                yield Collected(reached, error.floor)
                reached = error.floor
            log.forget(reached)
            continue
        idle += 1
        if idle % IDLE_LOOKS == 0 and not still_there(log):
            raise made_again(log, log_id)
        wait(interval_ms)


def still_there(log: LogRange) -> bool:
    """Whether the last position holds a record of this very log."""
    found = read_slot(log.log, log.gap - 1, log.window, GLANCE)
    return found is not None and found.header.log_id == log.log_id


def made_again(log: LogRange, log_id: str | None) -> Failed:
    """The error for the end of the log `log_id`."""
    return Failed(
        f"the log {log_id} at {log.log.url} is gone, or was made again: follow what is there now "
        "anew"
    )


def wait(interval_ms: int) -> None:
    """Sleep, but end at once when nobody reads any more: an idle log would never tell."""
    poll = select.poll()
    poll.register(1, 0)
    gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
    if any(event & gone for _, event in poll.poll(interval_ms)):
        raise BrokenPipeError
