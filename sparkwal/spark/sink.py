"""The sink: planned when Spark pickles the writer, written by tasks, committed on the driver."""

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
from sparkwal.spark.unpickling import PickledByValue
from sparkwal.store.base import LogStore
from sparkwal.store.conditional_put import prove_put_if_absent
from sparkwal.store.path import is_local

if TYPE_CHECKING:
    import pyarrow as pa


VIEW = (
    "Spark hands the path of a catalog's table to no Python data source: use CREATE TEMPORARY VIEW "
    "… USING weaselwal OPTIONS (path '…')"
)


def no_table() -> OptionError:
    """The error for a table in the catalog."""
    return OptionError(f"a log cannot be a table of the catalog. {VIEW}, or spark.read")


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """All that the worker that commits knows of the plan."""

    result: TaskResult


class _Writer(PickledByValue):
    reason: str

    def __init__(
        self, options: SinkOptions, spark_schema: StructType, checkpoint: str = ""
    ) -> None:
        self.options = options
        self.spark_schema = spark_schema
        self.checkpoint = checkpoint
        self.plan: TaskPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the writer twice for the tasks of one microbatch, and calls streamWriter()
        # also where it never writes: this is the place to plan, once.
        if self.plan is None:
            with readable_errors(pickling=True):
                self.plan = self._make_plan()
        # Tasks and commits need no more, and every task waits until this is unpickled.
        return {"options": self.options, "plan": self.plan}

    def _make_plan(self) -> TaskPlan:
        log = open_log(self.options)
        leader_id, host = _leader(log.identity, self.checkpoint)
        spark_schema = schema.normalize(self.spark_schema.jsonValue())
        check_writable(spark_schema)
        path = folder.local_folder(self.checkpoint)
        owner = folder.owner_of(path) if path else None
        noted = log_of(path) if path and owner is None else None
        continues = path is not None and folder.latest(path, "commits") >= 0
        # Made by sparkwal, for one log. A folder of the user's own has one from its first rows on.
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
        hints = Hints(log.identity, ended=ended_runs())
        plan = self._plan(claim, hints, SYSTEM)
        if path and owner is None and noted != plan.leadership.log_id:
            note_log(path, plan.leadership.log_id)
        return plan.for_tasks()

    def _plan(self, claim: Claim, hints: Hints, clock: Clock) -> Plan:
        return make_plan(self._proven_log, claim, hints, clock, self.options.plan_ttl_ms)

    def _proven_log(self) -> LogStore:
        # Spark's checkpoint may not lie among the log's objects.
        path = folder.local_folder(self.checkpoint)
        for theirs in folder.log_folders(self.options.path, self.options.sequencer)[1:]:
            if path and Path(os.path.realpath(path)).is_relative_to(theirs):
                raise OptionError(
                    f"the checkpoint {path} lies in {theirs}, where the log keeps its objects. "
                    "Nothing was written: give checkpointLocation a folder beside the log"
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
        def visible() -> LogStore:
            """Raises OptionError where a task reaches another log than the driver."""
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
            )
            result = write_partition(visible, plan, task, rows, limits)
        return Message(result)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        with readable_errors():
            results = [message.result for message in messages if isinstance(message, Message)]
            if not results or len(results) < len(messages):
                raise OutcomeUnknownError(
                    "Spark asked to commit without the messages of all tasks; nothing was "
                    "committed. Restart with the same checkpoint"
                )
            log, query_id = open_log(self.options), results[0].query_id
            hints = Hints(log.identity)
            ttl_ms = self.options.plan_ttl_ms
            codec = self.options.codec
            carrier = self._carrier(query_id)
            commit(lambda: log, results, hints, SYSTEM, ttl_ms, codec, carrier)

    def _carrier(self, query_id: str) -> Carrier | None:
        return None

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        # Deletes nothing: Spark calls this also after a commit that failed, which may be durable.
        events.emit(events.Aborted(path=self.options.log_path))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    reason = STREAM_START

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        # Spark runs every microbatch in a job group that it names after the query's run.
        run_id = context.getLocalProperty("spark.jobGroup.id")
        assert query_id is not None and batch_id is not None and run_id is not None
        return self._write(query_id, int(batch_id), iterator, run_id)

    def _carrier(self, query_id: str) -> Carrier:
        # The commit runs on the driver's machine, where a local checkpoint is.
        size = self.options.checkpoint_max_bytes
        checkpoint = StreamCheckpoint(self.checkpoint, query_id, size)
        checkpoint.check_promise()
        return checkpoint


class BatchWriter(_Writer, DataSourceArrowWriter):
    reason = BATCH_APPEND

    def _plan(self, claim: Claim, hints: Hints, clock: Clock) -> Plan:
        # Nothing ties two batch writes together: each looks at the log.
        log = self._proven_log()
        ttl_ms = self.options.plan_ttl_ms

        def check_head(head: Head, _: str) -> None:
            refuse_stream_leader(log, head, hints, clock, ttl_ms, _is_gone)

        if not self.options.take_over:
            claim = replace(claim, check_head=check_head)
        plan = cold_plan(log, claim, hints, clock, ttl_ms, None)
        if self.options.txn_app_id is not None and self.options.txn_version is not None:
            # Before Spark computes the rows.
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
    """Raises OptionError for the rows of saveAsTable and CREATE TABLE … AS SELECT: Spark has just
    created a table, which it drops now. Only a task can tell, because the write is an execution
    inside of another. So is one of foreachBatch, which writes to no table."""
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


def ended_runs() -> Path:
    """The file of `protocol.hint.note_ended`: a session writes it, planners on its machine read it.
    Spark makes and removes its folder. Under Spark Connect nobody writes it."""
    return Path(SparkFiles.getRootDirectory()) / "sparkwal-ended-runs"


def _leader(path: str, checkpoint: str) -> tuple[str, str]:
    """(leader_id, host). The id outlives recycled workers of one query, not a restarted
    application: it names the daemon that forks the workers, by pid and start time."""
    host = socket.gethostname()
    daemon = os.getppid()
    what = hashlib.sha256(f"{path}\0{checkpoint}".encode()).hexdigest()[:12]
    return f"{host}:{daemon}:{_started(daemon) or 0}:{what}", host


def _started(pid: int) -> str | None:
    """When a process of this machine began, in ticks since it booted; None for one that is not
    there, and on a system that does not say."""
    try:
        # The command's name may hold spaces and ")": count from the last one.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _is_gone(leader_id: str) -> bool:
    """Whether a leader's daemon is known to have ended: it ran on this machine."""
    match leader_id.rsplit(":", 3):
        case [host, daemon, started, _] if host == socket.gethostname() and daemon.isdecimal():
            return started != "0" and _started(int(daemon)) != started
    return False
