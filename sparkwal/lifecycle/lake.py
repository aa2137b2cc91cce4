"""A Delta table without a JVM: what delta-rs tells of a version, and its rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.errors import ConfirmError, OptionError, PlanError, TableReadError
from sparkwal.format import schema
from sparkwal.format.lifecycle import APPEND, LifecycleRecord
from sparkwal.lifecycle.delta_history import history
from sparkwal.lifecycle.table import NULL_PARTITIONS, Change, TableState
from sparkwal.store.config import S3Config
from sparkwal.store.log_store import LogStore

# So many versions since the confirmed one are always looked at: two snapshots cost as much.
_FEW = 20
# Requests for commits at the same time.
_AT_ONCE = 16


class LakeTable:
    """A Delta table at the version that was the newest when this was made.

    Args:
        url: s3://…, s3a://…, file:///… or a folder.
        storage: delta-rs' storage options; may hold secrets.
        mode: APPEND: what counts of its history is whether it still has all rows; else every
            version since one that was confirmed is looked at.

    Raises OptionError where delta-rs is not installed, TableReadError.
    """

    def __init__(self, url: str, storage: Mapping[str, str], mode: str = "") -> None:
        delta = _library()
        self._url, self._storage, self._appends = url, dict(storage), mode == APPEND
        self._table: Any = None
        try:
            self._table = self._open()
        except delta.exceptions.TableNotFoundError:
            pass
        except (delta.exceptions.DeltaError, OSError, ValueError) as error:
            raise self._unreadable("it", error) from None

    def _open(self, version: int | None = None) -> Any:
        url = re.sub(r"^s3[an]:", "s3:", self._url)
        return _library().DeltaTable(url, version=version, storage_options=self._storage)

    @property
    def version(self) -> int:
        return int(self._table.version())

    def look(self, log_id: str, since: int) -> TableState | None:
        """As `Table.look`, at the version that is pinned here."""
        if self._table is None:
            return None
        k = self._table.transaction_version(log_id) or 0
        added = self._is_only_added_to(since, log_id, k)
        changes, whole = ((), True) if added else self._changes(since)
        return TableState(str(self._table.metadata().id), self.version, k, changes, whole)

    def _is_only_added_to(self, since: int, log_id: str, k: int) -> bool:
        """Whether the table has every file that it had at version `since`, and no range of the log
        came. Then nothing took a row away since, and no version between needs a look."""
        if not self._appends or self.version - since <= _FEW:
            return False
        try:
            before = self._open(since)
        except (_library().exceptions.DeltaError, OSError, ValueError):
            return False
        tables = before, self._table
        # With deletion vectors a file may stay without its rows.
        if any("deletionVectors" in (t.protocol().reader_features or ()) for t in tables):
            return False
        # Defends against: a range that a RESTORE took away is taken for one that never came
        if (before.transaction_version(log_id) or 0) != k:
            return False
        # Defends against: rows that were overwritten are taken for there
        return set(before.file_uris()) <= set(self._table.file_uris())

    def _changes(self, since: int) -> tuple[tuple[Change, ...], bool]:
        # Not DeltaTable.history: it begins at the newest version there is by then, and counts
        # down from the one that is pinned.
        files = self._files()

        def read(version: int) -> dict[str, Any] | None:
            try:
                with files.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
                    lines = stream.read().splitlines()
            except FileNotFoundError:
                raise
            except OSError as error:
                raise self._unreadable(f"the commit of version {version}", error) from None
            actions = (json.loads(line) for line in lines if line.strip())
            return next((each["commitInfo"] for each in actions if "commitInfo" in each), None)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            versions = range(self.version, since, -1)
            return history(since, self.version, pool.map(read, versions))

    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow import fs

        return fs.PyFileSystem(DeltaStorageHandler.from_table(self._table._table, self._storage))

    def spark_schema(self) -> str:
        """The table's columns, normalized."""
        return schema.normalize(self._table.schema().to_json())

    @property
    def partitioned(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self._table.metadata().partition_columns)

    def rows(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows with `target`'s columns, null where the table does not have one.

        In no particular order. Raises TableReadError.
        """
        there = schema.columns(self.spark_schema())
        names = [name for name in target.names if name in there]
        what = f"version {self.version}"
        try:
            # One column still tells the rows.
            found = self._table.scan(columns=names or list(there)[:1])
            for batch in pa.RecordBatchReader.from_stream(found):
                yield schema.conform(batch, target)
        except (_library().exceptions.DeltaError, pa.ArrowException, OSError) as error:
            raise self._unreadable(what, error) from None

    def _unreadable(self, what: str, why: object) -> TableReadError:
        text = " ".join(str(why).split())
        for name, value in self._storage.items():
            if re.search("key|token|secret", name, re.IGNORECASE):
                text = text.replace(value, "***")
        return TableReadError(
            f"the table {self._url} cannot be read: {what}: {text}. If a VACUUM took its files, "
            "look at the current state again"
        )


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

    def __init__(self, url: str, storage: Mapping[str, str]) -> None:
        self._url, self._storage = url, storage

    def prepare(self, log: LogStore, spark_schema: str) -> None:
        raise PlanError(f"{self._url} is looked at without Spark, which fills it")

    def look(self, log_id: str, since: int) -> TableState | None:
        try:
            return LakeTable(self._url, self._storage).look(log_id, since)
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
    """delta-rs' storage options for a table on the log's own store.

    Args:
        given: instead of the log's, where the table is elsewhere.
    """
    if given is not None:
        return dict(given)
    known = {
        "aws_endpoint_url": s3.endpoint,
        "aws_region": s3.region,
        "aws_profile": s3.profile,
        "aws_access_key_id": s3.access_key_id,
        "aws_secret_access_key": s3.secret_access_key,
        "aws_session_token": s3.session_token,
        "aws_request_payer": "true" if s3.requests.requester_pays else None,
        "aws_allow_http": "true" if (s3.endpoint or "").startswith("http:") else None,
    }
    return {name: value for name, value in known.items() if value is not None}
