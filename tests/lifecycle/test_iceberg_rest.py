"""Compaction into a table of Iceberg's own REST catalog, whose answers get lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
import requests

import sparkwal
from sparkwal.testing.faults import Fault
from sparkwal.testing.proxy import S3Proxy
from tests.lifecycle.iceberg_table import (
    NAME,
    IcebergLake,
    compact,
    configure,
    ids,
    survives_each_fault,
)
from tests.lifecycle.lakes import value

pytestmark = pytest.mark.process
# A part of the path of a commit's request.
COMMIT = "tables/orders"


@pytest.fixture
def proxy(catalog_url: str) -> Iterator[S3Proxy]:
    with S3Proxy(catalog_url) as proxy:
        yield proxy


@pytest.fixture
def lake(proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[IcebergLake]:
    """A log with 3 rows, and no table yet. The catalog is behind the proxy."""
    url = configure(monkeypatch, tmp_path, type="rest", uri=proxy.url)
    found = IcebergLake(tmp_path, table=url)
    found.append([value(1), value(2)], [value(3)])
    yield found
    proxy.faults = []
    found.catalog.drop_table(NAME)


def nth_fails(nth: int, fault: Fault) -> list[Fault]:
    """The rules by which the nth request and no other has a fault."""
    return [Fault("delay", times=nth), fault]


FAULTS = {
    "lost": Fault("lost_reply", times=1),
    "reset": Fault("reset", times=1),
    **{str(status): Fault("error", status=status, times=1) for status in (409, 500, 503)},
    **{
        f"{status} after": Fault("error_after", status=status, times=1)
        for status in (400, 401, 409, 500, 502, 503, 504)
    },
}
# The others are slow together.
OFTEN = {("lost", 0), ("409 after", 0), ("503 after", 1)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        pytest.param(name, keys, marks=[] if (name, len(keys)) in OFTEN else pytest.mark.slow)
        for name in FAULTS
        for keys in ([], ["id"])
    ],
)
def test_any_request_that_fails_leaves_each_row_once(
    lake: IcebergLake, proxy: S3Proxy, name: str, keys: list[str]
) -> None:
    fault = FAULTS[name]

    def fails_at(nth: int) -> tuple[bool, object]:
        proxy.reset()
        proxy.faults = nth_fails(nth, Fault(fault.action, times=1, status=fault.status))
        with suppress(sparkwal.SparkWalError):
            compact(lake, keys=keys)
        has_failed = bool(proxy.injected[fault.action])
        proxy.faults = []
        return has_failed, proxy.requests

    survives_each_fault(lake, fails_at, 4, keys=keys)


def test_a_catalog_that_does_not_answer_is_no_endless_wait(
    lake: IcebergLake, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer may be lost for good, and the connection stays open."""
    monkeypatch.setattr("sparkwal.lifecycle.iceberg.catalog._ANSWER_SECONDS", 2)
    compact(lake)
    lake.append([value(4)])
    proxy.faults = [Fault("stall", kind="OTHER", key_contains=COMMIT, seconds=30, times=1)]
    begin = time.monotonic()
    run = compact(lake)
    assert time.monotonic() - begin < 20 and proxy.injected["stall"] == 1
    assert run.compacted is not None and ids(lake) == [1, 2, 3, 4]


def test_pyiceberg_alone_doubles_rows_after_a_lost_answer(
    lake: IcebergLake, proxy: S3Proxy
) -> None:
    """The peer: two jobs append, and repeat an append that failed."""
    lake.catalog.create_namespace_if_not_exists("db")
    lake.catalog.create_table(NAME, lake.schema)
    proxy.faults = [Fault("lost_reply", kind="OTHER", key_contains=COMMIT, times=1)]
    for number in (1, 2):
        rows = pa.Table.from_pylist([value(number)], lake.schema)
        for _ in range(2):
            with suppress(requests.ConnectionError):
                lake.iceberg().append(rows)
                break
    assert ids(lake) == [1, 1, 2]
