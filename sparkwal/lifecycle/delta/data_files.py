"""The data files of one version of a Delta table, and their rows, each file read by itself.

delta-rs reads whole tables only. So a file is read as a table of its own: a folder with a copy of
the file, and a transaction log with the protocol and the schema of the version and the one action
that adds the file. delta-rs applies all that belongs to the file: its deletion vector, the mapping
of columns, the partition's values, the columns that it lacks, and the types of the schema. So a
table whose types were widened is read file by file: as a whole delta-rs refuses it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from sparkwal.errors import OptionError, TableReadError, install_extra, require_library
from sparkwal.format.limits import json_in
from sparkwal.lifecycle.delta.files import OtherFiles, StoreFiles, table_errors
from sparkwal.lifecycle.delta.fitting import log_schema
from sparkwal.lifecycle.delta.transaction_log import (
    Files,
    actions,
    checkpoint_version,
    log_errors,
    newest_checkpoint,
)
from sparkwal.lifecycle.table import TableFile, VersionFiles

_Files: TypeAlias = StoreFiles | OtherFiles
_COLUMNS = (
    *("protocol", "metaData", "sidecar.path"),
    *("add.path", "add.partitionValues", "add.size", "add.deletionVector"),
    *("add.stats", "add.stats_parsed.numRecords"),
)
_MAPS = ("partitionValues", "configuration", "options")
# The feature of a table whose types may be widened, by its present name and its former one.
_WIDENS = {"typeWidening", "typeWidening-preview"}
# A file of data is copied in parts of this size.
_PART = 16 * 2**20
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
# The Z85 text of the random id in the name of a deletion vector's file, at its end.
_ID_LENGTH = 20
# The name of the one file of a table.
_PART_FILE = "part.parquet"


def files_of(files: _Files, table: str, version: int) -> VersionFiles:
    """List the data files of a version that delta-rs reads. See `ReadTable.files_at`."""
    listed = listed_files(files, table, version)
    _check_readable(table, listed.head)
    return listed


def listed_files(files: Files, table: str, version: int) -> VersionFiles:
    """List the data files of a version.

    Raises:
        TableReadError: the version is gone, or its log is damaged.
        OptionError: a file belongs to another table.
    """
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    adds: dict[tuple[str, str], Mapping[str, Any]] = {}
    with log_errors(table):
        for action in _actions(files, table, version):
            if "protocol" in action:
                protocol = action["protocol"]
            elif "metaData" in action:
                metadata = action["metaData"]
            elif "add" in action:
                adds[_identity(action["add"])] = action["add"]
            elif "remove" in action:
                adds.pop(_identity(action["remove"]), None)
        listed = [_file(adds[identity], table) for identity in sorted(adds)]
    if protocol is None or metadata is None:
        raise _gone(table, version, "its log does not name its schema")
    head = json.dumps([{"protocol": _without_widening(protocol)}, {"metaData": _plain(metadata)}])
    return VersionFiles(
        table_id=str(metadata["id"]),
        spark_schema=log_schema(str(metadata["schemaString"])),
        head=head,
        files=tuple(listed),
    )


def added(file: TableFile) -> dict[str, Any]:
    """The values of the action that adds a data file."""
    add: dict[str, Any] = json.loads(file.text)
    return add | {"modificationTime": 0, "dataChange": True}


def rows_of(
    files: _Files, table: str, head: str, file: TableFile, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a data file. See `ReadTable.rows_of`."""
    add = added(file)
    with TemporaryDirectory(prefix="sparkwal-") as name:
        folder = Path(name)
        try:
            _copy(files, unquote(add["path"]), folder / _PART_FILE, 0, file.bytes)
            _copy_vector(files, add.get("deletionVector"), folder)
        except FileNotFoundError as error:
            raise TableReadError(
                f"a data file of the table {table} that this read needs is gone: {error}. A VACUUM "
                "deleted it. Read again, with a new checkpoint or cursor if there is one, and set "
                "delta.deletedFileRetentionDuration of the table to more time than the read of "
                "the table takes"
            ) from None
        yield from _scan(table, folder, head, {"add": add | {"path": _PART_FILE}}, columns)


def _actions(files: Files, table: str, version: int) -> Iterator[Mapping[str, Any]]:
    """The actions of the newest checkpoint that is not after a version, and those since."""
    sizes = files.sizes(0)
    before = {
        name for name in sizes if (n := checkpoint_version(name)) is not None and n <= version
    }
    checkpoint = newest_checkpoint(before)
    start = -1
    if checkpoint:
        start = int(checkpoint[0][:20])
        for action in actions(files, checkpoint, sizes, _COLUMNS):
            if (sidecar := action.get("sidecar")) is not None:
                name = f"_sidecars/{sidecar['path'].rpartition('/')[2]}"
                size = {name: len(files.read(name))}
                yield from actions(files, [name], size, _COLUMNS)
            else:
                yield action
    for number in range(start + 1, version + 1):
        try:
            body = files.read(f"{number:020d}.json")
        except FileNotFoundError:
            raise _gone(table, version, f"its log has no version {number}") from None
        yield from (json_in(line) for line in body.splitlines() if line.strip())


