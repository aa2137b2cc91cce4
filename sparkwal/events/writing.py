"""What writers, their checkpoints and their stores report."""

from __future__ import annotations

import logging

from sparkwal.events.emitting import Event


class Recovered(Event):
    """a cold start found the head of the log at `position` (−1: empty)"""

    path: str
    position: int


class LeaderClaimed(Event):
    """this process wrote a leader record and may write after it"""

    path: str
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
    """a commit is in the log, and all before it are; `bytes` of rows are stored for it, and the
    PUT of its record took `put_ms`, with its retries"""

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


class Stopped(Event, level=logging.WARNING):
    """an appender accepts nothing more; what was not acknowledged has failed"""

    path: str
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


class Fenced(Event, level=logging.WARNING):
    """another writer leads the log; this one commits nothing more"""

    path: str
    position: int
    by: str
    term: int


class HandoverAsked(Event):
    """a newcomer lost the race for the gap and asked the leader of `term` to stop"""

    path: str
    term: int


class HandedOver(Event, level=logging.WARNING):
    """another writer asked for the log; this appender sends nothing more"""

    path: str
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
    """a microbatch or a batch write is skipped by its number alone: the record that the log had of
    it was collected, so its rows could not be compared"""

    query_id: str
    batch_id: int


class Aborted(Event):
    """Spark gave up a microbatch; nothing was deleted"""

    path: str


class HintNotSaved(Event, level=logging.WARNING):
    """the driver's disk did not take the hint; microbatches start cold until it does"""

    folder: str
    reason: str


class AnotherQuery(Event, level=logging.WARNING):
    """the first rows of `query` follow those of the query `other`, whose last are at `position`:
    with the same source they are in the log twice; stop it, and start with the folder that
    `sparkwal.checkpoint(path, other)` makes"""

    path: str
    query: str
    other: str
    position: int


class RemoteCheckpoint(Event, level=logging.WARNING):
    """a query starts with its checkpoint on an object store: Spark makes some 48 requests there
    for each microbatch; `sparkwal.checkpoint(path, name)` needs none"""

    location: str


class CheckpointTooLarge(Event, level=logging.WARNING):
    """a file of the checkpoint is larger than `checkpointMaxBytes`, so the log does not carry it;
    another machine cannot rebuild the checkpoint"""

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
    """Spark forks processes for each file of a local checkpoint, and `register` could not know
    whether it may set another way; docs/operations.md says when to set it"""

    setting: str
    value: str
    advice: str


class OtherPython(Event, level=logging.WARNING):
    """without `PYSPARK_PYTHON` Spark's workers run another Python than the caller of `register`"""

    python: str
    advice: str


class PlainHttp(Event, level=logging.WARNING):
    """the endpoint is on another machine and speaks no TLS: rows, and the token of temporary
    credentials, can be read on the way; reported once in a process"""

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
