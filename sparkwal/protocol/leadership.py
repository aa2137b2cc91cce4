"""The state of a writer that leads a log."""

from dataclasses import dataclass, replace
from typing import Any, Self

from sparkwal.format import arrowfile
from sparkwal.format.checked import Whole
from sparkwal.format.header import Checkpoints, SlotHeader, Txns


@dataclass(frozen=True)
class Leadership:
    """The leader, the position from which it may write, and the transactions of the log's queries.

    Attributes:
        began: the position of its leader record.
        next_position: the position of its next record.
        in_flight_limit: its own limit. The slots of former leaders are decided when it commits.
    """

    log_id: str
    leader_id: str
    host: str
    term: Whole
    window: Whole
    began: Whole
    next_position: Whole
    in_flight_limit: Whole
    timestamp_ms: Whole
    spark_schema: str
    txns: Txns
    checkpoints: Checkpoints
    txns_archive: str

    def after(self, record: SlotHeader) -> Self:
        """The leadership after this record."""
        return replace(
            self,
            next_position=record.position + 1,
            timestamp_ms=record.timestamp_ms,
            txns=record.txns,
            checkpoints=record.checkpoints,
            txns_archive=record.txns_archive,
        )

    def fields(self, plan_id: str, decided: int) -> dict[str, Any]:
        """The fields that all objects of the next position share. Positions up to `decided` hold
        records."""
        return {
            "log_id": self.log_id,
            "position": self.next_position,
            "window": self.window,
            "leader_id": self.leader_id,
            "term": self.term,
            "plan_id": plan_id,
            # SAFETY(commit-own-limit) §3: a commit record carries its writer's in_flight_limit
            "in_flight_limit": self.in_flight_limit,
            "schema_crc32": arrowfile.schema_crc(self.spark_schema),
            "decided": decided,
        }
