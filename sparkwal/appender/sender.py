"""One leadership of the log by an appender: takes the log over, sends batches, acknowledges in
order.

One thread cuts and encodes batches. A daemon thread for each record puts it, with its own retries.
The thread whose record fills the oldest gap acknowledges all records that waited for it.

    sending → stopped (`_stop`)         the first failure; records in flight before it continue
    sending, stopped → over (`_settle`) all is sent or given up, and no record is in flight

A batch is encoded → in flight → done, then acknowledged once all before it are; or it fails.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic

from sparkwal import events
from sparkwal.appender.backend import SessionListener, StopReporter
from sparkwal.appender.batches import AppendBatch, Callbacks, CheckedRows, Ticket
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.intake import Intake
from sparkwal.appender.limits import SizeWatch
from sparkwal.appender.own_segments import OwnSegments
from sparkwal.appender.salvage import Incident
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
from sparkwal.store.threads import run_in_daemon, start_daemon


@dataclass(frozen=True)
class Takeover:
    """The result of taking the log over.

    Attributes:
        leadership: the session may write from its `next_position` on.
        plan_id: unique to this session: a read-back takes only records with it for its own.
        last_logged: the producer's newest sequence in the log when the takeover read it.
        looked_ms: a time just before that, on the boot-time clock.
    """

    leadership: Leadership
    plan_id: str
    last_logged: int
    looked_ms: int


def take_over(
    context: AppenderContext,
    former: Leadership | None = None,
    check: Callable[[Head, str, int], None] | None = None,
) -> Takeover:
    """Take the log over and fence its former writer.

    Args:
        context: the appender.
        former: the leadership of the appender's last session: this one continues its log, and
            fences no other writer.
        check: called before any write, with the log's head, its id and the producer's newest
            sequence in it. It raises if this appender must not lead the log.

    Raises:
        StoreUnavailableError: the store did not answer.
        OutcomeUnknownError: the leader record got no answer.
        FencedError: another writer took the log over.
        InvalidLogError: the log's end is damaged.
        OptionError: the log cannot be used, or was deleted.
    """
    log = context.log
    settings = context.settings
    clock = context.clock
    prove_put_if_absent(log.store, log.prefix)
    plan_id = uuid.uuid4().hex
    host = socket.gethostname()
    last_logged = -1

    def check_head(head: Head, log_id: str) -> None:
        nonlocal last_logged
        if head.live is not None:
            last_logged = last_batch(lambda: log, head.live.header, context.producer_id)
        if check is not None:
            check(head, log_id, last_logged)

    claim = Claim(
        leader_id=former.leader_id if former else f"{host}:{os.getpid()}:{plan_id[:12]}",
        host=host,
        plan_id=plan_id,
        spark_schema=context.rows.spark_schema,
        merge_schema=settings.merge_schema,
        window=settings.window_size,
        in_flight_limit=settings.max_in_flight,
        reason="appender",
        log_id=former.log_id if former else None,
        continues=former is not None,
        check_place=partial(check_new_log, settings.path),
        check_head=check_head,
    )
    looked_ms = clock.boot_ms()
    try:
        with context.subscribers.overhearing():
            leadership = lead(log, claim, clock, settings.plan_ttl_ms, former)
    except FencedError as error:
        raise fenced(error) from None
    except DivergedCheckpointError:
        raise OptionError(
            f"{log.url} is not the log {claim.log_id} any more: it was deleted, or recreated"
        ) from None
    return Takeover(leadership, plan_id, last_logged, looked_ms)


class Session:
    """One leadership of the log: sends the rows that its intake accepts.

    Args:
        context: the appender.
        takeover: the takeover that began this leadership.
        listener: gets the outcomes.

    Raises:
        InvalidLogError: the log is damaged.
        StoreUnavailableError: the store did not answer.
    """

    def __init__(
        self, context: AppenderContext, takeover: Takeover, listener: SessionListener
    ) -> None:
        log = context.log
        lead = takeover.leadership
        last_logged = takeover.last_logged
        clock = context.clock
        settings = context.settings
        self._context = context
        self.leadership = lead
        self.last_logged = last_logged
        self._pipeline = Pipeline(lead, takeover.plan_id, context.producer_id, settings.codec)
        ttl_ms = settings.plan_ttl_ms
        began = lead.began
        limit = settings.max_in_flight
        self._claim = ClaimAge(
            log,
            clock,
            ttl_ms,
            began,
            limit,
            looked_ms=takeover.looked_ms,
            last_sequence=last_logged,
        )
        self._lookout = Lookout(log, lead.log_id, lead.term, clock)
        # Without limits of the log's size there is no watch and no request.
        has_limits = settings.soft_limit is not None or settings.hard_limit is not None
        self._watch = SizeWatch(context, lead) if has_limits else None
        self._segments: OwnSegments | None = None
        if settings.make_segments:
            self._segments = OwnSegments(context, lead.window)
        self.intake = Intake(settings, last_logged + 1, Callbacks())
        self._publish = context.subscribers.publish
        self._producer = context.producer_id
        self._listener = listener
        # Bounds the requests in flight: PUTs of records, and looks for another writer's request for
        # the log. Until a look that is due has begun, no later record is sent. So a busy appender
        # finds the request too.
        self._free = threading.Semaphore(limit)
        # Guards the records in flight, and serializes acknowledgements. Only the session's threads
        # take it.
        self._acks = threading.RLock()
        # By position: the header, its batch and the batches after it without a row to write.
        self._sent: dict[int, tuple[CommitHeader, list[AppendBatch]]] = {}
        self._errors: dict[int, SparkWalError] = {}
        self._all_sent = False
        # The milliseconds of each PUT by position, of the last acknowledged PUT, and the retries up
        # to now.
        self._put_ms: dict[int, float] = {}
        self._last_ms: float | None = None
        self._retried = context.log.store.retries
        if self._watch is not None:
            self._watch.start(self._refuse)
        start_daemon(self._run, "send")

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    @property
    def memory(self) -> int:
        return self.intake.memory

    def close(self, timeout: float | None) -> None:
        """Accept no more appends, and wait until all are decided.

        Raises:
            TimeoutError: some are not decided yet.
        """
        self.intake.close(timeout)
        if self._watch is not None:
            self._watch.close()
        if self._segments is not None:
            self._segments.close(timeout)
        self.intake.callbacks.stop()

    def _refuse(self, reason: str | None) -> None:
        self.intake.refuse(reason)
        self._listener.changed()

    def _run(self) -> None:
        try:
            while (batch := self.intake.next(self._pipeline)) is not None:
                self._send(batch)
        except BaseException as error:
            # Catch MemoryError too: the waiting tickets must fail, or callers block for ever.
            self._stop(unexpected("the sending thread failed", error))
        with self._acks:
            self._all_sent = True
            self._settle()

    def _send(self, batch: AppendBatch) -> None:
        try:
            appends, batch.appends = batch.appends[: batch.count], []
            count = len(appends)
            batches, rejected = self._context.rows.convert(appends)
            del appends
            for index, refusal in rejected.items():
                sequence = batch.first_sequence + index
                batch.reject(sequence, refusal)
                self._publish(events.Rejected(self._producer, sequence, str(refusal)))
            last_index = next((i for i in reversed(range(count)) if i not in rejected), None)
            if last_index is None:
                # Every append was rejected, so the batch is done as soon as those before it are.
                with self._acks:
                    if self._sent:
                        self._sent[max(self._sent)][1].append(batch)
                    else:
                        self._complete(batch, -1)
                return
            last = batch.first_sequence + last_index
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
            if self._segments is not None:
                self._segments.sent(header, data)
        self._publish(events.BatchSent(header.position, header.rows, self._producer, last))
        if self._watch is not None:
            # Count the record before it can be durable, so that the next append meets the limit at
            # once.
            self._watch.add(header.position, header.bytes)
        self._begin(partial(self._put, header, data))
        if self._lookout.is_due():
            self._begin(self._check_handover)

    def _begin(self, request: Callable[[], None]) -> None:
        """Run a request in a daemon thread: one that hangs must not keep a process alive."""

        def run() -> None:
            with self._context.subscribers.overhearing():
                request()
            self._free.release()

        self._free.acquire()
        run_in_daemon(run)

    def _metrics(self) -> dict[str, float]:
        """The metrics for the next record. Each metric of a PUT is in at most one record."""
        last, self._last_ms = self._last_ms, None
        before, self._retried = self._retried, self._context.log.store.retries
        metrics: dict[str, float] = {"retries": self._retried - before}
        return metrics if last is None else {**metrics, "last_put_ms": last}

    def _complete(self, batch: AppendBatch, position: int) -> None:
        self._listener.decided(batch.next_sequence - 1, position)
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

    def _check_handover(self) -> None:
        """Stop if another writer asks for the log. Records in flight continue."""
        try:
            self._lookout.check()
        except StoreUnavailableError:
            # The next look may succeed.
            pass
        except FencedError as error:
            self._stop(error)
        except BaseException as error:
            self._stop(unexpected("a request for the log could not be read", error))

    def _succeeded(self, position: int, took: float) -> None:
        with self._acks:
            if position not in self._sent:
                # A slot before it failed, so this record was given up.
                return
            self._put_ms[position] = took
            # SAFETY(ack-in-order) §7: the appender acknowledges only slots whose predecessors are
            # decided
            for ready in self._pipeline.durable(position):
                done, (batch, *empty) = self._sent.pop(ready)
                self.intake.last_sequence = done.batch_id
                # Complete under the lock, without running user code: no thread may see a later
                # append durable before this one.
                self._complete(batch, ready)
                for batch in empty:
                    self._complete(batch, -1)
                if self._segments is not None:
                    self._segments.durable(ready)
                self._last_ms = self._put_ms.pop(ready)
                self._publish(
                    events.Durable(
                        ready, done.rows, self._producer, done.batch_id, done.bytes, self._last_ms
                    )
                )
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

    def _stop(self, error: SparkWalError, batch: AppendBatch | None = None) -> None:
        """Accept and send no more appends. Records in flight before the failure continue."""
        with self._acks:
            if self.intake.stop(error):
                self._listener.stopped(error)
                if self._watch is not None:
                    self._watch.close()
            if batch is not None:
                assert self.intake.failure is not None
                batch.fail(error, self.intake.failure)
            self._settle()

    def _settle(self) -> None:
        """If the oldest slot has failed, fail all waiting appends. The log cannot take them."""
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


class MemoryBackend(Session):
    """The backend of an appender without a journal: one session, with its rows in memory."""

    has_journal = False
    lost = range(0)
    journal_bytes = 0
    is_store_away = False

    def __init__(self, context: AppenderContext) -> None:
        super().__init__(context, take_over(context), StopReporter(context))

    def append_unsynced(self, rows: CheckedRows) -> Ticket:
        return self.intake.append(rows, block=False)

    def wait_accepted(self, ticket: Ticket) -> None:
        pass

    def resend_lost(self, unreadable: Callable[[int], CheckedRows]) -> list[int]:
        return []

    def incidents(self) -> list[Incident]:
        return []
