"""Makes the segments that a log lacks, as a part of its lifecycle (PROTOCOL §13)."""

from __future__ import annotations

from sparkwal import events
from sparkwal.format import keys
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import Head
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import decided_before, make_segments
from sparkwal.store.base import LogStore, Refusal

# The limit of segments that one run makes: the next run continues.
_MOST = 100


class SegmentMaker:
    """Makes the segments that are missing, run after run. It replaces none.

    Args:
        log: the log.
        sequencer: its name.
    """

    def __init__(self, log: LogStore, sequencer: str) -> None:
        self._log = log
        self._sequencer = sequencer
        self._log_id = ""
        # Blocks before it have a segment, or get none from this process.
        self._next = 0
        self._without: set[int] = set()
        self._is_refused = False

    def run(self, head: Head | None) -> int:
        """Make the missing segments, at most 100.

        It makes no request if no block was decided since the last run. Otherwise it costs 2 LIST
        and 1 GET, and 1,001 GETs and 1 PUT for each segment. An InvalidLogError of a block or a
        refusal of the store is an event.

        Args:
            head: the head of the log.

        Returns:
            The number of new segments.

        Raises:
            AnotherLog: the log was recreated.
            StoreUnavailableError: the store did not answer.
        """
        if self._is_refused or head is None or head.live is None:
            return 0
        header = head.live.header
        if header.log_id != self._log_id:
            self._log_id = header.log_id
            self._next = 0
            self._without = set()
        end = decided_before(header) // keys.BLOCK
        if end <= self._next:
            return 0
        log = LogRange(SourceOptions(path=self._log.url), self._sequencer, self._log)
        log.see(head)
        try:
            segments = make_segments(log, every=False, without=self._without, most=_MOST)
        except Refusal as refusal:
            self._is_refused = True
            events.emit(events.SegmentsNotMade(self._log.url, str(refusal)))
            return 0
        for reason in (*segments.skipped.values(), *segments.damaged.values()):
            events.emit(events.SegmentsNotMade(self._log.url, reason))
        self._without |= segments.skipped.keys() | segments.damaged.keys()
        is_complete = len(segments.blocks) < _MOST
        self._next = end if is_complete else self._next
        return len(segments.blocks)
