"""A folder of a local disk as a `Store`. Hard links implement put-if-absent."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import Entry, Front, NotFound, Page, Tagged, Unfinished, UnfinishedPage
from sparkwal.store.local_files import (
    TEMPS,
    check_regular,
    errors,
    key_of_temp,
    keys_after,
    open_regular,
    sync,
    temp_name,
    write_at,
)

_ABSENT = (FileNotFoundError, NotADirectoryError)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class LocalStore:
    """Objects are files under `root`. Writes create folders; reads do not.

    Methods raise OptionError if a permission or the path forbids a request, and
    StoreUnavailableError if the disk is full or fails.

    Args:
        fsync: False, for tests, gives up the durability over a power cut.
    """

    # So many writes keep a disk busy while some of them wait in fsync.
    concurrency = 8
    retries = 0

    def __init__(self, root: Path, *, fsync: bool = True) -> None:
        self._root = Path(os.path.abspath(root))
        self.url = f"file://{self._root}"
        self._fsync = fsync
        self._prepared: set[Path] = set()

    @property
    def identity(self) -> str:
        return f"file://{os.path.realpath(self._root)}"

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Write a temporary file, then link it to the object's name. The link is the commit."""
        return self._put(key, body, replaces=False)

    def put(self, key: str, body: bytes) -> None:
        """Write a temporary file, then rename it. A reader sees the old object or the new one."""
        self._put(key, body, replaces=True)

    def replace(self, key: str, body: bytes, etag: str) -> bool:
        """Compare the file's inode and times, then rename another file over it.

        The file is locked meanwhile, so of several such PUTs one replaces it. A `put` takes no
        lock: no writer of a log overwrites a record with it.
        """
        return self._put(key, body, replaces=True, etag=etag)

    def get_tagged(self, key: str, length: int | None = None) -> Tagged:
        with self._reading(key) as file:
            return Tagged(
                file.read(-1 if length is None else length), _etag(os.fstat(file.fileno()))
            )

    def _put(self, key: str, body: bytes, *, replaces: bool, etag: str = "") -> bool:
        upload = self.upload(key)
        try:
            upload.part(1, 0, body)
            return upload.complete(replaces=replaces, etag=etag)
        finally:
            upload.abort()

    def get(self, key: str) -> bytes:
        return self.get_range(key, 0, sys.maxsize)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        with self._reading(key) as file:
            # The length may exceed the file's: `read` would allocate all of it.
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            body = file.read(max(min(length, size - offset), 0))
            return Front.of(body, offset, length, size)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """List keys, and look up the sizes of the listed keys only."""
        folder, _, start = prefix.rpartition("/")
        entries: list[Entry] = []
        more = False
        with errors("list", prefix, self.url):
            if folder:
                self.path(folder)
            names = keys_after(self._root, f"{folder}/" if folder else "", start, limit + 1, after)
            for scanned, key in enumerate(names):
                if more := scanned == limit:
                    break
                after = key
                # The object may have been deleted since the scan.
                with suppress(FileNotFoundError):
                    entries.append(Entry(key, (self._root / key).stat().st_size))
            self._check_root()
        # No key may follow an empty page, so continue the list.
        return self.list(prefix, limit, after) if more and not entries else Page(entries, more)

    def folders(self, prefix: str, inside: str, after: str = "") -> None:
        """Return None: `list` is as fast here."""

    def delete(self, key: str) -> None:
        """Remove the file without a sync. If a power cut restores it, it is deleted again."""
        with errors("delete", key, self.url), suppress(*_ABSENT):
            self.path(key).unlink()

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        """Remove the files, then sync each of their folders once. ETags are ignored."""
        folders = {self.path(key).parent: None for key in keys}
        for key in keys:
            self.delete(key)
        for folder in folders:
            with errors("delete", f"objects in {folder}", self.url), suppress(*_ABSENT):
                self.sync(folder)
        return []

    def age_ms(self, key: str) -> int:
        with self._reading(key) as file:
            return _age_ms(self._now_ns(), os.fstat(file.fileno()))

    def upload(self, key: str) -> LocalUpload:
        return LocalUpload(self, key)

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        """List the temporary files of puts and uploads, which run or were killed.

        Their age counts from the last write. A file whose name has no key is left out: its key was
        too long, or an older version of this library wrote it.
        """
        folder = self._root / TEMPS
        uploads: list[Unfinished] = []
        with errors("list", prefix, self.url), suppress(*_ABSENT):
            keys = ((key_of_temp(name), name) for name in os.listdir(folder))
            matches = sorted((key, name) for key, name in keys if key and key.startswith(prefix))
            now_ns = self._now_ns() if matches else 0
            for key, name in matches:
                # The writer may have completed or aborted the upload since the scan.
                with suppress(FileNotFoundError):
                    uploads.append(Unfinished(key, name, _age_ms(now_ns, os.stat(folder / name))))
        return UnfinishedPage(uploads, "")

    def discard(self, upload: Unfinished) -> None:
        if key_of_temp(upload.upload_id) != upload.key:
            raise OptionError(f"{upload.upload_id!r} is no upload of {upload.key}")
        with errors("abort", upload.key, self.url), suppress(*_ABSENT):
            (self._root / TEMPS / upload.upload_id).unlink()

    def open_temp(self, key: str) -> tuple[int, Path]:
        """Create a temporary file, which no LIST shows.

        Raises:
            OSError: the file cannot be created.
        """
        folder = self._root / TEMPS
        temp = folder / temp_name(key)
        self.prepare(folder)
        return os.open(temp, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666), temp

    def path(self, key: str) -> Path:
        segments = key.split("/")
        if segments[0] == TEMPS or not {"", ".", ".."}.isdisjoint(segments) or "\0" in key:
            raise OptionError(f"{key!r} cannot be the name of an object; correct the path")
        return self._root.joinpath(*segments)

    @contextmanager
    def _reading(self, key: str) -> Iterator[BinaryIO]:
        with errors("get", key, self.url):
            try:
                file = open_regular(self.path(key))
            except _ABSENT:
                self._check_root()
                raise NotFound(key) from None
            with file:
                yield file

    def _now_ns(self) -> int:
        """The time by the filesystem's clock, which may be another machine's."""
        # Use the descriptor: another process may remove the file, and its name would be missing.
        descriptor, temp = self.open_temp("clock")
        try:
            return os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
            with suppress(OSError):
                temp.unlink()

    def _check_root(self) -> None:
        """Check that the root is no file.

        Raises:
            NotADirectoryError: the root or a folder above it is a file.
        """
        with suppress(FileNotFoundError):
            os.close(os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def prepare(self, folder: Path) -> None:
        """Create a folder, and make its path durable. Skip this if it was done and still exists."""
        if folder in self._prepared and folder.is_dir():
            return
        top = folder
        while not top.exists() and top != top.parent:
            top = top.parent
        chain = [folder, *folder.parents]
        for missing in chain[: chain.index(top)][::-1]:
            try:
                missing.mkdir(exist_ok=True)
            except FileNotFoundError:
                # If the parent exists, the system creates no folder in it, as in /proc. A retry
                # would not help.
                if missing.parent.exists():
                    raise OptionError(
                        f"{self.url}: no folder can be made in {missing.parent}; use another path"
                    ) from None
                raise
        # Another process may have created a folder without a sync, so a power cut could remove it.
        last = max(chain.index(top), chain.index(self._root.parent))
        for parent in chain[1 : last + 1]:
            with suppress(PermissionError):
                self.sync(parent)
        self._prepared.add(folder)

    def sync(self, path: Path) -> None:
        """Make the content of a file or folder durable."""
        if self._fsync:
            sync(path)


def _etag(status: os.stat_result) -> str:
    """A name for the content of a file: no object is changed in its place."""
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _age_ms(now_ns: int, status: os.stat_result) -> int:
    return max(0, now_ns - status.st_mtime_ns) // 1_000_000


class LocalUpload:
    """Writes parts at their offsets into a temporary file, until `complete` publishes it."""

    def __init__(self, store: LocalStore, key: str) -> None:
        self._store = store
        self._key = key
        self._path = store.path(key)
        with errors("put", key, store.url):
            self._descriptor, self._temp = store.open_temp(key)

    def part(self, number: int, offset: int, body: bytes) -> None:
        with errors("put", self._key, self._store.url):
            write_at(self._descriptor, body, offset)

    def complete(self, *, replaces: bool = False, etag: str = "") -> bool:
        """Publish the file as the object. After a failure, another attempt is possible.

        Args:
            replaces: overwrite an existing object.
            etag: overwrite only the object with this ETag.

        Returns:
            Whether the file is the object now.
        """
        store = self._store
        with errors("put", self._key, store.url), ExitStack() as locks:
            store.prepare(self._path.parent)
            store.sync(self._temp)
            # Count the object's age from here: the sync may have taken long.
            os.utime(self._temp)
            created = True
            if etag and not self._lock_tagged(etag, locks):
                self.abort()
                return False
            try:
                (os.replace if replaces else os.link)(self._temp, self._path)
            except FileExistsError:
                check_regular(self._path, self._key)
                created = False
            except OSError as error:
                if replaces or error.errno not in _NO_LINKS:
                    raise
                raise OptionError(
                    f"{store.url}: this filesystem cannot make hard links ({error.strerror}), "
                    "which decide between two writers; use a local disk or an object store"
                ) from None
            # Sync even if the name was taken: its writer may have crashed before this sync.
            try:
                store.sync(self._path.parent)
            except OSError as error:
                raise StoreUnavailableError(
                    f"put of {self._key} at {store.url}: {error.strerror}; the object may not be "
                    "durable",
                    maybe_applied=True,
                ) from None
        self.abort()
        return created

    def _lock_tagged(self, etag: str, locks: ExitStack) -> bool:
        """Lock the object against other PUTs with an ETag, if it exists and has this one."""
        import fcntl

        try:
            file = locks.enter_context(open_regular(self._path))
            fcntl.flock(file, fcntl.LOCK_EX)
            # The PUT that held the lock before may have replaced the file.
            return _etag(os.stat(self._path)) == etag
        except _ABSENT:
            return False

    def abort(self) -> None:
        # Without the descriptor, a late part cannot write to a file.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            with suppress(OSError):
                self._temp.unlink()
