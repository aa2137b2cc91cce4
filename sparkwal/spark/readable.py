"""Errors as Spark shows them: the cause first, without the frames of Spark's workers."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sparkwal import errors
from sparkwal.errors import SparkWalError


@contextmanager
def readable_errors(*, pickling: bool = False) -> Iterator[None]:
    """In one of Spark's Python workers: let an error of ours reach the user as its message.

    The worker ends with the error, so nothing else needs the frames of its traceback.

    Args:
        pickling: the error passes through a pickler, which replaces every error
            that is not a PickleError by one of its own.
    """
    try:
        yield
    except SparkWalError as error:
        sys.tracebacklimit = 0
        # A finer kind that the protocol tells apart is shown as the one that is documented.
        kind = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
        if not pickling:
            raise (error if type(error) is kind else kind(*error.args)) from None
        both = type(kind.__name__, (kind, pickle.PicklingError), {"__module__": kind.__module__})
        raise both(*error.args) from None
