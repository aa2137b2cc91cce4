"""What one commit of a Delta table did to the rows of those before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkwal.lifecycle.table import Change


def change(version: int, info: Mapping[str, Any] | None) -> Change:
    """One version of the table, of the commitInfo of its writer; None where that left it out."""
    if info is None:
        # Who leaves out what was done may have done anything.
        return Change(version, "version without a commitInfo", undoes=True)
    operation = str(info.get("operation", ""))
    log_id, k, cut, to = _range(info.get("userMetadata"))
    metrics = info.get("operationMetrics") or {}
    return Change(
        version, operation, log_id, k, _undoes(version, operation, info),
        # Of a write, and of a merge.
        rows=_first(metrics, "numOutputRows" if operation == "WRITE" else "numSourceRows"),
        bytes=_first(metrics, "numOutputBytes", "numTargetBytesAdded"),
        cut=cut, to=to, restores=_restores(operation, info),
    )  # fmt: skip


def _first(metrics: Mapping[str, Any], *names: str) -> int | None:
    found = (str(metrics[name]) for name in names if name in metrics)
    return next((int(text) for text in found if text.isdecimal()), None)


def _range(field: object) -> tuple[str, int, int, int]:
    """The log and k of the range that a version holds, and its positions, of its userMetadata."""
    nothing = "", 0, 0, 0
    try:
        document = json.loads(str(field)) if field else None
    except ValueError:
        return nothing
    if not isinstance(document, dict):
        return nothing
    log_id, k = document.get("log_id"), document.get("k")
    if not (isinstance(log_id, str) and isinstance(k, int)):
        return nothing
    cut, to = document.get("cut"), document.get("to")
    if not (isinstance(cut, int) and isinstance(to, int)):
        return log_id, k, 0, 0
    return log_id, k, cut, to


def _restores(operation: str, info: Mapping[str, Any]) -> int | None:
    given = (info.get("operationParameters") or {}).get("version")
    version = str(given).strip('"')
    return int(version) if operation.upper().startswith("RESTORE") and version.isdecimal() else None


def _undoes(version: int, operation: str, info: Mapping[str, Any]) -> bool:
    given = info.get("operationParameters") or {}
    words = operation.upper()
    # Version 0 makes the table: there was nothing before it.
    if version == 0:
        return False
    return (
        words.startswith(("RESTORE", "CREATE TABLE", "CLONE", "TRUNCATE", "CONVERT"))
        or "REPLACE TABLE" in words
        or str(given.get("mode", "")).lower() == "overwrite"
        or str(given.get("outputMode", "")).lower() == "complete"
        or any(given.get(name) for name in ("replaceOnCond", "replaceUsingCols"))
    )
