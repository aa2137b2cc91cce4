"""A store that goes away and comes back, and appenders with a journal over it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sparkwal import Appender, AsyncAppender
from sparkwal.errors import SparkWalError
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore, Page, Transient
from tests.appender.faulty_store import PREFIX, FaultyStore
from tests.journal.disk import MemoryFolder


class OutageStore(FaultyStore):
    """A FaultyStore whose store may be away for every request, or for those of some positions.

    Attributes:
        is_away: whether nothing answers.
    """

    is_away = False

    def _ask(self) -> None:
        if self.is_away:
            raise Transient("connection refused", unreachable=True)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        self._ask()
        return super().put_if_absent(key, body)

    def get(self, key: str) -> bytes:
        self._ask()
        return self.inner.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._ask()
        return self.inner.get_range(key, offset, length)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        self._ask()
        return self.inner.list(prefix, limit, after)

    def journaled(
        self, folder: MemoryFolder | None, producer: str = "p", retries: int = 1, **options: Any
    ) -> Appender:
        """An appender with a journal in this folder; a path in `options` takes its place."""
        given = {"journal": "memory", "journalSlots": 4096, **options}
        return self.appender(producer, retries=retries, folder=folder, **given)

    def async_journaled(self, folder: MemoryFolder, **options: Any) -> AsyncAppender:
        """The same for asyncio."""
        given = {"journal": "memory", "journalSlots": 4096, **options}
        return self.async_appender(retries=1, folder=folder, **given)


def sound(faulty: FaultyStore) -> None:
    """The log keeps to the protocol, and nothing is under way."""
    report = verify_store(LogStore(faulty.inner, PREFIX), "")
    assert report.ok and not report.under_way, str(report)


def abandon(faulty: OutageStore, wal: Appender) -> None:
    """Simulate a kill: the threads end, and the store does not change."""
    was, faulty.is_away = faulty.is_away, True
    with suppress(SparkWalError, TimeoutError):
        wal.close(timeout=30)
    faulty.is_away = was
