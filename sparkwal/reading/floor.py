"""The floor of a log as its readers see it: positions below may be deleted at any time.

A collection frees slots, and a writer that slept may PUT into a freed one. So what a reader finds
at a position, or that it finds nothing, counts only if the floor was not above that position at a
look younger than the grace that a collection waits for. Whoever has read asks `check` before he
delivers; it looks again where the last look is too old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.format.lifecycle_record import LifecycleRecord
from sparkwal.protocol import chain
from sparkwal.protocol.clock import SYSTEM, Clock, is_old
from sparkwal.protocol.slots import SlotRecord
from sparkwal.store.base import LogStore

# Of a log without a chain: the least grace is an hour. The rest of a grace is for clocks that
# differ: a store like S3 refuses whoever is 15 minutes off.
LOOK_TTL_MS = 30 * 60_000
# So many slot records stay below the bound of a collection, which is no floor's above: look-backs,
# the search for the head and for a journal's sender need them.
KEPT_SLOTS = 1000
_SKEW_MS = 15 * 60_000
# What a position below the floor comes from, for people.
CURSOR = "the cursor"
NEW_LOG = "a log that began after the stream"
NEW_IN_CURSOR = "a log that the cursor does not name"
_ADVICE = {
    CURSOR: "replay it without the cursor",
    NEW_LOG: "set startingPosition=earliest or failOnDataLoss=false",
    NEW_IN_CURSOR: "give the log the option startingPosition=earliest",
}


@dataclass(frozen=True)
class Looked:
    """A look at the floor of a log, which is at `position`; it began at wall_ms and boot_ms, and
    may be trusted for ttl_ms. Who reads what was planned before trusts the plan's, or looks again
    itself: at once where the plan knows no more than the log_id."""

    log_id: str | None
    prefix: str = ""
    position: int = 0
    wall_ms: int = 0
    boot_ms: int = 0
    boot_id: str = ""
    ttl_ms: int = 0


def ends_before(name: str, gap: int, floor: int) -> InvalidLogError:
    return InvalidLogError(
        f"the log at {name} ends at {gap}, before its floor {floor}: it was cut or restored from "
        "an older copy"
    )


class Floor:
    """Below which position a log may be gone. Nothing was collected of a log that is not there.
    `looked` is the look of another process."""

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
        self._state: LifecycleRecord | None = None
        self._looked: Looked | None = None
        if looked is not None:
            # The boot clock is this machine's own; only the wall clock is of both.
            age = max(clock.now_ms() - looked.wall_ms, 0)
            self._looked = replace(looked, boot_ms=clock.boot_ms() - age, boot_id=clock.boot_id())

    def look(self) -> None:
        """Read the floor: 1 LIST, and 1 GET where the log has a lifecycle."""
        # Before the requests: what they find may be old when it arrives.
        clock = self._clock
        wall_ms = clock.now_ms()
        boot_ms = clock.boot_ms()
        boot_id = clock.boot_id()
        self._state = state = chain.look(self.log)
        log_id, position = (state.log_id, state.floor) if state else (None, 0)
        # The grace of a chain never shrinks.
        ttl_ms = state.gc_grace_ms // 2 if state else LOOK_TTL_MS
        self._looked = Looked(log_id, self.log.prefix, position, wall_ms, boot_ms, boot_id, ttl_ms)

    @property
    def state(self) -> LifecycleRecord | None:
        """The newest record of this log's lifecycle at the last look, if there is one."""
        return self._state if self._state and self._state.log_id == self.log_id else None

    @property
    def is_known(self) -> bool:
        """Whether a look, of this process or of another, is young enough."""
        # SAFETY(floor-look-expires) §9: a look at the floor counts only while it is recent
        return self._looked is not None and not self._is_old(self._looked)

    def current(self) -> int:
        """The floor, by a look that is young enough."""
        if self.log_id is None:
            return 0
        if not self.is_known:
            self.look()
        assert self._looked is not None
        # SAFETY(floor-of-this-log) §9: the floor of another log_id counts as none
        return self._looked.position if self._looked.log_id == self.log_id else 0

    def _is_old(self, looked: Looked) -> bool:
        age = self._clock.now_ms() - looked.wall_ms
        return not -_SKEW_MS <= age < looked.ttl_ms or is_old(
            self._clock, looked.boot_ms, looked.boot_id, looked.ttl_ms
        )

    def looked(self) -> Looked:
        """For a task, which goes on where this look ends."""
        position = self.current()
        assert self._looked is not None
        return replace(self._looked, log_id=self.log_id, position=position)

    def check(self, position: int, what: str = "") -> None:
        """Raises CollectedError unless what was read at `position`, from `what`, may be used."""
        floor = self.current()
        if not 0 <= position < floor:
            return
        target = self._state.target if self._state else None
        gone = " by retention" if self._state else ""  # a task does not know
        if target:
            gone = f", they are in the table {target.table}"
        begin = f"set failOnDataLoss=false, or begin at {floor} (a stream with a new checkpoint)"
        go_on = _ADVICE.get(what, begin)
        raise CollectedError(
            f"{what + ': ' if what else ''}position {position} of {self.log.url} is below the "
            f"log's floor, {floor}: its rows left the log{gone}. To go on with what the log "
            f"still holds {go_on}",
            floor=floor,
        )

    def usable(self, start: int, end: int, records: Iterator[SlotRecord]) -> Iterator[SlotRecord]:
        """The records of the positions start … end−1, none delivered that may be a stray, nor after
        a position where one may have stood for the record that is gone. Raises CollectedError."""
        reached = start
        try:
            for record in records:
                self.check(reached)
                reached = record.header.position + 1
                yield record
        except InvalidLogError:
            # Perhaps it was collected, and that is why it is missing.
            self.check(reached)
            raise
        # SAFETY(floor-after-read) §9: a reader checks the floor after it read and before it
        # delivers
        if reached < end:
            self.check(reached)
