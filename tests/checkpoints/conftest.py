"""A log in memory, and `sparkwal.checkpoint` over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sparkwal
from sparkwal import events
from sparkwal.checkpoints import fork, rebuild, unread
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.appender.faulty_store import stored
from tests.checkpoints.forks import Logs
from tests.checkpoints.stream import FileStream


@dataclass
class Room:
    """The log, the folders and the events of a test.

    Attributes:
        reported: every event, in order.
    """

    store: MemoryStore
    log: LogStore
    tmp: Path
    reported: list[events.Event]

    def checkpoint(self, name: str = "orders", folder: str | None = "ck") -> Path:
        """`sparkwal.checkpoint`; a folder is one of this test's."""
        place = None if folder is None else self.tmp / folder
        return Path(sparkwal.checkpoint("s3://bucket/wal", name, folder=place))

    def stream(self, place: Path, **more: object) -> FileStream:
        """A query over this checkpoint, as a new application."""
        hints = Hints("wal", self.tmp / "hints")
        return FileStream(self.log, place, hints, **more)  # type: ignore[arg-type]

    def made(self) -> events.CheckpointUsed | events.CheckpointRebuilt:
        """The last events of a folder; the Spark session of another test may have caused more."""
        kinds = (events.CheckpointUsed, events.CheckpointRebuilt)
        return [each for each in self.reported if isinstance(each, kinds)][-1]

    def why(self) -> str | None:
        """The reason for the last rebuild; None without a rebuild."""
        return getattr(self.made(), "reason", None)

    def commits(self) -> list[CommitHeader]:
        head = find_head(self.log)
        records = live_records(LogView(self.log, head.window), 0, head.gap)
        return [each.header for each in records if isinstance(each.header, CommitHeader)]

    def values(self) -> list[int]:
        """The values in the log, in its order."""
        return stored(self.store)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    store = MemoryStore()
    log = LogStore(store, "wal")
    reported: list[events.Event] = []
    unsubscribe: Callable[[], None] = events.subscribe(reported.append)
    monkeypatch.setattr(rebuild, "open_log", lambda *_, **__: log)
    # The files of the streams are nowhere.
    monkeypatch.setattr(unread, "is_missing", lambda _: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield Room(store, log, tmp_path, reported)
    unsubscribe()


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logs:
    """Logs in one store in memory, and `sparkwal.checkpoint` over them."""
    store = MemoryStore()

    def opened_log(options: Any, **_: object) -> LogStore:
        root = LogStore(store, options.path.removeprefix("s3://bucket/"))
        return root.sequencer(options.sequencer)

    monkeypatch.setattr(rebuild, "open_log", opened_log)
    monkeypatch.setattr(fork, "open_log", opened_log)
    # The files of these streams are nowhere.
    monkeypatch.setattr(unread, "is_missing", lambda _: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Logs(store, tmp_path)
