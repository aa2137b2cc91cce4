"""The journal's folder of a simulated process.

Each call that changes a file asks the world first. So other processes may run before it, and a
machine may crash at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparkwal.journal.storage import Bytes, Reader
from tests.journal.disk import SECTOR, MemoryFolder, MemoryWriter
from tests.simulation.machine import Ask
from tests.simulation.world import Call

# Does a call, or a part of a write: 0 … 1.
Act = Callable[[float], Any]


class WorldFolder:
    """Implements `sparkwal.journal.storage.Folder`.

    Attributes:
        memory: the files.
    """

    def __init__(self, ask: Ask, memory: MemoryFolder) -> None:
        self._ask, self.memory = ask, memory
        self.path = memory.path

    def act(self, what: str, name: str, act: Act) -> Any:
        self._ask(Call("disk", (what, name, act)))
        return act(1.0)

    def names(self) -> list[str]:
        return self.memory.names()

    def create(self, name: str) -> WorldWriter:
        return WorldWriter(self, name, self.act("create", name, lambda _: self.memory.create(name)))

    def open(self, name: str) -> WorldWriter:
        return WorldWriter(self, name, self.memory.open(name))

    def read(self, name: str) -> Reader:
        return self.memory.read(name)

    def rename(self, old: str, new: str) -> None:
        self.memory.read(old)  # or it raises at once
        self.act("rename", new, lambda _: self.memory.rename(old, new))

    def remove(self, name: str) -> None:
        self.memory.read(name)
        self.act("remove", name, lambda _: self.memory.remove(name))

    def sync(self) -> None:
        self.act("sync_folder", "", lambda _: self.memory.sync())

    def close(self) -> None:
        self.memory.close()


class WorldWriter:
    """See `sparkwal.journal.storage.Writer`."""

    def __init__(self, folder: WorldFolder, name: str, writer: MemoryWriter) -> None:
        self._folder = folder
        self._name = name
        self._writer = writer

    @property
    def size(self) -> int:
        return self._writer.size

    def append(self, parts: Sequence[Bytes]) -> int:
        body = b"".join(parts)
        act = self._folder.act
        return int(act("write", self._name, lambda part: self._writer.append([_cut(body, part)])))

    def write_at(self, offset: int, data: Bytes) -> None:
        body = bytes(data)
        self._folder.act(
            "write", self._name, lambda part: self._writer.write_at(offset, _cut(body, part))
        )

    def truncate(self, size: int) -> None:
        self._folder.act("truncate", self._name, lambda _: self._writer.truncate(size))

    def sync(self) -> None:
        self._folder.act("sync", self._name, lambda _: self._writer.sync())

    def close(self) -> None:
        self._writer.close()


def _cut(body: bytes, part: float) -> bytes:
    # A process dies before or after a write as small as this.
    if len(body) <= SECTOR:
        part = round(part)
    return body[: round(len(body) * part)]
