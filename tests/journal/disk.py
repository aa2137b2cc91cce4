"""A journal's folder in memory, which can crash, tear, reorder, fill and fail as a disk does."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkwal.journal.storage import QUARANTINE, Bytes

# The unit of a disk's write.
SECTOR = 512


class Crash(BaseException):
    """The machine lost its power: every later call raises."""


@dataclass
class _File:
    """Its bytes now, those that are safe, and what was written since the last sync.

    After a failed sync memory has bytes that no later sync takes to the disk, as with Linux.

    Attributes:
        pending: (offset, bytes), or (size, None) for a cut.
    """

    now: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def after_crash(self, rng: random.Random) -> _File:
        """Any part of what was not synced reached the disk, in any order, each sector or not."""
        data = bytearray(self.safe)
        for offset, body in self.pending:
            if body is None:
                if rng.random() < 0.5:
                    del data[offset:]
                continue
            for begin in range(offset - offset % SECTOR, offset + len(body), SECTOR):
                if rng.random() < 0.5:
                    continue
                low, high = max(begin, offset), min(begin + SECTOR, offset + len(body))
                # torn within, as by a disk that promises less
                if low < high and rng.random() < 0.1:
                    high = rng.randrange(low, high)
                data.extend(bytes(max(0, high - len(data))))
                data[low:high] = body[low - offset : high - offset]
        return _File(bytearray(data), bytes(data))

    def sync(self) -> None:
        data = bytearray(self.safe)
        for offset, body in self.pending:
            if body is None:
                del data[offset:]
            else:
                data.extend(bytes(max(0, offset - len(data))))
                data[offset : offset + len(body)] = body
        self.safe = bytes(data)
        self.pending.clear()

    def killed(self) -> _File:
        """As after the death of the process: the machine's memory has everything."""
        return _File(bytearray(self.now), self.safe, list(self.pending))


class MemoryFolder:
    """See `sparkwal.journal.storage.Folder`.

    Attributes:
        calls: how many calls changed something, or synced it.
        crash_at: the call, counted so, that is the machine's last; it is not done, or half.
        room: bytes that its files may have together.
        faults: name of a call → errnos of its next ones; 0 lets one pass.
    """

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.safe_names: dict[str, _File] = {}
        # (former name, new name, file) since the last sync
        self.changes: list[tuple[str | None, str | None, _File]] = []
        self.calls = 0
        self.crash_at: int | None = None
        self.room: int | None = None
        self.faults: dict[str, list[int]] = {}
        self.path = "memory"
        self.closed = False

    # Views after a crash.

    def after_crash(self, rng: random.Random) -> MemoryFolder:
        """The files after the machine starts again."""
        left = MemoryFolder()
        files = {id(each): each.after_crash(rng) for each in self._everything()}
        # Each change of a name is made or not. Most file systems keep their order and lose the
        # last ones; the others lose any.
        names = dict(self.safe_names)
        kept = rng.randint(0, len(self.changes)) if rng.random() < 0.5 else None
        for count, change in enumerate(self.changes):
            if count < kept if kept is not None else rng.random() < 0.5:
                _change(names, *change)
        left.files = {name: files[id(each)] for name, each in names.items()}
        left.safe_names = dict(left.files)
        return left

    def after_kill(self) -> MemoryFolder:
        """The files that the next process finds after this one died; the machine keeps running."""
        left = MemoryFolder()
        files = {id(each): each.killed() for each in self._everything()}
        left.files = {name: files[id(each)] for name, each in self.files.items()}
        left.safe_names = {name: files[id(each)] for name, each in self.safe_names.items()}
        left.changes = [(old, new, files[id(each)]) for old, new, each in self.changes]
        return left

    def _everything(self) -> list[_File]:
        changed = [each for _, _, each in self.changes]
        return [*self.files.values(), *self.safe_names.values(), *changed]

    # Views for tests.

    def bytes_of(self, name: str) -> bytes:
        return bytes(self.files[name].now)

    def put(self, name: str, data: bytes) -> None:
        """A file as somebody else left it."""
        self.files[name] = self.safe_names[name] = _File(bytearray(data), data)

    def act(self, what: str) -> None:
        if self.crash_at is not None and self.calls >= self.crash_at:
            raise Crash
        self.calls += 1
        wrong = self.faults.get(what)
        if wrong and (code := wrong.pop(0)):
            raise OSError(code, os.strerror(code))

    def used(self) -> int:
        return sum(len(each.now) for each in self.files.values())

    # Folder.

    def names(self) -> list[str]:
        return sorted(self.files, key=lambda name: (name.startswith(QUARANTINE), name))

    def create(self, name: str) -> MemoryWriter:
        self.act("create")
        if name in self.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._do(None, name, _File())
        return MemoryWriter(self, self.files[name])

    def open(self, name: str) -> MemoryWriter:
        return MemoryWriter(self, self._there(name))

    def read(self, name: str) -> MemoryReader:
        return MemoryReader(self._there(name))

    def rename(self, old: str, new: str) -> None:
        self._there(old)
        self.act("rename")
        self._do(old, new, self.files[old])

    def remove(self, name: str) -> None:
        self._there(name)
        self.act("remove")
        self._do(name, None, self.files[name])

    def _do(self, old: str | None, new: str | None, file: _File) -> None:
        self.changes.append((old, new, file))
        _change(self.files, old, new, file)

    def sync(self) -> None:
        self.act("sync_folder")
        self.safe_names = dict(self.files)
        self.changes.clear()

    def close(self) -> None:
        self.closed = True

    def _there(self, name: str) -> _File:
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self.files[name]


def _change(names: dict[str, _File], old: str | None, new: str | None, file: _File) -> None:
    if old is not None:
        names.pop(old, None)
    if new is not None:
        names[new] = file


class MemoryWriter:
    """See `sparkwal.journal.storage.Writer`."""

    def __init__(self, folder: MemoryFolder, file: _File) -> None:
        self._folder, self._file = folder, file
        self.size = len(file.now)

    def append(self, parts: Sequence[Bytes]) -> int:
        begin = self.size
        body = b"".join(parts)
        self._write(begin, body)
        self.size = begin + len(body)
        return begin

    def write_at(self, offset: int, data: Bytes) -> None:
        self._write(offset, bytes(data))

    def _write(self, offset: int, body: bytes) -> None:
        folder = self._folder
        if folder.crash_at is not None and folder.calls == folder.crash_at:
            self._store(offset, body)  # half of it may be there
        folder.act("write")
        if folder.room is not None:
            grows = max(0, offset + len(body) - len(self._file.now))
            free = max(0, folder.room - folder.used())
            if grows > free:
                self._store(offset, body[: len(body) - grows + free])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._store(offset, body)

    def _store(self, offset: int, body: bytes) -> None:
        now = self._file.now
        now.extend(bytes(max(0, offset - len(now))))
        now[offset : offset + len(body)] = body
        self._file.pending.append((offset, body))

    def truncate(self, size: int) -> None:
        self._folder.act("truncate")
        del self._file.now[size:]
        self._file.pending.append((size, None))
        self.size = size

    def sync(self) -> None:
        try:
            self._folder.act("sync")
        except OSError:
            self._file.pending.clear()  # they count as written, and are not
            raise
        self._file.sync()

    def close(self) -> None: ...


class MemoryReader:
    """See `sparkwal.journal.storage.Reader`."""

    def __init__(self, file: _File) -> None:
        self._file = file

    @property
    def size(self) -> int:
        return len(self._file.now)

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._file.now[offset : offset + size])

    def close(self) -> None: ...
