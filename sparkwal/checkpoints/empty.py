"""Microbatches that wrote nothing: no record names them, so the folder itself notes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sparkwal.checkpoints import folder
from sparkwal.format.memory import Checkpoint
from sparkwal.protocol.holds import LOG_ID, Span


def done(path: Path, before: int, last: Checkpoint | None) -> int:
    """The last microbatch that is done: `before`, the query's last in the log, or the last of those
    that wrote nothing since. A note after any other record than `last` is old, or the log lost that
    record."""
    note = folder.read_json(path / folder.EMPTY)
    try:
        # SAFETY(note-names-record) §12: a note counts only after the very record that it names
        if last is None or note["after"] != _plain(last):  # type: ignore[index]
            return before
        inputs, batch_id = note["inputs"].items(), int(note["batch_id"])  # type: ignore[index]
    except (TypeError, KeyError, AttributeError, ValueError):
        return before
    if any(folder.digest(path, name) not in (None, crc) for name, crc in inputs):
        return before
    return max(before, batch_id)


def note(path: Path, batch_id: int, last: Checkpoint) -> bytes:
    """That all microbatches after the record of `last` up to this one wrote nothing."""
    names = folder.microbatch_files(path, batch_id)
    document = {
        "batch_id": batch_id,
        "inputs": folder.inputs(path, batch_id, names),
        "after": _plain(last),
    }
    return json.dumps(document).encode()


def _plain(last: Checkpoint) -> object:
    return json.loads(json.dumps(vars(last)))


def spans(path: Path, before: int, batch_id: int) -> dict[str, list[Span]] | None:
    """Of each log that the query reads, by its `log_id`: where it was after the microbatch
    `before`, and where it is after `batch_id`. None where that is not known."""
    earlier = folder.read(path, f"offsets/{before}")
    now = folder.read(path, f"offsets/{batch_id}")
    if earlier is None or now is None:
        return None
    begins, ends = _positions(earlier), _positions(now)
    found: dict[str, list[Span]] = {}
    for source, end in enumerate(ends):
        begin = begins[source] if source < len(begins) else {}
        for log_id, position in end.items():
            found.setdefault(log_id, []).append((begin.get(log_id, 0), position))
    return found


def _positions(offsets: bytes) -> list[dict[str, int]]:
    """Of each source the positions in the logs that it reads, by their `log_id`."""
    found = []
    for line in folder.input_of(offsets) or []:
        try:
            offset = json.loads(line)
        except ValueError:
            offset = None
        places = offset if isinstance(offset, Mapping) else {}
        found.append(
            {
                str(log_id): position
                for name, log_id in places.items()
                if name.startswith(LOG_ID)
                and isinstance(position := places.get(name.removeprefix(LOG_ID)), int)
            }
        )
    return found
