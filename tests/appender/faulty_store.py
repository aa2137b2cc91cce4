"""A store in memory that fails the PUTs of commit records as a test asks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from sparkwal import Appender, AsyncAppender
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore, Transient
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.testing.memory import MemoryStore
from tests.logs import SCHEMA

PREFIX = "wal"
WINDOW = 1000


class FaultyStore:
    """A MemoryStore that can hold back, lose or refuse the PUT of a position.

    Attributes:
        faults: position → what happens to its next attempts, one after another: "lost"
            (stored, no answer), "dropped" (not stored, no answer), "refused" (no
            connection), or an exception to raise.
        arrived: positions in the order in which their PUTs came.
    """

    def __init__(self, inner: MemoryStore | None = None, concurrency: int = 8) -> None:
        self.inner = inner or MemoryStore()
        self.url, self.concurrency = self.inner.url, concurrency
        self.faults: dict[int, list[str | BaseException]] = {}
        self.arrived: list[int] = []
        self._held: set[int] = set()
        self._changed = threading.Condition()

    def hold(self, *positions: int) -> None:
        with self._changed:
            self._held |= set(positions)

    def release(self, *positions: int) -> None:
        with self._changed:
            self._held -= set(positions)
            self._changed.notify_all()

    def put_if_absent(self, key: str, body: bytes) -> bool:
        number = keys.decode(key.rpartition("/")[2])
        position = -1 if number is None else keys.position(number, WINDOW)
        with self._changed:
            self.arrived.append(position)
            self._changed.notify_all()
            # A bounded wait: a test that fails must still be able to close its appender.
            assert self._changed.wait_for(lambda: position not in self._held, 60)
            faulty = self.faults.get(position)
            act = faulty.pop(0) if faulty else ""
        if isinstance(act, BaseException):
            raise act
        if act == "refused":
            raise Transient("connection refused", unreachable=True)
        if act == "dropped":
            raise Transient("the request was lost")
        created = self.inner.put_if_absent(key, body)
        if act == "lost":
            raise Transient("the reply was lost")
        return created

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def retrying(self, retries: int = 3) -> RetryingStore:
        policy = RetryPolicy(max_retry_attempts=retries)
        return RetryingStore(self, policy, sleep=lambda _: None)

    def appender(self, producer: str = "p", *, retries: int = 3, **options: Any) -> Appender:
        """An appender over this store, four records in flight, one append a batch."""
        return Appender(**self.opening(producer, retries, options))

    def async_appender(self, *, retries: int = 3, **options: Any) -> AsyncAppender:
        """The same for asyncio."""
        return AsyncAppender(**self.opening("p", retries, options))

    def opening(self, producer: str, retries: int, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of an appender over this store."""
        given = {"maxInFlightRequests": 4, "batchSizeThreshold": 1, **options}
        log = LogStore(self.retrying(retries), PREFIX)
        return {"path": log, "schema": SCHEMA, "producer_id": producer, **given}

    def gap(self) -> int:
        """The first free position."""
        return find_head(LogStore(self.inner, PREFIX)).gap


def commits(store: MemoryStore, prefix: str = PREFIX) -> list[tuple[int, str, int, int]]:
    """(position, producer or query, sequence, rows) of every live commit."""
    head = find_head(LogStore(store, prefix))
    return [
        (r.header.position, r.header.query_id, r.header.batch_id, r.header.rows)
        for r in live_records(LogView(LogStore(store, prefix), head.window), 0, head.gap)
        if isinstance(r.header, CommitHeader)
    ]


def stored(store: MemoryStore, prefix: str = PREFIX) -> list[int]:
    """The values of column v in the log's order."""
    from sparkwal.reading.rows import pieces_of, read_pieces

    log = LogStore(store, prefix)
    head = find_head(log)
    return [
        value
        for record in live_records(LogView(log, head.window), 0, head.gap)
        for batch in read_pieces(log, pieces_of(log, record), SCHEMA)
        for value in batch.column("v").to_pylist()
    ]
