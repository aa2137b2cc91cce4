"""A simulated process: its threads, of which one runs at a time, until it asks the world for
something or waits for another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.world import Call

Ask = Callable[[Call], Any]
Process = Callable[[Ask], str]
_TIMEOUT = object()  # in the place of an answer


class Stuck(Exception):
    """A process waits, and nothing it has asked for can wake it."""


class Machine:
    """One life of a process: the calls of its threads, and how it ended.

    Attributes:
        calls: by thread: the call that it has asked of the world. Thread 0 is the process's own.
        outcome: the result of thread 0. The others may still run.
        name: the process's name, for names that must be unique.
        drawn: the number of these names.
        idle: the place at which its threads wait for a task.
        sleeping: by thread: the place at which it waits for a time only. Time passes only in
            `fire`.

    Args:
        timed: `fire` will be called. A process whose threads all sleep is not stuck then.
    """

    current: Machine

    def __init__(self, process: Process, name: str = "", *, timed: bool = False) -> None:
        self.calls: dict[int, Call] = {}
        self.outcome: str | None = None
        self.name, self.drawn = name, 0
        self.idle: list[Any] = []
        self.sleeping: dict[int, deque[greenlet]] = {}
        self._timed = timed
        self._threads: list[greenlet] = []
        self._ready: deque[greenlet] = deque()
        self._closed = False
        self._failure: BaseException | None = None
        self._scheduler = getcurrent()

        def first() -> None:
            self.outcome = process(self._ask)

        self.start(first)
        self._run()

    def start(self, function: Callable[[], None]) -> int:
        """A new thread; it begins once the one that runs now waits."""

        def guarded() -> None:
            try:
                function()
            except GreenletExit:
                raise
            except BaseException as error:
                self._failure = self._failure or error

        self._threads.append(greenlet(guarded, self._scheduler))
        self._ready.append(self._threads[-1])
        return len(self._threads) - 1

    def answer(self, thread: int, answer: Any) -> None:
        """Run a thread, and those that it wakes, until all of them wait again.

        Raises:
            Stuck: every thread waits for another one.
            BaseException: the error of a thread.
        """
        del self.calls[thread]
        self._run(self._threads[thread], answer)

    def fire(self, thread: int) -> None:
        """Let the time pass that a thread waits for. Raises as `answer`."""
        self.sleeping.pop(thread).remove(self._threads[thread])
        self._run(self._threads[thread], _TIMEOUT)

    def _run(self, *first: Any) -> None:
        Machine.current = self
        if first:
            first[0].switch(first[1])
        while self._ready:
            self._ready.popleft().switch()
        if self._failure is not None:
            raise self._failure
        if self.outcome is None and not self.calls and not (self._timed and self.sleeping):
            raise Stuck("every thread of the process waits")

    def _ask(self, call: Call) -> Any:
        self.calls[self.me()] = call
        answer = self._wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def me(self) -> int:
        """The thread that runs."""
        return self._threads.index(getcurrent())

    def block(self, waiting: deque[greenlet], *, sleeps: bool = False) -> bool:
        """Wait until another thread takes this one out of `waiting` and wakes it.

        Returns:
            False if the time for which it `sleeps` has passed before.
        """
        waiting.append(getcurrent())
        if sleeps:
            self.sleeping[self.me()] = waiting
        woken = self._wait() is not _TIMEOUT
        if sleeps and woken:
            del self.sleeping[self.me()]
        return woken

    def _wait(self) -> Any:
        if self._closed:
            raise GreenletExit
        return self._scheduler.switch()

    def wake(self, waiting: deque[greenlet]) -> None:
        """The thread that has waited longest."""
        self._ready.append(waiting.popleft())

    def close(self) -> None:
        """End every thread where it stands."""
        self._closed = True
        Machine.current = self
        for waiting in self._threads:
            while waiting:
                waiting.throw()
