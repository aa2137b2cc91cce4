"""An object store in memory: atomic, counted, and gone with the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from threading import Lock

from sparkwal.store.base import Entry, NotFound, Page


class MemoryStore:
    """A Store whose every call is atomic.

    Attributes:
        objects: key → bytes, to look at and to damage in tests.
        counts: how often each operation was called.
        page: keys of one LIST at most, whatever its limit.
    """

    def __init__(self, url: str = "memory://store", concurrency: int = 1, page: int = 1000) -> None:
        self.url = self.identity = url
        self.concurrency = concurrency
        self.page = page
        self.objects: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()
        self._keys: list[str] = []
        self._lock = Lock()

    def put_if_absent(self, key: str, body: bytes) -> bool:
        with self._lock:
            self.counts["PUT"] += 1
            if key in self.objects:
                return False
            self.objects[key] = bytes(body)
            insort(self._keys, key)
            return True

    def get(self, key: str) -> bytes:
        self.counts["GET"] += 1
        try:
            return self.objects[key]
        except KeyError:
            raise NotFound(key) from None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.get(key)[offset : offset + length]

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        with self._lock:
            self.counts["LIST"] += 1
            found: list[Entry] = []
            start = bisect_right(self._keys, after) if after else bisect_left(self._keys, prefix)
            for index in range(start, len(self._keys)):
                key = self._keys[index]
                if not key.startswith(prefix):
                    break
                if len(found) == min(limit, self.page):
                    return Page(found, more=True)
                found.append(Entry(key, len(self.objects[key])))
            return Page(found, more=False)

    def delete(self, key: str) -> None:
        with self._lock:
            self.counts["DELETE"] += 1
            if self.objects.pop(key, None) is not None:
                self._keys.remove(key)

    def upload(self, key: str) -> MemoryUpload:
        return MemoryUpload(self, key)


class MemoryUpload:
    """Parts kept aside until they are published as one object."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store, self._key = store, key
        self._parts: dict[int, bytes] = {}

    def part(self, number: int, offset: int, body: bytes) -> None:
        self._store.counts["PART"] += 1
        self._parts[number] = bytes(body)

    def complete(self) -> bool:
        body = b"".join(self._parts[number] for number in sorted(self._parts))
        return self._store.put_if_absent(self._key, body)

    def abort(self) -> None:
        self._parts.clear()
