"""Refuses a log as a table of the catalog, before Spark creates the table and plans the write.

Spark hides such a write from a Python data source until its tasks run (`sink._refuse_table`). By
then the plan has put a leader record. So PySpark's methods that create tables check the format.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkwal.spark.sink import no_table

_CREATING = ("saveAsTable", "toTable", "create", "replace", "createOrReplace")


def refuse_tables(spark: SparkSession, source: str) -> None:
    """Let the writers of this session's kind refuse to create a table of a format.

    Args:
        spark: a classic session, or one of Spark Connect.
        source: the name of the format.
    """
    for writer in _writers(spark):
        for name in _CREATING:
            method = getattr(writer, name, None)
            if method is not None and not hasattr(method, "refuses"):
                setattr(writer, name, _checked(method, source))


def _writers(spark: SparkSession) -> list[type]:
    if getattr(spark, "_jsparkSession", None) is not None:
        return [DataFrameWriter, DataFrameWriterV2, DataStreamWriter]
    from pyspark.sql.connect import readwriter
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as RemoteStreamWriter

    return [readwriter.DataFrameWriter, readwriter.DataFrameWriterV2, RemoteStreamWriter]


def _checked(method: Callable[..., Any], source: str) -> Callable[..., Any]:
    @wraps(method)
    def creating(writer: Any, *arguments: Any, **named: Any) -> Any:
        # The methods with a format take it after the table's name.
        argument = named.get("format") or (arguments[1] if len(arguments) > 1 else None)
        if str(argument or _format_of(writer)).lower() == source:
            raise no_table()
        return method(writer, *arguments, **named)

    creating.refuses = source  # type: ignore[attr-defined]
    return creating


def _format_of(writer: Any) -> str | None:
    """The format of a writer, or None if it has none or this PySpark has other private names."""
    forms: list[Callable[[], Any]] = [
        lambda: writer._jwrite.source(),
        lambda: writer._jwriter.provider().get(),
        lambda: writer._write.source,
        lambda: writer._write.provider,
        lambda: writer._write_proto.format,
    ]
    for form in forms:
        try:
            return str(form())
        except Exception:
            # A task refuses the rows of such a write too.
            continue
    return None
