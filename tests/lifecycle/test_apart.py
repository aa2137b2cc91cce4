"""A log and its table lie apart, so that a delete in one never reaches the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.opening import check_apart
from sparkwal.options.open import check_new_log
from sparkwal.spark.delta_lifecycle import Lifecycle
from sparkwal.store.base import LogStore, Page
from sparkwal.store.path import overlap
from sparkwal.testing.memory import MemoryStore
from sparkwal.testing.proxy import S3Proxy
from tests.lifecycle.lakes import SCHEMA, Lake

ROWS = [{"id": 1, "v": "v1"}]


@pytest.mark.parametrize(
    ("log", "table"),
    [
        ("/lake/t", "/lake/t"),
        ("/lake/t/wal", "/lake/t"),
        ("/lake/t", "file:///lake/t/x/table/"),
        ("file:/lake/../lake/t/", "/lake//t/table"),
        ("/", "/lake"),
        ("s3://b/t/wal", "s3a://b/t/"),
        ("S3A://b/wal", "s3://b/wal/a/table"),
        ("s3n://b/wal", "s3://b//wal/table"),
        ("s3://b", "s3a://b/table"),
        ("s3://b/", "s3://b"),
    ],
)
def test_a_path_inside_the_other_overlaps(log: str, table: str) -> None:
    assert overlap(log, table)


@pytest.mark.parametrize(
    ("log", "table"),
    [
        ("/lake/t", "/lake/table"),
        ("/lake/wal", "/lake/t"),
        ("s3://b/wal", "s3://b/wal2"),
        ("s3://b/wal", "s3://b2/wal/table"),
        ("s3://b/wal", "/b/wal"),
        ("s3://b", "gs://b/table"),
    ],
)
def test_paths_beside_each_other_do_not_overlap(log: str, table: str) -> None:
    assert not overlap(log, table)


@pytest.mark.parametrize(
    "path", ["s3://b/wal", "s3://b/wal/sequencers/a", "s3a://b/wal/sequencers/a/"]
)
def test_the_log_of_a_sequencer_reaches_as_far_as_the_path_it_is_under(path: str) -> None:
    for table in ("s3://b/wal/table", "s3://b", "s3a://b/wal/sequencers/b"):
        with pytest.raises(OptionError, match="inside"):
            check_apart(path, Target(table))
    check_apart(path, Target("s3://b/table"))
    check_apart(path, Target("s3://b/walls"))


def test_a_relative_path_is_a_log_like_any_other() -> None:
    check_apart("wal", Target("lake"))
    for table in ("wal", "wal/lake", "."):
        with pytest.raises(OptionError, match="inside"):
            check_apart("wal", Target(table))


def test_paths_overlap_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    assert overlap(f"{tmp_path}/link/wal", f"{tmp_path}/table")
    assert overlap(f"file://{tmp_path}/link", f"{tmp_path}/table/inner")


@pytest.mark.parametrize("sequencer", ["default", "a"])
@pytest.mark.parametrize("table", ["", "/wal", "/wal/table", "/wal/sequencers/b"])
def test_a_lifecycle_of_a_log_and_a_table_that_are_not_apart_is_refused(
    tmp_path: Path, table: str, sequencer: str
) -> None:
    with pytest.raises(OptionError, match="inside"):
        Lifecycle(f"{tmp_path}/wal", spark=None, table=f"{tmp_path}{table}", sequencer=sequencer)


def test_a_table_inside_its_log_is_not_read_as_current(tmp_path: Path) -> None:
    lake = Lake(tmp_path, table=f"{tmp_path}/log/table")
    lake.append(ROWS)
    lake.compact()
    with pytest.raises(OptionError, match="inside"):
        lake.reader().current()


def begin(path: str, **options: Any) -> None:
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        wal.append(ROWS).result()


@pytest.mark.parametrize("inside", ["", "/wal", "/a/b/wal", "/link/wal"])
@pytest.mark.parametrize("sequencer", ["default", "a"])
def test_no_log_begins_inside_a_table(tmp_path: Path, inside: str, sequencer: str) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"n": [1]}))
    (tmp_path / "elsewhere").symlink_to(table)
    path = f"{tmp_path}/elsewhere/wal" if "link" in inside else f"{table}{inside}"
    with pytest.raises(OptionError, match=f"inside the Delta table {table}"):
        begin(path, sequencer=sequencer)
    assert sparkwal.Log(path).head() is None


FOLDERS = ["batches", "consumers/x", "lifecycle", "a/handover", "txns"]


@pytest.mark.parametrize("within", FOLDERS)
def test_no_log_begins_in_a_folder_of_another(tmp_path: Path, within: str) -> None:
    begin(f"{tmp_path}/wal")
    begin(f"{tmp_path}/wal/a")
    with pytest.raises(OptionError, match=f"in a folder of the log {tmp_path}/wal"):
        begin(f"{tmp_path}/wal/{within}")
    assert sparkwal.Log(f"{tmp_path}/wal/{within}").head() is None
    begin(f"{tmp_path}/other/{within}")
    begin(f"{tmp_path}/wal/sequencers/s")
    assert sparkwal.verify(f"{tmp_path}/wal").ok


@pytest.mark.parametrize("within", FOLDERS)
def test_on_s3_no_log_begins_in_a_folder_of_another(
    s3_path: tuple[str, dict[str, str]], within: str
) -> None:
    path, options = s3_path
    begin(path, **options)
    begin(f"{path}/a", **options)
    with pytest.raises(OptionError, match="in a folder of the log http"):
        begin(f"{path}/{within}", **options)
    assert sparkwal.Log(f"{path}/{within}", **options).head() is None
    begin(f"{path}2/{within}", **options)


def test_an_existing_log_continues(tmp_path: Path) -> None:
    """It is read and written as before: only the beginning of a log is checked."""
    begin(f"{tmp_path}/table/wal")
    write_deltalake(tmp_path / "table", pa.table({"n": [1]}))
    begin(f"{tmp_path}/table/wal")
    assert sparkwal.Log(f"{tmp_path}/table/wal").scan().read_all().num_rows == 2


INSIDE = ["table/j", "logs/wal", "logs/wal/batches", "other/lifecycle/j", "link/j", "journal/j"]


@pytest.mark.parametrize("place", [*INSIDE, "logs", "up/..", "table/locked"])
def test_no_journal_shares_a_folder_with_a_table_a_log_or_a_journal(
    tmp_path: Path, place: str
) -> None:
    write_deltalake(tmp_path / "table", pa.table({"n": [1]}))
    (tmp_path / "link").symlink_to(tmp_path / "table")
    begin(f"{tmp_path}/other", journal=f"{tmp_path}/journal")
    (tmp_path / "logs/wal").mkdir(parents=True)
    (tmp_path / "up").symlink_to(tmp_path / "logs/wal")
    (tmp_path / "table/locked").mkdir()
    (tmp_path / "table/locked/lock").touch()
    before = sorted(tmp_path.rglob("*"))
    for given in (f"{tmp_path}/{place}", f"file://{tmp_path}/{place}"):
        with pytest.raises(OptionError, match="accepted rows. sparkwal wrote nothing"):
            begin(f"{tmp_path}/logs/wal", journal=given)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_existing_journal_is_opened_though_a_log_begins_around_it(tmp_path: Path) -> None:
    begin(f"{tmp_path}/wal", journal=f"{tmp_path}/around/j")
    begin(f"{tmp_path}/around")
    begin(f"{tmp_path}/wal", journal=f"{tmp_path}/around/j")
    assert sparkwal.Log(f"{tmp_path}/wal").scan().read_all().num_rows == 2


@pytest.mark.parametrize("sequencer", ["default", "a"])
def test_on_s3_one_list_finds_the_table(
    s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy, sequencer: str
) -> None:
    table, options = s3_path
    storage = {
        "aws_endpoint_url": options["endpoint"],
        "aws_region": options["region"],
        "aws_access_key_id": options["accessKeyId"],
        "aws_secret_access_key": options["secretAccessKey"],
        "aws_allow_http": "true",
    }
    write_deltalake(table, pa.table({"n": [1]}), storage_options=storage)
    through = {**options, "endpoint": s3_proxy.url, "sequencer": sequencer}
    with pytest.raises(OptionError, match=f"inside the Delta table http.*/{table[5:]},"):
        begin(f"{table}/wal", **through)
    assert sparkwal.Log(f"{table}/wal", **through).head() is None
    begin(f"{table}2/wal", **through)
    begin(f"{table}2/wal", **through)
    # One of the log that was refused, one of the other when it began.
    lists = [each.kind for each in s3_proxy.requests if "_delta_log" in each.key]
    assert lists == ["LIST", "LIST"]


def test_a_writer_that_may_list_only_the_logs_keys_begins_a_log() -> None:
    asked: list[str] = []

    class Guarded(MemoryStore):
        def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
            asked.append(prefix)
            raise OptionError("AccessDenied")

    check_new_log("s3://bucket/lake/wal", LogStore(Guarded(), "lake/wal"))
    check_new_log("s3://bucket", LogStore(Guarded(), ""))
    assert asked == ["lake/_delta_log/", ""]


@pytest.mark.parametrize("key", ["other/part-0.parquet", "other/_delta_log/0.json"])
def test_for_a_path_at_the_root_of_a_bucket_the_list_is_of_the_path(key: str) -> None:
    store = MemoryStore()
    store.put(key, b"x")
    check_new_log("s3://bucket/wal", LogStore(store, "wal"))
    with pytest.raises(OptionError, match="sparkwal wrote nothing"):
        check_new_log("s3://bucket/other", LogStore(store, "other"))
