"""Letting go what the log has: the cursor first, then whole segments."""

from __future__ import annotations

from collections.abc import Callable

from sparkwal import events
from sparkwal.events import Event
from sparkwal.journal import files
from sparkwal.journal.files import Cursor
from sparkwal.journal.segments import Segments
from sparkwal.journal.storage import Folder


def checkpoint(
    folder: Folder,
    segments: Segments,
    acked: int,
    publish: Callable[[Event], None],
    *,
    first: int | None = None,
    ends: tuple[int, int] | None = None,
) -> None:
    """Write the cursor: the log has every entry up to `acked`, and segments below `first` are to
    be removed. Raises JournalError, OSError for no room."""
    header = segments.oldest.header
    first = header.id if first is None else first
    cursor = Cursor(header.log_id, header.producer, acked, first, segments.next_id, ends)
    files.write_cursor(folder, cursor)
    publish(events.Checkpointed(path=folder.path, sequence=acked))


def let_go(
    folder: Folder, segments: Segments, acked: int, publish: Callable[[Event], None]
) -> None:
    """Remove the segments that hold nothing after `acked`. Raises JournalError, OSError."""
    done = segments.done(acked)
    first = done[-1].header.id + 1 if done else None
    # Safety (§11): "files go before the cursor says so"
    checkpoint(folder, segments, acked, publish, first=first)
    for segment in done:
        segments.remove(segment)
        publish(
            events.SegmentRemoved(path=folder.path, segment=segment.header.id, last=segment.last)
        )
    files.keep_reserve(folder)
