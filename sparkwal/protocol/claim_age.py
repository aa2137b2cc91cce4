"""The age rule: how long a writer may act on its last look at the log (PROTOCOL §6)."""

import threading
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError
from sparkwal.format.header import CommitHeader
from sparkwal.protocol import chain
from sparkwal.protocol.clock import Clock, is_old, utc
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.missing import ForeignRecord, MissingRecord
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_any, read_slot
from sparkwal.protocol.takeover import fenced
from sparkwal.store.base import LogStore


@dataclass
class ClaimAge:
    """The time of a writer's last look at the log. Thread-safe.

    The writer claims a slot only if that look is younger than `ttl_ms`.

    Attributes:
        log, clock, ttl_ms: see above.
        began: the position of the writer's leader record.
        limit: the writer's in-flight limit. All slots before those in flight must exist.
        looked_ms, boot_id: the time of the last look. The default of `boot_id` is this boot.
        last_sequence: for an appender: the producer's last sequence in the log at that look.
    """

    log: LogStore
    clock: Clock
    ttl_ms: int
    began: int
    limit: int
    looked_ms: int
    boot_id: str = ""
    last_sequence: int | None = None

    def __post_init__(self) -> None:
        self.boot_id = self.boot_id or self.clock.boot_id()
        self._looking = threading.Lock()

    def before(self, header: CommitHeader, *, at_once: bool = False) -> int:
        """Look if necessary, before the slot of `header` is claimed.

        Args:
            header: the record to put.
            at_once: look even if the last look is young.

        Returns:
            The time for `confirm_after_put`.

        Raises:
            FencedError: another writer leads.
            InvalidLogError: the log was deleted or recreated.
        """
        began = self.clock.boot_ms()
        if at_once or self._is_old(self.looked_ms):
            # Threads that wake up at the same time share one look.
            with self._looking:
                # SAFETY(look-before-claim) §6: a look younger than planTtl comes before each claim
                if at_once or self._is_old(self.looked_ms):
                    self._check_log(header)
                    self.looked_ms, self.boot_id = began, self.clock.boot_id()
        return began

    def confirm_after_put(self, header: CommitHeader, began: int) -> SlotRecord | None:
        """Check, after the PUT, that the slot counts.

        Returns:
            None if it counts. Otherwise another writer leads: the head's live record, whose `txns`
            show whether the log holds the rows.
        """
        # SAFETY(look-after-slow-put) §6: an answer after planTtl or more counts only after a look
        if not self._is_old(began):
            return None
        _, live = self._head(header)
        is_own = live.header.log_id == header.log_id and live.header.term == header.term
        return None if is_own else live

    def _is_old(self, since_ms: int) -> bool:
        return is_old(self.clock, since_ms, self.boot_id, self.ttl_ms)

    def _head(self, header: CommitHeader) -> tuple[Head, SlotRecord]:
        try:
            head = find_head(self.log, header.window)
        except MissingRecord as error:
            raise self._gone(header, f"position {error.position} holds no record") from None
        except ForeignRecord as error:
            if error.log_id == header.log_id:
                raise
            raise self._gone(header, f"the path holds another log, {error.log_id}") from None
        if head.live is None:
            raise self._gone(header, "the path holds no log")
        if (live := head.live.header).log_id == header.log_id and live.term <= header.term:
            # SAFETY(look-at-beginning) §6: a writer's own record at the head proves no log before
            # it: the log may be recreated just as long
            self._check_beginning(header)
        return head, head.live

    def _check_beginning(self, header: CommitHeader) -> None:
        first = read_slot(self.log, self.began, header.window, GLANCE)
        if first is None:
            # A collection may have deleted the record, but only below the floor.
            state = chain.newest_lifecycle(self.log, header.log_id)
            if state is None or state.floor <= self.began:
                raise self._gone(header, f"position {self.began} holds no record")
        elif first.header.log_id != header.log_id:
            raise self._gone(header, f"the path holds another log, {first.header.log_id}")

    def _check_log(self, header: CommitHeader) -> None:
        head, live = self._head(header)
        if live.header.log_id != header.log_id:
            raise self._gone(header, f"the path holds another log, {live.header.log_id}")
        if live.header.term > header.term:
            taken = read_any(self.log, header.position, header.window)
            raise fenced(self.log, taken if isinstance(taken, SlotRecord) else live)
        # Every record that this writer found durable must still exist.
        if head.gap <= header.position - self.limit:
            raise self._gone(header, f"it ends at position {head.position}")
        if head.gap > header.position:
            own = read_any(self.log, header.position, header.window)
            if not isinstance(own, SlotRecord):
                raise fenced(self.log, live)
            if own.header.plan_id != header.plan_id:
                raise fenced(self.log, own)
        if self.last_sequence is not None:
            last, _ = live.header.txns.get(header.query_id, (self.last_sequence, 0))
            self.last_sequence = last

    def _gone(self, header: CommitHeader, what: str) -> InvalidLogError:
        clock = self.clock
        since = utc(clock.now_ms() - (clock.boot_ms() - self.looked_ms))
        if self.last_sequence is None:
            lost = f"microbatches of {header.query_id} before {header.batch_id}"
            action = (
                "restart with a new checkpoint (sparkwal.checkpoint(path, name) makes one), which "
                "writes all rows of the source"
            )
        else:
            lost = f"sequences of {header.query_id} after {self.last_sequence}"
            action = (
                "open a new appender, which begins a new log, and send the rows after sequence "
                f"{self.last_sequence} again, and the earlier ones if the new log needs them"
            )
        return InvalidLogError(
            f"{self.log.url} was deleted or recreated while this writer led it: {what}. The log "
            f"{header.log_id} was last seen intact at {since}. The rows that were acknowledged "
            f"since then ({lost}, at positions up to {header.position - 1}) lie in a hole that no "
            "reader reaches. Stop the log's writers. If the store keeps old versions, restore the "
            "deleted objects: then the log holds all acknowledged rows again. If not, delete the "
            f"remaining objects under the path and {action}"
        )


def check_same_log(log: LogStore, lead: Leadership) -> None:
    """Check that the log still exists, before a plan writes that builds on another run's commit. 1
    GET.

    If the log was deleted meanwhile, an object above its new beginning would stop every writer.

    Raises:
        InvalidLogError: the log was deleted or recreated.
    """
    before = read_slot(log, lead.next_position - 1, lead.window, GLANCE)
    if before is None or before.header.log_id != lead.log_id:
        raise InvalidLogError(
            f"{log.url} is not the log that this writer wrote before: it was deleted or "
            "recreated meanwhile. This run of the query has written nothing to it. Start again "
            "with a new checkpoint (sparkwal.checkpoint(path, name) makes one), which writes all "
            "rows of the source"
        )
