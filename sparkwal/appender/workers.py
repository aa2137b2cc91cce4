"""The threads of an appender that send requests. They are daemons: a request that hangs must not
keep a process alive after its appender failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Workers:
    """Up to `limit` threads, started as needed. Only one thread may submit."""

    def __init__(self, limit: int, entered: Callable[[], None]) -> None:
        self._limit, self._entered = limit, entered
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task that never raises."""
        if not self._idle.acquire(blocking=False) and self._count < self._limit:
            self._count += 1
            name = f"sparkwal-put-{self._count}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except RuntimeError:
                # The machine has no more threads, or the interpreter ends. The existing threads
                # take the task; if there are none, this one runs it.
                self._count -= 1
                if not self._count:
                    task()
                    return
        self._tasks.put(task)

    def _work(self) -> None:
        self._entered()
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it holds the record's bytes
            self._idle.release()

    def stop(self) -> None:
        """End every thread after its task, without waiting for it."""
        for _ in range(self._count):
            self._tasks.put(None)
