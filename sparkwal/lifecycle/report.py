"""What a look at a log's life found, and what a run did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkwal.format.lifecycle import LifecycleRecord
from sparkwal.lifecycle.collection import Collection
from sparkwal.lifecycle.compaction import Finished
from sparkwal.lifecycle.policy import Action

Found = Literal["no log", "no lifecycle", "at rest", "an open range"]


@dataclass(frozen=True)
class Range:
    """Positions start … end−1, which the table has as range `k`.

    Attributes:
        rows, bytes: that the table took for it, merged and as stored there; None where its
            history does not show.
    """

    k: int
    start: int
    end: int
    table_version: int
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Recovery:
    """What was found when the lifecycle was looked at, and what was done to go on.

    Attributes:
        found: "an open range": somebody promised a range to the table and did not publish it.
        finished: that range, if it is in the table now.
        was_written: whether the table held it already, and only the record was missing.
        cut, floor, gap: positions below `cut` are in the table, below `floor` may be deleted;
            the log's next position is `gap`.
    """

    found: Found
    cut: int = 0
    floor: int = 0
    gap: int = 0
    finished: Range | None = None
    was_written: bool = False


@dataclass(frozen=True)
class Run:
    """What one run did.

    Attributes:
        compacted: the range that it brought into the table, if one was due.
        floor: where it is now.
        collection: what was deleted; None where nothing could be.
        actions: what the policy asked for.
    """

    recovery: Recovery
    compacted: Range | None = None
    floor: int = 0
    collection: Collection | None = None
    actions: tuple[Action, ...] = ()


def range_of(intent: LifecycleRecord, finished: Finished) -> Range:
    """The range that an intent promised, as the table has it."""
    held = finished.held
    rows, size = (held.rows, held.bytes) if held else (None, None)
    return Range(intent.k, intent.cut, intent.to, finished.done.table_version, rows, size)
