"""Parses a file in offsets/: the offset of each source in one microbatch.

version 1            version 2
{times, settings}    {times, settings}
{"logOffset":1}      orders:{"logOffset":1}
-                    1:-

Two plans of the same input differ only in the second line. "-" marks a source that has no offset
yet. A source is named like its folder under sources/: by its number, or by the name that the user
chose.
"""

import re
from collections.abc import Mapping

from sparkwal.errors import OptionError
from sparkwal.format.limits import json_in
from sparkwal.protocol.holds import LOG_ID

SOURCE_NAME = "[A-Za-z0-9_]+"
_NAMED = re.compile(rf"({SOURCE_NAME}):(.*)".encode(), re.DOTALL)
_VERSION = re.compile(rb"v([0-9]{1,9})")
_COMMIT_VERSIONS = 3
_LISTED = re.compile(rb'\{"logOffset":([0-9]{1,19})\}')


def by_source(offsets: bytes) -> dict[str, bytes] | None:
    """The offset of each source, by its name, or None for a torn file.

    Raises:
        OptionError: Spark wrote a version that this sparkwal does not read.
    """
    lines = offsets.splitlines()
    version = _VERSION.fullmatch(lines[0]) if lines else None
    if version is None:
        return None
    number, offset_lines = int(version[1]), lines[2:]
    if number == 1:
        return {str(n): line for n, line in enumerate(offset_lines)} or None
    if number != 2:
        raise OptionError(
            f"Spark wrote version {number} of its offset log, and this sparkwal reads 1 and 2. "
            "sparkwal wrote nothing. Upgrade it, or set "
            "spark.sql.streaming.offsetLog.formatVersion=2 and use a new checkpoint"
        )
    named = [_NAMED.fullmatch(line) for line in offset_lines]
    sources = {match[1].decode(): match[2] for match in named if match is not None}
    # Spark writes each name once, in any order.
    return sources if 0 < len(sources) == len(offset_lines) else None


def input_text(offsets: bytes) -> bytes | None:
    """The part of an offset file that plans of the same input share, or None for a torn file."""
    sources = by_source(offsets)
    if sources is None:
        return None
    if offsets.startswith(b"v1"):
        return b"\n".join(sources.values())
    return b"\n".join(name.encode() + b":" + sources[name] for name in sorted(sources))


def check_commit(commit: bytes) -> None:
    """Check that a file in commits/ may stand for the next microbatch of a stateless query too.

    Version 2 adds the location of the state, version 3 the names of the sinks.

    Raises:
        OptionError: Spark wrote a version that this sparkwal does not read.
    """
    version = _VERSION.match(commit)
    if version and int(version[1]) > _COMMIT_VERSIONS:
        raise OptionError(
            f"Spark wrote version {int(version[1])} of its commit log, and this sparkwal reads up "
            f"to {_COMMIT_VERSIONS}. sparkwal wrote nothing. Upgrade it"
        )


def listed(offset: bytes) -> int | None:
    """The number of the last list entry that a file source reads, or None for another source."""
    match = _LISTED.fullmatch(offset)
    return int(match[1]) if match else None


def positions(offset: bytes) -> dict[str, int]:
    """The positions of a log source, by `log_id`. Empty for another source."""
    try:
        document = json_in(offset)
    except ValueError:
        document = None
    fields = document if isinstance(document, Mapping) else {}
    return {
        str(log_id): position
        for name, log_id in fields.items()
        if name.startswith(LOG_ID)
        and isinstance(position := fields.get(name.removeprefix(LOG_ID)), int)
    }


def is_of_files(offset: object) -> bool:
    """Whether this is the offset of a file source, as JSON."""
    return isinstance(offset, dict) and offset.keys() == {"logOffset"}


def listed_until(offset: object) -> int:
    """The last entry of its list that a file source has read; −1 for none."""
    match offset:
        case {"logOffset": int(number)}:
            return number
    return -1


def is_of_log(offset: object) -> bool:
    """Whether this is the offset of a log source, as JSON."""
    return isinstance(offset, dict) and any(name.startswith(LOG_ID) for name in offset)
