"""Which files the newest version of a Delta table has, from all files of its transaction log."""

import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow as pa

from sparkwal.lifecycle.table import OF_ROW

_FILES, _LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_DEFAULTS = {_FILES: "7 days", _LOG: "30 days"}
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OSError, pa.ArrowException)


class DeltaTableFiles:
    """The files of one table, as `sparkwal.lifecycle.table.TableFiles`."""

    def __init__(self) -> None:
        self.elsewhere: set[str] = set()
        self._live: set[str] = set()
        self._retention = dict(_DEFAULTS)

    def is_history(self, name: str) -> bool:
        """Whether a file is one of the transaction log."""
        return name.startswith("_delta_log/")

    def see(self, name: str, body: bytes) -> None:
        """Take a file of the transaction log. They come in the order of versions."""
        try:
            actions = [*_actions(name, body)]
            self._retention |= _settings(name, body)
        except _DAMAGED:
            # Then nobody can tell what it holds, and that is reported.
            return
        for path, is_added in actions:
            if re.match(r"\w+:|/", path):
                self.elsewhere.add(path)
            elif is_added:
                self._live.add(path)
            else:
                self._live.discard(path)

    def until(self, name: str) -> str:
        """What ends a file of the table's folder."""
        if self.is_history(name):
            after = f"{_LOG} ({self._retention[_LOG]}) after it was written"
            return f"the clean-up with a checkpoint of the table, {after}"
        old = f"VACUUM, after {_FILES} ({self._retention[_FILES]})"
        return OF_ROW if name in self._live else old


def _actions(name: str, body: bytes) -> Iterator[tuple[str, bool]]:
    """The paths of files in a file of the transaction log, and whether it adds them."""
    if re.fullmatch(r"_delta_log/\d{20}\.json", name):
        for line in body.splitlines():
            action = json.loads(line)
            for kind in ("remove", "add"):
                if file_action := action.get(kind):
                    yield unquote(file_action["path"]), kind == "add"
    elif name.endswith(".parquet"):
        import pyarrow.parquet as pq

        file = pq.ParquetFile(pa.BufferReader(body))
        for kind in ("add", "remove"):
            if kind in file.schema_arrow.names:
                for file_action in file.read(columns=[f"{kind}.path"]).column(kind).to_pylist():
                    if file_action and file_action["path"]:
                        yield unquote(file_action["path"]), kind == "add"


def _settings(name: str, body: bytes) -> dict[str, str]:
    """The times of retention that a commit sets."""
    if not name.endswith(".json"):
        return {}
    retention: dict[str, str] = {}
    for line in body.splitlines():
        metadata = json.loads(line).get("metaData")
        if metadata:
            settings = {**_DEFAULTS, **(metadata.get("configuration") or {})}
            retention = {name: settings[name] for name in _DEFAULTS}
    return retention
