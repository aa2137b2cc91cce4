"""The objects of an Iceberg table, for a search: which snapshots need each, and the manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any

from sparkwal.errors import TableReadError
from sparkwal.format.finding import CannotTell
from sparkwal.lifecycle.iceberg.catalog import Place
from sparkwal.store.base import NotFound

if TYPE_CHECKING:
    from pyiceberg.io import InputStream
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import IcebergType

_AVRO = b"Obj\x01"
_OF_ROW = (
    "DELETE of its row, and a rewrite of its file if the row is only marked as deleted; then the "
    "expiry of the snapshots before"
)
_OF_METADATA = "the expiry of the snapshot, or the removal of the property or column, that has it"
_OF_FORMER = (
    "write.metadata.previous-versions-max ({most}) newer versions, with "
    "write.metadata.delete-after-commit.enabled=true ({is_deleted}), or the removal of orphans"
)
_OF_ORPHAN = "the removal of orphans: no snapshot needs it"
_AGE, _DEFAULT_AGE_MS = "history.expire.max-snapshot-age-ms", 5 * 86_400_000
# The transforms whose results are values of rows.
_KEEP_VALUES = ("identity", "truncate", "day")


class IcebergObjects:
    """The objects of one table, as `sparkwal.lifecycle.table.SearchedObjects`.

    These are all that its metadata names, and what else lies at its location. A name is that below
    the location, or a whole URL.

    Args:
        url: the table.

    Raises:
        OptionError: as `Place`.
        TableReadError: the catalog or the metadata is unreadable.
    """

    def __init__(self, url: str) -> None:
        self._place = Place(url)
        self._table = self._place.load()
        self._unread: list[tuple[str, str, str]] = []
        # The files of each manifest, which several snapshots may have.
        self._files: dict[str, list[str]] = {}

    def names(self) -> Sequence[str]:
        """List the objects. See `SearchedObjects.names`."""
        if self._table is None:
            return []
        return [*dict.fromkeys([*self._needed, *self._listed(self._table)])]

    def url(self, name: str) -> str:
        """The URL of an object."""
        is_whole = "://" in name or name.startswith("/")
        return name if is_whole else f"{self._existing.location().rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        """Read an object, a manifest as JSON. See `SearchedObjects.read`."""
        try:
            with self._existing.io.new_input(self.url(name)).open() as file:
                body = bytes(file.read())
        except FileNotFoundError:
            raise NotFound(name) from None
        except Exception as error:  # each store has its own classes of errors
            raise TableReadError(f"{name}: {self._place.text_of(error)}") from None
        if not body.startswith(_AVRO):
            return body
        try:
            lines = [json.dumps(row) for row in _rows(body, self._existing)]
        except Exception as error:  # what a damaged file does to pyiceberg
            raise CannotTell("it is damaged, or of an unknown format") from error
        return "\n".join(lines).encode()

    def until(self, name: str) -> str:
        """Describe how an object ends. See `SearchedObjects.until`."""
        return self._needed.get(name, _OF_ORPHAN)

    def unread(self) -> Iterator[tuple[str, str, str]]:
        """Find what was not read. See `SearchedObjects.unread`."""
        yield from self._unread

    @property
    def _existing(self) -> Table:
        if self._table is None:
            raise TableReadError(f"{self._place.url} does not exist")
        return self._table

    def _name(self, url: str) -> str:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        *_, root = PyArrowFileIO.parse_location(self._existing.location())
        *_, path = PyArrowFileIO.parse_location(url)
        inside = path.removeprefix(f"{root.rstrip('/')}/")
        return url if inside == path else inside

    @cached_property
    def _needed(self) -> dict[str, str]:
        """The objects that the metadata names, with what ends them."""
        if self._table is None:
            return {}
        table, endings = self._table, dict[str, str]()
        settings = {
            "most": table.properties.get("write.metadata.previous-versions-max", "100"),
            "is_deleted": table.properties.get(
                "write.metadata.delete-after-commit.enabled", "false"
            ),
        }
        for entry in table.metadata.metadata_log:
            endings[self._name(entry.metadata_file)] = _OF_FORMER.format(**settings)
        current = table.current_snapshot()
        others = [x for x in table.snapshots() if x is not current]
        # What several need, the newest of them keeps.
        for snapshot in (*sorted(others, key=lambda x: x.timestamp_ms), current):
            if snapshot is not None:
                until = _OF_ROW if snapshot is current else _of_snapshot(table, snapshot)
                endings |= {self._name(url): until for url in self._of_snapshot(table, snapshot)}
        endings[self._name(table.metadata_location)] = _OF_METADATA
        return endings

    def _of_snapshot(self, table: Table, snapshot: Snapshot) -> Iterator[str]:
        metadata = table.metadata
        for statistics in (*metadata.statistics, *metadata.partition_statistics):
            if statistics.snapshot_id == snapshot.snapshot_id:
                yield statistics.statistics_path
        yield snapshot.manifest_list
        try:
            manifests = snapshot.manifests(table.io)
        except Exception as error:  # each store has its own classes of errors
            self._note_unknown(table, snapshot, snapshot.manifest_list, error)
            return
        for manifest in manifests:
            yield manifest.manifest_path
            if manifest.manifest_path not in self._files:
                try:
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    paths = [entry.data_file.file_path for entry in entries]
                except Exception as error:  # each store has its own classes of errors
                    self._note_unknown(table, snapshot, manifest.manifest_path, error)
                    paths = []
                self._files[manifest.manifest_path] = paths
            yield from self._files[manifest.manifest_path]

    def _note_unknown(self, table: Table, snapshot: Snapshot, url: str, error: Exception) -> None:
        reason = f"the files that it names are unknown ({type(error).__name__})"
        self._unread.append((url, reason, _of_snapshot(table, snapshot)))

    def _listed(self, table: Table) -> Iterator[str]:
        """What lies at the places of the table, also what nothing needs."""
        from pyarrow.fs import FileSelector, FileType
        from pyiceberg.io.pyarrow import PyArrowFileIO

        others = (table.properties.get(f"write.{kind}.path") for kind in ("data", "metadata"))
        for place in dict.fromkeys([table.location(), *filter(None, others)]):
            try:
                if not isinstance(table.io, PyArrowFileIO):
                    raise TypeError
                scheme, host, path = table.io.parse_location(place)
                files = table.io.fs_by_scheme(scheme, host).get_file_info(
                    FileSelector(path, allow_not_found=True, recursive=True)
                )
            except Exception as error:  # each store has its own classes of errors
                reason = f"orphans there cannot be listed ({type(error).__name__})"
                self._unread.append((place, reason, _OF_ORPHAN))
                continue
            for file in files:
                if file.type == FileType.File:
                    inside = file.path.removeprefix(path.rstrip("/"))
                    yield self._name(place.rstrip("/") + inside)


def _of_snapshot(table: Table, snapshot: Snapshot) -> str:
    """How an object ends whose newest snapshot is this one."""
    if snapshot is table.current_snapshot():
        return _OF_ROW
    names = (x.snapshot_id for x in table.metadata.refs.values())
    keeps = "the removal of the branches and tags at it, then " * (snapshot.snapshot_id in names)
    moment = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    age = table.properties.get(_AGE, "")
    days = (int(age) if age.isdecimal() else _DEFAULT_AGE_MS) / 86_400_000
    return (
        f"{keeps}the expiry of snapshot {snapshot.snapshot_id} of {moment:%Y-%m-%d %H:%M} UTC "
        f"({_AGE}: {days:g} days) and of its files"
    )


class _Body:
    """What pyiceberg opens instead of a file.

    Args:
        body: the bytes of the file.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body

    def open(self) -> InputStream:
        return BytesIO(self._body)


