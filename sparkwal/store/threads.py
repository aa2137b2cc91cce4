"""Runs functions in threads, also while the interpreter ends.

Python's own pools refuse that: `ThreadPoolExecutor`, which asyncio uses too, cannot even be
imported after the main thread has ended. From Python 3.12 on `atexit` functions cannot start any
thread. Every thread of the library begins here.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import ParamSpec, TypeVar

from sparkwal.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")

# An idle thread ends after so many seconds.
_IDLE = 5.0


def run_in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """Call a function in another thread, or in this thread if no thread can start.

    The process does not end before the function has returned.
    """
    future: Future[R] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=run, name="sparkwal-call").start()
    except RuntimeError:
        run()
    return future


def start_daemon(function: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that serves an object as long as the process runs.

    Raises:
        OptionError: no thread can start.
    """
    thread = threading.Thread(target=function, name=f"sparkwal-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OptionError(
            f"no thread can start ({error}): the interpreter ends, or a limit of threads is "
            "reached. Open the log or the appender earlier, or raise the limit"
        ) from None
    return thread


# The queue of the worker threads. They are daemons, so that an attempt whose result is not needed
# does not delay the end of the process.
_tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
# One item for each idle thread. A semaphore could stay locked: a signal handler may raise in it.
_idle: SimpleQueue[None] = SimpleQueue()


def _forget_parent() -> None:
    """Begin without threads after a fork."""
    global _tasks, _idle
    _tasks = SimpleQueue()
    _idle = SimpleQueue()


def _claim_idle() -> bool:
    """Reserve an idle thread for a task. False if there is none."""
    try:
        _idle.get_nowait()
    except Empty:
        return False
    return True


os.register_at_fork(after_in_child=_forget_parent)


def run_in_daemon(task: Callable[[], None]) -> None:
    """Run a task in a daemon thread, or in this thread if no thread can start.

    The task must not raise.
    """
    # Put the task first: a thread that finishes its task at this moment takes it without a wait.
    _tasks.put(task)
    if not _claim_idle():
        try:
            start_daemon(_work, "request")
        except OptionError:
            try:
                unstarted = _tasks.get_nowait()
            except Empty:
                # A thread that finished its task took this one, so it is not idle.
                _claim_idle()
            else:
                unstarted()


def _work() -> None:
    while True:
        try:
            task = _tasks.get(timeout=_IDLE)
        except Empty:
            # If the claim fails, this thread was claimed a moment ago, and its task comes.
            if _claim_idle():
                return
            continue
        task()
        del task  # An idle thread must not hold the body of a request.
        _idle.put(None)
