"""Two logs in one store: a query in the first, and a fork of it in another."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import sparkwal
from sparkwal.checkpoints import folder
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.appender.faulty_store import stored
from tests.checkpoints.stream import FileStream


@dataclass
class Logs:
    """Logs in one store. A name of a log is its prefix."""

    store: MemoryStore
    tmp: Path

    def log(self, prefix: str = "wal") -> LogStore:
        return LogStore(self.store, prefix)

    def checkpoint(
        self, prefix: str, name: str, machine: str = "", fork: sparkwal.Fork | None = None
    ) -> Path:
        """`sparkwal.checkpoint` on a machine."""
        place = self.tmp / f"{machine or name}-{prefix}"
        url = f"s3://bucket/{prefix}"
        return Path(sparkwal.checkpoint(url, name, folder=place, fork=fork))

    def stream(self, prefix: str, place: Path, **more: object) -> FileStream:
        """A query as a new application."""
        hints = Hints(prefix, self.tmp / f"hints-{place.name}")
        return FileStream(self.log(prefix), place, hints, **more)  # type: ignore[arg-type]

    def written(self, files: int, **more: object) -> None:
        """The query `orders` of the log `wal`, one file a microbatch."""
        self.stream("wal", self.checkpoint("wal", "orders"), **more).run(range(files))

    def values(self, prefix: str) -> list[int]:
        return stored(self.store, prefix)

    def commits(self, prefix: str) -> list[CommitHeader]:
        log = self.log(prefix)
        head = find_head(log)
        records = live_records(LogView(log, head.window), 0, head.gap)
        return [each.header for each in records if isinstance(each.header, CommitHeader)]


def fork_of(at: int | str, path: str = "s3://bucket/wal", name: str = "orders") -> sparkwal.Fork:
    """A fork of the query `orders` in `wal`."""
    return sparkwal.Fork(path, name, at=at)


@dataclass
class OffsetStream(FileStream):
    """A query over a source whose offset is JSON, such as Kafka's. A row is a number of an offset.

    Attributes:
        topic: the name of the topic; its partition 0 holds all rows.
    """

    topic: str = "orders"
    others: dict[str, str] = field(default_factory=dict)

    def plan(self, number: int, files: range, each: int) -> bool:
        begin = self._offset(number - 1) if number else 0
        end = min(begin + each, files.stop)
        if end <= begin:
            return False
        self.plan_to(number, end)
        return True

    def plan_to(self, number: int, end: int) -> None:
        """As Spark writes a microbatch that ends at this offset."""
        times = json.dumps({"batchWatermarkMs": 1000 * end, "batchTimestampMs": number})
        offset = json.dumps({self.topic: {"0": end}}, separators=(",", ":"))
        lines = [self._named(self.source, offset)]
        lines += [self._named(name, text) for name, text in self.others.items()]
        self.write(f"offsets/{number}", "\n".join([f"v{self.version}", times, *lines]))

    def _named(self, source: str, offset: str) -> str:
        return offset if self.version == 1 else f"{source}:{offset}"

    def input(self, number: int) -> list[int]:
        begin = self._offset(number - 1) if number else 0
        return [*range(begin, self._offset(number))]

    def _offset(self, number: int) -> int:
        text = folder.read(self.place, f"offsets/{number}")
        assert text is not None
        line = text.splitlines()[2].decode()
        return int(json.loads("{" + line.partition("{")[2])[self.topic]["0"])
