"""A streaming query over files, without Spark: it keeps its checkpoint as Spark does."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from sparkwal.checkpoints import folder
from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.protocol.commit import commit
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.plan import TaskPlan, make_plan
from sparkwal.protocol.takeover import Claim
from sparkwal.protocol.task import TaskAttempt, write_partition
from sparkwal.store.base import LogStore
from tests.protocol.query import LIMITS, SCHEMA, TTL_MS, StoppedClock, rows

COMPACT_EVERY = 10
_ids = itertools.count()


@dataclass
class FileStream:
    """A query whose every file holds one row, the file's number.

    Attributes:
        place: the folder of its checkpoint.
        hidden: the files that its filter drops.
        source: the name of its source.
        version: the version of the files in offsets/.
    """

    log: LogStore
    place: Path
    hints: Hints
    max_bytes: int = 16 * 2**20
    inline: int = 2**16
    hidden: frozenset[int] = frozenset()
    source: str = "0"
    version: int = 1
    leader_id: str = field(default_factory=lambda: f"host:{next(_ids)}:1:x")

    def __post_init__(self) -> None:
        if folder.query_of(self.place) is None:
            self.write("metadata", json.dumps({"id": str(uuid.uuid4())}))

    @property
    def query_id(self) -> str:
        found = folder.query_of(self.place)
        assert found is not None
        return found

    def run(self, files: range, each: int = 1) -> None:
        """Every microbatch of `each` files that the checkpoint does not know."""
        while self.step(files, each):
            pass

    def step(self, files: range, each: int = 1, *, crash: bool = False) -> bool:
        """One microbatch: the one that is planned and not done, or the next; False if none is.

        Args:
            crash: before Spark notes that it is done.
        """
        last, done = folder.latest(self.place, "offsets"), folder.latest(self.place, "commits")
        number = last
        if last in (-1, done):
            number = last + 1
            if not self.plan(number, files, each):
                return False
        self.commit(number, self.input(number))
        if not crash:
            self.write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
        return True

    def plan(self, number: int, files: range, each: int) -> bool:
        """As Spark writes what a microbatch reads, before it runs."""
        entry = self.list_files(files, each)
        if entry is None:
            return False
        self.write_offsets(number, entry)
        return True

    def list_files(self, files: range, each: int) -> int | None:
        """List the next files as an entry of the source; its number, or None without files."""
        seen = self._seen()
        new = [file for file in files if file not in seen][:each]
        if not new:
            return None
        entry = max(self._lists(), default=-1) + 1
        if (entry + 1) % self.interval:
            self.write(f"sources/{self.source}/{entry}", _list(dict.fromkeys(new, entry)))
        else:
            self.write(
                f"sources/{self.source}/{entry}.compact", _list(seen | dict.fromkeys(new, entry))
            )
        self.write(f"sources/{self.source}/.{entry}.crc", "a checksum")
        return entry

    def write_offsets(self, number: int, entry: int) -> None:
        """Plan a microbatch up to this entry of the source."""
        times = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + next(_ids)}
        name = "" if self.version == 1 else f"{self.source}:"
        offset = f'{name}{{"logOffset":{entry}}}'
        self.write(f"offsets/{number}", f"v{self.version}\n{json.dumps(times)}\n{offset}")

    def commit(self, number: int, new: list[int]) -> None:
        self.sink(number, new, self.plan_write())

    def plan_write(self) -> TaskPlan:
        """As Spark asks the sink before the tasks run."""
        owner = folder.owner_of(self.place)
        claim = Claim(
            leader_id=self.leader_id,
            host="host",
            plan_id=uuid.uuid4().hex,
            spark_schema=SCHEMA,
            merge_schema=False,
            window=None,
            in_flight_limit=1,
            reason="cold start",
            log_id=owner.log_id if owner else None,
        )
        return make_plan(lambda: self.log, claim, self.hints, StoppedClock(), TTL_MS).for_tasks()

    def sink(self, number: int, new: list[int], tasks: TaskPlan) -> None:
        """Write these rows of a microbatch, and commit it."""
        clock = StoppedClock()
        limits = replace(LIMITS, inline_threshold=self.inline)
        batches = [rows(*(file for file in new if file not in self.hidden))]
        owner = folder.owner_of(self.place)
        forked_after = owner.forked_after if owner else -1
        result = write_partition(
            lambda: self.log,
            tasks,
            TaskAttempt(self.query_id, number, 0, run_id="run", forked_after=forked_after),
            iter(batches),
            limits,
        )
        carrier = StreamCheckpoint(str(self.place), self.query_id, self.max_bytes)
        commit(lambda: self.log, [result], self.hints, clock, TTL_MS, "zstd", carrier)

    def input(self, number: int) -> list[int]:
        end = self._offset(number)
        begin = self._offset(number - 1) if number else -1
        return sorted(file for file, entry in self._seen().items() if begin < entry <= end)

    def _offset(self, number: int) -> int:
        text = (self.place / f"offsets/{number}").read_text()
        return int(json.loads("{" + text.splitlines()[2].partition("{")[2])["logOffset"])

    def _lists(self) -> dict[int, Path]:
        lists = (self.place / "sources" / self.source).glob("[0-9]*")
        return {int(file.name.removesuffix(".compact")): file for file in lists}

    @cached_property
    def interval(self) -> int:
        """The interval of the compacted lists, which Spark derives when the query starts."""
        compacted = sorted(number for number, file in self._lists().items() if file.suffix)
        if not compacted:
            return COMPACT_EVERY
        if len(compacted) > 1:
            return compacted[-1] - compacted[-2]
        count = compacted[0] + 1
        if count // 2 > COMPACT_EVERY:
            return next(n for n in range(COMPACT_EVERY, count + 1) if count % n == 0)
        return count

    def _seen(self) -> dict[int, int]:
        found: dict[int, int] = {}
        lists = self._lists()
        begin = max((max(lists, default=-1) + 1) // self.interval * self.interval - 1, 0)
        if begin and not lists[begin].suffix:
            raise FileNotFoundError(f"{begin}.compact doesn't exist")
        for file in (lists[number] for number in lists if number >= begin):
            for line in file.read_text().splitlines()[1:]:
                entry = json.loads(line)
                found[int(Path(entry["path"]).stem)] = entry["batchId"]
        return found

    def write(self, name: str, text: str) -> None:
        file = self.place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _list(files: dict[int, int]) -> str:
    lines = [
        json.dumps({"path": f"file:///data/in/{file:06d}.json", "timestamp": 1, "batchId": entry})
        for file, entry in files.items()
    ]
    return "\n".join(["v1", *lines])
