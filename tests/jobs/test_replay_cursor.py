"""jobs/replay.py --cursor: every commit's rows are once in the output after any interruption."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from reading.collected import collect, move_floor

import sparkwal
import support.cursor
from replay import COLLECTED, INVALID_ENTRY, main
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.logs import append, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    append(tmp_path / "wal", 0, 1, 2)
    return tmp_path / "wal"


def run(path: Path, *more: object, output: str = "out") -> Result:
    folder = path.parent
    arguments = [
        "--log",
        path,
        "--cursor",
        folder / "cursor",
        "--format",
        "parquet",
        "--output",
        folder / output,
        *more,
    ]
    return CliRunner().invoke(main, [str(each) for each in arguments])


def rows(path: Path, output: str = "out") -> list[dict[str, Any]]:
    files = sorted((path.parent / output).glob("*.parquet"))
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def values(path: Path) -> list[int]:
    return [row["v"] for row in rows(path)]


def test_each_run_continues_after_the_one_before(path: Path) -> None:
    assert run(path).exit_code == 0
    assert values(path) == [0, 1, 2]
    append(path, 3, 4)
    done = run(path)
    assert done.exit_code == 0 and "2 rows of 2 commits" in done.output
    assert values(path) == [0, 1, 2, 3, 4]
    assert run(path).exit_code == 0 and values(path) == [0, 1, 2, 3, 4]
    left = sorted(file.name for file in (path.parent / "out").iterdir())
    assert left == [f"{0:020d}.parquet", f"{4:020d}.parquet"]


def test_a_run_continues_all_sequencers(path: Path) -> None:
    append(path, 10, sequencer="a")
    append(path, 3)
    assert run(path, "--all", "--metadata").exit_code == 0
    assert values(path) == [0, 1, 2, 10, 3]
    assert rows(path)[3]["_wal_sequencer"] == "a" and rows(path)[3]["_wal_position"] == 1
    append(path, 20, sequencer="b")
    append(path, 11, sequencer="a")
    assert run(path, "--all", "--metadata").exit_code == 0
    assert values(path) == [0, 1, 2, 10, 3, 20, 11]
    gone = run(path, "--sequencers", "default,b")
    assert gone.exit_code == 1 and "sequencer 'a'" in gone.output


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_a_run_that_breaks_off_anywhere_leaves_each_row_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Chunks of one commit: three times a file, then the cursor; each is forced to the disk
    as a file and as a name."""
    monkeypatch.setattr(support.cursor, "CHUNK_ROWS", 1)
    monkeypatch.setattr(support.cursor.replay_from, "__defaults__", (1,))
    synced, sync = [], support.cursor.sync

    def breaks(file: Path) -> None:
        synced.append(file)
        if len(synced) == fails_at:
            raise OSError("no power")
        sync(file)

    monkeypatch.setattr(support.cursor, "sync", breaks)
    broken = run(path)
    assert broken.exit_code == 1 and broken.output.endswith("no power\n")
    monkeypatch.setattr(support.cursor, "sync", sync)
    append(path, 3)
    # More fits into a chunk by now: the file that is repeated holds more than before.
    monkeypatch.setattr(support.cursor.replay_from, "__defaults__", (2,))
    again = run(path)
    assert again.exit_code == 0, again.output
    assert values(path) == [0, 1, 2, 3]


def test_columns_that_came_later_are_null_in_the_rows_before(path: Path) -> None:
    wide = pa.schema([("v", pa.int64()), ("name", pa.string())])
    with sparkwal.Appender(str(path), wide, producer_id="p", mergeSchema=True) as wal:
        wal.append([{"v": 3, "name": "c"}])
    assert run(path, "--columns", "name,v,_wal_position").exit_code == 0
    assert [list(row.values())[:2] for row in rows(path)][-2:] == [[None, 2], ["c", 3]]
    unknown = run(path, "--columns", "nam")
    assert unknown.exit_code == 2 and "column 'nam' is not in the log" in unknown.output


# The interrupted step


