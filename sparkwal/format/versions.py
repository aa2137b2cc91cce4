"""The version of each kind of what is stored, and the refusal of a newer one (PROTOCOL §14)."""

from typing import Any

from sparkwal.errors import InvalidLogError, NewerFormatError

# The error of a newer version contains this text. Nothing is damaged then, so commands do not
# advise to restore it.
NEWER = "a newer sparkwal wrote this"
# The field of a document that holds its version.
FIELD = "format"
LOG = "log"
LIFECYCLE = "record"
CONSUMER = "consumer"
ARCHIVE = "archive"
HINT = "hint"
JOURNAL = "journal"
CURSOR = "cursor"
# Version 1 of these has no field. A checkpoint of version 2 has a state beside it. An offset and a
# cursor of version 2 have a place in a table. In a lifecycle record of version 2 rows
# of a log step aside, or did so; in one of version 3 they are written again, or were.
CHECKPOINT = "checkpoint"
OFFSET = "offset"
NOTE = "note"
# The version of each kind that this library writes. It reads this one and all before, but a hint of
# another version counts as none.
VERSIONS = {
    LOG: 1,
    LIFECYCLE: 3,
    CONSUMER: 1,
    ARCHIVE: 1,
    HINT: 7,
    JOURNAL: 1,
    CURSOR: 2,
    CHECKPOINT: 2,
    OFFSET: 2,
    NOTE: 1,
}


def check_optional(kind: str, document: Any, location: str) -> None:
    """Check the version of a document of a kind whose version 1 has none, as `check`."""
    if isinstance(document, dict) and FIELD in document:
        check(kind, document[FIELD], location)


def check(kind: str, version: Any, location: str) -> None:
    """Check the version of one stored object or file.

    Args:
        kind: its kind.
        version: the version in its bytes.
        location: its name, for errors.

    Raises:
        NewerFormatError: the version is newer than this library reads.
        InvalidLogError: it is no version.
    """
    reads = VERSIONS[kind]
    # A text may hold a bool, which is an int.
    if type(version) is not int or version < 1:
        raise InvalidLogError(f"{location}: format {str(version)[:20]}; a whole number is expected")
    # §14: what a newer version wrote is neither read nor taken for damage
    if version > reads:
        raise NewerFormatError(
            f"{location}: format {str(version)[:20]}, and this sparkwal reads up to {reads}: "
            f"{NEWER} {kind}. Nothing is damaged. Upgrade sparkwal here: "
            "all readers before the first writer"
        )
