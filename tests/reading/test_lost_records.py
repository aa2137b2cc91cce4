"""Missing and damaged records in tolerant reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal import Appender, InvalidLogError, Log
from tests.logs import SCHEMA, flip, record, values

LAST = 8


@pytest.fixture
def path(tmp_path: Path, in_flight: None) -> Path:
    """An appender's log: a leader record, then value n at position n, up to LAST."""
    folder = tmp_path / "log"
    with Appender(str(folder), SCHEMA, producer_id="p", maxInFlightRequests=4) as wal:
        for value in range(1, LAST + 1):
            wal.append([{"v": value}]).result()
    return folder


@pytest.mark.parametrize("start", [None, 5, 6, 7])
def test_a_look_back_meets_a_hole_in_an_appenders_log(path: Path, start: int | None) -> None:
    record(path, 4).unlink()
    left = [value for value in range(start or 1, LAST + 1) if value != 4]
    assert values(path, start, failOnDataLoss=False) == left
    with pytest.raises(InvalidLogError, match="position 4"):
        values(path, start)


@pytest.mark.parametrize("start", [5, 6, 7])
def test_a_read_that_begins_above_damage_reads_around_it(path: Path, start: int) -> None:
    flip(record(path, 4), 200)
    with pytest.raises(InvalidLogError, match="18446744073709547615"):
        values(path)
    assert values(path, start) == list(range(start, LAST + 1))
    # After a new leader, the damaged record may be the one that makes these records dead.
    with Appender(str(path), SCHEMA, producer_id="p", maxInFlightRequests=4) as wal:
        wal.append([{"v": LAST + 1}]).result()
    with pytest.raises(InvalidLogError, match="18446744073709547615"):
        values(path, start)


def test_damage_before_the_start_is_not_taken_for_the_end(path: Path) -> None:
    record(path, 4).unlink()
    with pytest.raises(InvalidLogError, match="position 4"):
        values(path, 6, onCorruption="stop")


def test_a_moment_is_found_in_a_log_with_holes(path: Path) -> None:
    times = [header.timestamp_ms for header in Log(str(path)).records()]
    for lost in (2, 3, 4, 5):
        record(path, lost).unlink()
    for position in range(LAST + 1):
        log = Log(str(path), failOnDataLoss=False, startingTimestamp=times[position])
        found = log.scan().read_all().column("v").to_pylist()
        first = times.index(times[position])
        assert found == [v for v in range(max(first, 1), LAST + 1) if v not in (2, 3, 4, 5)]


TOLERANT = [{"failOnDataLoss": False}, {"onCorruption": "stop"}, {"endingPosition": LAST - 1}]


@pytest.mark.parametrize("options", TOLERANT, ids=str)
@pytest.mark.parametrize("at", [0, 200], ids=["magic", "header"])
def test_a_damaged_head_leaves_what_is_before_it_readable(
    path: Path, options: dict[str, object], at: int
) -> None:
    flip(record(path, LAST), at)
    assert values(path, **options) == list(range(1, LAST))
    with pytest.raises(InvalidLogError):
        values(path)


def test_the_damaged_end_of_a_log_is_stepped_over(path: Path) -> None:
    for position in (LAST - 2, LAST - 1, LAST):
        flip(record(path, position), 200)
    assert values(path, onCorruption="stop") == list(range(1, LAST - 2))


def test_a_log_without_one_intact_record_raises(path: Path) -> None:
    for position in range(LAST + 1):
        flip(record(path, position), 200)
    with pytest.raises(InvalidLogError, match="CRC-32"):
        values(path, onCorruption="stop")
