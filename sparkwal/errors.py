"""The errors that users can meet. Each message ends with what to do."""

import json
from importlib.util import find_spec
from typing import ClassVar


def escape(text: str, keep: str = "") -> str:
    r"""Escape the characters of an untrusted text that could control a terminal.

    Control characters, direction marks and other invisible characters become JSON escapes such as
    \u001b, except those in `keep`. Untrusted: a log's writers choose the names of its hosts,
    leaders and columns.
    """
    if text.isprintable():  # true for most texts
        return text
    keep += "\u200c\u200d"  # these join letters of some scripts and do not change direction
    return "".join(
        character if character.isprintable() or character in keep else json.dumps(character)[1:-1]
        for character in text
    )


class SparkWalError(Exception):
    """The base class of all errors that sparkwal raises on purpose.

    A message may quote a log, a store or another library, so no character of it controls a
    terminal or begins another line.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(escape(message.replace("\n", " ")))


class OptionError(SparkWalError, ValueError):
    """The request is wrong: an option, a path, a schema, a mode or a row.

    sparkwal wrote nothing. Change what the message names, then run again.
    """


class StoreUnavailableError(SparkWalError):
    """The object store failed each attempt of a request.

    sparkwal acknowledged nothing. When the store answers again, run again with the same checkpoint.

    Attributes:
        maybe_applied: a write among the attempts may have taken effect, although it got no answer.
    """

    def __init__(self, message: str, *, maybe_applied: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied


class FencedError(SparkWalError):
    """Another writer leads this log now, so this writer stops.

    The log holds only what this writer acknowledged: not this microbatch, and no append
    without acknowledgement. Stop one of the two writers. A restart with the same checkpoint, or a
    new appender with the same `producer_id`, takes the log over again.

    Attributes:
        leader: the part of the message that names the new leader.
    """

    def __init__(self, message: str, *, leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class RecomputedError(SparkWalError):
    """Spark computed a partition again, and its rows differ from those that it stored before.

    sparkwal committed nothing of this microbatch. Restart with the same checkpoint: Spark then
    writes the microbatch again, into a new window.
    """


class DivergedCheckpointError(SparkWalError):
    """A checkpoint or a batch write and the log have different rows under the same number.

    The checkpoint was restored from a backup or copied from another query, or its log was
    recreated. sparkwal wrote nothing, and nothing is lost. Give the query the folder that
    ``sparkwal.checkpoint(path, name)`` makes from the log, and restart it.
    """


class OutcomeUnknownError(SparkWalError):
    """A commit was sent and got no answer: it may be durable or not.

    Restart the query with the same checkpoint, or open a new appender with the same `producer_id`:
    the log shows what is durable, and sparkwal writes nothing twice. The log cannot show that of
    a batch write without `txnAppId`: read the log.
    """


class InvalidLogError(SparkWalError):
    """An object of the log is damaged or missing, or the protocol never writes such an object.

    Attributes:
        position: the position of the damaged or missing record, if it is a record.
        key: the name of the damaged or missing object, if it holds rows.
    """

    position: int | None = None
    key: str | None = None


class NewerFormatError(InvalidLogError):
    """A newer sparkwal wrote this object or file, and this one does not read its format.

    Nothing is damaged, and sparkwal changed nothing. Upgrade sparkwal here. On the way to a newer
    format all readers are upgraded before the first writer.
    """


class CollectedError(SparkWalError):
    """The rows left the log: these positions are below the log's floor.

    If the log has a table, the table has the rows, and ``sparkwal.read_current`` reads both as
    one. To continue with what the log still holds, set `failOnDataLoss=false`, or start at `floor`
    with a new checkpoint or cursor.

    Attributes:
        floor: the first position that the log still holds.
    """

    def __init__(self, message: str, *, floor: int = 0) -> None:
        super().__init__(message)
        self.floor = floor


class TableReadError(SparkWalError):
    """The log's table, or the version that a read began with, is unreadable.

    The log has lost nothing. After a VACUUM read again; otherwise fix what the message names.
    """


class BackPressureError(SparkWalError):
    """A buffer, a journal or the log is full, so nothing of this append was accepted.

    Either `maxBufferedBytes` already wait for the store, or the journal is full, or the log has
    reached `hardLimitBytes` because its compaction is behind. Append again later, or let `append`
    block.
    """


class _Staged:
    """Gives each kind of an error its `stage` and whether a caller may retry."""

    stage: ClassVar[str] = ""
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, stage: str = "", retryable: bool = False) -> None:
        cls.stage, cls.retryable = stage, retryable


class CompactionError(_Staged, SparkWalError):
    """A range of the log did not reach its table.

    Compaction stops and skips nothing: the log keeps every row that the table is not confirmed
    to hold. Fix what the message names and run compaction again; it continues with this range.

    Attributes:
        stage: how far it came: plan, read, write, confirm or publish.
    """


class PlanError(CompactionError, stage="plan"):
    """The table's settings, the options or the log do not allow this compaction."""


class ReadError(CompactionError, stage="read"):
    """A record or an object of the range is unreadable."""


class WriteError(CompactionError, stage="write"):
    """The table did not accept the range."""


class ConfirmError(CompactionError, stage="confirm"):
    """The table differs from what the log recorded: it was restored, replaced or recreated."""


class PublishError(CompactionError, stage="publish"):
    """The table has the range, but the log could not record it."""


class JournalError(_Staged, SparkWalError):
    """The journal on this machine's disk failed.

    Appends that it accepted before are still on the disk. Unless the error is `retryable`, the
    journal has stopped, because the content of the disk is uncertain. Fix what the message names
    and open the journal again: it then reads all its files, and `last_sequence` shows what it has.

    Attributes:
        stage: the step that failed: encode, write, read, sync, rename or sync of the folder.
        retryable: the journal wrote nothing, and the same append may be repeated.
    """


class JournalEncodeError(JournalError, stage="encode", retryable=True):
    """The rows could not be encoded; the journal wrote nothing."""


class JournalWriteError(JournalError, stage="write"):
    """A file was written in part or not at all, and the disk is not full."""


class JournalReadError(JournalError, stage="read"):
    """A file is unreadable, or its content changed after it was written."""


class JournalSyncError(JournalError, stage="sync"):
    """The fsync of a file failed: a second fsync may report success without a sync."""


class JournalRenameError(JournalError, stage="rename", retryable=True):
    """A complete file did not get its name; the former file is untouched."""


class JournalFolderSyncError(JournalError, stage="sync of the folder"):
    """The fsync of the folder failed: a restart may find other files."""


def documented(error: SparkWalError) -> type[SparkWalError]:
    """The class of an error in this module, instead of a subclass that only the protocol uses."""
    classes = type(error).__mro__
    return next(base for base in classes if base.__module__ == __name__)


def install_extra(extra: str) -> str:
    """The command that installs sparkwal with an extra. No package index has sparkwal yet."""
    return f"pip install '.[{extra}]' in a clone of sparkwal"


def require_library(library: str, advice: str) -> None:
    """Check that an optional library is installed.

    Args:
        library: the module to import.
        advice: the command that installs it, for the error: see `install_extra`.

    Raises:
        OptionError: the library is not installed.
    """
    if find_spec(library) is None:
        raise OptionError(f"{library} is not installed for this Python: {advice}")
