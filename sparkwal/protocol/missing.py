"""The errors of records that are missing, or that belong to another log (PROTOCOL §4)."""

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.protocol.slots import SlotRecord
from sparkwal.store.base import LogStore


class MissingRecord(InvalidLogError):
    """The record at `position` is missing, although a later object proves that it was written.

    The other records before `end` are missing too. `before` is the last record before them, if it
    was read, and `newest` the position of the last record.
    """

    position: int

    def __init__(
        self,
        log: LogStore,
        position: int,
        window: int,
        before: SlotRecord | None = None,
        newest: int = 0,
        end: int = 0,
    ) -> None:
        self.end = max(end, position + 1)
        several = f"the records of positions {position} … {end - 1} are missing"
        super().__init__(
            f"{f'the record of position {position} is missing' if end <= position + 1 else several}"
            f" ({log.locate(keys.slot(position, window))}), yet the log continues after it. It was "
            "deleted from outside: restore it (for example from a bucket version; see "
            "sparkwal.repair), or scan or stream the remaining rows with failOnDataLoss=false"
        )
        self.position = position
        self.window = window
        self.before = before
        self.newest = newest


class ForeignRecord(InvalidLogError):
    """A record of a deleted log lies after the end of the log `log_id`."""

    def __init__(self, log: LogStore, number: int, log_id: str, record: SlotRecord) -> None:
        other = record.header
        super().__init__(
            f"{log.locate(number)} lies after the end of the log {log_id} and belongs to another, "
            f"{other.log_id}, which was at this path before: end its writer {other.leader_id}, if "
            "that still runs, and delete that object and the later ones that it wrote"
        )
        self.log_id = log_id


class AnotherLog(InvalidLogError):
    """A record of another log: this one was recreated at the same path."""


def check_log(log: LogStore, record: SlotRecord, log_id: str) -> None:
    """Check that a record belongs to the log `log_id`.

    Raises:
        AnotherLog: it does not.
    """
    # SAFETY(records-of-one-log) §9: two logs share neither positions nor order, so no read mixes
    # their records
    if record.header.log_id != log_id:
        raise AnotherLog(
            f"the log at {log.url} was recreated while it was read: position "
            f"{record.header.position} belongs to the log {record.header.log_id}, the records "
            f"before it to {log_id}. Read it from the start; a stream needs a new checkpoint"
        )
