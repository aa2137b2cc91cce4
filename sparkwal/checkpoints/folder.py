"""Reads a streaming query's checkpoint folder on this machine's disk.

metadata        {"id": the query's id}
offsets/N       the input of microbatch N, written before it runs
commits/N       written after microbatch N ended
sources/name/…  what a source stores: the files that it has seen, its first offset
state/          of stateful operators
sparkwal.json   the log and query of the folder, if `sparkwal.checkpoint` made it
sparkwal-empty.json  the last microbatch that wrote no record
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from isal.isal_zlib import crc32

from sparkwal.checkpoints import query_state
from sparkwal.checkpoints.names import (
    COMMITS,
    EMPTY,
    METADATA,
    OWNER,
    SOURCES,
    is_of_source,
    source_files,
)
from sparkwal.checkpoints.offsets import by_source, input_text, listed, positions
from sparkwal.errors import InvalidLogError, NewerFormatError, OptionError
from sparkwal.format import checked, keys, versions
from sparkwal.format.header import Checkpoint, Origin, QueryState
from sparkwal.format.limits import json_in
from sparkwal.protocol.holds import Span
from sparkwal.store.path import folder, is_local

# The URI of a file on this machine: file:/x, file:///x or /x, but not file://host/x.
_LOCAL = re.compile("(?:file:(?://(?:localhost)?)?)?(/(?!/).*)", re.DOTALL)
_NUMBERED = re.compile(r"([0-9]{1,19})(\.compact)?")


@dataclass(frozen=True)
class Owner:
    """The log and query of a folder.

    Attributes:
        log: the log, as `LogStore.identity`.
        log_id: its id; it may be of a future log.
        name: the query's name.
        origin: the place from which the query was forked, or None.
    """

    log: str
    log_id: str
    name: str
    origin: Origin | None = None

    @property
    def forked_after(self) -> int:
        """The last microbatch whose rows are in the log that was forked; −1 without a fork."""
        return self.origin.batch_id if self.origin else -1


def local_folder(location: str) -> Path | None:
    """The folder of a checkpointLocation, or None if it is not on this machine's disk."""
    try:
        return folder(location) if is_local(location) else None
    except OptionError:  # the location is empty or names another host
        return None


def listed_file(uri: str) -> Path | None:
    """The file that Spark lists by a URI, or None if it is not on this machine's disk.

    Spark encodes the paths in its lists and statistics: `file:///in/a%20b` is the file `/in/a b`.
    """
    match = _LOCAL.fullmatch(uri)
    return Path(os.fsdecode(unquote_to_bytes(match[1]))) if match else None


def log_folders(log_path: str, sequencer: str) -> list[Path]:
    """The folders of a local log: its own and those of its objects, links followed. Else an empty
    list."""
    root = local_folder(log_path)
    if root is None:
        return []
    own = root / keys.sequencer_prefix("", sequencer)
    folders = [root, *(log / name for log in (root, own) for name in keys.FOLDERS)]
    return [Path(os.path.realpath(path)) for path in folders]


def query_of(path: Path) -> str | None:
    """The id of the query whose checkpoint this is, or None without one."""
    match read_json(path / METADATA):
        case {"id": str(query_id)}:
            return query_id
    return None


def owner_of(path: Path) -> Owner | None:
    """The owner that `sparkwal.checkpoint` wrote into the folder, or None without one.

    Raises:
        NewerFormatError: a newer version wrote it.
    """
    try:
        fields = dict(read_json(path / OWNER))
        versions.check_optional(versions.NOTE, fields, str(path / OWNER))
        if "origin" in fields:
            fields["origin"] = checked.read(Origin, fields["origin"], OWNER)
        return Owner(**fields)
    except NewerFormatError:
        raise
    except (TypeError, ValueError, InvalidLogError):
        return None


def owner_text(owner: Owner) -> bytes:
    """The content of `sparkwal.json`."""
    fields = asdict(owner)
    if owner.origin is None:
        del fields["origin"]
    return json.dumps(fields, indent=1).encode()


def read_json(path: Path) -> Any:
    """Parse a file as JSON, or return None if it is missing or damaged."""
    try:
        return json_in(path.read_bytes())
    except (OSError, ValueError):
        return None


