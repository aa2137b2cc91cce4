"""Reads the transaction log of a Delta table as plain files: JSON commits and checkpoints."""

import io
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from sparkwal.errors import TableReadError
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION
from sparkwal.format.limits import json_in
from sparkwal.lifecycle.delta.history import DeltaChange, change, held
from sparkwal.lifecycle.table import Held, TableState
from sparkwal.protocol.clock import SYSTEM
from sparkwal.store.threads import run_in_thread

# Up to this number of new versions, read all of them; for more, select with the checkpoint.
_FEW = 20
# The number of commits that are read at the same time.
_AT_ONCE = 16
# The number of versions before the confirmed one that are searched for removed files.
_BEFORE = 64
# The clocks of a table's writers differ by less: S3 refuses requests from a clock that is 15
# minutes off.
_SKEW_MS = 30 * 60_000
# The time for which a checkpoint lists removed files, unless the table's properties change it.
_RETENTION_MS = 7 * 86_400_000
_RETENTION = "delta.deletedFileRetentionDuration"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)"
)
_REMOVED = ("remove.path", "remove.deletionTimestamp", "remove.deletionVector")
# The columns of a checkpoint to read. The existing files, column `add`, are many and not needed.
_COLUMNS = ("txn", "metaData", "sidecar.path", *_REMOVED)

# Read a checkpoint up to this size with one request.
_WHOLE_BYTES = 8 * 2**20
# Of files in `_delta_log` that no writer of a table makes.
_NO_TABLES_FILE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    *(OSError, pa.ArrowException),
)
# A file's path, its deletion vector, and when it was removed.
Removed = tuple[str, str, int]


class Files(Protocol):
    """The files of a table's `_delta_log`. The methods raise TableReadError if the store fails."""

    def sizes(self, start: int) -> Mapping[str, int]:
        """The sizes of the files of versions from `start` on, by name; perhaps other files too."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file, or a range of it.

        Raises:
            FileNotFoundError: the file does not exist.
        """


@dataclass(frozen=True)
class Commit:
    """One version of the table.

    Attributes:
        fingerprint: a hash of the commit's bytes.
        timestamp_ms: the commit's time, as its writer recorded it.
        change: the commit's own description.
        removed: the files that it removed.
        actions: its other actions: transactions and metadata.
    """

    fingerprint: int
    timestamp_ms: int
    change: DeltaChange
    removed: frozenset[Removed]
    actions: tuple[Mapping[str, Any], ...]


# For each table, the commits that this process has read. Many logs may share a table, and each of
# them needs the versions that the others added.
_shared: dict[str, dict[int, Commit]] = {}
_MOST_SHARED = 10_000


