"""sparkwal: an exactly-once, totally ordered write-ahead log on plain object storage.

- ``sparkwal.register(spark)`` registers ``format("weaselwal")`` in a Spark session.
- ``sparkwal.Log(path)`` reads a log without Spark, and ``sparkwal.verify(path)`` checks it.
- ``sparkwal.Appender(path, schema, producer_id=…)`` writes a log without Spark.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from sparkwal.errors import BackPressureError as BackPressureError
from sparkwal.errors import CollectedError as CollectedError
from sparkwal.errors import CompactionError as CompactionError
from sparkwal.errors import DivergedCheckpointError as DivergedCheckpointError
from sparkwal.errors import FencedError as FencedError
from sparkwal.errors import InvalidLogError as InvalidLogError
from sparkwal.errors import JournalError as JournalError
from sparkwal.errors import NewerFormatError as NewerFormatError
from sparkwal.errors import OptionError as OptionError
from sparkwal.errors import OutcomeUnknownError as OutcomeUnknownError
from sparkwal.errors import RecomputedError as RecomputedError
from sparkwal.errors import SparkWalError as SparkWalError
from sparkwal.errors import StoreUnavailableError as StoreUnavailableError
from sparkwal.errors import TableReadError as TableReadError
from sparkwal.errors import install_extra, require_library

if TYPE_CHECKING:
    __version__: str

    from pyspark.sql import SparkSession

    from sparkwal.appender.aio import AsyncAppender as AsyncAppender
    from sparkwal.appender.aio import durable as durable
    from sparkwal.appender.appender import Appender as Appender
    from sparkwal.appender.appender import Ticket as Ticket
    from sparkwal.checkpoints.fork import Fork as Fork
    from sparkwal.checkpoints.rebuild import checkpoint as checkpoint
    from sparkwal.lifecycle.consumers.consumer_list import consumers as consumers
    from sparkwal.lifecycle.consumers.consumer_list import forget_consumer as forget_consumer
    from sparkwal.log import Log as Log
    from sparkwal.reading.repair import repair as repair
    from sparkwal.reading.sequencers import list_sequencers as list_sequencers
    from sparkwal.reading.sequencers import partition_by as partition_by
    from sparkwal.reading.sequencers import sequencer_for as sequencer_for
    from sparkwal.reading.verification import verify as verify
    from sparkwal.spark.delta_lifecycle import Lifecycle as Lifecycle
    from sparkwal.spark.read_current import read_current as read_current


def register(spark: SparkSession) -> None:
    """Register ``format("weaselwal")`` in a Spark session.

    Call it once for each session. Another call changes nothing. In a classic session it also
    records which runs of queries have ended. With a local master it makes Spark's workers use
    this Python, and lets Spark write local checkpoints without a process for each file, unless
    the session's configuration sets either.

    Args:
        spark: a classic session or one of Spark Connect.

    Raises:
        OptionError: PySpark is not installed, or it or the server is older than 4.0.
    """
    require_library("pyspark", install_extra("spark"))
    import pyspark

    from sparkwal.options.spark_versions import require

    require(pyspark.__version__, "pyspark here")
    require(spark.version, "the session's server")
    from sparkwal.spark.registering import register_once

    register_once(spark)


# pyarrow imports this for pandas, and Python refuses the import after the main thread has ended.
with suppress(RuntimeError):
    import_module("concurrent.futures.thread")

# Imported at the first use: Spark's Python workers import this package for every sink.
_LAZY = {
    "sparkwal.appender.aio": ["AsyncAppender", "durable"],
    "sparkwal.appender.appender": ["Appender", "Ticket"],
    "sparkwal.checkpoints.fork": ["Fork"],
    "sparkwal.checkpoints.rebuild": ["checkpoint"],
    "sparkwal.lifecycle.consumers.consumer_list": ["consumers", "forget_consumer"],
    "sparkwal.log": ["Log"],
    "sparkwal.reading.repair": ["repair"],
    "sparkwal.reading.sequencers": ["list_sequencers", "partition_by", "sequencer_for"],
    "sparkwal.reading.verification": ["verify"],
    "sparkwal.spark.read_current": ["read_current"],
    "sparkwal.spark.delta_lifecycle": ["Lifecycle"],
}
_ERRORS = [name for name in globals() if name.endswith("Error")]
__all__ = sorted(["register", *_ERRORS, *chain.from_iterable(_LAZY.values())])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sparkwal")
    if name == "read_current":
        require_library("pyspark", install_extra("spark"))
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
