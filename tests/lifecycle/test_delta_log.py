"""A table's log as files: the changes by other writers, and the requests to read them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import sparkwal
from sparkwal.errors import ConfirmError, TableReadError
from sparkwal.lifecycle.delta import history
from sparkwal.lifecycle.delta import transaction_log as files
from sparkwal.lifecycle.delta.files import OtherFiles, StoreFiles, delta_log
from sparkwal.lifecycle.table import TableState
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from tests.lifecycle.lakes import SCHEMA, Lake

FOREIGN = pa.table({"id": [9], "v": ["v9"]}, SCHEMA)


def values(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "v": f"v{number}"} for number in numbers]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def opened(lake: Lake, storage: dict[str, str] | None = None) -> files.DeltaLog:
    return delta_log(
        lake.target.table, from_keywords(SourceOptions, lake.path, lake.options), storage
    )


def append(lake: Lake, times: int) -> None:
    for _ in range(times):
        write_deltalake(lake.target.table, FOREIGN, mode="append", storage_options=lake.storage)


def test_a_commit_that_came_after_the_version_was_pinned_is_not_looked_at(lake: Lake) -> None:
    lake.append(values(1))
    lake.compact()
    pinned = opened(lake)
    assert pinned.update()
    lake.append(values(2))
    lake.compact()
    state = pinned.snapshot(lake.head().log_id, 0)
    assert state is not None
    assert [(change.version, change.k) for change in state.changes] == [(1, 1)]


@pytest.mark.parametrize("whole", [0, 2**20])
def test_a_checkpoint_and_the_versions_after_it_agree_with_delta_rs(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(files, "_WHOLE_BYTES", whole)
    log = opened(lake)
    assert not log.update()
    for number in (1, 2, 3):
        lake.append(values(number))
        lake.compact()
        if number == 2:
            lake.delta().create_checkpoint()
        for each in (log, opened(lake), opened(lake, {})):
            assert each.update()
            state = each.snapshot(lake.head().log_id, 0)
            assert state is not None
            table = lake.delta()
            assert (state.version, state.k) == (table.version(), number)
            assert state.table_id == str(table.metadata().id)
            assert [change.k for change in state.changes if change.k] == [*range(1, number + 1)]


def test_the_newest_checkpoint_that_is_whole_is_read() -> None:
    def name(version: int, rest: str) -> str:
        return f"{version:020d}.checkpoint.{rest}"

    parts = [name(5, f"{n:010d}.{2:010d}.parquet") for n in (1, 2)]
    second = name(4, f"{uuid.UUID(int=1)}.json")
    torn = name(6, f"{1:010d}.{2:010d}.parquet")
    others = [f"{7:020d}.json", "_last_checkpoint", f"{7:020d}.crc", torn, second]
    assert files.newest_checkpoint(others) == [second]
    assert files.newest_checkpoint([*others, *parts]) == parts
    assert files.newest_checkpoint([*others, *parts, name(6, "parquet")]) == [name(6, "parquet")]


def test_a_table_that_replaces_another_is_read_from_its_start(lake: Lake, tmp_path: Path) -> None:
    log = opened(lake)
    append(lake, 3)
    assert log.update()
    before = log.table_id
    Path(lake.target.table).rename(tmp_path / "former")
    assert not log.update()
    append(lake, 3)
    assert log.update() and log.table_id != before


def _reads_of_each(monkeypatch: pytest.MonkeyPatch, lake: Lake, count: int) -> float:
    """The files that each of several logs reads while each of them adds a version to a table."""
    names: list[str] = []
    read = StoreFiles.read

    def noted(self: StoreFiles, name: str, *part: int) -> bytes:
        names.append(name)
        return read(self, name, *part)

    write_deltalake(lake.target.table, FOREIGN)
    logs = [opened(lake) for _ in range(count)]
    for log in logs:
        assert log.update()
        append(lake, 1)
    with monkeypatch.context() as patch:
        patch.setattr(StoreFiles, "read", noted)
        for log in logs:
            since = log.version
            assert log.update()
            state = log.snapshot("log", since)
            assert state is not None and state.complete
            assert len(state.changes) == log.version - since
            append(lake, 1)
    return len(names) / count


def test_logs_of_one_table_do_not_each_read_what_the_others_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (
        _reads_of_each(monkeypatch, Lake(tmp_path / f"{count}"), count) for count in (3, 12)
    )
    assert many <= few + 1


def test_what_another_log_has_read_of_a_table_is_no_part_of_its_successor(
    lake: Lake, tmp_path: Path
) -> None:
    """The folder of a backup: the same table with other versions after the first two."""
    write_deltalake(lake.target.table, FOREIGN)
    append(lake, 1)
    late, early = opened(lake), opened(lake)
    assert early.update()
    shutil.copytree(lake.target.table, tmp_path / "backup")
    append(lake, 3)
    assert late.update()
    shutil.rmtree(lake.target.table)
    shutil.copytree(tmp_path / "backup", lake.target.table)
    for _ in range(4):
        lake.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
        assert early.update()
        assert early.properties["delta.logRetentionDuration"] == "interval 9 days"
    state = early.snapshot("log", 1)
    assert state is not None
    assert {change.operation for change in state.changes} == {"SET TBLPROPERTIES"}


@contextmanager
def counting(upstream: str) -> Iterator[str]:
    """A proxy in a separate process, because delta-rs blocks the threads of this one."""
    command = [sys.executable, "-m", "sparkwal.testing.proxy", "--upstream", upstream]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stderr is not None
        try:
            yield it.stderr.readline().strip()
        finally:
            it.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("optimizes", [False, True])
def test_requests_do_not_grow_with_what_others_do_to_the_table(
    s3_path: tuple[str, dict[str, str]], optimizes: bool
) -> None:
    path, options = s3_path
    lake = Lake(path, options=options)
    lake.append(values(1))
    lake.compact()
    found = []
    with counting(options["endpoint"]) as url:
        for number in (1, 24, 24):
            append(lake, number)
            if optimizes and number > 1:
                lake.delta().optimize.compact()
            lake.delta().create_checkpoint()
            urlopen(Request(f"{url}/__reset", b"")).close()
            sparkwal.Log(lake.path, **{**options, "endpoint": url}).current()
            with urlopen(f"{url}/__counts") as answer:
                found.append(sum(json.load(answer).values()))
    print(found)
    assert max(found) < found[0] + 16 < 50


@pytest.mark.proves("history-undoes-nothing")
@pytest.mark.parametrize(
    ("undoes", "keys"),
    [
        ("restore", ("id",)),
        ("overwrite", ()),
        pytest.param("restore", (), marks=pytest.mark.slow),
        pytest.param("overwrite", ("id",), marks=pytest.mark.slow),
        pytest.param("restore after the open range", (), marks=pytest.mark.slow),
        pytest.param("restore after the open range", ("id",), marks=pytest.mark.slow),
    ],
)
def test_a_removal_is_found_among_many_versions(
    tmp_path: Path, keys: tuple[str, ...], undoes: str
) -> None:
    lake = Lake(tmp_path, *keys)
    lake.append(values(1))
    lake.compact()
    if "open range" in undoes:
        lake.append(values(2))
        lake.compact("written")
    append(lake, 30)
    lake.delta().optimize.compact()
    if undoes == "overwrite":
        write_deltalake(lake.target.table, FOREIGN, mode="overwrite")
    else:
        lake.delta().restore(1 if "open range" in undoes else 0)
    append(lake, 30)
    lake.delta().optimize.compact()
    lake.delta().create_checkpoint()
    with pytest.raises(ConfirmError, match="RESTORE" if "restore" in undoes else "WRITE"):
        lake.reader().current()


@pytest.mark.parametrize("is_cleaned", [False, True])
@pytest.mark.parametrize("removed", ["the last range", "an earlier range"])
def test_keys_that_return_are_found_among_many_versions(
    tmp_path: Path, removed: str, is_cleaned: bool
) -> None:
    """A RESTORE that only adds files removes none. The ranges since had removed whole files."""
    schema = pa.schema([("id", pa.int64()), ("gone", pa.bool_())])
    lake = Lake(tmp_path, "id", delete_when="gone")
    lake.append([{"id": 1, "gone": False}], schema=schema)
    lake.compact()
    before = lake.delta().version()
    lake.append([{"id": 1, "gone": True}], schema=schema)
    lake.compact()
    if removed == "an earlier range":
        lake.append([{"id": 1, "gone": True}], schema=schema)
        lake.compact()
    confirmed = lake.delta().version()
    lake.delta().restore(before)
    restored = lake.delta().version()
    for _ in range(25):
        foreign = pa.table({"id": [9], "gone": [False]}, schema)
        write_deltalake(lake.target.table, foreign, mode="append")
    lake.delta().create_checkpoint()
    if is_cleaned:
        for version in range(confirmed + 1, restored + 20):
            Path(lake.target.table, "_delta_log", f"{version:020d}.json").unlink()
    with pytest.raises(ConfirmError, match="does not reach back" if is_cleaned else "is a RESTORE"):
        lake.reader().current()


def test_versions_that_only_added_rows_may_be_gone_from_the_history(tmp_path: Path) -> None:
    """As after Delta's log retention. A range removes no rows of an append table."""
    lake = Lake(tmp_path)
    lake.append(values(1))
    lake.compact()
    confirmed = lake.delta().version()
    append(lake, 30)
    lake.delta().optimize.compact()
    append(lake, 2)
    lake.delta().create_checkpoint()
    optimized = confirmed + 31
    log = Path(lake.target.table, "_delta_log")
    for version in range(confirmed + 1, optimized - 8):
        (log / f"{version:020d}.json").unlink()
    rows = lake.reader().current().to_arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [1] + [9] * 32
    (log / f"{optimized:020d}.json").unlink()
    with pytest.raises(ConfirmError, match="does not reach back"):
        lake.reader().current()


