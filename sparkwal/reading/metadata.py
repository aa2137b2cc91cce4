"""The `_wal_…` columns: where each row came from."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.reading.pieces import Piece

METADATA = {
    "_wal_position": "long",
    "_wal_timestamp": "timestamp",
    "_wal_partition": "integer",
    "_wal_leader_id": "string",
    "_wal_batch_id": "long",
    "_wal_query_id": "string",
}


def with_metadata(batch: pa.RecordBatch, piece: Piece, target: pa.Schema) -> pa.RecordBatch:
    values = {
        "_wal_position": piece.position,
        "_wal_timestamp": piece.timestamp_ms * 1000,
        "_wal_partition": piece.partition,
        "_wal_leader_id": piece.leader_id,
        "_wal_batch_id": piece.batch_id,
        "_wal_query_id": piece.query_id,
    }
    for field in target:
        if field.name in values and field.name not in batch.schema.names:
            column = pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
            batch = batch.append_column(field, column)
    return batch


def with_metadata_columns(spark_schema: str) -> str:
    """The schema with the `_wal_…` columns after the log's own."""
    extra = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in METADATA.items()
    ]
    return schema.append_fields(spark_schema, extra)


def check_writable(spark_schema: str) -> None:
    """For writers: raises OptionError for columns that readers could not use, or that METADATA
    would hide from them."""
    schema.check_columns(spark_schema)
    for name in schema.columns(spark_schema):
        if name.lower() in METADATA:
            raise OptionError(
                f"column {name!r} has a name that readers of a log use for metadata; rename it "
                f'before writing, for example withColumnRenamed("{name}", "source{name}")'
            )


def check_projection(wanted: str, log_schema: str) -> None:
    """Raises OptionError unless every wanted column is the log's (or metadata) with its type."""
    have = {**METADATA, **schema.columns(log_schema)}
    for name, kind in schema.columns(wanted).items():
        if name not in have:
            raise unknown_column(name, [*schema.columns(log_schema)], [*have])
        if have[name] != kind:
            raise OptionError(
                f"column {name!r} is {schema.type_name(have[name])} in the log, not "
                f"{schema.type_name(kind)}; read it as it is and cast it"
            )


def unknown_column(name: str, shown: Sequence[str], known: Sequence[str]) -> OptionError:
    """The error for a column that a log does not have.

    Args:
        shown: the columns to name; `known` all that may be asked for.
    """
    same = [each for each in known if each.lower() == name.lower()]
    if same:
        return OptionError(f"column {name!r} is {same[0]!r} in the log; write it as it is there")
    return OptionError(f"column {name!r} is not in the log; it has {', '.join(shown)}")
