"""The files of a local store: their bytes, their names in order, what the system says of them."""

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
from urllib.parse import quote, unquote

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import Transient

# Unpublished files live here, never listed. Nothing ever reads what a killed writer leaves.
TEMPS = ".tmp"
_TEMP = re.compile(r"[0-9a-f]{32}\.(.+)")
_LONGEST = 255

_PASSING = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.ESTALE, errno.ENOENT)
# {} is what the system says.
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
    """A new name for an unpublished file; it holds the key, unless that is too long for it."""
    name = f"{uuid.uuid4().hex}.{quote(key, safe='')}"
    return name if len(name) <= _LONGEST else name[:32]


def key_of_temp(name: str) -> str | None:
    """The key that an unpublished file is for; None for a name that does not hold it."""
    match = _TEMP.fullmatch(name)
    return unquote(match[1]) if match else None


def write_at(descriptor: int, body: bytes, offset: int) -> None:
    """All of `body`: one call may write less than it was given."""
    view = memoryview(body)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync(path: Path) -> None:
    """Make what a file or a folder holds durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some filesystems do not know fsync of a folder; they order it themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def keep_private(folder: Path, what: str) -> None:
    """Close a folder of this user to the machine's other users, or refuse it.

    What another user could have put there would be taken for this user's own: rows of a journal, or
    offsets of a query. So the folder and all that is in it must belong to this user or to root.

    Args:
        folder: an existing folder; a link to one is accepted if this user made the link.
        what: names the folder in the message, for example "journal".

    Raises:
        OptionError: another user owns the folder or something in it, or everybody may write to it
            and this user may not change that.
        OSError: the folder cannot be read.
    """
    trusted = (os.geteuid(), 0)
    status = folder.stat()
    if status.st_uid not in trusted or folder.lstat().st_uid not in trusted:
        raise OptionError(
            f"{what} {folder} belongs to another user of this machine (uid {status.st_uid}), who "
            "could put anything into it: give a folder of your own"
        )
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entry = os.lstat(os.path.join(parent, name))
            if entry.st_uid not in trusted:
                raise OptionError(
                    f"{what} {folder}: {name!r} in it belongs to another user of this machine "
                    f"(uid {entry.st_uid}): see where it comes from, then move it away"
                )
    if status.st_uid == trusted[0]:
        if stat.S_IMODE(status.st_mode) & 0o077:
            folder.chmod(0o700)
    elif status.st_mode & stat.S_IWOTH:
        raise OptionError(
            f"{what} {folder}: every user of this machine may write to it. Give a folder of your "
            "own, for example one inside it"
        )


def no_link(path: str, flags: int) -> int:
    """Open a file for `open(…, opener=no_link)`: a link that somebody planted is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def keys_after(folder: Path, prefix: str, start: str, limit: int, after: str) -> Iterator[str]:
    """Up to `limit` (or a few more) keys greater than `after` below `folder` whose names begin with
    `start`. A folder sorts as its name with "/", as the keys in it do. Python orders strings by
    code point, which is the byte order of their UTF-8."""
    names: list[str] = []
    folders: list[str] = []

    def files() -> Iterator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(start) or (not prefix and entry.name == TEMPS):
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
            yield from keys_after(folder / name, prefix + name, "", limit, after)
        else:
            yield prefix + name


@contextmanager
def errors(operation: str, key: str, url: str) -> Iterator[None]:
    """What the system says, as this library's errors."""
    try:
        yield
    except UnicodeEncodeError:
        raise OptionError(
            f"{operation} of {key!a} at {url!a}: the locale of this process has no such characters "
            f"({sys.getfilesystemencoding()}); set LANG=C.UTF-8, or keep to ASCII"
        ) from None
    except OSError as error:
        if error.errno in _PASSING:
            raise Transient(f"{error.strerror}") from None
        advice = _ADVICE.get(error.errno or 0, "{}; check the disk").format(error.strerror)
        where = f"{operation} of {key} at {url}: {advice}"
        if advice == _FULL:
            raise StoreUnavailableError(where) from None
        if error.errno in _ADVICE:
            raise OptionError(where) from None
        raise StoreUnavailableError(where, maybe_applied=operation == "put") from None
