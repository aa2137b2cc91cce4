"""The state of a stateful query: which files of it a record carries, and how they come back.

state/0/3/7.delta           what microbatch 6 changed in partition 3 of operator 0
state/0/3/7.snapshot        all of that partition before microbatch 7
state/0/3/7.changelog, 7.zip, SSTs/…   the same, as RocksDB writes it
state/0/3/left-…/7.delta    an operator may have several stores
state/0/_metadata/…         the operator; it has no versions, so each record carries it

Version N of a store is its content before microbatch N. It is final once `commits/N−1` is there, so
the record of N carries the state up to version N (PROTOCOL §12).
"""

import json
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.checkpoints import names
from sparkwal.checkpoints.replacing import replace_file
from sparkwal.errors import InvalidLogError
from sparkwal.format import limits
from sparkwal.format.header import HERE, Copy, QueryState
from sparkwal.format.limits import json_in

# A copy of the whole state begins when the changes since the last one have as many bytes, and at
# least SMALL. So records carry about twice what changes.
SMALL = 256 * 2**10
# Or when a rebuild would read so many records, or so many runs of them, and the changes have this
# part of the bytes. With four times as many, it begins in any case.
MOST_RECORDS, MOST_RUNS = 4096, 256
LIGHT = 8
# A record carries so many bytes of a copy, or this part of it, and never more than MOST. A whole
# state is in one record up to WHOLE: its writer holds four times the bytes in memory.
PART = 2**20
PARTS = 32
MOST = 32 * 2**20
WHOLE = 128 * 2**20
_CHANGES, _WHOLE = ("delta", "changelog"), ("snapshot", "zip")
_FILE = re.compile(names.STATE_FILE)
_PARTITIONS = re.compile(rb'"numPartitions"\s*:\s*([0-9]{1,6})')
_LIMIT = b'"operatorName":"globalLimit"'
_NUMBER = re.compile("[0-9]{1,9}")
_TRIES = 5
# With so many records the next one carries the whole state: no reader would take many more.
_TOO_MANY = limits.STATE_RECORDS // 2
# What a record carries of a state.
Part = bytes | bytearray


class IncompleteState(Exception):
    """A file of the state is not in the folder."""


class Piece(NamedTuple):
    """A part of a file: `length` bytes at `offset` of the `size` bytes of the file.

    `copy` is the copy of the whole state that it belongs to, or 0 for a change.
    """

    name: str
    offset: int
    length: int
    size: int
    copy: int


class Collected(NamedTuple):
    """What a record carries of the state.

    Attributes:
        state: its `records` are those before this one.
        part: the part for this record.
        metadata: the names of the files without versions, for the block.
    """

    state: QueryState
    part: bytes
    metadata: list[str]


class _File(NamedTuple):
    version: int
    unique_id: str
    kind: str
    name: str


@dataclass(frozen=True)
class _Store:
    """One store of one partition: its folder, relative to the checkpoint, and its files."""

    name: str
    files: tuple[_File, ...]

    def of(self, version: int, kinds: Sequence[str], ids: frozenset[str]) -> list[str]:
        """The files of a version, by name, with their checksums.

        If Spark names the attempts whose files count, those of others are left out.
        """
        matching = [
            file.name
            for file in self.files
            if file.version == version
            and file.kind in kinds
            and (not file.unique_id or not ids or file.unique_id in ids)
        ]
        if all(name.endswith(".crc") for name in matching):
            return []
        return [f"{self.name}/{name}" for name in matching]

    @property
    def is_linked(self) -> bool:
        """Whether a file of changes names the snapshot after which it is to be read."""
        return any(file.unique_id for file in self.files)


@dataclass(frozen=True)
class _Logged:
    """What the log holds of a folder's state, after the record with this part.

    Attributes:
        version: the version.
        crc32: the CRC-32 of the part, by which the record is found again.
        shared: the snapshots and tables that its records carry, which later versions may need.
        later: those of them that the records from the begin of the copy on carry.
    """

    version: int
    crc32: int
    shared: frozenset[str]
    later: frozenset[str] = frozenset()

    def of(self, state: QueryState) -> bool:
        return (self.version, self.crc32) == (state.version, state.crc32)


