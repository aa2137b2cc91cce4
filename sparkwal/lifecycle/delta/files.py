"""The transaction log of a Delta table as files, read without Spark from a disk or a store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from sparkwal.errors import TableReadError, install_extra, require_library
from sparkwal.format.keys import join_key
from sparkwal.lifecycle.delta.transaction_log import DeltaLog
from sparkwal.options.store import StoreOptions
from sparkwal.store.base import NotFound, Store, all_entries
from sparkwal.store.config import S3Config
from sparkwal.store.open import open_store

# The query of a URL, which may hold a signature.
_QUERY = re.compile(r"(\w+://[^\s?'\"]+)\?[^\s'\")]*")
_SECRET = re.compile("key|token|secret|password|credential|sas", re.IGNORECASE)
# delta-rs colours its messages.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class StoreFiles:
    """The `Files` of a table on a disk, or on the store that the log's options describe."""

    def __init__(self, table: str, store: Store, prefix: str) -> None:
        self.table = table
        self._store = store
        self._root = prefix
        self._prefix = join_key(prefix, "_delta_log") + "/"

    def sizes(self, start: int) -> Mapping[str, int]:
        """List the files of the log from a version on, with their sizes."""
        with table_errors(self.table):
            entries = all_entries(self._store, self._prefix, after=f"{self._prefix}{start:020d}")
            return {entry.key.removeprefix(self._prefix): entry.size for entry in entries}

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file of the log, or a range of it."""
        key = self._prefix + name
        with table_errors(self.table):
            if length is None:
                return self._store.get(key)
            return self._store.get_range(key, offset, length)

    def read_data(self, name: str, offset: int, length: int) -> bytes:
        """Read a range of a file in the table's folder."""
        with table_errors(self.table):
            return self._store.get_range(join_key(self._root, name), offset, length)


class OtherFiles:
    """The `Files` of a table that delta-rs reads with options of its own."""

    def __init__(self, table: str, storage: Mapping[str, str]) -> None:
        from pyarrow import fs

        require_library("deltalake", install_extra("lake"))
        from deltalake.fs import DeltaStorageHandler

        self.table = table
        self._storage = storage
        with table_errors(table, storage):
            self._files = fs.PyFileSystem(DeltaStorageHandler(url_of(table), dict(storage)))

    def sizes(self, start: int) -> Mapping[str, int]:
        """List the files of the log from a version on, with their sizes."""
        from pyarrow import fs

        with table_errors(self.table, self._storage):
            files = self._files.get_file_info(fs.FileSelector("_delta_log", allow_not_found=True))
            return {file.base_name: file.size for file in files}

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file of the log, or a range of it."""
        with (
            table_errors(self.table, self._storage),
            self._files.open_input_file(f"_delta_log/{name}") as file,
        ):
            return bytes(file.read() if length is None else file.read_at(length, offset))

    def read_data(self, name: str, offset: int, length: int) -> bytes:
        """Read a range of a file in the table's folder."""
        with (
            table_errors(self.table, self._storage),
            self._files.open_input_file(name) as file,
        ):
            return bytes(file.read_at(length, offset))


def table_files(
    table: str, options: StoreOptions, storage: Mapping[str, str] | None = None
) -> StoreFiles | OtherFiles:
    """Open the files of a Delta table, without reading one.

    Args:
        table: its URL or folder.
        options: the options of the log; they are used for a table on a disk, on S3 or on the log's
            cloud.
        storage: delta-rs' options for a table on another store.
    """
    if storage is not None or not options.reaches(table):
        return OtherFiles(table, storage_options(options.s3, storage))
    store, prefix = open_store(table, options.s3, options.retry)
    return StoreFiles(table, store, prefix)


def delta_log(
    table: str, options: StoreOptions, storage: Mapping[str, str] | None = None
) -> DeltaLog:
    """Open the log of a Delta table, without reading it. For the arguments see `table_files`."""
    return DeltaLog(table_files(table, options, storage), table)


def storage_options(s3: S3Config, table_options: Mapping[str, str] | None) -> dict[str, str]:
    """Build delta-rs' storage options.

    Args:
        s3: how the log's store is reached. The table is on the same store.
        table_options: the options of a table on another store, instead of these.
    """
    if table_options is not None:
        return dict(table_options)
    options = {
        "aws_endpoint_url": s3.endpoint,
        "aws_region": s3.region,
        "aws_profile": s3.profile,
        "aws_access_key_id": s3.access_key_id,
        "aws_secret_access_key": s3.secret_access_key,
        "aws_session_token": s3.session_token,
        "aws_request_payer": "true" if s3.requester_pays else None,
        "aws_allow_http": "true" if (s3.endpoint or "").startswith("http:") else None,
    }
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def table_errors(url: str, storage: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Convert errors.

    Raises:
        FileNotFoundError: a file does not exist.
        TableReadError: any other error. Its message contains no secret.
    """
    try:
        yield
    except (FileNotFoundError, NotFound) as error:
        raise FileNotFoundError(str(error)) from None
    except Exception as error:  # delta-rs has many classes of errors
        text = _COLOURS.sub("", " ".join(str(error).split()))
        text = _QUERY.sub(r"\1?***", text)
        for name, value in storage.items():
            if value and _SECRET.search(name):
                text = text.replace(value, "***")
        advice = "If a VACUUM deleted its files, read the current state again"
        raise TableReadError(f"the table {url} is unreadable: {text}. {advice}") from None


def url_of(table: str) -> str:
    return re.sub(r"^s3[an]:", "s3:", table)
