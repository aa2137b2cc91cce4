"""Which logs a read is of, and which columns they have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Generic, TypeVar

from pyspark.sql.types import StructType

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.options.open import open_log
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import check_projection, with_metadata_columns
from sparkwal.reading.sequencers import all_logs
from sparkwal.store.log_store import LogStore
from sparkwal.store.parallel import run_parallel

L = TypeVar("L", bound=LogRange)


class Logs(Generic[L]):
    """The logs of a read, by sequencer; a stream keeps them: they remember what they have seen."""

    def __init__(
        self,
        options: SourceOptions,
        root: LogStore,
        made: Callable[[SourceOptions, str, LogStore], L],
    ) -> None:
        self._options, self._root, self._made = options, root, made
        self._known: dict[str, L] = {}

    def __getitem__(self, name: str) -> L:
        if name not in self._known:
            self._known[name] = self._made(self._options, name, self._root)
        return self._known[name]

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def known(self) -> list[L]:
        return [log for _, log in sorted(self._known.items())]

    def look(self, wanted: StructType | None = None, *, floor: bool = True) -> list[L]:
        """Every log that exists now, with its head. Raises OptionError where one that appears has
        not the columns that are wanted, and InvalidLogError."""
        waited = any(log.spark_schema is None for log in self._known.values())
        before = len(self._known)
        if self._options.sequencers:
            for name in all_logs(self._root):
                self[name]
        elif not self._known:
            self[self._options.sequencer]
        store, known = self._root.store, self._known.values()
        for _ in run_parallel(store, lambda log: log.look(floor=floor), known):
            pass
        if wanted is not None and (waited or len(self._known) > before):
            union = self.columns()
            if union is not None:
                check_projection(schema.normalize(wanted.jsonValue()), union)
        return self.known()

    def columns(self) -> str | None:
        """All columns of the logs that exist. Raises OptionError where two do not agree."""
        union: str | None = None
        for log in self._known.values():
            if union is None or log.spark_schema is None:
                union = union or log.spark_schema
                continue
            try:
                union = schema.merge(union, log.spark_schema, allow_new=True)
            except OptionError as error:
                raise OptionError(
                    f"the sequencers' schemas do not fit together: {log.name} differs from those "
                    f"before it: {error}. Read them one by one"
                ) from None
        return union


def log_schema(options: SourceOptions) -> StructType:
    """All columns of the logs, and the metadata columns if asked for. Raises OptionError when there
    is no log."""
    logs = Logs(options, open_log(options, fail_fast=True), LogRange)
    logs.look(floor=False)
    spark_schema = logs.columns()
    if spark_schema is None:
        raise no_log(options)
    if options.include_metadata:
        spark_schema = with_metadata_columns(spark_schema)
    return StructType.fromJson(json.loads(spark_schema))


def no_log(options: SourceOptions) -> OptionError:
    return OptionError(
        f"there is no log at {options.log_path}: check the path. A stream waits for one if it is "
        "given the schema, with .schema(…)"
    )
