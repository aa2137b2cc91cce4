"""Makes segments of the blocks that one session of an appender wrote as a whole (PROTOCOL §13).

It has their bytes in memory, so a segment costs one PUT and no GET. A failure is an event, and
harms no append: other makers make what is missing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from sparkwal import events
from sparkwal.appender.context import AppenderContext
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.segments import mark_of
from sparkwal.protocol.slots import SlotRecord, open_slot
from sparkwal.reading.segmenting import Block, Unfit, encoded
from sparkwal.store.threads import run_in_daemon

# The limit of bytes of a block's records, as stored. Memory holds at most two blocks: one that is
# gathered and one that is encoded.
_MOST_BYTES = 32 * 2**20
# The most bytes of the unpacked rows of a block.
_MOST_UNPACKED = 64 * 2**20
# Closing waits this long for the last segment.
_DRAIN_SECONDS = 5.0


@dataclass
class _Gathered:
    """The records of a block, with the one before it, which are durable.

    Attributes:
        first: the first position of the block.
        datas: the bytes of the records at `first` − 1, `first`, …
        size: their number of bytes.
    """

    first: int
    datas: list[bytes] = field(default_factory=list)
    size: int = 0

    @property
    def is_complete(self) -> bool:
        return len(self.datas) == keys.BLOCK + 1


class OwnSegments:
    """The segments of one session.

    A block needs the record before it from this session too. One that takes too much memory is
    left to other makers.

    Args:
        context: the appender.
        window: the window of the log.
    """

    def __init__(self, context: AppenderContext, window: int) -> None:
        self._context = context
        self._window = window
        # By position: the bytes of the records that are in flight.
        self._sent: dict[int, tuple[CommitHeader, bytes]] = {}
        self._gathered: _Gathered | None = None
        # The complete block that waits for its witness.
        self._waiting: _Gathered | None = None
        self._completed_ms = 0
        self._idle = threading.Event()
        self._idle.set()

    def sent(self, header: CommitHeader, data: bytes) -> None:
        """Take a record that is sent now. Not thread-safe."""
        self._sent[header.position] = header, data

    def durable(self, position: int) -> None:
        """Take note that a record is acknowledged. Call it in the order of positions. It returns
        quickly. Not thread-safe.
        """
        header, data = self._sent.pop(position)
        waiting = self._waiting
        # SAFETY(own-segment-decided) §13: a record after the block proves that it is decided
        if waiting is not None and header.decided >= waiting.first + keys.BLOCK - 1:
            self._waiting = None
            self._begin(waiting, position, data)
        self._gather(position, data)
        if (position + 1) % keys.BLOCK == 0:
            complete, self._gathered = self._gathered, _Gathered(position + 1)
            if complete is not None and complete.is_complete and self._waiting is None:
                self._waiting = complete
                self._completed_ms = self._context.clock.boot_ms()
            self._gather(position, data)

    def close(self, timeout: float | None) -> None:
        """Wait a few seconds for the segment that is being made."""
        self._idle.wait(_DRAIN_SECONDS if timeout is None else min(timeout, _DRAIN_SECONDS))

    def _gather(self, position: int, data: bytes) -> None:
        gathered = self._gathered
        if gathered is None:
            return
        gathered.datas.append(data)
        gathered.size += len(data)
        if gathered.size > _MOST_BYTES:
            self._gathered = None

    def _begin(self, block: _Gathered, position: int, witness: bytes) -> None:
        """Make a segment in another thread, if none is being made."""
        if not self._idle.is_set():
            return
        self._idle.clear()
        completed_ms = self._completed_ms

        def make() -> None:
            try:
                self._make(block, self._opened(position, witness), completed_ms)
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"
                self._context.subscribers.publish(
                    events.SegmentsNotMade(self._context.log.url, reason)
                )
            finally:
                self._idle.set()

        run_in_daemon(make)

    def _make(self, block: _Gathered, witness: SlotRecord, completed_ms: int) -> None:
        log, clock = self._context.log, self._context.clock
        before, *records = (
            self._opened(position, data)
            for position, data in enumerate(block.datas, block.first - 1)
        )
        last_position = block.first + keys.BLOCK - 1
        try:
            decided = Block(last_position, records, mark_of(before), mark_of(witness))
            body = encoded(log, decided, memory=_MOST_UNPACKED)
        except Unfit:
            return
        # After a long sleep a collection may have deleted the block already.
        if clock.boot_ms() - completed_ms > self._context.settings.plan_ttl_ms:
            return
        key = keys.segment_key(log.prefix, block.first // keys.BLOCK, self._window)
        if log.store.put_if_absent(key, body):
            self._context.subscribers.publish(events.SegmentsMade(log.url, 1))

    def _opened(self, position: int, data: bytes) -> SlotRecord:
        record = open_slot(self._context.log, position, self._window, data)
        assert record is not None
        return record
