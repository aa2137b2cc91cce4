"""A listing over the pages that a store cuts it into."""

from collections.abc import Iterator

from sparkwal.format import keys
from sparkwal.store.base import Entry, Page, Store


def first_entries(store: Store, prefix: str, limit: int) -> Page:
    """The first `limit` (at most 1000) keys under `prefix`: one LIST, and one more for each page
    that the store cuts short, which AWS never does."""
    page = store.list(prefix, limit)
    entries = page.entries
    while page.more and len(entries) < limit:
        page = store.list(prefix, limit - len(entries), entries[-1].key)
        entries = entries + page.entries
    return Page(entries, page.more)


def all_entries(store: Store, prefix: str, after: str = "", limit: int = 1000) -> Iterator[Entry]:
    """Every key under `prefix` greater than `after`, in byte order: one LIST for each page of
    `limit` keys."""
    more = True
    while more:
        entries, more = store.list(prefix, limit, after)
        yield from entries
        after = entries[-1].key if entries else after


def numbered(store: Store, prefix: str, after: str = "") -> Iterator[tuple[int, Entry]]:
    """The objects under a prefix whose names are numbers, with these; requests as `all_entries`."""
    for entry in all_entries(store, prefix, after):
        if (number := keys.decode(entry.key.removeprefix(prefix))) is not None:
            yield number, entry
