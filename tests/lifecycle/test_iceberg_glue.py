"""Compaction into a table of a catalog of AWS Glue, by moto's server.

moto checks no version of a table under a lock, so nothing here is evidence of a race.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException

from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY, make_bucket
from tests.lifecycle.iceberg_table import (
    NAME,
    Died,
    IcebergLake,
    compact,
    configure,
    expire,
    ids,
    meanwhile,
    survives_each_call,
)
from tests.lifecycle.lakes import value

pytestmark = pytest.mark.process


@pytest.fixture
def lake(moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[IcebergLake]:
    """A log on a disk with 3 rows, and no table yet."""
    bucket = f"lake-{uuid.uuid4().hex}"
    make_bucket(moto_url, bucket)
    settings: dict[str, str] = {"type": "glue", "warehouse": f"s3://{bucket}/warehouse"}
    for service in ("glue", "s3"):
        settings[f"{service}__endpoint"] = moto_url
        settings[f"{service}__access_key_id"] = ACCESS_KEY
        settings[f"{service}__secret_access_key"] = SECRET_KEY
        settings[f"{service}__region"] = REGION
    found = IcebergLake(tmp_path, table=configure(monkeypatch, tmp_path, **settings))
    found.append([value(1), value(2)], [value(3)])
    yield found
    # The catalog is that of an account, and all tests have one.
    found.catalog.drop_table(NAME)
    found.catalog.drop_namespace("db")


@pytest.mark.parametrize("target", [{}, {"keys": ["id"]}], ids=["append", "keys"])
def test_a_log_goes_into_a_table_of_glue(lake: IcebergLake, target: dict[str, Any]) -> None:
    compact(lake, **target)
    assert ids(lake) == [1, 2, 3]
    lake.append([value(3), value(4)])
    compact(lake, **target)
    expected = [1, 2, 3, 4] if target else [1, 2, 3, 3, 4]
    assert ids(lake) == expected
    assert sorted(lake.reader().current().to_arrow()["id"].to_pylist()) == expected
    expire(lake)
    lake.append([value(5)])
    compact(lake, **target)
    assert ids(lake) == [*expected, 5]


@pytest.mark.parametrize(
    ("error", "after"),
    [(Died, False), (lambda: CommitStateUnknownException("no answer"), True)],
    ids=["killed", "lost reply"],
)
def test_a_process_that_fails_at_any_call_of_glue_leaves_each_row_once(
    lake: IcebergLake, error: Callable[[], BaseException], after: bool
) -> None:
    survives_each_call(lake, error, after=after)


def test_a_writer_of_the_same_table_in_between_makes_the_range_look_again(
    lake: IcebergLake,
) -> None:
    compact(lake)
    lake.append([value(4)])
    rows = lake.iceberg().scan().to_arrow().slice(0, 1)
    with meanwhile(lambda: lake.iceberg().append(rows), type(lake.catalog)):
        compact(lake)
    assert len(ids(lake)) == 5 and set(ids(lake)) == {1, 2, 3, 4}
