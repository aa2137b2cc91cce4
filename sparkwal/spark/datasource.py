"""`format("weaselwal")`: what Spark instantiates for reading and for writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from textwrap import indent, wrap
from typing import TypeVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparkwal.errors import OptionError
from sparkwal.options.parsing import nearest, parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.reading.floor import Pinned
from sparkwal.spark.logs import log_schema
from sparkwal.spark.readable import readable_errors
from sparkwal.spark.sink import BatchWriter, StreamWriter
from sparkwal.spark.source import BatchReader, StreamReader
from sparkwal.spark.unpickling import PickledByValue
from sparkwal.store.path import absolute

T = TypeVar("T", bound=StoreOptions)
# How this library hands a `Pinned` to a read that Spark makes: no option of a user's.
PINNED = "sparkwal_pinned"

# What people read of a parser, in the data source's help and in docs/options.md.
_TYPES = {
    "whole": "number",
    "duration": "time",
    "sequencer_name": "name",
    "consumer_name": "name",
    "timestamp": "moment",
    "account_id": "account",
    "star": "*",
    "parse_choice": "choice",
}


def described(
    kind: type[StoreOptions], listed: type[StoreOptions] | None
) -> Iterator[tuple[str, str, str]]:
    """Of each option, unless `listed` has the same: its name, type and default, and meaning."""
    known = {} if listed is None else {each.name: each.metadata for each in fields(listed)}
    for each in fields(kind):
        about = each.metadata
        if known.get(each.name) != about:
            parser = about["parse"].__name__
            default = about["shown"] or ("" if each.default is None else str(each.default).lower())
            shown = _TYPES.get(parser, parser) + (f"; {default}" if default else "")
            yield about["name"], shown, about["meaning"]


def option_paragraphs() -> str:
    lines: list[str] = []
    sections = ("reading and writing", StoreOptions), ("writing", SinkOptions)
    for section, kind in (*sections, ("reading", SourceOptions)):
        lines += ["", f"Options: {section}", ""]
        for name, shown, meaning in described(kind, None if kind is StoreOptions else StoreOptions):
            text = f"- {name} ({shown}): {meaning}"
            lines += wrap(text, 84, subsequent_indent="  ")
    return "\n".join(lines)


class WeaselWalDataSource(PickledByValue, DataSource):
    """A write-ahead log on object storage as a Spark source and sink.

    df.writeStream.format("weaselwal").option("checkpointLocation", …).start("s3://bucket/wal")
    spark.read.format("weaselwal").option("startingPosition", 120).load("s3://bucket/wal")

    Names of options are not case-sensitive; sizes take 1mb or bytes, times 500ms or
    milliseconds. A wrong one raises OptionError before anything is read or written.
    """

    __doc__ = f"{__doc__}{indent(option_paragraphs(), '    ')}\n"

    # How many tasks the session runs at once; Spark does not hand it to a reader.
    parallelism: int | None = None

    @classmethod
    def name(cls) -> str:
        return "weaselwal"

    @classmethod
    def with_parallelism(cls, tasks: int) -> type[WeaselWalDataSource]:
        return type(cls.__name__, (cls,), {"parallelism": tasks, "__doc__": cls.__doc__})

    def _options(self, kind: type[T]) -> T:
        if not self.options.get("path"):
            for name in self.options:
                if nearest(name, ["path"]):
                    raise OptionError(f"unknown option {name!r}; did you mean 'path'?")
            raise OptionError(
                'option path is missing: give it to load, save or start ("s3://bucket/wal"). '
                "A catalog's table has none, because Spark hands it to no Python data source: "
                "use CREATE TEMPORARY VIEW … USING weaselwal OPTIONS (path '…')"
            )
        options = parse(kind, {n: text for n, text in self.options.items() if n != PINNED})
        # Here, on the driver: executors have working directories of their own.
        return replace(options, path=absolute(options.path))

    def schema(self) -> StructType:
        with readable_errors():
            # Spark sets this only for a table that is about to be created.
            if "provider" in self.options:
                raise OptionError(
                    "a log cannot be a table of the catalog: Spark hands a table's path to no "
                    "Python data source. Use CREATE TEMPORARY VIEW … USING weaselwal OPTIONS "
                    "(path '…'), or spark.read"
                )
            return log_schema(self._options(SourceOptions))

    def reader(self, schema: StructType) -> BatchReader:
        with readable_errors():
            text = self.options.get(PINNED)
            pinned = Pinned.of(text) if text else None
            return BatchReader(self._options(SourceOptions), schema, self.parallelism, pinned)

    def streamReader(self, schema: StructType) -> StreamReader:
        with readable_errors():
            return StreamReader(self._options(SourceOptions), schema, self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        with readable_errors():
            if overwrite:
                raise OptionError(
                    'a log is never overwritten: use mode("append"), or write to a new path'
                )
            return BatchWriter(self._options(SinkOptions), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        # Called again for every commit, in another worker: it must do nothing but this.
        with readable_errors():
            tracking = [name for name in self.options if "asyncprogresstracking" in name.lower()]
            if tracking:
                raise OptionError(
                    f"option {tracking[0]}: with asynchronous progress tracking a restarted query "
                    "may give a batch id to other rows, which the log would take for rows that "
                    "it has: remove the option"
                )
            if overwrite:
                raise OptionError(
                    'a log only grows: use outputMode("append"); to store the results of '
                    "complete mode write them with foreachBatch, or append the aggregate's "
                    "input and aggregate when reading"
                )
            options = self._options(SinkOptions)
            if options.txn_app_id is not None:
                raise OptionError(
                    "txnAppId and txnVersion are for df.write; a stream is exactly-once by its "
                    "checkpoint: remove them"
                )
            return StreamWriter(options, schema, self.options.get("checkpointLocation", ""))
