"""What Spark keeps of a streaming query in a checkpoint folder on this machine's disk.

metadata        {"id": the query's id}
offsets/N       what microbatch N reads, written before it runs
commits/N       that it is done
sources/name/…  what a source remembers: the files that it has seen, where it began
state/          of stateful operators
sparkwal.json   whose folder it is, if `sparkwal.checkpoint` made it
sparkwal-empty.json  the last microbatch that wrote nothing: no record names it
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

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
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import checked, keys
from sparkwal.format.header import Checkpoint
from sparkwal.protocol.holds import Span
from sparkwal.store.path import folder, is_local

_NUMBERED = re.compile(r"([0-9]{1,19})(\.compact)?")


@dataclass(frozen=True)
class Owner:
    """Whose folder it is: `log` is `LogStore.identity`; `log_id` may be of a log yet to come."""

    log: str
    log_id: str
    name: str


def local_folder(location: str) -> Path | None:
    """Where a checkpointLocation lies on this machine's disk, or None for any other place."""
    try:
        return folder(location) if is_local(location) else None
    except OptionError:  # empty, or of another host
        return None


def log_folders(path: str, sequencer: str) -> list[Path]:
    """A local log: its own folder, then those of its objects, with links followed. Else none."""
    root = local_folder(path)
    if root is None:
        return []
    own = root / keys.sequencer_prefix("", sequencer)
    found = [root, *(log / name for log in (root, own) for name in keys.FOLDERS)]
    return [Path(os.path.realpath(each)) for each in found]


def query_of(path: Path) -> str | None:
    """The id of the query whose checkpoint this is, or None where there is none."""
    match read_json(path / METADATA):
        case {"id": str(found)}:
            return found
    return None


def owner_of(path: Path) -> Owner | None:
    """Who made the folder, or None if it was not `sparkwal.checkpoint`."""
    try:
        return Owner(**read_json(path / OWNER))
    except TypeError:
        return None


def owner_text(owner: Owner) -> bytes:
    """The content of `sparkwal.json`."""
    return json.dumps(asdict(owner), indent=1).encode()


