"""Named events. The library configures no logging handlers; it only emits.

Every event goes to the subscribers of this process and, as one line
``name key=value …``, to ``logging.getLogger("sparkwal")``: at WARNING where an
operator should look, else at INFO. With Spark, most happen in Spark's Python
workers; what is a warning shows up in their standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_logger = logging.getLogger("sparkwal")


@dataclass(frozen=True)
class Kind:
    """One of the names an event may have: its fields, and what it tells."""

    fields: tuple[tuple[str, type], ...]
    meaning: str
    level: int = logging.INFO


KINDS: dict[str, Kind] = {
    "recovered": Kind(
        (("path", str), ("position", int)),
        "a cold start found the head of the log at `position` (−1: empty)",
    ),
    "leader_claimed": Kind(
        (("path", str), ("position", int), ("term", int), ("leader_id", str)),
        "this process wrote a leader record and may write behind it",
    ),
    "planned": Kind(
        (("position", int), ("plan_id", str), ("term", int), ("start", str)),
        "a microbatch got its position; `start` is warm (no request) or cold",
    ),
    "accepted": Kind(
        (("position", int), ("rows", int), ("query_id", str), ("batch_id", int)),
        "an appender sent a batch; not durable yet",
    ),
    "durable": Kind(
        (("position", int), ("rows", int), ("query_id", str), ("batch_id", int)),
        "a commit is in the log, and all before it are",
    ),
    "rejected": Kind(
        (("query_id", str), ("batch_id", int), ("reason", str)),
        "rows of an append do not fit the schema; it was left out, the appender goes on",
        logging.WARNING,
    ),
    "stopped": Kind(
        (("path", str), ("error", str), ("reason", str)),
        "an appender accepts nothing more; what was not acknowledged has failed",
        logging.WARNING,
    ),
    "missed": Kind(
        (("events", int),),
        "told to one slow subscriber of an appender: so many events before were left out",
    ),
    "retried": Kind(
        (
            ("operation", str),
            ("key", str),
            ("attempt", int),
            ("delay_ms", int),
            ("reason", str),
        ),
        "a request failed and is sent again after `delay_ms`",
        logging.WARNING,
    ),
    "adopted": Kind(
        (("key", str), ("partition", int)),
        "a task found the object that another attempt of it had written, and took it",
    ),
    "fenced": Kind(
        (("path", str), ("position", int), ("by", str), ("term", int)),
        "another writer leads the log; this one commits nothing more",
        logging.WARNING,
    ),
    "skipped_replay": Kind(
        (("query_id", str), ("batch_id", int)),
        "Spark repeated a microbatch that the log already holds; nothing was written",
    ),
    "aborted": Kind(
        (("path", str),),
        "Spark gave a microbatch up; nothing was deleted",
    ),
    "hint_not_saved": Kind(
        (("folder", str), ("reason", str)),
        "the driver's disk did not take the hint; microbatches start cold until it does",
        logging.WARNING,
    ),
    "proof_left_behind": Kind(
        (("key", str), ("url", str), ("reason", str)),
        "an object of the store's proof could not be deleted; it may be",
        logging.WARNING,
    ),
    "upload_left_behind": Kind(
        (("key", str), ("reason", str)),
        "an unfinished upload could not be aborted; a lifecycle rule should",
        logging.WARNING,
    ),
}

_subscribers: list[Callable[[Event], None]] = []


@dataclass(frozen=True)
class Event:
    """Something that happened: a name out of KINDS and its fields."""

    name: str
    fields: dict[str, object]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.fields.items())])


def subscribe(callback: Callable[[Event], None]) -> Callable[[], None]:
    """Call `callback` with every event of this process; returns the unsubscriber."""
    _subscribers.append(callback)
    return lambda: _subscribers.remove(callback)


def is_wanted(name: str, but: Callable[[Event], None]) -> bool:
    """Whether anyone other than the subscriber `but` would be told of such an event."""
    return _logger.isEnabledFor(KINDS[name].level) or any(each != but for each in _subscribers)


def emit(name: str, /, **fields: object) -> None:
    """Tell the subscribers and the logger. A failing subscriber never breaks a write."""
    event = Event(name, fields)
    if _logger.isEnabledFor(KINDS[name].level):
        _logger.log(KINDS[name].level, "%s", event)
    for callback in tuple(_subscribers):
        try:
            callback(event)
        except Exception:
            _logger.exception("a subscriber failed on %s", name)
