"""One log: the store that holds it, and where in it."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwal.format import keys
from sparkwal.store.base import Store


@dataclass(frozen=True)
class LogStore:
    """A log in a store; `prefix` is that of all its keys, "" for the store's root."""

    store: Store
    prefix: str

    @property
    def url(self) -> str:
        """The log for people, e.g. "s3://bucket/wal"; holds no secret."""
        return f"{self.store.url}/{self.prefix}" if self.prefix else self.store.url

    @property
    def identity(self) -> str:
        """The log as a name: equal for every spelling of one path; holds no secret."""
        return f"{self.store.identity}/{self.prefix}" if self.prefix else self.store.identity

    def sequencer(self, name: str) -> LogStore:
        """The log of a sequencer under this one; ROOT is this one itself."""
        return LogStore(self.store, keys.sequencer_prefix(self.prefix, name))

    def key(self, number: int) -> str:
        return keys.key(self.prefix, number)

    def where(self, number: int, window: int | None = None) -> str:
        """A numbered object's URL for people, with its position where the log's window is known."""
        url = f"{self.store.url}/{self.key(number)}"
        return url if window is None else f"{url} (position {keys.position(number, window)})"
