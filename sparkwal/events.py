"""Named events. The library configures no logging handlers; it only emits.

Every event goes to the subscribers of this process and, as one line
``name key=value …``, to ``logging.getLogger("sparkwal")``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_logger = logging.getLogger("sparkwal")
_subscribers: list[Callable[[Event], None]] = []


@dataclass(frozen=True)
class Event:
    """Something that happened: a stable name and its typed fields."""

    name: str
    fields: dict[str, object]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.fields.items())])


def subscribe(callback: Callable[[Event], None]) -> Callable[[], None]:
    """Call `callback` with every event of this process; returns the unsubscriber."""
    _subscribers.append(callback)
    return lambda: _subscribers.remove(callback)


def emit(name: str, /, **fields: object) -> None:
    """Tell the subscribers and the logger. A failing subscriber never breaks a write."""
    event = Event(name, fields)
    _logger.info("%s", event)
    for callback in tuple(_subscribers):
        try:
            callback(event)
        except Exception:
            _logger.exception("a subscriber failed on %s", name)
