"""Checks the checkpoint files that records carry, before they go into a rebuilt folder.

Anybody may have written the records, and Spark obeys such files: it sets settings of the session
from a plan, and reads the files that a source's list names.
"""

import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from sparkwal.checkpoints.names import COMMITS, OFFSETS, SOURCES, is_of_source
from sparkwal.checkpoints.offsets import by_source, listed
from sparkwal.errors import InvalidLogError
from sparkwal.store.path import absolute, scheme_of

# Settings that Spark 4.0 to 4.3 writes into a plan, and sets again from it. Those whose value may
# name a class, which Spark loads, are left out: they are for state, which no log carries.
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
_VALUE = re.compile("[A-Za-z0-9_]{1,40}")
# A driver of Spark does not survive many more tasks of one stage.
_MOST_PARTITIONS = 100_000
# Parses an object to the pairs of its names and values.
_FIELDS = json.JSONDecoder(object_pairs_hook=tuple)
_LIST = re.compile(rf"{SOURCES}/([^/]+)/([0-9]{{1,19}})(\.compact)?")


def accepted(files: Mapping[str, bytes], batch_id: int, record: str) -> dict[str, bytes]:
    """The files of a folder whose last microbatch is `batch_id`.

    A plan keeps only SETTINGS. A list of a file source stays only if the plan has read it:
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
        if not is_of_source(name):
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


def check_listed(files: Mapping[str, bytes], roots: Sequence[str]) -> None:
    """Check that the lists of file sources name only files below the folders of the sources.

    Spark lists the files of the last microbatch when it starts, and with the source's option
    `cleanSource` it deletes or moves them.

    Args:
        files: the files of the new folder, by name.
        roots: the folders or URLs below which the query's file sources read.

    Raises:
        InvalidLogError: a list names another file, or is none.
    """
    allowed = [_location(absolute(root)) for root in roots]
    for name, data in files.items():
        if _LIST.fullmatch(name) is None:
            continue
        for line in filter(_names_file, data.splitlines()):
            try:
                path = json.loads(line, object_pairs_hook=_object)["path"]
                scheme, host, folders = _location(unquote(path))
            except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
                raise InvalidLogError(f"{name!r} in the checkpoint is no list of files") from None
            # Spark writes absolute paths only.
            is_relative = scheme == "file" and not path.startswith(("/", "file:"))
            if (
                is_relative
                or ".." in folders
                or not any(
                    (scheme, host) == root[:2] and folders[: len(root[2])] == root[2]
                    for root in allowed
                )
            ):
                raise InvalidLogError(
                    f"{name!r} in the checkpoint lists {path[:300]!r}, which is below none of "
                    f"{', '.join(roots)}: find out who wrote its record, or correct files_under"
                )


def _location(path: str) -> tuple[str, str, list[str]]:
    """The scheme, the host and the folders of a path. s3a:// equals s3://."""
    scheme = scheme_of(path)
    rest = path.strip().partition(":")[2] if re.match("[A-Za-z][A-Za-z0-9+.-]*:", path) else path
    host = ""
    if rest.startswith("//"):
        host, _, rest = rest[2:].partition("/")
    folders = [each for each in rest.split("/") if each not in ("", ".")]
    return "s3" if scheme in ("s3a", "s3n") else scheme, host, folders


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
    """The plan, a file in offsets/, without settings that are not in SETTINGS.

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
            if name in SETTINGS and isinstance(value, str) and _is_value(name, value)
        }
    except (LookupError, AttributeError, ValueError, RecursionError):
        raise InvalidLogError(f"{record}: {name!r} in its checkpoint is no plan of Spark") from None
    if allowed == settings:
        return plan
    lines[1] = json.dumps({**metadata, "conf": allowed}, separators=(",", ":")).encode()
    return b"\n".join(lines)


def _is_value(name: str, value: str) -> bool:
    if _VALUE.fullmatch(value) is None:
        return False
    counts = name.endswith(".partitions")
    return not counts or (value.isdecimal() and 1 <= int(value) <= _MOST_PARTITIONS)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose names differ: Spark and Python may read one name twice differently."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name appears twice")
    return values
