"""Checkpoint folders of the simulated world as real ones, for code that reads and replaces them."""

from __future__ import annotations

import atexit
import itertools
import shutil
import sys
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from sparkwal.checkpoints.replacing import replace as replace_folder
from tests.simulation.world import Folder

_SHM = Path("/dev/shm")
_names = itertools.count()


@lru_cache(maxsize=1)
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="sparkwal-", dir=_SHM if _SHM.is_dir() else None))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def real(content: Folder | None) -> Path:
    """A folder that holds this, only to be read; one that is not there for None."""
    path = _root() / str(next(_names))
    if content is not None:
        _write(path, content)
    return path


def _write(path: Path, content: Folder) -> None:
    path.mkdir()
    for name, data in content:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _content(path: Path) -> Folder | None:
    if not path.is_dir():
        return None
    files = [file for file in path.rglob("*") if file.is_file()]
    return tuple(sorted((str(file.relative_to(path)), file.read_bytes()) for file in files))


@cache
def replacing(
    before: Folder | None, after: tuple[tuple[str, bytes], ...]
) -> tuple[Folder | None, ...]:
    """The contents of the folder while the library replaces it, in order. A crash can leave
    each."""
    place = _root() / f"{next(_names)}-place"
    if before is not None:
        _write(place, before)
    seen = [before]

    def look() -> None:
        now = _content(place)
        if now != seen[-1]:
            seen.append(now)

    with _Watching(look):
        replace_folder(place, dict(after))
    look()
    shutil.rmtree(place, ignore_errors=True)
    return tuple(seen[1:])


class _Watching:
    """Calls a function before each operation on files, as Python audits them."""

    active: Any = None
    hooked = False

    def __init__(self, look: Any) -> None:
        self._look = look

    def __enter__(self) -> None:
        if not _Watching.hooked:
            sys.addaudithook(_Watching.hook)  # cannot be taken away again
            _Watching.hooked = True
        _Watching.active = self._look

    def __exit__(self, *_: object) -> None:
        _Watching.active = None

    @staticmethod
    def hook(event: str, _: Any) -> None:
        look = _Watching.active
        if look is not None and (event in ("open", "shutil.rmtree") or event.startswith("os.")):
            _Watching.active = None  # looking opens files too
            try:
                look()
            finally:
                _Watching.active = look
