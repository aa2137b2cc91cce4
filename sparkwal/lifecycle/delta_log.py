"""What the transaction log of a Delta table holds, read as plain files: JSON and checkpoints."""

import io
import json
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from sparkwal.errors import TableReadError
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION
from sparkwal.lifecycle.table import Change, TableState
from sparkwal.protocol.clock import SYSTEM

# So many versions are read without asking which of them matter.
_FEW = 20
# Requests for commits at the same time.
_AT_ONCE = 16
# So many versions before the confirmed one are looked at for what was removed shortly before it.
_BEFORE = 64
# Two clocks of a table's writers differ by less: S3 refuses one that is 15 minutes off.
_SKEW_MS = 30 * 60_000
# For so long Delta keeps which files were removed, unless the table's settings say otherwise.
_KEPT_MS = 7 * 86_400_000
_RETENTION = "delta.deletedFileRetentionDuration"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)"
)
# Not the files that are there, which are many.
_REMOVED = ("remove.path", "remove.deletionTimestamp", "remove.deletionVector")
_COLUMNS = ("txn", "metaData", "sidecar.path", *_REMOVED)

# A checkpoint up to this size is one request.
_WHOLE_BYTES = 8 * 2**20
# A file's path, its deletion vector, and when it was removed.
Removed = tuple[str, str, int]


