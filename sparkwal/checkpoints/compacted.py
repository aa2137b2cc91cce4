"""The compacted lists of file sources: the interval that Spark derives from those in a folder.

Spark compacts each list whose number ends an interval, and looks for compacted lists there only. A
query derives the interval when it starts: from the distance of the newest two compacted lists, and
from the number of the newest if there is one. So it may be another than that of the lists which
follow, and Spark would miss a compacted list at each start.
"""

import re
from collections.abc import Mapping

from sparkwal.checkpoints.names import SOURCES
from sparkwal.format.limits import json_in

_LIST = re.compile(rf"({SOURCES}/[^/]+)/([0-9]{{1,19}})(\.compact)?")
# Spark's own interval, and the longest that is looked for.
USUAL, LONGEST = 10, 10_000


def with_interval(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Add the compacted list before the newest one of each source, at a distance that fits.

    Args:
        files: the files of a new folder, by name, with one compacted list of a source at most.
    """
    newest: dict[str, int] = {}
    compacted: dict[str, int] = {}
    for match in filter(None, map(_LIST.fullmatch, files)):
        numbers = (newest, compacted) if match[3] else (newest,)
        for of_kind in numbers:
            of_kind[match[1]] = max(of_kind.get(match[1], 0), int(match[2]))
    added: dict[str, bytes] = {}
    for folder, last in compacted.items():
        before = last - _interval(last + 1, newest[folder] - last)
        if before >= 0:
            data = files[f"{folder}/{last}.compact"]
            added[f"{folder}/{before}.compact"] = _entries(data, before)
    return {**files, **added}


def _interval(count: int, later: int) -> int:
    """The shortest usual interval that divides the lists and is longer than those after them."""
    intervals = range(max(USUAL, later + 1), min(count, LONGEST))
    return next((interval for interval in intervals if count % interval == 0), count)


def _entries(compacted: bytes, number: int) -> bytes:
    """The compacted list of a lower number: the version, and the entries of the lists up to it."""
    version, *lines = compacted.splitlines()
    return b"\n".join([version, *(line for line in lines if _number(line) <= number)])


def _number(line: bytes) -> int:
    try:
        return int(json_in(line)["batchId"])
    except (ValueError, LookupError, TypeError):
        # Spark would not read it either.
        return 0
