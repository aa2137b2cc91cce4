"""sparkwal: an exactly-once, totally ordered write-ahead log on plain object storage.

``sparkwal.register(spark)`` makes ``format("weaselwal")`` known to a Spark
session; ``sparkwal.Log(path)`` reads a log without Spark, ``sparkwal.verify(path)``
proves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkwal.errors import (
    FencedError,
    InvalidLogError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkwal.log import Log
    from sparkwal.verification import verify

__all__ = [
    "FencedError",
    "InvalidLogError",
    "Log",
    "OptionError",
    "OutcomeUnknownError",
    "SparkWalError",
    "StoreUnavailableError",
    "register",
    "verify",
]


def register(spark: SparkSession) -> None:
    """Make ``format("weaselwal")`` known to `spark` (classic or Spark Connect)."""
    from sparkwal.spark.datasource import WeaselWalDataSource

    spark.dataSource.register(WeaselWalDataSource)


def __getattr__(name: str) -> Any:
    # Spark's Python workers import this package for every sink; the reader waits.
    if name == "Log":
        from sparkwal.log import Log

        return Log
    if name == "verify":
        from sparkwal.verification import verify

        return verify
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
