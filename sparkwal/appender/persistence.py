"""The persistence thread: cuts batches, sends them, acknowledges in order.

One thread cuts batches and encodes them; each
record is put by a thread of a pool, with retries of its own, and the thread whose record
fills the oldest gap acknowledges all that waited for it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Protocol

from sparkwal import events
from sparkwal.appender.batches import Batch, Failure
from sparkwal.appender.intake import Intake
from sparkwal.appender.limits import SizeWatch
from sparkwal.appender.measured import Measured
from sparkwal.appender.rows import RowSchema
from sparkwal.appender.subscribers import Subscribers
from sparkwal.appender.verdicts import ASK, overtaken, unexpected, unsent, used_up, verdict
from sparkwal.appender.workers import Workers
from sparkwal.errors import FencedError, OptionError, SparkWalError, StoreUnavailableError
from sparkwal.protocol.claim_age import ClaimAge
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.commit import put_record
from sparkwal.protocol.handover import Lookout
from sparkwal.protocol.pipeline import Pipeline, Sent
from sparkwal.store.log_store import LogStore


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
    bytes: int
    empty: list[Batch] = field(default_factory=list)  # after it, with nothing to write


class Listener(Protocol):
    """Is told in the threads that send, which wait for it: it takes no lock of theirs."""

    def decided(self, sequence: int, position: int) -> None:
        """Every append up to `sequence` is decided; the newest ones lie at `position`."""

    def refused(self) -> None:
        """The log takes no more for now, or takes again; `Intake.is_full` tells."""

    def stopped(self) -> None:
        """The appender has stopped; `Intake.failure` tells why."""


class Persistence:
    """Everything between `append` and the store; see `sparkwal.appender`."""

    def __init__(
        self,
        target: Target,
        row_schema: RowSchema,
        intake: Intake,
        clock: Clock,
        subscribers: Subscribers,
        watch: SizeWatch | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._target, self._pipeline = target, target.pipeline
        self._row_schema, self._intake, self._clock = row_schema, intake, clock
        self._subscribers, self._watch, self._listener = subscribers, watch, listener
        self._workers = Workers(target.limit, subscribers.enter_thread)
        # Guards what is in flight, and makes acknowledgements one after another; only the
        # threads of this appender take it.
        self._acks = threading.Lock()
        self._sent: dict[int, _InFlight] = {}
        self._errors: dict[int, SparkWalError] = {}
        self._all_sent = False
        self._measured = Measured(subscribers)
        self.last_sequence = intake.next_sequence - 1
        if watch is not None:
            watch.start(subscribers.enter_thread, self._refuse)
        self._thread = threading.Thread(target=self._run, name="sparkwal-persist", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> Failure | None:
        """Why it stopped."""
        return self._intake.failure

    @property
    def in_flight(self) -> int:
        """Records that are sent and not acknowledged."""
        return len(self._sent)

    @property
    def unacknowledged(self) -> int:
        """Appends that are accepted and not known to be durable."""
        return self._intake.next_sequence - 1 - self.last_sequence

    def close(self, timeout: float | None) -> None:
        """Send what was accepted, wait until all of it is decided, end the threads."""
        self._intake.close(timeout)
        self._workers.stop()
        if self._watch is not None:
            self._watch.close()

    def _refuse(self, reason: str | None) -> None:
        self._intake.refuse(reason)
        if self._listener is not None:
            self._listener.refused()

    # The persistence thread.

    def _run(self) -> None:
        try:
            while (batch := self._intake.next(self._pipeline)) is not None:
                self._send(batch)
        except BaseException as error:
            # Even MemoryError must fail the waiting tickets, or callers block forever.
            with self._acks:
                self._stop(unexpected("the persistence thread failed", error))
        with self._acks:
            self._all_sent = True
            self._end_if_over()

    def _send(self, batch: Batch) -> None:
        try:
            appends, batch.appends = batch.appends[: batch.count], []
            count = len(appends)
            batches, rejected = self._row_schema.convert(appends)
            del appends
            self._reject(batch, rejected)
            index = next((i for i in reversed(range(count)) if i not in rejected), None)
            if index is None:
                self._nothing_to_write(batch)
                return
            last = batch.first_sequence + index
            rows = sum(b.num_rows for b in batches)
            sent = self._pipeline.send(
                rows, batches, last, self._clock.now_ms(), self._measured.told()
            )
        except BaseException as error:
            with self._acks:
                self._stop(unexpected("a batch could not be encoded", error), batch)
            return
        with self._acks:
            if self.failure is not None:
                batch.fail(unsent(self.failure.error), self.failure)
                return
            # Safety (§7): "last_sequence counts what is only sent"
            self._sent[sent.position] = _InFlight(batch, last, rows, sent.header.bytes)
        self._subscribers.publish(
            events.Accepted(
                position=sent.position,
                rows=rows,
                query_id=self._target.producer_id,
                batch_id=last,
            )
        )
        if self._watch is not None:
            # Before it can be durable: who appends only after that meets the limit at once.
            self._watch.add(sent.position, sent.header.bytes)
        self._workers.submit(partial(self._put, sent))
        if self._target.lookout.is_due():
            self._workers.submit(self._look)

    def _reject(self, batch: Batch, rejected: dict[int, OptionError]) -> None:
        for index, error in rejected.items():
            sequence = batch.first_sequence + index
            batch.reject(sequence, error)
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
                self._complete(batch, -1)

    def _complete(self, batch: Batch, position: int) -> None:
        if self._listener is not None:
            self._listener.decided(batch.next_sequence - 1, position)
        batch.complete(position)

    # The pool.

    def _put(self, sent: Sent) -> None:
        target, started = self._target, monotonic()
        try:
            began = target.claim.before(sent.header)
            put_record(target.log, sent.header, sent.data, ASK)
            self._measured.put_ms[sent.position] = round((monotonic() - started) * 1000, 3)
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
                # Under the lock: no caller may see a later append durable before this one. Here
                # nothing of the caller's runs: `Callbacks` calls back.
                self._complete(done.batch, ready)
                for batch in done.empty:
                    self._complete(batch, -1)
                self._subscribers.publish(
                    events.Durable(
                        position=ready,
                        rows=done.rows,
                        query_id=self._target.producer_id,
                        batch_id=done.sequence,
                        bytes=done.bytes,
                        put_ms=self._measured.durable(ready),
                    )
                )
            self._settle()
        self._intake.wake()

    def _failed(self, position: int, error: SparkWalError) -> None:
        with self._acks:
            if position in self._sent:
                # Safety (§7): "with retries exhausted a slot is skipped"
                # Safety (§7): "a stopped appender goes on sending"
                self._errors[position] = error
                self._stop(error)

    def _stop(self, error: SparkWalError, batch: Batch | None = None) -> None:
        """Accept and send nothing more; what is in flight before the failure goes on."""
        if self._intake.stop(error):
            if self._listener is None:
                path = self._target.log.url
                kind = type(error).__name__
                self._subscribers.publish(events.Stopped(path=path, error=kind, reason=str(error)))
            else:
                self._listener.stopped()
            if self._watch is not None:
                self._watch.close()
        if batch is not None:
            assert self.failure is not None
            batch.fail(error, self.failure)
        self._settle()

    def _settle(self) -> None:
        """Once the oldest slot has failed, nothing after it can be acknowledged."""
        if self.failure is None or (self._sent and min(self._sent) not in self._errors):
            self._end_if_over()
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
        for batch in self._intake.take_all():
            batch.fail(unsent(self.failure.error), self.failure)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._all_sent and not self._sent:
            self._intake.end()
