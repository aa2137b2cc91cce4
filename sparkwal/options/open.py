"""From checked options to the log they name. Makes no request and creates nothing."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.options.store import StoreOptions
from sparkwal.store.base import LogStore
from sparkwal.store.open import open_store
from sparkwal.store.path import bucket_and_prefix, folder, is_local, overlap

_DELTA = "_delta_log"
# A log in one of these folders of another would be taken for its objects.
_OWN = frozenset(keys.FOLDERS) - {"sequencers"}


def open_log(options: StoreOptions, *, fail_fast: bool = False) -> LogStore:
    """The log that `path` and `sequencer` name; with `fail_fast` nothing answering at all is an
    error at once, without retries. Raises OptionError for a path that names no supported store."""
    store, root = open_store(options.path, options.s3, options.retry, fail_fast=fail_fast)
    return LogStore(store, root).sequencer(options.sequencer)


def check_place(path: str, log: LogStore) -> None:
    """Check `path` before a log begins there. Raises OptionError if it lies inside a Delta table or
    in a folder of another log, or holds Parquet files.

    On S3 it costs 1 LIST: of the folder above, or of the path itself if only the bucket is above;
    and 1 for each of its folders that is named like a log's.
    """
    table: str | None = None
    if is_local(path):
        own = Path(os.path.realpath(folder(path)))
        tables = (str(each) for each in (own, *own.parents) if (each / _DELTA).is_dir())
        table = next(tables, None)
        named = (each.parent for each in (own, *own.parents) if each.name in _OWN)
        outer = next((f"{each}" for each in named if holds_log(each)), None)
        found = _keys(log, "")
    else:
        prefix = bucket_and_prefix(path)[1]
        above = prefix.rpartition("/")[0]
        within = above or prefix
        within = f"{within}/" if within else ""
        found = _keys(log, f"{within}{_DELTA}/" if above else within)
        if any(key.startswith(f"{within}{_DELTA}/") for key in found):
            table = f"{log.store.url}/{within}".rstrip("/")
        parts = prefix.split("/")
        tops = ("/".join(parts[:depth]) for depth, name in enumerate(parts) if name in _OWN)
        logs = (top for top in tops if _has_object(_keys(log, keys.batches_prefix(top))))
        outer = next((f"{log.store.url}/{top}".rstrip("/") for top in logs), None)
    if outer is not None:
        raise OptionError(
            f"{path} is in a folder of the log {outer}, which would take its objects for its own. "
            "Nothing was written; write to another path"
        )
    if table is not None:
        raise OptionError(
            f"{path} is inside the Delta table {table}, and a VACUUM of the table would delete the "
            "log. Nothing was written; write to a path outside of the table"
        )
    if files := [key for key in found if key.endswith(".parquet")]:
        raise OptionError(
            f"{path} holds Parquet files ({files[0].rpartition('/')[2]}), which are no log's: a "
            "log shares its path with nothing else. Nothing was written; write to an empty path"
        )


def journal_folder(path: str, log: str) -> Path:
    """The folder of a journal of the log `log`, checked before a journal begins there. Raises
    OptionError inside a Delta table, a log or a journal, or around its log."""
    if not is_local(path):
        raise OptionError(f"journal is {path!r}; a folder on this machine's disk is expected")
    own = folder(path)
    if is_journal(own):
        return own
    found = around(Path(os.path.realpath(own)))
    if found is None and is_local(log) and overlap(path, log):
        found = "log", Path(log)
    if found is not None:
        raise OptionError(
            f"journal {path} shares a folder with the {found[0]} {found[1]}, where a clean-up "
            "would delete accepted rows. Nothing was written; give a folder outside of it"
        )
    return own


def around(own: Path) -> tuple[str, Path] | None:
    """What a folder on this machine's disk is or lies in: the kind (Delta table, log or journal)
    and its folder. None if it is none of these. Follow its symbolic links first."""
    for each in (own, *own.parents):
        if (each / _DELTA).is_dir():
            return "Delta table", each
        if holds_log(each):
            return "log", each
        if is_journal(each):
            return "journal", each
    return None


def is_journal(path: Path) -> bool:
    """Whether a folder of this machine's disk is a journal: it has the files of an opened one."""
    return (path / "cursor").is_file() and (path / "lock").is_file()


def holds_log(path: Path) -> bool:
    """Whether a folder of this machine's disk is a log, or holds one of a sequencer: it has objects
    with names of one."""
    for log in (path, *path.glob(f"{keys.sequencers_prefix('')}*")):
        with suppress(OSError), os.scandir(log / keys.FOLDERS[0]) as objects:
            if _has_object(each.name for each in objects):
                return True
    return False


def _has_object(names: Iterable[str]) -> bool:
    """Whether one of these keys or names is of a log's object."""
    return any(keys.decode(each.rpartition("/")[2]) is not None for each in names)


def _keys(log: LogStore, prefix: str) -> list[str]:
    # Who may list only the log's own keys cannot learn it.
    with suppress(OptionError):
        return [entry.key for entry in log.store.list(prefix, 100).entries]
    return []
