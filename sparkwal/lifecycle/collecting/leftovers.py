"""Finds what a collection removes beside the records of a log: segments, uploads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.arrowfile import open_front
from sparkwal.protocol.recovery import Head
from sparkwal.store.base import Entry, LogStore, NotFound, Unfinished, numbered
from sparkwal.store.parallel import run_parallel

# The bytes of a segment that hold its header.
_FRONT = 256 * 2**10


@dataclass(frozen=True)
class Leftovers:
    """What was listed for several logs of a path together.

    Attributes:
        uploads: by the folder of the records: the unfinished uploads.
        is_for_several: several logs are collected.
    """

    uploads: Mapping[str, Sequence[Unfinished]]
    is_for_several: bool = False

    def uploads_below(self, log: LogStore, head: Head, bound: int) -> Iterator[Unfinished]:
        """The unfinished uploads of a log to positions below the bound."""
        prefix = keys.batches_prefix(log.prefix)
        for upload in self.uploads.get(prefix, ()):
            number = keys.listed(upload.key.removeprefix(prefix))
            if number is not None and keys.position(number, head.window) < bound:
                yield upload


def list_leftovers(logs: Sequence[LogStore]) -> Leftovers:
    """List the unfinished uploads of logs of one path: 1 LIST for each thousand."""
    root = logs[0].root
    several = len(logs) > 1
    prefix = keys.batches_prefix(logs[0].prefix)
    if several:
        prefix = f"{root.prefix}/" if root.prefix else ""
    uploads: dict[str, list[Unfinished]] = {}
    after = ""
    while True:
        page = root.store.unfinished(prefix, after)
        for upload in page.uploads:
            uploads.setdefault(f"{upload.key.rpartition('/')[0]}/", []).append(upload)
        if not (after := page.after):
            break
    return Leftovers(uploads, is_for_several=several)


def unneeded_segments(log: LogStore, head: Head, bound: int) -> Iterator[Entry]:
    """The segments with a position below the bound or beyond the head, and those of another log.

    It costs 1 LIST for each thousand segments, and 1 GET for each one that stays.
    """
    assert head.live is not None
    log_id = head.live.header.log_id

    def is_foreign(entry: Entry) -> bool:
        try:
            front = open_front(log.store.get_range(entry.key, 0, _FRONT), entry.key)
        except (InvalidLogError, NotFound):
            # `sparkwal segment` replaces a damaged one.
            return False
        return front.header.log_id != log_id

    staying: list[Entry] = []
    # Readers that need a segment take the records, so no delete harms one.
    for number, entry in numbered(log.store, keys.segments_prefix(log.prefix)):
        position = keys.position(number, head.window)
        # A segment with one position below the bound has copies of rows that left the log.
        if position - keys.BLOCK + 1 < bound or position > head.position:
            yield entry
        else:
            staying.append(entry)
    checked = run_parallel(log.store, is_foreign, staying)
    yield from (entry for entry, foreign in zip(staying, checked, strict=True) if foreign)
