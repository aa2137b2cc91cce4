"""The names that a checkpoint folder may hold, and those that a record carries.

A folder holds Spark's files, sparkwal's notes, and the schema log of a Delta source. The option
schemaTrackingLocation puts the schema log anywhere in the checkpoint.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sparkwal.checkpoints.offsets import SOURCE_NAME

METADATA = "metadata"
OFFSETS = "offsets"
COMMITS = "commits"
SOURCES = "sources"
STATE = "state"
OWNER = "sparkwal.json"
EMPTY = "sparkwal-empty.json"
LOG = "sparkwal-log.json"
STATE_NOTE = "sparkwal-state.json"
STATE_LINKS = "sparkwal-state"
_OWN_FILES = (METADATA, OWNER, EMPTY, LOG, STATE_NOTE)
_OWN_FOLDERS = (OFFSETS, COMMITS, SOURCES, STATE, STATE_LINKS)
# The suffixes of a temporary file and of a checksum file.
_WRITTEN = r"(\.[0-9a-f-]+\.tmp)?(\.crc)?"
_FILE = re.compile(rf"\.*({'|'.join(map(re.escape, _OWN_FILES))}){_WRITTEN}")
_LOGGED = re.compile(rf"\.*[0-9]{{1,19}}(\.compact)?{_WRITTEN}")
_SOURCE = re.compile(SOURCE_NAME)
_OPERATOR = re.compile("[0-9]+")
# File systems limit a name to this many bytes.
_MAX_NAME_BYTES = 255
_ANY = re.compile(".*", re.DOTALL)
_SCHEMA_LOG = re.compile("_schema_log_.+")
_IN_SPARKS_FOLDERS = re.compile(
    rf"({OFFSETS}|{COMMITS})/[0-9]{{1,19}}|{SOURCES}/{SOURCE_NAME}(/[^/\0]+)+"
)
# A version of a store, written by an attempt of this id, with or without a checksum.
STATE_FILE = r"([0-9]{1,18})(?:_([0-9a-f-]{1,64}))?\.(delta|changelog|snapshot|zip)(?:\.crc)?"
# Folders of files that RocksDB's versions share.
STATE_TABLES = ("SSTs", "logs")
_STORE = rf"{STATE}/[0-9]{{1,9}}/[0-9]{{1,9}}(?:/[A-Za-z0-9][^/\0]*)?"
_OF_STATE = re.compile(rf"{_STORE}/(?:{STATE_FILE}|(?:{'|'.join(STATE_TABLES)})/[^/\0.][^/\0]*)")
_STATE_METADATA = re.compile(
    rf"(?:{STATE}/[0-9]{{1,9}}|{_STORE})/_(?:metadata|stateSchema)(?:/[^/\0]+)+"
)
_IN_SCHEMA_LOG = re.compile(r"([^/\0]+/)*_schema_log_[^/\0]+/[0-9]{1,19}")


def is_carried(name: str) -> bool:
    """Whether a record may carry a file of this name, a path relative to the folder."""
    parts = name.split("/")
    if not name.isprintable() or {".", ".."} & set(parts):
        return False
    is_own = parts[0] in (*_OWN_FOLDERS, *_OWN_FILES)
    pattern = _IN_SPARKS_FOLDERS if is_own else _IN_SCHEMA_LOG
    if parts[0] == STATE:
        pattern = _STATE_METADATA
    longest = max(len(part.encode()) for part in parts)
    return longest <= _MAX_NAME_BYTES and pattern.fullmatch(name) is not None


def is_of_state(name: str) -> bool:
    """Whether a part of the state may have this name."""
    is_plain = name.isprintable() and not {".", ".."} & set(name.split("/"))
    return is_plain and _OF_STATE.fullmatch(name) is not None


def is_of_source(name: str) -> bool:
    """Whether a source wrote this carried file."""
    return name.split("/")[0] not in (OFFSETS, COMMITS, STATE)


def source_files(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each folder in which a source keeps files, with their names.

    Hidden files are left out: checksums, and files that Spark is writing.
    """
    tops = [entry for entry in _entries(path) if _is_folder(entry)]
    for top in tops:
        if top.name == SOURCES or top.name not in _OWN_FOLDERS:
            for parent, _, names in os.walk(top):
                shown = [name for name in names if not name.startswith(".")]
                if top.name == SOURCES or _SCHEMA_LOG.fullmatch(Path(parent).name):
                    yield Path(parent), shown


def foreign(path: Path) -> str | None:
    """The first name in a folder that is not part of a checkpoint, or None.

    The folder of a source or an operator may hold any name.
    """
    return next(_foreign(path), None)


def _foreign(path: Path) -> Iterator[str]:
    for entry in _entries(path):
        if not _is_folder(entry):
            if not _is_file(entry, _FILE):
                yield entry.name
        elif entry.name in (OFFSETS, COMMITS):
            yield from _foreign_in(entry, lambda inner: _is_file(inner, _LOGGED))
        elif entry.name == SOURCES:
            yield from _foreign_in(entry, _is_source)
        elif entry.name in (STATE, STATE_LINKS):
            yield from _foreign_in(entry, lambda inner: _is_folder(inner, _OPERATOR))
        elif not _is_schema_log(entry):
            yield entry.name


def _foreign_in(
    folder: os.DirEntry[str], is_allowed: Callable[[os.DirEntry[str]], bool]
) -> list[str]:
    return [f"{folder.name}/{inner.name}" for inner in _entries(folder) if not is_allowed(inner)]


def _is_source(folder: os.DirEntry[str]) -> bool:
    """Whether a folder is a source's: its name is a number, or it is empty, or it holds a numbered
    file."""
    if not _is_folder(folder, _SOURCE):
        return False
    files = [name for _, _, names in os.walk(folder) for name in names]
    return folder.name.isdecimal() or not files or any(map(_LOGGED.fullmatch, files))


def _is_schema_log(folder: os.DirEntry[str]) -> bool:
    """Whether a folder is a schema log, or holds only such folders."""
    inside = _entries(folder)
    if _SCHEMA_LOG.fullmatch(folder.name):
        return all(_is_file(entry, _LOGGED) for entry in inside)
    return bool(inside) and all(_is_folder(entry) and _is_schema_log(entry) for entry in inside)


def _entries(path: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    return sorted(os.scandir(path), key=lambda entry: entry.name)


def _is_file(entry: os.DirEntry[str], names: re.Pattern[str]) -> bool:
    return entry.is_file(follow_symlinks=False) and names.fullmatch(entry.name) is not None


def _is_folder(entry: os.DirEntry[str], names: re.Pattern[str] = _ANY) -> bool:
    return entry.is_dir(follow_symlinks=False) and names.fullmatch(entry.name) is not None
