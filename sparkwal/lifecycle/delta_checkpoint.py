"""The files of a Delta table's log, and what its checkpoints hold."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
# Not the files that are there, which are many.
_COLUMNS = (
    "txn", "metaData", "domainMetadata", "sidecar.path",
    "remove.path", "remove.deletionTimestamp", "remove.deletionVector",
)  # fmt: skip

# A checkpoint up to this size is one request.
_WHOLE_BYTES = 8 * 2**20


class Files(Protocol):
    """The files of a table's `_delta_log`. Raises TableReadError where its store fails."""

    def sizes(self, start: int) -> Mapping[str, int]:
        """By name those of the versions from `start` on, and perhaps others."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """A file, or so many bytes of it. Raises FileNotFoundError."""


def newest_checkpoint(names: Iterable[str]) -> list[str]:
    """The files of the newest one that is whole."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        if found := _NAME.fullmatch(name):
            # Each by itself, or all those of so many parts.
            parts = found[2] or name
            kinds.setdefault((found[1], parts), []).append(name)
    whole = [
        files for (_, parts), files in kinds.items()
        if not parts.isdecimal() or len(files) == int(parts)
    ]  # fmt: skip
    return max(whole, default=[])


def actions(
    files: Files, names: Sequence[str], sizes: Mapping[str, int]
) -> Iterator[Mapping[str, Any]]:
    """What a checkpoint says besides the files that are there."""
    import pyarrow.parquet as pq

    for name in names:
        if name.endswith(".json"):
            yield from map(json.loads, files.read(name).splitlines())
            continue
        file: io.IOBase = _Ranges(files, name, sizes[name])
        if sizes[name] <= _WHOLE_BYTES:
            file = io.BytesIO(files.read(name))
        rows = pq.ParquetFile(file, pre_buffer=True).read(columns=_COLUMNS)
        for kind in rows.column_names:
            column = rows.column(kind)
            yield from ({kind: value} for value in column.filter(column.is_valid()).to_pylist())


class _Ranges(io.RawIOBase):
    def __init__(self, files: Files, name: str, size: int) -> None:
        self._files, self._name, self._size, self._at = files, name, size, 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        buffer[:length] = self._files.read(self._name, self._at, length)
        self._at += length
        return length
