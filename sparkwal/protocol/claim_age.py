"""The one age rule: how long a writer may act on what it saw of the log (PROTOCOL §6)."""

import threading
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError
from sparkwal.format.header import CommitHeader
from sparkwal.protocol import chain
from sparkwal.protocol.clock import Clock, is_old, utc
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.recovery import ForeignRecord, Head, MissingRecord, find_head
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot
from sparkwal.protocol.takeover import fenced
from sparkwal.store.base import LogStore


@dataclass
class ClaimAge:
    """When a writer last looked at the log; thread-safe. The writer claims a slot only if that
    look is younger than `ttl_ms`.

    Attributes:
        began: the position of the writer's leader record.
        limit: the writer's in-flight limit; all slots before those in flight must be there.
        looked_ms, boot_id: of the last look; without `boot_id` in this boot.
        known: for an appender: the producer's last sequence in the log at that look.
    """

    log: LogStore
    clock: Clock
    ttl_ms: int
    began: int
    limit: int
    looked_ms: int
    boot_id: str = ""
    known: int | None = None

    def __post_init__(self) -> None:
        self.boot_id = self.boot_id or self.clock.boot_id()
        self._looking = threading.Lock()

    def before(self, header: CommitHeader, *, look: bool = False) -> int:
        """Call before the slot of `header` is claimed, and pass the result to `confirm_after_put`.
        `look`: in any case. Raises FencedError, InvalidLogError (a deleted or recreated log)."""
        began = self.clock.boot_ms()
        if look or self._is_old(self.looked_ms):
            # Threads that wake up together share one look.
            with self._looking:
                # SAFETY(look-before-claim) §6: a look younger than planTtl comes before each claim
                if look or self._is_old(self.looked_ms):
                    self._look(header)
                    self.looked_ms, self.boot_id = began, self.clock.boot_id()
        return began

    def confirm_after_put(self, header: CommitHeader, began: int) -> SlotRecord | None:
        """Call after the PUT. None: the slot counts. Else another writer leads: returns the head's
        live record, whose `txns` show whether the log holds what was put."""
        # SAFETY(look-after-slow-put) §6: an answer after planTtl or more counts only after a look
        if not self._is_old(began):
            return None
        _, live = self._head(header)
        ours = live.header.log_id == header.log_id and live.header.term == header.term
        return None if ours else live

    def _is_old(self, since_ms: int) -> bool:
        return is_old(self.clock, since_ms, self.boot_id, self.ttl_ms)

    def _head(self, header: CommitHeader) -> tuple[Head, SlotRecord]:
        try:
            head = find_head(self.log, header.window)
        except MissingRecord as error:
            raise self._gone(header, f"there is no record at position {error.position}") from None
        except ForeignRecord as error:
            if error.log_id == header.log_id:
                raise
            raise self._gone(header, f"another log, {error.log_id}, is there now") from None
        if head.live is None:
            raise self._gone(header, "nothing is there")
        if (live := head.live.header).log_id == header.log_id and live.term <= header.term:
            # SAFETY(look-at-beginning) §6: a writer's own record at the head proves no log before
            # it: the log may be recreated just as long
            self._check_beginning(header)
        return head, head.live

    def _check_beginning(self, header: CommitHeader) -> None:
        first = read_slot(self.log, self.began, header.window, GLANCE)
        if first is None:
            # A collection may have removed it, but not above its floor.
            state = chain.look(self.log, header.log_id)
            if state is None or state.floor <= self.began:
                raise self._gone(header, f"there is no record at position {self.began}")
        elif first.header.log_id != header.log_id:
            raise self._gone(header, f"another log, {first.header.log_id}, is there now")

    def _look(self, header: CommitHeader) -> None:
        head, live = self._head(header)
        if live.header.log_id != header.log_id:
            raise self._gone(header, f"another log, {live.header.log_id}, is there now")
        if live.header.term > header.term:
            taken = read_slot(self.log, header.position, header.window)
            raise fenced(self.log, taken or live)
        # All that this writer knows to be durable must be there.
        if head.gap <= header.position - self.limit:
            raise self._gone(header, f"it ends at position {head.position}")
        if head.gap > header.position:
            own = read_slot(self.log, header.position, header.window)
            if own is None or own.header.plan_id != header.plan_id:
                raise fenced(self.log, own or live)
        if self.known is not None:
            self.known = live.header.txns.get(header.query_id, (self.known, 0))[0]

    def _gone(self, header: CommitHeader, what: str) -> InvalidLogError:
        clock = self.clock
        since = utc(clock.now_ms() - (clock.boot_ms() - self.looked_ms))
        if self.known is None:
            put = f"microbatches of {header.query_id} before {header.batch_id}"
            rest = (
                "restart with a new checkpoint (sparkwal.checkpoint(path, name) makes one), which "
                "writes all rows of the source"
            )
        else:
            put = f"sequences of {header.query_id} after {self.known}"
            rest = (
                "open a new appender, which begins a new log, and send again what comes after "
                f"sequence {self.known}, and what came before if the new log is to have it"
            )
        return InvalidLogError(
            f"{self.log.url} was deleted or recreated while this writer led it: {what}. The log "
            f"{header.log_id} was last seen whole at {since}. What was acknowledged since then "
            f"({put}, at positions up to {header.position - 1}) lies in a hole that no reader "
            "reaches. Stop the log's writers. Where the store keeps old versions, restore what was "
            "deleted: the log is whole again, with all that was acknowledged. Else delete what is "
            f"left under the path and {rest}"
        )


def check_same_log(log: LogStore, lead: Leadership) -> None:
    """Check the log before a plan that builds on another run's commit writes: 1 GET. If the log was
    deleted meanwhile, an object above its new beginning would keep every writer from starting."""
    before = read_slot(log, lead.next_position - 1, lead.window, GLANCE)
    if before is None or before.header.log_id != lead.log_id:
        raise InvalidLogError(
            f"{log.url} is not the log that this writer wrote before: it was deleted or "
            "recreated meanwhile. This run of the query has written nothing to it. Start again "
            "with a new checkpoint (sparkwal.checkpoint(path, name) makes one), which writes all "
            "rows of the source"
        )
