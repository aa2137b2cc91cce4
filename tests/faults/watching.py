"""Observations during a log's life: its size, its rows, the reports of the compactors."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import sparkwal
from faults.evidence import Lost
from faults.outcome import is_range
from faults.processes import Application
from faults.replica import parts
from faults.storage import Sample, Storage
from sparkwal.testing.servers import s3_client

# The log may be so many times as large as its policy allows: processes are dead meanwhile.
LIMIT = 2.0


@dataclass(frozen=True)
class Pace:
    """The pace of a run, in seconds.

    Attributes:
        every: the time from microbatch to microbatch.
        rows: the rows of a microbatch.
        late, age, grace: lateArriveWindow, persistAgeThreshold, gcGrace.
        interval: the time between two runs of the lifecycle.
        look: the time between two measurements of the log's size.
        driver, compactor, sleeper, replica, read: at least and at most from kill to kill, of
            the compactor that is put to sleep too; and from one read of table and log to the
            next.
        nap: the length of a sleep.
        limit: the greatest ratio of the log's size to its allowed size.
    """

    every: float = 1.0
    rows: int = 1000
    late: int = 20
    age: int = 40
    grace: float = 60.0
    interval: float = 20.0
    look: float = 30.0
    driver: tuple[float, float] = (45.0, 150.0)
    compactor: tuple[float, float] = (60.0, 240.0)
    sleeper: tuple[float, float] = (40.0, 120.0)
    replica: tuple[float, float] = (60.0, 180.0)
    read: tuple[float, float] = (120.0, 240.0)
    nap: tuple[float, float] = (5.0, 70.0)
    limit: float = LIMIT

    @property
    def keeps(self) -> float:
        """From a commit to its deletion, runs themselves aside."""
        return self.late + self.age + self.grace + self.interval


class Watch:
    """One log by its prefix in a bucket.

    Args:
        file: the consumer's file.
        notes: a file that gets each sample as a line.
    """

    def __init__(
        self,
        pace: Pace,
        options: Mapping[str, str],
        bucket: str,
        prefix: str,
        file: Path,
        notes: Path,
    ) -> None:
        self.counted: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self._pace = pace
        self._options = options
        self._bucket = bucket
        self._prefix = prefix
        self._file, self._notes = file, notes
        self._log = sparkwal.Log(f"s3://{bucket}/{prefix}", **options)
        self._s3 = s3_client(options["endpoint"])
        self._storage: Storage | None = None
        self._reported: Counter[str] = Counter()
        # Seconds of the runs that brought a range; when the consumer was where.
        self._runs: list[float] = []
        self._positions: list[tuple[float, int]] = []

    def look(self) -> None:
        """Sample the log's size."""
        read = parts(self._file)
        now = time.time()
        self._positions.append((now, read[-1].end if read else 0))
        if self._storage is None:
            head = self._log.head()
            if head is None:
                return
            self._storage = Storage(
                self._s3, self._bucket, self._prefix, head.window, self._pace.keeps
            )
        run = median(self._runs) if self._runs else 0.0
        before = now - self._pace.grace - self._pace.interval - run
        held = [position for at, position in self._positions if at <= before]
        found = self._storage.sample(now, run, held[-1] if held else 0)
        self.samples.append(found)
        with self._notes.open("a") as file:
            file.write(json.dumps(asdict(found) | {"ratio": round(found.ratio, 3)}) + "\n")

    def too_large(self) -> list[str]:
        """The samples in which the log was larger than it may be."""
        return [
            f"after {each.seconds:.0f} s the log had {each.bytes:,} bytes, and its policy allows "
            f"{each.allowed:,}"
            for each in self.samples
            if each.ratio > self._pace.limit
        ]

    def read(self) -> None:
        """Table and log as one: every row once, at any moment. Raises Lost."""
        values = self._log.current().to_arrow(["value"])["value"]
        if not is_range(values, 0, len(values)) or len(values) % self._pace.rows:
            raise Lost(f"table and log as one have {len(values):,} rows, not each once")
        self.counted["reads_of_table_and_log"] += 1

    def listen(self, compactors: Iterable[Application]) -> None:
        """Count what they reported since the last time."""
        for each in compactors:
            lines = each.lines()
            for line in lines[self._reported[each.name] :]:
                self._hear(line)
            self._reported[each.name] = len(lines)

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "ran":
            run = json.loads(rest)
            self.counted["runs"] += 1
            if run["k"]:
                self._runs.append(run["seconds"])
            self.counted["ranges_published"] += bool(run["k"])
            self.counted["ranges_carried_on"] += run["found"] == "an open range"
            for what in ("objects", "uploads", "bytes"):
                self.counted[f"collected_{what}"] += run[what]
        elif word == "failed":
            self.counted["runs_failed"] += 1
            self.counted[rest.partition(":")[0]] += 1
        elif word == "maintained":
            self.counted[rest] += 1

    def figures(self) -> dict[str, int]:
        """Figures of the samples; for the log's size the greatest ratio to its allowed size."""
        if not self.samples:
            return {}
        return {
            "samples": len(self.samples),
            "bytes_written": self.samples[-1].written,
            "bytes_at_the_end": self.samples[-1].bytes,
            "most_bytes": max(each.bytes for each in self.samples),
            "most_percent_of_allowed": round(100 * max(each.ratio for each in self.samples)),
            "median_run_ms": round(1000 * median(self._runs or [0.0])),
        }

    def close(self) -> None:
        self._s3.close()
