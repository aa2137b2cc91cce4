"""Events of writers, their checkpoints and their stores."""

import logging

from sparkwal.events.emitting import Event, PathEvent


class Recovered(PathEvent):
    """A cold start found the head of the log at `position` (−1: an empty log)."""

    position: int


class TornRecordPassed(PathEvent, level=logging.WARNING):
    """The store has only `size` bytes of a record that was not acknowledged. The log continues
    after it."""

    position: int
    size: int


class OtherBytes(Event, level=logging.WARNING):
    """A GET returned damaged bytes, and the next one intact bytes."""

    key: str
    reason: str


class LeaderClaimed(PathEvent):
    """This process wrote a leader record at `position`, and may write after it."""

    position: int
    term: int
    leader_id: str


class Planned(Event):
    """A microbatch got its position. `start` is warm (no request) or cold."""

    position: int
    plan_id: str
    term: int
    start: str


class BatchSent(Event):
    """An appender sent a batch, which is not durable yet."""

    position: int
    rows: int
    query_id: str
    batch_id: int


class Durable(Event):
    """The log holds a commit and all before it. Its rows take `bytes`; its PUT took `put_ms`."""

    position: int
    rows: int
    query_id: str
    batch_id: int
    bytes: int
    put_ms: float


class Rejected(Event, level=logging.WARNING):
    """Rows of one append do not fit the schema. The appender left them out and continues."""

    query_id: str
    batch_id: int
    reason: str


class Stopped(PathEvent, level=logging.WARNING):
    """An appender accepts no more rows, and each append without acknowledgement has failed."""

    error: str
    reason: str


class Missed(Event):
    """A slow subscriber of an appender did not get `events` earlier events."""

    events: int


class Retried(Event, level=logging.WARNING):
    """A request failed. It is sent again after `delay_ms`."""

    operation: str
    key: str
    attempt: int
    delay_ms: int
    reason: str


class Hedged(Event):
    """A request is late: no answer for `after_ms`. It is sent a second time."""

    operation: str
    key: str
    after_ms: int


class Adopted(Event):
    """A task found its object written by another attempt of the same task, and uses that object."""

    key: str
    partition: int


class Fenced(PathEvent, level=logging.WARNING):
    """Another writer leads the log, so this writer commits no more."""

    position: int
    by: str
    term: int


class HandoverAsked(PathEvent):
    """A new writer lost the race for the gap, and asked the leader of `term` to stop."""

    term: int


class HandedOver(PathEvent, level=logging.WARNING):
    """Another writer asked for the log, so this appender sends no more."""

    by: str
    term: int


class HandoverLeftBehind(Event, level=logging.WARNING):
    """A takeover's request could not be deleted. It has no effect; you may delete it."""

    key: str
    reason: str


class SkippedReplay(Event):
    """Spark repeated a microbatch that the log already holds. sparkwal wrote nothing."""

    query_id: str
    batch_id: int


class ReplayNotCompared(Event, level=logging.WARNING):
    """A microbatch or batch write is skipped by its number alone: its rows were collected."""

    query_id: str
    batch_id: int


class Aborted(PathEvent):
    """Spark aborted a microbatch. sparkwal deleted nothing."""


class HintNotSaved(Event, level=logging.WARNING):
    """The hint could not be written to the driver's disk. Microbatches start cold until it can."""

    folder: str
    reason: str


class AnotherQuery(PathEvent, level=logging.WARNING):
    """`query` is new in a log that `other` wrote up to `position`.

    If both read the same source, the log will hold its rows twice. `advice` and
    `sparkwal help "rows again"` name the remedy.
    """

    query: str
    other: str
    position: int
    advice: str


class RemoteCheckpoint(Event, level=logging.WARNING):
    """A checkpoint on an object store costs some 48 requests for each microbatch.

    The folder of `sparkwal.checkpoint(path, name)` costs none.
    """

    location: str


class CheckpointTooLarge(Event, level=logging.WARNING):
    """A file of the checkpoint is above `checkpointMaxBytes`: no other machine can rebuild it."""

    file: str
    bytes: int
    limit: int


class SourceListGrows(Event, level=logging.WARNING):
    """A file source's list of read files has `bytes`, and records carry all of it again and again.

    It is reported at 1 MiB and whenever the list has doubled. `sparkwal help "list of files"` names
    the remedy.
    """

    file: str
    bytes: int


class CheckpointUsed(Event):
    """`sparkwal.checkpoint` found a folder that agrees with the log (`batch_id` −1: new query)."""

    folder: str
    query_id: str
    batch_id: int


class CheckpointRebuilt(Event):
    """`sparkwal.checkpoint` built the folder from the log, after `batch_id` (−1: a new query)."""

    folder: str
    query_id: str
    batch_id: int
    reason: str


class ForkNotChecked(PathEvent, level=logging.WARNING):
    """A fork of `query` begins, although it may not read all files again: see `reason`."""

    query: str
    reason: str


class SlowCheckpointFiles(Event, level=logging.WARNING):
    """Spark forks processes for each file of a local checkpoint: see `sparkwal help slow`."""

    setting: str
    value: str
    advice: str


class UntriedSpark(Event, level=logging.WARNING):
    """This Spark is newer than `newest`, the newest one that sparkwal was tested with."""

    version: str
    newest: str


class LimitsLater(Event, level=logging.WARNING):
    """Before Spark 4.2, `limits` do not apply to a stream's first microbatch after a start."""

    limits: str


class OtherPython(Event, level=logging.WARNING):
    """Without `PYSPARK_PYTHON`, Spark's workers run another Python than `register`'s caller."""

    python: str
    advice: str


class PlainHttp(Event, level=logging.WARNING):
    """The endpoint is on another machine and uses no TLS: others may read rows and tokens."""

    endpoint: str


class ProofLeftBehind(Event, level=logging.WARNING):
    """An object of the store's proof could not be deleted; you may delete it."""

    key: str
    url: str
    reason: str


class UploadLeftBehind(Event, level=logging.WARNING):
    """An unfinished upload could not be aborted. The bucket's lifecycle rule should remove it."""

    key: str
    reason: str
