"""A Delta table without a JVM: what delta-rs tells of a version, and its rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from sparkwal.errors import ConfirmError, OptionError, PlanError, TableReadError
from sparkwal.format import schema
from sparkwal.format.lifecycle import LifecycleRecord
from sparkwal.lifecycle.delta_history import change
from sparkwal.lifecycle.table import Change, TableState
from sparkwal.protocol.log_store import LogStore
from sparkwal.store.config import S3Config


class LakeTable:
    """A Delta table at the version that was the newest when this was made.

    Args:
        url: s3://…, s3a://…, file:///… or a folder.
        storage: delta-rs' storage options; may hold secrets.

    Raises OptionError where delta-rs is not installed, TableReadError.
    """

    def __init__(self, url: str, storage: Mapping[str, str], version: int | None = None) -> None:
        delta = _library()
        self._url, self._storage = url, dict(storage)
        self._table: Any = None
        try:
            self._table = delta.DeltaTable(
                re.sub(r"^s3[an]:", "s3:", url), version=version, storage_options=self._storage
            )
        except delta.exceptions.TableNotFoundError:
            if version is not None:
                raise self._unreadable(f"version {version}", "it is gone") from None
        except (delta.exceptions.DeltaError, OSError, ValueError) as error:
            raise self._unreadable("it", error) from None

    @property
    def version(self) -> int:
        return int(self._table.version())

    def look(self, log_id: str, since: int) -> TableState | None:
        """As `Table.look`, at the version that is pinned here."""
        if self._table is None:
            return None
        return TableState(
            table_id=str(self._table.metadata().id),
            version=self.version,
            k=self._table.transaction_version(log_id) or 0,
            changes=self._changes(since),
        )

    def _changes(self, since: int) -> tuple[Change, ...] | None:
        # Not DeltaTable.history: it begins at the newest version there is by then, and counts
        # down from the one that is pinned.
        files = self._files()
        found = []
        for version in range(since + 1, self.version + 1):
            try:
                with files.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
                    lines = stream.read().splitlines()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self._unreadable(f"the commit of version {version}", error) from None
            actions = (json.loads(line) for line in lines if line.strip())
            infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
            found.append(change(version, next(infos, None)))
        return tuple(found)

    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow import fs

        return fs.PyFileSystem(DeltaStorageHandler.from_table(self._table._table, self._storage))

    def spark_schema(self) -> str:
        """The table's columns, normalized."""
        return schema.normalize(self._table.schema().to_json())

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
