"""What a reader reads of a log, and what it does at damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError, NewerFormatError
from sparkwal.protocol.missing import AnotherLog, MissingRecord
from sparkwal.protocol.slots import WHOLE, SlotRecord, TornRecord, copied, read_any
from sparkwal.store.base import LogStore

# Called with the error of each record or object that is damaged or missing. The read then continues
# after it.
OnDamage = Callable[[InvalidLogError], None]
# The content of a slot.
Slot = SlotRecord | TornRecord


@dataclass(frozen=True)
class DamagePolicy:
    """The behaviour of a read at a missing, damaged or collected record.

    Attributes:
        skips_lost: continue after positions that were collected or are missing
            (failOnDataLoss=false).
        stops: end the read before the damage (onCorruption=stop).
        has_end: the options name the last position to read.
        report: gets each damage, and the read continues after it; or None.
    """

    skips_lost: bool = False
    stops: bool = False
    has_end: bool = False
    report: OnDamage | None = None

    @property
    def allows_damaged_end(self) -> bool:
        """Whether the log's last records may be damaged: the read may end before them anyway."""
        return self.skips_lost or self.stops or self.has_end

    @property
    def of_head(self) -> DamagePolicy:
        """The policy of the search for the head."""
        return LENIENT if self.allows_damaged_end else STRICT

    @property
    def trusts_head(self) -> bool:
        """Whether the term of the head decides which records are live.

        A read that may end before a damaged end may have found a head that is too low.
        """
        return self.skips_lost or not self.allows_damaged_end

    @property
    def continues(self) -> bool:
        """Whether a read continues after a missing record."""
        return self.skips_lost or self.report is not None

    def continues_after(self, error: InvalidLogError) -> bool:
        """Whether the read continues after this damage."""
        if isinstance(error, AnotherLog):
            return False
        return self.report is not None or (self.skips_lost and isinstance(error, MissingRecord))

    def ends_before(self, error: InvalidLogError) -> bool:
        """Whether the read ends before this damage, without an error."""
        return self.stops and not isinstance(error, (AnotherLog, NewerFormatError))


# Raises the error of the first damage.
STRICT = DamagePolicy()
# Continues after lost records.
LENIENT = DamagePolicy(skips_lost=True)


@dataclass(frozen=True)
class LogView:
    """What a reader reads of a log.

    Attributes:
        log: the log. That of a reader has the copies of lost records (`with_copies`).
        window: its window.
        log_id: its id. Without it the first record that is read decides.
        newest: the live record at the head, if the caller has read it and it is intact. It may save
            look-backs.
        damage: what the reader does at damage.
    """

    log: LogStore
    window: int
    log_id: str | None = None
    newest: SlotRecord | None = None
    damage: DamagePolicy = STRICT

    def slot(self, position: int, size: int = WHOLE) -> Slot | None:
        """Read the slot at a position, or the copy of its record if that is lost.

        Returns:
            The record. None for a position without one, and for a damaged record if the policy
            continues after it.

        Raises:
            InvalidLogError: the record is damaged.
            WrongWindow: the log has another window.
        """
        tolerant = self.damage.continues
        slot = read_any(self.log, position, self.window, size, tolerant=tolerant)
        return slot or copied(self.log, position, self.window, self.log_id)
