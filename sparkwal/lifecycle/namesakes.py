"""Coordinates readers of one machine with the same consumer name in one log.

Both sides of a self-join are such readers. Each reader writes its position to a file and locks the
file. The kernel releases the lock when the process ends.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sparkwal.errors import OptionError
from sparkwal.protocol.hint import short_hash

# The position twice, to detect a torn write by two different numbers.
_POSITION = "%020d %020d"


@dataclass(frozen=True)
class Namesake:
    """One reader's file, which is locked while this object exists."""

    folder: Path
    run_id: str
    file: BinaryIO

    def move(self, position: int) -> None:
        """Write the reader's position for the others."""
        os.pwrite(self.file.fileno(), (_POSITION % (position, position)).encode(), 0)

    def others(self) -> dict[str, int]:
        """The positions of the other running readers, by run id. Remove the files of ended ones.

        Raises:
            OptionError: a file is unreadable.
        """
        positions: dict[str, int] = {}
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(".") or path.name == self.run_id:
                continue
            try:
                with open(path, "rb") as file:
                    if _is_locked(file):
                        positions[path.name] = _position(file.read(), path)
                    else:
                        path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OptionError(f"cannot read {path}: {error.strerror or error}") from None
        return positions


def join_namesakes(
    state: Path | None, log_id: str, name: str, run_id: str, position: int
) -> Namesake | None:
    """Create the file of a reader.

    Args:
        state: the folder for state of sparkwal on this machine, or None.
        log_id: the log.
        name: the consumer's name.
        run_id: the run of the stream.
        position: the reader's position.

    Returns:
        The file, or None if it cannot be created. Then this reader and the others treat each other
        as readers on different machines.
    """
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
