"""A store under test: keys of its own, its endpoints in turn, and chance from a seed."""

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
from sparkwal.store.base import NotFound, Store
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

# What a check saw, for people; None: it does not apply to this store.
Found = str | None
# A race asks for conflicts, and a store may answer several times with them.
_PATIENT = RetryPolicy(max_retry_attempts=7, base_delay_ms=20)


class Wrong(Exception):
    """The store did not do what a log needs; says what it did instead."""


@dataclass(frozen=True)
class Trial:
    """How hard a store is tried: `rounds` keys are raced for, of each kind of race, by `threads`
    each. `thorough`: also what needs a thousand objects."""

    rounds: int = 8
    threads: int = 16
    seed: int = 0
    thorough: bool = False


@dataclass
class StoreUnderTest:
    """A context manager: leaving it removes all objects of the trial, and says in `left` what it
    could not remove.

    Attributes:
        stores: its endpoints; each call is one attempt.
        repeats: they repeat their requests themselves, so a refusal may be of one's own put.
        faults: what requests of the races met, by its first words.
    """

    stores: tuple[Store, ...]
    prefix: str
    trial: Trial
    repeats: bool = False
    keys: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    left: str = ""

    def __post_init__(self) -> None:
        self.folder = f"{self.prefix}/proof/{uuid.uuid4().hex}/".lstrip("/")
        self.rng = random.Random(self.trial.seed)
        policy = RetryPolicy(max_retry_attempts=0) if self.repeats else _PATIENT
        self.retrying = [RetryingStore(store, policy) for store in self.stores]
        # The first endpoint, whose passing failures are retried.
        self.store = self.retrying[0]
        self.s3 = [store for store in self.stores if isinstance(store, S3Store)]

    def __enter__(self) -> Self:
        return self

    def key(self, name: str = "object") -> str:
        """A key that nobody has used."""
        self.keys.append(f"{self.folder}{len(self.keys):04d}-{name}")
        return self.keys[-1]

    def body(self, size: int) -> bytes:
        """Bytes that no other body has."""
        return self.rng.randbytes(max(size, 16))

    def __exit__(self, *_: object) -> None:
        try:
            while entries := self.store.list(self.folder).entries:
                keys = [entry.key for entry in entries]
                try:
                    self.store.delete_many(keys)
                except SparkWalError:
                    # A store that cannot delete many at once.
                    for key in keys:
                        self.store.delete(key)
            # A store may not know which uploads are unfinished; each check ends its own.
            with suppress(SparkWalError):
                for upload in self.store.unfinished(self.folder).uploads:
                    self.store.discard(upload)
        except SparkWalError as error:
            self.left = f"objects under {self.folder} ({error})"
        if self.store.url.startswith("file://"):
            root = Path(self.store.url.removeprefix("file://"))
            own = root / self.folder
            made = [Path(path) for path, _, _ in os.walk(own, topdown=False)]
            with suppress(OSError):  # another run's, or the log's, objects are in it
                for path in [*made, own.parent, root / ".tmp", root]:
                    if path.exists():
                        path.rmdir()


def content(store: Store, key: str) -> bytes | None:
    """What is there; None where nothing is."""
    try:
        return store.get(key)
    except NotFound:
        return None
