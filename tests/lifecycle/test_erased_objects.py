"""A person's rows leave the objects of a log in an S3 store, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import CollectedError
from sparkwal.format import keys
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.known_log import Collection
from sparkwal.lifecycle.policy import Policy
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import make_segments
from sparkwal.store.base import LogStore, all_entries
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import log_options

pytestmark = pytest.mark.s3
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SECRET = b"secret-person"


class Place:
    """A small log with a person in it, whose floor is its end."""

    def __init__(self, path: str, options: dict[str, str]) -> None:
        self.path = path
        self.options = options
        self.settings = from_keywords(SourceOptions, path, options)
        for name in ("secret-person", "another"):
            self.append(name)
        self.log = open_log(self.settings)

    def append(self, name: str) -> None:
        with sparkwal.Appender(
            self.path,
            SCHEMA,
            producer_id="p",
            compression="none",
            maxInFlightRequests=1,
            **self.options,
        ) as wal:
            wal.append([{"id": 1, "name": name}]).result()

    def collector(self, log: LogStore | None = None) -> Coordinator:
        return Coordinator(log or self.log, Policy(retain_seconds=0), gc_grace_ms=0)

    def collected(self, log: LogStore | None = None) -> Collection:
        done = self.collector(log).collect(dry_run=False)
        assert done is not None
        return done

    def collected_when_old(self) -> Collection:
        """The first collection for which the floor is old enough: S3 counts whole seconds."""
        while True:
            done = self.collected()
            if done.bound and not done.with_rows:
                return done
            time.sleep(0.2)

    def objects_with(self, text: bytes) -> list[str]:
        store = self.log.store
        listed = [entry.key for entry in all_entries(store, f"{self.log.prefix}/")]
        return [key for key in listed if text in store.get(key)]


@pytest.fixture
def place(s3_path: tuple[str, dict[str, str]]) -> Iterator[Place]:
    place = Place(*s3_path)
    assert len(place.objects_with(SECRET)) == 1
    place.collector().run_once()
    yield place


def test_no_object_holds_the_person_and_the_log_goes_on(place: Place) -> None:
    done = place.collected_when_old()
    assert (done.records, done.erased, done.held_by) == (4, 2, "")
    assert place.objects_with(SECRET) == []
    assert place.objects_with(b"another") == []
    with pytest.raises(CollectedError):
        sparkwal.Log(place.path, startingPosition=1, **place.options).scan().read_all()
    place.append("newcomer")
    log = sparkwal.Log(place.path, **place.options)
    assert log.scan().read_all().column("name").to_pylist() == ["newcomer"]
    assert sparkwal.verify(place.path, **place.options).ok


def test_a_segment_with_the_person_goes_too(
    s3_path: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "BLOCK", 2)
    place = Place(*s3_path)
    reading = LogRange(place.settings, "default", place.log)
    reading.refresh()
    assert make_segments(reading).blocks == [0, 1]
    # A segment is compressed: its key shows that it is there.
    prefix = keys.segments_prefix(place.log.prefix)
    assert len([*all_entries(place.log.store, prefix)]) == 2
    place.collector().run_once()
    place.collected_when_old()
    assert [*all_entries(place.log.store, prefix)] == []
    assert place.objects_with(SECRET) == []


def test_two_collectors_at_once(place: Place) -> None:
    while not place.collector().collect(dry_run=True).erased:  # type: ignore[union-attr]
        time.sleep(0.2)
    logs = [open_log(place.settings) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        both = [*pool.map(place.collected, logs)]
    assert all(done.with_rows == 0 for done in both)
    assert place.objects_with(SECRET) == []
    assert sparkwal.verify(place.path, **place.options).ok


def test_replies_to_the_puts_are_lost(place: Place, ministack_url: str) -> None:
    while not place.collector().collect(dry_run=True).erased:  # type: ignore[union-attr]
        time.sleep(0.2)
    with S3Proxy(ministack_url) as proxy:
        proxy.faults = [Fault("lost_reply", kind="PUT", key_contains="/batches/", times=2)]
        options = {**place.options, **log_options(proxy.url)}
        log = open_log(from_keywords(SourceOptions, place.path, options))
        done = place.collected(log)
        assert [each for each in proxy.requests if each.fault]
    assert (done.erased, done.with_rows) == (2, 0)
    assert place.objects_with(SECRET) == []
