"""One leadership of the log by an appender: cuts batches, sends them, acknowledges in order.

One thread cuts and encodes batches. A thread of a pool puts each record, with its own retries. The
one whose record fills the oldest gap acknowledges all that waited for it.

    sending → stopped (`_stop`)         the first failure; records in flight before it go on
    sending, stopped → over (`_end_if_over`)    all is sent or given up, and nothing in flight

A batch is encoded → in flight → done, then acknowledged once all before it are; or it fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any

from sparkwal import events
from sparkwal.appender.batches import Batch, Callbacks
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.intake import Intake
from sparkwal.appender.limits import SizeWatch
from sparkwal.appender.verdicts import ASK, unexpected, unsent, used_up, verdict
from sparkwal.errors import (
    FencedError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.claim_age import ClaimAge
from sparkwal.protocol.commit import put_record
from sparkwal.protocol.handover import Lookout
from sparkwal.protocol.leader import Leadership
from sparkwal.protocol.pipeline import Pipeline, Sent


def _fields(header: CommitHeader) -> dict[str, Any]:
    """What its events say."""
    who, last = header.query_id, header.batch_id
    return {"position": header.position, "rows": header.rows, "query_id": who, "batch_id": last}


class Workers:
    """Up to `limit` threads that send requests, started as needed. Only one thread may submit. They
    are daemons: a request that hangs must not keep a process alive after its appender failed."""

    def __init__(self, limit: int, entered: Callable[[], None]) -> None:
        self._limit, self._entered = limit, entered
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task that never raises."""
        if not self._idle.acquire(blocking=False) and self._count < self._limit:
            self._count += 1
            name = f"sparkwal-put-{self._count}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except RuntimeError:
                # The machine has no more threads, or the interpreter ends. The existing threads
                # take the task; if there are none, this one runs it.
                self._count -= 1
                if not self._count:
                    task()
                    return
        self._tasks.put(task)

    def _work(self) -> None:
        self._entered()
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it holds the record's bytes
            self._idle.release()

    def stop(self) -> None:
        """End every thread after its task, without waiting for it."""
        for _ in range(self._count):
            self._tasks.put(None)


