"""What a session needs and what outlives it: who appends what, and who gets the events."""

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

_logger = logging.getLogger("sparkwal")

# Events that may wait for a slow subscriber before the oldest are dropped.
_MOST_WAITING = 10_000
_DRAIN_SECONDS = 5.0


class Subscriber:
    """A callback with a queue and a daemon of its own: it may be slow, fail, or hang."""

    def __init__(self, callback: Callable[[Event], None]) -> None:
        self._callback = callback
        self._waiting: deque[Event] = deque(maxlen=_MOST_WAITING)
        self._missed = 0
        self._lock, self._woken = threading.RLock(), Flag()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sparkwal-events", daemon=True)
        self._thread.start()

    def publish(self, event: Event) -> None:
        """Never blocks. Beyond 10,000 the oldest events are dropped and counted."""
        with self._lock:
            self._missed += len(self._waiting) == _MOST_WAITING
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
            for each in (Missed(missed), event) if missed else (event,):
                try:
                    self._callback(each)
                except BaseException:  # sys.exit() would end this thread
                    _logger.exception("a subscriber failed on %s", each.name)

    def stop(self) -> None:
        """Deliver what waits, and nothing after it."""
        self._closing = True
        self._woken.set()

    def join(self) -> None:
        """Wait for `stop`, but not for ever for a callback that hangs."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_DRAIN_SECONDS)


class Subscribers:
    """Each subscriber gets the events in order."""

    def __init__(self) -> None:
        # The process's own subscribers may be slow too.
        self._process = Subscriber(events.emit)
        self._own: tuple[Subscriber, ...] = ()
        self._threads: set[int] = set()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._forget = events.subscribe(self._overhear)

    def add(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Returns a function that removes the subscriber."""
        subscriber = Subscriber(callback)
        with self._lock:
            self._own += (subscriber,)

        def remove() -> None:
            with self._lock:
                self._own = tuple(each for each in self._own if each is not subscriber)
            subscriber.stop()

        return remove

    def publish(self, event: Event) -> None:
        """Notify these subscribers and the process's."""
        # Waking a thread costs more than asking whether anybody wants the event.
        if events.has_other_listener(type(event), self._overhear):
            self._process.publish(event)
        self._notify(event)

    def _notify(self, event: Event) -> None:
        for subscriber in self._own:
            subscriber.publish(event)

    @contextmanager
    def overhearing(self) -> Iterator[None]:
        """Within it these subscribers also get the events that this thread emits: retried, …"""
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
        """Deliver what waits. Harmless when repeated."""
        with suppress(ValueError):  # closed before
            self._forget()
        with self._lock:
            closing, self._own = (self._process, *self._own), ()
        for subscriber in closing:
            subscriber.stop()
        for subscriber in closing:
            subscriber.join()


@dataclass(frozen=True)
class AppenderContext:
    """Who appends what, and where. The store of `log` retries transient failures."""

    log: LogStore
    settings: AppenderOptions
    rows: RowSchema
    producer_id: str
    subscribers: Subscribers
    clock: Clock
