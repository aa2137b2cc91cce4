"""The base classes of events, and their delivery to subscribers and the logger."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, dataclass_transform

_logger = logging.getLogger("sparkwal")


@dataclass_transform(frozen_default=True)
class Event:
    """Something that happened. Each kind is a subclass, a frozen dataclass with its own fields."""

    name: ClassVar[str]
    level: ClassVar[int] = logging.INFO

    def __init_subclass__(cls, level: int = logging.INFO) -> None:
        cls.level = level
        cls.name = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        dataclass(frozen=True)(cls)

    def __str__(self) -> str:
        text = " ".join([self.name, *(f"{name}={value}" for name, value in vars(self).items())])
        if text.isprintable():
            return text
        # A name in the log may hold line ends, and what looks like another line of a log file.
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


class PathEvent(Event):
    """An event of the log or the journal at `path`."""

    path: str


_subscribers: list[Callable[[Event], None]] = []


def subscribe(callback: Callable[[Event], None]) -> Callable[[], None]:
    """Call `callback` with every event of this process; returns the unsubscriber."""
    _subscribers.append(callback)
    return lambda: _subscribers.remove(callback)


def has_other_listener(kind: type[Event], subscriber: Callable[[Event], None]) -> bool:
    """Whether the logger or any other subscriber would get such an event."""
    return _logger.isEnabledFor(kind.level) or any(other != subscriber for other in _subscribers)


def emit(event: Event) -> None:
    """Pass an event to the logger and the subscribers.

    If a subscriber raises an exception, it is logged, so that it cannot break a write.
    """
    if _logger.isEnabledFor(event.level):
        _logger.log(event.level, "%s", event)
    for callback in tuple(_subscribers):
        try:
            callback(event)
        except Exception:
            _logger.exception("a subscriber failed on %s", event.name)
