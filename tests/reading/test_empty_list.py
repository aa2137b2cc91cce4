"""A LIST that is empty by mistake is no proof that there is no log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from reading.collected import LIMITS, Query, collect, copied, move_floor, written

from sparkwal.errors import StoreUnavailableError
from sparkwal.format import keys
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.log_range import LogRange
from sparkwal.store.base import LogStore, Page
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import hints_in


class EmptyListStore(MemoryStore):
    """The next `lies` LISTs of records are empty."""

    lies = 0

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        page = super().list(prefix, limit, after)
        if self.lies and prefix.endswith("batches/"):
            self.lies -= 1
            return Page([], False)
        return page


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    return written(tmp_path_factory.mktemp("hints"), 12)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    """Position 0 is deleted, and the floor is the end of the log."""
    folder = tmp_path_factory.mktemp("hints")
    store = MemoryStore()
    query = Query(store, hints_in(folder), limits=LIMITS)
    for value in range(1, 1030):
        query.microbatch(value, (value,))
    log = LogStore(store, "wal")
    move_floor(log, find_head(log).gap)
    collect(log, find_head(log).gap)
    assert log.key(keys.MAX) not in store.objects
    return store


def lying(store: MemoryStore, lies: int) -> LogStore:
    found = EmptyListStore()
    found.objects = dict(copied(store).objects)
    found.lies = lies
    return LogStore(found, "wal")


@pytest.mark.parametrize("name", ["whole", "collected"])
def test_a_writer_continues_after_the_head_in_spite_of_one_empty_list(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    log = lying(request.getfixturevalue(name), 1)
    last = find_head(LogStore(request.getfixturevalue(name), "wal")).position
    query = Query(log.store, hints_in(tmp_path), query_id="another")
    assert query.microbatch(0, (7,)) == last + 2


@pytest.mark.parametrize("name", ["whole", "collected"])
def test_a_writer_that_only_empty_lists_meet_writes_nothing(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    log = lying(request.getfixturevalue(name), 99)
    assert isinstance(log.store, EmptyListStore)
    before = dict(log.store.objects)
    query = Query(log.store, hints_in(tmp_path), query_id="another")
    with pytest.raises(StoreUnavailableError, match="shows no record, although .* exists"):
        query.microbatch(0, (7,))
    assert log.store.objects == before


@pytest.mark.parametrize("folders", [("batches",), ("batches", "lifecycle")])
def test_a_log_begins_at_the_path_of_a_deleted_one(
    collected: MemoryStore, tmp_path: Path, folders: tuple[str, ...]
) -> None:
    """Its lifecycle may have been left."""
    store = copied(collected)
    for key in list(store.objects):
        if key.split("/")[1] in folders:
            del store.objects[key]
    assert Query(store, hints_in(tmp_path)).microbatch(0, (7,)) == 1


def test_an_empty_list_of_the_lifecycle_too_proves_nothing(collected: MemoryStore) -> None:
    class Blind(EmptyListStore):
        def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
            return Page([], False)

    store = Blind()
    store.objects = dict(collected.objects)
    with pytest.raises(StoreUnavailableError, match=f"lifecycle/{keys.MAX} exists"):
        find_head(LogStore(store, "wal"))


def test_a_new_log_costs_two_gets_more_and_an_existing_one_none(tmp_path: Path) -> None:
    store = MemoryStore()
    query = Query(store, hints_in(tmp_path))
    query.plan()
    assert store.counts == Counter(LIST=1, GET=2, PUT=1)
    store.counts.clear()
    query.restarted().plan()
    assert store.counts == Counter(LIST=1, GET=1, PUT=1)


def opened(log: LogStore, **options: object) -> LogRange:
    settings = from_keywords(SourceOptions, "s3://bucket/wal", options)
    return LogRange(settings, "default", log)


def test_a_stream_from_the_latest_position_does_not_begin_at_the_first(whole: MemoryStore) -> None:
    log = opened(lying(whole, 1), startingPosition="latest")
    log.refresh()
    assert log.start() == find_head(LogStore(whole, "wal")).gap
    with pytest.raises(StoreUnavailableError):
        opened(lying(whole, 99), startingPosition="latest").refresh()


def test_a_reader_that_waits_for_a_log_makes_no_more_requests_than_before(tmp_path: Path) -> None:
    store = MemoryStore()
    log = opened(LogStore(store, "wal"))
    for _ in range(2):
        assert log.refresh(floor=False) == 0
    store.counts.clear()
    log.refresh(floor=False)
    assert store.counts == Counter(LIST=1)
    Query(store, hints_in(tmp_path)).microbatch(0, (7,))
    assert log.refresh(floor=False) == 2


def test_a_log_that_an_empty_list_hides_is_not_reported_as_deleted(
    whole: MemoryStore, tmp_path: Path
) -> None:
    store = EmptyListStore()
    store.objects = dict(whole.objects)
    query = Query(store, hints_in(tmp_path), query_id="another")
    query.microbatch(0, (7,))
    query.clock.since_boot_ms += 700_000
    store.lies = 1
    assert query.microbatch(1, (8,)) is not None
