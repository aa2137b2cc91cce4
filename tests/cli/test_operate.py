"""`sparkwal collect` and `sparkwal checkpoint`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from reading.collected import move_floor

import sparkwal
from sparkwal.cli.main import main
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import INTENT, Target
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.chains import newest, put_next
from tests.checkpoints.stream import FileStream
from tests.cli.logs import document, lines, opened, ran
from tests.consumers import consumer, publish
from tests.logs import append
from tests.protocol.query import hints_in


def grow_old(wal: Path) -> None:
    """Its lifecycle was written longer ago than twice the grace."""
    long_ago = time.time() - 2 * 86_400 - 3600
    for file in (wal / "lifecycle").iterdir():
        os.utime(file, (long_ago, long_ago))


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    """A log with an old floor, and three objects below it of writers that died."""
    folder = tmp_path / "wal"
    append(str(folder), *range(6))
    for partition in range(3):
        (folder / "batches" / keys.encode(keys.data(3, 1000, partition))).write_bytes(bytes(1000))
    move_floor(opened(folder), 5)
    grow_old(folder)
    return folder


def stored(wal: Path) -> set[str]:
    return {file.name for file in (wal / "batches").iterdir()}


def test_collect_shows_what_would_go_and_deletes_only_when_it_is_confirmed(wal: Path) -> None:
    before = stored(wal)
    reported = document("collect", str(wal))
    assert (reported["floor"], reported["below"], reported["objects"], reported["bytes"]) == (
        5,
        5,
        3,
        3000,
    )
    assert reported["deleted"] is False and stored(wal) == before
    assert "--delete would delete" in ran("collect", str(wal)) and stored(wal) == before
    assert document("collect", str(wal), "--delete")["objects"] == 3
    assert len(before - stored(wal)) == 3
    assert document("collect", str(wal), "--delete")["objects"] == 0
    assert sparkwal.Log(str(wal)).scan(start=5).read_all().num_rows == 2


def test_collect_fails_if_the_store_keeps_what_it_deletes(
    wal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "delete_many", lambda self, keys, etags=(): keys)
    [row] = lines("collect", str(wal), "--delete", code=1)
    assert (row["objects"], row["bytes"], row["kept"]) == (0, 0, 3)
    assert "the store kept 3 objects" in ran("collect", str(wal), "--delete", code=1)
    assert document("collect", str(wal))["objects"] == 3


def test_collect_fails_if_it_cannot_erase_the_rows_of_a_damaged_record(wal: Path) -> None:
    long_ago = time.time() - 5 * 86_400
    for file in (wal / "lifecycle").iterdir():
        os.utime(file, (long_ago, long_ago))
    damaged = wal / keys.key("", keys.slot(2, 1000))
    data = bytearray(damaged.read_bytes())
    data[50] ^= 1
    damaged.write_bytes(data)
    ran("collect", str(wal))
    assert "could not be erased" in ran("collect", str(wal), "--delete", code=1)


@pytest.mark.parametrize(
    ("arguments", "holder"),
    [
        (("--gc-grace", "3d"), "the grace"),
        ((), "reports"),
        (("--consumer-expiry", "1h"), None),
    ],
)
def test_collect_names_the_holder_of_the_floor(
    wal: Path, arguments: tuple[str, ...], holder: str | None
) -> None:
    state = newest(opened(wal))
    assert state is not None
    publish(opened(wal), consumer("reports", 2, state.log_id))
    hours_ago = time.time() - 2 * 3600
    os.utime(wal / "consumers" / "reports", (hours_ago, hours_ago))
    assert document("collect", str(wal), *arguments)["held_by"] == holder
    assert (holder or "–") in ran("collect", str(wal), *arguments)


def test_collect_names_the_consumer_at_which_the_floor_stands(wal: Path) -> None:
    state = newest(opened(wal))
    assert state is not None
    publish(opened(wal), consumer("reports", state.floor, state.log_id))
    assert document("collect", str(wal))["held_by"] == "reports"


def test_collect_reports_each_log_and_one_without_a_lifecycle(wal: Path) -> None:
    append(str(wal), *range(1), sequencer="one")
    reported = {each["sequencer"]: each for each in lines("collect", str(wal), "--all")}
    assert reported["default"]["objects"] == 3 and reported["one"]["lifecycle"] is False
    # No collection looked at its records: all of them may hold rows.
    assert reported["default"]["with_rows"] == 0 and reported["one"]["with_rows"] is None
    assert "no lifecycle" in ran("collect", str(wal), "--sequencer", "one", "--delete")
    ran("collect", str(wal), "--gc-grace", "1min", code=2)
    ran("collect", str(wal), "--gc-grace", "3600000", code=2)


_WITHOUT_DELTA = """
import sys
sys.modules["deltalake"] = None
from sparkwal.cli import run
run()
"""


@pytest.mark.process
def test_a_log_with_a_table_is_collected_without_delta_rs(wal: Path, tmp_path: Path) -> None:
    log = opened(wal)
    state = newest(log)
    assert state is not None
    target = Target(str(tmp_path / "table"))
    assert put_next(log, state, INTENT, Clock(), "test", k=1, cut=6, to=7, target=target)
    grow_old(wal)
    before = stored(wal)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DELTA, "collect", str(wal), "--delete"],
        capture_output=True,
        text=True,
    )
    # A missing table suspends compaction.
    assert done.returncode == 3 and "does not exist any more" in done.stderr
    assert stored(wal) == before


def test_a_checkpoint_folder_is_created_if_it_is_missing(tmp_path: Path) -> None:
    path, folder = str(tmp_path / "store" / "wal"), tmp_path / "ck"

    def made() -> dict[str, object]:
        return document("checkpoint", path, "orders", "--to", str(folder))

    reported = made()
    assert (reported["folder"], reported["made"], reported["batch_id"]) == (str(folder), True, -1)
    log = LogStore(LocalStore(tmp_path / "store", fsync=False), "wal")
    FileStream(log, folder, hints_in(tmp_path)).run(range(3))
    assert (made()["made"], made()["batch_id"]) == (False, 2)
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    reported = made()
    assert (reported["made"], reported["why"], reported["batch_id"]) == (
        True,
        "there is no checkpoint of this query",
        2,
    )
    assert (folder / "offsets" / "2").exists()
    result = CliRunner().invoke(main, ["checkpoint", path, "orders", "--to", str(folder)])
    assert result.stdout == f"{folder}\n" and "unchanged" in result.stderr


def test_a_checkpoint_does_not_replace_what_is_not_its_own(tmp_path: Path) -> None:
    path, folder = str(tmp_path / "wal"), tmp_path / "mine"
    append(path, *range(1))
    folder.mkdir()
    (folder / "letter").write_text("dear")
    assert "is not empty" in ran("checkpoint", path, "orders", "--to", str(folder), code=2)
    assert (folder / "letter").read_text() == "dear"
    assert "share a folder" in ran("checkpoint", path, "orders", "--to", path, code=2)
    assert "name is" in ran("checkpoint", path, " ", code=2)


def test_collect_of_all_logs_erases_rows_and_looks_again_after_a_restore(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    for name in ("a", "b"):
        append(str(wal), *range(3), sequencer=name)
        move_floor(opened(wal, sequencer=name), 4)
    for file in (wal / "lifecycle").iterdir():
        os.utime(file, (time.time() - 3 * 86_400,) * 2)
    record = wal / "sequencers" / "a" / "batches" / keys.encode(keys.slot(1, 1000))
    backup = record.read_bytes()
    reported = lines("collect", str(wal), "--all", "--delete")
    assert [(each["sequencer"], each["erased"]) for each in reported] == [("a", 3), ("b", 3)]
    record.write_bytes(backup)
    assert [each["erased"] for each in lines("collect", str(wal), "--all", "--delete")] == [0, 0]
    again = ("collect", str(wal), "--all", "--delete", "--look-again")
    assert [each["erased"] for each in lines(*again)] == [1, 0]
    assert record.read_bytes() != backup


def test_collect_names_one_error_of_a_table_once(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    for name in ("a", "b", "c"):
        append(str(wal), *range(3), sequencer=name)
        log = opened(wal, sequencer=name)
        move_floor(log, 2)
        state = newest(log)
        assert state is not None
        target = Target(str(tmp_path / "table"))
        assert put_next(
            log, state, INTENT, Clock(), "test", k=1, cut=3, to=4, table_id="t", target=target
        )
    for file in (wal / "lifecycle").iterdir():
        os.utime(file, (time.time() - 3 * 86_400,) * 2)
    shown = ran("collect", str(wal), "--all", code=3)
    assert shown.count("does not exist any more") == 1 and "a and 2 others" in shown
