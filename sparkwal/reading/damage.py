"""Decides what a read does at damage: at a missing, damaged or collected record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError, NewerFormatError
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.missing import MissingRecord
from sparkwal.protocol.records import AnotherLog

# Called with the error of each record or object that is damaged or missing. The read then continues
# after it.
OnDamage = Callable[[InvalidLogError], None]


@dataclass(frozen=True)
class DamagePolicy:
    """The behaviour of a read at damage, from its options.

    Attributes:
        skips_lost: continue after positions that were collected or are missing
            (failOnDataLoss=false).
        stops: end the read before the damage (onCorruption=stop).
        has_end: the options name the last position to read.
        report: gets each damage, and the read continues after it; or None.
    """

    skips_lost: bool
    stops: bool
    has_end: bool
    report: OnDamage | None

    @classmethod
    def from_options(cls, options: SourceOptions, report: OnDamage | None = None) -> DamagePolicy:
        """The policy of a read. A read that stops at damage reports none."""
        stops = options.on_corruption == "stop"
        has_end = options.ending_position is not None
        return cls(not options.fail_on_data_loss, stops, has_end, None if stops else report)

    @property
    def allows_damaged_end(self) -> bool:
        """Whether the log's last records may be damaged: the read may end before them anyway."""
        return self.skips_lost or self.stops or self.has_end

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
