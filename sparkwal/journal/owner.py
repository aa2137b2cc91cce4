"""Whose entries a journal holds, and whether they fit the log that it is opened for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkwal import events
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.events import Event
from sparkwal.journal.files import Cursor
from sparkwal.journal.scanning import Contents
from sparkwal.journal.segment import Header


@dataclass(frozen=True)
class Owner:
    """Whose entries a journal takes."""

    log: str  # for messages
    log_id: str
    producer: str
    durable: int  # the newest sequence of the producer that the log has; −1 for none
    schema: bytes  # how to read the content of new entries

    @property
    def name(self) -> tuple[str, str]:
        return self.log_id, self.producer

    def owns(self, what: Cursor | Header) -> bool:
        return what.owner == self.name


def check_owner(
    path: str, contents: Contents, owner: Owner, publish: Callable[[Event], None]
) -> bool:
    """Whether the journal at `path` has another owner, who needs none of it any more. Raises
    OptionError if their log may lack entries, InvalidLogError if this log lacks some that it had
    acknowledged."""
    cursor, segments = contents.cursor, contents.segments
    rejected = contents.rejected
    if cursor is not None and not owner.owns(cursor):
        rejected = "it is of another log or another producer"
    elif cursor is not None and cursor.sequence > owner.durable:
        rejected = f"it is at {cursor.sequence}, ahead of the log's {owner.durable}"
    if rejected:
        publish(events.CursorRejected(path=path, reason=rejected))
    # SAFETY(own-entries-only) §11: only entries of this log and producer are sent
    if segments and not owner.owns(segments[0].header):
        _check_unused(path, contents, owner)
        return True
    if not segments and contents.damage and cursor is not None and not owner.owns(cursor):
        raise OptionError(
            f"journal {path} holds a damaged file, and its cursor is of log {cursor.log_id}, "
            f"producer {cursor.producer!r}: nobody knows whose entries are in it. Open it once "
            "with that one, or give another folder"
        )
    _check_log(path, contents, owner)
    return False


def _check_unused(path: str, contents: Contents, owner: Owner) -> None:
    header, cursor = contents.segments[0].header, contents.cursor
    done = contents.first - 1
    if cursor is not None and cursor.owner == header.owner:
        done = max(done, cursor.sequence)
    # SAFETY(foreign-never-dropped) §11: waiting entries of another log or producer are never
    # dropped
    if contents.last <= done and contents.damage is None:
        return
    if header.producer != owner.producer:
        whose = f"of producer {header.producer!r}, and this is {owner.producer!r}"
    else:
        whose = (
            f"of log {header.log_id}, and {owner.log} is log {owner.log_id}: it was recreated, "
            "or this is another path"
        )
    raise OptionError(
        f"journal {path} holds {contents.last - done} entries {whose}. Open it once with the "
        "former, or give another folder: nothing of it is lost"
    )


def _check_log(path: str, contents: Contents, owner: Owner) -> None:
    """Check that the log or the journal has everything that the log acknowledged."""
    cursor = contents.cursor
    # The journal sends again what it still has, whatever the cursor says.
    if contents.segments and owner.durable >= contents.first - 1:
        return
    acknowledged = contents.first - 1 if contents.segments else -1
    if cursor is not None and owner.owns(cursor):
        acknowledged = max(acknowledged, cursor.sequence)
    if acknowledged > owner.durable:
        raise InvalidLogError(
            f"{owner.log} has entries of producer {owner.producer!r} up to {owner.durable}, and "
            f"had acknowledged those up to {acknowledged}, which are not in the journal {path} "
            "any more: the log was restored from an older copy. Restore a newer one; to go on "
            "without them give another journal folder"
        )
