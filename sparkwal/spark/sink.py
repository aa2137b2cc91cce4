"""The sink. It plans when Spark pickles the writer; tasks write; the driver commits."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sparkwal import events
from sparkwal.checkpoints import folder
from sparkwal.checkpoints.carry import StreamCheckpoint, log_of, note_log
from sparkwal.errors import OptionError, OutcomeUnknownError
from sparkwal.format import schema
from sparkwal.format.header import ANONYMOUS
from sparkwal.options.open import check_new_log, open_log
from sparkwal.options.writing import SinkOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.commit import Carrier, commit
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.object_writer import TaskLimits
from sparkwal.protocol.plan import Plan, TaskPlan, check_visible, cold_plan, make_plan
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.repeated import check_newest
from sparkwal.protocol.stream_leader import BATCH_APPEND, STREAM_START, refuse_stream_leader
from sparkwal.protocol.takeover import Claim
from sparkwal.protocol.task import TaskAttempt, TaskResult, write_partition
from sparkwal.reading.metadata import check_writable
from sparkwal.spark.interfaces import DataSourceStreamArrowWriter
from sparkwal.spark.readable import readable_errors
from sparkwal.spark.unpickling import PickledByValue, shorten_collections
from sparkwal.store.base import LogStore
from sparkwal.store.conditional_put import prove_put_if_absent
from sparkwal.store.path import is_local

if TYPE_CHECKING:
    import pyarrow as pa


VIEW = (
    "Spark hides the path of a catalog's table from Python data sources: use CREATE TEMPORARY VIEW "
    "… USING weaselwal OPTIONS (path '…')"
)


def no_table() -> OptionError:
    """The error for a log as a table of the catalog."""
    return OptionError(f"a log cannot be a table of the catalog. {VIEW}, or spark.read")


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """The result that each task sends to the commit. The commit has no other part of the plan."""

    result: TaskResult


class _Writer(PickledByValue):
    """The writer of a stream or of a batch.

    Attributes:
        reason: the reason in the leader record, if this writer takes the log over.
    """

    reason: str

    def __init__(
        self, options: SinkOptions, spark_schema: StructType, checkpoint: str = ""
    ) -> None:
        self.options = options
        self.spark_schema = spark_schema
        self.checkpoint = checkpoint
        self.plan: TaskPlan | None = None
        self.forked_after = -1

    def __getstate__(self) -> dict[str, Any]:
        # Plan here, once. Spark pickles the writer twice for the tasks of a microbatch, and calls
        # streamWriter() also without writing.
        if self.plan is None:
            shorten_collections()
            with readable_errors(pickling=True):
                self.plan = self._make_plan()
        # Pickle only what tasks and commits need: every task waits until this is unpickled.
        return {
            "options": self.options,
            "plan": self.plan,
            "forked_after": self.forked_after,
        }

    def _make_plan(self) -> TaskPlan:
        log = open_log(self.options)
        leader_id, host = _leader(log.identity, self.checkpoint)
        spark_schema = schema.normalize(self.spark_schema.jsonValue())
        check_writable(spark_schema)
        path = folder.local_folder(self.checkpoint)
        owner = folder.owner_of(path) if path else None
        noted = log_of(path) if path and owner is None else None
        # A fork begins after this microbatch, or repeats it for its state.
        self.forked_after = owner.forked_after if owner else -1
        continues = path is not None and folder.latest(path, "commits") > self.forked_after
        # A checkpoint folder that sparkwal built names its log. In another folder, the first plan
        # writes a note of its log.
        log_id = owner.log_id if owner else noted if continues else None
        claim = Claim(
            leader_id=leader_id,
            host=host,
            plan_id=uuid.uuid4().hex,
            spark_schema=spark_schema,
            merge_schema=self.options.merge_schema,
            window=self.options.window_size,
            in_flight_limit=1,
            reason=self.reason,
            check_place=partial(check_new_log, self.options.path),
            log_id=log_id,
            continues=continues and log_id is not None,
        )
        hints = Hints(log.identity, ended=ended_runs_file())
        plan = self._plan(claim, hints, SYSTEM)
        if path and owner is None and noted != plan.leadership.log_id:
            note_log(path, plan.leadership.log_id)
        return plan.for_tasks()

    def _plan(self, claim: Claim, hints: Hints, clock: Clock) -> Plan:
        ttl_ms = self.options.plan_ttl_ms
        reader = partial(open_log, self.options)
        return make_plan(self._proven_log, claim, hints, clock, ttl_ms, reader)

    def _proven_log(self) -> LogStore:
        """The log, after a proof that its store has a working conditional PUT.

        Raises:
            OptionError: the checkpoint lies among the log's objects.
        """
        path = folder.local_folder(self.checkpoint)
        for log_folder in folder.log_folders(self.options.path, self.options.sequencer)[1:]:
            if path and Path(os.path.realpath(path)).is_relative_to(log_folder):
                raise OptionError(
                    f"the checkpoint {path} lies in {log_folder}, the folder of the log's objects; "
                    "no row was written. Give checkpointLocation a folder beside the log"
                )
        log = open_log(self.options, fail_fast=True)
        prove_put_if_absent(log.store, log.prefix)
        if self.checkpoint and not is_local(self.checkpoint):
            events.emit(events.RemoteCheckpoint(location=self.checkpoint))
        return log

    def _write(
        self, query_id: str, batch_id: int, rows: Iterator[pa.RecordBatch], run_id: str = ""
    ) -> Message:
        context = TaskContext.get()
        plan = self.plan
        options = self.options
        assert context is not None and plan is not None
        names = [field.name for field in fields(TaskLimits)]
        limits = TaskLimits(**{name: getattr(options, name) for name in names})

        @cache
        def open_checked_log() -> LogStore:
            """Open the log. A local path may be another folder on the machine of this task."""
            log = open_log(options)
            if is_local(options.path):
                check_visible(log, plan)
            return log

        with readable_errors():
            task = TaskAttempt(
                query_id,
                batch_id,
                context.partitionId(),
                run_id=run_id,
                attempt=context.taskAttemptId(),
                is_retry=context.attemptNumber() > 0,
                forked_after=self.forked_after,
            )
            result = write_partition(open_checked_log, plan, task, rows, limits)
        return Message(result)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Put the record of this microbatch or batch. Spark calls it after all tasks."""
        with readable_errors():
            results = [message.result for message in messages if isinstance(message, Message)]
            if not results or len(results) < len(messages):
                raise OutcomeUnknownError(
                    "Spark committed without the messages of all tasks; sparkwal committed no row. "
                    "Restart with the same checkpoint"
                )
            log = open_log(self.options)
            query_id = results[0].query_id
            hints = Hints(log.identity)
            ttl_ms = self.options.plan_ttl_ms
            codec = self.options.codec
            carrier = self._carrier(query_id)
            commit(lambda: log, results, hints, SYSTEM, ttl_ms, codec, carrier)

    def _carrier(self, query_id: str) -> Carrier | None:
        return None

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        # Delete no objects: Spark calls this also after a failed commit, which may be durable.
        events.emit(events.Aborted(path=self.options.log_path))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    reason = STREAM_START

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        # Spark names the job group of every microbatch after the query's run.
        run_id = context.getLocalProperty("spark.jobGroup.id")
        assert query_id is not None and batch_id is not None and run_id is not None
        return self._write(query_id, int(batch_id), iterator, run_id)

    def _carrier(self, query_id: str) -> Carrier:
        # The commit runs on the driver's machine, which has the local checkpoint.
        size = self.options.checkpoint_max_bytes
        return StreamCheckpoint(self.checkpoint, query_id, size)


