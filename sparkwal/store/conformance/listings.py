"""What a LIST shows: all keys, in byte order, at once."""

from __future__ import annotations

from sparkwal.store.base import Entry
from sparkwal.store.conformance.store_under_test import Found, StoreUnderTest, Wrong
from sparkwal.store.listing import all_entries
from sparkwal.store.parallel import run_parallel

_TOP = 2**64 - 1


def order(tested: StoreUnderTest) -> Found:
    """Byte order, sizes, prefixes that end anywhere, limits, and where to begin."""
    store, folder = tested.store, f"{tested.key('order')}/"
    names = ["b/2", "b/10", "b-x", "b.x", "b/1/z", "bb", "a", "b/é", "b/Z", "c/d/e/f"]
    for size, name in enumerate(names):
        store.put_if_absent(folder + name, b"x" * size)
    ordered = sorted(names, key=str.encode)

    def shown(prefix: str, limit: int = 1000, after: str = "") -> list[str]:
        page = store.list(folder + prefix, limit, folder + after if after else "")
        return [entry.key.removeprefix(folder) for entry in page.entries]

    if shown("") != ordered:
        raise Wrong(f"{shown('')} is not in byte order, or not all")
    sizes = {Entry(folder + name, size) for size, name in enumerate(names)}
    if set(store.list(folder).entries) != sizes:
        raise Wrong("LIST shows other sizes than those of the objects")
    for prefix in ("b", "b/", "b/1", "zzz"):
        if shown(prefix) != [name for name in ordered if name.startswith(prefix)]:
            raise Wrong(f"the prefix {prefix!r} shows {shown(prefix)}")
    for limit in range(1, len(names) + 2):
        page = store.list(folder, limit)
        keys = [entry.key.removeprefix(folder) for entry in page.entries]
        if keys != ordered[: len(keys)] or (not page.more and len(keys) < min(limit, len(ordered))):
            raise Wrong(f"a LIST of {limit} shows {keys}")
        if page.more != (len(keys) < len(ordered)):
            raise Wrong(f"a LIST of {limit} says that there is {'' if page.more else 'no '}more")
    for after in (*ordered, "b/0", "b0", "zzz"):
        if shown("", 3, after) != [name for name in ordered if name > after][:3]:
            raise Wrong(f"a LIST that begins after {after!r} shows {shown('', 3, after)}")
    return "byte order, sizes, prefixes, limits and start-after"


def pages(tested: StoreUnderTest) -> Found:
    """A folder like a log's, read page by page, newest first; with `thorough` above 1,000 keys."""
    store, folder = tested.store, f"{tested.key('batches')}/"
    count = 1_100 if tested.trial.thorough else 30
    wanted = [f"{folder}{_TOP - number:020d}" for number in range(count - 1, -1, -1)]
    for _ in run_parallel(store, lambda key: store.put_if_absent(key, b"x"), wanted):
        pass
    store.put_if_absent(f"{folder[:-1]}.other", b"x")
    if [entry.key for entry in all_entries(store, folder)] != wanted:
        raise Wrong(f"page after page shows other keys than the {count} that are there")
    found: list[str] = []
    while len(found) <= count:
        page = store.list(folder, 7, found[-1] if found else "")
        found += [entry.key for entry in page.entries]
        if not page.more:
            break
    if found != wanted:
        raise Wrong(f"pages of 7 show other keys than the {count} that are there")
    return f"{count:,} keys, each once and in order, in pages of 7 and of 1,000"


def after_write(tested: StoreUnderTest) -> Found:
    """A LIST shows what was just put, and not what was just deleted, at each endpoint."""
    stores, folder, rounds = tested.retrying, f"{tested.key('fresh')}/", 10
    pairs = [(stores[n % len(stores)], stores[(n + 1) % len(stores)]) for n in range(rounds)]
    keys = [f"{folder}{_TOP - number:020d}" for number in range(rounds)]
    for key, (ours, other) in zip(keys, pairs, strict=True):
        ours.put_if_absent(key, b"x")
        if [entry.key for entry in other.list(folder, 1).entries] != [key]:
            raise Wrong("a LIST does not show an object that was just put")
    for number, (ours, other) in enumerate(pairs, 1):
        ours.delete(keys[number - 1])
        if len(other.list(folder).entries) != rounds - number:
            raise Wrong("a LIST still shows an object that was just deleted")
    return f"{rounds} puts and {rounds} deletes were listed at once"
