"""Random runs in which refused rows are written again, with kills and beside other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lifecycle import again_runs, iceberg_again_runs
from tests.lifecycle.iceberg_table import configure


@pytest.mark.long
@pytest.mark.parametrize("seed", range(15))
def test_each_row_is_in_the_table_or_waits_once(seed: int) -> None:
    again_runs.run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 600, 100))
def test_each_row_is_in_the_table_or_waits_once_in_many_runs(first: int) -> None:
    for seed in range(first, first + 100):
        again_runs.run(seed)


@pytest.mark.long
@pytest.mark.parametrize("is_keyed", [False, True], ids=["append", "keyed"])
@pytest.mark.parametrize("seed", range(2))
def test_each_row_is_in_an_iceberg_table_or_waits_once(
    seed: int, is_keyed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = configure(monkeypatch, tmp_path)
    iceberg_again_runs.run(seed, tmp_path, url, is_keyed=is_keyed)


@pytest.mark.slow
@pytest.mark.parametrize("is_keyed", [False, True], ids=["append", "keyed"])
@pytest.mark.parametrize("seed", range(2, 30))
def test_each_row_is_in_an_iceberg_table_or_waits_once_in_many_runs(
    seed: int, is_keyed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = configure(monkeypatch, tmp_path)
    iceberg_again_runs.run(seed, tmp_path, url, is_keyed=is_keyed)