class DeltaLog:
    """The transaction log of one table, at the newest version of the last `update`.

    Attributes:
        files: the files of the log.
        version: that version; NO_TABLE_VERSION without a table. Then the following attributes do
            not exist.
        table_id: the table's id.
        spark_schema: its columns.
        partitioned: the columns that partition it.
        properties: its properties.
    """

    def __init__(self, files: Files, table: str) -> None:
        self.files = files
        self._table = table
        self._reset()

    def _reset(self) -> None:
        self.version = NO_TABLE_VERSION
        self.table_id = ""
        self.spark_schema = ""
        self.partitioned: tuple[str, ...] = ()
        self.properties: dict[str, str] = {}
        self._txns: dict[str, int] = {}
        self._commits: dict[int, Commit] = {}
        # The version of the checkpoint that was read, and its transactions.
        self._start = NO_TABLE_VERSION
        self._start_txns: dict[str, int] = {}
        # The removed files that the checkpoint lists, or None if its sidecars list them.
        self._removed: set[Removed] | None = set()

    @property
    def committed_ms(self) -> int:
        """The time of the version, as its writer recorded it. There must be a table."""
        return self._commits[self.version].timestamp_ms

    def update(self) -> bool:
        """Read the new versions, or all if the table was recreated: at rest 1 LIST and 1 GET.

        Returns:
            Whether the table exists.
        """
        with log_errors(self._table):
            is_known = self.version != NO_TABLE_VERSION and self._read_new_versions()
        if not is_known:
            self._reset()
            try:
                with log_errors(self._table):
                    self._load()
            except TableReadError:
                self._reset()
                raise
            except FileNotFoundError as error:
                self._reset()
                raise TableReadError(
                    f"the table {self._table} lost a file of its log while it was read: {error}"
                ) from error
        if self.version != NO_TABLE_VERSION:
            self._share()
        return self.version != NO_TABLE_VERSION

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """The snapshot of the last `update`, as `Snapshots.snapshot`."""
        if self.version == NO_TABLE_VERSION:
            return None
        if since is None:
            since = self.version
        versions = [*range(since + 1, self.version + 1)]
        with log_errors(self._table):
            if self._start_txns.get(log_id, 0) == k and self._start - since > _FEW:
                versions = self._versions_that_may_undo(since, versions)
            self._fetch(versions)
        commits = self._commits
        changes = tuple(commits[version].change for version in versions if version in commits)
        # Later calls need no older commits.
        oldest = min(since, self.version)
        self._commits = {n: commit for n, commit in commits.items() if n >= oldest}
        return TableState(
            table_id=self.table_id,
            version=self.version,
            k=self._txns.get(log_id, 0),
            changes=changes,
            complete=since <= self.version and len(changes) == len(versions),
            newer=max(self.version - since, 0),
        )

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        """What the version of the last `update` holds, as `WrittenTable.held`."""
        table = self.snapshot(log_id, since)
        if table is None:
            return None
        # `since` itself may be a RESTORE.
        versions = range(max(since, 0), self.version + 1)
        with log_errors(self._table):
            self._fetch(versions[:1])
        changes = [self._commits[n].change for n in versions if n in self._commits]
        return held(table, changes, log_id, since, k)

    def _versions_that_may_undo(self, since: int, versions: list[int]) -> list[int]:
        """Select the versions after `since` that may have removed rows.

        A restore or an overwrite removes files, and a checkpoint lists removed files with the times
        of their removals. A version of which the checkpoint lists no removed file removed no rows.

        Args:
            since: the confirmed version.
            versions: all versions after it. They are returned if the selection is not possible.
        """
        self._fetch([since])
        if since not in self._commits or self._removed is None or _RETENTION in self.properties:
            return versions
        confirmed_ms = self._commits[since].timestamp_ms
        if SYSTEM.now_ms() - confirmed_ms > _RETENTION_MS - _SKEW_MS:
            return versions
        earliest_ms = confirmed_ms - _SKEW_MS
        unexplained = {removed for removed in self._removed if removed[2] > earliest_ms}
        while unexplained:
            # §10: a file counts as removed by the version that its own commit shows
            first_removal_ms = min(removed[2] for removed in unexplained)
            version = self._first_version_at(first_removal_ms, max(since - _BEFORE, 0))
            while unexplained and version <= self._start:
                self._fetch([version])
                before = len(unexplained)
                if version in self._commits:
                    unexplained -= self._commits[version].removed
                version += 1
                if len(unexplained) < before:
                    break
            else:
                return versions
        fetched = {version for version in self._commits if version > since}
        return sorted(fetched | {*range(self._start + 1, self.version + 1)})

    def _first_version_at(self, time_ms: int, low: int) -> int:
        """The first version, from `low` on, with this time or a later one, by binary search."""

        def is_later(version: int) -> bool:
            self._fetch([version])
            commit = self._commits.get(version)
            return commit is not None and commit.timestamp_ms >= time_ms

        return low + bisect(range(low, self._start), False, key=is_later)

    def _fetch(self, versions: Iterable[int]) -> None:
        """Read the commits that were not read yet, newest first, up to the first missing one."""
        unread = sorted({*versions} - self._commits.keys(), reverse=True)
        for begin in range(0, len(unread), _AT_ONCE):
            some = unread[begin : begin + _AT_ONCE]
            reads = [run_in_thread(self._read, version) for version in some]
            bodies = [read.result() for read in reads]
            for version, body in zip(some, bodies, strict=True):
                if body is not None:
                    self._commits[version] = _parse_commit(version, body)
            if None in bodies:
                return

    def _read(self, version: int) -> bytes | None:
        try:
            return self.files.read(f"{version:020d}.json")
        except FileNotFoundError:
            return None

    def _read_new_versions(self) -> bool:
        """Read the versions after `version`. Return False if everything must be read again."""
        newest = max(_commit_versions(self.files.sizes(self.version)), default=NO_TABLE_VERSION)
        # A recreated table may have as many versions, so compare the commit.
        own = self._commits[self.version]
        if not (self._take_shared(own) or self._is_stored(self.version, own)):
            return False
        new_versions = range(self.version + 1, newest + 1)
        self._fetch(new_versions)
        return self._apply(new_versions)

    def _is_stored(self, version: int, commit: Commit) -> bool:
        body = self._read(version)
        return body is not None and hash(body) == commit.fingerprint

    def _take_shared(self, own: Commit) -> bool:
        """Take the newer commits that another log of this table has read.

        Returns:
            Whether the newest of them is stored: then those before it are too, up to `own`.
        """
        shared = _shared.get(self._table, {})
        newest = max(shared, default=NO_TABLE_VERSION)
        if newest <= self.version or shared.get(self.version) != own:
            return False
        if not self._is_stored(newest, shared[newest]):
            _shared.pop(self._table, None)
            return False
        self._commits |= {n: commit for n, commit in shared.items() if n > self.version}
        return True

    def _share(self) -> None:
        """Let other logs of this table use the commits that were read."""
        shared = _shared.get(self._table, {})
        newest = max(shared, default=NO_TABLE_VERSION)
        if shared.get(newest) != self._commits.get(newest):
            # These commits may be those of a former table.
            shared = {}
        shared = shared | self._commits
        oldest = max(shared, default=0) - _MOST_SHARED
        # Other threads may read the present dictionary.
        _shared[self._table] = {n: commit for n, commit in shared.items() if n > oldest}

    def _apply(self, versions: Iterable[int]) -> bool:
        """Apply the commits of these versions. Return False if one is missing."""
        for version in versions:
            if version not in self._commits:
                return False
            for action in self._commits[version].actions:
                self._apply_action(action)
            self.version = version
        return True

    def _apply_action(self, action: Mapping[str, Any]) -> None:
        if txn := action.get("txn"):
            self._txns[txn["appId"]] = txn["version"]
        if metadata := action.get("metaData"):
            self.table_id = str(metadata["id"])
            self.spark_schema = str(metadata["schemaString"])
            self.partitioned = tuple(metadata["partitionColumns"])
            self.properties = dict(metadata["configuration"])

    def _load(self) -> None:
        try:
            start = int(json_in(self.files.read("_last_checkpoint"))["version"])
        except (FileNotFoundError, ValueError, LookupError, TypeError, OverflowError):
            # It only saves a LIST of older names.
            start = 0
        sizes = self.files.sizes(start)
        if start and not newest_checkpoint(sizes):
            sizes = self.files.sizes(0)
        checkpoint = newest_checkpoint(sizes)
        versions = _commit_versions(sizes)
        if not versions and not checkpoint:
            return
        if checkpoint:
            self._start = int(checkpoint[0][:20])
            for action in actions(self.files, checkpoint, sizes):
                if "sidecar" in action:
                    self._removed = None
                elif "remove" in action and self._removed is not None:
                    self._removed.add(_removed(action["remove"]))
                self._apply_action(action)
            self._start_txns = dict(self._txns)
        self.version = newest = max([*versions, self._start])
        # Read the newest commit too, for its fingerprint.
        self._fetch(range(min(self._start + 1, newest), newest + 1))
        if newest not in self._commits or not self._apply(range(self._start + 1, newest + 1)):
            raise TableReadError(f"the table {self._table} lacks versions before {newest}")
        if not self.table_id:
            raise TableReadError(f"the log of the table {self._table} does not name its schema")


