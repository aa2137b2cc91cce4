"""What someone sees who reads a log for the first time, or not the one that was meant."""

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


def test_what_is_public_can_be_completed() -> None:
    assert {"Appender", "Log", "verify", "__version__"} <= set(dir(sparkwal))