class Files(Protocol):
    """The files of a table's `_delta_log`. Raises TableReadError where its store fails."""

    def sizes(self, start: int) -> Mapping[str, int]:
        """By name those of the versions from `start` on, and perhaps others."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """A file, or so many bytes of it. Raises FileNotFoundError."""


@dataclass(frozen=True)
class Commit:
    """One version: a fingerprint of its bytes, when it was made, what it says of itself, the files
    that it removed, and what it changed besides files."""

    fingerprint: int
    timestamp_ms: int
    change: Change
    removed: frozenset[Removed]
    actions: tuple[Mapping[str, Any], ...]


class DeltaLog:
    """The transaction log of one table, at the version that was the newest at the last `update`;
    NO_TABLE_VERSION where there is no table, and so no `table_id`, `spark_schema`, `partitioned`
    and `properties`."""

    def __init__(self, files: Files, table: str) -> None:
        self._files, self._table = files, table
        self._forget()

    def _forget(self) -> None:
        self.version = NO_TABLE_VERSION
        self._txns: dict[str, int] = {}
        self._commits: dict[int, Commit] = {}
        # Of the checkpoint that was read: its version, its transactions, and the files that were
        # removed before it; None where it does not hold these itself.
        self._start = NO_TABLE_VERSION
        self._start_txns: dict[str, int] = {}
        self._removed: set[Removed] | None = set()

    def update(self) -> bool:
        """Read what came since the last time, and everything where the table is another: at rest 1
        LIST, 1 GET. Whether there is a table."""
        if self.version == NO_TABLE_VERSION or not self._goes_on():
            self._forget()
            try:
                self._load()
            except FileNotFoundError as error:
                raise TableReadError(
                    f"the table {self._table} lost a file of its log while it was read: {error}"
                ) from error
        return self.version != NO_TABLE_VERSION

    def look(self, log_id: str, since: int, k: int | None = None) -> TableState | None:
        """As `Table.look`, at the version that was read last."""
        if self.version == NO_TABLE_VERSION:
            return None
        wanted = [*range(since + 1, self.version + 1)]
        if self._start_txns.get(log_id, 0) == k and self._start - since > _FEW:
            wanted = self._that_matter(since, wanted)
        self._fetch(wanted)
        known = self._commits
        changes = tuple(known[each].change for each in wanted if each in known)
        # Nobody asks for what is older again.
        kept = min(since, self.version)
        self._commits = {n: commit for n, commit in known.items() if n >= kept}
        whole = len(changes) == len(wanted)
        return TableState(self.table_id, self.version, self._txns.get(log_id, 0), changes, whole)

    def _that_matter(self, since: int, everything: list[int]) -> list[int]:
        """Of all versions after `since` those that may have taken rows away.

        A restore and an overwrite remove files, and a checkpoint keeps which were removed, and
        when. A version of which the checkpoint lists no removed file took nothing away.
        """
        self._fetch([since])
        if since not in self._commits or self._removed is None or _RETENTION in self.properties:
            return everything
        confirmed_ms = self._commits[since].timestamp_ms
        if SYSTEM.now_ms() - confirmed_ms > _KEPT_MS - _SKEW_MS:
            return everything
        left = {each for each in self._removed if each[2] > confirmed_ms - _SKEW_MS}
        while left:
            # §10: a file counts as removed by the version that its own commit shows
            at = self._first(min(each[2] for each in left), max(since - _BEFORE, 0))
            while left and at <= self._start:
                self._fetch([at])
                before = len(left)
                left -= self._commits[at].removed if at in self._commits else frozenset()
                at += 1
                if len(left) < before:
                    break
            else:
                return everything
        known = {each for each in self._commits if each > since}
        return sorted(known | {*range(self._start + 1, self.version + 1)})

    def _first(self, moment_ms: int, low: int) -> int:
        """The first version from `low` on that was made at this moment or later; by halving."""

        def is_later(version: int) -> bool:
            self._fetch([version])
            there = self._commits.get(version)
            return there is not None and there.timestamp_ms >= moment_ms

        return low + bisect(range(low, self._start), False, key=is_later)

    def _fetch(self, versions: Iterable[int]) -> None:
        """Read these commits unless they are known, the newest first, until one of them is gone."""
        unread = sorted({*versions} - self._commits.keys(), reverse=True)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for at in range(0, len(unread), _AT_ONCE):
                some = unread[at : at + _AT_ONCE]
                bodies = [*pool.map(self._read, some)]
                for version, body in zip(some, bodies, strict=True):
                    if body is not None:
                        self._commits[version] = _parsed(version, body)
                if None in bodies:
                    return

    def _read(self, version: int) -> bytes | None:
        try:
            return self._files.read(f"{version:020d}.json")
        except FileNotFoundError:
            return None

    def _goes_on(self) -> bool:
        newest = max(_commits(self._files.sizes(self.version)), default=NO_TABLE_VERSION)
        # Another table may have as many versions.
        body = self._read(self.version)
        if body is None or hash(body) != self._commits[self.version].fingerprint:
            return False
        came = range(self.version + 1, newest + 1)
        self._fetch(came)
        return self._apply(came)

    def _apply(self, versions: Iterable[int]) -> bool:
        """Whether they were all there."""
        for version in versions:
            if version not in self._commits:
                return False
            for action in self._commits[version].actions:
                self._take(action)
            self.version = version
        return True

    def _take(self, action: Mapping[str, Any]) -> None:
        if txn := action.get("txn"):
            self._txns[txn["appId"]] = txn["version"]
        if metadata := action.get("metaData"):
            self.table_id, self.spark_schema = str(metadata["id"]), str(metadata["schemaString"])
            self.partitioned = tuple(metadata["partitionColumns"])
            self.properties = dict(metadata["configuration"])

    def _load(self) -> None:
        try:
            start = int(json.loads(self._files.read("_last_checkpoint"))["version"])
        except (FileNotFoundError, ValueError, KeyError):
            start = 0
        sizes = self._files.sizes(start)
        if start and not newest_checkpoint(sizes):
            sizes = self._files.sizes(0)
        checkpoint, commits = newest_checkpoint(sizes), _commits(sizes)
        if not commits and not checkpoint:
            return
        if checkpoint:
            self._start = int(checkpoint[0][:20])
            for action in actions(self._files, checkpoint, sizes):
                if "sidecar" in action:
                    self._removed = None
                elif "remove" in action and self._removed is not None:
                    self._removed.add(_removed(action["remove"]))
                self._take(action)
            self._start_txns = dict(self._txns)
        self.version = newest = max([*commits, self._start])
        # The newest one, to know the table again.
        self._fetch(range(min(self._start + 1, newest), newest + 1))
        if newest not in self._commits or not self._apply(range(self._start + 1, newest + 1)):
            raise TableReadError(f"the table {self._table} lacks versions before {newest}")


def _commits(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))]


def _parsed(version: int, body: bytes) -> Commit:
    all_ = [json.loads(line) for line in body.splitlines() if line.strip()]
    info = next((each["commitInfo"] for each in all_ if "commitInfo" in each), None)
    removed = frozenset(_removed(each["remove"]) for each in all_ if "remove" in each)
    others = tuple(each for each in all_ if not each.keys().isdisjoint(("txn", "metaData")))
    timestamp_ms = int((info or {}).get("timestamp", 0))
    return Commit(hash(body), timestamp_ms, change(version, info), removed, others)


def _removed(action: Mapping[str, Any]) -> Removed:
    vector = action.get("deletionVector") or {}
    name = f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}{vector.get('offset')}"
    # Without a moment it may have been at any.
    return action["path"], name, action.get("deletionTimestamp") or 2**63


def change(version: int, info: Mapping[str, Any] | None) -> Change:
    """One version of the table, of the commitInfo of its writer; None where that left it out."""
    if info is None:
        # Who leaves out what was done may have done anything.
        return Change(version, "version without a commitInfo", undoes=True)
    operation = str(info.get("operation", ""))
    words = operation.upper()
    given = info.get("operationParameters") or {}
    metrics = info.get("operationMetrics") or {}
    log_id, k, cut, to = _range(info.get("userMetadata"))
    # Version 0 makes the table: there was nothing before it.
    undoes = version > 0 and (
        words.startswith(("RESTORE", "CREATE TABLE", "CLONE", "TRUNCATE", "CONVERT"))
        or "REPLACE TABLE" in words
        or str(given.get("mode", "")).lower() == "overwrite"
        or str(given.get("outputMode", "")).lower() == "complete"
        or any(given.get(name) for name in ("replaceOnCond", "replaceUsingCols"))
    )
    restored = str(given.get("version")).strip('"') if words.startswith("RESTORE") else ""
    return Change(
        version,
        operation,
        log_id,
        k,
        undoes,
        # Of a write, and of a merge.
        rows=_first(metrics, "numOutputRows" if operation == "WRITE" else "numSourceRows"),
        bytes=_first(metrics, "numOutputBytes", "numTargetBytesAdded"),
        cut=cut,
        to=to,
        restores=int(restored) if restored.isdecimal() else None,
    )


def _first(metrics: Mapping[str, Any], *names: str) -> int | None:
    found = (str(metrics[name]) for name in names if name in metrics)
    return next((int(text) for text in found if text.isdecimal()), None)


def _range(field: object) -> tuple[str, int, int, int]:
    """The log and k of the range that a version holds, and its positions, of its userMetadata."""
    try:
        match json.loads(str(field)):
            case {"log_id": str(log_id), "k": int(k), "cut": int(cut), "to": int(to)}:
                return log_id, k, cut, to
            case {"log_id": str(log_id), "k": int(k)}:
                return log_id, k, 0, 0
    except ValueError:
        pass
    return "", 0, 0, 0


def newest_checkpoint(names: Iterable[str]) -> list[str]:
    """The files of the newest one that is whole."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        if found := _CHECKPOINT.fullmatch(name):
            # Each by itself, or all those of so many parts.
            kinds.setdefault((found[1], found[2] or name), []).append(name)
    whole = [
        files
        for (_, parts), files in kinds.items()
        if not parts.isdecimal() or len(files) == int(parts)
    ]
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
