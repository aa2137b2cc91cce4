"""Refuses a query when it starts, and not hours later with its first microbatch.

Spark does not call a Python sink before the first rows. But a listener of the session can inspect
the query when it starts, and mark it with an error that ends it at its first trigger. Spark Connect
has no such listener.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.types import StructType

from sparkwal.errors import SparkWalError
from sparkwal.spark.datasource import WeaselWalDataSource


def refuse_at_start(session: Any, jvm: Any, query_id: str) -> None:
    """Let a query fail at its first trigger if its first microbatch would be refused.

    Args:
        session: the JVM's session, in which the query has just started.
        jvm: the JVM.
        query_id: the query.
    """
    try:
        query = session.streams().get(query_id).streamingQuery()
        if query.sink().name() != WeaselWalDataSource.name():
            return
        if query.trigger().getClass().getSimpleName() == "ContinuousTrigger":
            # Such a query does not check a mark.
            return
        error = _refusal(query)
        if error is not None:
            text = f"{type(error).__module__}.{type(error).__name__}: {error}"
            query.errorNotifier().markError(jvm.java.lang.IllegalArgumentException(text))
    except Py4JError:
        # This Spark hides the members that are used here. The first microbatch refuses the query.
        return


def _refusal(query: Any) -> SparkWalError | None:
    is_complete = query.outputMode().toString() == "Complete"
    source = WeaselWalDataSource(_options(query))
    try:
        source.streamWriter(StructType(), is_complete)
    except SparkWalError as error:
        return error
    return None


def _options(query: Any) -> dict[str, str]:
    """The options of the query, which Spark keeps in a private field."""
    kind = query.getClass()
    while kind.getSimpleName() != "MicroBatchExecution":
        kind = kind.getSuperclass()
    field = kind.getDeclaredField("extraOptions")
    field.setAccessible(True)
    pairs = field.get(query).iterator()
    options: dict[str, str] = {}
    while pairs.hasNext():
        pair = pairs.next()
        options[pair._1()] = pair._2()
    return options
