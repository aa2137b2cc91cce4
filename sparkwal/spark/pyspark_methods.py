"""Checks in PySpark's own methods what Spark does not pass to a Python data source in time.

- A table of the catalog: Spark hides its path, and calls the source only after it has created it.
- A column that is declared NOT NULL: Spark replaces `IS NULL` by false before it calls the source.
- A trigger: Spark does not pass it, and plans the first write of each trigger in the same way.
- A layout, such as partitions: Spark ignores that of a stream.

Scala and `spark-sql` do not call these methods. There the source or a task refuses a table and a
column later, if it is called at all.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from sparkwal.errors import OptionError
from sparkwal.spark.declared import no_not_null, nullable
from sparkwal.spark.sink import no_table

# The name of each argument of a call → its value. A check may change them.
Arguments = dict[str, Any]
Check = Callable[[Any, Arguments], None]

_TRIGGERS = ("processingTime", "once", "availableNow")
_LAYOUTS = ("partitionBy", "bucketBy", "sortBy", "clusterBy")
_TABLES = ("saveAsTable", "toTable", "create", "replace", "createOrReplace")
# Texts, comments and quoted names of a statement. A provider is a word, quoted or not.
_OPAQUE = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/|`(?P<word>\w+)`|`[^`]*`", re.DOTALL
)
_CREATED = re.compile(
    r"\b(?:CREATE|REPLACE)\b[\w\s]*?\b(?P<kind>TABLE|VIEW)\b"
    r"(?P<columns>[^;]*?)\bUSING\s+(?P<source>\w+)",
    re.IGNORECASE,
)
_NOT_NULL = re.compile(r"(?:\bNOT|!)\s*NULL\b", re.IGNORECASE)


def check_methods(spark: SparkSession, source: str) -> None:
    """Let the methods of this session's kind check what is asked of a format.

    Args:
        spark: a classic session, or one of Spark Connect.
        source: the name of the format.
    """
    session, catalog, batches, streams = _classes(spark)
    _check_first(session, "sql", partial(check_statement, source))
    _check_first(catalog, "createTable", partial(_refuse_table, source))
    for reader in (batches.DataFrameReader, streams.DataStreamReader):
        _check_first(reader, "load", partial(_read_as_nullable, source))
    for writer in (batches.DataFrameWriter, batches.DataFrameWriterV2, streams.DataStreamWriter):
        for name in ("trigger", *_LAYOUTS):
            _check_first(writer, name, partial(_remember, name))
        for name in ("save", "start"):
            _check_first(writer, name, partial(_refuse_ways, source))
        for name in _TABLES:
            _check_first(writer, name, partial(_refuse_table, source))


def _classes(spark: SparkSession) -> tuple[Any, ...]:
    """The classes of sessions and catalogs, and the modules of readers and writers."""
    if getattr(spark, "_jsparkSession", None) is not None:
        from pyspark.sql import readwriter
        from pyspark.sql.catalog import Catalog
        from pyspark.sql.streaming import readwriter as streams

        return SparkSession, Catalog, readwriter, streams
    from pyspark.sql.connect import readwriter as remote
    from pyspark.sql.connect.catalog import Catalog as RemoteCatalog
    from pyspark.sql.connect.session import SparkSession as RemoteSession
    from pyspark.sql.connect.streaming import readwriter as remote_streams

    return RemoteSession, RemoteCatalog, remote, remote_streams


def _check_first(kind: type, name: str, check: Check) -> None:
    """Let a method check its arguments before it does anything."""
    method = getattr(kind, name, None)
    if method is None or hasattr(method, "is_checked"):
        return
    signature = inspect.signature(method)

    @wraps(method)
    def checked(subject: Any, *arguments: Any, **named: Any) -> Any:
        bound = signature.bind(subject, *arguments, **named)
        check(subject, bound.arguments)
        return method(*bound.args, **bound.kwargs)

    checked.is_checked = True  # type: ignore[attr-defined]
    setattr(kind, name, checked)


def check_statement(source: str, _: Any, arguments: Arguments) -> None:
    """Refuse SQL that creates a table of the format, or a view of it with NOT NULL.

    It reads the text, because a client of Spark Connect has no parser.
    """
    text = str(arguments.get("sqlQuery", ""))
    if source not in text.lower():
        return
    plain = _OPAQUE.sub(lambda found: found["word"] or " ", text)
    for created in _CREATED.finditer(plain):
        if created["source"].lower() != source:
            continue
        if created["kind"].upper() == "TABLE":
            raise no_table()
        if _NOT_NULL.search(created["columns"]):
            raise no_not_null("a column of the view")


def _refuse_table(source: str, subject: Any, arguments: Arguments) -> None:
    if _is_of(source, arguments.get("source"), arguments.get("format"), subject):
        raise no_table()


def _remember(name: str, writer: Any, arguments: Arguments) -> None:
    """Keep the arguments of a call: the format of a writer may be set later."""
    asked = {key for key, value in arguments.items() if key != "self" and value is not None}
    vars(writer).setdefault("sparkwal_asked", {})[name] = asked


def _refuse_ways(source: str, writer: Any, arguments: Arguments) -> None:
    if not _is_of(source, None, arguments.get("format"), writer):
        return
    asked: dict[str, set[str]] = vars(writer).get("sparkwal_asked", {})
    for trigger in sorted(asked.get("trigger", set())):
        if trigger not in _TRIGGERS:
            raise OptionError(
                f"a log is written in microbatches, which a {trigger} trigger does not make: use "
                "trigger(processingTime=…), trigger(availableNow=True) or trigger(once=True)"
            )
    for layout in _LAYOUTS:
        if layout in asked or arguments.get(layout):
            raise OptionError(
                f"a log keeps its rows in the order in which they were written: remove {layout}. "
                "A compaction can partition or cluster the log's table"
            )


def _read_as_nullable(source: str, reader: Any, arguments: Arguments) -> None:
    """Declare the columns of a log nullable, as Spark does for files."""
    # In the order of `load` itself.
    if arguments.get("format") is not None:
        reader.format(arguments["format"])
    if arguments.get("schema") is not None:
        reader.schema(arguments.pop("schema"))
    if _is_of(source, None, None, reader) and (declared := _declared(reader)) is not None:
        reader.schema(nullable(declared))


def _declared(reader: Any) -> StructType | None:
    """The schema that a caller declared.

    None without one, or if this Spark hides it. The source refuses such a schema too.
    """
    try:
        text = _declared_text(reader)
    except Py4JError:
        return None
    if text.startswith("{"):
        return StructType.fromJson(json.loads(text))
    schema = DataType.fromDDL(text) if text else None
    return schema if isinstance(schema, StructType) else None


def _declared_text(reader: Any) -> str:
    """The declared schema as JSON or, under Spark Connect, as DDL too."""
    if not hasattr(reader, "_jreader"):
        return str(reader._schema or "")
    declared = reader._jreader.userSpecifiedSchema()
    return str(declared.get().json()) if declared.isDefined() else ""


def _is_of(source: str, source_named: Any, named: Any, subject: Any) -> bool:
    """Whether a call is about the format: by an argument, else by its reader or writer."""
    return str(source_named or named or _format_of(subject)).lower() == source


def _format_of(subject: Any) -> str | None:
    """The format of a reader or a writer.

    None if it has none, or if this PySpark has other private names.
    """
    for form in _forms(subject):
        try:
            return str(form())
        except Exception:
            # The source or a task refuses such a call too.
            continue
    return None


def _forms(subject: Any) -> Iterator[Callable[[], Any]]:
    yield lambda: subject._jreader.source()
    yield lambda: subject._jwrite.source()
    yield lambda: subject._jwriter.provider().get()
    yield lambda: subject._format
    yield lambda: subject._write.source
    yield lambda: subject._write.provider
    yield lambda: subject._write_proto.format
