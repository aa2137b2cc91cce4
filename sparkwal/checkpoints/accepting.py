"""Checks the checkpoint files that records carry, before they go into a rebuilt folder.

Anybody may have written the records, and Spark obeys such files: it sets settings of the session
from a plan, and reads the files that a source's list names.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from urllib.parse import unquote

from sparkwal.checkpoints.names import COMMITS, OFFSETS, SOURCES, STATE, is_of_source
from sparkwal.checkpoints.offsets import by_source, listed
from sparkwal.errors import InvalidLogError
from sparkwal.store.path import absolute, kind_of_store

# Settings that Spark 4.0 to 4.3 writes into a plan, and sets again from it.
SETTINGS = frozenset(
    f"spark.sql.{name}"
    for name in (
        "function.protobufExtensions.enabled",
        "optimizer.pruneFiltersCanPruneStreamingSubplan",
        "shuffle.partitions",
        "streaming.aggregation.stateFormatVersion",
        "streaming.flatMapGroupsWithState.stateFormatVersion",
        "streaming.internal.stateStore.partitions",
        "streaming.join.stateFormatVersion",
        "streaming.multipleWatermarkPolicy",
        "streaming.queryEvolution.enableSourceEvolution",
        "streaming.stateStore.encodingFormat",
        "streaming.stateStore.rocksdb.formatVersion",
        "streaming.stateStore.rocksdb.mergeOperatorVersion",
        "streaming.stateStore.rowChecksum.enabled",
        "streaming.statefulOperator.useStrictDistribution",
    )
)
# The value of these may name a class, which Spark loads: only these values are taken.
_STORES = "org.apache.spark.sql.execution.streaming.state"
_KNOWN = {
    "spark.sql.streaming.stateStore.providerClass": {
        f"{_STORES}.HDFSBackedStateStoreProvider",
        f"{_STORES}.RocksDBStateStoreProvider",
    },
    "spark.sql.streaming.stateStore.compression.codec": {"lz4", "lzf", "snappy", "zstd"},
}
_VALUE = re.compile("[A-Za-z0-9_]{1,40}")
# A driver of Spark does not survive many more tasks of one stage.
_MOST_PARTITIONS = 100_000
# Parses an object to the pairs of its names and values.
_FIELDS = json.JSONDecoder(object_pairs_hook=tuple)
# The scheme, the host and the folders of a path.
_Location = tuple[str, ...]
_FOLDERS = 2
# Folders of a machine's system, in which no source reads.
_OF_SYSTEM = ("bin", "boot", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr")
_LIST = re.compile(rf"{SOURCES}/([^/]+)/([0-9]{{1,19}})(\.compact)?")


def accepted(files: Mapping[str, bytes], batch_id: int, record: str) -> dict[str, bytes]:
    """The files of a folder whose last microbatch is `batch_id`.

    A plan keeps only known settings. A list of a file source stays only if the plan has read it:
    otherwise Spark would read the files that it names.

    Args:
        files: the files by name, as records carry them.
        batch_id: the last microbatch that is done.
        record: the record's name in errors.

    Raises:
        InvalidLogError: no sink carries these files together.
    """
    plan = f"{OFFSETS}/{batch_id}"
    wanted = {plan, f"{OFFSETS}/{batch_id - 1}", f"{COMMITS}/{batch_id - 1}"}
    offsets = by_source(files.get(plan, b"")) or {}
    taken: dict[str, bytes] = {}
    for name, data in files.items():
        if name.startswith(f"{STATE}/"):
            taken[name] = data
        elif not is_of_source(name):
            if name not in wanted:
                raise InvalidLogError(
                    f"{record}: the checkpoint of microbatch {batch_id} holds {name!r}"
                )
            is_plan = name.startswith(OFFSETS)
            taken[name] = _with_known_settings(data, name, record) if is_plan else data
        elif _is_read(name, data, offsets, record):
            taken[name] = data
    return taken


def _is_read(name: str, data: bytes, offsets: Mapping[str, bytes], record: str) -> bool:
    """Whether a source's file may stay: it is no list of files, or the plan has read that list."""
    match = _LIST.fullmatch(name)
    if match is None:
        return True
    last = listed(offsets.get(match[1], b""))
    if last is None:
        is_read = not any(map(_names_file, data.splitlines()))
    else:
        is_read = int(match[2]) <= last
    # A compacted list repeats all earlier ones, which the record then lacks: refuse it instead of
    # leaving it out.
    if not is_read and match[3]:
        raise InvalidLogError(f"{record}: the checkpoint in it plans less than {name!r} lists")
    return is_read


