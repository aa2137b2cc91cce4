"""One consumer of a log, to be killed and put to sleep: it continues from its own file.

Each line of the file reports a range of positions that was read, and of the rows in it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click

import sparkwal
from faults.driver import say
from sparkwal.lifecycle.consumers.publishing import Publisher
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.holds import Holds
from sparkwal.testing.servers import log_options

NAME = "replica"


@dataclass(frozen=True)
class Part:
    """Positions start … end−1, which held the values first … first+count−1, each once, in order."""

    start: int
    end: int
    first: int
    count: int


def parts(file: Path) -> list[Part]:
    """The ranges read so far; an unfinished line does not count."""
    text = file.read_text() if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    return [Part(**json.loads(line)) for line in whole.splitlines()]


def count(reader: sparkwal.Log, start: int, end: int, first: int) -> int:
    """Count the rows of positions start … end−1.

    Raises ValueError unless they are first, first+1, …; inside a position the order of its
    partitions does not matter.
    """
    held: dict[int, list[int]] = {}
    for batch in reader.scan(start, end - 1, columns=["_wal_position", "value"]):
        for position, value in zip(*(column.to_pylist() for column in batch), strict=True):
            held.setdefault(position, []).append(value)
    expected = first
    for position, values in held.items():
        if sorted(values) != list(range(expected, expected + len(values))):
            raise ValueError(f"position {position}: its rows do not begin at {expected}, each once")
        expected += len(values)
    if list(held) != sorted(held):
        raise ValueError(f"positions {start} … {end - 1} come out of order")
    return expected - first


@click.command()
@click.option("--log", required=True)
@click.option("--endpoint", required=True)
@click.option("--file", type=click.Path(path_type=Path), required=True)
@click.option("--every", type=float, required=True, help="Seconds from read to read.")
def main(log: str, endpoint: str, file: Path, every: float) -> None:
    """A consumer for tests/soak.sh --lifetimes."""
    options = log_options(endpoint)
    reader = sparkwal.Log(log, **options)
    store = open_log(parse(SourceOptions, {**options, "path": log}))
    while (head := reader.head()) is None:
        time.sleep(0.2)
    before = parts(file)
    at = before[-1] if before else Part(0, 0, 0, 0)
    publisher = Publisher(NAME, 0, Holds(None))
    begins = publisher.join([(store, head.log_id, at.end)])
    if begins != {"default": at.end}:
        say(f"wrong: it has read up to {at.end}, and the log begins at {begins}")
        sys.exit(1)
    say("ready")
    with file.open("a") as reported:
        while True:
            head = reader.head()
            assert head is not None
            if head.position >= at.end:
                first, end = at.first + at.count, head.position + 1
                try:
                    at = Part(at.end, end, first, count(reader, at.end, end, first))
                except ValueError as error:
                    say(f"wrong: {error}")
                    sys.exit(1)
                reported.write(json.dumps(vars(at)) + "\n")
                reported.flush()
                publisher.committed({"default": end})
            time.sleep(every)


if __name__ == "__main__":
    main()
