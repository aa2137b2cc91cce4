"""A folder of a local disk as a `Store`: a hard link is its put-if-absent."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from heapq import nsmallest
from pathlib import Path

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import Entry, NotFound, Page, Transient

# Unpublished files live here, beside the objects and never listed. A writer that is
# killed leaves its file there; nothing ever reads it.
_TEMPS = ".tmp"

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.ESTALE, errno.ENOENT)


class LocalStore:
    """Objects are files under `root`. Folders appear with the first write, never by reading.

    All methods raise OptionError for what permissions and paths forbid and
    StoreUnavailableError for a full or failing disk. `fsync=False` gives up durability
    over a power cut (for tests), nothing else.
    """

    def __init__(self, root: Path, fsync: bool = True) -> None:
        self._root = Path(os.path.abspath(root))
        self._fsync = fsync
        self._prepared: set[Path] = set()

    @property
    def url(self) -> str:
        """The root as a file URL."""
        return f"file://{self._root}"

    @property
    def identity(self) -> str:
        """The folder that the root's symbolic links lead to."""
        return f"file://{os.path.realpath(self._root)}"

    @property
    def concurrency(self) -> int:
        """A few: enough to keep a disk's queue filled while others wait in fsync."""
        return 8

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Write an unlisted file, then link it to its name: the link is the commit."""
        path = self._path(key)
        with self.errors("put", key):
            descriptor, temp = self.open_temp()
            try:
                try:
                    write_at(descriptor, body, 0)
                finally:
                    os.close(descriptor)
                return self.publish(temp, path, key)
            finally:
                with suppress(OSError):
                    temp.unlink()

    def get(self, key: str) -> bytes:
        """The whole file. Raises NotFound."""
        with self._reading(key) as descriptor:
            return _read_at(descriptor, 0, os.fstat(descriptor).st_size)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Part of the file. Raises NotFound."""
        with self._reading(key) as descriptor:
            # What the file does not hold is not allocated, whatever length was asked for.
            held = os.fstat(descriptor).st_size - offset
            return _read_at(descriptor, offset, max(min(length, held), 0))

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """The first keys under `prefix` in byte order; only their sizes are looked up."""
        folder, _, start = prefix.rpartition("/")
        found: list[Entry] = []
        more = False
        with self.errors("list", prefix):
            base = self._path(folder) if folder else self._root
            for key in _keys(base, f"{folder}/" if folder else "", start, limit + 1, after):
                if more := len(found) == limit:
                    break
                # Deleted between the scan and here: no longer an object.
                with suppress(FileNotFoundError):
                    found.append(Entry(key, (self._root / key).stat().st_size))
            self._check_root()
        return Page(found, more)

    def delete(self, key: str) -> None:
        """Remove the file. Not synced: what a power cut brings back is deleted again."""
        with self.errors("delete", key), suppress(FileNotFoundError, NotADirectoryError):
            self._path(key).unlink()

    def upload(self, key: str) -> LocalUpload:
        """Begin a large file; parts go straight to their offsets."""
        return LocalUpload(self, self._path(key), key)

    def open_temp(self) -> tuple[int, Path]:
        """A new file that no listing shows. Raises OSError."""
        folder = self._root / _TEMPS
        temp = folder / uuid.uuid4().hex
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        self._prepare(folder)
        try:
            return os.open(temp, flags, 0o666), temp
        except FileNotFoundError:
            # Someone removed the folder since it was prepared.
            self._prepared.clear()
            self._prepare(folder)
            return os.open(temp, flags, 0o666), temp

    def publish(self, temp: Path, path: Path, key: str) -> bool:
        """Make the synced content of `temp` the object, if its name is free. Raises OSError."""
        self._prepare(path.parent)
        self._sync(temp)
        try:
            os.link(temp, path)
        except FileExistsError:
            created = False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise OptionError(
                    f"{self.url}: this filesystem cannot make hard links ({error.strerror}), "
                    "which decide between two writers; use a local disk or an object store"
                ) from None
            raise
        else:
            created = True
        try:
            # Also when the name was taken: its writer may have died before this sync. A caller
            # that reads the object back and trusts it must not lose it to a power cut.
            self._sync(path.parent)
        except OSError as error:
            raise StoreUnavailableError(
                f"put of {key} at {self.url}: {error.strerror}; the object may not be durable",
                maybe_applied=True,
            ) from None
        return created

    @contextmanager
    def errors(self, operation: str, key: str) -> Iterator[None]:
        """What the system says, as this library's errors."""
        try:
            yield
        except OSError as error:
            where = f"{operation} of {key} at {self.url}"
            if error.errno in _FULL:
                raise StoreUnavailableError(
                    f"{where}: disk full; free some space and run again"
                ) from None
            if error.errno in _FORBIDDEN:
                raise OptionError(
                    f"{where}: read-only or no permission ({error.strerror}); use another "
                    "path, or let this user write there"
                ) from None
            if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
                raise OptionError(
                    f"{where}: a file is in the way of a folder; use another path"
                ) from None
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
                raise OptionError(f"{where}: {error.strerror}; use another path") from None
            if error.errno in _PASSING:
                raise Transient(f"{error.strerror}") from None
            raise StoreUnavailableError(
                f"{where}: {error.strerror}; check the disk", maybe_applied=operation == "put"
            ) from None

    def _path(self, key: str) -> Path:
        segments = key.split("/")
        if segments[0] == _TEMPS or not {"", ".", ".."}.isdisjoint(segments) or "\0" in key:
            raise OptionError(f"{key!r} cannot be the name of an object; correct the path")
        return self._root.joinpath(*segments)

    @contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        with self.errors("get", key):
            try:
                descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                raise NotFound(key) from None
            try:
                yield descriptor
            except IsADirectoryError:
                raise NotFound(key) from None
            finally:
                os.close(descriptor)

    def _check_root(self) -> None:
        """Raises NotADirectoryError where a file makes the root impossible."""
        with suppress(FileNotFoundError):
            os.close(os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def _prepare(self, folder: Path) -> None:
        """Make `folder`, and make its whole path durable, once."""
        if folder in self._prepared:
            return
        top = folder
        while not top.exists() and top != top.parent:
            top = top.parent
        folder.mkdir(parents=True, exist_ok=True)
        # Folders that were there may be another process's, made a moment ago and not
        # synced: an object in a folder that a power cut takes away is gone too.
        chain = [folder, *folder.parents]
        last = max(chain.index(top), chain.index(self._root.parent))
        for parent in chain[1 : last + 1]:
            with suppress(PermissionError):
                self._sync(parent)
        self._prepared.add(folder)

    def _sync(self, path: Path) -> None:
        if not self._fsync:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some filesystems do not know fsync of a folder; they order it themselves.
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(descriptor)


class LocalUpload:
    """Parts written at their offsets into an unlisted file until `complete`."""

    def __init__(self, store: LocalStore, path: Path, key: str) -> None:
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
                    self._file = self._store.open_temp()
                descriptor, _ = self._file
            write_at(descriptor, body, offset)

    def complete(self) -> bool:
        """Publish the file. A failure leaves it there for another attempt."""
        with self._store.errors("put", self._key):
            if self._file is None:
                self._file = self._store.open_temp()
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


def write_at(descriptor: int, body: bytes, offset: int) -> None:
    """All of `body`: one call may write less than it was given. Raises OSError."""
    view = memoryview(body)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(descriptor, length, offset)):
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _keys(folder: Path, prefix: str, start: str, limit: int, after: str) -> Iterator[str]:
    """Up to `limit` (or a few more) keys greater than `after` below `folder` whose names begin
    with `start`.

    A folder sorts as its name with "/", as the keys in it do. Python orders strings by
    code point, which is the byte order of their UTF-8.
    """
    names: list[str] = []
    folders: list[str] = []

    def files() -> Iterator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(start) or (not prefix and entry.name == _TEMPS):
                    continue
                key = prefix + entry.name
                if entry.is_dir():
                    # The folder that holds `after` may hold greater keys too.
                    if key + "/" <= after and not after.startswith(key + "/"):
                        continue
                    folders.append(entry.name + "/")
                elif key > after and entry.is_file():
                    yield entry.name

    # Not sorted(): the folder of a long log holds a million names.
    with suppress(FileNotFoundError, NotADirectoryError):
        names = nsmallest(limit, files())
    for name in sorted(names + folders):
        if name.endswith("/"):
            yield from _keys(folder / name, prefix + name, "", limit, after)
        else:
            yield prefix + name