class Session:
    """Without a journal it is the appender's backend: accepted rows are in memory.

    Args:
        leadership: of the beginning: the session may write from its `next_position` on.
        plan_id: drawn for this session: a read-back counts only its own records as ours.
        known: the producer's newest sequence in the log.
        looked_ms: when the log was looked at.

    Raises InvalidLogError, StoreUnavailableError.
    """

    def __init__(
        self,
        context: AppenderContext,
        leadership: Leadership,
        plan_id: str,
        known: int,
        looked_ms: int,
        lookout: Lookout | None = None,
    ) -> None:
        log, clock, settings, lead = context.log, context.clock, context.settings, leadership
        self._context, self.leadership, self.known = context, leadership, known
        ttl_ms, limit = settings.plan_ttl_ms, settings.max_in_flight
        self._pipeline = Pipeline(lead, plan_id, context.producer_id, settings.codec)
        self._claim = ClaimAge(
            log, clock, ttl_ms, lead.began, limit, looked_ms=looked_ms, known=known
        )
        self._lookout = lookout or Lookout(log, lead.log_id, lead.term, clock)
        # Without limits of the log's size there is no watch and no request.
        has_limits = settings.soft_limit is not None or settings.hard_limit is not None
        self._watch = SizeWatch(context, lead) if has_limits else None
        self.intake = Intake(settings, known + 1, Callbacks())
        self._publish, self._producer = context.subscribers.publish, context.producer_id
        # A journal sets both; they run in the threads that send, and must not take their locks.
        # Every append up to a sequence is decided, and the newest lie at the position. The log
        # takes no more or takes again, or this has stopped: then no event is published.
        self.on_decided: Callable[[int, int], None] = lambda sequence, position: None
        self.on_change: Callable[[], None] | None = None
        self._workers = Workers(context.settings.max_in_flight, context.subscribers.enter_thread)
        # Guards what is in flight, and serializes acknowledgements. Only the threads here take it.
        self._acks = threading.RLock()
        # Position → header, its batch and those after it with nothing to write.
        self._sent: dict[int, tuple[CommitHeader, list[Batch]]] = {}
        self._errors: dict[int, SparkWalError] = {}
        self._all_sent = False
        # Position → milliseconds of its PUT; the last of the acknowledged ones; retries up to now.
        self._put_ms: dict[int, float] = {}
        self._last_ms: float | None = None
        self._retried = context.subscribers.retried
        if self._watch is not None:
            self._watch.start(self._refuse)
        self._thread = threading.Thread(target=self._run, name="sparkwal-send", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    @property
    def held(self) -> int:
        return self.intake.held

    def close(self, timeout: float | None) -> None:
        """Raises TimeoutError."""
        self.intake.close(timeout)
        self._workers.stop()
        if self._watch is not None:
            self._watch.close()
        self.intake.callbacks.stop()

    def _refuse(self, reason: str | None) -> None:
        self.intake.refuse(reason)
        if self.on_change is not None:
            self.on_change()

    def _run(self) -> None:
        try:
            while (batch := self.intake.next(self._pipeline)) is not None:
                self._send(batch)
        except BaseException as error:
            # Even MemoryError must fail the waiting tickets, or callers block forever.
            self._stop(unexpected("the sending thread failed", error))
        with self._acks:
            self._all_sent = True
            self._settle()

    def _send(self, batch: Batch) -> None:
        try:
            appends, batch.appends = batch.appends[: batch.count], []
            count = len(appends)
            batches, rejected = self._context.rows.convert(appends)
            del appends
            for at, refusal in rejected.items():
                self._reject(batch, batch.first_sequence + at, refusal)
            index = next((i for i in reversed(range(count)) if i not in rejected), None)
            if index is None:
                self._nothing_to_write(batch)
                return
            last = batch.first_sequence + index
            rows = sum(b.num_rows for b in batches)
            now = self._context.clock.now_ms()
            sent = self._pipeline.send(rows, batches, last, now, self._metrics())
        except BaseException as error:
            self._stop(unexpected("a batch could not be encoded", error), batch)
            return
        with self._acks:
            if (failure := self.intake.failure) is not None:
                batch.fail(unsent(failure.error), failure)
                return
            # SAFETY(last-sequence-durable) §7: last_sequence counts durable appends only
            self._sent[sent.position] = sent.header, [batch]
        self._publish(events.BatchSent(**_fields(sent.header)))
        if self._watch is not None:
            # Count it before it can be durable: an append after that then meets the limit at once.
            self._watch.add(sent.position, sent.header.bytes)
        self._workers.submit(partial(self._put, sent))
        if self._lookout.is_due():
            self._workers.submit(self._look)

    def _reject(self, batch: Batch, sequence: int, error: OptionError) -> None:
        batch.reject(sequence, error)
        who, reason = self._producer, str(error)
        self._publish(events.Rejected(query_id=who, batch_id=sequence, reason=reason))

    def _metrics(self) -> dict[str, float]:
        """For the next record; each PUT is in at most one."""
        last, self._last_ms = self._last_ms, None
        before, self._retried = self._retried, self._context.subscribers.retried
        found: dict[str, float] = {"retries": self._retried - before}
        return found if last is None else {**found, "last_put_ms": last}

    def _nothing_to_write(self, batch: Batch) -> None:
        """All appends of the batch were rejected: it is done as soon as those before it are."""
        with self._acks:
            if self._sent:
                self._sent[max(self._sent)][1].append(batch)
            else:
                self._complete(batch, -1)

    def _complete(self, batch: Batch, position: int) -> None:
        self.on_decided(batch.next_sequence - 1, position)
        batch.complete(position)

    def _put(self, sent: Sent) -> None:
        log, started = self._context.log, monotonic()
        try:
            began = self._claim.before(sent.header)
            put_record(log, sent.header, sent.data, ASK)
            took = round((monotonic() - started) * 1000, 3)
            if self._claim.confirm_after_put(sent.header, began) is not None:
                # Our record may have arrived before the other writer led, or after a collection.
                raise OutcomeUnknownError(
                    f"position {sent.position} of {log.url} was written, but it took so long that "
                    f"another writer leads now: {ASK}"
                )
        except BaseException as error:
            self._failed(sent.position, used_up(sent.position, error))
        else:
            self._succeeded(sent.position, took)

    def _look(self) -> None:
        """Stop if another writer asks for the log; records in flight go on."""
        try:
            self._lookout.look()
        except StoreUnavailableError:
            pass  # the next look may see more
        except FencedError as error:
            self._stop(error)
        except BaseException as error:
            self._stop(unexpected("a request for the log could not be read", error))

    def _succeeded(self, position: int, took: float) -> None:
        with self._acks:
            if position not in self._sent:
                return  # given up already: a slot before it failed
            self._put_ms[position] = took
            # SAFETY(ack-in-order) §7: the appender acknowledges only slots whose predecessors are
            # decided
            for ready in self._pipeline.durable(position):
                done, (batch, *empty) = self._sent.pop(ready)
                self.intake.last_sequence = done.batch_id
                # Complete under the lock: no caller may see a later append durable before this one.
                # No user code runs here: `Callbacks` calls back.
                self._complete(batch, ready)
                for batch in empty:
                    self._complete(batch, -1)
                self._last_ms = self._put_ms.pop(ready)
                about = _fields(done)
                self._publish(events.Durable(**about, bytes=done.bytes, put_ms=self._last_ms))
            self._settle()
        self.intake.wake()

    def _failed(self, position: int, error: SparkWalError) -> None:
        with self._acks:
            if position in self._sent:
                # SAFETY(never-skip-slot) §7: an appender with a failed slot stops; it never skips
                # the slot
                # SAFETY(stopped-sends-nothing) §7: a stopped appender sends nothing more
                self._errors[position] = error
                self._stop(error)

    def _stop(self, error: SparkWalError, batch: Batch | None = None) -> None:
        """Accept and send nothing more; records in flight before the failure go on."""
        with self._acks:
            if self.intake.stop(error):
                if self.on_change is None:
                    path, kind = self._context.log.url, type(error).__name__
                    self._publish(events.Stopped(path=path, error=kind, reason=str(error)))
                else:
                    self.on_change()
                if self._watch is not None:
                    self._watch.close()
            if batch is not None:
                assert self.intake.failure is not None
                batch.fail(error, self.intake.failure)
            self._settle()

    def _settle(self) -> None:
        """Once the oldest slot has failed, fail all that waits: nothing can be acknowledged."""
        failure = self.intake.failure
        if failure is not None and (not self._sent or min(self._sent) in self._errors):
            error = None
            for position in sorted(self._sent):
                # SAFETY(verdict-per-append) §7: each unacknowledged append gets its own verdict,
                # not the reason of the stop
                error = verdict(error, self._errors.get(position))
                assert error is not None
                for batch in self._sent.pop(position)[1]:
                    batch.fail(error, failure)
            for batch in self.intake.take_all():
                batch.fail(unsent(failure.error), failure)
        if self._all_sent and not self._sent:
            self.intake.end()
