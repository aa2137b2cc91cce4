"""The `_wal_…` columns: the position, time and writer of each row."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

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
# The number of a row in its commit and partition. In Spark only a compaction uses it.
ROW = "_wal_row"
POSITION = "_wal_position"
PARTITION = "_wal_partition"
# The one with the time of a row's commit.
COMMIT_TIME = "_wal_timestamp"
# The names of the columns that a row's record has, as `names_text`. Only a MERGE uses it.
COLUMNS = "_wal_columns"
_HIDDEN = {COLUMNS: "string", ROW: "long"}


def with_hidden(spark_schema: str, *names: str) -> str:
    """The schema with columns of METADATA, COLUMNS or ROW after the log's own columns."""
    types = METADATA | _HIDDEN
    extra = [{"name": x, "type": types[x], "nullable": True, "metadata": {}} for x in names]
    return schema.append_fields(spark_schema, extra)


@lru_cache(maxsize=256)
def names_text(spark_schema: str) -> str:
    """The names of all columns of a schema as one text: it contains the `name_text` of each."""
    return " ".join(name_text(name) for name in schema.columns(spark_schema))


def name_text(name: str) -> str:
    """A column's name in lower case, so that no text of another name contains it."""
    return json.dumps(name.lower())


def with_metadata_columns(spark_schema: str) -> str:
    """The schema with the `_wal_…` columns after the log's own."""
    extra = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in METADATA.items()
    ]
    return schema.append_fields(spark_schema, extra)


def check_writable(spark_schema: str) -> None:
    """Check that readers can use all columns.

    Raises:
        OptionError: a column is nested too deeply, or its name is reserved.
    """
    schema.check_columns(spark_schema)
    for field in schema.to_arrow(spark_schema):
        if (levels := depth(field.type)) > DEEPEST:
            raise OptionError(
                f"column {field.name!r} is nested {levels} levels deep; {DEEPEST} can be written, "
                "of which a map takes two: flatten it, or write a part of it as JSON text"
            )
    check_reserved(schema.columns(spark_schema))


def check_reserved(names: Iterable[str]) -> None:
    """Check that no column has a reserved name. Spark ignores the case of names.

    Raises:
        OptionError: readers of a log, or a compaction, may add a column of this name.
    """
    for name in names:
        if name.lower().startswith(RESERVED):
            raise OptionError(
                f"the name of column {name!r} begins with {RESERVED}, which is reserved: readers "
                f"and compaction add such columns; rename it, for example "
                f'withColumnRenamed("{name}", "source{name}")'
            )


def check_projection(projection: str, log_schema: str) -> None:
    """Check that a projection has only columns of the log (or metadata), with their types.

    Raises:
        OptionError: a column is unknown or has another type.
    """
    have = {**METADATA, **_HIDDEN, **schema.columns(log_schema)}
    for name, kind in schema.columns(projection).items():
        if name not in have:
            raise unknown_column(name, [*schema.columns(log_schema)], [*have])
        if have[name] != kind:
            raise OptionError(
                f"column {name!r} is {schema.type_name(have[name])} in the log, not "
                f"{schema.type_name(kind)}; read it with its own type and cast it"
            )


def selected(everything: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Only these columns, in this order; all if `columns` is None.

    Raises:
        OptionError: a column is unknown.
    """
    if isinstance(columns, str):
        raise OptionError(f"columns are a list of names, not {columns!r}")
    for name in columns or ():
        if name not in everything.names:
            raise unknown_column(name, everything.names, everything.names)
    return everything if columns is None else pa.schema([everything.field(x) for x in columns])


def unknown_column(name: str, shown: Sequence[str], allowed: Sequence[str]) -> OptionError:
    """The error for a column that a log does not have.

    Args:
        name: the column.
        shown: the columns that the error names.
        allowed: all columns that may be read.
    """
    same = [column for column in allowed if column.lower() == name.lower()]
    if same:
        return OptionError(f"column {name!r} is {same[0]!r} in the log; use that spelling")
    return OptionError(f"column {name!r} is not in the log; it has {', '.join(shown)}")
