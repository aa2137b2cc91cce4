"""The place of a stored log while it is made or tested, and its archive in this folder.

Records of a lifecycle and lists of files hold absolute paths. So each log is made and tested at one
place, and a lock lets one process at a time use it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

HERE = Path(__file__).parent
PLACE = Path("/tmp/sparkwal-stored")
LOG = PLACE / "log"
# The hints of a driver lie in its temporary folder, and the spans of its queries in its state.
TEMPORARY = PLACE / "tmp"
STATE = PLACE / "state"
HINTS = TEMPORARY / f"sparkwal-{os.getuid()}"
# The folder of the hints in an archive. Its name on a disk holds the user's number.
_PACKED_HINTS = "hints"
# A longer text is named by its length and CRC-32.
_LONG = 1_000


@contextmanager
def held() -> Iterator[None]:
    """Hold the place, empty at the beginning and removed at the end."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clear()
        PLACE.mkdir()
        try:
            yield
        finally:
            clear()


def clear() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)


def pack(archive: Path, folders: list[str]) -> None:
    """Store folders of the place, and the hints of this driver. Raises if the archive exists."""
    with tarfile.open(archive, "x:xz", preset=9) as packed:
        for name in folders:
            packed.add(PLACE / name, name, filter=_plain)
        if HINTS.is_dir():
            packed.add(HINTS, _PACKED_HINTS, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """A member of an archive without the machine's names."""
    if member.name.endswith("journal/reserve"):
        # It holds only room: 64 KiB of random bytes. The next opening makes it again.
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: Path) -> None:
    """Bring a stored log to the place, with all its files as old as they are."""
    with tarfile.open(archive) as packed:
        packed.extractall(PLACE, filter="data")
    hints = PLACE / _PACKED_HINTS
    TEMPORARY.mkdir()
    if hints.is_dir():
        hints.rename(HINTS)
        HINTS.chmod(0o700)


def age(folder: Path, days: float) -> None:
    """Make the files of a folder as old as this: a collection goes by the time of a file."""
    then = time.time() - days * 86_400
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (then, then))


def plain(value: Any) -> Any:
    """A value as it is in a stored JSON."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case str() if len(value) > _LONG:
            return f"{value[:1]} × {len(value)}, CRC-32 {crc32(value.encode())}"
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value
