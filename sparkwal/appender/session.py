"""One leadership of the log by an appender, from its first request to its last acknowledgement."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from dataclasses import dataclass
from functools import partial

from sparkwal.appender.batches import Failure
from sparkwal.appender.buffer import Buffer
from sparkwal.appender.intake import Intake
from sparkwal.appender.limits import Limits, SizeWatch
from sparkwal.appender.persistence import Listener, Persistence, Target
from sparkwal.appender.rows import RowSchema
from sparkwal.appender.subscribers import Subscribers
from sparkwal.appender.verdicts import fenced
from sparkwal.appender.workers import Callbacks
from sparkwal.errors import DivergedCheckpointError, FencedError, OptionError
from sparkwal.options.appender import AppenderOptions
from sparkwal.options.open import check_place
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.claim_age import ClaimAge
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.handover import Lookout
from sparkwal.protocol.leader import Leadership
from sparkwal.protocol.leadership import Claim, lead
from sparkwal.protocol.pipeline import Pipeline
from sparkwal.store.conditional_put import prove_put_if_absent
from sparkwal.store.log_store import LogStore


@dataclass(frozen=True)
class Writer:
    """Who appends what, and where: all that a session needs and that outlives one.

    Attributes:
        log: its store repeats what fails for a moment.
    """

    log: LogStore
    settings: AppenderOptions
    rows: RowSchema
    producer_id: str
    subscribers: Subscribers
    clock: Clock


class Session:
    """Takes the log over and fences its former writer.

    Args:
        listener: is told of what becomes of appends before their tickets are.
        former: the session before it of the same appender: this one goes on in the same log, and
            takes it from nobody else.

    Attributes:
        leadership: what the log was like when it began.
        began: the first position that it may write.
        known: the newest sequence of the producer that the log had when it began.

    Raises StoreUnavailableError, OutcomeUnknownError, FencedError, InvalidLogError, OptionError.
    """

    lost = range(0)

    def __init__(
        self, writer: Writer, listener: Listener | None = None, former: Session | None = None
    ) -> None:
        log, settings, clock = writer.log, writer.settings, writer.clock
        prove_put_if_absent(log.store, log.prefix)
        # One for each incarnation: its own records, and no others, are ours on a read-back.
        plan_id = uuid.uuid4().hex
        host = socket.gethostname()
        known: Leadership | None = former.leadership if former is not None else None
        claim = Claim(
            leader_id=known.leader_id if known else f"{host}:{os.getpid()}:{plan_id[:12]}",
            host=host,
            plan_id=plan_id,
            spark_schema=writer.rows.spark_schema,
            merge_schema=settings.merge_schema,
            window=settings.window_size,
            in_flight_limit=settings.max_in_flight,
            reason="appender",
            log_id=known.log_id if known else None,
            continues=known is not None,
            check_place=partial(check_place, settings.path),
        )
        subscribers = writer.subscribers
        subscribers.enter_thread()
        try:
            looked_ms = clock.boot_ms()
            leadership = lead(log, claim, clock, settings.plan_ttl_ms, known)
        except FencedError as error:
            raise fenced(error) from None
        except DivergedCheckpointError:
            raise OptionError(
                f"{log.url} is not the log {claim.log_id} any more: it was deleted, or made again"
            ) from None
        finally:
            subscribers.leave_thread()
        limit = settings.max_in_flight
        self.leadership: Leadership = leadership
        self.began = leadership.next_position
        self.known = last_batch(lambda: log, leadership, writer.producer_id)
        age = ClaimAge(
            log,
            clock,
            settings.plan_ttl_ms,
            leadership.began,
            limit,
            looked_ms=looked_ms,
            known=self.known,
        )
        lookout = Lookout(log, leadership.log_id, leadership.term, clock)
        pipeline = Pipeline(log, leadership, plan_id, writer.producer_id, settings.codec)
        timeout = settings.batch_timeout_ms / 1000
        watch = _watch(writer, leadership)
        self.callbacks = Callbacks()
        buffer = Buffer(
            settings.batch_size, timeout, settings.max_buffered, self.known + 1, self.callbacks
        )
        self.intake = Intake(buffer, self.callbacks)
        self.persistence = Persistence(
            Target(log, writer.producer_id, pipeline, age, lookout, limit),
            writer.rows,
            self.intake,
            clock,
            subscribers,
            watch,
            listener,
        )
        self._ends = threading.Lock()  # held by the call that ends the threads, for good

    @property
    def pid(self) -> int:
        """The process that it was opened in, the only one that may use it."""
        return self.callbacks.pid

    @property
    def log_id(self) -> str:
        """Of the log that it leads."""
        return self.leadership.log_id

    @property
    def last_sequence(self) -> int:
        """The newest durable sequence."""
        return self.persistence.last_sequence

    @property
    def in_flight(self) -> int:
        """Records that are sent and not acknowledged."""
        return self.persistence.in_flight

    @property
    def unacknowledged(self) -> int:
        """Appends that are accepted and not known to be durable."""
        return self.persistence.unacknowledged

    @property
    def held(self) -> int:
        """Bytes of memory that wait to be sent."""
        return self.intake.held

    @property
    def failure(self) -> Failure | None:
        """Why it has stopped."""
        return self.intake.failure

    def flush(self, timeout: float | None) -> None:
        """See `Intake.flush`."""
        self.intake.flush(timeout)

    def wait_room(self, timeout: float) -> None:
        """See `Intake.wait_room`."""
        self.intake.wait_room(timeout)

    def tell_rest(self) -> None:
        """See `Intake.tell_rest`."""
        self.intake.tell_rest()

    def close(self, timeout: float | None) -> bool:
        """Send everything accepted and end the threads; whether this call ended them.

        Raises TimeoutError.
        """
        self.persistence.close(timeout)
        if not self._ends.acquire(blocking=False):
            return False
        self.callbacks.stop()
        return True


def _watch(writer: Writer, leadership: Leadership) -> SizeWatch | None:
    """None, and no request, without limits of the log's size."""
    settings = writer.settings
    if settings.soft_limit is None and settings.hard_limit is None:
        return None
    return SizeWatch(
        writer.log,
        leadership.log_id,
        leadership.window,
        leadership.next_position,
        Limits(settings.soft_limit, settings.hard_limit),
        writer.clock,
        writer.subscribers.publish,
    )
