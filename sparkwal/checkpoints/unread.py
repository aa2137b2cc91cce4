"""Checks that the files which a forked query must read again are still there."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkwal.checkpoints import carry, folder
from sparkwal.checkpoints.fork import Base
from sparkwal.checkpoints.names import SOURCES
from sparkwal.checkpoints.offsets import by_source, listed
from sparkwal.errors import OptionError
from sparkwal.format.header import NOWHERE
from sparkwal.format.limits import json_in

# Names of missing files in a message.
_NAMED = 3


def check_files(base: Base, files: Mapping[str, bytes]) -> None:
    """Check the files that the forked query read after the place of the fork.

    It looks at files on this machine's disks only. It costs 1 GET if the newest record is another
    query's, and 1 for each compacted list that the fork did not read.

    Args:
        base: the place.
        files: the checkpoint there, by names.

    Raises:
        OptionError: a file is missing.
    """
    begin = _listed(files, base.origin.batch_id)
    if not begin or base.newest is None:
        return
    missing = sorted(
        path
        for source, path, number in listed_files(_newest_files(base, files))
        if number > begin.get(source, number) and is_missing(path)
    )
    if missing:
        shown = ", ".join(missing[:_NAMED])
        others = f" and {len(missing) - _NAMED} others" if len(missing) > _NAMED else ""
        raise OptionError(
            f"query {base.origin.name!r} read {shown}{others} after position "
            f"{base.origin.position} of {base.log.url}, and {len(missing)} of them are missing: "
            "the fork could not read them again. Put them back, or fork at a later position"
        )


def _listed(files: Mapping[str, bytes], batch_id: int) -> dict[str, int]:
    """The last entry that each file source has read, by the source's name."""
    offsets = by_source(files.get(f"offsets/{batch_id}", b"")) or {}
    entries = {source: listed(offset) for source, offset in offsets.items()}
    return {source: entry for source, entry in entries.items() if entry is not None}


def _newest_files(base: Base, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The lists of files in the newest checkpoint of the forked query."""
    assert base.newest is not None
    record, front = base.newest
    query_id = base.origin.query_id
    entry = record.header.checkpoints.get(query_id)
    if entry is None or entry.position <= base.origin.position or not entry.bytes:
        return {}
    is_own = entry.position == record.header.position
    carried = carry.read_block(
        base.log, base.window, query_id, entry.position, front if is_own else None
    )
    positions: dict[int, list[str]] = {}
    for name, (position, size) in entry.files.items():
        if position not in (NOWHERE, entry.position) and len(files.get(name, b"")) != size:
            positions.setdefault(position, []).append(name)
    for position, names in positions.items():
        block = carry.read_block(base.log, base.window, query_id, position)
        carried.update((name, block[name]) for name in names if name in block)
    return carried


def listed_files(files: Mapping[str, bytes]) -> Iterator[tuple[str, str, int]]:
    """(source, path, number of the entry) of each file in the lists of file sources."""
    for name, data in files.items():
        parts = name.split("/")
        if parts[0] != SOURCES or len(parts) != 3:
            continue
        for path, number in _files_in(data):
            yield parts[1], path, number


def _files_in(data: bytes) -> Iterator[tuple[str, int]]:
    """(path, number of the entry) of each file in one file of a source's list."""
    for line in data.splitlines():
        try:
            entry = json_in(line)
        except ValueError:
            continue
        match entry:
            case {"path": str(path), "batchId": int(number)}:
                yield path, number


def is_missing(path: str) -> bool:
    """Whether a file of this machine's disks is missing."""
    local = folder.local_folder(path) if path.startswith(("file:", "/")) else None
    return local is not None and not _exists(local)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True
