"""The threads of a simulated process.

One thread runs at a time, until it asks the world for an answer or waits for another thread. So the
library's own threads run, and a run repeats. A wait for a time ends only if the machine's `fire`
ends it.

Inside `simulated()` these classes replace those of `threading` in the library's modules.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue as RealQueue
from types import SimpleNamespace
from typing import Any

from greenlet import greenlet

from sparkwal.store import threads
from tests.simulation.machine import Machine


class Lock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[greenlet] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._held:
            if not blocking or not Machine.current.block(self._waiting, sleeps=timeout >= 0):
                return False
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._waiting:
            Machine.current.wake(self._waiting)

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """`threading.RLock`."""

    def __init__(self) -> None:
        super().__init__()
        self._owner, self._count = -1, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = Machine.current.me()
        if self._owner != me:
            if not super().acquire(blocking):
                return False
            self._owner = me
        self._count += 1
        return True

    def _is_owned(self) -> bool:
        return bool(self._owner == Machine.current.me())

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = -1
            super().release()


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: deque[greenlet] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        woken = Machine.current.block(self._waiting, sleeps=timeout is not None)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            Machine.current.wake(self._waiting)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: deque[greenlet] = deque()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._waiting:
            Machine.current.wake(self._waiting)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        while not self._set:
            if not Machine.current.block(self._waiting, sleeps=timeout is not None):
                break
        return self._set


class Semaphore:
    """`threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._waiting: deque[greenlet] = deque()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        while not self._value:
            sleeps = timeout is not None
            if not blocking or not Machine.current.block(self._waiting, sleeps=sleeps):
                return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        for _ in range(min(n, len(self._waiting))):
            Machine.current.wake(self._waiting)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Thread:
    """`threading.Thread`."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str = "",
        args: Iterable[Any] = (),
        *,
        daemon: bool = False,
    ) -> None:
        self._target = target
        self.name = name
        self._args = args
        self.daemon = daemon
        self._ended = Event()
        self.ident = -1

    def start(self) -> None:
        def run() -> None:
            self._target(*self._args)
            self._ended.set()

        self.ident = Machine.current.start(run)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._filled = Semaphore(0)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._filled.release()

    def get(self, timeout: float | None = None) -> Any:
        """Wait for an item. No request of the simulation is late, so every wait ends."""
        self._filled.acquire()
        return self._items.popleft()


class _Future:
    """The result of `run_in_thread`."""

    def __init__(self) -> None:
        self._done = Event()
        self._result: Any = None
        self._error: Exception | None = None

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._result = function(*arguments)
        except Exception as error:
            self._error = error
        self._done.set()

    def result(self) -> Any:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result


def run_in_thread(function: Callable[..., Any], *arguments: Any) -> _Future:
    """`store.threads.run_in_thread`."""
    future = _Future()
    Machine.current.start(lambda: future.run(function, arguments))
    return future


def run_in_daemon(task: Callable[[], None]) -> None:
    """`store.threads.run_in_daemon`: threads that have ended a task take the next, as there."""
    idle = Machine.current.idle
    if not idle:
        idle.append(inbox := SimpleQueue())
        Machine.current.start(lambda: _work(inbox, idle))
    idle.pop().put(task)


def _work(inbox: SimpleQueue, idle: list[SimpleQueue]) -> None:
    while True:
        inbox.get()()
        idle.append(inbox)


class _Threading(SimpleNamespace):
    """Replaces the module. Attributes that are not simulated are those of the module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


_THREADING = _Threading(
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    Semaphore=Semaphore,
    BoundedSemaphore=Semaphore,
    Thread=Thread,
    get_ident=lambda: Machine.current.me(),
)
_INSTEAD = (
    (threading, _THREADING),
    (RealQueue, SimpleQueue),
    (threads.run_in_thread, run_in_thread),
    (threads.run_in_daemon, run_in_daemon),
)


def _uses() -> Iterator[tuple[Any, str, Any, Any]]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "sparkwal":
            for attribute, value in list(vars(module).items()):
                for real, ours in _INSTEAD:
                    if value is real:
                        yield module, attribute, real, ours


@contextmanager
def simulated() -> Iterator[None]:
    """Let every module of the library that is loaded start these threads."""
    uses = list(_uses())
    for module, attribute, _, ours in uses:
        setattr(module, attribute, ours)
    try:
        yield
    finally:
        for module, attribute, real, _ in uses:
            setattr(module, attribute, real)
