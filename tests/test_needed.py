"""A missing package gives one line with the install command, before any read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import OptionError


def test_a_frame_without_pandas_raises_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "log")
    with sparkwal.Appender(path, pa.schema([("v", pa.int64())]), producer_id="p") as wal:
        wal.append([{"v": 1}]).result()
    log = sparkwal.Log(path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr(sparkwal.Log, "scan", None)
    with pytest.raises(OptionError, match="pandas is not installed .*: pip install 'pandas>="):
        log.to_pandas()


def test_spark_functions_without_pyspark_raise_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(OptionError, match=r"pyspark is not installed .*: .*\.\[spark\]"):
        sparkwal.register(cast(Any, None))
    with pytest.raises(OptionError, match=r"pyspark is not installed .*: .*\.\[spark\]"):
        getattr(sparkwal, "read_current")  # noqa: B009