def _gone(table: str, version: int, why: str) -> TableReadError:
    return TableReadError(
        f"version {version} of the table {table} is gone: {why}. Begin again with a new checkpoint "
        "or cursor, and set delta.logRetentionDuration of the table to more time than the read of "
        "the table takes"
    )


def _identity(action: Mapping[str, Any]) -> tuple[str, str]:
    """What tells the file of an action from others: its path, and its deletion vector."""
    vector = action.get("deletionVector") or {}
    name = f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}"
    return action["path"], name if vector else ""


def has_widening(features: Iterable[str]) -> bool:
    """Whether these features of a table let its types become wider."""
    return not _WIDENS.isdisjoint(features)


def _without_widening(protocol: Mapping[str, Any]) -> Any:
    """The protocol of a table that has one file: delta-rs casts the file to the schema's types."""
    return {
        name: [feature for feature in part if feature not in _WIDENS]
        if isinstance(part, list)
        else part
        for name, part in _plain(protocol).items()
    }


def _plain(value: Any, name: str = "") -> Any:
    """A value of a checkpoint as the JSON of a commit has it: maps as objects, and no nulls."""
    if isinstance(value, Mapping):
        return {key: _plain(inner, key) for key, inner in value.items() if inner is not None}
    if name in _MAPS and isinstance(value, list):
        return dict(value)
    return value


def _file(add: Mapping[str, Any], table: str) -> TableFile:
    path = str(add["path"])
    vector = add.get("deletionVector") or {}
    if "://" in path or path.startswith("/") or vector.get("storageType") == "p":
        raise OptionError(
            f"the table {table} is a shallow clone: its file {path} belongs to another table. Read "
            "table and log with read_current, or begin with startingPosition=earliest"
        )
    stats = json_in(str(add.get("stats") or "{}").encode())
    rows = (stats or add.get("stats_parsed") or {}).get("numRecords")
    wanted = ("path", "partitionValues", "size", "deletionVector")
    # A null in the values of the partition counts, so it stays.
    own = {name: add[name] for name in wanted if add.get(name) is not None}
    own["partitionValues"] = dict(own.get("partitionValues", {}))
    return TableFile(
        name=path,
        bytes=int(add["size"]),
        rows=None if rows is None else int(rows) - int(vector.get("cardinality") or 0),
        text=json.dumps(own),
    )


def _copy(files: _Files, name: str, to: Path, start: int, end: int) -> None:
    """Copy the bytes start … end−1 of a file to the same place in another."""
    with open(to, "wb") as copy:
        copy.seek(start)
        for offset in range(start, end, _PART):
            copy.write(files.read_data(name, offset, min(_PART, end - offset)))


def _copy_vector(files: _Files, vector: Mapping[str, Any] | None, folder: Path) -> None:
    """Copy the deletion vector of a file, if it is a file."""
    if not vector or vector["storageType"] != "u":
        return
    text = vector["pathOrInlineDv"]
    name = f"deletion_vector_{uuid.UUID(bytes=_from_z85(text[-_ID_LENGTH:]))}.bin"
    prefix = text[:-_ID_LENGTH]
    name = f"{prefix}/{name}" if prefix else name
    to = folder / name
    to.parent.mkdir(parents=True, exist_ok=True)
    # The vector has its length before it, and its CRC after it.
    begin = int(vector.get("offset") or 0)
    _copy(files, name, to, begin, begin + int(vector["sizeInBytes"]) + 8)
    with open(to, "r+b") as copy:
        copy.write(files.read_data(name, 0, 1))


def _from_z85(text: str) -> bytes:
    parts = (text[at : at + 5] for at in range(0, len(text), 5))
    numbers = (sum(_ALPHABET.index(c) * 85 ** (4 - n) for n, c in enumerate(x)) for x in parts)
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def _check_readable(table: str, head: str) -> None:
    """Check that delta-rs reads tables of this protocol and schema.

    Raises:
        TableReadError: it does not.
    """
    with TemporaryDirectory(prefix="sparkwal-") as name:
        for _ in _scan(table, Path(name), head, None, None):
            pass


def _scan(
    table: str,
    folder: Path,
    head: str,
    add: Mapping[str, Any] | None,
    columns: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:
    """Read the table in a folder, after its log was made of these actions."""
    require_library("deltalake", install_extra("lake"))
    from deltalake import DeltaTable

    log = folder / "_delta_log"
    log.mkdir()
    lines = [*json.loads(head), *([add] if add is not None else [])]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    with table_errors(table):
        own = DeltaTable(folder)
        names = None if columns is None else [*columns]
        yield from pa.RecordBatchReader.from_stream(own.scan(columns=names))
