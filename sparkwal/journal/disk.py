"""A journal's folder on a local disk; one process holds it."""

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
# After this many bytes the disk begins to write, before a sync.
_AHEAD = 16 * 2**20


class DiskWriter:
    """See `Writer`."""

    def __init__(self, path: Path, *, new: bool) -> None:
        flags = os.O_WRONLY | (os.O_CREAT | os.O_EXCL if new else 0)
        self._file = no_link(str(path), flags)
        self.size = self._begun = os.fstat(self._file).st_size

    def append(self, parts: Sequence[Bytes]) -> int:
        begin = self.size
        end = begin + sum(map(len, parts))
        written = os.pwritev(self._file, parts, begin)
        if written < end - begin:
            self.write_at(begin + written, b"".join(parts)[written:])
        self.size = end
        if end - self._begun >= _AHEAD:
            with suppress(OSError):  # it is a hint
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
        # This syncs the length too: data cannot be read without it.
        os.fdatasync(self._file)
        is_there = os.fstat(self._file).st_nlink > 0
        self._begun = end
        if not is_there:
            raise FileNotFoundError(errno.ENOENT, "it was removed while it was open")

    def close(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


class DiskReader(FileIO):
    """See `Reader`."""

    @property
    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fileno(), size, offset)
        # One read gives at most 2 GiB, and a signal may end it.
        while len(data) < size and (
            more := os.pread(self.fileno(), size - len(data), offset + len(data))
        ):
            data += more
        return data


class DiskFolder:
    """See `Folder`. Opening locks the folder for this process, until `close` or the process's end.
    Raises OptionError if another process holds the folder, or if it cannot be used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._lock = Path(path).absolute(), -1
        self.path = str(self._path)
        try:
            missing = [each for each in (self._path, *self._path.parents) if not each.exists()]
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_ours({*os.listdir(self._path)})
            keep_private(self._path, "journal")
            (self._path / QUARANTINE).mkdir(mode=0o700, exist_ok=True)
            for made in missing:
                _sync(made.parent)
            self._lock = no_link(str(self._path / LOCK), os.O_RDWR | os.O_CREAT)
            self._take()
        except OSError as error:
            self.forget()
            raise OptionError(
                f"journal {self._path} cannot be used: {error.strerror or error}. Give a folder "
                "on a local disk that this process may write to"
            ) from None
        except BaseException:
            self.forget()
            raise
        _held.add(self)

    def _check_ours(self, names: set[str]) -> None:
        # Each opening makes both first, and a backup may have left out an empty folder.
        ours = {QUARANTINE, LOCK} <= names or any(segment_id(name) >= 0 for name in names)
        if not ours and names - {QUARANTINE, "lost+found"}:
            raise OptionError(
                f"journal {self._path} holds other files and is no journal: nothing was changed. "
                "Give a folder of its own"
            )

    def _take(self) -> None:
        try:
            # The lock is the open file's: it ends with the process, however that ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            todo = f"by process {holder}: end that one"
            if holder == str(os.getpid()):
                todo = "by this process: close the appender that has it"
            raise OptionError(
                f"journal {self._path} is held {todo}, or give each a folder of its own"
            ) from None
        with suppress(OSError):  # a full disk has room for no pid
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def names(self) -> list[str]:
        there = sorted(name for name in os.listdir(self._path) if name != QUARANTINE)
        aside = sorted(f"{QUARANTINE}/{name}" for name in os.listdir(self._path / QUARANTINE))
        return [*there, *aside]

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
        """Leave the folder to the process that this one was forked from."""
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            _held.discard(self)
            os.close(lock)


def _sync(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_held: weakref.WeakSet[DiskFolder] = weakref.WeakSet()


def _forget() -> None:
    # A forked process shares the lock: the folder would stay locked after the parent's end.
    for folder in tuple(_held):
        folder.forget()


os.register_at_fork(after_in_child=_forget)
