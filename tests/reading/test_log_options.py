"""`sparkwal.Log` obeys or refuses each option that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal import (
    Appender,
    InvalidLogError,
    Log,
    OptionError,
    StoreUnavailableError,
    consumers,
    verify,
)
from sparkwal.format import keys
from tests.logs import SCHEMA, values

LAST = 6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Value n at position n, from 1 to LAST."""
    folder = tmp_path_factory.mktemp("options") / "log"
    with Appender(str(folder), SCHEMA, producer_id="p") as wal:
        for value in range(1, LAST + 1):
            wal.append([{"v": value}]).result()
    return str(folder)


def test_positions_bound_what_a_log_reads(path: str) -> None:
    assert values(path, startingPosition=3) == [3, 4, 5, 6]
    assert values(path, startingPosition="latest") == []
    assert values(path, endingPosition=2) == [1, 2]
    assert values(path, startingPosition=2, endingPosition=3) == [2, 3]
    log = Log(path, startingPosition=2, endingPosition=3)
    assert [header.position for header in log.records()] == [2, 3]
    assert len(log.to_pandas()) == 2
    # Arguments of the call override the options of the log.
    assert log.scan(4, 5).read_all().column("v").to_pylist() == [4, 5]
    assert log.scan(end=100).read_all().num_rows == LAST - 1


def test_a_read_that_is_refused_leaves_no_lease(path: str) -> None:
    with pytest.raises(OptionError, match="after the end"):
        values(path, lease="1d", endingPosition=10**9)
    assert consumers(path) == []


def test_a_lease_whose_floor_cannot_be_seen_is_released(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(*_: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr("sparkwal.lifecycle.consumers.objects.newest_record", unseen)
    with pytest.raises(StoreUnavailableError):
        values(path, lease="1d")
    monkeypatch.undo()
    assert consumers(path) == []


def test_moments_bound_what_a_log_reads(path: str) -> None:
    times = {h.position: h.timestamp_ms for h in Log(path).records()}
    moment = times[4]
    assert values(path, startingTimestamp=moment) == [v for v in range(1, 7) if times[v] >= moment]
    assert values(path, endingTimestamp=moment) == [v for v in range(1, 7) if times[v] <= moment]
    assert values(path, startingTimestamp=times[LAST] + 10**6) == []


def test_the_metadata_columns_come_when_the_option_asks_for_them(path: str) -> None:
    log = Log(path, includeMetadata=True)
    assert "_wal_position" in log.scan().schema.names
    assert "_wal_position" not in log.scan(include_metadata=False).schema.names
    assert "_wal_position" not in Log(path).scan().schema.names
    assert "_wal_position" in log.to_pandas()


@pytest.mark.parametrize(
    "option",
    ["maxRowsPerTrigger", "maxBytesPerTrigger", "maxCommitsPerTrigger", "minPartitions"],
)
def test_options_for_spark_only_are_refused(path: str, option: str) -> None:
    with pytest.raises(OptionError, match=f"{option} is for spark"):
        Log(path, **{option: 1})


def test_verify_reads_all_and_refuses_bounds(path: str) -> None:
    with pytest.raises(OptionError, match="startingPosition.* is for reading"):
        verify(path, startingPosition=3)


def test_positions_after_the_end_are_refused_as_in_spark(path: str) -> None:
    with pytest.raises(OptionError, match="startingPosition 8 is after the end"):
        values(path, startingPosition=8)
    with pytest.raises(OptionError, match="endingPosition 7 is after the end"):
        values(path, endingPosition=7)


def test_with_on_corruption_stop_a_read_ends_before_the_damage(tmp_path: Path) -> None:
    with Appender(str(tmp_path), SCHEMA, producer_id="p") as wal:
        for value in range(1, 5):
            wal.append([{"v": value}]).result()
    file = tmp_path / keys.key("", keys.slot(3, 1000))
    data = bytearray(file.read_bytes())
    data[data.index(b"weaselwal") + 20] ^= 1
    file.write_bytes(data)
    with pytest.raises(InvalidLogError):
        values(str(tmp_path))
    assert values(str(tmp_path), onCorruption="stop") == [1, 2]


@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize(
    ("number", "unit"), [(1_700_000_000, "seconds"), (1_700_000_000_000_000, "microseconds")]
)
def test_a_moment_in_another_unit_is_refused(
    path: str, option: str, number: int, unit: str
) -> None:
    with pytest.raises(OptionError, match=f"{unit}.* 1700000000000"):
        Log(path, **{option: number})


def test_the_repr_of_a_log_shows_its_path(tmp_path: Path) -> None:
    log = Log(f"{tmp_path}/wal", sequencer="backfill")
    assert repr(log) == f"Log('file://{tmp_path}/wal/sequencers/backfill')"
