"""What the versions of an Iceberg table did.

Iceberg numbers its snapshots at random, and a rollback makes none: it sets the main branch to an
older one. So a version is an entry of the snapshot log, which has one for each time that main was
set, and its number is the time of that entry in milliseconds. An entry after another adds the
snapshots between the two, or it is a rollback.

A transaction of a range carries the range twice: in the summary of its snapshot, and in a property
of the table, which outlives a rollback and the expiry of the snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkwal.format.lifecycle_record import NO_TABLE_VERSION
from sparkwal.lifecycle.table import Change, Held, TableState

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

# The range in the summary of a snapshot, and with the id of its log in a property of the table.
RANGE = "sparkwal.range"
# In the summary of a snapshot that was made from another one: a cherry-pick.
_SOURCE = "source-snapshot-id"


@dataclass(frozen=True)
class LastRange:
    """The last range of a log whose number the table took, by the table's property.

    Attributes:
        k: its number.
        snapshot_id, version: its snapshot.
        after: the version that was confirmed before it.
        named: the fields of a `Change`.
    """

    k: int = 0
    snapshot_id: int = 0
    version: int = NO_TABLE_VERSION
    after: int = NO_TABLE_VERSION
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Entry:
    """An entry of the snapshot log: main was set to this snapshot then."""

    version: int
    snapshot_id: int


class History:
    """The history of a table, by one state of its metadata."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata = metadata
        self._snapshots = {one.snapshot_id: one for one in metadata.snapshots}
        self.entries = [_Entry(one.timestamp_ms, one.snapshot_id) for one in metadata.snapshot_log]
        current = metadata.current_snapshot()
        if current and (not self.entries or self.entries[-1].snapshot_id != current.snapshot_id):
            self.entries.append(_Entry(current.timestamp_ms, current.snapshot_id))

    @property
    def version(self) -> int:
        """The newest version; 0 for a table without a snapshot."""
        return self.entries[-1].version if self.entries else 0

    def snapshot_at(self, version: int) -> Snapshot | None:
        """The snapshot of a version, or None if it is unknown or expired."""
        index = self._index(version)
        return None if index is None else self._snapshots.get(self.entries[index].snapshot_id)

    def last_range(self, log_id: str) -> LastRange:
        """The last range of a log."""
        try:
            last: dict[str, Any] = json.loads(self._metadata.properties[f"{RANGE}.{log_id}"])
            numbers = {name: int(last[name]) for name in ("k", "snapshot_id", "version", "after")}
            return LastRange(**numbers, named={**last, "log_id": log_id})
        except (KeyError, TypeError, ValueError, RecursionError):
            return LastRange()

    def state(self, log_id: str, since: int | None) -> TableState:
        """The newest snapshot. See `Snapshots.snapshot`."""
        last = self.last_range(log_id)
        state = TableState(str(self._metadata.table_uuid), self.version, last.k, ())
        if since is None:
            return state
        begin = -1 if since == NO_TABLE_VERSION else self._index(since)
        if begin is None:
            changes = self._changes_since_range(last, since)
            if changes is None:
                return replace(state, complete=False)
            return replace(state, changes=tuple(changes), newer=len(changes))
        steps = [self._step(index) for index in range(begin + 1, len(self.entries))]
        changes = [change for step in steps for change in step or ()]
        complete = None not in steps
        return replace(state, changes=tuple(changes), complete=complete, newer=len(steps))

    def held(self, log_id: str, since: int, k: int | None) -> Held:
        """The ranges that the newest snapshot holds. See `WrittenTable.held`."""
        state = self.state(log_id, since)
        index = self._index(since)
        former = self.entries[index].snapshot_id if index is not None else 0
        newest = self.entries[-1].snapshot_id if self.entries else 0
        if self._path(newest, former) is None and self._path(former, newest):
            at = next(x.version for x in self.entries if x.snapshot_id == newest)
            return Held(state, unknown=f"it was restored to version {at}, which is older")
        # The snapshot that both descend from: the former one itself, or another branched off.
        fork = next(
            (x for x in self._ancestors(newest) if self._path(former, x) is not None), former
        )
        path = self._path(newest, fork)
        if path is None:
            if k not in (None, state.k):
                return Held(state, unknown=f"its history does not reach back to version {since}")
            path = [*self._ancestors(newest)]
        ranges, overwrite = self._ranges(path, log_id)
        lost, _ = self._ranges(self._path(former, fork) or [], log_id)
        lacking = {x.k for x in lost} - {x.k for x in ranges}
        if lacking:
            reason = f"it lacks the ranges {sorted(lacking)}, which version {since} has"
            return Held(state, unknown=reason)
        numbers = {x.k for x in lost}
        return Held(state, tuple(x for x in ranges if x.k not in numbers), overwrite)

    def _ranges(self, path: Iterable[int], log_id: str) -> tuple[list[Change], Change | None]:
        """The ranges of a log in these snapshots, newest first, down to one that undoes others.

        Returns:
            The ranges that were not burned, oldest first, and the one that undoes others.
        """
        ranges: list[Change] = []
        for id_ in path:
            change = self._change(id_, self._version_of(id_))
            if change.undoes:
                return ranges[::-1], change
            if change.log_id == log_id and change.k and not change.is_burned:
                ranges.append(change)
        return ranges[::-1], None

    def _picked(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The range of the snapshot from which one was made, also if that has expired."""
        source = _number(texts, _SOURCE)
        snapshot = self._snapshots.get(source) if source is not None else None
        if snapshot is not None and snapshot.summary is not None:
            return _range_of(snapshot.summary.additional_properties.get(RANGE))
        names = (x for x in self._metadata.properties if x.startswith(f"{RANGE}."))
        lasts = (self.last_range(name.removeprefix(f"{RANGE}.")) for name in names)
        return next((_named(x.named) for x in lasts if x.k and x.snapshot_id == source), {})

    def _index(self, version: int) -> int | None:
        """The index of a version in the snapshot log, or None if the log does not have it.

        A transaction of several snapshots may set main several times in one millisecond.
        """
        indexes = range(len(self.entries))
        index = next((x for x in indexes if self.entries[x].version == version), None)
        while index is not None and index + 1 in indexes:
            if self.entries[index + 1].version != version:
                break
            index += 1
        return index

    def _step(self, index: int) -> list[Change] | None:
        """The changes of an entry of the log, or None if snapshots before it have expired."""
        entry = self.entries[index]
        if index == 0:
            return [self._change(entry.snapshot_id, entry.version)]
        before = self.entries[index - 1].snapshot_id
        path = self._path(entry.snapshot_id, before)
        if path:
            return [self._change(id_, entry.version) for id_ in reversed(path)]
        if path is not None or self._path(before, entry.snapshot_id) is not None:
            # SAFETY(rollback-undoes) §10: main was set to an older snapshot, so what came after
            # that one is gone
            return [Change(entry.version, "rollback", undoes=True)]
        if entry.snapshot_id in self._snapshots and before in self._snapshots:
            # A branch was made main, or the table was replaced.
            return [Change(entry.version, "change of the main branch", undoes=True)]
        return None

    def _path(self, newer: int, older: int) -> list[int] | None:
        """The snapshots from one back to an older one, without that; None if it is no ancestor.

        The older one may have expired: its child still names it.
        """
        path: list[int] = []
        at: int | None = newer
        while at != older:
            snapshot = self._snapshots.get(at) if at is not None else None
            if snapshot is None or at is None:
                return None
            path.append(at)
            at = snapshot.parent_snapshot_id
        return path

    def _ancestors(self, id_: int | None) -> Iterator[int]:
        while id_ is not None and id_ in self._snapshots:
            yield id_
            id_ = self._snapshots[id_].parent_snapshot_id

    def _changes_since_range(self, last: LastRange, since: int) -> list[Change] | None:
        """What came since a version that has expired, if the last range of the log proves it.

        That range was committed onto a snapshot whose history since the version `after` was
        checked. So a snapshot that descends from it lacks nothing of what that version held.

        Returns:
            The changes, or None if the history does not reach back to that range either.
        """
        newest = self.entries[-1].snapshot_id if self.entries else 0
        path = self._path(newest, last.snapshot_id)
        if path is None or since not in (last.version, last.after):
            return None
        changes = [self._change(id_, self._version_of(id_)) for id_ in reversed(path)]
        if since != last.version:
            changes.insert(0, Change(last.version, "append", **_named(last.named)))
        return changes

    def _version_of(self, id_: int) -> int:
        """The last version with a snapshot as its newest, or that of the snapshot itself."""
        versions = [x.version for x in self.entries if x.snapshot_id == id_]
        return versions[-1] if versions else self._snapshots[id_].timestamp_ms

    def _change(self, id_: int, version: int) -> Change:
        """One snapshot of the table, as a change."""
        snapshot = self._snapshots.get(id_)
        summary = snapshot.summary if snapshot is not None else None
        if snapshot is None or summary is None:
            return Change(version, "snapshot without a summary", undoes=True)
        texts = summary.additional_properties
        operation = summary.operation.value
        # SAFETY(picked-has-range) §10: after a rollback a user may pick the snapshot of a range;
        # the new one has its rows, and does not name it
        named = _range_of(texts.get(RANGE)) or self._picked(texts)
        return Change(
            version,
            operation,
            undoes=not named and _undoes(operation, texts),
            files=_number(texts, "added-data-files"),
            bytes=_number(texts, "added-files-size"),
            **{"rows": _number(texts, "added-records"), **named},
        )


def _undoes(operation: str, texts: Mapping[str, str]) -> bool:
    """Whether a snapshot of another writer may have removed the rows of all versions before it.

    A rewrite of files has the operation "replace". An "overwrite" may be an UPDATE, a MERGE or a
    DELETE as well: then some of the former files remain beside the added ones.
    """
    if operation in ("append", "replace"):
        return False
    added, total = (_number(texts, f"{which}-data-files") or 0 for which in ("added", "total"))
    removed = _number(texts, "deleted-data-files") or 0
    return texts.get("replace-partitions") == "true" or (removed > 0 and total <= added)


def _number(texts: Mapping[str, str], name: str) -> int | None:
    text = texts.get(name, "")
    return int(text) if text.isdecimal() else None


def _range_of(text: str | None) -> dict[str, Any]:
    """The fields of a `Change` about the range that a snapshot added, from its summary."""
    try:
        named = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    return _named(named) if isinstance(named, dict) else {}


def _named(texts: Mapping[str, Any]) -> dict[str, Any]:
    match texts:
        case {"log_id": str(log_id), "k": int(k), "cut": int(cut), "to": int(to), **more}:
            named = {"log_id": log_id, "k": k, "cut": cut, "to": to}
            rows = {"rows": more["rows"]} if isinstance(more.get("rows"), int) else {}
            is_burned = more.get("is_burned") is True
            return {**named, "ranges": _ranges(more), "is_burned": is_burned, **rows}
        case {"log_id": str(log_id), "k": int(k)}:
            return {"log_id": log_id, "k": k}
    return {}


def _ranges(more: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    stored = more.get("ranges")
    items: Iterable[tuple[str, Any]] = stored.items() if isinstance(stored, dict) else ()
    ranges = {}
    for name, bounds in items:
        match bounds:
            case [int(cut), int(to)]:
                ranges[str(name)] = (cut, to)
    return ranges
