"""One LIST shows many small logs, and no log costs more than one."""

from __future__ import annotations

import random

import pytest

from sparkwal.format import keys
from sparkwal.reading import listing
from sparkwal.reading.listing import list_logs
from sparkwal.reading.sequencers import all_logs
from sparkwal.store.base import LogStore, first_entries
from sparkwal.testing.memory import MemoryStore

ROOT = LogStore(MemoryStore(), "wal")


class Flat(MemoryStore):
    """A store that cannot list folders."""

    def folders(self, prefix: str, inside: str, after: str = "") -> None:
        return None


def fill(store: MemoryStore, sizes: dict[str, int]) -> LogStore:
    """Logs of these names with so many records, and other objects beside them."""
    root = LogStore(store, "wal")
    for name, size in sizes.items():
        log = root.sequencer(name)
        for position in range(size):
            store.objects[log.key(keys.slot(position, 1000))] = b"record"
        store.objects[f"{log.prefix}/consumers/c-{name}"] = b"consumer"
        if size % 2:
            store.objects[f"{log.prefix}/segments/1"] = b"segment"
    store.objects["wal/sequencers/refused/proof/x"] = b"proof"
    store.objects["wal/sequencers/deep/sequencers/inner/batches/1"] = b"another path"
    return root


def check(root: LogStore, sizes: dict[str, int], names: list[str] | None = None) -> None:
    """A walk shows of each log what a LIST of its own shows."""
    found = list_logs(root, names)
    assert [*found] == sorted(name for name in sizes if names is None or name in names)
    for name, listed in found.items():
        log = root.sequencer(name)
        own = first_entries(log.store, keys.batches_prefix(log.prefix), 1000)
        assert listed.page is not None and listed.page.entries == own.entries
        assert listed.newest == own.entries[0]
        # A page that is full may be the last one.
        assert listed.page.more or not own.more
        assert listed.page.more <= (len(own.entries) == 1000)
        assert listed.consumers in ((f"c-{name}",), None)
        assert listed.consumers is not None or len(own.entries) == 1000


@pytest.mark.parametrize("kind", [MemoryStore, Flat])
@pytest.mark.parametrize("concurrency", [1, 7])
@pytest.mark.parametrize("page", [1000, 7])
def test_a_walk_shows_what_a_list_of_each_log_shows(
    kind: type[MemoryStore], concurrency: int, page: int
) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        texts = ["a", "a-b", "a0", "a0-b", "a00", "B", "z_", *map(str, range(15))]
        most = 40 if page == 7 else 2100
        sizes = {name: rng.choice([1, 2, 30, most, most // 2]) for name in texts}
        store = kind(concurrency=concurrency, page=page)
        root = fill(store, sizes)
        check(root, sizes)
        assert all_logs(root) == sorted(sizes)
        check(root, sizes, rng.sample(texts, 9))
        check(root, sizes, ["a0", "none"])


@pytest.mark.parametrize("size", [1, 300, 999, 1000, 1001, 2500])
def test_a_log_costs_at_most_one_list(size: int) -> None:
    sizes = {str(number): size for number in range(40)}
    store = MemoryStore(concurrency=8)
    root = fill(store, sizes)
    store.counts.clear()
    list_logs(root)
    # Besides: the log at the path, the names, the first page, and one for each walk.
    assert store.counts["LIST"] <= 40 + 3 + 8
    store.counts.clear()
    assert all_logs(root) == sorted(sizes)
    assert store.counts == {"LIST": 2}


def test_a_thousand_small_logs_cost_four_lists() -> None:
    store = MemoryStore(concurrency=100)
    root = fill(store, {f"writer-{number}": 1 for number in range(1000)})
    store.counts.clear()
    assert len(list_logs(root)) == 1000
    # 3,000 objects, the log at the path, and the names; one part may begin inside a page.
    assert store.counts["LIST"] <= 6


def test_a_walk_stores_a_bounded_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_ENTRIES", 2_000)
    sizes = {str(number): 600 for number in range(10)}
    root = fill(MemoryStore(), sizes)
    found = list_logs(root)
    assert [*found] == sorted(sizes)
    assert 2 <= sum(listed.page is not None for listed in found.values()) <= 5
    assert all(root.name != name and listed.newest.size == 6 for name, listed in found.items())
