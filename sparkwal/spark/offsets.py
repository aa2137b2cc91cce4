"""The offsets of a stream over logs, as Spark keeps them in its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from sparkwal.errors import InvalidLogError
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.holds import LOG_ID
from sparkwal.reading.streaming import StreamedLog
from sparkwal.spark.logs import Logs

# {sequencer: next position}, and under LOG_ID + sequencer the id of the log that it belongs to.
# Where a log first appears, _FROM + sequencer says which position its rows begin at, unless it is
# 0: the floor of later is not where they began. No sequencer's name holds a colon.
Offset = dict[str, int | str]
_FROM = "from:"


def offset_of(
    logs: Logs[StreamedLog],
    positions: Mapping[str, int],
    entries: Mapping[str, int] = MappingProxyType({}),
) -> Offset:
    """The offset of a stream that has come so far; `entries` says where logs that appear begin."""
    offset: Offset = {_FROM + name: str(entry) for name, entry in entries.items() if entry}
    offset.update(positions)
    for name in positions:
        if (log_id := logs[name].log_id) is not None:
            offset[LOG_ID + name] = log_id
    # Spark compares offsets as texts.
    return dict(sorted(offset.items()))


def positions_in(offset: Offset, options: SourceOptions) -> dict[str, int]:
    """The next position of each log. Raises InvalidLogError."""
    found = {name: place for name, place in offset.items() if isinstance(place, int)}
    others = [n for n in offset if n not in found and not n.startswith((LOG_ID, _FROM))]
    several, single = options.sequencers, options.sequencer
    if others or not (several or single in found):
        raise InvalidLogError(
            f"the checkpoint holds the offset {json.dumps(offset)}, which is none of this "
            "source; use a new checkpoint"
        )
    return found if several else {single: found[single]}


def entry_in(offset: Offset, name: str) -> int:
    """Where the rows of a log begin that appears in this offset."""
    return int(offset.get(_FROM + name, 0))


def check_offset(offset: Offset, positions: Mapping[str, int], logs: Logs[StreamedLog]) -> None:
    """Raises InvalidLogError where an offset speaks of other logs than there are now."""
    for name, position in positions.items():
        if name in logs:
            log_id = offset.get(LOG_ID + name)
            logs[name].check_offset(position, None if log_id is None else str(log_id))
