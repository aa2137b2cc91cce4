"""Errors as Spark shows them: the cause first, without the frames of Spark's workers."""

import pickle
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sparkwal import errors
from sparkwal.errors import OptionError, SparkWalError


@contextmanager
def readable_errors(*, pickling: bool = False) -> Iterator[None]:
    """In one of Spark's Python workers: let an error reach the user as its message. With `pickling`
    it passes through a pickler, which replaces all but a PickleError."""
    try:
        with _short_of_memory_named():
            yield
    except SparkWalError as error:
        sys.tracebacklimit = 0
        # A finer kind that the protocol distinguishes is shown as the documented one.
        kind = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
        if not pickling:
            raise (error if type(error) is kind else kind(*error.args)) from None
        both = type(kind.__name__, (kind, pickle.PicklingError), {"__module__": kind.__module__})
        raise both(*error.args) from None


@contextmanager
def _short_of_memory_named() -> Iterator[None]:
    """Name the settings that limit a worker's address space, if that is what an error stems from.

    Raises:
        OptionError: the worker could begin no thread, or got no memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_thread = "can't start new thread" in str(error)
        if not (isinstance(error, MemoryError) or is_thread):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        size = "not limited" if limit == resource.RLIM_INFINITY else f"{limit >> 20} MiB"
        raise OptionError(
            f"this Python worker ran out of memory ({error or 'MemoryError'}). Its address space, "
            f"in which each thread takes some, is {size}: raise or unset "
            "spark.sql.planner.pythonExecution.memory (on the driver), "
            "spark.executor.pyspark.memory (in tasks) or ulimit -v, and run again"
        ) from None


_OURS = re.compile(r"sparkwal\.errors\.(\w+): (.+)")
_NOISE = re.compile(
    r"\n\s*at |\n\s*JVM stacktrace|\n\s*Driver stacktrace|\n=== Streaming Query|\nTraceback"
    r"|\s*SQLSTATE: \w+|;\s*\n'|\n== "
)


def readable(error: BaseException) -> tuple[str, bool]:
    """An error of Spark or of ours as one message, and whether the request itself was wrong."""
    if isinstance(error, SparkWalError):
        return str(error), isinstance(error, OptionError)
    text = str(error)
    if ours := _OURS.findall(text):
        kind, message = ours[-1]
        return message.strip(), kind == OptionError.__name__
    wrong = type(error).__name__ in ("AnalysisException", "ParseException")
    text = text.rpartition("terminated with exception: ")[2]
    message = _NOISE.split(text.strip(), maxsplit=1)[0].strip()
    return message[:1500] or type(error).__name__, wrong


def cause(error: BaseException) -> str:
    """All that an error of Spark says, its Java stack included."""
    java = getattr(error, "java_exception", None)
    return f"{error}" if java is None else f"{error} {java.toString()}"


def failure_of_ours(error: BaseException) -> bool:
    """Whether one of our errors lies under an error of Spark."""
    return isinstance(error, SparkWalError) or bool(_OURS.search(str(error)))


def line(error: BaseException) -> str:
    """The message of an error of Spark or of ours, in one line."""
    return " ".join(readable(error)[0].split())
