"""The `_wal_…` columns: where each row came from."""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.format.arrow_types import DEEPEST, depth

# No writer's column has a name that begins like this.
RESERVED = "_wal_"
METADATA = {
    "_wal_position": "long",
    "_wal_timestamp": "timestamp",
    "_wal_partition": "integer",
    "_wal_leader_id": "string",
    "_wal_batch_id": "long",
    "_wal_query_id": "string",
}
# The number of a row in its commit and partition; Spark does not ask for it.
ROW = "_wal_row"


def with_metadata_columns(spark_schema: str) -> str:
    """The schema with the `_wal_…` columns after the log's own."""
    extra = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in METADATA.items()
    ]
    return schema.append_fields(spark_schema, extra)


def check_writable(spark_schema: str) -> None:
    """Raises OptionError for columns that readers could not use, and as `check_reserved`."""
    schema.check_columns(spark_schema)
    for field in schema.to_arrow(spark_schema):
        if (levels := depth(field.type)) > DEEPEST:
            raise OptionError(
                f"column {field.name!r} is nested {levels} levels deep; {DEEPEST} can be written, "
                "of which a map takes two: flatten it, or write a part of it as JSON text"
            )
    check_reserved(schema.columns(spark_schema))


def check_reserved(names: Iterable[str]) -> None:
    """Raises OptionError for a column whose name readers of a log, or a compaction, may give to a
    column of their own; Spark reads names without regard to case."""
    for name in names:
        if name.lower().startswith(RESERVED):
            raise OptionError(
                f"the name of column {name!r} begins with {RESERVED}, which is reserved: readers "
                f"and compaction add columns of such names; rename it, for example "
                f'withColumnRenamed("{name}", "source{name}")'
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


def selected(everything: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Only these columns, in this order; None: all. Raises OptionError for an unknown one."""
    if isinstance(columns, str):
        raise OptionError(f"columns are a list of names, not {columns!r}")
    for name in columns or ():
        if name not in everything.names:
            raise unknown_column(name, everything.names, everything.names)
    return everything if columns is None else pa.schema([everything.field(x) for x in columns])


def unknown_column(name: str, shown: Sequence[str], known: Sequence[str]) -> OptionError:
    """The error for a column that a log does not have. It names the columns `shown`; `known` are
    all that may be asked for."""
    same = [each for each in known if each.lower() == name.lower()]
    if same:
        return OptionError(f"column {name!r} is {same[0]!r} in the log; write it as it is there")
    return OptionError(f"column {name!r} is not in the log; it has {', '.join(shown)}")
