"""A storm of late updates and deletes over several logs of one table, cut into ranges at random.

After each step the table, and table and logs as one, are compared with a dictionary by key.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparkwal
from tests.lifecycle.iceberg_table import lake_of

pytestmark = pytest.mark.long

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("n", pa.int64()),
        ("v", pa.int64()),
        ("gone", pa.bool_()),
    ]
)
LOGS = "xyz"
WEEK_MS = 7 * 86_400_000
Row = dict[str, Any]


class Model:
    """By key the row with the greatest sequence, or its delete."""

    def __init__(self) -> None:
        self.newest: dict[tuple[Any, ...], Row] = {}

    def take(self, row: Row) -> None:
        before = self.newest.get((row["a"], row["b"]))
        if before is None or before["n"] is None or (row["n"] or -1) >= before["n"]:
            self.newest[row["a"], row["b"]] = row

    @property
    def rows(self) -> Counter[str]:
        return counted(row for row in self.newest.values() if not row["gone"])


def counted(rows: Any) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


def random_row(random_: random.Random, log: str, number: int) -> Row:
    """The sequence may be late by any time. Only rows of one log have equal ones, or none."""
    sequence = random_.randrange(40) * len(LOGS) + LOGS.index(log)
    has_none = log == LOGS[0] and random_.random() < 0.1
    return {
        "a": random_.choice([1, 2, None]),
        "b": random_.choice(["x", None]),
        "n": None if has_none else sequence,
        "v": number,
        "gone": random_.choice([True, False, None]),
    }


@pytest.mark.parametrize(
    "steps", [12, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (40, 41, 42))]
)
@pytest.mark.parametrize("table_format", ["delta-rs", "iceberg"])
def test_the_table_and_its_readers_agree_however_ranges_are_cut(
    table_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    how: dict[str, Any] = {
        "sequence_by": "n",
        "delete_when": "gone",
        "tombstone_horizon_ms": WEEK_MS,
    }
    make = lake_of(table_format, tmp_path, monkeypatch)
    lakes = {x: make("a", "b", sequencer=x, **how) for x in LOGS}
    path = lakes[LOGS[0]].path
    model = Model()
    number = 0

    def append(log: str) -> None:
        nonlocal number
        rows = []
        for _ in range(random_.randrange(1, 6)):
            number += 1
            rows.append(random_row(random_, log, number))
        lakes[log].append(rows, schema=SCHEMA)
        for row in rows:
            model.take(row)

    def check(step: str) -> None:
        current = sparkwal.Log(path).current(sequencers="*").to_arrow().to_pylist()
        assert counted(current) == model.rows, (seed, step)

    for log in LOGS:
        append(log)
    lakes[LOGS[0]].compact()
    for step in range(steps):
        log = random_.choice(LOGS)
        if random_.random() < 0.5:
            append(log)
            check(f"{step}: append to {log}")
            continue
        lake = lakes[log]
        cut, end = lake.head().cut, lake.end
        if cut == end:
            continue
        stage = random_.choice(["intent", "kept", "written", "done"])
        lake.compact(stage, random_.randrange(cut + 1, end + 1))
        check(f"{step}: {stage} of {log}")
        if random_.random() < 0.5:
            append(random_.choice(LOGS))
            check(f"{step}: append after {stage} of {log}")
        if stage != "done":
            if stage != "written":
                lake.write()
            lake.done()
        check(f"{step}: range of {log}")
    for log, lake in lakes.items():
        if lake.head().cut < lake.end:
            lake.compact()
        check(f"end of {log}")
    assert counted(lakes[LOGS[0]].found()) == model.rows, seed
