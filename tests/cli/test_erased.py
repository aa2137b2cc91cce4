"""`sparkwal erased` finds what is left of a person, wherever it lies, and never prints it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import main
from sparkwal.format.lifecycle_record import FLOOR
from sparkwal.protocol.hint import Hints
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.checkpoints.stateful import StatefulStream
from tests.checkpoints.stream import FileStream
from tests.cli.logs import lines, ran
from tests.lifecycle.lakes import Lake

PERSON = "Zaphod-Beeblebrox"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(*names: str) -> list[dict[str, Any]]:
    return [{"id": number, "name": name} for number, name in enumerate(names)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A person in a record of the log, and in the table."""
    lake = Lake(tmp_path, schema=SCHEMA)
    lake.append(rows("Arthur", PERSON))
    lake.compact()
    return lake


def found(path: str, value: str = PERSON, code: int = 1) -> dict[str, dict[str, str]]:
    """What the command found, by the names of the objects below the folder."""
    copies = lines("erased", path, "--value", value, code=code)
    assert PERSON not in json.dumps(copies)
    folder = path.removesuffix("/log").removeprefix("/")
    return {each["object"].partition(folder)[2].strip("/"): each for each in copies}


def test_each_copy_is_found_with_what_ends_it(lake: Lake) -> None:
    copies = found(lake.path)
    (record,) = (name for name in copies if name.startswith("log/batches/"))
    (data,) = (name for name in copies if name.endswith(".parquet"))
    assert "gcGrace" in copies[record]["until"]
    assert copies[data]["until"].startswith("DELETE")
    commits = [name for name in copies if name.startswith("table/_delta_log/")]
    assert commits and "logRetentionDuration" in copies[commits[0]]["until"]
    assert found(lake.path, "Trillian", code=0) == {}


def test_a_deleted_row_stays_in_old_files_and_in_the_predicate(lake: Lake) -> None:
    lake.delta().delete(f"name = '{PERSON}'")
    copies = found(lake.path)
    (data,) = (name for name in copies if name.endswith(".parquet"))
    assert copies[data]["until"].startswith("VACUUM")
    commits = [name for name in copies if name.startswith("table/_delta_log/")]
    assert len(commits) == 2
    lake.delta().vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert not [name for name in found(lake.path) if name.endswith(".parquet")]


def test_a_checkpoint_of_the_table_is_searched(lake: Lake) -> None:
    lake.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
    lake.delta().create_checkpoint()
    copies = found(lake.path)
    (checkpoint,) = (name for name in copies if "checkpoint.parquet" in name)
    assert "(interval 40 days)" in copies[checkpoint]["until"]


def test_segments_and_other_logs_of_the_path_are_searched(tmp_path: Path) -> None:
    lake = Lake(tmp_path, schema=SCHEMA, sequencer="b")
    lake.append(rows(PERSON))
    assert [name.split("/")[1:3] for name in found(lake.path)] == [["sequencers", "b"]]
    with sparkwal.Appender(
        f"{tmp_path}/log", SCHEMA, producer_id="p", maxInFlightRequests=1
    ) as wal:
        for number in range(1001):
            wal.append([{"id": number, "name": PERSON if number == 7 else "x"}]).result()
    ran("segment", lake.path)
    names = {name.split("/")[1] for name in found(lake.path)}
    assert names == {"batches", "segments", "sequencers"}


def test_tombstones_and_a_table_beside_are_searched(lake: Lake, tmp_path: Path) -> None:
    for name in "table_tombstones", "table_refused":
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(json.dumps({"name": PERSON}))
    names = {name.split("/")[0] for name in found(lake.path)}
    assert names == {"log", "table", "table_tombstones", "table_refused"}


def test_of_a_damaged_object_and_a_missing_table_nobody_can_tell(
    lake: Lake, tmp_path: Path
) -> None:
    for file in (tmp_path / "table").rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-9])
    copies = found(lake.path, "Trillian")
    assert [each["found"].partition(":")[0] for each in copies.values()] == ["cannot tell"]
    (tmp_path / "table").rename(tmp_path / "moved")
    (copy,) = found(lake.path, "Trillian").values()
    assert copy["found"] == "cannot tell: the table has no files here"


def test_the_value_comes_from_a_line_of_the_input_and_is_never_printed(lake: Lake) -> None:
    part = Path(lake.target.table) / f"name={PERSON}"
    part.mkdir()
    (part / "a.txt").write_text("x")
    done = CliRunner().invoke(main, ["erased", lake.path, "--value", "-"], input=f"{PERSON}\n")
    assert done.exit_code == 1 and PERSON not in done.output
    assert "name=***/a.txt" in done.output and " hold the value" in done.output
    empty = CliRunner().invoke(main, ["erased", lake.path, "--value", "-"], input="\n")
    assert empty.exit_code == 2 and "the value is empty" in empty.output
    nothing = CliRunner().invoke(main, ["erased", f"{lake.path}/x", "--value", PERSON])
    assert nothing.exit_code == 2 and "check the path" in nothing.output


@pytest.mark.parametrize("inline", [2**16, 0], ids=["inlined", "in an object"])
def test_a_checkpoint_in_a_record_is_searched(tmp_path: Path, inline: int) -> None:
    log = LogStore(LocalStore(tmp_path / "log"), "")
    FileStream(log, tmp_path / "ck", Hints("log", tmp_path / "hints"), inline=inline).run(range(3))
    copies = found(str(tmp_path / "log"), "in/000002.json")
    assert [each["found"] for each in copies.values()] == ["the value"]
    assert found(str(tmp_path / "log"), "in/000009.json", code=0) == {}


def test_of_the_state_of_a_query_nobody_can_tell(tmp_path: Path) -> None:
    log = LogStore(LocalStore(tmp_path / "log"), "")
    StatefulStream(log, tmp_path / "ck", Hints("log", tmp_path / "hints")).run(range(2))
    copies = found(str(tmp_path / "log"), "Trillian")
    assert {each["found"] for each in copies.values()} == {
        "cannot tell: it carries the state of a query, which only Spark reads"
    }


def test_a_table_on_another_store_is_not_opened_and_nobody_can_tell(lake: Lake) -> None:
    lake.put(FLOOR, target=replace(lake.target, table="s3://elsewhere/t"))
    copies = found(lake.path, "Trillian")
    assert "tableLocation" in copies[""]["found"]
    assert copies[""]["found"].startswith("cannot tell: the log names the table")


def test_a_clean_up_with_a_checkpoint_leaves_nothing_in_the_table(lake: Lake) -> None:
    lake.delta().delete(f"name = '{PERSON}'")
    lake.delta().vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert [name for name in found(lake.path) if name.startswith("table/")]
    long_ago = time.time() - 40 * 86_400
    for file in (Path(lake.target.table) / "_delta_log").iterdir():
        os.utime(file, (long_ago, long_ago))
    lake.delta().create_checkpoint()
    lake.delta().cleanup_metadata()
    assert not [name for name in found(lake.path) if name.startswith("table/")]