def _rows(body: bytes, table: Table) -> Iterator[Any]:
    """Decode a manifest, or a list of manifests.

    Values of the table's rows are in fields with the names that a search takes for such values.

    Raises:
        CannotTell: it is another file.
    """
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.schema import Schema

    with AvroFile(_Body(body)) as file:
        meta = file.header.meta
        yield dict(meta)
        if "schema" in meta:
            columns = Schema.model_validate_json(meta["schema"])
            transforms = {
                spec_field.get("field-id", 1000 + number): spec_field["transform"]
                for number, spec_field in enumerate(json.loads(meta["partition-spec"]))
            }
            for record in file:
                yield _manifest_row(file.schema, record, columns, transforms)
        elif "manifest_path" in file.schema.column_names:
            for record in file:
                yield _list_row(file.schema, record, table)
        else:
            raise CannotTell("it is a data file in Avro, which is not searched")


def _fields(schema: Any, record: Any) -> dict[str, Any]:
    return {field.name: record[number] for number, field in enumerate(schema.fields)}


def _manifest_row(
    schema: Schema, record: Any, columns: Schema, transforms: dict[int, str]
) -> dict[str, Any]:
    """A data file or a file of deletes."""
    kind: Any = schema.find_type("data_file")
    file = _fields(kind, _fields(schema, record)["data_file"])
    partition: Any = schema.find_type("data_file.partition")
    values = [
        _plain(field.field_type, file["partition"][number])
        for number, field in enumerate(partition.fields)
        if transforms.get(field.field_id, "").startswith(_KEEP_VALUES)
    ]
    types = {field_id: columns.find_type(field_id) for field_id in columns.field_ids}
    lower, upper = (
        [_bound(types.get(field_id), bound) for field_id, bound in (file[name] or {}).items()]
        for name in ("lower_bounds", "upper_bounds")
    )
    return {
        "path": file["file_path"],
        "partitionValues": values,
        "minValues": lower,
        "maxValues": upper,
    }