@dataclass(frozen=True)
class _Note:
    """What a folder notes about its state: what the log holds of it, and the copy on its way.

    Attributes:
        logged: after the last record, and after the one that was sent then.
        files: (name, size) of the files of the copy, which are linked in a folder of their own.
        text: the list of the files as the note has it, or "" without a copy.
    """

    logged: tuple[_Logged, ...] = ()
    files: tuple[tuple[str, int], ...] = ()
    text: str = ""

    @cached_property
    def name(self) -> int:
        """The name of the copy, or 0 without one."""
        return _name_of(self.text.encode()) if self.text else 0

    @property
    def links(self) -> str:
        """The folder with the files of the copy."""
        return f"{names.STATE_LINKS}/{self.name}"


def _read_note(path: Path) -> _Note:
    try:
        fields = json_in((path / names.STATE_NOTE).read_bytes())
        logged = tuple(
            _Logged(int(version), int(crc), frozenset(shared), frozenset(later))
            for version, crc, shared, later in fields["logged"]
        )
        text = str(fields["copy"])
        files = json_in(text.encode())["files"] if text else ()
        return _Note(logged, tuple((str(name), int(size)) for name, size in files), text)
    except (OSError, ValueError, TypeError, LookupError):
        return _Note()


def _write_note(path: Path, note: _Note) -> None:
    logged = [[h.version, h.crc32, sorted(h.shared), sorted(h.later)] for h in note.logged]
    text = json.dumps({"logged": logged, "copy": note.text})
    replace_file(path, names.STATE_NOTE, text.encode())


def continues(path: Path, state: QueryState) -> bool:
    """Whether a folder has the state that the query's last record and those before it carry.

    Another machine may have run the same microbatch: its files have other names and bytes.
    """
    return any(logged.of(state) for logged in _read_note(path).logged)


def collect(path: Path, version: int, last: QueryState | None) -> Collected:
    """Collect what the record of microbatch N carries of the state, and note it in the folder.

    Args:
        path: the checkpoint folder.
        version: N.
        last: the state in the query's last record, or None.

    Raises:
        IncompleteState: the folder lacks a part of the state.
        OSError: a file cannot be read, or the note cannot be written.
    """
    for attempt in range(_TRIES):
        try:
            stores, metadata = _scan(path)
            state, part = _collected(path, stores, version, last)
            return Collected(state, part, metadata)
        except FileNotFoundError:
            # Spark deletes old versions in the background, so list the files again.
            if attempt == _TRIES - 1:
                raise
    raise AssertionError