class BatchWriter(_Writer, DataSourceArrowWriter):
    reason = BATCH_APPEND

    def _plan(self, claim: Claim, hints: Hints, clock: Clock) -> Plan:
        # Unlike the microbatches of a stream, each batch write reads the head.
        log = self._proven_log()
        ttl_ms = self.options.plan_ttl_ms

        def check_head(head: Head, _: str) -> None:
            refuse_stream_leader(log, head, hints, clock, ttl_ms, _has_ended)

        if not self.options.take_over:
            claim = replace(claim, check_head=check_head)
        plan = cold_plan(log, claim, hints, clock, ttl_ms, None)
        if self.options.txn_app_id is not None and self.options.txn_version is not None:
            # Refuse an old transaction before Spark computes the rows.
            app_id, version = self.options.txn_app_id, self.options.txn_version
            check_newest(lambda: log, plan.leadership, app_id, version)
        return plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        assert self.plan is not None
        with readable_errors():
            _refuse_table()
        query_id = self.options.txn_app_id
        if query_id is None:
            query_id = f"{ANONYMOUS}{self.plan.bare.plan_id}"
        return self._write(query_id, self.options.txn_version or 0, iterator)


def _refuse_table() -> None:
    """Refuse the rows of saveAsTable and CREATE TABLE … AS SELECT.

    Spark has just created a table in the catalog, and drops it after this error. Only a task can
    recognize such a write: it is an execution inside of another. A write inside of foreachBatch is
    that too, but belongs to a query.

    Raises:
        OptionError: this is such a write.
    """
    context = TaskContext.get()
    assert context is not None
    execution, outermost, query = (
        context.getLocalProperty(name)
        for name in (
            "spark.sql.execution.id",
            "spark.sql.execution.root.id",
            "sql.streaming.queryId",
        )
    )
    if outermost is not None and execution != outermost and query is None:
        raise no_table()


def ended_runs_file() -> Path:
    """The file of `protocol.hint.note_ended`, in a folder that Spark creates and removes.

    The session's listener writes it, and planners on the same machine read it. Under Spark Connect
    it is never written.
    """
    return Path(SparkFiles.getRootDirectory()) / "sparkwal-ended-runs"


def _leader(path: str, checkpoint: str) -> tuple[str, str]:
    """The leader's id, and its host.

    The id contains the pid and start time of the daemon that forks Spark's Python workers. So it
    stays the same when Spark replaces a worker, and changes when the application restarts.
    """
    host = socket.gethostname()
    daemon = os.getppid()
    query = hashlib.sha256(f"{path}\0{checkpoint}".encode()).hexdigest()[:12]
    return f"{host}:{daemon}:{_start_time(daemon) or 0}:{query}", host


def _start_time(pid: int) -> str | None:
    """The start of a process of this machine, in ticks since boot.

    None if there is no such process, or no /proc.
    """
    try:
        # The command's name may contain spaces and ")", so count the fields after the last ")".
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _has_ended(leader_id: str) -> bool:
    """Whether a leader's daemon ran on this machine and has ended."""
    match leader_id.rsplit(":", 3):
        case [host, daemon, started, _] if host == socket.gethostname() and daemon.isdecimal():
            return started != "0" and _start_time(int(daemon)) != started
    return False