def test_the_first_invalid_entry_is_reported_and_ends_it(path: Path) -> None:
    file = record(path, 2)
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)
    stopped = run(path)
    assert stopped.exit_code == INVALID_ENTRY
    assert values(path) == [0]
    reported = " ".join(stopped.output.split())
    for part in ("position 2", f"batches/{file.name}", "CRC", "positions after it 1"):
        assert part in reported
    # A second run: the same end, no row twice. After a repair it continues.
    assert run(path).exit_code == INVALID_ENTRY and values(path) == [0]
    content[200] ^= 1
    file.write_bytes(content)
    assert run(path).exit_code == 0 and values(path) == [0, 1, 2]


# Every outcome of a cursor


def test_a_damaged_cursor_is_refused(path: Path) -> None:
    run(path)
    cursor = path.parent / "cursor"
    whole = cursor.read_text()
    for damaged in ("", "{}", whole[:-5], whole.replace("default", "defaulT")):
        cursor.write_text(damaged)
        refused = run(path)
        assert refused.exit_code == 2 and "cursor is damaged" in refused.output
    assert values(path) == [0, 1, 2]


@pytest.mark.parametrize("lost", ["missing", "older"])
def test_a_cursor_that_is_missing_or_older_than_the_output_is_refused(
    path: Path, lost: str
) -> None:
    """To continue from it would write rows a second time."""
    cursor = path.parent / "cursor"
    run(path)
    older = cursor.read_text()
    for value in (3, 4):
        append(path, value)
        run(path)
    if lost == "missing":
        cursor.unlink()
    else:
        cursor.write_text(older)
    refused = run(path)
    assert refused.exit_code == 2 and "later positions than the cursor" in refused.output
    assert values(path) == [0, 1, 2, 3, 4]
    assert run(path, output="elsewhere").exit_code == 0


def test_a_collected_cursor_has_a_separate_exit_code(path: Path) -> None:
    run(path)
    append(path, 3, 4)
    log = LogStore(LocalStore(path, fsync=False), "")
    move_floor(log, 6)
    collect(log, 6)
    collected = run(path)
    assert collected.exit_code == COLLECTED
    assert "position 4" in collected.output and "floor, 6" in collected.output
    # A new one begins at the floor.
    (path.parent / "cursor").unlink()
    assert run(path, output="new").exit_code == 0
    assert [row["v"] for row in rows(path, "new")] == [4]


def test_a_cursor_ahead_of_its_log_is_refused(path: Path) -> None:
    run(path)
    record(path, 3).unlink()
    refused = run(path)
    assert refused.exit_code == 1 and "cut or restored" in " ".join(refused.output.split())


def test_a_cursor_of_another_log_is_refused(path: Path) -> None:
    run(path)
    shutil.rmtree(path)
    gone = run(path)
    assert gone.exit_code == 1 and "there is no log" in " ".join(gone.output.split())
    append(path, 7, 8, 9)
    other = run(path)
    assert other.exit_code == 1 and "recreated" in " ".join(other.output.split())


def test_options_that_contradict_a_cursor_are_refused(path: Path, tmp_path: Path) -> None:
    for more, says in (
        (("--from", "1"), "--cursor goes with"),
        (("--stream",), "--cursor goes with"),
        (("--mode", "append"), "--cursor goes with"),
        (("--format", "delta"), "--cursor writes --format parquet"),
        (("--output", "s3://b/x"), "a folder on a local disk"),
    ):
        refused = run(path, *more)
        assert refused.exit_code == 2 and says in refused.output
    alone = CliRunner().invoke(main, ["--log", str(path), "--all"])
    assert alone.exit_code == 2 and "--sequencers and --all are for --cursor" in alone.output
    none = run(tmp_path / "typo")
    assert none.exit_code == 2 and "there is no log" in none.output
    assert not (tmp_path / "cursor").exists()


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        (("--sequencers", "default,nobody"), "no log of sequencer nobody"),
        (("--columns", "v,v"), "names a column twice"),
        (("--output", "/dev/null/out"), "cannot create the folder"),
    ],
)
def test_an_impossible_replay_is_refused_before_the_cursor_is_written(
    path: Path, more: tuple[str, ...], reported: str
) -> None:
    done = run(path, *more)
    assert done.exit_code == 2 and reported in done.output
    assert not (path.parent / "cursor").exists()


def test_a_cursor_that_is_no_text_is_damaged(path: Path) -> None:
    (path.parent / "cursor").write_bytes(b"\xff\xfe\x00")
    done = run(path)
    assert done.exit_code == 2 and "the cursor is damaged" in done.output
