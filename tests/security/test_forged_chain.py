"""A forged lifecycle record, consumer or table: an error of ours, and no request to strangers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkwal
from sparkwal.errors import ConfirmError, InvalidLogError, OptionError, TableReadError
from sparkwal.format import keys, lifecycle_record
from sparkwal.format.consumer_record import encode
from sparkwal.format.lifecycle_record import (
    APPEND,
    FLOOR,
    MERGE,
    TableInChain,
    Target,
)
from sparkwal.lifecycle.delta.files import delta_log
from sparkwal.lifecycle.merging import condition
from sparkwal.lifecycle.opening import check_place
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from tests.chains import Seen, beginning, changed, made
from tests.cli.logs import lines, ran
from tests.consumers import consumer
from tests.lifecycle.lakes import Lake
from tests.logs import append

SOUND = Target("s3://b/t", MERGE, ("id",), "at", "gone", ("day",))


def record(target: Target, log_id: str = "log") -> Seen:
    return made(
        FLOOR,
        number=keys.MAX,
        record_id="r",
        log_id=log_id,
        sequencer="default",
        target=target,
        table_id="t",
        table_version=0,
        gc_grace_ms=86_400_000,
        host="h",
    )


def _encoded(state: Seen) -> bytes:
    return lifecycle_record.encode(state.record)


def forged(folder: Path, target: Target) -> str:
    """A log with a lifecycle record that somebody put."""
    path = str(folder / "log")
    append(path, 1)
    head = sparkwal.Log(path).head()
    assert head is not None
    file = folder / "log" / keys.lifecycle_key("", keys.MAX)
    file.parent.mkdir()
    file.write_bytes(_encoded(record(target, head.log_id)))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "overwrite"},
        {"mode": ""},
        {"mode": APPEND},
        {"keys": ()},
        {"keys": ("",)},
        {"keys": ("id", " ")},
        {"cluster_by": ("day",)},
        {"table": ""},
        {"table": " "},
        {"mode": APPEND, "keys": (), "delete_when": ""},
    ],
)
def test_a_target_that_no_compaction_has_is_refused(changes: dict[str, Any]) -> None:
    body = _encoded(record(SOUND))
    assert lifecycle_record.decode(body, "here").tables == {
        SOUND.table: TableInChain(SOUND, "log", 0, "t", 0)
    }
    other = _encoded(record(replace(SOUND, **changes)))
    with pytest.raises(InvalidLogError, match="here: no compaction fills a table"):
        lifecycle_record.decode(other, "here")


@pytest.mark.parametrize(
    "table",
    [
        "http://169.254.169.254/latest",
        "http:/169.254.169.254/latest",
        "HTTPS://strangers/lake",
        "ftp://strangers/lake",
        *("har://hdfs-strangers/lake", "webhdfs://strangers/lake", "HDFS://strangers/lake"),
        *("hdfs://strangers:9000/lake", "viewfs://strangers/lake", "hdfs:/lake", "oss://b/lake"),
        *("abfss://c@strangers/lake", "wasbs://c@strangers/lake", "gs://b/lake", "dbfs:/lake"),
        *("s3a://strangers/lake", "memory:///lake"),
        "s3://KEY:SECRET@bucket/lake",
        "s3://bucket/lake\x1b[2J",
    ],
)
def test_a_reader_opens_no_place_of_another_kind_that_a_log_names(
    tmp_path: Path, table: str
) -> None:
    with pytest.raises(OptionError) as found:
        check_place(table, StoreOptions("/log"))
    assert "SECRET" not in str(found.value) and "\x1b" not in str(found.value)
    path = forged(tmp_path, Target(table))
    with pytest.raises(OptionError, match="table"):
        sparkwal.Log(path).current()
    ran("collect", path, code=2)


@pytest.mark.parametrize(
    ("log", "table", "named"),
    [
        ("s3://b/log", "s3://b/t", ""),
        ("s3a://b/log", "S3A://other/t", ""),
        ("/log", "/lake", ""),
        ("file:///log", "lake: 1", ""),
        ("s3://b/log", "abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t/"),
        ("/log", "hdfs://nn:9000/t", "s3://b/t, hdfs://nn:9000/t"),
    ],
)
def test_a_reader_opens_a_table_on_the_logs_store_or_one_that_its_caller_names(
    log: str, table: str, named: str
) -> None:
    check_place(table, StoreOptions(log, table_location=named))
    if named:
        with pytest.raises(OptionError, match="tableLocation"):
            check_place(f"{table}/other", StoreOptions(log, table_location=named))


def test_an_open_range_without_a_table_is_refused() -> None:
    begun = beginning("log", "default", 86_400_000)
    body = lifecycle_record.encode(changed(begun, FLOOR, to=1, number=keys.MAX))
    with pytest.raises(InvalidLogError, match="an open range and no table"):
        lifecycle_record.decode(body, "here")


def test_a_record_far_from_the_chain_is_an_error_of_a_collection(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, 1)
    head = sparkwal.Log(path).head()
    assert head is not None
    number = 2**31
    file = tmp_path / "log" / keys.lifecycle_key("", number)
    file.parent.mkdir()
    far = made(FLOOR, head.log_id, gc_grace_ms=86_400_000, number=number)
    file.write_bytes(_encoded(far))
    ran("collect", path)


@pytest.mark.parametrize("pattern", ["%a%b", "%a%b%", "a%b%c", "%_%_%", "%%a%%b", "%a" * 40])
def test_a_pattern_that_takes_long_to_search_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="more than one % before its end"):
        condition.parse(f"op like '{pattern}'")


@pytest.mark.parametrize("pattern", ["", "%", "%%", "a%", "%a", "%a%", "a%b", "a%b%", "_a%_%%"])
def test_a_pattern_with_one_part_to_search_for_is_read(pattern: str) -> None:
    assert condition.parse(f"op like '{pattern}'")


@pytest.mark.parametrize("name", ["\x07", "a\x1b[2J", "a b", "é", "x" * 201, "a.tmp"])
def test_an_object_among_consumers_that_is_none_is_passed_over(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "log")
    append(path, 1)
    head = sparkwal.Log(path).head()
    assert head is not None
    file = tmp_path / "log" / "consumers" / name
    file.parent.mkdir()
    file.write_bytes(encode(consumer(name, 1, head.log_id), "default"))
    assert sparkwal.consumers(path) == []
    (shown,) = lines("status", path)
    assert shown["consumers"] == [] and not shown.get("damage")
    made = lines("report", path, "-o", str(tmp_path / "report.html"))
    assert "\x1b" not in str(made) and "\x07" not in (tmp_path / "report.html").read_text()


def test_a_log_that_was_never_opened_shows_itself() -> None:
    class Shown(sparkwal.Log):
        def __init__(self, path: str) -> None:
            self.caught = ""
            try:
                super().__init__(path)
            except OptionError:
                self.caught = repr(self)

    assert Shown("ftp://nowhere/x").caught == "Log(never opened)"
    assert repr(sparkwal.Log("/tmp/x")) == "Log('file:///tmp/x')"


def versions(lake: Lake) -> Path:
    return Path(lake.target.table) / "_delta_log"


def a_commit(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / f"{0:020d}.json").write_text(text) and None


def a_checkpoint(data: bytes) -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        (folder / f"{0:020d}.checkpoint.parquet").write_bytes(data)
        (folder / "_last_checkpoint").write_text('{"version":0}')

    return put


def other_columns(folder: Path) -> None:
    file = folder / f"{0:020d}.checkpoint.parquet"
    pq.write_table(pa.table({"txn": [1, 2], "metaData": ["a", "b"]}), file)


FORGED: dict[str, Callable[[Path], None]] = {
    "no JSON": a_commit("{"),
    "deep": a_commit("[" * 100_000),
    "a list": a_commit("[]"),
    "a number": a_commit("1"),
    "no text": a_commit('{"metaData":null}\n{"metaData":5}'),
    "no fields": a_commit('{"metaData":{"id":1}}'),
    "remove": a_commit('{"remove":[]}'),
    "commitInfo": a_commit('{"commitInfo":[1]}'),
    "time": a_commit('{"commitInfo":{"timestamp":"x"}}'),
    "digits": a_commit('{"commitInfo":{"timestamp":' + "9" * 5000 + "}}"),
    "mode": a_commit('{"commitInfo":{"operationParameters":[1]}}'),
    "metrics": a_commit(
        '{"commitInfo":{"operation":"WRITE","operationMetrics":{"numOutputRows":"'
        + "9" * 5000
        + '"}}}'
    ),
    "txn": a_commit('{"txn":{"appId":[]}}'),
    "no parquet": a_checkpoint(b"PAR1nonePAR1"),
    "other columns": other_columns,
    "last": lambda folder: (folder / "_last_checkpoint").write_text("[]") and None,
    "last deep": lambda folder: (folder / "_last_checkpoint").write_text("[" * 100_000) and None,
}


@pytest.mark.parametrize("kind", FORGED)
def test_files_that_no_table_has_are_an_error_that_names_the_table(
    tmp_path: Path, kind: str
) -> None:
    lake = Lake(tmp_path)
    lake.append([{"id": 1, "v": "v1"}])
    lake.compact()
    FORGED[kind](versions(lake))
    try:
        sparkwal.Log(lake.path).current().to_arrow()
    except (TableReadError, ConfirmError) as error:
        assert lake.target.table in str(error)


def test_the_log_of_a_table_is_looked_at_again_after_an_error(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append([{"id": 1, "v": "v1"}])
    lake.compact()
    log = delta_log(lake.target.table, from_keywords(SourceOptions, lake.path, {}))
    file = versions(lake) / f"{0:020d}.json"
    intact = file.read_text()
    file.write_text("{")
    with pytest.raises(TableReadError, match="is damaged"):
        log.update()
    file.write_text(intact)
    assert log.update() and json.loads(log.spark_schema)
