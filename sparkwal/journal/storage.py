"""What a journal asks of a folder, and the rule that every folder's handles keep.

After Apache Iggy's journal: positional reads and writes, appends, truncation and syncs behind an
interface that a local disk and a twin in memory share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from sparkwal.errors import JournalFolderSyncError, JournalSyncError

# Something that holds bytes without a copy.
Bytes = bytes | memoryview
# A folder in the folder, for what must not be touched again.
QUARANTINE = "quarantine"


class Writer(Protocol):
    """One file, to be written. Each of its calls raises OSError.

    Attributes:
        size: bytes from its beginning up to where the next `append` writes.
    """

    size: int

    def append(self, parts: Sequence[Bytes]) -> int:
        """Write at the end and return where that was. Where it raises, `size` is as before, and
        the file may be longer than that."""

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write over what is there."""

    def truncate(self, size: int) -> None:
        """Cut it to so many bytes."""

    def sync(self) -> None:
        """Until it returns, a loss of power may take back anything written since the last."""

    def close(self) -> None: ...


class Reader(Protocol):
    """One file, to be read. Each of its calls raises OSError."""

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, size: int) -> bytes:
        """So many bytes; fewer where the file ends."""

    def close(self) -> None: ...


class Folder(Protocol):
    """The files of one journal, by name. Each of its calls raises OSError.

    A name may begin with `QUARANTINE` and a slash.
    """

    @property
    def path(self) -> str: ...

    def names(self) -> list[str]:
        """Of its files, sorted; those in quarantine with its name before theirs."""

    def create(self, name: str) -> Writer:
        """A new, empty file."""

    def open(self, name: str) -> Writer:
        """A file that is there, to be written on from its end."""

    def read(self, name: str) -> Reader: ...

    def rename(self, old: str, new: str) -> None:
        """At once, and over a file of the new name."""

    def remove(self, name: str) -> None: ...

    def sync(self) -> None:
        """Until it returns, a loss of power may take back names made, changed or removed."""

    def close(self) -> None:
        """Let another process have the folder."""


class Handle:
    """A writer that is of no use after a failed sync.

    Linux marks pages that it could not write as clean: the next fsync says that all is well,
    though nothing is on the disk. Only what is read anew, written anew and synced is there.
    """

    def __init__(self, writer: Writer, name: str) -> None:
        self._writer, self.name = writer, name
        self._poisoned = False

    @property
    def size(self) -> int:
        return self._writer.size

    def append(self, parts: Sequence[Bytes]) -> int:
        self._check()
        return self._writer.append(parts)

    def write_at(self, offset: int, data: Bytes) -> None:
        self._check()
        self._writer.write_at(offset, data)

    def truncate(self, size: int) -> None:
        self._check()
        self._writer.truncate(size)

    def sync(self) -> None:
        """Raises JournalSyncError."""
        self._check()
        try:
            self._writer.sync()
        except OSError as error:
            self._poisoned = True
            raise JournalSyncError(_unknown(self.name, error)) from error

    def _check(self) -> None:
        # SAFETY(failed-sync-final) §11: after a failed sync a handle never syncs again
        if self._poisoned:
            raise JournalSyncError(f"{self.name} could not be synced before: open it again")

    def close(self) -> None:
        self._writer.close()


def content_of(folder: Folder, name: str, most: int) -> bytes | None:
    """The first `most` bytes of a file; None where there is none. Raises OSError."""
    try:
        reader = folder.read(name)
    except FileNotFoundError:
        return None
    with closing(reader):
        return reader.read_at(0, most)


def sync_folder(folder: Folder) -> None:
    """Raises JournalFolderSyncError; then the journal must be opened again."""
    try:
        folder.sync()
    except OSError as error:
        raise JournalFolderSyncError(_unknown(folder.path, error)) from error


def _unknown(what: str, error: OSError) -> str:
    return (
        f"{what} could not be synced ({error}): what the disk holds is unknown. Look at the disk, "
        "then open the journal again: it keeps what it can read"
    )
