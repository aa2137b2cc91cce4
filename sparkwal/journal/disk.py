"""A journal's folder on a local disk. One process at a time holds it."""

import errno
import fcntl
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from sparkwal.errors import OptionError
from sparkwal.journal.files import segment_id
from sparkwal.journal.storage import QUARANTINE, Bytes, Reader, Writer
from sparkwal.store.local_files import keep_private, no_link

LOCK = "lock"
# After this many new bytes the kernel is asked to begin writing. The next sync then waits for less.
_WRITE_BEHIND_BYTES = 16 * 2**20


class DiskWriter:
    """Implements `Writer`."""

    def __init__(self, path: Path, *, new: bool) -> None:
        flags = os.O_WRONLY | (os.O_CREAT | os.O_EXCL if new else 0)
        self._file = no_link(str(path), flags)
        # `_begun`: the kernel was asked to write the bytes before this offset.
        self.size = self._begun = os.fstat(self._file).st_size

    def append(self, parts: Sequence[Bytes]) -> int:
        begin = self.size
        end = begin + sum(map(len, parts))
        written = os.pwritev(self._file, parts, begin)
        if written < end - begin:
            self.write_at(begin + written, b"".join(parts)[written:])
        self.size = end
        if end - self._begun >= _WRITE_BEHIND_BYTES:
            # The call is only a hint, so ignore its errors.
            with suppress(OSError):
                # Linux begins to write dirty pages, and drops only clean ones.
                size = end - self._begun
                os.posix_fadvise(self._file, self._begun, size, os.POSIX_FADV_DONTNEED)
            self._begun = end
        return begin

    def write_at(self, offset: int, data: Bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, offset)
            view, offset = view[written:], offset + written

    def truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self.size = self._begun = size

    def sync(self) -> None:
        end = self.size
        # fdatasync writes the file's length too, because data after the old length needs it.
        os.fdatasync(self._file)
        was_removed = os.fstat(self._file).st_nlink == 0
        self._begun = end
        # No restart would find the bytes of a removed file.
        if was_removed:
            raise FileNotFoundError(errno.ENOENT, "the open file was removed")

    def close(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


class DiskReader(FileIO):
    """Implements `Reader`."""

    @property
    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fileno(), size, offset)
        # One read returns at most 2 GiB, and a signal may end it early.
        while len(data) < size and (
            more := os.pread(self.fileno(), size - len(data), offset + len(data))
        ):
            data += more
        return data


class DiskFolder:
    """Implements `Folder`. Opening locks the folder until `close`, or until the process ends.

    Raises:
        OptionError: another process holds the folder, or it cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._lock = -1
        self.path = str(self._path)
        try:
            missing = [
                folder for folder in (self._path, *self._path.parents) if not folder.exists()
            ]
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_is_journal({*os.listdir(self._path)})
            keep_private(self._path, "journal")
            (self._path / QUARANTINE).mkdir(mode=0o700, exist_ok=True)
            for folder in missing:
                _sync(folder.parent)
            self._lock = no_link(str(self._path / LOCK), os.O_RDWR | os.O_CREAT)
            self._lock_folder()
        except OSError as error:
            self.forget()
            raise OptionError(
                f"journal {self._path} cannot be used: {error.strerror or error}. Choose a folder "
                "on a local disk that this process may write to"
            ) from None
        except BaseException:
            self.forget()
            raise
        _open_folders.add(self)

    def _check_is_journal(self, names: set[str]) -> None:
        # Each opening creates both names first. A backup may lack the quarantine, an empty folder:
        # then any segment proves that this is a journal.
        is_journal = {QUARANTINE, LOCK} <= names or any(segment_id(name) >= 0 for name in names)
        if not is_journal and names - {QUARANTINE, "lost+found"}:
            raise OptionError(
                f"journal {self._path} holds other files and is no journal: sparkwal changed "
                "nothing. Choose a separate folder"
            )

    def _lock_folder(self) -> None:
        try:
            # The lock belongs to the open file, so it ends with the process, however the process
            # ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            action = f"by process {holder}: end that one"
            if holder == str(os.getpid()):
                action = "by this process: close the appender that has it"
            raise OptionError(
                f"journal {self._path} is held {action}, or choose a separate folder for each"
            ) from None
        # A full disk has no room for the pid. The lock works without it.
        with suppress(OSError):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def names(self) -> list[str]:
        journal_files = sorted(name for name in os.listdir(self._path) if name != QUARANTINE)
        quarantined = sorted(f"{QUARANTINE}/{name}" for name in os.listdir(self._path / QUARANTINE))
        return [*journal_files, *quarantined]

    def create(self, name: str) -> Writer:
        return DiskWriter(self._path / name, new=True)

    def open(self, name: str) -> Writer:
        return DiskWriter(self._path / name, new=False)

    def read(self, name: str) -> Reader:
        return DiskReader(self._path / name, opener=no_link)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path / old, self._path / new)

    def remove(self, name: str) -> None:
        os.unlink(self._path / name)

    def sync(self) -> None:
        _sync(self._path / QUARANTINE)
        _sync(self._path)

    def close(self) -> None:
        if self._lock >= 0:
            # A forked process that has not yet called `forget` shares the lock.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close the lock file without unlocking: the parent process of this fork keeps the
        folder."""
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            _open_folders.discard(self)
            os.close(lock)


def _sync(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_open_folders: weakref.WeakSet[DiskFolder] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked process shares the lock, so the folder would stay locked after the parent's end.
    for folder in tuple(_open_folders):
        folder.forget()


os.register_at_fork(after_in_child=_forget_in_child)
