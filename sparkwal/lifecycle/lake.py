"""A Delta table without a JVM: the files of its log, and its rows by delta-rs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.errors import (
    ConfirmError,
    OptionError,
    PlanError,
    StoreUnavailableError,
    TableReadError,
)
from sparkwal.format import schema
from sparkwal.format.keys import join_key
from sparkwal.format.lifecycle import LifecycleRecord
from sparkwal.lifecycle.delta_log import DeltaLog
from sparkwal.lifecycle.table import NULL_PARTITIONS, TableState
from sparkwal.options.store import StoreOptions
from sparkwal.store.base import NotFound, Store
from sparkwal.store.config import S3Config
from sparkwal.store.listing import all_entries
from sparkwal.store.log_store import LogStore
from sparkwal.store.open import open_store
from sparkwal.store.path import is_local


class StoreFiles:
    """`Files` of a table on a disk, or on an S3 that a log's options reach."""

    def __init__(self, table: str, store: Store, prefix: str) -> None:
        self._table, self._store = table, store
        self._prefix = join_key(prefix, "_delta_log") + "/"

    def sizes(self, start: int) -> Mapping[str, int]:
        with self._readable():
            entries = all_entries(self._store, self._prefix, after=f"{self._prefix}{start:020d}")
            return {entry.key.removeprefix(self._prefix): entry.size for entry in entries}

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        key = self._prefix + name
        with self._readable():
            if length is None:
                return self._store.get(key)
            return self._store.get_range(key, offset, length)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            raise FileNotFoundError(str(error)) from None
        except (StoreUnavailableError, OptionError) as error:
            raise TableReadError(f"the table {self._table} cannot be read: {error}") from error


class OtherFiles:
    """`Files` of a table that delta-rs reaches by options of its own."""

    def __init__(self, table: str, storage: Mapping[str, str]) -> None:
        from pyarrow import fs

        _library()
        from deltalake.fs import DeltaStorageHandler

        self._table, self._storage = table, storage
        with _readable(table, storage):
            self._files = fs.PyFileSystem(DeltaStorageHandler(_url(table), dict(storage)))

    def sizes(self, start: int) -> Mapping[str, int]:
        from pyarrow import fs

        with _readable(self._table, self._storage):
            found = self._files.get_file_info(fs.FileSelector("_delta_log", allow_not_found=True))
            return {each.base_name: each.size for each in found}

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with (
            _readable(self._table, self._storage),
            self._files.open_input_file(f"_delta_log/{name}") as file,
        ):
            return bytes(file.read() if length is None else file.read_at(length, offset))


def delta_log(
    table: str, options: StoreOptions, storage: Mapping[str, str] | None = None
) -> DeltaLog:
    """The log of a table. `options`, of the log that is compacted into it, reach a table on a disk
    or on S3; one elsewhere needs `storage`, delta-rs' options."""
    if storage is not None or not (is_local(table) or re.match("(?i)s3a?:", table)):
        return DeltaLog(OtherFiles(table, storage_options(options.s3, storage)), table)
    store, prefix = open_store(table, options.s3, options.retry)
    return DeltaLog(StoreFiles(table, store, prefix), table)


class LakeTable:
    """One version of a Delta table. `storage` may hold secrets. Raises OptionError where delta-rs
    is not installed, TableReadError."""

    def __init__(self, url: str, storage: Mapping[str, str], version: int, log: DeltaLog) -> None:
        self._url, self._storage, self._version = url, storage, version
        self.spark_schema = schema.normalize(log.spark_schema)
        self.partitioned = log.partitioned
        with _readable(url, storage):
            self._table = _library().DeltaTable(
                _url(url), version=version, storage_options=dict(storage)
            )

    def rows(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows with `target`'s columns, null where the table does not have one; in no
        particular order. Raises TableReadError."""
        there = schema.columns(self.spark_schema)
        names = [name for name in target.names if name in there]
        with _readable(self._url, self._storage, f"version {self._version}"):
            # One column still gives the number of rows.
            found = self._table.scan(columns=names or list(there)[:1])
            for batch in pa.RecordBatchReader.from_stream(found):
                yield schema.conform(batch, target)


def _url(table: str) -> str:
    return re.sub(r"^s3[an]:", "s3:", table)


@contextmanager
def _readable(url: str, storage: Mapping[str, str], what: str = "it") -> Iterator[None]:
    """What delta-rs raises as a TableReadError, which shows no secret."""
    delta = _library()
    try:
        yield
    except FileNotFoundError:
        raise
    except (delta.exceptions.DeltaError, pa.ArrowException, OSError, ValueError) as error:
        text = " ".join(str(error).split())
        for name, value in storage.items():
            if re.search("key|token|secret", name, re.IGNORECASE):
                text = text.replace(value, "***")
        raise TableReadError(
            f"the table {url} cannot be read: {what}: {text}. If a VACUUM took its files, look at "
            "the current state again"
        ) from None


def as_stored(batch: pa.RecordBatch, partitioned: Sequence[str]) -> pa.RecordBatch:
    """Rows of the log as a table keeps them: null for texts that no partition can have."""
    parts = {name.lower() for name in partitioned}
    for place, field in enumerate(batch.schema):
        text = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
        if text and field.name.lower() in parts:
            column = batch.column(place)
            nothing = pc.is_in(column, value_set=pa.array(NULL_PARTITIONS).cast(field.type))
            column = pc.if_else(nothing, pa.scalar(None, field.type), column)
            batch = batch.set_column(place, field, column)
    return batch


class NewestLake:
    """A Delta table to look at, without a JVM; nothing can be written. A `Table`."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._url, self._log = url, delta_log(url, options)

    def prepare(self, log: LogStore, spark_schema: str) -> None:
        raise PlanError(f"{self._url} is looked at without Spark, which fills it")

    def look(self, log_id: str, since: int, k: int | None = None) -> TableState | None:
        try:
            self._log.update()
            return self._log.look(log_id, since, k)
        except TableReadError as error:
            raise ConfirmError(str(error)) from error

    def write(self, state: LifecycleRecord) -> None:
        raise PlanError(f"{self._url} is looked at without Spark, which fills it")


def _library() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError:
        raise OptionError(
            "to read the log's table without Spark install delta-rs: pip install 'sparkwal[lake]'"
        ) from None
    return deltalake


def storage_options(s3: S3Config, given: Mapping[str, str] | None) -> dict[str, str]:
    """delta-rs' storage options for a table on the log's own store; those that are `given` instead,
    where the table is elsewhere."""
    if given is not None:
        return dict(given)
    known = {
        "aws_endpoint_url": s3.endpoint,
        "aws_region": s3.region,
        "aws_profile": s3.profile,
        "aws_access_key_id": s3.access_key_id,
        "aws_secret_access_key": s3.secret_access_key,
        "aws_session_token": s3.session_token,
        "aws_request_payer": "true" if s3.requester_pays else None,
        "aws_allow_http": "true" if (s3.endpoint or "").startswith("http:") else None,
    }
    return {name: value for name, value in known.items() if value is not None}
