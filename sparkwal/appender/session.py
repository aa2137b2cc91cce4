"""Takes a log over for an appender."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from functools import partial

from sparkwal.appender.context import AppenderContext
from sparkwal.appender.sender import Session
from sparkwal.appender.verdicts import fenced
from sparkwal.errors import DivergedCheckpointError, FencedError, OptionError
from sparkwal.options.open import check_place
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.leadership import Claim, lead
from sparkwal.protocol.recovery import Head
from sparkwal.store.conditional_put import prove_put_if_absent


def open_session(
    context: AppenderContext,
    former: Session | None = None,
    check: Callable[[Head, str, int], None] | None = None,
) -> Session:
    """Take the log over and fence its former writer.

    Args:
        former: the same appender's session before: the new one must continue in the same log, and
            takes it over from no other writer.
        check: called before anything is written, with the log's head, its id and the producer's
            newest sequence in it; raises if this appender must not lead the log.

    Raises StoreUnavailableError, OutcomeUnknownError, FencedError, InvalidLogError, OptionError.
    """
    log, settings, clock = context.log, context.settings, context.clock
    prove_put_if_absent(log.store, log.prefix)
    plan_id = uuid.uuid4().hex
    host = socket.gethostname()
    known = former.leadership if former is not None else None
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
        check_place=partial(check_place, settings.path),
        check_head=look,
    )
    context.subscribers.enter_thread()
    try:
        looked_ms = clock.boot_ms()
        leadership = lead(log, claim, clock, settings.plan_ttl_ms, known)
    except FencedError as error:
        raise fenced(error) from None
    except DivergedCheckpointError:
        raise OptionError(
            f"{log.url} is not the log {claim.log_id} any more: it was deleted, or recreated"
        ) from None
    finally:
        context.subscribers.leave_thread()
    return Session(context, leadership, plan_id, durable, looked_ms)
