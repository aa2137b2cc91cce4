"""The store in memory: its clock, its uploads, what it counts."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import main
from sparkwal.errors import OptionError
from sparkwal.store.base import LogStore, NotFound, Unfinished
from sparkwal.testing.memory import MemoryStore


def test_ages_are_those_of_the_clock_that_a_test_moves() -> None:
    store = MemoryStore()
    now = 1_000
    store.now_ms = lambda: now
    store.put_if_absent("a", b"1")
    upload = store.upload("b")
    now = 5_000
    upload.part(1, 0, b"x")
    now = 7_000
    assert store.age_ms("a") == 6_000
    assert store.unfinished("b") == ([Unfinished("b", "00000001", 2_000)], "")
    store.put("a", b"2")
    assert store.age_ms("a") == 0
    store.modified["a"] = 0
    assert store.age_ms("a") == 7_000
    store.delete_many(["a"])
    with pytest.raises(NotFound):
        store.age_ms("a")
    # Put there by a test, behind the store's back.
    store.objects["c"] = b""
    assert store.age_ms("c") == 0


def test_requests_of_a_collection_are_counted_as_by_the_proxy() -> None:
    store = MemoryStore()
    store.put("a", b"1")
    store.age_ms("a")
    store.delete_many([])
    store.delete_many(["a", "b"])
    store.upload("b").part(1, 0, b"x")
    store.discard(*store.unfinished("").uploads)
    assert store.counts == {
        "PUT": 1,
        "GET": 1,
        "DELETE": 1,
        "PART": 1,
        "LIST_MULTIPART": 1,
        "ABORT_MULTIPART": 1,
    }
    with pytest.raises(AssertionError):
        store.delete_many([str(number) for number in range(1001)])


def test_a_discarded_upload_publishes_nothing() -> None:
    store = MemoryStore()
    upload = store.upload("a")
    upload.part(1, 0, b"x")
    store.discard(*store.unfinished("").uploads)
    assert not upload.complete()
    assert store.objects == {}


def test_a_store_in_memory_has_a_path_for_every_function() -> None:
    store = MemoryStore()
    path, schema = store.path(), pa.schema([("id", pa.int64())])
    with sparkwal.Appender(path, schema, producer_id="p") as wal:
        wal.append([{"id": 1}]).result()
    with sparkwal.Appender(path, schema, producer_id="p", sequencer="other") as wal:
        wal.append([{"id": 2}]).result()
    log = sparkwal.Log(path)
    assert log.to_pandas()["id"].tolist() == [1]
    assert log.sql("SELECT sum(id) AS ids FROM log").read_all().to_pylist() == [{"ids": 1}]
    assert len(log.current(sequencers="*").to_pandas()) == 2
    assert sparkwal.verify(path).ok and sparkwal.consumers(path) == []
    assert sparkwal.list_sequencers(path) == ["default", "other"]
    sparkwal.Lifecycle(path, retainSeconds=3600).run_once()
    assert "head" in CliRunner().invoke(main, ["status", path]).output
    # An open store is a path, too.
    assert len(sparkwal.Log(cast(Any, LogStore(store, "wal"))).to_pandas()) == 1
    with pytest.raises(OptionError, match="there is no log"):
        sparkwal.Log(store.path("another")).to_pandas()


def test_a_store_in_memory_of_another_process_is_an_error_that_says_so() -> None:
    with pytest.raises(OptionError, match="no store of this process"):
        sparkwal.Log("memory://gone/wal").head()
