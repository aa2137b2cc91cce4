"""The errors a user can meet: few kinds, each saying what to do next."""

from importlib.util import find_spec
from typing import ClassVar


class SparkWalError(Exception):
    """Base of every error this library raises on purpose."""


class OptionError(SparkWalError, ValueError):
    """The request itself is wrong: an option, a path, a schema, a mode.

    Nothing was written. Change what the message names and run again.
    """


class StoreUnavailableError(SparkWalError):
    """The object store did not do what was asked, after all attempts.

    Nothing was acknowledged. Run again with the same checkpoint once the store answers. With
    `maybe_applied` a write among the attempts may have taken effect although no answer came.
    """

    def __init__(self, message: str, *, maybe_applied: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied


class FencedError(SparkWalError):
    """Another writer leads this log now; this one must not write any more.

    Only what was reported to it as durable is in the log: neither this microbatch, nor what an
    appender had not acknowledged. Stop one of the two writers; a restart with the same checkpoint,
    or a new appender with the same producer_id, takes the log over again. `leader` is the part of
    the message that names who leads.
    """

    def __init__(self, message: str, *, leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class RecomputedError(SparkWalError):
    """Spark computed a partition again, and its rows differ from those it stored before.

    Nothing of this microbatch was committed. Restart with the same checkpoint: all of it is
    written again, into a new window.
    """


class DivergedCheckpointError(SparkWalError):
    """The checkpoint, or a batch write, and the log have different rows under the same number.

    A checkpoint was restored from a backup, copied from another query, or its log was recreated.
    Nothing was written and nothing is lost: give the query the folder that
    ``sparkwal.checkpoint(path, name)`` makes from the log, and restart it.
    """


class OutcomeUnknownError(SparkWalError):
    """A commit was sent and no answer came: it may or may not be durable.

    Restart with the same checkpoint (a query) or open a new appender with the same
    producer_id: the log's record of transactions shows whether it is there, and it is
    not written twice. A batch write without txnAppId has no such record: read the log.
    """


class InvalidLogError(SparkWalError):
    """The log holds something that the protocol never writes, or lacks something that it must hold.

    `position` is that of the record that is damaged or missing, where it is a record; `key` that
    of the object, where it holds rows.
    """

    position: int | None = None
    key: str | None = None


class CollectedError(SparkWalError):
    """The rows left the log: these positions are below the log's floor.

    Where the log has a table they are there (``sparkwal.read_current`` reads both
    as one). To go on with what the log still holds set failOnDataLoss=false, or start at `floor`,
    the first position that is still there, with a new checkpoint or cursor.
    """

    def __init__(self, message: str, *, floor: int = 0) -> None:
        super().__init__(message)
        self.floor = floor


class TableReadError(SparkWalError):
    """The log's table, or the version of it that a read began with, cannot be read.

    Nothing of the log is lost. After a VACUUM look at the current state again; else mend what
    the message names.
    """


class BackPressureError(SparkWalError):
    """More was appended than the store takes, and `maxBufferedBytes` wait already; or the log
    has reached `hardLimitBytes`, because its compaction is behind.

    Nothing of this append was accepted. Try it again later, or let `append` block.
    """


class _Staged:
    """What the kinds of one error say: `stage`, how far it came; `retryable`, whether it may be
    tried again as it is."""

    stage: ClassVar[str] = ""
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, stage: str = "", retryable: bool = False) -> None:
        cls.stage, cls.retryable = stage, retryable


class CompactionError(_Staged, SparkWalError):
    """A range of the log could not be brought into its table.

    Compaction is suspended, never skips: the log keeps every row that the table is not
    confirmed to have. Mend what the message names and run it again: it goes on where it stopped.
    """


class PlanError(CompactionError, stage="plan"):
    """Before anything was promised: the policy's range, or the table's settings."""


class ReadError(CompactionError, stage="read"):
    """The log's records or rows of the range cannot be read."""


class WriteError(CompactionError, stage="write"):
    """The table did not take the range."""


class ConfirmError(CompactionError, stage="confirm"):
    """The table is not what the log's lifecycle knows: restored, replaced or recreated."""


class PublishError(CompactionError, stage="publish"):
    """The table has the range, and the log's record of it could not be written."""


class JournalError(_Staged, SparkWalError):
    """The journal on this machine's disk could not do what was asked.

    What was accepted before is on the disk still. Where it is not `retryable` the journal has
    stopped, because nobody can know what the disk holds: mend what the message names and open
    the journal again, which reads all of it; its `last_sequence` shows what it has.
    """


class JournalEncodeError(JournalError, stage="encode", retryable=True):
    """What is to be written could not be put into bytes; nothing was."""


class JournalWriteError(JournalError, stage="write"):
    """A file was not written, or only a part of it, for another reason than a full disk."""


class JournalReadError(JournalError, stage="read"):
    """A file cannot be read, or holds at rest what was not written."""


class JournalSyncError(JournalError, stage="sync"):
    """fsync of a file failed: what the disk holds is unknown, and a second fsync may lie."""


class JournalRenameError(JournalError, stage="rename", retryable=True):
    """A file that is written and synced did not get its name; the former one is untouched."""


class JournalFolderSyncError(JournalError, stage="sync of the folder"):
    """fsync of the folder failed: which files a restart will find is unknown."""


def need(library: str, install: str) -> None:
    """Raises OptionError where a library is not installed."""
    if find_spec(library) is None:
        raise OptionError(f"{library} is not installed for this Python: pip install '{install}'")