def _collected(
    path: Path, stores: Sequence[_Store], version: int, last: QueryState | None
) -> tuple[QueryState, bytes]:
    note = _read_note(path)
    logged = next((logged for logged in note.logged if last is not None and logged.of(last)), None)
    changes = None
    # SAFETY(state-of-this-folder) §12: a record continues only the state that this folder sent
    if last is not None and logged is not None and last.version <= version:
        versions = range(last.version + 1, version + 1)
        changes = _changes(path, stores, versions, logged.shared)
        if changes is not None and sum(_sizes(path, changes).values()) > limits.STATE // 2:
            # No reader would take so many bytes from one record.
            changes = None
    # SAFETY(state-without-gap) §12: a record without all changes since the last carries the whole
    if last is None or logged is None or changes is None or len(last.positions) > _TOO_MANY:
        sizes = _sizes(path, _whole(path, stores, version))
        return _with_whole(path, version, sizes, (logged,) if logged else ())
    pieces = list(_pieces(path, changes))
    size = sum(piece.length for piece in pieces)
    copy = last.copy
    if copy is None or note.name != copy.list_crc32:
        copy = None
        logged = replace(logged, later=frozenset())
        if _is_due(last, size):
            sizes = _sizes(path, _whole(path, stores, version))
            if sum(sizes.values()) <= PART:
                return _with_whole(path, version, sizes, (logged,))
            note = _begin(path, sizes)
            copy = Copy(HERE, note.name, 0, 0)
    else:
        copy = replace(copy, since=copy.since + size)
    shared = frozenset(filter(_is_shared, changes))
    state = replace(last, version=version, since=last.since + size, copy=copy)
    after = replace(logged, shared=logged.shared | shared, later=logged.later | shared)
    if copy is None:
        return _sent(path, _Note((logged,)), state, after, pieces)
    total = sum(size for _, size in note.files)
    # Without a copy before it, nothing is rebuilt until this one is complete.
    most = min(max(PART, -(-total // PARTS)), MOST) if last.base else MOST
    part = list(_next_part(note.files, copy, most))
    copy = replace(copy, done=copy.done + sum(piece.length for piece in part))
    state = replace(state, copy=copy)
    # SAFETY(state-copy-whole) §12: a copy replaces the records before it with its last part
    if copy.done == total:
        state = replace(
            state,
            records=_from(last, copy.begin),
            base=copy.list_crc32,
            base_bytes=total,
            since=copy.since,
            copy=None,
        )
        shared = frozenset(name for name, _ in note.files if _is_shared(name))
        after = replace(after, shared=shared | after.later)
    return _sent(path, replace(note, logged=(logged,)), state, after, pieces + part)


def _with_whole(
    path: Path, version: int, sizes: Mapping[str, int], before: tuple[_Logged, ...]
) -> tuple[QueryState, bytes]:
    """A record that carries the whole state by itself, or begins a copy of a large one."""
    total = sum(sizes.values())
    shared = frozenset(filter(_is_shared, sizes))
    if total > WHOLE:
        # Until the copy is complete, nothing is rebuilt from these records: `base` names no copy.
        note = replace(_begin(path, sizes), logged=before)
        copy = Copy(HERE, note.name, 0, 0)
        part = list(_next_part(note.files, copy, MOST))
        copy = replace(copy, done=sum(piece.length for piece in part))
        state = QueryState(version, 0, 0, (), 0, 0, 0, copy)
        # The next records carry the rest of these: as changes they would be carried twice.
        return _sent(path, note, state, _Logged(version, 0, shared), part)
    base = _name_of(uuid.uuid4().bytes)
    pieces = [Piece(name, 0, size, size, base) for name, size in sizes.items()]
    state = QueryState(version, 0, 0, (), base, total, 0)
    return _sent(path, _Note(before), state, _Logged(version, 0, shared), pieces)


def _sent(
    path: Path, note: _Note, state: QueryState, after: _Logged, pieces: Sequence[Piece]
) -> tuple[QueryState, bytes]:
    """Encode the part of a record, and note what the log holds once it is durable."""
    links = {name: f"{note.links}/{at}" for at, (name, _) in enumerate(note.files)}
    files = (links.get(piece.name, piece.name) if piece.copy else piece.name for piece in pieces)
    part = encode(
        pieces, [_content(path / file, piece) for piece, file in zip(pieces, files, strict=True)]
    )
    crc = crc32(part)
    after = replace(after, version=state.version, crc32=crc)
    _write_note(path, replace(note, logged=(*note.logged, after)))
    _remove_other_links(path, note)
    return replace(state, bytes=len(part), crc32=crc), part


def _content(file: Path, piece: Piece) -> bytes:
    """Read a piece.

    Raises:
        FileNotFoundError: the file is another one than the one that was listed.
    """
    with open(file, "rb") as stream:
        if os.fstat(stream.fileno()).st_size == piece.size:
            stream.seek(piece.offset)
            content = stream.read(piece.length)
            if len(content) == piece.length:
                return content
    raise FileNotFoundError(piece.name)


def _name_of(text: bytes) -> int:
    """The name of a copy, which is never 0."""
    return crc32(text) or 1


def _is_shared(name: str) -> bool:
    match = _FILE.fullmatch(name.rpartition("/")[2])
    return match is None or match[3] in _WHOLE


def _is_due(last: QueryState, size: int) -> bool:
    """Whether a copy of the whole state is to begin."""
    since = last.since + size
    long = max(len(last.positions) / MOST_RECORDS, len(last.records) / MOST_RUNS)
    is_heavy = since >= max(last.base_bytes, SMALL)
    return is_heavy or (long >= 1 and since * LIGHT >= last.base_bytes) or long >= 4


def _begin(path: Path, sizes: Mapping[str, int]) -> _Note:
    """Begin a copy: link its files, of which the next records carry one part each.

    Spark deletes old versions meanwhile, and may write a file anew.
    """
    listed = sorted(sizes.items())
    # Two machines may list the same names and sizes for other bytes.
    note = _Note((), tuple(listed), json.dumps({"id": uuid.uuid4().hex, "files": listed}))
    links = path / note.links
    links.mkdir(mode=0o700, parents=True)
    for number, (name, _) in enumerate(listed):
        try:
            os.link(path / name, links / str(number))
        except FileNotFoundError:
            raise
        except OSError:
            # Not each file system has links.
            shutil.copyfile(path / name, links / str(number))
    return note


def _remove_other_links(path: Path, note: _Note) -> None:
    """Remove the files of copies that the note does not name."""
    top = path / names.STATE_LINKS
    for name in os.listdir(top) if top.exists() else ():
        if name != str(note.name):
            shutil.rmtree(top / name, ignore_errors=True)


def _next_part(listed: Sequence[tuple[str, int]], copy: Copy, most: int) -> Iterator[Piece]:
    """The pieces of a copy after those that records carry already, at most `most` bytes."""
    total = sum(size for _, size in listed)
    begin, end = copy.done, copy.done + most
    at = 0
    for name, size in listed:
        first, last = max(begin - at, 0), min(end - at, size)
        # An empty file is a piece of its own, also after all others.
        is_next = begin <= at < end or at == total == end
        if first < last or (size == 0 and is_next):
            yield Piece(name, first, last - first, size, copy.list_crc32)
        at += size


def _from(state: QueryState, begin: int) -> tuple[tuple[int, int], ...]:
    """The records of a state from a position on."""
    if begin == HERE:
        return ()
    return tuple((max(first, begin), last) for first, last in state.records if last >= begin)


def _pieces(path: Path, files: Iterable[str]) -> Iterator[Piece]:
    for name, size in _sizes(path, files).items():
        yield Piece(name, 0, size, size, 0)


def _sizes(path: Path, files: Iterable[str]) -> dict[str, int]:
    return {name: (path / name).stat().st_size for name in files}


def _is_torn(file: Path) -> bool:
    """Whether a loss of power emptied a file: blocks that did not reach the disk are zero.

    No file of the state begins with four zeros.
    """
    with open(file, "rb") as stream:
        return stream.read(4) in (b"", bytes(4))


def _is_whole(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size and (size == 0 or not _is_torn(file))
    except FileNotFoundError:
        return False


def _changes(
    path: Path, stores: Sequence[_Store], versions: range, shared: Collection[str]
) -> list[str] | None:
    """The files of these versions that the log does not have as `shared`, or None if one is
    missing."""
    ids = _ids_in(path)
    files: dict[str, None] = {}
    for store in stores:
        for version in versions:
            of_version = store.of(version, _CHANGES, ids(version))
            if not of_version:
                # RocksDB without a changelog writes the whole store, in files that versions share.
                of_version = _with_tables(path, store, version, ids(version))
            if not of_version:
                return None
            files |= dict.fromkeys(of_version)
        newest = _newest_whole(path, store, versions.stop - 1, ids, shared)
        # SAFETY(state-with-snapshot) §12: changes that need a snapshot are carried with it
        if store.is_linked or any(map(_has_families, (path / name for name in newest))):
            files |= dict.fromkeys(newest)
    return [name for name in files if name not in shared]


def _newest_whole(
    path: Path,
    store: _Store,
    version: int,
    ids: Callable[[int], frozenset[str]],
    shared: Collection[str],
) -> list[str]:
    """The files of the newest snapshot up to a version, or none if the log has it."""
    versions = {file.version for file in store.files if file.kind in _WHOLE}
    for number in sorted((v for v in versions if v <= version), reverse=True):
        snapshot = store.of(number, _WHOLE, ids(number))
        if snapshot and all(name in shared for name in snapshot):
            return []
        if snapshot := _with_tables(path, store, number, ids(number)):
            return snapshot
    return []


def _whole(path: Path, stores: Sequence[_Store], version: int) -> list[str]:
    """The files from which Spark loads a version of all stores.

    Raises:
        IncompleteState: one is missing.
    """
    ids = _ids_in(path)
    files: list[str] = []
    for store in stores:
        later: list[str] = []
        for number in range(version, 0, -1):
            if of_version := _with_tables(path, store, number, ids(number)):
                files += [*of_version, *later]
                break
            of_version = store.of(number, _CHANGES, ids(number))
            if not of_version:
                raise IncompleteState(f"{store.name} lacks version {number}")
            later += of_version
        else:
            files += later
    return files


def _with_tables(path: Path, store: _Store, version: int, ids: frozenset[str]) -> list[str]:
    """The files of a whole version of a store: of RocksDB the tables too that it names."""
    snapshot = store.of(version, _WHOLE, ids)
    tables: dict[str, None] = {}
    for name in snapshot:
        if name.endswith(".zip"):
            for table, size in _tables(path / name):
                tables[f"{store.name}/{table}"] = None
                if not _is_whole(path / store.name / table, size):
                    return []
    return [*tables, *snapshot]


def _has_families(file: Path) -> bool:
    """Whether a snapshot of RocksDB names column families: its changes have only their numbers."""
    return file.suffix == ".zip" and bool(_described(file).get("columnFamilyMapping"))


def _described(snapshot: Path) -> dict[str, Any]:
    """The metadata in a snapshot of RocksDB."""
    try:
        with zipfile.ZipFile(snapshot) as archive, archive.open("metadata") as metadata:
            # The record may be forged, and unpack to more than the memory.
            text = metadata.read(limits.LIFECYCLE_RECORD)
        return dict(json_in(text.partition(b"\n")[2]))
    except (zipfile.BadZipFile, ValueError, LookupError, TypeError, NotImplementedError):
        raise IncompleteState(f"{snapshot} is no snapshot of RocksDB") from None


def _tables(snapshot: Path) -> list[tuple[str, int]]:
    """The tables that a snapshot of RocksDB names, with their sizes."""
    fields = _described(snapshot)
    try:
        tables = [(f"SSTs/{f['dfsSstFileName']}", f["sizeBytes"]) for f in fields["sstFiles"]]
        logs = [(f"logs/{f['dfsLogFileName']}", f["sizeBytes"]) for f in fields.get("logFiles", ())]
        return tables + logs
    except (LookupError, TypeError):
        raise IncompleteState(f"{snapshot} is no snapshot of RocksDB") from None


def _ids_in(path: Path) -> Callable[[int], frozenset[str]]:
    """Returns the ids of the attempts that wrote a version. Without one, Spark names none."""

    @cache
    def ids(version: int) -> frozenset[str]:
        try:
            commit = json_in((path / f"{names.COMMITS}/{version - 1}").read_bytes().splitlines()[1])
            operators = commit["stateUniqueIds"].values()
            return frozenset(one for parts in operators for part in parts for one in part)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return frozenset()

    return ids


def _scan(path: Path) -> tuple[list[_Store], list[str]]:
    """All stores, and the files without versions.

    Raises:
        IncompleteState: a partition of an operator has no folder here.
    """
    stores: list[_Store] = []
    metadata: list[str] = []
    for operator in _numbers(path / names.STATE):
        top = f"{names.STATE}/{operator}"
        described = [*_below(path, f"{top}/_metadata"), *_below(path, f"{top}/_stateSchema")]
        metadata += described
        texts = [(path / name).read_bytes() for name in described]
        counts = [int(count) for text in texts for count in _PARTITIONS.findall(text)]
        # Spark runs a limit in one partition, and describes it with as many as all others.
        if any(_LIMIT in text for text in texts):
            counts = [1]
        by_partition: dict[int, dict[str, _Store]] = {}
        for partition in range(max(counts, default=0)) if counts else _numbers(path / top):
            name = f"{top}/{partition}"
            by_partition[partition] = {}
            with suppress(FileNotFoundError):
                by_partition[partition] = _stores(path, name, metadata)
        kinds = {kind for of_partition in by_partition.values() for kind in of_partition}
        for partition, of_partition in by_partition.items():
            if not of_partition or of_partition.keys() < kinds:
                raise IncompleteState(f"{top}/{partition} is missing")
            stores += of_partition.values()
    return stores, metadata


def _stores(path: Path, folder: str, metadata: list[str]) -> dict[str, _Store]:
    """The stores of one partition, by the name of their folder in it."""
    files: list[_File] = []
    stores: dict[str, _Store] = {}
    for entry in sorted(os.scandir(path / folder), key=lambda entry: entry.name):
        match = _FILE.fullmatch(entry.name)
        if match is not None:
            files.append(_File(int(match[1]), match[2] or "", match[3], entry.name))
        elif entry.name.startswith("_"):
            metadata += _below(path, f"{folder}/{entry.name}")
        elif entry.name not in names.STATE_TABLES and entry.is_dir():
            for store in _stores(path, f"{folder}/{entry.name}", metadata).values():
                stores[entry.name] = store
    if files:
        stores[""] = _Store(folder, tuple(files))
    return stores


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(folder) if _NUMBER.fullmatch(name))
    except FileNotFoundError:
        return []


def _below(path: Path, folder: str) -> list[str]:
    """The files below a folder, by name. Hidden ones are checksums, or being written."""
    return [
        (Path(parent) / name).relative_to(path).as_posix()
        for parent, _, files in os.walk(path / folder)
        for name in sorted(files)
        if not name.startswith(".")
    ]


def unreadable(path: Path, version: int) -> str | None:
    """What Spark lacks to load a version of the state, or a torn file of any version, or None.

    Spark syncs no file. It does not write a snapshot again that is there.
    """
    if version < 0 or not (path / names.STATE).is_dir():
        return None
    try:
        stores, metadata = _scan(path)
        files = [f"{store.name}/{file.name}" for store in stores for file in store.files]
        if (torn := next((f for f in metadata + files if _is_torn(path / f)), None)) is not None:
            return torn
        for store in stores:
            _check_tables(path, store, version)
        _whole(path, stores, version)
    except IncompleteState as missing:
        return str(missing)
    return None


def _check_tables(path: Path, store: _Store, version: int) -> None:
    """Check the tables of the newest snapshot up to a version, and of later ones.

    Raises:
        IncompleteState: one is missing. Spark takes no older snapshot then.
    """
    zips = {file.version: file.name for file in store.files if file.name.endswith(".zip")}
    newest = max((number for number in zips if number <= version), default=0)
    for number, name in zips.items():
        tables = _tables(path / store.name / name) if number >= newest else ()
        for table, size in tables:
            if not _is_whole(path / store.name / table, size):
                raise IncompleteState(f"{store.name}/{table} of {name} is missing")


def moved(name: str, data: bytes, folder: Path) -> bytes:
    """A file without versions, as Spark would write it in this folder.

    Spark names the files with the schemas of an operator by their paths, and reads them. Anybody
    may have written the record, so it gets no other path.

    Raises:
        InvalidLogError: the file names another path.
    """
    version, _, text = data.partition(b"\n")
    if "/_metadata/" not in name or b"stateSchemaFilePaths" not in text:
        return data
    try:
        fields = json_in(text)
        for store in fields["stateStoreInfo"]:
            if (paths := store.get("stateSchemaFilePaths")) is not None:
                store["stateSchemaFilePaths"] = [_schema_in(folder, path) for path in paths]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InvalidLogError(
            f"{name!r} in the checkpoint names a schema that is not in it: find out who wrote its "
            "record"
        ) from None
    return version + b"\n" + json.dumps(fields, separators=(",", ":")).encode()


def _schema_in(folder: Path, path: str) -> str:
    """The path of a file with a schema, in another folder."""
    name = f"{names.STATE}/" + path.rpartition(f"/{names.STATE}/")[2]
    if not names.is_carried(name):
        raise ValueError(name)
    return f"file:{folder}/{name}"


def encode(pieces: Sequence[Piece], contents: Iterable[bytes]) -> bytes:
    """Encode the part of a record: the bytes of the index in 4 bytes, the index, the contents.

    The index is a JSON list of pieces, compressed. Spark has compressed the contents.
    """
    index = bytes(pa.compress(json.dumps(pieces).encode(), codec="zstd", asbytes=True))
    return b"".join([len(index).to_bytes(4, "little"), index, *contents])


def decode(part: Part, label: str) -> list[tuple[Piece, memoryview]]:
    """Decode what `encode` made. The contents are not copied.

    Raises:
        InvalidLogError: `encode` did not make it; the text names it as `label`.
    """
    try:
        begin = 4 + int.from_bytes(part[:4], "little")
        text = bytes(limits.inflate(bytes(part[4:begin]), limits.CHECKPOINT))
        limits.check_values(text)
        pieces = [_piece(fields) for fields in json_in(text)]
        if begin + sum(piece.length for piece in pieces) != len(part):
            raise ValueError("its index names other bytes")
    except (ValueError, TypeError) as error:
        raise InvalidLogError(f"{label}: the state in it cannot be decoded: {error}") from None
    view = memoryview(part)
    decoded: list[tuple[Piece, memoryview]] = []
    for piece in pieces:
        decoded.append((piece, view[begin : begin + piece.length]))
        begin += piece.length
    return decoded


def _piece(fields: object) -> Piece:
    match fields:
        case [str(name), int(offset), int(length), int(size), int(copy)]:
            piece = Piece(name, offset, length, size, copy)
            # The name becomes a path on the machine that rebuilds.
            if names.is_of_state(name) and 0 <= offset <= offset + length <= size:
                return piece
    raise ValueError(f"{str(fields)[:80]} is no part of a file of the state")


def write(folder: Path, state: QueryState, parts: Iterable[tuple[str, Part]]) -> list[Path]:
    """Write the state into a new folder.

    Args:
        folder: the folder.
        state: the state in the query's last record.
        parts: the parts that its records carry, in order, each with the name of its record.

    Returns:
        The files.

    Raises:
        InvalidLogError: a part is none, or the parts lack a file.
    """
    written: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for label, part in parts:
        for piece, content in decode(part, label):
            # SAFETY(state-of-its-base) §12: a rebuild mixes no two copies of the state
            if piece.copy not in (0, state.base):
                continue
            name = piece.name
            if piece.offset != (written.get(name, 0) if piece.offset else 0):
                raise InvalidLogError(f"{label}: the records of the state lack a part of {name!r}")
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file, "r+b" if piece.offset else "wb") as stream:
                stream.seek(piece.offset)
                stream.write(content)
            written[name] = piece.offset + piece.length
            sizes[name] = piece.size
    if lacking := next((name for name, size in sizes.items() if written[name] != size), None):
        raise InvalidLogError(f"the records of the state lack a part of {lacking!r}")
    # Before the first microbatch no store has a file.
    if state.version and (lacking := unreadable(folder, state.version)) is not None:
        raise InvalidLogError(f"the records of the state lack a part of it: {lacking}")
    shared = frozenset(filter(_is_shared, sizes))
    _write_note(folder, _Note((_Logged(state.version, state.crc32, shared),)))
    return [folder / name for name in (*sizes, names.STATE_NOTE)]