def check_listed(files: Mapping[str, bytes], roots: Sequence[str], own: Sequence[str]) -> None:
    """Check that the lists of file sources name only files that the sources may have read.

    Spark lists the files of the last microbatch when it starts, and with the source's option
    `cleanSource` it deletes or moves them.

    Args:
        files: the files of the new folder, by name.
        roots: the folders or URLs below which the query's file sources read. Without one, each
            source's files must share a folder that is apart from `own`, the user's home and
            the folders of the system.
        own: the folders or URLs of the log and of the checkpoint.

    Raises:
        InvalidLogError: a list names another file, or is none.
    """
    allowed = [_location(absolute(root)) for root in roots]
    shared: dict[str, _Location] = {}
    last: dict[str, str] = {}
    for name, data in files.items():
        match = _LIST.fullmatch(name)
        if match is None:
            continue
        for path, location in _listed_files(name, data):
            folder = location[:-1]
            if not allowed:
                shared[match[1]] = _common(shared.get(match[1], folder), folder)
                last[match[1]] = path
            elif not any(_is_within(location, root) for root in allowed):
                raise InvalidLogError(
                    f"{name!r} in the checkpoint lists {path[:300]!r}, which is below none of "
                    f"{', '.join(roots)}: find out who wrote its record, or correct files_under"
                )
    apart = [_location(absolute(of_query)) for of_query in own]
    for source, folder in shared.items():
        if _may_be_foreign(folder, apart):
            raise InvalidLogError(
                f"the files of source {source} in the checkpoint share no folder of their own; the "
                f"last is {last[source][:300]!r}: find out who wrote its record. If the query does "
                "read them, name their folders in files_under"
            )


def _listed_files(name: str, data: bytes) -> Iterator[tuple[str, _Location]]:
    """The files that a list names, as it names them and where they are.

    Raises:
        InvalidLogError: it is no list, or a path in it is not absolute.
    """
    for line in filter(_names_file, data.splitlines()):
        try:
            path = json.loads(line, object_pairs_hook=_object)["path"]
            location = _location(unquote(path))
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
            raise InvalidLogError(f"{name!r} in the checkpoint is no list of files") from None
        # Spark writes absolute paths only.
        is_relative = location[0] == "file" and not path.startswith(("/", "file:"))
        if is_relative or ".." in location[2:]:
            raise InvalidLogError(
                f"{name!r} in the checkpoint lists {path[:300]!r}, which is no absolute path: find "
                "out who wrote its record"
            )
        yield path, location


def _may_be_foreign(folder: _Location, own: Sequence[_Location]) -> bool:
    """Whether no source reads in a folder, as far as its place shows.

    Args:
        folder: the deepest folder that holds all files of one source.
        own: the folders of the log and of the checkpoint.
    """
    home = _location(os.path.expanduser("~"))
    below_home = folder[len(home) : len(home) + 1] if _is_within(folder, home) else ()
    return (
        # Files of two stores.
        len(folder) < _FOLDERS
        or any(_is_within(location, folder) for location in (*own, home))
        or any(_is_within(folder, location) for location in own)
        or any(_is_within(folder, ("file", "", name)) for name in _OF_SYSTEM)
        or any(name.startswith(".") for name in below_home)
    )


def _is_within(location: _Location, folder: _Location) -> bool:
    return location[: len(folder)] == folder


def _common(one: _Location, other: _Location) -> _Location:
    """The deepest folder that holds two folders."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return tuple(part for part, _ in same)


def _location(path: str) -> _Location:
    """The scheme, the host and the folders of a path. s3a:// equals s3://."""
    has_scheme = re.match("[A-Za-z][A-Za-z0-9+.-]*:", path)
    location = path.strip().partition(":")[2] if has_scheme else path
    host = ""
    if location.startswith("//"):
        host, _, location = location[2:].partition("/")
    folders = [name for name in location.split("/") if name not in ("", ".")]
    return (kind_of_store(path), host, *folders)


def _names_file(line: bytes) -> bool:
    """Whether Spark may take a line for an entry of a file source's list.

    Spark's parser ignores what follows the object. If two fields have one name, it takes the first.
    """
    text = line.decode(errors="replace")
    begin = text.find("{")
    if begin < 0:
        return False
    try:
        entry, _ = _FIELDS.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return True
    return any(name == "path" and not isinstance(value, (tuple, list)) for name, value in entry)


def _with_known_settings(plan: bytes, name: str, record: str) -> bytes:
    """The plan, a file in offsets/, without settings that are not known.

    Raises:
        InvalidLogError: it is no plan of Spark.
    """
    lines = plan.splitlines()
    try:
        metadata = json.loads(lines[1], object_pairs_hook=_object)
        settings = metadata.get("conf", {})
        allowed = {
            name: value
            for name, value in settings.items()
            if isinstance(value, str) and _is_value(name, value)
        }
    except (LookupError, AttributeError, ValueError, RecursionError):
        raise InvalidLogError(f"{record}: {name!r} in its checkpoint is no plan of Spark") from None
    if allowed == settings:
        return plan
    lines[1] = json.dumps({**metadata, "conf": allowed}, separators=(",", ":")).encode()
    return b"\n".join(lines)


def _is_value(name: str, value: str) -> bool:
    if name in _KNOWN:
        return value in _KNOWN[name]
    if name not in SETTINGS or _VALUE.fullmatch(value) is None:
        return False
    counts = name.endswith(".partitions")
    return not counts or (value.isdecimal() and 1 <= int(value) <= _MOST_PARTITIONS)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose names differ: Spark and Python may read one name twice differently."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name appears twice")
    return values
