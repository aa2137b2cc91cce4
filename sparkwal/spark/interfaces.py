"""The interfaces of Spark that the source and the sink implement, for each version of Spark.

`sparkwal.options.spark_versions` lists the differences between the versions. The code for these
differences is here, so that the other modules see one Spark.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import StructField, StructType

from sparkwal import events
from sparkwal.errors import OptionError
from sparkwal.format.schema import type_name
from sparkwal.options import spark_versions
from sparkwal.options.reading import SourceOptions
from sparkwal.options.spark_versions import TYPES, has, text

if TYPE_CHECKING:
    import pyarrow as pa

HERE = pyspark.__version__
# The progress of a stream. Spark stores it as JSON in the checkpoint.
Offset = dict[str, int | str]


def to_struct(spark_schema: str) -> StructType:
    """A stored schema as a `StructType`.

    Raises:
        OptionError: this Spark lacks the type of a column.
    """
    fields = []
    for field in json.loads(spark_schema)["fields"]:
        try:
            fields.append(StructField.fromJson(field))
        except Exception as error:
            written = json.dumps(field["type"])
            newer = (since for kind, since in TYPES.items() if re.search(kind, written))
            which = max(newer, default=spark_versions.NEWEST)
            raise OptionError(
                f"column {field['name']} is {type_name(field['type'])}, which Spark {HERE} does "
                f"not know: use Spark {text(which)} or newer, or give .schema(…) without the column"
            ) from error
    return StructType(fields)


def to_arrow_schema(spark_schema: StructType) -> pa.Schema:
    """Convert a schema with PySpark's function, with timestamps in UTC."""
    if has(spark_versions.ARROW_TIMEZONE, HERE):
        return arrow_types.to_arrow_schema(spark_schema, timezone="UTC")
    return arrow_types.to_arrow_schema(spark_schema)


if TYPE_CHECKING or has(spark_versions.STREAM_ARROW_WRITER, HERE):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark passes Arrow batches to a writer, also of a stream, if it is of this class."""


class StreamReads(ABC):
    """A stream of logs. Spark's versions call it through different interfaces."""

    options: SourceOptions

    @abstractmethod
    def begin(self, heads: Offset) -> Offset:
        """The beginning of the stream by its options, at most the ends in `heads`."""

    @abstractmethod
    def advance(self, start: Offset, *, limited: bool) -> Offset:
        """The end of a microbatch that begins at `start`; `start` if there are no new rows.

        Args:
            start: the end of the previous microbatch.
            limited: apply the limits of the options.
        """

    @abstractmethod
    def heads(self) -> Offset:
        """The end of each log now."""

    @abstractmethod
    def check_heads(self, start: Offset) -> None:
        """Check that a query which begins at `start` may end at `heads`.

        Raises:
            OptionError: `heads` may lie before its first row.
        """

    @abstractmethod
    def fix_heads(self, heads: Offset | None = None) -> None:
        """End the stream at `heads`, by default at the present ends of the logs."""

    @abstractmethod
    def plan(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks that read a microbatch."""


class HeadFirst(StreamReads):
    """A stream for a Spark whose latestOffset() has no parameter for the start.

    A new query calls latestOffset() and initialOffset(). A restarted query calls partitions(end,
    end) for the last microbatch that it planned. Under availableNow, Spark calls latestOffset()
    before either, and ends the query at the result; it calls latestOffset() again before each
    microbatch and after the last one. So the first latestOffset() returns the head, and the limits
    apply from the second call on: a query with availableNow reads all rows.
    """

    _start: Offset | None = None
    # The result of a latestOffset() before the start was known.
    _heads: Offset | None = None
    _is_first = True

    def initialOffset(self) -> Offset:
        self._start = self.begin(self._heads or {})
        return self._start

    def latestOffset(self) -> Offset:
        is_first, self._is_first = self._is_first, False
        if is_first and self.options.limits:
            limits = (f"{name}={limit}" for name, limit in self.options.limits.items())
            events.emit(events.LimitsLater(" ".join(limits)))
        if self._start is None:
            self._heads = self.heads()
            return self._heads
        if self._heads is not None:
            # The trigger is availableNow: any other plans a microbatch up to the heads first.
            self.fix_heads(self._heads)
        return self.advance(self._start, limited=not is_first and self._heads is None)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if self._start is None and self._heads is not None:
            self.check_heads(end)
            self.fix_heads(self._heads)
        self._start = end
        if end == self._heads:
            self._heads = None
        return self.plan(start, end)


if TYPE_CHECKING or has(spark_versions.READ_LIMITS, HERE):
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class SparkStreamReader(StreamReads, DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> Offset:
            return self.begin({})

        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
            return self.advance(start, limited=not isinstance(limit, ReadAllAvailable))

        def getDefaultReadLimit(self) -> ReadLimit:
            # Spark passes one limit back; `advance` applies all that are set.
            if self.options.max_rows is not None:
                return ReadMaxRows(self.options.max_rows)
            if self.options.max_bytes is not None:
                return ReadMaxBytes(self.options.max_bytes)
            commits = self.options.max_commits
            return ReadAllAvailable() if commits is None else ReadMaxFiles(commits)

        def prepareForTriggerAvailableNow(self) -> None:
            self.fix_heads()

        def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
            return self.plan(start, end)

else:

    class SparkStreamReader(HeadFirst, DataSourceStreamReader):
        pass
