"""Converts positions, numbers and keys, and names every object of a log (PROTOCOL §1)."""

import re

from sparkwal.errors import OptionError

# The largest number of an object. Numbers count down from it.
MAX = 2**64 - 1
WINDOWS = (1_000, 10_000, 100_000, 1_000_000)
# The sequencer's name of the log at the path itself.
ROOT = "default"
# Every folder below the path of a log.
FOLDERS = (
    "batches",
    "consumers",
    "handover",
    "lifecycle",
    "proof",
    "segments",
    "sequencers",
    "txns",
)
# The advice for another object in the folder of the records.
SUPERFLUOUS = "no object of a log has such a name; move it away"
# The positions that one segment covers.
BLOCK = 1_000
# The suffix of an object for a consumer of all logs under a path. No name has a dot.
OF_ALL = ".all"
_NAME = re.compile(r"[0-9]{20}")
CONSUMER_NAME = re.compile("[A-Za-z0-9_-]{1,200}")
SEQUENCER_NAME = re.compile("[A-Za-z0-9_-]+")
# The smallest number that an object of a log has. A LIST ignores smaller ones, which anybody may
# put, so positions always follow the last one that it shows.
LEAST_NUMBER = 2**31


def slot(position: int, window: int) -> int:
    """The number of the record at `position`.

    Raises:
        ValueError: the position is outside of the 64-bit range.
    """
    if position < 0 or position > last_position(window):
        raise ValueError(f"position {position} is outside 0 … {last_position(window)}")
    return MAX - window * position


def data(position: int, window: int, partition: int) -> int:
    """The number of a partition's data object.

    Raises:
        ValueError: the number is outside of the window.
    """
    if not 0 <= partition < window - 1:
        raise ValueError(f"partition {partition} is outside 0 … {window - 2}")
    return slot(position, window) - 1 - partition


def last_position(window: int) -> int:
    """The last position whose whole window lies in the 64-bit range."""
    return (MAX - (window - 1)) // window


# The number of positions of a log with the smallest windows. No log has more.
MOST_POSITIONS = last_position(min(WINDOWS)) + 1


def position(number: int, window: int) -> int:
    return (MAX - number) // window


def is_slot(number: int, window: int) -> bool:
    """Whether `number` is the first of its window."""
    return (MAX - number) % window == 0


def encode(number: int) -> str:
    """The number with 20 digits, so that the byte order of names is the order of numbers."""
    return f"{number:020d}"


def decode(name: str) -> int | None:
    """The number in an object's name, or None if no object of a log has such a name."""
    if not _NAME.fullmatch(name):
        return None
    number = int(name)
    return number if number <= MAX else None


def listed(name: str) -> int | None:
    """As `decode`, for a name in a LIST. A number that no log reaches gives None too."""
    number = decode(name)
    return number if number is not None and number >= LEAST_NUMBER else None


def is_foreign(name: str) -> bool:
    """Whether an object in a folder of numbered objects is another program's: no part of a log.

    Such are the marker of a folder, whose name is empty, `.DS_Store` and `Thumbs.db`. A number that
    no log reaches, and an object of another log inside, are none.
    """
    return not _NAME.fullmatch(name.rpartition("/")[2])


def is_consumer(name: str) -> bool:
    """Whether an object in the folder of the consumers is one."""
    return CONSUMER_NAME.fullmatch(name.removesuffix(OF_ALL)) is not None


def batches_prefix(prefix: str) -> str:
    return f"{prefix}/batches/" if prefix else "batches/"


def key(prefix: str, number: int) -> str:
    """`{path}/batches/{number:020d}`, relative to the store's root."""
    return batches_prefix(prefix) + encode(number)


def segments_prefix(prefix: str) -> str:
    return join_key(prefix, "segments") + "/"


def segment_key(prefix: str, block: int, window: int) -> str:
    """The key of the segment of a block. Its number is that of the block's last slot."""
    return segments_prefix(prefix) + encode(slot((block + 1) * BLOCK - 1, window))


def handover_key(prefix: str, log_id: str, term: int) -> str:
    """The key of a takeover's request to the leader of `term`. At rest no such object exists."""
    return join_key(prefix, "handover", f"{log_id}-{term:020d}")


def archive_key(prefix: str, archive: str) -> str:
    """The key of the transactions that the records no longer hold."""
    return join_key(prefix, "txns", archive)


def lifecycle_prefix(prefix: str) -> str:
    return join_key(prefix, "lifecycle") + "/"


def lifecycle_key(prefix: str, number: int) -> str:
    """The key of a lifecycle record. Its numbers count down from MAX by 1."""
    return lifecycle_prefix(prefix) + encode(number)


def consumers_prefix(prefix: str) -> str:
    return join_key(prefix, "consumers") + "/"


def consumer_key(prefix: str, name: str) -> str:
    return join_key(prefix, "consumers", name)


def join_key(prefix: str, *parts: str) -> str:
    """Join a prefix, which may be empty, and parts with "/".

    Raises:
        OptionError: a segment is empty, "." or "..", or has unprintable characters.
    """
    key = "/".join([prefix, *parts] if prefix else parts)
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise OptionError(f"{key!r} has an empty segment, '.' or '..' in it; correct the path")
        if not segment.isprintable():
            raise OptionError(f"{key!r} has unprintable characters in it; correct the path")
    return key


def sequencers_prefix(root: str) -> str:
    return join_key(root, "sequencers") + "/"


def root_prefix(prefix: str) -> str | None:
    """The prefix of the path with this sequencer's log, or None if `prefix` is no sequencer's."""
    parts = prefix.split("/")
    return "/".join(parts[:-2]) if parts[-2:-1] == ["sequencers"] else None


def sequencer_of(prefix: str) -> str:
    """The name of the log at a prefix, among the logs of its path; ROOT for the path's own."""
    return ROOT if root_prefix(prefix) is None else prefix.rpartition("/")[2]


def is_log_folder(name: str) -> bool:
    """Whether a folder under `sequencers/` is a log. No writer makes one with another name."""
    return name != ROOT and SEQUENCER_NAME.fullmatch(name) is not None


def is_sequencer(name: str) -> bool:
    """Whether a record may name a log so. Earlier records may name any folder."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()


def sequencer_prefix(root: str, sequencer: str) -> str:
    """The prefix of a sequencer's log; for ROOT the root itself."""
    return root if sequencer == ROOT else join_key(root, "sequencers", sequencer)
