"""Where a store is tried: keys of its own, its endpoints in turn, and chance from a seed."""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sparkwal.errors import SparkWalError
from sparkwal.store.base import Store, Transient, Unfinished
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore

# What a check saw, for people; None: it does not apply to this store.
Found = str | None


class Wrong(Exception):
    """The store did not do what a log needs; says what it did instead."""


@dataclass(frozen=True)
class Trial:
    """How hard a store is tried.

    Attributes:
        rounds: keys that are raced for, of each kind of race.
        threads: that race for one key.
        seed: of everything that is left to chance.
        thorough: also what needs a thousand objects.
    """

    rounds: int = 8
    threads: int = 16
    seed: int = 0
    thorough: bool = False


@dataclass
class Ground:
    """A store under trial. A context manager: leaving it removes all objects of the trial.

    Attributes:
        stores: its endpoints; each call is one attempt.
        faults: what requests of the races met, by its first words.
        left: what could not be removed, for people; "" at first.
    """

    stores: tuple[Store, ...]
    prefix: str
    trial: Trial
    faults: Counter[str] = field(default_factory=Counter)
    left: str = ""

    def __post_init__(self) -> None:
        self.run = uuid.uuid4().hex
        self.folder = f"{self.prefix}/proof/{self.run}/" if self.prefix else f"proof/{self.run}/"
        self.rng = random.Random(self.trial.seed)
        self.retrying = [RetryingStore(store, RetryPolicy()) for store in self.stores]
        self._named = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clean()

    @property
    def store(self) -> RetryingStore:
        """The first endpoint, whose passing failures are retried."""
        return self.retrying[0]

    def key(self, name: str = "object") -> str:
        """A key that nobody has used."""
        self._named += 1
        return f"{self.folder}{self._named:04d}-{name}"

    def place(self, name: str) -> str:
        """A folder that nobody has used, ending with "/"."""
        return f"{self.key(name)}/"

    def body(self, size: int) -> bytes:
        """Bytes that no other body has."""
        return self.rng.randbytes(max(size, 16))

    def clean(self) -> None:
        """Remove all objects and unfinished uploads of this trial."""
        try:
            self._clean()
        except (SparkWalError, Transient) as error:
            self.left = f"objects under {self.folder} ({error})"

    def _clean(self) -> None:
        while entries := self.store.list(self.folder).entries:
            self._remove([entry.key for entry in entries])
        for upload in self._unfinished():
            self.store.discard(upload)
        if self.store.url.startswith("file://"):
            self._remove_folders(Path(self.store.url.removeprefix("file://")))

    def _remove(self, keys: list[str]) -> None:
        try:
            self.store.delete_many(keys)
        except SparkWalError:
            # A store that cannot delete many at once.
            for key in keys:
                self.store.delete(key)

    def _unfinished(self) -> list[Unfinished]:
        # A store may not know which uploads are unfinished; each check ends its own.
        with suppress(SparkWalError):
            return self.store.unfinished(self.folder).uploads
        return []

    def _remove_folders(self, root: Path) -> None:
        """On a disk: of those that this trial made, the empty ones."""
        own = root / self.folder
        made = [Path(path) for path, _, _ in os.walk(own, topdown=False)]
        with suppress(OSError):  # another run's, or the log's, objects are in it
            for path in [*made, own.parent, root / ".tmp", root]:
                if path.exists():
                    path.rmdir()
