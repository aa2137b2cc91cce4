"""The store, the hints and the clock of simulated processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwal.protocol.hint import Committed, Hint, Hints, LeaderNote
from sparkwal.store.base import LogStore, Page, Tagged, Unfinished, UnfinishedPage
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from tests.simulation.data import PREFIX
from tests.simulation.machine import Ask
from tests.simulation.oracle import Verdict
from tests.simulation.world import Call, Lost, etag_of


@dataclass(frozen=True)
class WorldStore:
    """The Store of a simulated process. It asks the world for every call.

    Attributes:
        patient: other processes may run before a lost reply is noticed, as that takes a while. It
            matters if the process's own threads are among these others.
        undone: whether the table had been restored, at each request for a lifecycle record's age.
    """

    ask: Ask
    patient: bool = False
    url: str = "sim://store"
    identity: str = "sim://store"
    concurrency: int = 3
    retries: int = 0
    undone: list[bool] = field(default_factory=list, compare=False)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if key.startswith(f"{PREFIX}/consumers/"):
            return bool(self.ask(Call("replace", (key, bytes(body), None))))
        try:
            return bool(self.ask(Call("put", (key, bytes(body)))))
        except Lost:
            if self.patient:
                self.ask(Call("idle"))
            raise

    def get(self, key: str) -> bytes:
        return self.get_range(key, 0, 2**40)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return bytes(self.ask(Call("get_range", (key, offset, length))))

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        entries, more = self.ask(Call("list", (prefix, limit, after)))
        return Page(list(entries), more)

    def folders(self, prefix: str, inside: str, after: str = "") -> None:
        return None

    def delete(self, key: str) -> None:
        undone = self.undone[-1:]
        self.ask(Call("delete", (key, *undone)))

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        # One after another, in any order, and others see it; without a look at what it deletes.
        for key in keys:
            self.delete(key)
        return []

    def upload(self, key: str) -> Any:
        raise AssertionError("the simulated rows are small")

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        return UnfinishedPage([], "")

    def discard(self, upload: Unfinished) -> None:
        # The simulation sends no object in parts.
        pass

    def put(self, key: str, body: bytes) -> None:
        self.ask(Call("overwrite", (key, bytes(body))))

    def replace(self, key: str, body: bytes, etag: str) -> bool:
        return bool(self.ask(Call("replace", (key, bytes(body), etag))))

    def get_tagged(self, key: str, length: int | None = None) -> Tagged:
        body = self.get(key)
        return Tagged(body[:length], etag_of(body))

    def age_ms(self, key: str) -> int:
        age, undone = self.ask(Call("age", (key,)))
        # A collection begins with the age of a lifecycle record.
        if "/lifecycle/" in key:
            self.undone.append(undone)
        return int(age)


@dataclass(frozen=True)
class ReadersStore(WorldStore):
    """The same, and it notes what was committed whenever it listed."""

    committed: list[Verdict] = field(default_factory=list, compare=False)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        committed, (entries, more) = self.ask(Call("look", (prefix, limit, after)))
        self.committed.append(committed)
        return Page(list(entries), more)


class WorldHints(Hints):
    """The hints of a simulated driver.

    Args:
        shared: all drivers run on the same machine. If not, each has a separate one.
    """

    def __init__(self, ask: Ask, *, shared: bool = False) -> None:
        self.ask, self.shared = ask, shared

    def load(self, leader_id: str) -> Hint | None:
        hint: Hint | None = self.ask(Call("load_hint", (leader_id,)))
        return hint

    def save(self, leader_id: str, hint: Hint) -> bool:
        # Worlds that differ only in how long a PUT took are one.
        if isinstance(hint, Committed):
            hint = replace(hint, last_put=None)
        return bool(self.ask(Call("save_hint", (leader_id, hint))))

    def forget(self, leader_id: str) -> None:
        self.ask(Call("forget_hint", (leader_id,)))

    def fence_others(self, by: LeaderNote) -> None:
        if self.shared:
            self.ask(Call("fence_others", (by,)))

    def has_ended(self, run_id: str | None) -> bool:
        return bool(self.ask(Call("has_ended", (run_id,))))


@dataclass(frozen=True)
class WorldClock:
    """A clock that the scheduler moves."""

    ask: Ask

    def now_ms(self) -> int:
        return int(self.ask(Call("now")))

    def boot_ms(self) -> int:
        return int(self.ask(Call("now")))

    def boot_id(self) -> str:
        return "boot"

    def sleep(self, seconds: float) -> None:
        pass  # a thread that waits is scheduled at any time


def world_log(store: WorldStore, retries: int) -> LogStore:
    """The log as a process sees it that repeats a request `retries` times."""
    policy = RetryPolicy(max_retry_attempts=retries)
    return LogStore(RetryingStore(store, policy, sleep=lambda _: None, rng=lambda: 0.0), PREFIX)
