"""Finds the end of a log, also past damage that the caller passes over."""

from itertools import count

from sparkwal.errors import InvalidLogError
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.slots import GLANCE, read_any
from sparkwal.reading.damage import OnDamage
from sparkwal.store.base import LogStore, Page


def find_end(
    log: LogStore,
    *,
    tolerant: bool = False,
    on_damage: OnDamage | None = None,
    proven: bool = True,
    page: Page | None = None,
) -> tuple[Head, int]:
    """Find the head, and the first position after it without an object.

    Args:
        log: the log.
        tolerant: see `find_head`.
        on_damage: gets the damaged records between the two, which are then no error.
        proven: see `find_head`.
        page: see `find_head`.

    Raises:
        InvalidLogError: the end is damaged, or no record is intact.
    """
    try:
        head = find_head(log, tolerant=tolerant, proven=proven, page=page)
        return head, head.gap
    except InvalidLogError as error:
        if on_damage is None:
            raise
        on_damage(error)
    head = find_head(log, tolerant=True)
    for gap in count(head.gap):
        try:
            if read_any(log, gap, head.window, GLANCE) is None or head.torn:
                break
        except InvalidLogError as error:
            on_damage(error)
    return head, gap
