"""What the versions of a Delta table did, as the commitInfo of their writers describes it.

Versions are numbered 0, 1, 2 …, and a RESTORE is one of them: it brings the rows of an earlier
version back, and keeps the transactions of all.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwal.lifecycle.table import Change, Held, TableState


@dataclass(frozen=True)
class DeltaChange(Change):
    """One version of a Delta table.

    Attributes:
        restores: the version that a RESTORE brings back, if it names it.
    """

    restores: int | None = None


def held(
    table: TableState, changes: Iterable[DeltaChange], log_id: str, since: int, k: int | None
) -> Held:
    """Find the ranges that a snapshot holds, and a former version does not.

    It replays the history, and computes for each version what that version holds.

    Args:
        table: the snapshot, with the versions after `since`.
        changes: the same versions, oldest first, and `since` itself, which may be a RESTORE.
        log_id, since, k: as for `WrittenTable.held`.
    """
    begin = Held(table)
    if not table.complete and k is not None and table.k != k:
        begin = Held(table, unknown=f"its history does not reach back to version {since}")
    now = begin
    held_at = {since: Held(table)}
    for change in changes:
        is_restore = change.operation.upper().startswith("RESTORE")
        if change.version <= since:
            if change.restores is not None:
                held_at[change.restores] = Held(table)
            continue
        if change.restores is not None:
            now = held_at.get(change.restores, begin)
            if change.restores < since and change.restores not in held_at:
                older = f"it was restored to version {change.restores}, which is older"
                now = Held(table, unknown=older)
        elif is_restore:
            unnamed = f"version {change.version} is a RESTORE that names no version"
            now = Held(table, unknown=unnamed)
        elif change.undoes:
            now = Held(table, overwrite=change)
        elif change.log_id == log_id and change.k and not change.is_burned and not now.unknown:
            now = replace(now, ranges=(*now.ranges, change))
        held_at[change.version] = now
    return now


def change(version: int, info: Mapping[str, Any] | None) -> DeltaChange:
    """Describe one version of the table by the commitInfo of its writer.

    Args:
        version: the version.
        info: the commitInfo, or None if the commit has none.
    """
    if info is None:
        # Without a commitInfo, the commit may have done anything.
        return DeltaChange(version, "version without a commitInfo", undoes=True)
    operation = str(info.get("operation", ""))
    words = operation.upper()
    parameters = info.get("operationParameters") or {}
    metrics = info.get("operationMetrics") or {}
    # Version 0 creates the table, so it cannot remove rows.
    undoes = version > 0 and (
        words.startswith(("RESTORE", "CREATE TABLE", "CLONE", "TRUNCATE", "CONVERT"))
        or "REPLACE TABLE" in words
        or str(parameters.get("mode", "")).lower() == "overwrite"
        or str(parameters.get("outputMode", "")).lower() == "complete"
        or any(parameters.get(name) for name in ("replaceOnCond", "replaceUsingCols"))
    )
    restored = str(parameters.get("version")).strip('"') if words.startswith("RESTORE") else ""
    return DeltaChange(
        version,
        operation,
        undoes=undoes,
        # The first metric is of a write, the second of a merge.
        rows=_metric(metrics, "numOutputRows" if operation == "WRITE" else "numSourceRows"),
        files=_metric(metrics, "numFiles", "numTargetFilesAdded"),
        bytes=_metric(metrics, "numOutputBytes", "numTargetBytesAdded"),
        restores=int(restored) if restored.isdecimal() else None,
        **_range_of(info.get("userMetadata")),
    )


def _metric(metrics: Mapping[str, Any], *names: str) -> int | None:
    """The first of these metrics that is a number."""
    texts = (str(metrics[name]) for name in names if name in metrics)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _range_of(user_metadata: object) -> dict[str, Any]:
    """The fields of a `Change` about the range that a version added, from its userMetadata."""
    try:
        match json.loads(str(user_metadata)):
            case {"log_id": str(log_id), "k": int(k), "cut": int(cut), "to": int(to), **more}:
                ranges = {str(name): (int(a), int(b)) for name, (a, b) in _ranges(more)}
                named = {"log_id": log_id, "k": k, "cut": cut, "to": to, "ranges": ranges}
                return {**named, "is_burned": more.get("is_burned") is True}
            case {"log_id": str(log_id), "k": int(k)}:
                return {"log_id": log_id, "k": k}
    except (ValueError, TypeError, RecursionError):
        pass
    return {}


def _ranges(more: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    ranges = more.get("ranges")
    return ranges.items() if isinstance(ranges, dict) else ()
