"""The objects of a Delta table: which of them its newest version has."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import unquote

import pyarrow as pa

from sparkwal.lifecycle.folder import Folder

# What ends a file with a row.
_OF_ROW = "DELETE of its row, then VACUUM"
_FILES, _LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_DEFAULTS = {_FILES: "7 days", _LOG: "30 days"}
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OSError, pa.ArrowException)


class DeltaObjects:
    """The objects of one table, as `sparkwal.lifecycle.table.SearchedObjects`.

    Args:
        folder: the table's folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        # What each file of the transaction log adds and removes, and the settings that it makes.
        self._history: dict[str, tuple[list[tuple[str, bool]], dict[str, str]]] = {}
        self._seen: tuple[set[str], set[str], dict[str, str]] | None = None

    def names(self) -> Sequence[str]:
        """List the folder. See `SearchedObjects.names`."""
        return self._folder.names()

    def url(self, name: str) -> str:
        """The URL of an object."""
        return self._folder.url(name)

    def read(self, name: str) -> bytes:
        """Read an object. See `SearchedObjects.read`."""
        body = self._folder.read(name)
        if _is_history(name):
            # A search reports a damaged file by itself.
            with suppress(*_DAMAGED):
                self._history[name] = [*_actions(name, body)], _settings(name, body)
        return body

    def until(self, name: str) -> str:
        """Describe how an object ends. See `SearchedObjects.until`."""
        live, _, retention = self._newest()
        if _is_history(name):
            after = f"{_LOG} ({retention[_LOG]}) after it was written"
            return f"the clean-up with a checkpoint of the table, {after}"
        return _OF_ROW if name in live else f"VACUUM, after {_FILES} ({retention[_FILES]})"

    def unread(self) -> Iterator[tuple[str, str, str]]:
        """Find uploads, and files of the table that lie outside of its folder."""
        yield from self._folder.unread()
        _, elsewhere, _ = self._newest()
        for path in sorted(elsewhere):
            yield path, "it is a file of the table that lies elsewhere", _OF_ROW

    def _newest(self) -> tuple[set[str], set[str], dict[str, str]]:
        """The files in the newest version, those elsewhere, and the times of retention."""
        if self._seen is None:
            live = set[str]()
            elsewhere = set[str]()
            retention = dict(_DEFAULTS)
            # In the order of their names, which is that of versions.
            for name in sorted(self._history):
                actions, settings = self._history[name]
                retention |= settings
                for path, is_added in actions:
                    if re.match(r"\w+:|/", path):
                        elsewhere.add(path)
                    elif is_added:
                        live.add(path)
                    else:
                        live.discard(path)
            self._seen = live, elsewhere, retention
        return self._seen


def _is_history(name: str) -> bool:
    """Whether a file is one of the transaction log."""
    return name.startswith("_delta_log/")


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
