"""Replaces a checkpoint folder atomically: a crash leaves the old folder, the new one or none."""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkwal.checkpoints.names import foreign
from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store.local_files import no_link, sync

# The suffixes of folders that a rebuild leaves if its process dies.
_LEFTOVER = re.compile(r"\.new-[0-9a-f]{32}(-old)?")


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Lock a folder against other rebuilds on this machine, and remove what dead rebuilds left."""
    import fcntl

    target.parent.mkdir(parents=True, exist_ok=True)
    lock_file = target.with_name(f".{target.name}.sparkwal-lock")
    while True:
        with open(lock_file, "a", opener=no_link) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The process that held the lock has deleted the file, so others now lock a new file of
            # that name.
            if not _is_at(lock.fileno(), lock_file):
                continue
            try:
                for name in os.listdir(target.parent):
                    # Match the exact suffix: another program may own a similar name.
                    if name.startswith(target.name) and _LEFTOVER.fullmatch(
                        name[len(target.name) :]
                    ):
                        _remove(target.parent / name)
                yield
            finally:
                lock_file.unlink(missing_ok=True)
            return


def _is_at(descriptor: int, file: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), file.stat())
    return False


def replace(
    target: Path,
    files: Mapping[str, bytes],
    write_more: Callable[[Path], Iterable[Path]] = lambda _: (),
) -> None:
    """Replace the folder by one with these files.

    A crash leaves the old folder, the new one or none, never a part of one.

    Args:
        target: the folder.
        files: the content of files, by name.
        write_more: writes further files into the new folder, and returns them.

    Raises:
        OptionError: the folder holds a file that is not part of a checkpoint.
    """
    if target.exists() and (name := foreign(target)) is not None:
        raise OptionError(
            f"{target} must be rebuilt from the log, but {name!r} in it is not part of a "
            "checkpoint. sparkwal removed nothing: move it elsewhere, or choose another folder"
        )
    draft = target.with_name(f"{target.name}.new-{uuid.uuid4().hex}")
    try:
        # Other users of this machine must not see which files a query read.
        draft.mkdir(mode=0o700, parents=True)
        for name, data in files.items():
            file = draft / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            sync(file)
        for file in write_more(draft):
            sync(file)
        # Move the folder at once: Spark would take a part of its files for all of them.
        if target.exists():
            os.rename(target, f"{draft}-old")
        # SAFETY(replace-by-rename) §12: a rename replaces a folder: the old one, none or the new
        os.rename(draft, target)
        sync(target.parent)
    except (OSError, SparkWalError):
        _remove(draft)
        raise
    _remove(draft.with_name(f"{draft.name}-old"))


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Replace one of sparkwal's notes in a folder. A crash leaves the old one or the new one.

    Raises:
        OSError: the disk refused a write.
    """
    draft = folder / f".{name}.{os.getpid()}.tmp"
    draft.write_bytes(data)
    os.replace(draft, folder / name)


def _remove(path: Path) -> None:
    """Remove a folder with all of its files, unless one of them is not part of a checkpoint."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir() and foreign(path) is None:
        shutil.rmtree(path, ignore_errors=True)
