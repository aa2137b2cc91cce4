"""The parameters that all sessions of an appender share, and the subscribers of its events."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sparkwal import events
from sparkwal.appender.rows import RowSchema
from sparkwal.events import Event, Missed
from sparkwal.journal.safe_threading import Flag
from sparkwal.options.writing import AppenderOptions
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore
from sparkwal.store.threads import start_daemon

_logger = logging.getLogger("sparkwal")

# The limit of events that wait for a slow subscriber. Beyond it the oldest are dropped.
_MAX_WAITING = 10_000
_DRAIN_SECONDS = 5.0


class Subscriber:
    """A callback with a separate queue and daemon thread, because it may be slow, fail or hang."""

    def __init__(self, callback: Callable[[Event], None]) -> None:
        self._callback = callback
        self._waiting: deque[Event] = deque(maxlen=_MAX_WAITING)
        self._missed = 0
        self._lock = threading.RLock()
        self._woken = Flag()
        self._closing = False
        self._thread = start_daemon(self._run, "events")

    def publish(self, event: Event) -> None:
        """Queue an event without blocking. Beyond 10,000 events the oldest are dropped and
        counted."""
        with self._lock:
            self._missed += len(self._waiting) == _MAX_WAITING
            self._waiting.append(event)
        self._woken.set()

    def _run(self) -> None:
        while True:
            self._woken.clear()
            if not self._waiting:
                if self._closing:
                    return
                self._woken.wait()
                continue
            with self._lock:
                missed, self._missed = self._missed, 0
                event = self._waiting.popleft()
            for delivered in (Missed(missed), event) if missed else (event,):
                try:
                    self._callback(delivered)
                # Catch SystemExit too: sys.exit() would end this thread.
                except BaseException:
                    _logger.exception("a subscriber failed on %s", delivered.name)

    def stop(self) -> None:
        """Deliver the waiting events, and none after them."""
        self._closing = True
        self._woken.set()

    def join(self) -> None:
        """Wait until the waiting events are delivered, but not for ever for a callback that
        hangs."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_DRAIN_SECONDS)


class Subscribers:
    """The subscribers of one appender. Each gets the events in order."""

    def __init__(self) -> None:
        # The process's subscribers get the events through a thread too, because they may be slow.
        self._process = Subscriber(events.emit)
        self._own: tuple[Subscriber, ...] = ()
        self._threads: set[int] = set()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._forget = events.subscribe(self._overhear)

    def add(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Add a subscriber. Returns a function that removes it."""
        subscriber = Subscriber(callback)
        with self._lock:
            self._own += (subscriber,)

        def remove() -> None:
            with self._lock:
                self._own = tuple(other for other in self._own if other is not subscriber)
            subscriber.stop()

        return remove

    def publish(self, event: Event) -> None:
        """Notify these subscribers and the process's."""
        # Check for process subscribers first: waking their thread costs more.
        if events.has_other_listener(type(event), self._overhear):
            self._process.publish(event)
        self._notify(event)

    def _notify(self, event: Event) -> None:
        for subscriber in self._own:
            subscriber.publish(event)

    @contextmanager
    def overhearing(self) -> Iterator[None]:
        """Within the block these subscribers also get the events that this thread emits, such as
        retried."""
        self._threads.add(threading.get_ident())
        try:
            yield
        finally:
            self._threads.discard(threading.get_ident())

    def _overhear(self, event: Event) -> None:
        # A fork reuses thread ids, and its queues have no threads.
        if threading.get_ident() in self._threads and os.getpid() == self._pid:
            self._notify(event)

    def close(self) -> None:
        """Deliver the waiting events. You may repeat it."""
        # A second close finds the subscription removed.
        with suppress(ValueError):
            self._forget()
        with self._lock:
            closing, self._own = (self._process, *self._own), ()
        for subscriber in closing:
            subscriber.stop()
        for subscriber in closing:
            subscriber.join()


@dataclass(frozen=True)
class AppenderContext:
    """The log, the options and the producer of an appender. The store of `log` retries transient
    failures."""

    log: LogStore
    settings: AppenderOptions
    rows: RowSchema
    producer_id: str
    subscribers: Subscribers
    clock: Clock
