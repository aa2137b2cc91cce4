"""The one age rule: how long a writer may act on what it saw of the log.

A driver or a service may sleep for hours between two instructions. Meanwhile
another writer may have led and filled the slot, and a collection removed its record; or the
log was deleted and made again. The number is free then, and a conditional PUT there succeeds
outside of the log.
"""

from __future__ import annotations

import threading

from sparkwal.errors import InvalidLogError
from sparkwal.format.header import SlotHeader
from sparkwal.protocol.clock import Clock, is_old
from sparkwal.protocol.leader import Leader
from sparkwal.protocol.leadership import fenced
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot


class ClaimAge:
    """When a writer last looked at the log; thread-safe.

    Nothing is collected sooner than `ttl_ms`, and the time a store accepts a signed request,
    after it could last be claimed. So a slot is claimed only on a look younger than `ttl_ms`,
    and an answer that took longer than that is believed only after another look.

    Args:
        began: the position of its leader record.
        limit: slots the writer has in flight at most; all before them must be there.
        looked_ms, boot_id: of the last look, on the boot-time clock; now if not given.
    """

    def __init__(
        self,
        log: LogStore,
        clock: Clock,
        ttl_ms: int,
        began: int,
        limit: int,
        *,
        looked_ms: int | None = None,
        boot_id: str | None = None,
    ) -> None:
        self._log, self._clock, self._ttl_ms = log, clock, ttl_ms
        self._began, self._limit = began, limit
        self.looked_ms = clock.boot_ms() if looked_ms is None else looked_ms
        self._boot_id = boot_id or clock.boot_id()
        self._lock = threading.Lock()

    def before(self, header: SlotHeader, *, look: bool = False) -> int:
        """Call before the slot of `header` is claimed; the answer is for `stands`.

        Args:
            look: look at the log however young the last look is.

        Raises FencedError, InvalidLogError (the log was deleted or made again).
        """
        began = self._clock.boot_ms()
        if look or self._is_old():
            # One thread looks for all that wake up together.
            with self._lock:
                # Safety (§6): "an appender that slept does not look at the log before it claims a
                # slot"
                if look or self._is_old():
                    self._look(header)
                    self.looked_ms, self._boot_id = began, self._clock.boot_id()
        return began

    def stands(self, header: SlotHeader, began: int) -> SlotRecord | None:
        """Call when the PUT has succeeded: None where the slot counts for sure.

        If the answer took too long and another leads now: the live record of the head, whose
        transactions tell whether the log holds what was put. Raises InvalidLogError.
        """
        # Safety (§6): "an appender whose request took long does not look at the log after it"
        if not is_old(self._clock, began, self._boot_id, self._ttl_ms):
            return None
        live = find_head(self._log, header.window).live
        if live is None:
            raise another_log(self._log)
        ours = live.header.log_id == header.log_id and live.header.term == header.term
        return None if ours else live

    def _is_old(self) -> bool:
        return is_old(self._clock, self.looked_ms, self._boot_id, self._ttl_ms)

    def _look(self, header: SlotHeader) -> None:
        head = find_head(self._log, header.window)
        if head.live is None or head.live.header.log_id != header.log_id:
            raise another_log(self._log)
        if head.live.header.term > header.term:
            taken = read_slot(self._log, header.position, header.window)
            raise fenced(self._log, taken or head.live)
        # What this writer was told is durable must be there: a short log from its beginning on.
        # (A collection leaves more than one LIST shows.) Else it was deleted meanwhile, and
        # what stands there is what this writer put into the hole since.
        if head.gap <= header.position - self._limit or (head.oldest or 0) > self._began:
            raise another_log(self._log)
        if head.gap > header.position:
            own = read_slot(self._log, header.position, header.window)
            if own is None or own.header.plan_id != header.plan_id:
                raise fenced(self._log, own or head.live)


def check_same_log(log: LogStore, lead: Leader) -> None:
    """Before an object is written by a plan that builds on another run's commit: 1 GET.

    Between the two runs the log may have been deleted. An object in a hole above its new
    beginning would keep every writer from starting there.
    """
    before = read_slot(log, lead.next_position - 1, lead.window, GLANCE)
    if before is None or before.header.log_id != lead.log_id:
        raise another_log(log)


def another_log(log: LogStore) -> InvalidLogError:
    """The error for a log that is not the one this writer wrote before."""
    return InvalidLogError(
        f"{log.url} is not the log that this writer wrote before: it was deleted or made again "
        "meanwhile. Nothing was written to it. Start again to write to what is there now: with a "
        "new checkpoint to write all rows of the source, with this one to write those that are new"
    )
