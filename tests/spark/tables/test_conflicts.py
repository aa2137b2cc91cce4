"""Others that change the table while a range is on its way there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkwal import events
from sparkwal.lifecycle.cycle import close_range, write_range
from sparkwal.protocol.chain import Chain
from sparkwal.protocol.clock import Clock
from tests.lifecycle.lakes import Lake, value
from tests.spark.tables.gate import Gate

# Whether a MERGE that has read the table must start again.
CHANGES = {
    "DELETE FROM {t} WHERE id = 1": True,
    "OPTIMIZE {t}": True,
    "VACUUM {t}": False,
    "ALTER TABLE {t} ADD COLUMNS (more INT)": True,
}


@pytest.fixture
def retried() -> Iterator[list[str]]:
    """Why ranges were written again."""
    found: list[str] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.CompactionRetried):
            found.append(event.reason)

    forget = events.subscribe(note)
    yield found
    forget()


@pytest.mark.slow
def test_a_merge_starts_again_when_others_changed_the_rows_it_read(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retried: list[str]
) -> None:
    lake = Lake(tmp_path, "id", spark=delta)
    lake.append([value(1), value(2)])
    lake.compact()
    for number, (statement, conflicts) in enumerate(CHANGES.items()):
        gate = Gate(tmp_path / f"gate-{number}")
        # A file that OPTIMIZE joins with others.
        delta.sql(f"INSERT INTO delta.`{lake.target.table}` VALUES ({20 + number}, 'other')")
        lake.append([{"id": 2, "v": statement}, value(10 + number)])
        lake.intent()
        with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
            gate.in_the_write(patch)
            chain = Chain(lake.log, Clock(), "")
            intent = lake.head().record
            ran = pool.submit(write_range, chain, intent, lake.table)
            try:
                while not gate.reached():
                    assert not ran.done(), ran.result()
                    time.sleep(0.05)
                # The transaction has read the table, and commits nothing before the gate opens.
                delta.sql(statement.format(t=f"delta.`{lake.target.table}`")).collect()
            finally:
                gate.open()
            _, finished = close_range(chain, intent, lake.table, ran.result())
        assert finished["default"].k == number + 2
        assert len(retried) == conflicts, (statement, retried)
        retried.clear()
    found = delta.read.format("delta").load(lake.target.table).select("id", "v").collect()
    changed = [(2, statement), *((n, f"v{n}") for n in range(10, 10 + len(CHANGES)))]
    changed += [(n, "other") for n in range(20, 20 + len(CHANGES))]
    assert sorted(map(tuple, found)) == changed
