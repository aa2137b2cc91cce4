"""The records of a log as they come, for who stays with it: one look after another."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwal.errors import CollectedError
from sparkwal.protocol.replay import WIDEST_PROBE, AnotherLog
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot
from sparkwal.reading.history import Collected
from sparkwal.reading.log_range import LogRange

# Idle looks after which it is asked whether the last record is still there: a log that was
# recreated has free positions where the former one goes on.
_IDLE_LOOKS = 10


class Follower:
    """Goes along a log that has looked; `position` is that of the record that is looked at, else
    the next one to come."""

    def __init__(self, log: LogRange, position: int) -> None:
        self.log, self.position = log, position
        self._log_id = log.log_id
        self._idle = 0

    def new(
        self, *, floor: bool = True, at_once: int = WIDEST_PROBE, size: int = GLANCE
    ) -> Iterator[SlotRecord | Collected]:
        """The live records that came since the last look, and what was collected meanwhile: 1 GET
        where nothing came, now and then 1 more. Who ends in the middle of a record gets it once
        more.

        Args:
            floor: as for `LogRange.look`; without, a log that was recreated is found only where its
                records are.
            at_once, size: as for `LogRange.records`.

        Raises AnotherLog where the log was recreated or is gone, InvalidLogError,
        StoreUnavailableError.
        """
        log = self.log
        end = log.look(floor=floor)
        self._idle = 0 if end > self.position else self._idle + 1
        gone = log.log_id != self._log_id
        if floor and self._idle >= _IDLE_LOOKS and not gone and log.log_id is not None:
            self._idle = 0
            last = read_slot(log.log, log.gap - 1, log.window, GLANCE)
            gone = last is None or last.header.log_id != log.log_id
        if gone:
            raise AnotherLog(
                f"the log {self._log_id} at {log.log.url} is gone, or was recreated: follow what "
                "is there now anew"
            )
        if end <= self.position:
            return
        try:
            for record in log.records(self.position, end, at_once=at_once, size=size):
                self.position = record.header.position
                yield record
                self.position += 1
            self.position = end
        except CollectedError as error:
            yield Collected(self.position, error.floor)
            self.position = error.floor
        log.forget(self.position)
