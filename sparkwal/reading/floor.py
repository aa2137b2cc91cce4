"""The floor of a log as its readers see it: objects below it may be deleted at any time.

A collection frees slots, and a writer that slept may PUT into a freed one. So a record that a
reader finds, or the lack of one, counts only if the floor was not above its position. The look at
the floor must be younger than the grace that a collection waits. A reader calls `check` after it
has read and before it delivers; `check` looks again if the last look is too old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.format.lifecycle_record import ChainRecord, LogInChain
from sparkwal.protocol import chain
from sparkwal.protocol.clock import SYSTEM, Clock, is_old
from sparkwal.protocol.slots import SlotRecord
from sparkwal.store.base import LogStore

# For a log without a chain: the shortest grace is an hour. The other half hour allows for clocks
# that differ: a store like S3 refuses a client whose clock is 15 minutes off.
LOOK_TTL_MS = 30 * 60_000
# This many slot records stay below the bound of a collection, which is never above the floor:
# look-backs, the search for the head and the search for a journal's sender need them.
KEPT_SLOTS = 1000
_SKEW_MS = 15 * 60_000
# The origin of a position below the floor, for errors.
CURSOR = "the cursor"
NEW_LOG = "a log that began after the stream"
NEW_IN_CURSOR = "a log that the cursor does not name"
_ADVICE = {
    CURSOR: "replay it without the cursor",
    NEW_LOG: "set startingPosition=earliest or failOnDataLoss=false",
    NEW_IN_CURSOR: "set the option startingPosition=earliest of the log",
}


@dataclass(frozen=True)
class Looked:
    """A look at the floor of a log.

    A task that reads a planned range uses the planner's look until it is `ttl_ms` old, then looks
    itself. It looks at once if the plan holds only the log_id.

    Attributes:
        log_id, prefix: the log.
        position: the floor.
        wall_ms, boot_ms, boot_id: the time when the look began.
        ttl_ms: how long the look may be used.
    """

    log_id: str | None
    prefix: str = ""
    position: int = 0
    wall_ms: int = 0
    boot_ms: int = 0
    boot_id: str = ""
    ttl_ms: int = 0


def ends_before(name: str, gap: int, floor: int) -> InvalidLogError:
    """The error for a log that ends below its floor."""
    return InvalidLogError(
        f"the log at {name} ends at {gap}, before its floor {floor}: it was cut or restored from "
        "an older copy"
    )


@dataclass(frozen=True)
class ChainLook:
    """A look at the chain of a path, which shows the floors of all its logs.

    Attributes:
        record: the newest record, or None without one.
        wall_ms, boot_ms, boot_id: the time when the look began.
    """

    record: ChainRecord | None
    wall_ms: int
    boot_ms: int
    boot_id: str


def look_at_floors(log: LogStore, clock: Clock = SYSTEM) -> ChainLook:
    """Read the floors of all logs of a path: 1 LIST, and 1 GET if there is a chain."""
    # Read the clocks before the requests: their results may be old when they arrive.
    wall_ms = clock.now_ms()
    boot_ms = clock.boot_ms()
    boot_id = clock.boot_id()
    return ChainLook(chain.newest_record(log), wall_ms, boot_ms, boot_id)


class Floor:
    """The floor of a log: objects below it may be deleted.

    Args:
        log: the log.
        log_id: its id, or None if it does not exist: then its floor is 0.
        clock: the clock.
        looked: the look of another process.
    """

    def __init__(
        self,
        log: LogStore,
        log_id: str | None = None,
        clock: Clock = SYSTEM,
        looked: Looked | None = None,
    ) -> None:
        self.log = log
        self.log_id = log_id
        self._clock = clock
        self._state: LogInChain | None = None
        self._record: ChainRecord | None = None
        self._looked: Looked | None = None
        if looked is not None:
            # Each machine has its own boot clock. Only the wall clock is common to both.
            age = max(clock.now_ms() - looked.wall_ms, 0)
            self._looked = replace(looked, boot_ms=clock.boot_ms() - age, boot_id=clock.boot_id())

    def refresh(self) -> None:
        """Read the floor: 1 LIST, and 1 GET if the log has a lifecycle."""
        self.take(self.look_at_chain())

    def look_at_chain(self) -> ChainLook:
        """Look at the chain of the log's path: see `look_at_floors`."""
        return look_at_floors(self.log, self._clock)

    def take(self, seen: ChainLook) -> None:
        """Take the floor from a look at the chain of this log's path, by the same clock."""
        self._record = seen.record
        self._state = state = seen.record.log(self.log.name) if seen.record else None
        log_id, position = (state.log_id, state.floor) if state else (None, 0)
        # A chain never shortens its grace.
        ttl_ms = seen.record.gc_grace_ms // 2 if seen.record else LOOK_TTL_MS
        times = seen.wall_ms, seen.boot_ms, seen.boot_id
        self._looked = Looked(log_id, self.log.prefix, position, *times, ttl_ms)

    @property
    def state(self) -> LogInChain | None:
        """The log in the newest record of the chain at the last look, or None without one."""
        return self._state if self._state and self._state.log_id == self.log_id else None

    @property
    def record(self) -> ChainRecord | None:
        """The newest record of the chain at the last look, or None if it does not have the log."""
        return self._record if self.state else None

    @property
    def is_known(self) -> bool:
        """Whether a look, of this process or of another, is young enough."""
        # SAFETY(floor-look-expires) §9: a look at the floor counts only while it is recent
        return self._looked is not None and not self._is_old(self._looked)

    def current(self) -> int:
        """The floor, from a look that is young enough."""
        if self.log_id is None:
            return 0
        if not self.is_known:
            self.refresh()
        assert self._looked is not None
        # SAFETY(floor-of-this-log) §9: the floor of another log_id counts as none
        return self._looked.position if self._looked.log_id == self.log_id else 0

    def _is_old(self, looked: Looked) -> bool:
        age = self._clock.now_ms() - looked.wall_ms
        return not -_SKEW_MS <= age < looked.ttl_ms or is_old(
            self._clock, looked.boot_ms, looked.boot_id, looked.ttl_ms
        )

    def looked(self) -> Looked:
        """The look for a task that continues with it."""
        position = self.current()
        assert self._looked is not None
        return replace(self._looked, log_id=self.log_id, position=position)

    def check(self, position: int, what: str = "") -> None:
        """Check that a record at `position` may be used. `what` names the origin of the position.

        Raises:
            CollectedError: the position is below the floor.
        """
        floor = self.current()
        if not 0 <= position < floor:
            return
        table = self._state.table if self._state else ""
        # Only the process that looked has the state: a task has none.
        reason = " by retention" if self._state else ""
        if table:
            reason = f", they are in the table {table}"
        begin = f"set failOnDataLoss=false, or begin at {floor} (a stream with a new checkpoint)"
        action = _ADVICE.get(what, begin)
        raise CollectedError(
            f"{what + ': ' if what else ''}position {position} of {self.log.url} is below the "
            f"log's floor, {floor}: its rows left the log{reason}. To continue with the rows that "
            f"the log still holds {action}",
            floor=floor,
        )

    def usable(self, start: int, end: int, records: Iterator[SlotRecord]) -> Iterator[SlotRecord]:
        """The records of positions start … end−1, each checked against the floor before it is
        delivered.

        A position below the floor may hold a stray record, and a stray record may have stood there
        when the position was read.

        Raises:
            CollectedError: the floor passed a position before its record was delivered.
        """
        reached = start
        try:
            for record in records:
                self.check(reached)
                reached = record.header.position + 1
                yield record
        except InvalidLogError:
            # A collection may have deleted the missing record: then that is the error.
            self.check(reached)
            raise
        # SAFETY(floor-after-read) §9: a reader checks the floor after it read and before it
        # delivers
        if reached < end:
            self.check(reached)
