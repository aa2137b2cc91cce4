"""The interface of a journal's folder, which a local disk and a twin in memory share, as in Apache
Iggy's journal; and the rule that all its handles follow."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Protocol

from sparkwal.errors import JournalFolderSyncError, JournalSyncError

# Bytes, or a view of bytes without a copy.
Bytes = bytes | memoryview
# A folder inside the folder, for files that must not change again.
QUARANTINE = "quarantine"
_BLOCK = 4 * 2**20


class Writer(Protocol):
    """A file open for writing at `size`. Each call may raise OSError."""

    size: int

    def append(self, parts: Sequence[Bytes]) -> int:
        """Write at the end; returns the offset. An error may leave a longer file, no new `size`."""

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write over what is there."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Sync. Until this returns, a power loss may take back what was written since the last."""

    def close(self) -> None: ...


class Reader(Protocol):
    """A file open for reading. Each call may raise OSError."""

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, size: int) -> bytes:
        """`size` bytes; fewer at the end of the file."""

    def close(self) -> None: ...


class Folder(Protocol):
    """One journal's files by name, which may begin `QUARANTINE`/. Each call may raise OSError."""

    path: str

    def names(self) -> list[str]:
        """The names of all files, sorted; those in quarantine begin with its name and a slash."""

    def create(self, name: str) -> Writer:
        """Create an empty file."""

    def open(self, name: str) -> Writer:
        """Open an existing file to write on from its end."""

    def read(self, name: str) -> Reader: ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically; it replaces a file of the new name."""

    def remove(self, name: str) -> None: ...

    def sync(self) -> None:
        """Sync all names. Until this returns, a power loss may undo their changes."""

    def close(self) -> None:
        """Release the folder to other processes."""


class Handle:
    """A writer that refuses everything after a failed sync. Linux marks pages that it could not
    write as clean: the next fsync succeeds, though nothing is on the disk."""

    def __init__(self, writer: Writer, name: str) -> None:
        self._writer, self.name = writer, name
        self._poisoned = False

    @property
    def writer(self) -> Writer:
        """Raises JournalSyncError after a failed sync."""
        # SAFETY(failed-sync-final) §11: after a failed sync a handle never syncs again
        if self._poisoned:
            raise JournalSyncError(f"{self.name} could not be synced before: open it again")
        return self._writer

    def sync(self) -> None:
        """Raises JournalSyncError."""
        writer = self.writer
        try:
            writer.sync()
        except OSError as error:
            self._poisoned = True
            raise JournalSyncError(_unknown(self.name, error)) from error

    def close(self) -> None:
        self._writer.close()


def content_of(folder: Folder, name: str, most: int) -> bytes | None:
    """The first `most` bytes of a file; None if there is none. Raises OSError."""
    try:
        reader = folder.read(name)
    except FileNotFoundError:
        return None
    with closing(reader):
        return reader.read_at(0, most)


def blocks(reader: Reader, begin: int, end: int) -> Iterator[bytes]:
    """The bytes from `begin` to `end`, a block at a time. Raises OSError."""
    while begin < end:
        part = reader.read_at(begin, min(_BLOCK, end - begin))
        if not part:
            raise OSError(f"the file ends at {begin} and not at {end}")
        yield part
        begin += len(part)


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
