"""The chain of lifecycle records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import (
    DONE,
    FLOOR,
    INTENT,
    MERGE,
    Target,
    decode,
    encode,
)
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.chains import Seen, beginning, changed, newest, put_next
from tests.consumers import bound

CLOCK = Clock()
TARGET = Target("s3://b/t", MERGE, ("id",), "at", "gone", ("day",), (), (("a", "b"),))


@pytest.fixture
def log() -> LogStore:
    return LogStore(MemoryStore(), "wal")


def put(log: LogStore, head: Seen, kind: str, **changes: Any) -> Seen:
    record = put_next(log, head, kind, CLOCK, "here", **changes)
    assert record is not None
    return record


@pytest.fixture
def begun(log: LogStore) -> Iterator[Seen]:
    head = beginning("log-1", "default", 1000)
    yield put(log, head, INTENT, k=1, to=7, target=TARGET, table_id="t-1", table_version=0)


def test_an_empty_log_has_no_lifecycle_record(log: LogStore) -> None:
    assert newest(log) is None


def test_the_newest_record_holds_the_whole_state(log: LogStore, begun: Seen) -> None:
    done = put(log, begun, DONE, cut=7, table_version=1)
    floor = put(log, done, FLOOR, floor=5)
    assert newest(log) == floor
    assert floor.number == keys.MAX - 2
    assert (floor.k, floor.cut, floor.to, floor.floor) == (1, 7, 7, 5)
    assert floor.target == TARGET
    assert not floor.is_open and begun.is_open


@pytest.mark.proves("next-of-its-base")
def test_one_of_two_records_made_from_one_head_is_put(log: LogStore, begun: Seen) -> None:
    first = put(log, begun, DONE, cut=7)
    assert put_next(log, begun, FLOOR, CLOCK, "there", floor=0) is None
    assert newest(log) == first


@pytest.mark.proves("chain-read-back")
def test_a_lost_reply_is_no_defeat(begun: Seen, log: LogStore) -> None:
    class Forgetful(MemoryStore):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            super().put_if_absent(key, body)
            return super().put_if_absent(key, body)

    store = Forgetful()
    assert put(LogStore(store, "wal"), begun, DONE, cut=7)


def test_the_chain_of_a_former_log_does_not_count(log: LogStore, begun: Seen) -> None:
    assert newest(log, "log-1") == begun
    assert newest(log, "log-2") is None


def test_a_damaged_lifecycle_record_is_refused(begun: Seen) -> None:
    body = encode(begun.record)
    assert decode(body, "here") == begun.record
    with pytest.raises(InvalidLogError, match="here: this is no record"):
        decode(body[:40], "here")
    with pytest.raises(InvalidLogError, match="CRC-32"):
        decode(body.replace(b'"k":1', b'"k":2'), "here")
    with pytest.raises(InvalidLogError, match="floor ≤ cut ≤ to"):
        decode(encode(changed(begun, INTENT, floor=3)), "here")
    with pytest.raises(InvalidLogError, match="'kind' must be intent"):
        decode(encode(changed(begun, "other")), "here")


def test_a_record_under_another_name_is_refused(log: LogStore, begun: Seen) -> None:
    log.store.put_if_absent(keys.lifecycle_key("wal", keys.MAX - 5), encode(begun.record))
    with pytest.raises(InvalidLogError, match="the record holds number"):
        newest(log)


def test_an_object_that_stands_for_the_folder_is_no_record(log: LogStore, begun: Seen) -> None:
    log.store.put_if_absent("wal/lifecycle/", b"")
    assert newest(log) == begun
    log.store.put_if_absent("wal/consumers/", b"")
    assert bound(log, "log-1", 7, None) == 7
