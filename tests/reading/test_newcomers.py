"""The messages for a first read of a log, and for a read of the wrong path."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal


def test_to_pandas_keeps_large_integers_beside_nulls(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    with sparkwal.Appender(str(tmp_path), schema, producer_id="p") as wal:
        wal.append([{"v": 2**53 + 1}, {"v": None}])
    assert sparkwal.Log(str(tmp_path)).to_pandas()["v"].tolist() == [2**53 + 1, None]


def test_a_path_with_a_typo_is_no_sound_log(tmp_path: Path) -> None:
    report = sparkwal.verify(str(tmp_path / "typo"))
    assert not report.ok and "there is no log at" in report.problems[0]


def test_a_missing_sequencer_is_named(tmp_path: Path) -> None:
    with pytest.raises(sparkwal.OptionError, match="sequencers/nope; check the path"):
        sparkwal.Log(str(tmp_path), sequencer="nope").to_pandas()


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (3, "start 3 is after the end of the log: its last position is 1, the next position is 2"),
        (-1, "start -1 is no position: the first one is 0"),
    ],
)
def test_a_start_outside_of_the_log_is_refused(tmp_path: Path, start: int, says: str) -> None:
    with sparkwal.Appender(str(tmp_path), pa.schema([("v", pa.int64())]), producer_id="p") as wal:
        wal.append([{"v": 1}])
    log = sparkwal.Log(str(tmp_path))
    for read in (log.to_pandas, log.scan, lambda start: list(log.records(start))):
        with pytest.raises(sparkwal.OptionError, match=says):
            read(start)


def test_a_follower_that_has_read_everything_finds_nothing(tmp_path: Path) -> None:
    with sparkwal.Appender(str(tmp_path), pa.schema([("v", pa.int64())]), producer_id="p") as wal:
        wal.append([{"v": 1}])
    log = sparkwal.Log(str(tmp_path))
    assert len(log.to_pandas(1)) == 1
    assert len(log.to_pandas(2)) == 0 and list(log.records(2)) == []


def test_a_start_in_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    log = sparkwal.Log(str(tmp_path / "typo"))
    assert list(log.records(0)) == []
    with pytest.raises(sparkwal.OptionError, match="there is no log at .*typo; check the path"):
        list(log.records(1))


def test_the_advice_for_a_column_that_is_left_out_fits(tmp_path: Path) -> None:
    log = str(tmp_path)
    both = pa.schema([("v", pa.int64()), ("name", pa.string())])
    with sparkwal.Appender(log, both, producer_id="p") as wal:
        wal.append([{"v": 1, "name": "a"}])
    one = pa.schema([("v", pa.int64())])
    with pytest.raises(sparkwal.OptionError) as caught:
        sparkwal.Appender(log, one, producer_id="p")
    said = str(caught.value)
    assert "column 'name' (string) is only in the log; " in said
    assert "add it, as null if it has no values, or set mergeSchema=true to leave it out" in said
    # The advice works.
    with sparkwal.Appender(log, one, producer_id="p", mergeSchema=True) as wal:
        wal.append([{"v": 2}])
    assert sparkwal.Log(log).scan().read_all().column("name").to_pylist() == ["a", None]


def test_public_names_are_completed_by_tools() -> None:
    assert {"Appender", "Log", "verify", "__version__"} <= set(dir(sparkwal))
