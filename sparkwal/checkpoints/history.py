"""Reads the input of each microbatch from its record: the offsets before and after it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwal.checkpoints import packing
from sparkwal.checkpoints.offsets import by_source, listed
from sparkwal.checkpoints.unread import listed_files
from sparkwal.format.header import CommitHeader
from sparkwal.format.limits import json_in
from sparkwal.protocol import chain
from sparkwal.protocol.records import WIDEST_PROBE, live_records
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.slots import SlotRecord
from sparkwal.store.base import LogStore

# The offsets of a microbatch by source; JSON where the source writes JSON, else text.
Offsets = Mapping[str, Any]


@dataclass(frozen=True)
class Input:
    """The input of one microbatch, as its record carries it.

    Attributes:
        header: the header of the record.
        begin: the offsets before this microbatch, or None if the record lacks them.
        end: the offsets after this microbatch, or None if the record lacks them.
        watermark_ms: the event-time watermark in the plan, or 0.
        files: of each file source, {path: number of its last entry in the list} of the files
            in the lists that the record carries.
        reason: the reason without offsets, or "".
    """

    header: CommitHeader
    begin: Offsets | None = None
    end: Offsets | None = None
    watermark_ms: int = 0
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    reason: str = ""

    @property
    def position(self) -> int:
        return self.header.position


def inputs(log: LogStore, head: Head, start: int, end: int) -> Iterator[Input]:
    """Read the input of each microbatch of positions start … end−1: 1 GET for each position.

    Args:
        log: the log.
        head: its head.
        start: the first position, not below the floor.
        end: at most the head's gap.

    Raises:
        InvalidLogError: a record is damaged or missing.
    """
    for record in live_records(head.view(log), start, end, at_once=WIDEST_PROBE):
        if isinstance(record.header, CommitHeader):
            yield _input(log, record, record.header)


def _input(log: LogStore, record: SlotRecord, header: CommitHeader) -> Input:
    entry = header.checkpoints.get(header.query_id)
    if entry is None or entry.position != header.position:
        return Input(header, reason="an appender or a batch wrote it")
    if not entry.bytes:
        return Input(header, reason=entry.reason or "the record carries no checkpoint")
    files = packing.read_block(log, header.window, header.query_id, header.position, record)
    return read_input(header, files)


def read_input(header: CommitHeader, files: Mapping[str, bytes]) -> Input:
    """The input of a microbatch, from the files that its record carries."""
    number = header.batch_id
    plan = files.get(f"offsets/{number}", b"")
    before = files.get(f"offsets/{number - 1}")
    end = parsed(plan)
    if end is None:
        return Input(header, reason="the record does not carry the plan of its microbatch")
    begin = parsed(before) if before is not None else None
    lists: dict[str, dict[str, int]] = {}
    for source, path, entry in listed_files(files):
        entries = lists.setdefault(source, {})
        entries[path] = max(entry, entries.get(path, -1))
    is_listed = {source: listed(text) is not None for source, text in _texts(plan).items()}
    lists = {source: entries for source, entries in lists.items() if is_listed.get(source)}
    return Input(header, begin, end, _watermark(plan), lists)


def parsed(plan: bytes) -> dict[str, Any] | None:
    """The offset of each source in a file of offsets/, or None if it is torn."""
    sources = by_source(plan)
    return None if sources is None else {name: _value(text) for name, text in sources.items()}


def _texts(plan: bytes) -> dict[str, bytes]:
    return by_source(plan) or {}


def _value(text: bytes) -> Any:
    """An offset as JSON, or as text if it is none. The result for "-" is None."""
    if text.strip() == b"-":
        return None
    try:
        return json_in(text)
    except ValueError:
        return text.decode(errors="replace")


def _watermark(plan: bytes) -> int:
    """The event-time watermark in a plan, in milliseconds, or 0."""
    try:
        watermark = json_in(plan.splitlines()[1])["batchWatermarkMs"]
    except (LookupError, TypeError, ValueError):
        return 0
    return watermark if isinstance(watermark, int) and watermark > 0 else 0


def floor_of(log: LogStore, head: Head) -> int:
    """The floor of a log: 1 LIST, and 1 GET if it has a lifecycle."""
    log_id = head.live.header.log_id if head.live else None
    state = chain.newest_lifecycle(log, log_id)
    return state.floor if state else 0
