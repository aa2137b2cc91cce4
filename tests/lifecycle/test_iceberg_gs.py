"""A log on Google Cloud Storage and its Iceberg table there: fake-gcs-server is the server."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparkwal
from tests.cli.logs import as_flags, lines
from tests.lifecycle.iceberg_table import IcebergLake, compact, configure, expire, ids
from tests.lifecycle.lakes import value
from tests.store import fake_gcs


@pytest.fixture
def lake(fake_gcs_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> IcebergLake:
    """A log and its table in one bucket."""
    bucket = fake_gcs.new_bucket(fake_gcs_url)
    store: dict[str, str] = {
        "warehouse": f"gs://{bucket}/warehouse",
        "gcs__service__host": fake_gcs_url,
        "gcs__oauth2__token": "none",
        "gcs__oauth2__token_expires_at": "4102444800000",
    }
    table = configure(monkeypatch, tmp_path, **store)
    return IcebergLake(f"gs://{bucket}", table=table, options=fake_gcs.options(fake_gcs_url))


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["append", "keys"])
def test_a_log_and_its_table_are_on_google(lake: IcebergLake, keys: list[str]) -> None:
    lake.append([value(1), value(2)])
    assert compact(lake, keys=keys, **lake.options).compacted
    lake.append([value(2), value(3)])
    assert compact(lake, keys=keys, **lake.options).compacted
    lake.append([value(4)])
    expected = [1, 2, 3] if keys else [1, 2, 2, 3]
    assert ids(lake) == expected
    current = sparkwal.Log(lake.path, **lake.options).current().to_arrow()
    assert sorted(current["id"].to_pylist()) == [*expected, 4]
    lake.iceberg().delete("id = 3")
    expire(lake)
    copies = lines("erased", lake.path, "--value", "v3", *as_flags(lake.options), code=1)
    data = [each for each in copies if each["object"].endswith(".parquet")]
    (orphan,) = (each for each in data if each["object"].startswith("gs://"))
    assert orphan["found"] == "the value"
    assert "orphans" in orphan["until"]
