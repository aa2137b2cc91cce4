"""A large object on a local disk: an unlisted file until it is published."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from sparkwal.store.local_files import write_at


class Folder(Protocol):
    """What an upload needs of its store."""

    def errors(self, operation: str, key: str) -> AbstractContextManager[None]:
        """What the system says, as this library's errors."""

    def open_temp(self, key: str) -> tuple[int, Path]:
        """A new file that no listing shows. Raises OSError."""

    def publish(self, temp: Path, path: Path, key: str) -> bool:
        """Make the file the object, if its name is free. Raises OSError."""


class LocalUpload:
    """Parts written at their offsets into an unlisted file until `complete`."""

    def __init__(self, store: Folder, path: Path, key: str) -> None:
        self._store = store
        self._path = path
        self._key = key
        self._file: tuple[int, Path] | None = None
        self._lock = threading.Lock()

    def part(self, number: int, offset: int, body: bytes) -> None:
        """Write the part. Raises StoreUnavailableError for a full disk, OptionError."""
        with self._store.errors("put", self._key):
            # Parts come from several threads: two first ones must share one file.
            with self._lock:
                if self._file is None:
                    self._file = self._store.open_temp(self._key)
                descriptor, _ = self._file
            write_at(descriptor, body, offset)

    def complete(self) -> bool:
        """Publish the file. A failure leaves it there for another attempt."""
        with self._store.errors("put", self._key):
            if self._file is None:
                self._file = self._store.open_temp(self._key)
            created = self._store.publish(self._file[1], self._path, self._key)
        self.abort()
        return created

    def abort(self) -> None:
        """Remove the unseen file."""
        if self._file is not None:
            descriptor, temp = self._file
            self._file = None
            os.close(descriptor)
            with suppress(OSError):
                temp.unlink()