def read(path: Path, name: str) -> bytes | None:
    """Read a file of the folder, or return None if it is missing."""
    try:
        return (path / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def latest(path: Path, kind: str) -> int:
    """The highest number in offsets/ or commits/; −1 for none."""
    try:
        numbers = [int(name) for name in os.listdir(path / kind) if name.isdecimal()]
    except OSError:
        return -1
    return max(numbers, default=-1)


def torn(path: Path, entry: Checkpoint | None = None) -> str | None:
    """The first file that Spark could not read when it starts, or None.

    Spark renames complete files into the folder but syncs none, so a loss of power may empty one.

    Args:
        path: the folder.
        entry: the entry of the query's last record, or None.
    """
    if query_of(path) is None:
        return METADATA
    last, done = latest(path, "offsets"), latest(path, "commits")
    if last < 0 <= done:
        return f"offsets/{done}"
    needed = [f"offsets/{number}" for number in (last - 1, last) if number >= 0]
    needed += [f"commits/{done}"] if done >= 0 else []
    needed += _source_files(path)
    unreadable = next((name for name in needed if not _is_complete(path, name)), None)
    if unreadable:
        return unreadable
    # SAFETY(whole-state) §12: a folder is used only if Spark can load the state of its next plan
    if (lacking := query_state.unreadable(path, done + 1)) is not None:
        return lacking
    if last < 0:
        return None
    # The list of a file source may lack the newest files that the last microbatch reads.
    without_list = _without_list(path, entry)
    for source, offset in (by_source(read(path, f"offsets/{last}") or b"") or {}).items():
        number = None if source in without_list else listed(offset)
        name = f"{SOURCES}/{source}"
        files = os.listdir(path / name) if (path / name).is_dir() else ()
        if number is not None and max((_number(file)[0] for file in files), default=-1) < number:
            return name
    return None


def _without_list(path: Path, last: Checkpoint | None) -> set[str]:
    """The sources that keep no list of their own, by the query's last record.

    Spark plans the source of a query that joins a stream with itself twice, and lists its files
    once.
    """
    inputs = last.inputs if last else {}
    plans = (read(path, name) or b"" for name in inputs if name.startswith("offsets/"))
    planned = {source for plan in plans for source in by_source(plan) or {}}
    return planned - {name.split("/")[1] for name in inputs if name.startswith(f"{SOURCES}/")}


def _number(name: str) -> tuple[int, bool]:
    """The number in the name of a source's file (−1: none), and whether the file is compacted."""
    match = _NUMBERED.fullmatch(name)
    return (int(match[1]), match[2] is not None) if match else (-1, False)


def sweep(path: Path) -> None:
    """Remove the hidden file in offsets/ that a killed write of the first plan leaves.

    Spark begins a new query only if offsets/ and commits/ hold no file, hidden or not.
    """
    if latest(path, "offsets") >= 0:
        return
    for kind in ("offsets", "commits"):
        for file in (path / kind).glob(".*"):
            file.unlink(missing_ok=True)


def _is_complete(path: Path, name: str) -> bool:
    """Whether a file has content; for a plan or a commit, whether its second line is JSON."""
    data = read(path, name)
    # Blocks that did not reach the disk are missing or zero.
    if not data or data.endswith(b"\0"):
        return False
    if is_of_source(name):
        return True
    lines = data.splitlines()
    try:
        is_json = lines[0].startswith(b"v") and isinstance(json_in(lines[1]), dict)
    except (IndexError, ValueError):
        return False
    return is_json and (name.startswith(f"{COMMITS}/") or by_source(data) is not None)


def microbatch_files(path: Path, batch_id: int) -> dict[str, int]:
    """The files that a new machine needs to continue after this microbatch: {name: bytes}."""
    sizes: dict[str, int] = {}
    for name in (f"offsets/{batch_id}", f"offsets/{batch_id - 1}", f"commits/{batch_id - 1}"):
        with suppress(FileNotFoundError):
            sizes[name] = (path / name).stat().st_size
    # SAFETY(carry-source-files) §12: a record carries the source files that a new machine needs
    return sizes | _source_files(path)


def _source_files(path: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for parent, names in source_files(path):
        # N.compact repeats all entries of the files up to N.
        begin = max((n for n, compact in map(_number, names) if compact), default=-1)
        for name in names:
            number, compact = _number(name)
            if number < 0 or number > begin or (number == begin and compact):
                file = parent / name
                sizes[file.relative_to(path).as_posix()] = file.stat().st_size
    return sizes


def is_compact(name: str) -> bool:
    """Whether a source compacted its list into this file, which never changes."""
    return name.startswith(f"{SOURCES}/") and name.endswith(".compact")


def inputs(path: Path, batch_id: int, names: Iterable[str]) -> dict[str, int]:
    """{name: CRC-32} of the files that name a microbatch's input: offsets/N, each source's newest
    file."""
    newest: dict[str, tuple[int, str]] = {}
    for name in names:
        parent, _, last = name.rpartition("/")
        number, _ = _number(last)
        if is_of_source(name) and number >= 0:
            newest[parent] = max(newest.get(parent, (number, name)), (number, name))
    wanted = [f"offsets/{batch_id}", *(name for _, name in newest.values())]
    digests = {name: digest(path, name) for name in wanted}
    return {name: crc for name, crc in digests.items() if crc is not None}


def digest(path: Path, name: str) -> int | None:
    """The CRC-32 of a file's text about its sources, or None if the file is missing or torn."""
    data = read(path, name)
    if data is not None and name.startswith("offsets/"):
        data = input_text(data)
    return None if data is None else crc32(data)


def other_input(
    logged: Mapping[str, bytes], earlier: Mapping[str, tuple[int, int]], path: Path, batch_id: int
) -> str | None:
    """Find the first file by which the folder plans other input than the log for a microbatch.

    Args:
        logged: the content of the files that the record carries, by name.
        earlier: (position, bytes) of the files that earlier records carry, by name.
        path: the folder.
        batch_id: the microbatch.

    Returns:
        The name of the file, or None if the input is the same.
    """
    for name, (_, size) in sorted(earlier.items()):
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            return name
    for name, data in sorted(logged.items()):
        local = read(path, name)
        if name.startswith("offsets/"):
            if name != f"offsets/{batch_id}" and local is None:
                continue  # Spark deletes all but the last hundred
            same = local is not None and by_source(local) == by_source(data) is not None
        else:
            # SAFETY(compare-source-files) §12: a replay's source files are those in the log
            same = local == data or not is_of_source(name)
        if not same:
            return name
    return None


@dataclass(frozen=True)
class _Note:
    """No microbatch after the record of `after` up to `batch_id` wrote a record."""

    batch_id: checked.Whole
    inputs: dict[str, checked.Whole]
    after: Checkpoint


checked.prepare(_Note)


def done(path: Path, before: int, last: Checkpoint | None) -> int:
    """The number of the last microbatch that ended.

    That is `before`, the query's last one in the log, or the last one without a record since. The
    note of that one counts only if it names the record `last`.

    Raises:
        NewerFormatError: a newer version wrote the note.
    """
    try:
        document = read_json(path / EMPTY)
        versions.check_optional(versions.NOTE, document, str(path / EMPTY))
        empty = checked.read(_Note, document, EMPTY)
    except NewerFormatError:
        raise
    except InvalidLogError:
        return before
    # SAFETY(note-names-record) §12: a note counts only after the very record that it names
    if last is None or empty.after != last:
        return before
    if any(digest(path, name) not in (None, crc) for name, crc in empty.inputs.items()):
        return before
    return max(before, empty.batch_id)


def note(path: Path, batch_id: int, last: Checkpoint) -> bytes:
    """The content of the note that `done` reads, for the microbatches up to this one."""
    names = microbatch_files(path, batch_id)
    content = _Note(batch_id, inputs(path, batch_id, names), last)
    return checked.to_json(versions.NOTE, checked.plain(content))


def spans(path: Path, before: int, batch_id: int) -> dict[str, list[Span]] | None:
    """For each log that the query reads, the spans from microbatch `before` to `batch_id`.

    Returns:
        (position after `before`, position after `batch_id`) of each source, by `log_id`. None if
        the folder lacks one of the two offset files. If `before` is −1, the spans begin at 0.
    """
    begins = by_source(read(path, f"offsets/{before}") or b"") if before >= 0 else {}
    ends = by_source(read(path, f"offsets/{batch_id}") or b"")
    if begins is None or ends is None:
        return None
    log_spans: dict[str, list[Span]] = {}
    for source, offset in ends.items():
        begin = positions(begins.get(source, b""))
        for log_id, position in positions(offset).items():
            log_spans.setdefault(log_id, []).append((begin.get(log_id, 0), position))
    return log_spans


def repeated_spans(path: Path, last: QueryState | None, batch_id: int) -> dict[str, list[Span]]:
    """The spans that a stateful query holds when it puts the record of a microbatch, or repeats it.

    A rebuild repeats the microbatch of the last record. Until the new record is durable, that is
    the one before.
    """
    # SAFETY(hold-repeated) §12: a stateful query holds the input of its last record and of this one
    spans_after = spans(path, batch_id - 1, batch_id) or {}
    if last is None:
        return spans_after
    before = spans(path, last.version - 1, batch_id - 1)
    if before is None:
        # Spark has deleted the plan before: hold all.
        before = {log_id: [(0, end) for end, _ in added] for log_id, added in spans_after.items()}
    return {log_id: [*before.get(log_id, []), *added] for log_id, added in spans_after.items()}
