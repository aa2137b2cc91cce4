"""One leadership of the log by an appender: takes the log over, cuts batches, sends them,
acknowledges in order.

One thread cuts and encodes batches. A daemon puts each record, with its own retries. The
one whose record fills the oldest gap acknowledges all that waited for it.

    sending → stopped (`_stop`)         the first failure; records in flight before it go on
    sending, stopped → over (`_settle`) all is sent or given up, and nothing in flight

A batch is encoded → in flight → done, then acknowledged once all before it are; or it fails.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable
from functools import partial
from time import monotonic

from sparkwal import events
from sparkwal.appender.batches import Batch, Callbacks
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.intake import Intake
from sparkwal.appender.limits import SizeWatch
from sparkwal.appender.verdicts import ASK, fenced, unexpected, unsent, used_up, verdict
from sparkwal.errors import (
    DivergedCheckpointError,
    FencedError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.format.header import CommitHeader
from sparkwal.options.open import check_new_log
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.claim_age import ClaimAge
from sparkwal.protocol.commit import put_record
from sparkwal.protocol.handover import Lookout
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.pipeline import Pipeline
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.takeover import Claim, lead
from sparkwal.store.conditional_put import prove_put_if_absent
from sparkwal.store.hedge import run_in_daemon


def open_session(
    context: AppenderContext,
    known: Leadership | None = None,
    check: Callable[[Head, str, int], None] | None = None,
) -> Session:
    """Take the log over and fence its former writer.

    Args:
        known: what the appender led before: the session continues its log, and fences no other.
        check: called before anything is written, with the log's head, its id and the producer's
            newest sequence in it; raises if this appender must not lead the log.

    Raises StoreUnavailableError, OutcomeUnknownError, FencedError, InvalidLogError, OptionError.
    """
    log = context.log
    settings = context.settings
    clock = context.clock
    prove_put_if_absent(log.store, log.prefix)
    plan_id = uuid.uuid4().hex
    host = socket.gethostname()
    durable = -1

    def look(head: Head, log_id: str) -> None:
        nonlocal durable
        if head.live is not None:
            durable = last_batch(lambda: log, head.live.header, context.producer_id)
        if check is not None:
            check(head, log_id, durable)

    claim = Claim(
        leader_id=known.leader_id if known else f"{host}:{os.getpid()}:{plan_id[:12]}",
        host=host,
        plan_id=plan_id,
        spark_schema=context.rows.spark_schema,
        merge_schema=settings.merge_schema,
        window=settings.window_size,
        in_flight_limit=settings.max_in_flight,
        reason="appender",
        log_id=known.log_id if known else None,
        continues=known is not None,
        check_place=partial(check_new_log, settings.path),
        check_head=look,
    )
    looked_ms = clock.boot_ms()
    try:
        with context.subscribers.overhearing():
            leadership = lead(log, claim, clock, settings.plan_ttl_ms, known)
    except FencedError as error:
        raise fenced(error) from None
    except DivergedCheckpointError:
        raise OptionError(
            f"{log.url} is not the log {claim.log_id} any more: it was deleted, or recreated"
        ) from None
    return Session(context, leadership, plan_id, durable, looked_ms)


class Session:
    """Without a journal it is the appender's backend: accepted rows are in memory.

    Args:
        lead: of the beginning: the session may write from its `next_position` on.
        plan_id: drawn for this session: a read-back counts only its own records as ours.
        known: the producer's newest sequence in the log, seen at `looked_ms`.

    Raises InvalidLogError, StoreUnavailableError.
    """

    def __init__(
        self, context: AppenderContext, lead: Leadership, plan_id: str, known: int, looked_ms: int
    ) -> None:
        log = context.log
        clock = context.clock
        settings = context.settings
        self._context = context
        self.leadership = lead
        self.known = known
        self._pipeline = Pipeline(lead, plan_id, context.producer_id, settings.codec)
        ttl_ms = settings.plan_ttl_ms
        began = lead.began
        limit = settings.max_in_flight
        self._claim = ClaimAge(log, clock, ttl_ms, began, limit, looked_ms=looked_ms, known=known)
        self._lookout = Lookout(log, lead.log_id, lead.term, clock)
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
        # Looks count as requests: they hold records up, so that who asks for the log gets it.
        self._free = threading.Semaphore(limit)
        # Guards what is in flight, and serializes acknowledgements. Only the threads here take it.
        self._acks = threading.RLock()
        # Position → header, its batch and those after it with nothing to write.
        self._sent: dict[int, tuple[CommitHeader, list[Batch]]] = {}
        self._errors: dict[int, SparkWalError] = {}
        self._all_sent = False
        # Position → milliseconds of its PUT; the last of the acknowledged ones; retries up to now.
        self._put_ms: dict[int, float] = {}
        self._last_ms: float | None = None
        self._retried = context.log.store.retries
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
                sequence, reason = batch.first_sequence + at, str(refusal)
                batch.reject(sequence, refusal)
                self._publish(events.Rejected(self._producer, sequence, reason))
            index = next((i for i in reversed(range(count)) if i not in rejected), None)
            if index is None:
                # All were rejected: the batch is done as soon as those before it are.
                with self._acks:
                    if self._sent:
                        self._sent[max(self._sent)][1].append(batch)
                    else:
                        self._complete(batch, -1)
                return
            last = batch.first_sequence + index
            now = self._context.clock.now_ms()
            header, data = self._pipeline.send(batches, last, now, self._metrics())
        except BaseException as error:
            self._stop(unexpected("a batch could not be encoded", error), batch)
            return
        with self._acks:
            if (failure := self.intake.failure) is not None:
                batch.fail(unsent(failure.error), failure)
                return
            # SAFETY(last-sequence-durable) §7: last_sequence counts durable appends only
            self._sent[header.position] = header, [batch]
        self._publish(events.BatchSent(header.position, header.rows, self._producer, last))
        if self._watch is not None:
            # Count it before it can be durable: an append after that then meets the limit at once.
            self._watch.add(header.position, header.bytes)
        self._begin(partial(self._put, header, data))
        if self._lookout.is_due():
            self._begin(self._look)

    def _begin(self, request: Callable[[], None]) -> None:
        """In a daemon: one that hangs must not keep a process alive after its appender failed."""

        def run() -> None:
            with self._context.subscribers.overhearing():
                request()
            self._free.release()

        self._free.acquire()
        run_in_daemon(run)

    def _metrics(self) -> dict[str, float]:
        """For the next record; each PUT is in at most one."""
        last, self._last_ms = self._last_ms, None
        before, self._retried = self._retried, self._context.log.store.retries
        found: dict[str, float] = {"retries": self._retried - before}
        return found if last is None else {**found, "last_put_ms": last}

    def _complete(self, batch: Batch, position: int) -> None:
        self.on_decided(batch.next_sequence - 1, position)
        batch.complete(position)

    def _put(self, header: CommitHeader, data: bytes) -> None:
        log = self._context.log
        position = header.position
        started = monotonic()
        try:
            began = self._claim.before(header)
            put_record(log, header, data, ASK)
            took = round((monotonic() - started) * 1000, 3)
            if self._claim.confirm_after_put(header, began) is not None:
                # Our record may have arrived before the other writer led, or after a collection.
                raise OutcomeUnknownError(
                    f"position {position} of {log.url} was written, but it took so long that "
                    f"another writer leads now: {ASK}"
                )
        except BaseException as error:
            self._failed(position, used_up(position, error))
        else:
            self._succeeded(position, took)

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
                # Under the lock, without user code: none may see a later append durable before it.
                self._complete(batch, ready)
                for batch in empty:
                    self._complete(batch, -1)
                self._last_ms = self._put_ms.pop(ready)
                about = ready, done.rows, self._producer, done.batch_id, done.bytes
                self._publish(events.Durable(*about, self._last_ms))
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
                    kind = type(error).__name__
                    self._publish(events.Stopped(self._context.log.url, kind, str(error)))
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
