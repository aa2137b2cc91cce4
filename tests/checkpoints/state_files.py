"""The state files of Spark's providers, without Spark: written, loaded and cleaned as it does.

A state is a set of keys. Each file has a checksum, so a torn one is never taken for a whole one.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import uuid
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

Keys = frozenset[int]
# A snapshot is made after so many changes.
MIN_DELTAS = 2
_VERSION = re.compile(r"([0-9]+)(?:_([0-9a-f-]+))?\.(delta|changelog|snapshot|zip)")


class StateLost(Exception):
    """Spark cannot load a version of the state."""


class Version(NamedTuple):
    """A version of a store. The id is that of the attempt which wrote it, in format 2."""

    number: int
    unique_id: str = ""

    @property
    def stem(self) -> str:
        return f"{self.number}_{self.unique_id}" if self.unique_id else str(self.number)


class Provider(Protocol):
    """A state store provider. Version 0 of a store is empty and has no file."""

    has_ids: bool

    def load(self, folder: Path, version: Version) -> Keys: ...

    def commit(self, folder: Path, before: Version, new: Version, added: Keys) -> None: ...

    def snapshot(self, folder: Path, version: Version, keys: Keys) -> None: ...

    def clean(self, folder: Path, retain: int) -> None: ...


@dataclass(frozen=True)
class Hdfs:
    """`V.delta` and `V.snapshot`."""

    has_ids = False

    def load(self, folder: Path, version: Version) -> Keys:
        begin = _newest(folder, "snapshot", version.number)
        keys = unsealed(folder / f"{begin}.snapshot")[0] if begin else frozenset()
        for number in range(begin + 1, version.number + 1):
            keys |= unsealed(folder / f"{number}.delta")[0]
        return keys

    def commit(self, folder: Path, before: Version, new: Version, added: Keys) -> None:
        put(folder / f"{new.number}.delta", sealed(added))

    def snapshot(self, folder: Path, version: Version, keys: Keys) -> None:
        if version.number - _newest(folder, "snapshot", version.number) >= MIN_DELTAS:
            put(folder / f"{version.number}.snapshot", sealed(keys))

    def clean(self, folder: Path, retain: int) -> None:
        for name in _outdated(folder, "snapshot", retain):
            remove(folder / name)


@dataclass(frozen=True)
class Rocks:
    """`V.changelog`, `V.zip` and the tables in `SSTs/` that a zip names.

    Attributes:
        has_ids: a file's name has the id of its attempt, and beside each file is its checksum.
        has_changelog: without it each version is a zip.
    """

    has_ids: bool = False
    has_changelog: bool = True

    def load(self, folder: Path, version: Version) -> Keys:
        lineage = self._lineage(folder, version)
        begin = next((each for each in reversed(lineage) if _zip(folder, each).exists()), None)
        later = lineage if begin is None else lineage[lineage.index(begin) + 1 :]
        if begin is None and lineage and lineage[0].number != 1:
            raise StateLost(f"{folder}: no snapshot for {version.stem}")
        keys = frozenset[int]() if begin is None else self._in_zip(folder, begin)
        for each in later:
            keys |= self._read(folder / f"{each.stem}.changelog")[0]
        return keys

    def _lineage(self, folder: Path, version: Version) -> list[Version]:
        """The versions that may be needed to load this one, in order."""
        if version.number == 0:
            return []
        if not self.has_ids:
            begin = _newest(folder, "zip", version.number)
            return [Version(number) for number in range(max(begin, 1), version.number + 1)]
        if _zip(folder, version).exists():
            return [version]
        _, before = self._read(folder / f"{version.stem}.changelog")
        return [*before, version]

    def _read(self, file: Path) -> tuple[Keys, list[Version]]:
        self._check_sum(file)
        return unsealed(file)

    def _check_sum(self, file: Path) -> None:
        beside = file.with_name(f"{file.name}.crc")
        # Spark checks a file only if the checksum is there.
        if self.has_ids and beside.exists():
            try:
                expected = json.loads(beside.read_bytes())["value"]
            except (ValueError, KeyError):
                raise StateLost(f"{beside} is torn") from None
            if zlib.crc32(content(file)) != expected:
                raise StateLost(f"{file} is not that of its checksum")

    def _in_zip(self, folder: Path, version: Version) -> Keys:
        self._check_sum(_zip(folder, version))
        keys = frozenset[int]()
        for table, size in tables(_zip(folder, version)):
            file = folder / "SSTs" / table
            if len(content(file)) != size:
                raise StateLost(f"{file} has another size than {version.stem}.zip names")
            keys |= unsealed(file)[0]
        return keys

    def commit(self, folder: Path, before: Version, new: Version, added: Keys) -> None:
        if not self.has_changelog:
            self._put_zip(folder, new, self.load(folder, before) | added)
            return
        lineage = []
        if self.has_ids:
            lineage = self._lineage(folder, before)
            begins = [n for n, each in enumerate(lineage) if _zip(folder, each).exists()]
            lineage = lineage[begins[-1] if begins else 0 :]
        self._put(folder / f"{new.stem}.changelog", sealed(added, lineage))

    def snapshot(self, folder: Path, version: Version, keys: Keys) -> None:
        if version.number - _newest(folder, "zip", version.number) >= MIN_DELTAS:
            self._put_zip(folder, version, keys)

    def _put_zip(
        self, folder: Path, version: Version, keys: Keys, *, compact: bool = False
    ) -> None:
        """Write the tables that no earlier snapshot has, and then the zip."""
        earlier = _newest(folder, "zip", version.number - 1)
        known = [
            name for number, kind, name in _files(folder) if (number, kind) == (earlier, "zip")
        ]
        listed = [] if compact or not known else tables(folder / known[-1])
        there = [(table, size) for table, size in listed if (folder / "SSTs" / table).exists()]
        # RocksDB merges its tables now and then.
        if len(there) < len(listed) or len(listed) > 2:
            there = []
        found = frozenset[int]().union(*(unsealed(folder / "SSTs" / t)[0] for t, _ in there))
        if left := keys - found:
            table = f"{6 + version.number:06d}-{uuid.uuid4()}.sst"
            file = folder / "SSTs" / table
            put(file, sealed(left))
            there.append((table, file.stat().st_size))
        self._put(_zip(folder, version), _zipped(there, len(keys)))

    def begin_table(self, folder: Path, version: Version) -> None:
        """As an upload that is under way, or whose executor has died, leaves it."""
        file = folder / "SSTs" / f"{6 + version.number:06d}-{uuid.uuid4()}.sst"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")

    def _put(self, file: Path, data: bytes) -> None:
        if self.has_ids:
            put(
                file.with_name(f"{file.name}.crc"), json.dumps({"value": zlib.crc32(data)}).encode()
            )
        put(file, data)

    def clean(self, folder: Path, retain: int) -> None:
        outdated = _outdated(folder, "zip", retain)
        for name in outdated:
            remove(folder / name)
            remove(folder / f"{name}.crc")
        if not outdated:
            return
        zips = [folder / name for _, kind, name in _files(folder) if kind == "zip"]
        named = {table for file in zips for table, _ in tables(file)}
        for file in (folder / "SSTs").glob("*.sst"):
            if zips and file.name not in named:
                remove(file)


PROVIDERS: dict[str, Hdfs | Rocks] = {
    "hdfs": Hdfs(),
    "rocksdb": Rocks(),
    "rocksdb without a changelog": Rocks(has_changelog=False),
    "rocksdb with ids": Rocks(has_ids=True),
}


def tables(file: Path) -> list[tuple[str, int]]:
    """The tables that a snapshot names, with their sizes."""
    try:
        with zipfile.ZipFile(io.BytesIO(content(file))) as archive:
            fields = json.loads(archive.read("metadata").partition(b"\n")[2])
    except (zipfile.BadZipFile, ValueError, KeyError):
        raise StateLost(f"{file} is torn") from None
    return [(entry["dfsSstFileName"], entry["sizeBytes"]) for entry in fields["sstFiles"]]


def _zipped(listed: Iterable[tuple[str, int]], keys: int) -> bytes:
    entries = [
        {"localFileName": f"{name[:6]}.sst", "dfsSstFileName": name, "sizeBytes": size}
        for name, size in listed
    ]
    fields = {"sstFiles": entries, "logFiles": [], "numKeys": keys, "numInternalKeys": 0}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000012\n")
        archive.writestr("metadata", f"v1\n{json.dumps(fields, separators=(',', ':'))}")
    return target.getvalue()


def _zip(folder: Path, version: Version) -> Path:
    return folder / f"{version.stem}.zip"


def _outdated(folder: Path, kind: str, retain: int) -> list[str]:
    """The files of versions before the newest whole one that is not among the retained ones."""
    files = _files(folder)
    last = max((version for version, _, _ in files), default=0)
    begin = _newest(folder, kind, last - retain)
    return [name for version, _, name in files if version < begin]


def _newest(folder: Path, kind: str, until: int) -> int:
    """The newest version of this kind up to one; 0 without one."""
    found = (version for version, other, _ in _files(folder) if other == kind and version <= until)
    return max(found, default=0)


def _files(folder: Path) -> list[tuple[int, str, str]]:
    """(version, kind, name) of each file of a store."""
    names = os.listdir(folder) if folder.is_dir() else []
    matches = ((name, _VERSION.fullmatch(name)) for name in sorted(names))
    return [(int(match[1]), match[3], name) for name, match in matches if match]


def sealed(keys: Keys, lineage: Iterable[Version] = ()) -> bytes:
    """The content of a file. Two attempts write the same keys in another order."""
    order = random.sample(sorted(keys), len(keys))
    # A key of 24 bytes, as in a state of some size.
    text = json.dumps({"keys": [f"{key:024}" for key in order], "lineage": [*lineage]}).encode()
    return b"%08x" % zlib.crc32(text) + text


def unsealed(file: Path) -> tuple[Keys, list[Version]]:
    """The keys and the lineage in a file.

    Raises:
        StateLost: it is missing or torn.
    """
    data = content(file)
    if data[:8] != b"%08x" % zlib.crc32(data[8:]):
        raise StateLost(f"{file} is torn")
    fields = json.loads(data[8:])
    return frozenset(map(int, fields["keys"])), [Version(*each) for each in fields["lineage"]]


def content(file: Path) -> bytes:
    """The bytes of a file. Raises StateLost if it is missing."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise StateLost(f"{file} is missing") from None


def put(file: Path, data: bytes) -> None:
    """Write a file as Spark does: beside its place, renamed, with Hadoop's hidden checksum."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{uuid.uuid4()}.tmp")
    draft.write_bytes(data)
    os.replace(draft, file)
    file.with_name(f".{file.name}.crc").write_bytes(b"crc\0")


def remove(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
