"""Compares two queries over the same sources, stretch by stretch of their offsets."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from isal.isal_zlib import crc32

from sparkwal.checkpoints.history import Input, Offsets, floor_of, inputs
from sparkwal.checkpoints.offsets import is_of_files, listed_until
from sparkwal.errors import OptionError
from sparkwal.format.content import Content
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.repeated import stored_content
from sparkwal.protocol.segments import with_copies
from sparkwal.protocol.slots import read_slot
from sparkwal.store.base import LogStore

# The state of all sources of a query. Equal for two queries that have read the same.
Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cut:
    """A place between two records of a query.

    Attributes:
        position: the position of the last record before it; −1 before the first.
        keys: the states of the sources there. Microbatches without a record may make two of it.
        records: the number of records before it.
    """

    position: int
    keys: tuple[Key, ...]
    records: int


@dataclass(frozen=True)
class Side:
    """One query of a comparison.

    Attributes:
        log: its log.
        head: its head.
        query: its name.
        records: its records in order.
        cuts: the cuts before, between and after them.
    """

    log: LogStore
    head: Head
    query: str
    records: tuple[CommitHeader, ...]
    cuts: tuple[Cut, ...]


@dataclass(frozen=True)
class Stretch:
    """A stretch of the sources' offsets that both queries have read.

    Attributes:
        a: the first and last position of the first query's records in it; None without a record.
        b: the first and last position of the second query's records.
        rows_a: the rows of the first query.
        rows_b: the rows of the second query.
        same: whether the rows are the same ones, in any order.
        ending_position: a reader of the first log that ends at this position has read all up to
            the end of the stretch.
        starting_position: a reader of the second log that begins here reads what comes after.
        offsets: the state of each source at the end.
    """

    a: tuple[int, int] | None
    b: tuple[int, int] | None
    rows_a: int
    rows_b: int
    same: bool
    ending_position: int
    starting_position: int
    offsets: Offsets


def side_of(log: LogStore, query: str | None, option: str = "--query") -> Side:
    """Read the input of all microbatches of a query: 1 GET for each position.

    Args:
        log: the log.
        query: the name or id of the query. Without it, the log has one only.
        option: the option of the command that names the query, for errors.

    Raises:
        OptionError: the log does not exist, or the query cannot be compared.
        InvalidLogError: a record is damaged or missing.
    """
    log = with_copies(log)
    head = find_head(log)
    if head.live is None:
        raise OptionError(f"there is no log at {log.url}; check the path")
    floor = floor_of(log, head)
    names: dict[str, str] = {}
    records: list[Input] = []
    for entry in inputs(log, head, floor, head.gap):
        header = entry.header
        if header.query_id in header.checkpoints and query in (None, header.query, header.query_id):
            names[header.query_id] = header.query
            records.append(entry)
    if len(names) != 1:
        names_of = ", ".join(sorted(map(repr, names.values()))) or "none"
        raise OptionError(
            f"{log.url} holds these queries: {names_of}; name the one to compare with {option}"
        )
    for entry in records:
        if entry.end is None:
            raise OptionError(
                f"position {entry.position} of {log.url} does not carry the offsets of its "
                f"microbatch ({entry.reason}), so the query cannot be compared"
            )
    headers = tuple(entry.header for entry in records)
    return Side(log, head, names.popitem()[1], headers, tuple(_cuts(records)))


def _cuts(records: list[Input]) -> Iterator[Cut]:
    # By source: the files that were read so far.
    files: dict[str, set[str]] = {}
    ends: list[Key] = []
    position = -1
    for number, entry in enumerate(records):
        begin, end = entry.begin or {}, entry.end or {}
        for source, entries in entry.files.items():
            last = listed_until(begin.get(source))
            read = files.setdefault(source, set())
            read.update(path for path, at in entries.items() if at <= last)
        yield Cut(position, tuple(dict.fromkeys([*ends, _key(begin, files)])), number)
        for source, entries in entry.files.items():
            last = listed_until(end.get(source))
            files[source].update(path for path, at in entries.items() if at <= last)
        ends = [_key(end, files)]
        position = entry.position
    yield Cut(position, tuple(ends), len(records))


def _key(offsets: Offsets, files: dict[str, set[str]]) -> Key:
    """The state of the sources. A list of files counts by its files, not by their number."""
    parts = []
    for source, offset in sorted(offsets.items()):
        if is_of_files(offset):
            read = files.get(source, set())
            total = sum(crc32(path.encode()) for path in read)
            parts.append((source, f"{len(read)} files {total}"))
        elif offset is not None:
            parts.append((source, json.dumps(offset, sort_keys=True)))
    return tuple(parts)


def stretches(a: Side, b: Side) -> Iterator[Stretch]:
    """Compare the common stretches in order. It reads the rows of each.

    Raises:
        InvalidLogError: an object is damaged or missing.
    """
    of_b = {key: cut for cut in b.cuts for key in cut.keys}
    begin: tuple[Cut, Cut] | None = None
    for cut in a.cuts:
        other = next((of_b[key] for key in cut.keys if key in of_b), None)
        if other is None or (begin is not None and other.records < begin[1].records):
            continue
        if begin is not None and (cut.records, other.records) != (
            begin[0].records,
            begin[1].records,
        ):
            yield _compared(a, b, begin, (cut, other))
        begin = (cut, other)


def _compared(a: Side, b: Side, begin: tuple[Cut, Cut], end: tuple[Cut, Cut]) -> Stretch:
    one = a.records[begin[0].records : end[0].records]
    other = b.records[begin[1].records : end[1].records]
    contents = [_content(side, records) for side, records in ((a, one), (b, other))]
    key = next(iter(set(end[0].keys) & set(end[1].keys)))
    return Stretch(
        a=(one[0].position, one[-1].position) if one else None,
        b=(other[0].position, other[-1].position) if other else None,
        rows_a=contents[0].rows,
        rows_b=contents[1].rows,
        same=contents[0] == contents[1],
        ending_position=end[0].position,
        starting_position=end[1].position + 1,
        offsets=dict(key),
    )


def _content(side: Side, records: tuple[CommitHeader, ...]) -> Content:
    content = Content()
    for header in records:
        record = read_slot(side.log, header.position, side.head.window)
        if record is None:
            raise OptionError(
                f"position {header.position} of {side.log.url} was collected meanwhile: compare "
                "again"
            )
        content += stored_content(side.log, record, header)
    return content
