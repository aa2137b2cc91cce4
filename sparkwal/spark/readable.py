"""Shortens errors that pass through Spark: the cause first, without frames of Spark's workers."""

import pickle
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sparkwal.errors import OptionError, SparkWalError, documented


@contextmanager
def readable_errors(*, pickling: bool = False) -> Iterator[None]:
    """In a Python worker of Spark: let an error reach the user without its traceback.

    Args:
        pickling: this runs inside a pickler, which lets only subclasses of PickleError pass.
    """
    try:
        with _explained_memory_errors():
            yield
    except SparkWalError as error:
        sys.tracebacklimit = 0
        kind = documented(error)
        if not pickling:
            raise (error if type(error) is kind else kind(*error.args)) from None
        # A class of the same name that is a PickleError too.
        bases = (kind, pickle.PicklingError)
        picklable_kind = type(kind.__name__, bases, {"__module__": kind.__module__})
        raise picklable_kind(*error.args) from None


@contextmanager
def _explained_memory_errors() -> Iterator[None]:
    """If memory runs out, name the settings that limit a worker's address space.

    Raises:
        OptionError: the worker could not start a thread or allocate memory.
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


_SPARKWAL_ERROR = re.compile(r"sparkwal\.errors\.(\w+): (.+)")
# The beginnings of what follows the cause in a message of Spark.
_NOISE = re.compile(
    r"\n\s*at |\n\s*JVM stacktrace|\n\s*Driver stacktrace|\n=== Streaming Query|\nTraceback"
    r"|\s*SQLSTATE: \w+|;\s*\n'|\n== "
)


def readable(error: BaseException) -> tuple[str, bool]:
    """An error of Spark or of sparkwal as one message, and whether the usage was wrong."""
    if isinstance(error, SparkWalError):
        return str(error), isinstance(error, OptionError)
    text = str(error)
    if matches := _SPARKWAL_ERROR.findall(text):
        kind, message = matches[-1]
        return message.strip(), kind == OptionError.__name__
    wrong = type(error).__name__ in ("AnalysisException", "ParseException")
    text = text.rpartition("terminated with exception: ")[2]
    message = _NOISE.split(text.strip(), maxsplit=1)[0].strip()
    return message[:1500] or type(error).__name__, wrong


def with_java_error(error: BaseException) -> str:
    """The text of an error of Spark, with the Java exception."""
    java = getattr(error, "java_exception", None)
    return f"{error}" if java is None else f"{error} {java.toString()}"


def is_sparkwal_error(error: BaseException) -> bool:
    """Whether the error, or the cause of an error of Spark, is an error of sparkwal."""
    return isinstance(error, SparkWalError) or bool(_SPARKWAL_ERROR.search(str(error)))


def one_line(error: BaseException) -> str:
    """The message of an error of Spark or of sparkwal, in one line."""
    return " ".join(readable(error)[0].split())