def test_an_error_of_the_tables_store_shows_no_secret() -> None:
    secret = "wJalrXUtnFEMI"
    storage = {
        "aws_endpoint_url": "http://127.0.0.1:1",
        "aws_region": "x",
        "aws_allow_http": "true",
        "aws_access_key_id": "AKIDEXAMPLE",
        "aws_secret_access_key": secret,
        "aws_session_token": "",
        "max_retries": "0",
    }
    with pytest.raises(TableReadError) as error:
        OtherFiles("s3://bucket/table", storage).read("0.json")
    assert secret not in str(error.value) and "AKIDEXAMPLE" not in str(error.value)
    assert str(error.value).startswith("the table ") and "***c***" not in str(error.value)


@pytest.mark.parametrize(
    ("operation", "parameters", "undoes"),
    [
        ("RESTORE", {}, True),
        ("CREATE OR REPLACE TABLE AS SELECT", {}, True),
        ("REPLACE TABLE", {}, True),
        ("CREATE TABLE", {}, True),
        ("CLONE", {}, True),
        ("TRUNCATE", {}, True),
        ("WRITE", {"mode": "Overwrite", "predicate": "id > 1"}, True),
        ("STREAMING UPDATE", {"outputMode": "Complete"}, True),
        ("STREAMING UPDATE", {"outputMode": "Append"}, False),
        ("WRITE", {"mode": "Append"}, False),
        ("MERGE", {}, False),
        ("DELETE", {}, False),
        ("VACUUM START", {}, False),
        ("VACUUM END", {}, False),
        ("SET TBLPROPERTIES", {}, False),
    ],
)
def test_operations_that_undo_are_recognized(
    operation: str, parameters: dict[str, str], undoes: bool
) -> None:
    info = {"operation": operation, "operationParameters": parameters}
    assert history.change(3, info).undoes is undoes
    assert not history.change(0, info).undoes


def test_a_users_own_metadata_is_not_a_range() -> None:
    for reported in ("words", "[1]", '{"k": 1}', '{"log_id": 5, "k": 1}', None):
        assert history.change(1, {"operation": "WRITE", "userMetadata": reported}).k == 0
    found = history.change(1, {"operation": "WRITE", "userMetadata": '{"log_id": "a", "k": 4}'})
    assert (found.log_id, found.k) == ("a", 4)


def test_a_restore_that_names_no_version_shows_no_range() -> None:
    named = {"operation": "WRITE", "userMetadata": '{"log_id": "a", "k": 2}'}
    changes = [history.change(2, named), history.change(3, {"operation": "RESTORE"})]
    table = TableState("t", 3, 2, tuple(changes))
    found = history.held(table, changes, "a", 1, 1)
    assert found.unknown == "version 3 is a RESTORE that names no version"
    back = {"operation": "RESTORE", "operationParameters": {"version": 2}}
    changes.append(history.change(4, back))
    found = history.held(table, changes, "a", 1, 1)
    assert found.ranges == (changes[0],) and not found.unknown
