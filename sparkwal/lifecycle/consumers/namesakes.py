"""Coordinates readers of one machine with the same consumer name in one log, or in all of a path.

Both sides of a self-join are such readers. Each reader writes its positions to a file and locks the
file. The kernel releases the lock when the process ends.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from sparkwal.errors import OptionError
from sparkwal.format.checked import Whole
from sparkwal.format.header import crc_hex
from sparkwal.protocol.hint import short_hash

# Positions by log_id. Create the decoder at import: threads that create decoders at the same time
# crash.
_POSITIONS = msgspec.json.Decoder(dict[str, Whole])
# A file that is read while its reader writes it may be torn, and is read again.
_TRIES = 10


@dataclass(frozen=True)
class Namesake:
    """One reader's file, which is locked while this object exists."""

    folder: Path
    run_id: str
    file: BinaryIO

    def move(self, positions: Mapping[str, int]) -> None:
        """Write the reader's positions, by log_id, for the others."""
        text = msgspec.json.encode(positions)
        # The CRC-32 finds a torn write.
        body = crc_hex(text) + b" " + text
        os.pwrite(self.file.fileno(), body, 0)
        os.ftruncate(self.file.fileno(), len(body))

    def others(self) -> dict[str, Mapping[str, int]]:
        """The positions of the other running readers by log_id, and those by run id. Remove the
        files of ended ones.

        Raises:
            OptionError: a file is unreadable.
        """
        positions: dict[str, Mapping[str, int]] = {}
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(".") or path.name == self.run_id:
                continue
            try:
                with open(path, "rb") as file:
                    if _is_locked(file):
                        positions[path.name] = _read(file, path)
                    else:
                        path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OptionError(f"cannot read {path}: {error.strerror or error}") from None
        return positions


def join_namesakes(
    state: Path | None, log: str, name: str, run_id: str, positions: Mapping[str, int]
) -> Namesake | None:
    """Create the file of a reader.

    Args:
        state: the folder for state of sparkwal on this machine, or None.
        log: the log's id, or another text that names all logs of a path.
        name: the consumer's name.
        run_id: the run of the stream.
        positions: the reader's positions by log_id.

    Returns:
        The file, or None if it cannot be created. Then this reader and the others treat each other
        as readers on different machines.
    """
    import fcntl

    if state is None:
        return None
    folder = state / "readers" / short_hash(f"{log}\0{name}")
    draft = folder / f".{run_id}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        namesake = Namesake(folder, run_id, os.fdopen(descriptor, "r+b"))
        fcntl.flock(namesake.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        namesake.move(positions)
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


def _read(file: BinaryIO, path: Path) -> Mapping[str, int]:
    descriptor = file.fileno()
    for _ in range(_TRIES):
        body = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        crc, _, text = body.partition(b" ")
        if crc == crc_hex(text):
            try:
                return _POSITIONS.decode(text)
            except (msgspec.DecodeError, msgspec.ValidationError):
                break
    raise OptionError(f"{path} is being written, or damaged")
