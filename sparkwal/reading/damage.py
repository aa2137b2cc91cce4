"""A look at a log that has damage: what is intact is shown, and what is not is reported."""

from __future__ import annotations

from collections.abc import Callable

from sparkwal.errors import InvalidLogError
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.store.log_store import LogStore

# Called for each record or object that is damaged or missing; the look goes on after it.
PassedOver = Callable[[InvalidLogError], None]


def find_end(
    log: LogStore, *, tolerant: bool = False, passed_over: PassedOver | None = None
) -> tuple[Head, int]:
    """The head as `find_head`, and the first position after it that holds nothing. Between the two
    lie damaged records: only a look that passes over damage sees any. Raises InvalidLogError where
    damage is not passed over, and where not one record is intact."""
    try:
        head = find_head(log, tolerant=tolerant)
        return head, head.gap
    except InvalidLogError as error:
        if passed_over is None:
            raise
        passed_over(error)
    head = find_head(log, tolerant=True)
    gap = head.gap
    while True:
        try:
            if read_slot(log, gap, head.window, GLANCE) is None:
                return head, gap
        except InvalidLogError as error:
            passed_over(error)
        gap += 1
