"""Opens the log that options name, and checks the path of a new log or journal.

Opening makes no request and creates nothing.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.options.store import StoreOptions
from sparkwal.store.base import LogStore
from sparkwal.store.open import open_store
from sparkwal.store.path import bucket_and_prefix, check_meant, folder, is_local, overlap

_DELTA = "_delta_log"
# The folders inside a log. A log in one of them would be read as objects of the outer log.
_FOLDERS_OF_LOG = frozenset(keys.FOLDERS) - {"sequencers"}


def open_log(options: StoreOptions, *, fail_fast: bool = False) -> LogStore:
    """Open the log that `path` and `sequencer` name.

    Args:
        fail_fast: if no server answers at all, raise an error at once, without retries.

    Raises:
        OptionError: the path names no supported store.
    """
    store, root = open_store(options.path, options.s3, options.retry, fail_fast=fail_fast)
    return LogStore(store, root).sequencer(options.sequencer)


@dataclass(frozen=True)
class _Surroundings:
    """The Delta table and the log that a path lies in, and the keys or names at the path."""

    table: str | None
    outer_log: str | None
    keys: list[str]


def check_new_log(path: str, log: LogStore) -> None:
    """Check that a new log may begin at `path`.

    On S3 it costs 1 LIST of the parent folder, or of the path itself if its parent is the bucket.
    Each folder on the path with a name such as `batches` costs 1 LIST more.

    Raises:
        OptionError: the path lies inside a Delta table or another log, or holds Parquet files.
    """
    around = _local_surroundings(path, log) if is_local(path) else _s3_surroundings(path, log)
    if around.outer_log is not None:
        raise OptionError(
            f"{path} is in a folder of the log {around.outer_log}, which would read the new log's "
            "objects as its own. sparkwal wrote nothing; write to another path"
        )
    if around.table is not None:
        raise OptionError(
            f"{path} is inside the Delta table {around.table}, and a VACUUM of the table would "
            "delete the log. sparkwal wrote nothing; write to a path outside of the table"
        )
    if files := [key for key in around.keys if key.endswith(".parquet")]:
        raise OptionError(
            f"{path} holds Parquet files ({files[0].rpartition('/')[2]}), which are no log's: a "
            "log shares its path with nothing else. sparkwal wrote nothing; write to an empty path"
        )


def _local_surroundings(path: str, log: LogStore) -> _Surroundings:
    resolved = Path(os.path.realpath(folder(path)))
    ancestry = (resolved, *resolved.parents)
    tables = (str(ancestor) for ancestor in ancestry if (ancestor / _DELTA).is_dir())
    parents = (ancestor.parent for ancestor in ancestry if ancestor.name in _FOLDERS_OF_LOG)
    logs = (str(parent) for parent in parents if holds_log(parent))
    return _Surroundings(next(tables, None), next(logs, None), _keys(log, ""))


def _s3_surroundings(path: str, log: LogStore) -> _Surroundings:
    table: str | None = None
    prefix = bucket_and_prefix(path)[1]
    parent = prefix.rpartition("/")[0]
    within = parent or prefix
    within = f"{within}/" if within else ""
    listed = _keys(log, f"{within}{_DELTA}/" if parent else within)
    if any(key.startswith(f"{within}{_DELTA}/") for key in listed):
        table = f"{log.store.url}/{within}".rstrip("/")
    parts = prefix.split("/")
    tops = ("/".join(parts[:depth]) for depth, name in enumerate(parts) if name in _FOLDERS_OF_LOG)
    logs = (top for top in tops if _has_log_object(_keys(log, keys.batches_prefix(top))))
    outer = next((f"{log.store.url}/{top}".rstrip("/") for top in logs), None)
    return _Surroundings(table, outer, listed)


def journal_folder(path: str, log: str) -> Path:
    """The folder for the journal of the log at `log`.

    Raises:
        OptionError: it is not on this machine's disk, lies inside a Delta table, a log or a
            journal, or contains the log.
    """
    if not is_local(path):
        raise OptionError(f"journal is {path!r}; a folder on this machine's disk is expected")
    check_meant(path)
    journal = folder(path)
    if is_journal(journal):
        return journal
    enclosing = enclosing_data(Path(os.path.realpath(journal)))
    if enclosing is None and is_local(log) and overlap(path, log):
        enclosing = "log", Path(log)
    if enclosing is not None:
        raise OptionError(
            f"journal {path} shares a folder with the {enclosing[0]} {enclosing[1]}, so a clean-up "
            "would delete accepted rows. sparkwal wrote nothing; give a folder outside of it"
        )
    return journal


def enclosing_data(path: Path) -> tuple[str, Path] | None:
    """The Delta table, log or journal that a folder is or lies in.

    Args:
        path: a folder of this machine's disk, with its symbolic links followed.

    Returns:
        The kind ("Delta table", "log" or "journal") and the folder, or None.
    """
    for ancestor in (path, *path.parents):
        if (ancestor / _DELTA).is_dir():
            return "Delta table", ancestor
        if holds_log(ancestor):
            return "log", ancestor
        if is_journal(ancestor):
            return "journal", ancestor
    return None


def is_journal(path: Path) -> bool:
    """Whether a local folder is a journal: it has the files of a journal that was opened."""
    return (path / "cursor").is_file() and (path / "lock").is_file()


def holds_log(path: Path) -> bool:
    """Whether a local folder is a log or has sequencers: it has objects with a log's names."""
    for log in (path, *path.glob(f"{keys.sequencers_prefix('')}*")):
        with suppress(OSError), os.scandir(log / keys.FOLDERS[0]) as objects:
            if _has_log_object(entry.name for entry in objects):
                return True
    return False


def _has_log_object(names: Iterable[str]) -> bool:
    """Whether one of these keys or file names is that of a log's object."""
    return any(keys.decode(name.rpartition("/")[2]) is not None for name in names)


def _keys(log: LogStore, prefix: str) -> list[str]:
    # A user whose permissions cover only the log's own keys gets an error here: skip the check.
    with suppress(OptionError):
        return [entry.key for entry in log.store.list(prefix, 100).entries]
    return []
