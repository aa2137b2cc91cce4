"""Compaction into a table of a catalog in PostgreSQL, whose replies get lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException

import sparkwal
from tests.lifecycle.iceberg_table import (
    NAME,
    Died,
    IcebergLake,
    compact,
    configure,
    ids,
    meanwhile,
    survives_each_call,
    survives_each_fault,
)
from tests.lifecycle.lakes import value
from tests.lifecycle.postgresql import PASSWORD, NoServer, Postgresql, Relay, start_postgresql

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
WAYS = pytest.mark.parametrize("target", [{}, {"keys": ["id"]}], ids=["append", "keys"])


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    pytest.importorskip("psycopg2", reason="the driver psycopg2 is not installed")
    try:
        started = start_postgresql()
    except NoServer as error:
        pytest.skip(f"the catalog needs PostgreSQL on this machine: {error}")
    with started:
        yield started


@pytest.fixture
def relay(server: Postgresql) -> Iterator[Relay]:
    with Relay(server.port) as relay:
        yield relay


@pytest.fixture
def lake(
    server: Postgresql, relay: Relay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[IcebergLake]:
    """A log with 3 rows, and no table yet. The catalog is behind the relay."""
    found = IcebergLake(
        tmp_path, table=configure(monkeypatch, tmp_path, uri=server.url(relay.port))
    )
    found.append([value(1), value(2)], [value(3)])
    yield found
    relay.fails_at = None
    found.catalog.drop_table(NAME)
    found.catalog.drop_namespace("db")


def current(lake: IcebergLake) -> list[int]:
    rows: list[int] = lake.reader().current().to_arrow()["id"].to_pylist()
    return sorted(rows)


@WAYS
def test_rows_go_into_the_table_and_both_are_read_as_one(
    lake: IcebergLake, target: dict[str, Any]
) -> None:
    compact(lake, **target)
    lake.append([value(3), value(4)])
    expected = [1, 2, 3, 4] if target else [1, 2, 3, 3, 4]
    assert current(lake) == expected
    compact(lake, **target)
    assert ids(lake) == current(lake) == expected


@pytest.mark.parametrize("first", [True, False])
def test_two_compactions_of_one_range_write_it_once(lake: IcebergLake, first: bool) -> None:
    if not first:
        compact(lake)
        lake.append([value(4)])
    with meanwhile(lambda: compact(lake)):
        compact(lake)
    assert ids(lake) == current(lake) == ([1, 2, 3] if first else [1, 2, 3, 4])


@WAYS
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [Died, lambda: CommitStateUnknownException("no answer")])
def test_a_process_that_fails_at_any_call_of_the_catalog_leaves_each_row_once(
    lake: IcebergLake, error: Callable[[], BaseException], after: bool, target: dict[str, Any]
) -> None:
    survives_each_call(lake, error, after=after, **target)


@pytest.mark.long
@pytest.mark.parametrize(
    ("after", "target"),
    [
        pytest.param(False, {}, marks=pytest.mark.slow, id="before, append"),
        pytest.param(False, {"keys": ["id"]}, id="before, keys"),
        pytest.param(True, {}, id="lost, append"),
        pytest.param(True, {"keys": ["id"]}, marks=pytest.mark.slow, id="lost, keys"),
    ],
)
def test_a_connection_that_breaks_at_any_statement_leaves_each_row_once(
    lake: IcebergLake, relay: Relay, after: bool, target: dict[str, Any]
) -> None:
    relay.after = after

    def fails_at(nth: int) -> tuple[bool, object]:
        relay.requests, relay.fails_at = 0, nth
        with suppress(sparkwal.SparkWalError):
            compact(lake, **target)
        has_failed = relay.requests > nth
        relay.fails_at = None
        return has_failed, relay.requests

    survives_each_fault(lake, fails_at, 20, **target)


def job(lake: IcebergLake) -> list[str]:
    return [sys.executable, str(ROOT / "jobs/compact.py"), lake.path, lake.target.table, "--now"]


def test_two_processes_at_once_write_each_row_once(lake: IcebergLake) -> None:
    compact(lake)
    lake.append([value(4)])
    both = [subprocess.Popen(job(lake), stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1].decode() for process in both]
    assert 0 in [process.returncode for process in both], errors
    assert ids(lake) == current(lake) == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(12, 40, 4))
def test_a_process_that_is_killed_at_a_statement_leaves_each_row_once(
    lake: IcebergLake, relay: Relay, nth: int
) -> None:
    compact(lake)
    lake.append([value(4)])
    relay.requests = 0
    with subprocess.Popen(job(lake), stderr=subprocess.PIPE) as process:

        def kill(number: int) -> None:
            if number == nth:
                process.kill()

        relay.watch = kill
        process.communicate(timeout=120)
    assert process.returncode == (-9 if relay.requests > nth else 0)
    compact(lake)
    assert ids(lake) == current(lake) == [1, 2, 3, 4]


def test_a_server_that_is_away_stops_the_run_without_its_password(
    lake: IcebergLake, relay: Relay
) -> None:
    compact(lake)
    lake.append([value(4)])
    relay.is_away = True
    with pytest.raises(sparkwal.SparkWalError, match="closed the connection") as caught:
        compact(lake)
    relay.is_away = False
    assert PASSWORD not in str(caught.value)
    compact(lake)
    assert ids(lake) == [1, 2, 3, 4]
