"""Transactions of queries that wrote long ago: out of the records, never forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal.appender.appender import Appender
from sparkwal.errors import InvalidLogError
from sparkwal.protocol import archive
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.verification import verify_store
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, Query, hints_in


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST", 4)
    monkeypatch.setattr(archive, "KEPT", 2)


@pytest.fixture
def query(store: MemoryStore, tmp_path: Path) -> Query:
    return Query(
        store, hints_in(tmp_path), limits=replace(LIMITS, inline_threshold=2**16), query_id="q0"
    )


def another(query: Query, number: int) -> Query:
    query.clock.wall_ms += 1000
    return replace(query.restarted(), query_id=f"q{number}")


def many(query: Query, count: int = 12, *, first: int = 0) -> None:
    """So many queries with a microbatch each."""
    for number in range(first, count):
        another(query, number).microbatch(7, (number,))


def archives(store: MemoryStore) -> list[str]:
    return [key for key in store.objects if "/txns/" in key]


def test_records_stay_small_and_nothing_is_forgotten(query: Query, store: MemoryStore) -> None:
    many(query)
    head = find_head(query.open()).live
    assert head is not None and len(head.header.txns) <= 5
    assert 1 <= len(archives(store)) <= 5
    for number in range(12):
        assert archive.last_batch(query.open, head.header, f"q{number}") == 7
    assert archive.last_batch(query.open, head.header, "never") == -1
    assert verify_store(query.open(), "wal").ok


def test_a_replay_of_an_archived_query_is_skipped(query: Query, store: MemoryStore) -> None:
    many(query)
    store.counts.clear()
    plan = another(query, 0).plan()
    planned = dict(store.counts)
    result = replace(query, query_id="q0").task(plan, 7, 0, 0)
    assert result.content and store.counts["GET"] == planned["GET"] + 1


def test_a_query_that_comes_back_is_in_the_records_again(query: Query, store: MemoryStore) -> None:
    many(query)
    assert another(query, 0).microbatch(8, (100,)) is not None
    head = find_head(query.open()).live
    assert head is not None and head.header.txns["q0"][0] == 8
    many(query, first=1)  # each repeats a write; for q0 an older one
    head = find_head(query.open()).live
    assert head is not None and archive.last_batch(query.open, head.header, "q0") == 8
    assert verify_store(query.open(), "wal").ok


def test_a_producer_of_the_archive_knows_its_last_sequence(
    query: Query, store: MemoryStore
) -> None:
    schema = pa.schema([("v", pa.int64())])
    with Appender(query.open(), schema, producer_id="gateway") as wal:
        wal.append([{"v": 1}])
        wal.append([{"v": 2}])
    many(query)
    with Appender(query.open(), schema, producer_id="gateway") as wal:
        assert wal.last_sequence == 1


def test_a_missing_archive_is_an_error_and_not_an_unknown_query(
    query: Query, store: MemoryStore
) -> None:
    many(query)
    for key in archives(store):
        store.delete(key)
    with pytest.raises(InvalidLogError, match="holds the transactions of older queries"):
        another(query, 0).microbatch(8, (0,))
    report = verify_store(query.open(), "wal")
    assert any("holds the transactions" in problem for problem in report.problems)


def test_a_damaged_archive_is_found(query: Query, store: MemoryStore) -> None:
    many(query)
    for key in archives(store):
        store.objects[key] = store.objects[key].replace(b'"q0":[7', b'"q0":[1')
    with pytest.raises(InvalidLogError, match="CRC-32"):
        another(query, 0).microbatch(8, (0,))


def test_the_archive_is_durable_before_the_leader_record_that_names_it(
    query: Query, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(query, 5)
    order: list[str] = []
    put = store.put_if_absent

    def noting(key: str, body: bytes) -> bool:
        order.append(key.split("/")[1])
        return put(key, body)

    monkeypatch.setattr(store, "put_if_absent", noting)
    another(query, 5).plan()
    assert order == ["txns", "batches"]


def test_anonymous_appends_are_not_archived(query: Query, store: MemoryStore) -> None:
    for number in range(8):
        query.clock.wall_ms += 1000
        replace(query.restarted(), query_id=f"append:{number}").microbatch(0, (number,))
    many(query, 6)
    assert all(b"append:" not in store.objects[key] for key in archives(store))


def test_up_to_the_limit_a_start_costs_no_request_more(query: Query, store: MemoryStore) -> None:
    many(query, 4)
    store.counts.clear()
    another(query, 9).plan()
    assert store.counts == {"LIST": 1, "GET": 1, "PUT": 1}
