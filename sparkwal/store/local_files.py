"""The files of a local store: writing, syncing, listing in order, and the errors of the system."""

import errno
import os
import re
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from heapq import nsmallest
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import Transient

# The folder of temporary files, which become objects. No LIST shows it.
TEMPS = ".tmp"
_TEMP = re.compile(r"[0-9a-f]{32}\.(.+)")
_LONGEST_NAME = 255

_TEMPORARY = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.ESTALE, errno.ENOENT)
# In these texts, {} is replaced by the system's message.
_FULL = "disk full; free some space and run again"
_FORBIDDEN = "read-only or no permission ({}); use another path, or give this user access to it"
_IN_THE_WAY = "a file is in the way of a folder; use another path"
_NO_NAME = "{}; use another path"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _FORBIDDEN,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENAMETOOLONG: _NO_NAME,
    errno.ELOOP: _NO_NAME,
    errno.EINVAL: _NO_NAME,
}


def temp_name(key: str) -> str:
    """A new name for a temporary file. It contains the key, if that is short enough."""
    name = f"{uuid.uuid4().hex}.{quote(key, safe='')}"
    return name if len(name) <= _LONGEST_NAME else name[:32]


def key_of_temp(name: str) -> str | None:
    """The key in the name of a temporary file, or None if the name has no key."""
    match = _TEMP.fullmatch(name)
    return unquote(match[1]) if match else None


def write_at(descriptor: int, body: bytes, offset: int) -> None:
    """Write all bytes of `body`. One call of the system may write fewer."""
    view = memoryview(body)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync(path: Path) -> None:
    """Make the content of a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some filesystems do not support fsync of a folder; they order its changes themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def keep_private(folder: Path, name: str) -> None:
    """Close a folder of this user to the other users of the machine.

    sparkwal trusts the content of the folder: rows of a journal, or offsets of a query. So the
    folder and each entry in it must belong to this user or to root.

    Args:
        folder: an existing folder, or a link to one that this user made.
        name: the name of the folder in messages, for example "journal".

    Raises:
        OptionError: another user owns the folder or an entry, or all users may write to the folder
            and this user cannot change that.
        OSError: the folder is unreadable.
    """
    trusted = (os.geteuid(), 0)
    status = folder.stat()
    if status.st_uid not in trusted or folder.lstat().st_uid not in trusted:
        raise OptionError(
            f"{name} {folder} belongs to another user of this machine (uid {status.st_uid}), and "
            "that user could put anything into it: give a folder of your own"
        )
    for parent, folders, files in os.walk(folder):
        for entry in (*folders, *files):
            owner = os.lstat(os.path.join(parent, entry)).st_uid
            if owner not in trusted:
                raise OptionError(
                    f"{name} {folder}: {entry!r} in it belongs to another user of this machine "
                    f"(uid {owner}): find out its origin, then move it away"
                )
    if status.st_uid == trusted[0]:
        if stat.S_IMODE(status.st_mode) & 0o077:
            folder.chmod(0o700)
    elif status.st_mode & stat.S_IWOTH:
        raise OptionError(
            f"{name} {folder}: every user of this machine may write to it. Give a folder of your "
            "own, for example one inside it"
        )


def no_link(path: str, flags: int) -> int:
    """An opener for `open(…, opener=no_link)` that does not follow a link of another user."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. To open a pipe could take for ever.

    Raises:
        FileNotFoundError: the path is missing, or a pipe, a device or a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def check_regular(path: Path, key: str) -> None:
    """Check that what exists at a path can be an object.

    Raises:
        OptionError: it is a folder, a pipe, a device or a broken link. No reader finds an object
            there, and no writer can put one.
    """
    if path.is_file() or not os.path.lexists(path):
        return
    raise OptionError(
        f"{path} is no file, so the object {key} cannot be stored: a folder, a pipe, a device or "
        "a broken link is in its place. Find out who made it, then move it away"
    )


def keys_after(root: Path, folder: str, start: str, limit: int, after: str) -> Iterator[str]:
    """The first keys after `after` in a folder whose names begin with `start`, in byte order.

    A folder sorts by its name with a "/", as its keys do. Python orders strings by code point,
    which is the byte order of their UTF-8.

    Args:
        root: the path of the store.
        folder: the prefix of the folder's keys: "", or it ends with "/".
        start: see above.
        limit: the number of keys. There may be a few more.
        after: see above.
    """
    waiting = _entries_after(root, folder, start, limit, after)[::-1]
    while waiting:
        key = waiting.pop()
        if key.endswith("/"):
            waiting += reversed(_entries_after(root, key, "", limit, after))
        else:
            yield key


def _entries_after(root: Path, prefix: str, start: str, limit: int, after: str) -> list[str]:
    """The keys and folders in one folder; see `keys_after`."""
    names: list[str] = []
    folders: list[str] = []

    def files() -> Iterator[str]:
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                if not entry.name.startswith(start) or (not prefix and entry.name == TEMPS):
                    continue
                key = prefix + entry.name
                if entry.is_dir():
                    # The folder of `after` itself may have later keys too.
                    if key + "/" <= after and not after.startswith(key + "/"):
                        continue
                    folders.append(entry.name + "/")
                elif key > after and entry.is_file():
                    yield entry.name

    # nsmallest instead of sorted: the folder of a long log has a million names.
    with suppress(FileNotFoundError, NotADirectoryError):
        names = nsmallest(limit, files())
    return [prefix + name for name in sorted(names + folders)]


@contextmanager
def errors(operation: str, key: str, url: str) -> Iterator[None]:
    """A context that translates the errors of the system to those of this library."""
    try:
        yield
    except UnicodeEncodeError:
        raise OptionError(
            f"{operation} of {key!a} at {url!a}: the locale of this process has no such characters "
            f"({sys.getfilesystemencoding()}); set LANG=C.UTF-8, or keep to ASCII"
        ) from None
    except OSError as error:
        if error.errno in _TEMPORARY:
            raise Transient(f"{error.strerror}") from None
        advice = _ADVICE.get(error.errno or 0, "{}; check the disk").format(error.strerror)
        message = f"{operation} of {key} at {url}: {advice}"
        if advice == _FULL:
            raise StoreUnavailableError(message) from None
        if error.errno in _ADVICE:
            raise OptionError(message) from None
        raise StoreUnavailableError(message, maybe_applied=operation == "put") from None
