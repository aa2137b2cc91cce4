"""The persistence thread: cuts batches, sends them, acknowledges in order.

After WeaselDB's persistence thread. One thread cuts batches and encodes them; each
record is put by a thread of a pool, with retries of its own, and the thread whose record
fills the oldest gap acknowledges all that waited behind it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial

from sparkwal import events
from sparkwal.appender.batches import Batch, Buffer, Failure, Ticket
from sparkwal.appender.rows import Payload, RowSchema
from sparkwal.appender.subscribers import Subscribers
from sparkwal.appender.verdicts import overtaken, unexpected, unsent, used_up, verdict
from sparkwal.appender.workers import Workers
from sparkwal.errors import (
    BackPressureError,
    FencedError,
    OptionError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.protocol.claim_age import ClaimAge
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.commit import put_record
from sparkwal.protocol.handover import Lookout
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.pipeline import Pipeline, Sent


@dataclass(frozen=True)
class Target:
    """Where records go: a repeating store, and the slots that this appender leads."""

    log: LogStore
    producer_id: str
    pipeline: Pipeline
    claim: ClaimAge
    lookout: Lookout
    limit: int


@dataclass(frozen=True)
class _InFlight:
    batch: Batch
    sequence: int  # the last one that the record holds
    rows: int
    empty: list[Batch] = field(default_factory=list)  # behind it, with nothing to write


class Persistence:
    """Everything between `append` and the store; see `sparkwal.appender`."""

    def __init__(
        self,
        target: Target,
        row_schema: RowSchema,
        buffer: Buffer,
        clock: Clock,
        subscribers: Subscribers,
    ) -> None:
        self._target, self._pipeline = target, target.pipeline
        self._row_schema, self._buffer, self._clock = row_schema, buffer, clock
        self._subscribers = subscribers
        self._workers = Workers(target.limit, subscribers.enter_thread)
        # `_lock` guards the buffer. `_acks` guards what is in flight, and makes
        # acknowledgements one after another. Where both are held, `_acks` was taken first.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._acks = threading.Lock()
        self._settled = threading.Condition(self._acks)
        self._sent: dict[int, _InFlight] = {}
        self._errors: dict[int, SparkWalError] = {}
        self.failure: Failure | None = None  # why it stopped
        self._closing = False
        self.last_sequence = buffer.next_sequence - 1
        self._thread = threading.Thread(target=self._run, name="sparkwal-persist", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        """Records that are sent and not acknowledged."""
        return len(self._sent)

    @property
    def buffered_bytes(self) -> int:
        """Accepted and not sent."""
        return self._buffer.weight

    def append(self, payload: Payload, weight: int, block: bool) -> Ticket:
        """Accept an append. Raises BackPressureError, or why the appender stopped."""
        with self._lock:
            if self.failure is not None or self._closing:
                self._check_open()
            while not self._buffer.has_room(weight):
                if not block:
                    raise BackPressureError(
                        f"{self._buffer.weight} bytes wait to be sent already "
                        "(maxBufferedBytes): nothing was accepted, try again later"
                    )
                self._room.wait()
                self._check_open()
            ticket, wake = self._buffer.add(payload, weight, time.monotonic())
            if wake:
                self._changed.notify()
            return ticket

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure.tell()
        if self._closing:
            raise OptionError("this appender is closed; open a new one")

    def wait_room(self, timeout: float) -> None:
        """Until something may be accepted again, or the appender stops."""
        with self._lock:
            if self.failure is None and not self._closing and not self._buffer.has_room(1):
                self._room.wait(timeout)

    def flush(self) -> Batch | None:
        """Send what was accepted at once; the batch that is done when all of it is."""
        with self._lock:
            self._buffer.close_batch()
            self._changed.notify()
            return self._buffer.newest

    def close(self) -> None:
        """Send what was accepted, wait until all of it is decided, end the threads."""
        with self._lock:
            self._closing = True
            self._buffer.close_batch()
            self._changed.notify()
            self._room.notify_all()
        self._thread.join()
        with self._acks:
            while self._sent:
                self._settled.wait()
        self._workers.stop()

    # The persistence thread.

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._send(batch)
        except BaseException as error:
            # Nobody may wait for ever, whatever it was (no memory for the record, perhaps).
            with self._acks:
                self._stop(unexpected("the persistence thread failed", error))

    def _next(self) -> Batch | None:
        """The next batch when it is due and there is room for it; None at the end."""
        with self._lock:
            while self.failure is None:
                wait: float | None = None
                if self._pipeline.has_room():
                    idle = self._pipeline.in_flight == 0
                    wait = self._buffer.due(time.monotonic(), idle=idle)
                    if wait is not None and wait <= 0:
                        batch = self._buffer.take()
                        self._room.notify_all()
                        return batch
                if self._closing and not self._buffer.waits:
                    break
                self._changed.wait(wait)
            return None

    def _send(self, batch: Batch) -> None:
        try:
            count = len(batch.appends)
            batches, rejected = self._row_schema.convert(batch.appends)
            batch.appends = []
            self._reject(batch, rejected)
            taken = [batch.first_sequence + i for i in range(count) if i not in rejected]
            if not taken:
                self._nothing_to_write(batch)
                return
            rows = sum(b.num_rows for b in batches)
            sent = self._pipeline.send(rows, batches, taken[-1], self._clock.now_ms())
        except BaseException as error:
            with self._acks:
                self._stop(unexpected("a batch could not be encoded", error), batch)
            return
        with self._acks:
            if self.failure is not None:
                batch.fail(unsent(self.failure.error), self.failure)
                return
            # Safety (§7): "last_sequence counts what is only sent"
            self._sent[sent.position] = _InFlight(batch, taken[-1], rows)
        self._subscribers.publish(
            events.Accepted(
                position=sent.position,
                rows=rows,
                query_id=self._target.producer_id,
                batch_id=taken[-1],
            )
        )
        try:
            self._workers.submit(partial(self._put, sent))
        except RuntimeError as error:
            self._failed(sent.position, unexpected("no thread could be started", error))
        if self._target.lookout.is_due():
            self._workers.submit(self._look)

    def _reject(self, batch: Batch, rejected: dict[int, OptionError]) -> None:
        for index, error in rejected.items():
            sequence = batch.first_sequence + index
            batch.rejected[sequence] = error
            self._subscribers.publish(
                events.Rejected(
                    query_id=self._target.producer_id,
                    batch_id=sequence,
                    reason=str(error),
                )
            )

    def _nothing_to_write(self, batch: Batch) -> None:
        """All of its appends were rejected: done as soon as those before it are."""
        with self._acks:
            if self._sent:
                self._sent[max(self._sent)].empty.append(batch)
            else:
                batch.complete(-1)

    # The pool.

    def _put(self, sent: Sent) -> None:
        target = self._target
        try:
            began = target.claim.before(sent.header)
            put_record(target.log, sent.header, sent.data)
            if target.claim.stands(sent.header, began) is not None:
                raise overtaken(target.log, sent.position)
        except SparkWalError as error:
            self._failed(sent.position, used_up(error))
        except BaseException as error:
            what = f"position {sent.position}: the request failed"
            self._failed(sent.position, unexpected(what, error))
        else:
            self._succeeded(sent.position)

    def _look(self) -> None:
        """Stop when another writer asks for the log; what is in flight goes on."""
        try:
            self._target.lookout.look()
        except StoreUnavailableError:
            pass  # the next look may see more
        except FencedError as error:
            with self._acks:
                self._stop(error)
        except BaseException as error:
            with self._acks:
                self._stop(unexpected("a request for the log could not be read", error))

    def _succeeded(self, position: int) -> None:
        with self._acks:
            if position not in self._sent:
                return  # given up already: one before it failed
            # Safety (§7): "an appender acknowledges whatever is done"
            for ready in self._pipeline.durable(position):
                done = self._sent.pop(ready)
                self.last_sequence = done.sequence
                # Under the lock: nobody may see a later append durable before this one.
                done.batch.complete(ready)
                for batch in done.empty:
                    batch.complete(-1)
                self._subscribers.publish(
                    events.Durable(
                        position=ready,
                        rows=done.rows,
                        query_id=self._target.producer_id,
                        batch_id=done.sequence,
                    )
                )
            self._settle()
        with self._lock:
            self._changed.notify()

    def _failed(self, position: int, error: SparkWalError) -> None:
        with self._acks:
            if position in self._sent:
                # Safety (§7): "with retries exhausted a slot is skipped"
                # Safety (§7): "a stopped appender goes on sending"
                self._errors[position] = error
                self._stop(error)

    def _stop(self, error: SparkWalError, batch: Batch | None = None) -> None:
        """Accept and send nothing more; what is in flight before the failure goes on."""
        with self._lock:
            first = self.failure is None
            self.failure = failure = self.failure or Failure(error)
            self._changed.notify_all()
            self._room.notify_all()
        if first:
            path = self._target.log.url
            kind = type(error).__name__
            self._subscribers.publish(events.Stopped(path=path, error=kind, reason=str(error)))
        if batch is not None:
            batch.fail(error, failure)
        self._settle()

    def _settle(self) -> None:
        """Once the oldest slot has failed nothing behind it can be acknowledged any more."""
        self._settled.notify_all()
        if self.failure is None or (self._sent and min(self._sent) not in self._errors):
            return
        error = None
        for position in sorted(self._sent):
            # Safety (§7): "what is not acknowledged is told why the appender stopped, not what
            # became of it"
            error = verdict(error, self._errors.get(position))
            assert error is not None
            lost = self._sent.pop(position)
            for batch in (lost.batch, *lost.empty):
                batch.fail(error, self.failure)
        with self._lock:
            waiting = self._buffer.take_all()
        for batch in waiting:
            batch.fail(unsent(self.failure.error), self.failure)
