"""An object store in memory, with atomic requests that are counted."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock

from sparkwal.store.base import (
    Entry,
    Folders,
    Front,
    LogStore,
    NotFound,
    Page,
    Tagged,
    Unfinished,
    UnfinishedPage,
)
from sparkwal.store.open import path_of


class MemoryStore:
    """A Store whose calls are atomic.

    Attributes:
        objects: the bytes by key. A test may inspect and change them.
        modified: the time of each object's last write.
        counts: the number of calls of each operation.
        page: a LIST shows at most this many keys or uploads, also if its limit is larger.
        now_ms: the store's clock, which a test may replace.
        uploads: the unfinished uploads by id. An upload begins with its first part.
    """

    def __init__(self, url: str = "memory://store", concurrency: int = 1, page: int = 1000) -> None:
        self.url = self.identity = url
        self.concurrency = concurrency
        self.retries = 0
        self.page = page
        self.objects: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        self.modified: dict[str, int] = {}
        self.uploads: dict[str, MemoryUpload] = {}
        self._ids = itertools.count(1)
        self._lock = Lock()

    def path(self, folder: str = "wal") -> str:
        """The path of a log in this store, for every function of this process.

        Spark's Python workers are other processes, and cannot open it.
        """
        return path_of(LogStore(self, folder))

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

    def replace(self, key: str, body: bytes, etag: str) -> bool:
        with self._lock:
            self.counts["PUT"] += 1
            if key not in self.objects or _etag(self.objects[key]) != etag:
                return False
            self._write(key, body)
            return True

    def get_tagged(self, key: str, length: int | None = None) -> Tagged:
        body = self.get(key)
        return Tagged(body[:length], _etag(body))

    def _write(self, key: str, body: bytes) -> None:
        self.objects[key] = bytes(body)
        self.modified[key] = self.now_ms()

    def get(self, key: str) -> bytes:
        self.counts["GET"] += 1
        try:
            return self.objects[key]
        except KeyError:
            raise NotFound(key) from None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        body = self.get(key)
        return Front.of(body[offset : offset + length], offset, length, len(body))

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        with self._lock:
            self.counts["LIST"] += 1
            keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
            shown = keys[: min(limit, self.page)]
            entries = [Entry(key, len(self.objects[key])) for key in shown]
            return Page(entries, more=len(keys) > len(shown))

    def folders(self, prefix: str, inside: str, after: str = "") -> Folders | None:
        with self._lock:
            self.counts["LIST"] += 1
            keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        names = dict[str, None]()
        for key in keys:
            name, _, path = key.removeprefix(prefix).partition("/")
            if path.startswith(f"{inside}/") and name not in names:
                if len(names) == self.page:
                    return Folders([*names], f"{prefix}{[*names][-1]}0")
                names[name] = None
        return Folders([*names], "")

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        assert len(keys) <= 1000, "S3 takes no more"
        if not keys:
            return []
        with self._lock:
            self.counts["DELETE"] += 1
            for key in keys:
                self.modified.pop(key, None)
                self.objects.pop(key, None)
        return []

    def age_ms(self, key: str) -> int:
        with self._lock:
            self.counts["GET"] += 1
            if key not in self.objects:
                raise NotFound(key)
            now = self.now_ms()
            # For an object that a test put into `objects`, the age begins with this call.
            return max(0, now - self.modified.setdefault(key, now))

    def upload(self, key: str) -> MemoryUpload:
        return MemoryUpload(self, key, f"{next(self._ids):08d}")

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        with self._lock:
            self.counts["LIST_MULTIPART"] += 1
            now = self.now_ms()
            uploads = sorted(
                (f"{upload.key}/{upload_id}", Unfinished(upload.key, upload_id, now - upload.began))
                for upload_id, upload in list(self.uploads.items())
                if upload.key.startswith(prefix)
            )
        uploads = [(mark, upload) for mark, upload in uploads if mark > after]
        shown = uploads[: min(limit, self.page)]
        more = len(uploads) > len(shown)
        return UnfinishedPage([upload for _, upload in shown], shown[-1][0] if more else "")

    def discard(self, upload: Unfinished) -> None:
        self.counts["ABORT_MULTIPART"] += 1
        self.uploads.pop(upload.upload_id, None)


def _etag(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


class MemoryUpload:
    """An upload that holds its parts until `complete` writes them as one object."""

    def __init__(self, store: MemoryStore, key: str, upload_id: str) -> None:
        self._store = store
        self.key = key
        self._id = upload_id
        self.began, self._parts = store.now_ms(), dict[int, bytes]()

    def part(self, number: int, offset: int, body: bytes) -> None:
        self._store.counts["PART"] += 1
        if not self._parts:
            self.began = self._store.now_ms()
            self._store.uploads[self._id] = self
        self._parts[number] = bytes(body)

    def complete(self) -> bool:
        if self._parts and self._id not in self._store.uploads:
            # The upload was discarded or completed before.
            return False
        body = b"".join(self._parts[number] for number in sorted(self._parts))
        created = self._store.put_if_absent(self.key, body)
        self._store.uploads.pop(self._id, None)
        return created

    def abort(self) -> None:
        self._store.uploads.pop(self._id, None)