def read_json(path: Path) -> Any:
    """A file as JSON; None where it is not there, or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def read(path: Path, name: str) -> bytes | None:
    """A file of the folder, or None where it is not there."""
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


def torn(path: Path) -> str | None:
    """The first file that Spark could not read when it starts, or None. Spark renames whole files
    into place but syncs none: a loss of power may leave one without its content."""
    if query_of(path) is None:
        return METADATA
    last, done = latest(path, "offsets"), latest(path, "commits")
    if last < 0 <= done:
        return f"offsets/{done}"
    wanted = [f"offsets/{number}" for number in (last - 1, last) if number >= 0]
    wanted += [f"commits/{done}"] if done >= 0 else []
    wanted += _source_files(path)
    lost = next((name for name in wanted if not _whole(path, name)), None)
    if lost or last < 0:
        return lost
    # Or the first file source whose list lacks what the last microbatch reads.
    for source, offset in (by_source(read(path, f"offsets/{last}") or b"") or {}).items():
        entry = listed(offset)
        name = f"{SOURCES}/{source}"
        files = os.listdir(path / name) if (path / name).is_dir() else ()
        if entry is not None and max((_number(file)[0] for file in files), default=-1) < entry:
            return name
    return None


def _number(name: str) -> tuple[int, bool]:
    """The number that a source gave its file, −1 for none, and whether it repeats all before."""
    match = _NUMBERED.fullmatch(name)
    return (int(match[1]), match[2] is not None) if match else (-1, False)


def sweep(path: Path) -> None:
    """Remove what a killed write of the first plan left: a hidden file in offsets/. Spark begins a
    query only where offsets/ and commits/ hold nothing, hidden or not."""
    if latest(path, "offsets") >= 0:
        return
    for kind in ("offsets", "commits"):
        for file in (path / kind).glob(".*"):
            file.unlink(missing_ok=True)


def _whole(path: Path, name: str) -> bool:
    """Whether a file has its content; of a plan or a commit, whether its second line is JSON."""
    data = read(path, name)
    # What did not reach the disk is missing or zero.
    if not data or data.endswith(b"\0"):
        return False
    if is_of_source(name):
        return True
    lines = data.splitlines()
    try:
        is_json = lines[0].startswith(b"v") and isinstance(json.loads(lines[1]), dict)
    except (IndexError, ValueError):
        return False
    return is_json and (name.startswith(f"{COMMITS}/") or by_source(data) is not None)


def microbatch_files(path: Path, batch_id: int) -> dict[str, int]:
    """{name: bytes} of all that a new machine needs to go on after this microbatch."""
    sizes: dict[str, int] = {}
    for name in (f"offsets/{batch_id}", f"offsets/{batch_id - 1}", f"commits/{batch_id - 1}"):
        with suppress(FileNotFoundError):
            sizes[name] = (path / name).stat().st_size
    # SAFETY(carry-source-files) §12: a record carries the source files that a new machine needs
    return sizes | _source_files(path)


def _source_files(path: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for parent, names in source_files(path):
        # A file source repeats in N.compact all that its files up to N say.
        begin = max((n for n, compact in map(_number, names) if compact), default=-1)
        for name in names:
            number, compact = _number(name)
            if number < 0 or number > begin or (number == begin and compact):
                file = parent / name
                sizes[file.relative_to(path).as_posix()] = file.stat().st_size
    return sizes


def is_compact(name: str) -> bool:
    """Whether a source wrote this file once and only appends others to it."""
    return name.startswith(f"{SOURCES}/") and name.endswith(".compact")


def inputs(path: Path, batch_id: int, names: Iterable[str]) -> dict[str, int]:
    """{name: CRC-32} of what names a microbatch's input: its offsets, each source's newest file."""
    newest: dict[str, tuple[int, str]] = {}
    for name in names:
        parent, _, last = name.rpartition("/")
        number, _ = _number(last)
        if is_of_source(name) and number >= 0:
            newest[parent] = max(newest.get(parent, (number, name)), (number, name))
    wanted = [f"offsets/{batch_id}", *(name for _, name in newest.values())]
    found = {name: digest(path, name) for name in wanted}
    return {name: crc for name, crc in found.items() if crc is not None}


def digest(path: Path, name: str) -> int | None:
    """The CRC-32 of what a file says of the sources; None where it is not there, or torn."""
    data = read(path, name)
    if data is not None and name.startswith("offsets/"):
        data = input_text(data)
    return None if data is None else crc32(data)


def other_input(
    theirs: Mapping[str, bytes], elsewhere: Mapping[str, tuple[int, int]], path: Path, batch_id: int
) -> str | None:
    """The first file by which the folder plans a microbatch with other input than the log's record,
    which carries `theirs`; `elsewhere` are the {name: (position, bytes)} of earlier records."""
    for name, (_, size) in sorted(elsewhere.items()):
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            return name
    for name, data in sorted(theirs.items()):
        mine = read(path, name)
        if name.startswith("offsets/"):
            if name != f"offsets/{batch_id}" and mine is None:
                continue  # Spark keeps the last hundred
            same = mine is not None and by_source(mine) == by_source(data) is not None
        else:
            # SAFETY(compare-source-files) §12: a replay's source files are those in the log
            same = mine == data or not is_of_source(name)
        if not same:
            return name
    return None


@dataclass(frozen=True)
class _Note:
    """All microbatches after the record of `after` up to `batch_id` wrote nothing."""

    batch_id: checked.Whole
    inputs: dict[str, checked.Whole]
    after: Checkpoint


checked.prepare(_Note)


def done(path: Path, before: int, last: Checkpoint | None) -> int:
    """The last microbatch that is done: `before`, the query's last in the log, or the last of those
    that wrote nothing since. A note after another record than `last` does not count."""
    try:
        noted = checked.read(_Note, read_json(path / EMPTY), EMPTY)
    except InvalidLogError:
        return before
    # SAFETY(note-names-record) §12: a note counts only after the very record that it names
    if last is None or noted.after != last:
        return before
    if any(digest(path, name) not in (None, crc) for name, crc in noted.inputs.items()):
        return before
    return max(before, noted.batch_id)


def note(path: Path, batch_id: int, last: Checkpoint) -> bytes:
    """What `done` reads after the microbatches up to this one."""
    names = microbatch_files(path, batch_id)
    return checked.to_json(checked.plain(_Note(batch_id, inputs(path, batch_id, names), last)))


def spans(path: Path, before: int, batch_id: int) -> dict[str, list[Span]] | None:
    """Of each log that the query reads, by its `log_id`: where it was after the microbatch
    `before`, and where it is after `batch_id`. None where that is not known."""
    earlier = read(path, f"offsets/{before}")
    now = read(path, f"offsets/{batch_id}")
    if earlier is None or now is None:
        return None
    begins, ends = by_source(earlier), by_source(now)
    if begins is None or ends is None:
        return None
    found: dict[str, list[Span]] = {}
    for source, offset in ends.items():
        begin = positions(begins.get(source, b""))
        for log_id, position in positions(offset).items():
            found.setdefault(log_id, []).append((begin.get(log_id, 0), position))
    return found