def _list_row(schema: Schema, record: Any, table: Table) -> dict[str, Any]:
    """A manifest, with the least and the greatest values of its partitions."""
    row = _fields(schema, record)
    spec = table.specs().get(row["partition_spec_id"])
    bounds: list[Any] = []
    if row.get("partitions"):
        summary: Any = schema.find_type("partitions.element")
        for number, partition in enumerate(row["partitions"]):
            limits = _fields(summary, partition)
            kind = None if spec is None else _result_type(spec, number, table.schema())
            bounds += (_bound(kind, limits[name]) for name in ("lower_bound", "upper_bound"))
    return {"path": row["manifest_path"], "partitionValues": bounds}


def _result_type(spec: PartitionSpec, number: int, columns: Schema) -> IcebergType | None:
    """The type of the values of a partition field; None if they are no values of rows."""
    field = spec.fields[number]
    if field.source_id not in columns.field_ids:
        # Its column was dropped.
        return None
    if not str(field.transform).startswith(_KEEP_VALUES):
        return None
    return field.transform.result_type(columns.find_type(field.source_id))


def _bound(kind: Any, bound: bytes | None) -> Any:
    from pyiceberg.conversions import from_bytes

    if bound is None:
        return None
    return _plain(kind, bound if kind is None else from_bytes(kind, bound))


def _plain(kind: IcebergType | None, value: Any) -> Any:
    """A value for JSON, in each form that a search may have."""
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DateType, TimestampType, TimestamptzType, TimeType

    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, bytes):
        return [f"0x{value.hex()}", value.decode(errors="replace")]
    if isinstance(kind, DateType | TimestampType | TimestamptzType | TimeType):
        text = IdentityTransform().to_human_string(kind, value)
        return [text, text.replace("T", " ")]
    if isinstance(value, int | float):
        return value
    text = str(value)
    return [text, float(text)] if text.replace(".", "").lstrip("-").isdecimal() else text
