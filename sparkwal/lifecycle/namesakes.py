"""Readers of one machine that have one consumer's name in one log, such as both sides of a join.

Each keeps a file with its position, and a lock on it that the kernel drops when its process ends.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sparkwal.errors import OptionError
from sparkwal.protocol.hint import short_hash

_POSITION = "%020d %020d"  # twice: a text that is only half written has two numbers


@dataclass(frozen=True)
class Namesake:
    """One reader's file. It is locked as long as this lives."""

    folder: Path
    run_id: str
    file: BinaryIO

    def move(self, position: int) -> None:
        """Tell the others how far this reader is."""
        os.pwrite(self.file.fileno(), (_POSITION % (position, position)).encode(), 0)

    def others(self) -> dict[str, int]:
        """{run_id: position} of the other readers that live. Removes the files of dead ones.

        Raises:
            OptionError: a file cannot be read.
        """
        found: dict[str, int] = {}
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(".") or path.name == self.run_id:
                continue
            try:
                with open(path, "rb") as file:
                    if _is_locked(file):
                        found[path.name] = _position(file.read(), path)
                    else:
                        path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OptionError(f"cannot read {path}: {error.strerror or error}") from None
        return found


def join_namesakes(
    state: Path | None, log_id: str, name: str, run_id: str, position: int
) -> Namesake | None:
    """Become visible to the readers of this name in this log. None where the machine has no place
    for the file: then each reader takes the others for readers of other machines."""
    import fcntl

    if state is None:
        return None
    folder = state / "readers" / short_hash(f"{log_id}\0{name}")
    draft = folder / f".{run_id}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        namesake = Namesake(folder, run_id, os.fdopen(descriptor, "r+b"))
        fcntl.flock(namesake.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        namesake.move(position)
        os.rename(draft, folder / run_id)
    except OSError:
        return None
    return namesake


def _is_locked(file: BinaryIO) -> bool:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _position(text: bytes, path: Path) -> int:
    numbers = set(text.split())
    if len(text) != len(_POSITION % (0, 0)) or len(numbers) != 1:
        raise OptionError(f"{path} is being written, or damaged")
    return int(numbers.pop())
