"""Objects that unpack to more than readers take, or are larger than any writer makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal.errors import FencedError, InvalidLogError, OptionError
from sparkwal.format import checked, keys, lifecycle_record, limits
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.consumers.objects import ConsumerObject, read
from sparkwal.protocol import archive
from sparkwal.protocol.clock import SYSTEM
from sparkwal.protocol.handover import Lookout
from sparkwal.store.base import LogStore, NotFound, Store, get_whole
from sparkwal.store.local import LocalStore
from sparkwal.testing.memory import MemoryStore
from tests.chains import made, newest
from tests.consumers import consumer, consumers_and_ages


def packed(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def test_data_up_to_the_limit_is_unpacked() -> None:
    assert limits.inflate(packed(b"a" * 100), 100) == b"a" * 100
    assert limits.inflate(packed(b""), 0) == b""


def test_a_bomb_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes unpack to more than 99"):
        limits.inflate(packed(b"a" * 100), 99)


@pytest.mark.parametrize("data", [b"x", packed(b"a" * 1000)[:-2]])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="zstd"):
        limits.inflate(data, 1000)


@pytest.mark.parametrize("part", [b"[],", b"1,", b"{},", b"[[[]]],"])
def test_a_text_of_many_values_is_refused_before_python_makes_them(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JSON_VALUES", 1000)
    text = b'{"format":1,"x":[' + part * 1000 + b"0]}"
    with pytest.raises(InvalidLogError, match="here: it holds more than 1000 values"):
        checked.parse(text, "here", "record")


def test_a_long_text_of_few_values_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JSON_VALUES", 1000)
    assert checked.parse(b'{"format":1,"x":"' + b"a" * 5000 + b'"}', "here", "record")


def test_an_archive_that_no_reader_would_take_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = archive.QueryProgress({f"q{number}": (1, 1) for number in range(99)}, {})
    assert archive.decode(archive.encode(progress), "here") == progress
    monkeypatch.setattr(limits, "JSON_VALUES", 100)
    with pytest.raises(InvalidLogError, match="more than 100 values. Nothing was written"):
        archive.encode(progress)
    monkeypatch.setattr(limits, "JSON_VALUES", 10**6)
    monkeypatch.setattr(limits, "ARCHIVE", 100)
    with pytest.raises(InvalidLogError, match="100 are read. Nothing was written"):
        archive.encode(progress)


def test_a_lifecycle_record_that_no_reader_would_take_is_not_written() -> None:
    target = Target("t", properties=(("comment", "x" * limits.LIFECYCLE_RECORD),))
    with pytest.raises(OptionError, match="fewer or shorter properties"):
        lifecycle_record.encode(made(target=target).record)


def test_a_consumer_of_ten_thousand_logs_fits() -> None:
    stored = ConsumerObject(LogStore(MemoryStore(), "wal"), "daily", is_of_all=True)
    positions = {f"sequencer-{number:090d}": 10**15 for number in range(10_000)}
    of_all = consumer("daily", positions, "f" * 36)
    body = stored.encode(of_all)
    assert len(body) < limits.CONSUMER_OF_ALL
    assert stored.decode(body) == of_all
    more = {name * 4: position for name, position in of_all.logs.items()}
    with pytest.raises(OptionError, match="10000 logs take .* divide the logs"):
        stored.encode(replace(of_all, logs=more))


def hand_over(log: LogStore) -> None:
    Lookout(log, "log", 1, SYSTEM).check()


# A reader of an object as one piece, the object's name, and the most bytes that it reads.
WHOLE: dict[str, tuple[Callable[[LogStore], object], str, int]] = {
    "consumer": (lambda log: read(ConsumerObject(log, "a")), "consumers/a", limits.CONSUMER),
    "consumer of all": (
        lambda log: read(ConsumerObject(log, "a", is_of_all=True)),
        "consumers/a.all",
        limits.CONSUMER_OF_ALL,
    ),
    "consumers": (consumers_and_ages, "consumers/a", limits.CONSUMER),
    "lifecycle": (newest, keys.lifecycle_key("", keys.MAX), limits.LIFECYCLE_RECORD),
    "archive": (lambda log: archive.read_archive(log, "a"), "txns/a", limits.ARCHIVE),
}


class Counted(MemoryStore):
    """A store that keeps how many bytes were asked for at once."""

    most = 0

    def get(self, key: str) -> bytes:
        raise AssertionError(f"{key} is read whole, however large it is")

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.most = max(self.most, length)
        if key not in self.objects:
            raise NotFound(key)
        return self.objects[key][offset : offset + length]


@pytest.mark.parametrize("kind", WHOLE)
def test_a_reader_asks_for_one_byte_more_than_the_limit(kind: str) -> None:
    read, key, most = WHOLE[kind]
    store = Counted()
    store.objects[f"wal/{key}"] = b"x" * (most + 2 if kind != "archive" else 10)
    with pytest.raises(InvalidLogError, match=key) as raised:
        read(LogStore(store, "wal"))
    assert store.most == most + 1
    assert kind == "archive" or f"it has more than {most} bytes" in str(raised.value)


def test_only_the_beginning_of_a_request_for_a_log_is_read() -> None:
    store = Counted()
    store.objects[keys.handover_key("wal", "log", 1)] = b"x" * 2**20
    with pytest.raises(FencedError, match="another writer"):
        hand_over(LogStore(store, "wal"))
    assert store.most == limits.HANDOVER


@pytest.mark.parametrize("size", [0, 1])
def test_an_object_up_to_the_limit_is_read(size: int, tmp_path: Path) -> None:
    stores: list[Store] = [MemoryStore(), LocalStore(tmp_path, fsync=False)]
    for store in stores:
        store.put("key", b"x" * size)
        assert get_whole(store, "key", 1) == b"x" * size
        with pytest.raises(InvalidLogError, match="key: it has more than 0 bytes"):
            store.put("key", b"xx")
            get_whole(store, "key", 0)
