"""What writers, their checkpoints and their stores report."""

import logging

from sparkwal.events.emitting import Event, OfPath


class Recovered(OfPath):
    """a cold start found the head of the log at `position` (−1: empty)"""

    position: int


class LeaderClaimed(OfPath):
    """this process wrote a leader record and may write after it"""

    position: int
    term: int
    leader_id: str


class Planned(Event):
    """a microbatch got its position; `start` is warm (no request) or cold"""

    position: int
    plan_id: str
    term: int
    start: str


class BatchSent(Event):
    """an appender sent a batch; not durable yet"""

    position: int
    rows: int
    query_id: str
    batch_id: int


class Durable(Event):
    """a commit and all before it are in the log; its rows take `bytes`, its PUT took `put_ms`"""

    position: int
    rows: int
    query_id: str
    batch_id: int
    bytes: int
    put_ms: float


class Rejected(Event, level=logging.WARNING):
    """rows of an append do not fit the schema; it was left out, the appender goes on"""

    query_id: str
    batch_id: int
    reason: str


class Stopped(OfPath, level=logging.WARNING):
    """an appender accepts nothing more; what was not acknowledged has failed"""

    error: str
    reason: str


class Missed(Event):
    """one slow subscriber of an appender did not get this many earlier events"""

    events: int


class Retried(Event, level=logging.WARNING):
    """a request failed and is sent again after `delay_ms`"""

    operation: str
    key: str
    attempt: int
    delay_ms: int
    reason: str


class Hedged(Event):
    """a request has no answer after `after_ms`, late for its kind, and is sent once more"""

    operation: str
    key: str
    after_ms: int


class Adopted(Event):
    """a task found the object that another attempt of it had written, and took it"""

    key: str
    partition: int


class Fenced(OfPath, level=logging.WARNING):
    """another writer leads the log; this one commits nothing more"""

    position: int
    by: str
    term: int


class HandoverAsked(OfPath):
    """a newcomer lost the race for the gap and asked the leader of `term` to stop"""

    term: int


class HandedOver(OfPath, level=logging.WARNING):
    """another writer asked for the log; this appender sends nothing more"""

    by: str
    term: int


class HandoverLeftBehind(Event, level=logging.WARNING):
    """a takeover's request could not be deleted; it has no effect, you may delete it"""

    key: str
    reason: str


class SkippedReplay(Event):
    """Spark repeated a microbatch that the log already holds; nothing was written"""

    query_id: str
    batch_id: int


class ReplayNotCompared(Event, level=logging.WARNING):
    """a microbatch or batch write is skipped by its number alone: the log's rows were collected"""

    query_id: str
    batch_id: int


class Aborted(OfPath):
    """Spark gave up a microbatch; nothing was deleted"""


class HintNotSaved(Event, level=logging.WARNING):
    """the driver's disk did not take the hint; microbatches start cold until it does"""

    folder: str
    reason: str


class AnotherQuery(OfPath, level=logging.WARNING):
    """`query` is new in a log that `other` wrote up to `position`: with the same source, rows
    will be in the log twice. `advice` says what to do; so does `sparkwal help "rows again"`"""

    query: str
    other: str
    position: int
    advice: str


class RemoteCheckpoint(Event, level=logging.WARNING):
    """a checkpoint on an object store costs some 48 requests for each microbatch;
    `sparkwal.checkpoint(path, name)` costs none"""

    location: str


class CheckpointTooLarge(Event, level=logging.WARNING):
    """a checkpoint's file is above `checkpointMaxBytes`: no other machine can rebuild it"""

    file: str
    bytes: int
    limit: int


class CheckpointUsed(Event):
    """`sparkwal.checkpoint` found a folder that agrees with the log (`batch_id` −1: a new query)"""

    folder: str
    query_id: str
    batch_id: int


class CheckpointRebuilt(Event):
    """`sparkwal.checkpoint` made the folder from the log after `batch_id` (−1: a new query)"""

    folder: str
    query_id: str
    batch_id: int
    reason: str


class SlowCheckpointFiles(Event, level=logging.WARNING):
    """Spark forks processes for each file of a local checkpoint: `sparkwal help slow`"""

    setting: str
    value: str
    advice: str


class UntriedSpark(Event, level=logging.WARNING):
    """this Spark is newer than the newest that sparkwal's tests ran"""

    version: str
    newest: str


class LimitsLater(Event, level=logging.WARNING):
    """before Spark 4.2 a stream's first microbatch after a start reads all there is; its limits
    count from the second on"""

    limits: str


class OtherPython(Event, level=logging.WARNING):
    """without `PYSPARK_PYTHON` Spark's workers run another Python than the caller of `register`"""

    python: str
    advice: str


class PlainHttp(Event, level=logging.WARNING):
    """the endpoint on another machine speaks no TLS: rows and tokens can be read on the way"""

    endpoint: str


class ProofLeftBehind(Event, level=logging.WARNING):
    """an object of the store's proof could not be deleted; you may delete it"""

    key: str
    url: str
    reason: str


class UploadLeftBehind(Event, level=logging.WARNING):
    """an unfinished upload could not be aborted; a lifecycle rule should remove it"""

    key: str
    reason: str
