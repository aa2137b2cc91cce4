"""What a LIST shows: all keys, in byte order, at once."""

from __future__ import annotations

from sparkwal.store.base import Entry
from sparkwal.store.listing import all_entries
from sparkwal.store.parallel import run_parallel
from sparkwal.testing.ground import Found, Ground, Wrong

_TOP = 2**64 - 1


def order(ground: Ground) -> Found:
    """Byte order, sizes, prefixes that end anywhere, limits, and where to begin."""
    store, place = ground.store, ground.place("order")
    names = ["b/2", "b/10", "b-x", "b.x", "b/1/z", "bb", "a", "b/é", "b/Z", "c/d/e/f"]
    for size, name in enumerate(names):
        store.put_if_absent(place + name, b"x" * size)
    ordered = sorted(names, key=str.encode)

    def shown(prefix: str, limit: int = 1000, after: str = "") -> list[str]:
        page = store.list(place + prefix, limit, place + after if after else "")
        return [entry.key.removeprefix(place) for entry in page.entries]

    if shown("") != ordered:
        raise Wrong(f"{shown('')} is not in byte order, or not all")
    sizes = {Entry(place + name, size) for size, name in enumerate(names)}
    if set(store.list(place).entries) != sizes:
        raise Wrong("LIST tells other sizes than those of the objects")
    for prefix in ("b", "b/", "b/1", "zzz"):
        if shown(prefix) != [name for name in ordered if name.startswith(prefix)]:
            raise Wrong(f"the prefix {prefix!r} shows {shown(prefix)}")
    for limit in range(1, len(names) + 2):
        page = store.list(place, limit)
        keys = [entry.key.removeprefix(place) for entry in page.entries]
        if keys != ordered[: len(keys)] or (not page.more and len(keys) < min(limit, len(ordered))):
            raise Wrong(f"a LIST of {limit} shows {keys}")
        if page.more != (len(keys) < len(ordered)):
            raise Wrong(f"a LIST of {limit} says that there is {'' if page.more else 'no '}more")
    for after in (*ordered, "b/0", "b0", "zzz"):
        if shown("", 3, after) != [name for name in ordered if name > after][:3]:
            raise Wrong(f"a LIST that begins after {after!r} shows {shown('', 3, after)}")
    return "byte order, sizes, prefixes, limits and start-after"


def pages(ground: Ground) -> Found:
    """A folder like a log's, read page by page, newest first; with `thorough` above 1,000 keys."""
    store, place = ground.store, ground.place("batches")
    count = 1_100 if ground.trial.thorough else 30
    wanted = [f"{place}{_TOP - number:020d}" for number in range(count - 1, -1, -1)]
    for _ in run_parallel(store, lambda key: store.put_if_absent(key, b"x"), wanted):
        pass
    store.put_if_absent(f"{place[:-1]}.other", b"x")
    newest = [entry.key for entry in store.list(place, 7).entries]
    if newest != wanted[: len(newest)] or not newest:
        raise Wrong("a LIST with a limit does not begin with the newest record")
    if [entry.key for entry in all_entries(store, place)] != wanted:
        raise Wrong(f"page after page shows other keys than the {count} that are there")
    found: list[str] = []
    while True:
        page = store.list(place, 7, found[-1] if found else "")
        found += [entry.key for entry in page.entries]
        if not page.more or len(found) > count:
            break
    if found != wanted:
        raise Wrong(f"pages of 7 show other keys than the {count} that are there")
    return f"{count:,} keys, each once and in order, in pages of 7 and of 1,000"


def after_write(ground: Ground) -> Found:
    """A LIST shows what was just put, and not what was just deleted, at each endpoint."""
    stores, place, rounds = ground.retrying, ground.place("fresh"), 10
    for number in range(rounds):
        ours, other = stores[number % len(stores)], stores[(number + 1) % len(stores)]
        key = f"{place}{_TOP - number:020d}"
        ours.put_if_absent(key, b"x")
        shown = [entry.key for entry in other.list(place, 1).entries]
        if shown != [key]:
            raise Wrong("a LIST does not show an object that was just put")
    for number in range(rounds):
        ours, other = stores[number % len(stores)], stores[(number + 1) % len(stores)]
        ours.delete(f"{place}{_TOP - number:020d}")
        if len(other.list(place).entries) != rounds - 1 - number:
            raise Wrong("a LIST still shows an object that was just deleted")
    return f"{rounds} puts and {rounds} deletes were listed at once"
