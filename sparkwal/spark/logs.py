"""Which logs a read is of, which columns they have, and how far a stream over them has come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from pyspark.sql.types import StructType

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import schema
from sparkwal.options.open import open_log
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.holds import LOG_ID
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import check_projection, with_metadata_columns
from sparkwal.reading.planning import StreamedLog
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


# {sequencer: next position}, and under LOG_ID + sequencer the id of the log that it belongs to.
# Where a log first appears, _FROM + sequencer says which position its rows begin at, unless it is
# 0: the floor of later is not where they began. No sequencer's name holds a colon.
Offset = dict[str, int | str]
_FROM = "from:"


class StreamedLogs(Logs[StreamedLog]):
    """The logs of a stream, and its offsets."""

    def offset(
        self, positions: Mapping[str, int], entries: Mapping[str, int] = MappingProxyType({})
    ) -> Offset:
        """Of a stream that has come so far; `entries` says where logs that appear begin."""
        offset: Offset = {_FROM + name: str(entry) for name, entry in entries.items() if entry}
        offset.update(positions)
        for name in positions:
            if (log_id := self[name].log_id) is not None:
                offset[LOG_ID + name] = log_id
        # Spark compares offsets as texts.
        return dict(sorted(offset.items()))

    def positions(self, offset: Offset) -> dict[str, int]:
        """The next position of each log. Raises InvalidLogError."""
        found = {name: place for name, place in offset.items() if isinstance(place, int)}
        others = [n for n in offset if n not in found and not n.startswith((LOG_ID, _FROM))]
        several, single = self._options.sequencers, self._options.sequencer
        if others or not (several or single in found):
            raise InvalidLogError(
                f"the checkpoint holds the offset {json.dumps(offset)}, which is none of this "
                "source; use a new checkpoint"
            )
        return found if several else {single: found[single]}

    def entry(self, offset: Offset, name: str) -> int:
        """Where the rows of a log begin that appears in this offset."""
        return int(offset.get(_FROM + name, 0))

    def check(self, offset: Offset, positions: Mapping[str, int]) -> None:
        """Raises InvalidLogError where an offset speaks of other logs than there are now."""
        for log in self.known():
            if log.name in positions:
                log_id = offset.get(LOG_ID + log.name)
                log.check_offset(positions[log.name], None if log_id is None else str(log_id))


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
