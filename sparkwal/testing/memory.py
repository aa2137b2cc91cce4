"""An object store in memory: atomic, counted, and gone with the process."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock

from sparkwal.store.base import Entry, NotFound, Page, Unfinished, UnfinishedPage


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryStore:
    """A Store whose every call is atomic.

    Attributes:
        objects: key → bytes, to look at and to damage in tests.
        counts: how often each operation was called.
        page: keys of one LIST at most, whatever its limit; also of a list of uploads.
        now_ms: the store's clock, to be replaced by a test's.
        modified: key → when it was written by that clock, to be changed in tests.
        uploads: id → the upload, begun with its first part and not ended.
    """

    def __init__(self, url: str = "memory://store", concurrency: int = 1, page: int = 1000) -> None:
        self.url = self.identity = url
        self.concurrency = concurrency
        self.page = page
        self.objects: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.now_ms: Callable[[], int] = _system_ms
        self.modified: dict[str, int] = {}
        self.uploads: dict[str, MemoryUpload] = {}
        self._begun = 0
        self._keys: list[str] = []
        self._lock = Lock()

    def put_if_absent(self, key: str, body: bytes) -> bool:
        with self._lock:
            self.counts["PUT"] += 1
            if key in self.objects:
                return False
            self._write(key, body)
            return True

    def put(self, key: str, body: bytes) -> None:
        with self._lock:
            self.counts["PUT"] += 1
            self._write(key, body)

    def _write(self, key: str, body: bytes) -> None:
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = bytes(body)
        self.modified[key] = self.now_ms()

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
            self._remove(key)

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> None:
        assert len(keys) <= 1000, "S3 takes no more"
        if not keys:
            return
        with self._lock:
            self.counts["DELETE"] += 1
            for key in keys:
                self._remove(key)

    def _remove(self, key: str) -> None:
        self.modified.pop(key, None)
        if self.objects.pop(key, None) is not None:
            self._keys.remove(key)

    def age_ms(self, key: str) -> int:
        with self._lock:
            self.counts["GET"] += 1
            if key not in self.objects:
                raise NotFound(key)
            now = self.now_ms()
            # What a test put there itself is new when it is first asked about.
            return max(0, now - self.modified.setdefault(key, now))

    def upload(self, key: str) -> MemoryUpload:
        return MemoryUpload(self, key)

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        with self._lock:
            self.counts["LIST_MULTIPART"] += 1
            now = self.now_ms()
            found = sorted(
                (f"{upload.key}/{upload_id}", Unfinished(upload.key, upload_id, now - upload.began))
                for upload_id, upload in self.uploads.items()
                if upload.key.startswith(prefix)
            )
        found = [each for each in found if each[0] > after]
        shown = found[: min(limit, self.page)]
        more = len(found) > len(shown)
        return UnfinishedPage([upload for _, upload in shown], shown[-1][0] if more else "")

    def discard(self, upload: Unfinished) -> None:
        self.counts["ABORT_MULTIPART"] += 1
        self.uploads.pop(upload.upload_id, None)

    def begin(self, upload: MemoryUpload) -> str:
        """The id of an upload whose first part is here."""
        with self._lock:
            self._begun += 1
            upload_id = f"{self._begun:08d}"
            self.uploads[upload_id] = upload
            return upload_id


class MemoryUpload:
    """Parts kept aside until they are published as one object."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store, self.key = store, key
        self.began = store.now_ms()
        self._id: str | None = None
        self._parts: dict[int, bytes] = {}

    def part(self, number: int, offset: int, body: bytes) -> None:
        self._store.counts["PART"] += 1
        if self._id is None:
            self.began = self._store.now_ms()
            self._id = self._store.begin(self)
        self._parts[number] = bytes(body)

    def complete(self) -> bool:
        if self._id is not None and self._id not in self._store.uploads:
            # Discarded, or completed before.
            return False
        body = b"".join(self._parts[number] for number in sorted(self._parts))
        created = self._store.put_if_absent(self.key, body)
        self._end()
        return created

    def abort(self) -> None:
        self._end()
        self._parts.clear()

    def _end(self) -> None:
        if self._id is not None:
            self._store.uploads.pop(self._id, None)
