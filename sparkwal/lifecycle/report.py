"""What a look at a log's life found, and what a run did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkwal.lifecycle.collection import Collection
from sparkwal.lifecycle.compaction import Range

Found = Literal["no log", "no lifecycle", "at rest", "an open range"]


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
    """

    recovery: Recovery
    compacted: Range | None = None
    floor: int = 0
    collection: Collection | None = None