@contextmanager
def log_errors(table: str) -> Iterator[None]:
    """Turns what a file that is no table's leads to into a TableReadError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except _NO_TABLES_FILE as error:
        raise TableReadError(
            f"the log of the table {table} is damaged: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error


def checkpoint_version(name: str) -> int | None:
    """The version of the checkpoint of which this is a file, or None for another file."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def _commit_versions(names: Iterable[str]) -> list[int]:
    return [int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))]


def _parse_commit(version: int, body: bytes) -> Commit:
    lines = [json_in(line) for line in body.splitlines() if line.strip()]
    info = next((line["commitInfo"] for line in lines if "commitInfo" in line), None)
    return Commit(
        fingerprint=hash(body),
        timestamp_ms=int((info or {}).get("timestamp", 0)),
        change=change(version, info),
        removed=frozenset(_removed(line["remove"]) for line in lines if "remove" in line),
        actions=tuple(line for line in lines if not line.keys().isdisjoint(("txn", "metaData"))),
    )


def _removed(action: Mapping[str, Any]) -> Removed:
    vector = action.get("deletionVector") or {}
    name = f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}{vector.get('offset')}"
    # A removal without a time may have happened at any time.
    return action["path"], name, action.get("deletionTimestamp") or 2**63


def newest_checkpoint(names: Iterable[str]) -> list[str]:
    """The files of the newest complete checkpoint."""
    checkpoints: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        if match := _CHECKPOINT.fullmatch(name):
            # A file is a checkpoint by itself, or one of the parts of its checkpoint.
            checkpoints.setdefault((match[1], match[2] or name), []).append(name)
    complete = [
        files
        for (_, parts), files in checkpoints.items()
        if not parts.isdecimal() or len(files) == int(parts)
    ]
    return max(complete, default=[])


def actions(
    files: Files,
    names: Sequence[str],
    sizes: Mapping[str, int],
    columns: Sequence[str] = _COLUMNS,
) -> Iterator[Mapping[str, Any]]:
    """The actions of a checkpoint. Without `columns` it leaves out those of the existing files."""
    import pyarrow.parquet as pq

    for name in names:
        if name.endswith(".json"):
            yield from map(json_in, files.read(name).splitlines())
            continue
        file: io.IOBase = _Ranges(files, name, sizes[name])
        if sizes[name] <= _WHOLE_BYTES:
            file = io.BytesIO(files.read(name))
        rows = pq.ParquetFile(file, pre_buffer=True).read(columns=[*columns])
        for kind in rows.column_names:
            column = rows.column(kind)
            yield from ({kind: value} for value in column.filter(column.is_valid()).to_pylist())


class _Ranges(io.RawIOBase):
    """A file that is read by ranges."""

    def __init__(self, files: Files, name: str, size: int) -> None:
        self._files = files
        self._name = name
        self._size = size
        self._at = 0

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
