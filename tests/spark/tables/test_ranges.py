"""Ranges of a log in a Delta table: each is one version, with the number of the range."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkwal.errors import ReadError, WriteError
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION
from tests.lifecycle.lakes import Lake, Rows, as_set

NUMBERS = pa.schema([("id", pa.int64()), ("v", pa.string())])


def numbers(*ids: int, v: str = "x") -> Rows:
    return [{"id": each, "v": v} for each in ids]


# test_rules.py has the history of a range, and test_merge.py its rows.
@pytest.mark.slow
def test_each_range_is_one_version_that_names_it(delta: SparkSession, tmp_path: Path) -> None:
    log = Lake(tmp_path, spark=delta, schema=NUMBERS)
    assert log.table.snapshot("nobody", NO_TABLE_VERSION) is None
    log.append(numbers(1, 2), numbers(3))
    first = log.carry()
    log.append(numbers(4))
    second = log.carry()
    assert (first.version, second.version) == (1, 2)
    assert (first.k, second.k) == (1, 2)
    assert log.ranges() == [1, 2]
    before, now = log.rows_of(1, 2)
    assert as_set(before) == as_set(numbers(1, 2, 3))
    assert as_set(now) == as_set(numbers(1, 2, 3, 4))
    log_id = log.head().log_id
    reported = log.table.snapshot(log_id, 0)
    assert reported is not None
    assert [(each.version, each.log_id, each.k) for each in reported.changes] == [
        (1, log_id, 1),
        (2, log_id, 2),
    ]
    assert not any(each.undoes for each in reported.changes)


@pytest.mark.parametrize("keys", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_a_range_is_one_version_without_rows_too_and_when_it_is_written_again(
    delta: SparkSession, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    log = Lake(tmp_path, *keys, spark=delta, schema=NUMBERS)
    log.append()
    assert log.carry().k == 1
    folder = Path(log.target.table)
    # A range without rows may have written a file without rows.
    before = {*folder.glob("*.parquet")}
    log.append(numbers(1))
    log.table.write(log.intent())
    log.write()
    found = log.done()
    assert (found.version, found.k) == (2, 2)
    [change] = found.of_range(log.head().promise.range_id)
    sizes = [file.stat().st_size for file in {*folder.glob("*.parquet")} - before]
    assert (change.files, change.bytes) == (len(sizes), sum(sizes))
    log.append()
    assert log.carry().k == 3
    assert log.rows() == numbers(1)
    assert [row["version"] for row in log.sql("DESCRIBE HISTORY {t}")] == [3, 2, 1, 0]


@pytest.mark.slow
def test_columns_that_the_log_gained_reach_the_table(delta: SparkSession, tmp_path: Path) -> None:
    for name, keys in (("append", ()), ("merge", ("id",))):
        log = Lake(tmp_path / name, *keys, spark=delta, schema=NUMBERS)
        log.append(numbers(1))
        log.carry()
        log.schema = pa.schema([*NUMBERS, ("more", pa.float64())])
        log.append([{"id": 2, "v": "y", "more": 0.5}])
        assert log.carry().version == 2
        assert as_set(log.rows()) == as_set(
            [{"id": 1, "v": "x", "more": None}, {"id": 2, "v": "y", "more": 0.5}]
        )


def test_the_last_row_of_a_key_wins_over_tasks_frames_and_positions(
    delta: SparkSession, tmp_path: Path
) -> None:
    """More than 512 positions are read in stretches, and large commits frame by frame."""
    log = Lake(tmp_path, "id", spark=delta, schema=NUMBERS)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    model: dict[int, str] = {}

    def commit(rows: int) -> Rows:
        found = [{"id": draw.randrange(50), "v": str(draw.random())} for _ in range(rows)]
        model.update((row["id"], row["v"]) for row in found)
        return found

    log.append(*(commit(2) for _ in range(520)))
    log.carry()
    assert as_set(log.rows()) == as_set([{"id": k, "v": v} for k, v in model.items()])
    log.append(commit(4_000), commit(4_000), batchSizeThreshold="10kb")
    # The options of a read, which no appender takes.
    Lake(tmp_path, "id", spark=delta, schema=NUMBERS, options={"minPartitions": "9"}).carry()
    assert as_set(log.rows()) == as_set([{"id": k, "v": v} for k, v in model.items()])


@pytest.mark.slow
def test_a_recreated_log_is_not_read(delta: SparkSession, tmp_path: Path) -> None:
    log = Lake(tmp_path, spark=delta, schema=NUMBERS)
    log.append(numbers(1))
    state = log.intent()
    for file in (tmp_path / "log" / "batches").iterdir():
        file.unlink()
    log.append(numbers(2))
    with pytest.raises(ReadError, match="recreated"):
        log.table.write(state)
    assert log.rows() == []


def test_a_damaged_record_stops_the_range(delta: SparkSession, tmp_path: Path) -> None:
    log = Lake(tmp_path, spark=delta, schema=NUMBERS)
    log.append(numbers(1), numbers(2))
    state = log.intent()
    damaged = sorted((tmp_path / "log" / "batches").iterdir())[1]
    body = bytearray(damaged.read_bytes())
    body[len(body) // 2] ^= 1
    damaged.write_bytes(body)
    with pytest.raises(ReadError, match="positions 0…"):
        log.table.write(state)
    assert log.rows() == []


@pytest.mark.slow
def test_a_table_that_refuses_the_rows_is_named_in_the_error(
    delta: SparkSession, tmp_path: Path
) -> None:
    log = Lake(tmp_path, spark=delta, schema=NUMBERS)
    log.append(numbers(1))
    log.sql("CREATE TABLE {t} (id BIGINT, v STRING) USING delta")
    log.sql("ALTER TABLE {t} ADD CONSTRAINT large CHECK (id > 1)")
    with pytest.raises(WriteError, match="did not take positions 0…1") as caught:
        log.table.write(log.intent())
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_settings_of_the_users_session_stay(delta: SparkSession, tmp_path: Path) -> None:
    before: Any = dict(delta.conf.getAll)
    log = Lake(tmp_path, "id", spark=delta, schema=NUMBERS)
    log.append(numbers(1))
    log.carry()
    assert delta.conf.getAll == before
