"""A model of how Spark uses the checkpoint folder of a query over one source.

offsets/N holds the end of microbatch N in the source, and commits/N shows that it ended. A source
that lists files has its own log in sources/0: its offset is a number of entries, and the entries
name the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sparkwal.protocol.holds import LOG_ID, lowest
from tests.simulation.machine import Ask
from tests.simulation.world import Call, Folder

# Each second entry of a list repeats all before it, as Spark's each tenth does.
_COMPACTED = 2


class Stopped(Exception):
    """Spark stops the query: its checkpoint or its source is not as Spark left it."""


@dataclass(frozen=True)
class Microbatch:
    """One microbatch as Spark has planned it."""

    number: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Query:
    """A streaming query on one machine.

    Attributes:
        lists: the source lists files and stores which it has seen.
        archives: the source deletes rows once Spark has committed them.
        consumer: the source is a log that deletes rows which its consumer has released.
        most: the maximum number of rows of the source in one microbatch.
    """

    ask: Ask
    machine: str
    lists: bool
    archives: bool
    consumer: bool
    most: int

    def read(self) -> dict[str, bytes]:
        content: Folder | None = self.ask(Call("read_folder", (self.machine,)))
        return dict(content or ())

    def add(self, name: str, data: bytes) -> None:
        """Raises Stopped where somebody has written this file."""
        if not self.ask(Call("add_file", (self.machine, name, data))):
            raise Stopped(f"multiple streaming jobs: {name} exists")

    def microbatches(self) -> Iterator[Microbatch]:
        """Each microbatch with input, from the end of the checkpoint on.

        The caller executes one microbatch before it asks for the next.

        Raises:
            Stopped: the checkpoint is damaged.
        """
        content = self.read()
        planned, done = _latest(content, "offsets"), _latest(content, "commits")
        number = 0
        start = 0
        end = None
        if planned is not None:
            number, end = planned, _offset(content, planned)
            start = _offset(content, planned - 1) if planned else 0
            if done == planned:
                number = number + 1
                start = end
                end = None
        while True:
            if end is None:
                if self.consumer and number:
                    # A source is asked for its end only when the microbatch before is committed.
                    self.ask(Call("archive", (self._needed(start),)))
                end = self._latest_offset(start)
                if end == start:
                    return
                offset = {"default": end, f"{LOG_ID}default": "source"} if self.consumer else end
                line = json.dumps(offset).encode()
                self.add(f"offsets/{number}", b'v1\n{"batchTimestampMs":0}\n' + line)
                if self.archives and not self.consumer and number:
                    self.ask(Call("archive", (self._needed(start),)))
            rows = self.ask(Call("rows", self._range(start, end)))
            if rows is None:
                raise Stopped("the rows are no longer there")
            yield Microbatch(number, rows)
            self.add(f"commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')
            number = number + 1
            start = end
            end = None

    def _latest_offset(self, start: int) -> int:
        ready: int = self.ask(Call("source_end"))
        if not self.lists:
            return min(ready, start + self.most)
        entries = _entries(self.read())
        seen = entries[-1][1] if entries else 0
        if ready > seen:
            entries = [*entries, (seen, min(ready, seen + self.most))]
            number = len(entries) - 1
            if len(entries) % _COMPACTED == 0:
                self.add(f"sources/0/{number}.compact", json.dumps(entries).encode())
            else:
                self.add(f"sources/0/{number}", json.dumps(entries[-1:]).encode())
        return len(entries)

    def _needed(self, start: int) -> int:
        """Rows of the source below this are needed no more; `start` is committed."""
        if self.consumer:
            return lowest(self.ask(Call("holds", (self.machine,))), start)
        return self._range(0, start)[1]

    def _range(self, start: int, end: int) -> tuple[int, int]:
        """Rows of the source between two offsets."""
        if not self.lists:
            return start, end
        entries = _entries(self.read())[start:end]
        if len(entries) < end - start:
            raise Stopped("the source's list lacks an entry")
        return entries[0][0], entries[-1][1]


def _latest(content: dict[str, bytes], kind: str) -> int | None:
    numbers = [int(name.partition("/")[2]) for name in content if name.startswith(f"{kind}/")]
    return max(numbers, default=None)


def _offset(content: dict[str, bytes], number: int) -> int:
    try:
        offset = json.loads(content[f"offsets/{number}"].splitlines()[2])
        return int(offset["default"] if isinstance(offset, dict) else offset)
    except KeyError:
        raise Stopped(f"offsets/{number} does not exist") from None


def _entries(content: dict[str, bytes]) -> list[tuple[int, int]]:
    """The rows (start, end) of each entry of the source's list."""
    found: dict[int, tuple[int, int]] = {}
    for name in content:
        if name.startswith("sources/0/"):
            last = int(name.removeprefix("sources/0/").removesuffix(".compact"))
            lines = json.loads(content[name])
            for back, (start, end) in enumerate(reversed(lines)):
                found[last - back] = (start, end)
    if sorted(found) != list(range(len(found))):
        raise Stopped("the source's list lacks an entry")
    return [found[number] for number in sorted(found)]
