"""Waiting that a signal handler may interrupt at any instant.

`threading.Condition`, `Event` and `Semaphore` are written in Python: a handler may raise after they
acquired their lock and before they protect it. The lock then stays taken, and every later call
waits for ever. The classes here take no lock that another thread needs.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic


class Waiters:
    """Threads that wait for a condition.

    Change the variables of the condition in a `with` block: its end wakes all waiting threads, even
    if a handler raises in the block. The block locks nothing.
    """

    def __init__(self) -> None:
        # One closed gate for each waiting thread.
        self._gates: list[threading.Lock] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for gate in tuple(self._gates):
            # Another thread may have opened it already.
            with suppress(RuntimeError):
                gate.release()

    def wait(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a condition is true.

        Args:
            holds: the condition. It is called without a lock, at the beginning and at each wake-up.
            timeout: the number of seconds to wait, or None for no limit.

        Returns:
            The last result of `holds`.
        """
        if holds():
            return True
        end = None if timeout is None else monotonic() + timeout
        with _Gate(self._gates) as gate:
            # A change before the gate was in the list woke no thread: check again.
            while not holds():
                left = -1.0 if end is None else max(0.0, end - monotonic())
                if not gate.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                    return holds()
            return True


class _Gate:
    """A closed gate in a list; the end of the block removes it.

    A handler that raises in `__enter__` leaves the gate in the list. That does no harm.
    """

    def __init__(self, gates: list[threading.Lock]) -> None:
        self._gates = gates
        self._gate = threading.Lock()

    def __enter__(self) -> threading.Lock:
        self._gate.acquire()
        self._gates.append(self._gate)
        return self._gate

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):
            self._gates.remove(self._gate)


class Flag:
    """A flag that threads wait for, as `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._waiters:
            self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set or `timeout` seconds have passed.

        Returns:
            Whether the flag is set.
        """
        return self._waiters.wait(self.is_set, timeout)
