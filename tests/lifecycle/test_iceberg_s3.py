"""Compaction into an Iceberg table on S3, whose requests fail or whose process is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sparkwal
from sparkwal.testing.faults import Fault
from sparkwal.testing.proxy import S3Proxy, Sent, kind_of
from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY
from tests.cli.logs import lines
from tests.lifecycle.iceberg_table import (
    IcebergLake,
    compact,
    configure,
    expire,
    ids,
    survives_each_fault,
)
from tests.lifecycle.lakes import value

ROOT = Path(__file__).parents[2]
# The requests that make an object: pyarrow sends an object in parts.
WRITES = ("PUT", "COMPLETE_MULTIPART")


@pytest.fixture
def lake(
    s3_proxy: S3Proxy, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[IcebergLake]:
    """A log on a disk. Its table is in a bucket behind the proxy."""
    store: dict[str, str] = {
        "warehouse": f"s3://{s3_bucket}/warehouse",
        "s3__endpoint": s3_proxy.url,
        "s3__access_key_id": ACCESS_KEY,
        "s3__secret_access_key": SECRET_KEY,
        "s3__region": REGION,
    }
    found = IcebergLake(tmp_path, table=configure(monkeypatch, tmp_path, **store))
    found.append([value(1), value(2)], [value(3)])
    yield found
    s3_proxy.faults = []


def nth_write(nth: int, action: Any, **how: Any) -> list[Fault]:
    """The rules by which the nth request that makes an object has a fault."""
    (kind,) = WRITES[1:]
    return [Fault("delay", kind=kind, times=nth), Fault(action, kind=kind, times=1, **how)]


@pytest.mark.long
@pytest.mark.parametrize("keys", [[], ["id"]], ids=["append", "keys"])
@pytest.mark.parametrize(
    ("action", "how"),
    [("error", {"status": 403}), ("error_after", {"status": 403}), ("lost_reply", {})],
    ids=["refused", "refused after", "lost"],
)
def test_an_object_that_fails_leaves_each_row_once(
    lake: IcebergLake, s3_proxy: S3Proxy, action: str, how: dict[str, Any], keys: list[str]
) -> None:
    def fails_at(nth: int) -> tuple[bool, object]:
        s3_proxy.reset()
        s3_proxy.faults = nth_write(nth, action, **how)
        with suppress(sparkwal.SparkWalError):
            compact(lake, keys=keys)
        has_failed = bool(s3_proxy.injected[action])
        s3_proxy.faults = []
        return has_failed, s3_proxy.requests

    survives_each_fault(lake, fails_at, 3, keys=keys)


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(1, 6))
def test_a_process_that_is_killed_at_an_object_leaves_each_row_once(
    lake: IcebergLake, s3_proxy: S3Proxy, nth: int
) -> None:
    compact(lake)
    lake.append([value(4)])
    command = [sys.executable, str(ROOT / "jobs/compact.py"), lake.path, lake.target.table, "--now"]
    written = 0
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:

        def kill(sent: Sent, status: int) -> None:
            nonlocal written
            written += kind_of(sent.method, sent.target)[0] in WRITES
            if written == nth:
                process.kill()

        s3_proxy.watch = kill
        process.communicate(timeout=120)
        s3_proxy.watch = None
    assert process.returncode == (-9 if written >= nth else 0)
    compact(lake)
    assert ids(lake) == [1, 2, 3, 4]
    assert sorted(lake.reader().current().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]


def test_what_no_snapshot_needs_is_found_in_a_bucket(lake: IcebergLake) -> None:
    compact(lake)
    lake.iceberg().delete("id = 3")
    expire(lake)
    copies = lines("erased", lake.path, "--value", "v3", code=1)
    data = [each for each in copies if each["object"].endswith(".parquet")]
    (orphan,) = (each for each in data if each["object"].startswith("s3://"))
    assert orphan["found"] == "the value" and "orphans" in orphan["until"]
