"""A folder replaced as a whole: as it was, as it shall be, or gone, whenever the process dies."""

import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkwal.checkpoints.names import foreign
from sparkwal.errors import OptionError
from sparkwal.store.local_files import no_link, sync

_LEFT = re.compile(r"\.new-[0-9a-f]{32}(-old)?")  # of rebuilds that died


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """One rebuild of a folder at a time on this machine; nothing is left of those that died."""
    import fcntl

    place.parent.mkdir(parents=True, exist_ok=True)
    held = place.with_name(f".{place.name}.sparkwal-lock")
    while True:
        with open(held, "a", opener=no_link) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Who had it before has removed it: others lock another file of this name now.
            if not _is_at(lock.fileno(), held):
                continue
            try:
                for each in os.listdir(place.parent):
                    # Strictly: what was not made here is somebody's.
                    if each.startswith(place.name) and _LEFT.fullmatch(each[len(place.name) :]):
                        _remove(place.parent / each)
                yield
            finally:
                held.unlink(missing_ok=True)
            return


def _is_at(descriptor: int, file: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), file.stat())
    return False


def replace(place: Path, files: Mapping[str, bytes]) -> None:
    """The folder with these files, or the one before, or none: never a part of it. Raises
    OptionError where the folder holds something that is no checkpoint's."""
    if place.exists() and (name := foreign(place)) is not None:
        raise OptionError(
            f"{place} must be made anew from the log, but {name!r} in it is no part of a "
            "checkpoint. Nothing was removed: move it elsewhere, or give another folder"
        )
    draft = place.with_name(f"{place.name}.new-{uuid.uuid4().hex}")
    try:
        # What a query has read is nobody else's business on this machine.
        draft.mkdir(mode=0o700, parents=True)
        for name, data in files.items():
            file = draft / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            sync(file)
        # Not one file after another: Spark takes what is there for all there is.
        if place.exists():
            os.rename(place, f"{draft}-old")
        # SAFETY(replace-by-rename) §12: a rename replaces a folder: the old one, none or the new
        os.rename(draft, place)
        sync(place.parent)
    except OSError:
        _remove(draft)
        raise
    _remove(draft.with_name(f"{draft.name}-old"))


def _remove(path: Path) -> None:
    """Whole, or not at all where it holds something that is no checkpoint's."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir() and foreign(path) is None:
        shutil.rmtree(path, ignore_errors=True)
