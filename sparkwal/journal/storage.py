"""The interface of a journal's folder, and a handle that refuses to write after a failed sync.

A local disk and a folder in memory implement the interface, as in Apache Iggy's journal.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Protocol

from sparkwal.errors import JournalFolderSyncError, JournalSyncError

# Bytes, or a view of them that saves a copy.
Bytes = bytes | memoryview
# The folder for files that must not change again.
QUARANTINE = "quarantine"
_BLOCK = 4 * 2**20


class Writer(Protocol):
    """A file open for writing at `size`. Each call may raise OSError."""

    size: int

    def append(self, parts: Sequence[Bytes]) -> int:
        """Write at the end, and return the offset. An error may leave a longer file, with `size`
        unchanged."""

    def write_at(self, offset: int, data: Bytes) -> None:
        """Overwrite bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Sync. Before this returns, a power loss may undo any write since the last sync."""

    def close(self) -> None: ...


class Reader(Protocol):
    """A file open for reading. Each call may raise OSError."""

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file."""

    def close(self) -> None: ...


class Folder(Protocol):
    """A journal's files by name; names in quarantine begin with `QUARANTINE`/. Any call may raise
    OSError."""

    path: str

    def names(self) -> list[str]:
        """The names of all files, sorted; those in quarantine begin with its name and a slash."""

    def create(self, name: str) -> Writer:
        """Create an empty file."""

    def open(self, name: str) -> Writer:
        """Open an existing file to append to it."""

    def read(self, name: str) -> Reader: ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically; it replaces a file of the new name."""

    def remove(self, name: str) -> None: ...

    def sync(self) -> None:
        """Sync all names. Before this returns, a power loss may undo changes of names."""

    def close(self) -> None:
        """Release the folder to other processes."""


class Handle:
    """A writer that refuses all calls after a failed sync.

    Linux marks pages that it could not write as clean. So the next fsync succeeds, although the
    bytes are not on the disk.
    """

    def __init__(self, writer: Writer, name: str) -> None:
        self._writer = writer
        self.name = name
        self._poisoned = False

    @property
    def writer(self) -> Writer:
        """The writer.

        Raises:
            JournalSyncError: an earlier sync failed.
        """
        # SAFETY(failed-sync-final) §11: after a failed sync a handle never syncs again
        if self._poisoned:
            raise JournalSyncError(f"{self.name} could not be synced before: open it again")
        return self._writer

    def sync(self) -> None:
        """Sync.

        Raises:
            JournalSyncError: this or an earlier sync failed.
        """
        writer = self.writer
        try:
            writer.sync()
        except OSError as error:
            self._poisoned = True
            raise JournalSyncError(_unknown(self.name, error)) from error

    def close(self) -> None:
        self._writer.close()


def content_of(folder: Folder, name: str, limit: int) -> bytes | None:
    """Read the first `limit` bytes of a file, or None if it is missing.

    Raises:
        OSError: the disk failed.
    """
    try:
        reader = folder.read(name)
    except FileNotFoundError:
        return None
    with closing(reader):
        return reader.read_at(0, limit)


def blocks(reader: Reader, begin: int, end: int) -> Iterator[bytes]:
    """Read the bytes from `begin` to `end`, one block at a time.

    Raises:
        OSError: the disk failed, or the file is shorter.
    """
    while begin < end:
        part = reader.read_at(begin, min(_BLOCK, end - begin))
        if not part:
            raise OSError(f"the file ends at {begin} and not at {end}")
        yield part
        begin += len(part)


def sync_folder(folder: Folder) -> None:
    """Sync the folder.

    Raises:
        JournalFolderSyncError: the sync failed. The journal must be opened again.
    """
    try:
        folder.sync()
    except OSError as error:
        raise JournalFolderSyncError(_unknown(folder.path, error)) from error


def _unknown(what: str, error: OSError) -> str:
    return (
        f"{what} could not be synced ({error}), so the content of the disk is unknown. Check the "
        "disk, then open the journal again: it keeps all entries that it can read"
    )
