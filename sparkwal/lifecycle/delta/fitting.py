"""Decides whether a Delta table takes the rows of a log, before a range is promised to it.

A promised range must reach the table. So everything that a schema and the settings of a table show
is checked before the promise.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwal.errors import OptionError, TableReadError
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.format.schema import columns, inside, normalize, quoted, read, type_name
from sparkwal.format.widening import contradictions, holds

APPEND_ONLY = "delta.appendOnly"
# Texts that Delta Lake stores as null in a column that a table is partitioned by.
NULL_PARTITIONS = ("", "__HIVE_DEFAULT_PARTITION__")
# Keys in the metadata of a Delta column. Delta fills these columns where a row has no value.
GENERATED = "delta.generationExpression"
_IDENTITY = "delta.identity.start"
_IDENTITY_TAKES = "delta.identity.allowExplicitInsert"
_DEFAULT = "CURRENT_DEFAULT"
# Spark stores CHAR(n) as a string and keeps its declared type in the metadata. A struct may have it
# in a field.
_PADDED = re.compile(r"\bchar\(", re.IGNORECASE)
DECLARED_TYPE = "__CHAR_VARCHAR_TYPE_STRING"


def type_problems(spark_schema: str, table_schema: str, table: str) -> Iterator[str]:
    """Find the columns whose values the table's types do not hold.

    Args:
        spark_schema: the log's columns, as Spark's JSON.
        table_schema: the table's columns, as Spark's JSON.
        table: the table's URL, for the advice.

    Yields:
        One sentence for each column, with the ALTER TABLE that helps.
    """
    alter = f"ALTER TABLE delta.`{table}`"
    for name, log_type, table_type in contradictions(columns(spark_schema), columns(table_schema)):
        column = quoted(name)
        advice = (
            f"run {alter} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true'), then {alter} "
            f"ALTER COLUMN {column} TYPE {type_name(log_type)}"
            if holds(log_type, table_type)
            else f"run {alter} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name'), then "
            f"{alter} RENAME COLUMN {column} TO another name; the log's column is then added to "
            "the table"
        )
        yield (
            f"column {name!r} is {type_name(log_type)} in the log and {type_name(table_type)} in "
            f"{table}, which does not hold each of its values: {advice}"
        )


def log_problems(spark_schema: str) -> Iterator[str]:
    """Find the columns of a log that no Delta table takes, though it may be created with them.

    Args:
        spark_schema: the log's columns, as Spark's JSON.

    Yields:
        One sentence for each column, with what to do.
    """
    for name, log_type in columns(spark_schema).items():
        for path in _empty_structs(log_type, name):
            yield (
                f"{path!r} is a struct without fields, which Delta does not write: give it a field "
                "in the log, with mergeSchema=true"
            )


def _empty_structs(kind: Any, path: str) -> Iterator[str]:
    """The paths of structs without fields in a type."""
    if isinstance(kind, str):
        return
    if kind["type"] == "struct":
        if not kind["fields"]:
            yield path
        for field in kind["fields"]:
            yield from _empty_structs(field["type"], f"{path}.{field['name']}")
    for inner in ("elementType", "keyType", "valueType"):
        yield from _empty_structs(kind.get(inner, ""), path)


def problems(
    spark_schema: str, table_schema: str, target: Target, properties: Mapping[str, str]
) -> Iterator[str]:
    """Find every reason why a table cannot take the rows of a log.

    Args:
        spark_schema: the log's columns, as Spark's JSON.
        table_schema: the table's columns with their metadata, as Delta keeps them.
        target: how the rows go into the table.
        properties: the table's properties.

    Yields:
        One sentence for each reason, with what to do.
    """
    table = target.table
    yield from type_problems(spark_schema, table_schema, table)
    is_merge = target.mode == MERGE
    if is_merge and properties.get(APPEND_ONLY, "").lower() == "true":
        yield (
            f"{table} has {APPEND_ONLY}, and rows with keys replace others: ALTER TABLE "
            f"delta.`{table}` UNSET TBLPROPERTIES ('{APPEND_ONLY}'), or compact without keys"
        )
    in_log = columns(spark_schema)
    log_types = {name.lower(): log_type for name, log_type in in_log.items()}
    keys = {key.lower() for key in target.keys}
    for field in json.loads(table_schema)["fields"]:
        name, metadata = field["name"], field.get("metadata") or {}
        declared = str(metadata.get(DECLARED_TYPE, ""))
        if name.lower() in keys and _PADDED.search(declared):
            yield (
                f"the key {name!r} is {declared.upper()} in {table}, which pads its values with "
                "spaces, so the log's values never equal them: make the column a STRING"
            )
        log_type = log_types.get(name.lower())
        for path in _required_fields(field["type"], log_type, name, is_any=is_merge):
            yield (
                f"{path!r}, a field of a struct in {table}, is NOT NULL, and "
                + ("a MERGE casts the log's struct" if is_merge else "the log's struct lacks it")
                + ": make the field nullable, or compact into another table"
            )
        if name.lower() in log_types:
            yield from _identity_problems(name, metadata, table, is_merge=is_merge)
        if name.lower() not in log_types:
            if not field.get("nullable", True) and not is_filled_by_delta(metadata):
                yield (
                    f"column {name!r} of {table} is NOT NULL, and the log has no such column: "
                    f"ALTER TABLE delta.`{table}` ALTER COLUMN {name} DROP NOT NULL, or give the "
                    "column to the log"
                )
        elif is_merge:
            for path in _fields_that_lack(normal_type(field), log_type, name):
                yield (
                    f"{path!r} is a field of a struct in {table}, and the log's struct lacks it: "
                    "each row that replaces another would set it to null. Add the field to the "
                    "log's struct, or keep its values in a column outside of the struct"
                )


def _required_fields(table_type: Any, log_type: Any, path: str, *, is_any: bool) -> Iterator[str]:
    """The fields of a struct that are NOT NULL in the table. Only those that the log lacks, unless
    `is_any`."""
    structs = [x for x in (table_type, log_type) if isinstance(x, Mapping)]
    if [x["type"] for x in structs] != ["struct", "struct"]:
        return
    in_log = {field["name"].lower(): field["type"] for field in log_type["fields"]}
    for field in table_type["fields"]:
        name, field_path = field["name"].lower(), f"{path}.{field['name']}"
        if not field.get("nullable", True) and (is_any or name not in in_log):
            yield field_path
        yield from _required_fields(field["type"], in_log.get(name), field_path, is_any=is_any)


def _identity_problems(
    name: str, metadata: Mapping[str, Any], table: str, *, is_merge: bool
) -> Iterator[str]:
    """Delta takes no other value for an identity column, or none for a row that it replaces."""
    if _IDENTITY in metadata and (is_merge or not metadata.get(_IDENTITY_TAKES)):
        always = "BY DEFAULT" if metadata.get(_IDENTITY_TAKES) else "ALWAYS"
        why = "a row with keys replaces its value" if is_merge else "the log gives it values"
        yield (
            f"column {name!r} of {table} is GENERATED {always} AS IDENTITY, and {why}, which Delta "
            "refuses: leave the column out of the log, or compact into a table without it"
        )


def is_filled_by_delta(metadata: Mapping[str, Any]) -> bool:
    """Whether Delta computes a column's value for a row that has none."""
    return any(key in metadata for key in (GENERATED, _IDENTITY, _DEFAULT))


