"""Checks that the files which a forked query must read again are still there."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkwal import events
from sparkwal.checkpoints import folder, packing
from sparkwal.checkpoints.names import SOURCES
from sparkwal.checkpoints.offsets import by_source, listed
from sparkwal.checkpoints.place import Base
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format.limits import json_in

# Names of missing files in a message.
_NAMED = 3


def check_files(base: Base, files: Mapping[str, bytes], *, ignore_missing: bool) -> None:
    """Check the files that the forked query read after the place of the fork.

    It looks at files on this machine's disks only. It costs 1 GET if the newest record is another
    query's, and 1 for each compacted list that the fork did not read.

    If those records are damaged, nothing is checked: the fork does not need them.

    Args:
        base: the place.
        files: the checkpoint there, by names.
        ignore_missing: report missing files instead of raising.

    Raises:
        OptionError: a file is missing.
    """
    begin = _listed(files, base.origin.batch_id)
    if not begin:
        return
    query = base.origin.name
    try:
        newest = _newest_files(base, files)
    except InvalidLogError as damage:
        reason = f"the newest checkpoint of the forked query cannot be read: {damage}"
        events.emit(events.ForkNotChecked(base.log.url, query, reason))
        return
    # A compacted list repeats those before it.
    unread = {
        path for source, path, number in listed_files(newest) if number > begin.get(source, number)
    }
    missing = sorted(filter(is_missing, unread))
    if not missing:
        return
    shown = ", ".join(missing[:_NAMED])
    others = f" and {len(missing) - _NAMED} others" if len(missing) > _NAMED else ""
    reason = (
        f"query {query!r} read {shown}{others} after position {base.origin.position} of "
        f"{base.log.url}, and {len(missing)} of them are missing"
    )
    if not ignore_missing:
        raise OptionError(
            f"{reason}: the fork could not read them again. Put them back, fork at a later "
            "position, or give sparkwal.Fork ignore_missing_files=True to leave their rows out"
        )
    events.emit(events.ForkNotChecked(base.log.url, query, f"{reason}: their rows are left out"))


def check_repeated(files: Mapping[str, bytes], batch_id: int, target: Path) -> None:
    """Check the files that a stateful query reads again when it repeats a microbatch for its state.

    It looks at files on this machine's disks only.

    Args:
        files: the checkpoint at that microbatch, by names.
        batch_id: the microbatch.
        target: the new folder, for the message.

    Raises:
        OptionError: a file is missing.
    """
    before = _listed(files, batch_id - 1)
    ends = _listed(files, batch_id)
    read = {
        path
        for source, path, number in listed_files(files)
        if before.get(source, -1) < number <= ends.get(source, -1)
    }
    # SAFETY(repeat-whole-input) §12: Spark passes over a missing file, and the state would lack it
    if missing := sorted(filter(is_missing, read)):
        raise OptionError(
            f"cannot make {target}: a stateful query repeats microbatch {batch_id} for its state, "
            f"and {missing[0]}, which it read, is missing. Put it back (cleanSource moves or "
            "deletes such files: leave it out). Otherwise start a query with another name, whose "
            "state is empty, and let its source begin at files of your choice"
        )


def _listed(files: Mapping[str, bytes], batch_id: int) -> dict[str, int]:
    """The last entry that each file source has read, by the source's name."""
    offsets = by_source(files.get(f"offsets/{batch_id}", b"")) or {}
    entries = {source: listed(offset) for source, offset in offsets.items()}
    return {source: entry for source, entry in entries.items() if entry is not None}


def _newest_files(base: Base, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The lists of files in the newest checkpoint of the forked query, except those in `files`.

    Raises:
        InvalidLogError: a record is damaged or missing.
    """
    if base.newest is None:
        raise InvalidLogError("the newest record is damaged")
    record = base.newest
    query_id = base.origin.query_id
    entry = record.header.checkpoints.get(query_id)
    if entry is None or entry.position <= base.origin.position or not entry.bytes:
        return {}
    own = record if entry.position == record.header.position else None
    return packing.read_files(base.log, base.window, query_id, entry, own, cached=files)


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
    """Whether a file of this machine's disks is missing. The path is as Spark lists it."""
    local = folder.listed_file(path)
    return local is not None and not _exists(local)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True
