"""A file in offsets/: how far one microbatch reads each source.

version 1            version 2
{times, settings}    {times, settings}
{"logOffset":1}      orders:{"logOffset":1}
-                    1:-

Two plans of one input differ in the second line. "-" is a source that has no offset yet. A source's
name is that of its folder under sources/: its number, or the name that the user gave it.
"""

import json
import re
from collections.abc import Mapping

from sparkwal.errors import OptionError
from sparkwal.protocol.holds import LOG_ID

SOURCE_NAME = "[A-Za-z0-9_]+"
_NAMED = re.compile(rf"({SOURCE_NAME}):(.*)".encode(), re.DOTALL)
_VERSION = re.compile(rb"v([0-9]{1,9})")
_COMMIT_VERSIONS = 3
_LISTED = re.compile(rb'\{"logOffset":([0-9]{1,19})\}')


def by_source(offsets: bytes) -> dict[str, bytes] | None:
    """The offset of each source, by its name; None for a torn file.

    Raises:
        OptionError: Spark wrote a version that this sparkwal does not know.
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
            "Nothing was written. Upgrade sparkwal, or set "
            "spark.sql.streaming.offsetLog.formatVersion=2 and use a new checkpoint"
        )
    named = [_NAMED.fullmatch(line) for line in offset_lines]
    found = {match[1].decode(): match[2] for match in named if match is not None}
    # Spark writes each name once, in any order.
    return found if 0 < len(found) == len(offset_lines) else None


def input_text(offsets: bytes) -> bytes | None:
    """What two plans of one input have in common; None for a torn file."""
    sources = by_source(offsets)
    if sources is None:
        return None
    if offsets.startswith(b"v1"):
        return b"\n".join(sources.values())
    return b"\n".join(name.encode() + b":" + sources[name] for name in sorted(sources))


def check_commit(commit: bytes) -> None:
    """Check that a file in commits/ may serve as that of the next microbatch of a stateless query:
    version 2 adds where the state is, version 3 the names of the sinks.

    Raises:
        OptionError: Spark wrote a version that this sparkwal does not know.
    """
    version = _VERSION.match(commit)
    if version and int(version[1]) > _COMMIT_VERSIONS:
        raise OptionError(
            f"Spark wrote version {int(version[1])} of its commit log, and this sparkwal reads up "
            f"to {_COMMIT_VERSIONS}. Nothing was written. Upgrade sparkwal"
        )


def listed(offset: bytes) -> int | None:
    """How far a file source reads in its list of files; None for another source."""
    match = _LISTED.fullmatch(offset)
    return int(match[1]) if match else None


def positions(offset: bytes) -> dict[str, int]:
    """The positions of a log source, by `log_id`; none for another source."""
    try:
        document = json.loads(offset)
    except ValueError:
        document = None
    places = document if isinstance(document, Mapping) else {}
    return {
        str(log_id): position
        for name, log_id in places.items()
        if name.startswith(LOG_ID)
        and isinstance(position := places.get(name.removeprefix(LOG_ID)), int)
    }