def filled_by_delta(table_schema: str) -> list[str]:
    """List the columns of a table that Delta computes: generated, identity and default columns."""
    fields = json.loads(table_schema)["fields"]
    return [x["name"] for x in fields if is_filled_by_delta(x.get("metadata") or {})]


def log_schema(table_schema: str) -> str:
    """The columns of a table, with the types of a log.

    Args:
        table_schema: the table's columns with their metadata, as Delta keeps them.

    Raises:
        OptionError: a column has a type that a log cannot have.
        TableReadError: the schema is damaged.
    """
    try:
        return read(table_schema.encode())
    except OptionError:
        raise
    except ValueError as error:
        raise TableReadError(f"the table's schema is damaged: {error}") from None


def normal_type(field: Mapping[str, Any]) -> Any:
    """The normalized type of a field of a table's schema."""
    return json.loads(normalize({"fields": [dict(field)]}))["fields"][0]["type"]


def adds_columns(spark_schema: str, table_schema: str) -> bool:
    """Whether the log has a column, or a field of a struct, that the table lacks."""
    in_table = {name.lower(): table_type for name, table_type in columns(table_schema).items()}
    return any(
        name.lower() not in in_table
        or any(_fields_that_lack(log_type, in_table[name.lower()], name))
        for name, log_type in columns(spark_schema).items()
    )


def _fields_that_lack(full: Any, other: Any, path: str) -> Iterator[str]:
    """The paths of struct fields that `full` has and `other`, a type of the same shape, lacks."""
    if isinstance(full, str) or isinstance(other, str) or full["type"] != other["type"]:
        return
    is_struct = full["type"] == "struct"
    others = {name.lower(): inner_type for name, inner_type in inside(other)}
    for name, inner_type in inside(full):
        inner_path = f"{path}.{name}" if is_struct else path
        if name.lower() not in others:
            yield inner_path
        else:
            yield from _fields_that_lack(inner_type, others[name.lower()], inner_path)
