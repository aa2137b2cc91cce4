"""What may be deleted, as a user asks for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from lives import JVM_SAYS_FIRST, chain, run, write

import sparkwal
from sparkwal.format import keys
from sparkwal.format.consumer import Consumer
from sparkwal.lifecycle.consumers import publish
from sparkwal.options.open import open_log
from sparkwal.options.store import StoreOptions


def objects(wal: Path) -> set[str]:
    return {path.name for path in (wal / "batches").iterdir()}


def with_an_old_floor(wal: Path) -> int:
    """A log with three data objects of writers that died, whose floor was moved two days ago."""
    write(wal, range(20))
    for partition in range(3):
        (wal / "batches" / keys.encode(keys.data(3, 1000, partition))).write_bytes(bytes(1000))
    floor = sparkwal.Lifecycle(str(wal), retainBytes="15kb").run_once().floor
    assert floor > 3
    long_ago = time.time() - 2 * 86_400
    for path in (wal / "lifecycle").iterdir():
        os.utime(path, (long_ago, long_ago))
    return floor


def test_it_shows_what_would_go_and_deletes_only_when_asked_to(tmp_path: Path) -> None:
    floor = with_an_old_floor(tmp_path / "wal")
    before = objects(tmp_path / "wal")
    dry = run(tmp_path, "collect", "wal")
    assert dry.returncode == 0, dry.stderr
    assert "this would be deleted" in dry.stdout and objects(tmp_path / "wal") == before
    row = dry.stdout.splitlines()[-2].split()
    assert row[:6] == ["default", str(floor), str(floor), "3", "3.0", "kB"]
    gone = run(tmp_path, "collect", "wal", "--delete")
    assert gone.returncode == 0, gone.stderr
    assert len(before - objects(tmp_path / "wal")) == 3
    again = run(tmp_path, "collect", "wal", "--delete")
    assert again.stdout.splitlines()[-2].split()[3] == "0"
    assert JVM_SAYS_FIRST not in dry.stderr + gone.stderr
    assert sparkwal.Log(str(tmp_path / "wal")).scan(start=floor).read_all().num_rows > 0


@pytest.mark.parametrize(
    ("arguments", "holder"),
    [
        (("--gc-grace", "3d"), "the grace"),
        ((), "consumer reports"),
        (("--consumer-expiry", "1h"), "–"),
    ],
)
def test_it_tells_what_holds_it_back(
    tmp_path: Path, arguments: tuple[str, ...], holder: str
) -> None:
    with_an_old_floor(tmp_path / "wal")
    state = chain(tmp_path / "wal")
    assert state is not None
    log = open_log(StoreOptions(path=str(tmp_path / "wal")))
    publish(log, Consumer("reports", state.log_id, 2, 0, "here", "run"))
    hours_ago = time.time() - 2 * 3600
    os.utime(tmp_path / "wal" / "consumers" / "reports", (hours_ago, hours_ago))
    told = run(tmp_path, "collect", "wal", *arguments)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-2].rstrip().endswith(holder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "there is no log at nothing"),
        (("wal", "--gc-grace", "1min"), "at least 1h is needed"),
        (("wal", "--gc-grace", "3600000"), "no time with its unit"),
        (("wal", "--log-option", "retain=1"), "unknown option 'retain'"),
    ],
)
def test_wrong_usage_ends_with_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    write(tmp_path / "wal", range(1))
    refused = run(tmp_path, "collect", *arguments)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())


def test_a_log_without_a_lifecycle_has_nothing_to_collect(tmp_path: Path) -> None:
    write(tmp_path / "wal", range(1))
    told = run(tmp_path, "collect", "wal", "--delete")
    assert told.returncode == 0 and "no lifecycle" in told.stdout
