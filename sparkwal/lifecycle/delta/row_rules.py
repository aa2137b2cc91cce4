"""The rules of a Delta table that its columns' types do not show: each row that is written must
keep them.

A row that breaks one is refused when it is written, after its range was promised. So the rows of a
range are compared with these rules before the promise.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwal.format.schema import columns, quoted
from sparkwal.lifecycle.delta.fitting import DECLARED_TYPE, GENERATED

_CHECK = "delta.constraints."
_LIMITED = re.compile(r"(?:var)?char\((\d+)\)", re.IGNORECASE)


@dataclass(frozen=True)
class RowRule:
    """A rule for each row of a table.

    Attributes:
        broken: a condition in Spark's SQL that is true for a row that breaks the rule.
        text: the rule, for people.
        advice: how to change the table.
    """

    broken: str
    text: str
    advice: str


def row_rules(
    spark_schema: str, table_schema: str, table: str, properties: Mapping[str, str]
) -> Iterator[RowRule]:
    """List the rules of a table that rows of a log may break.

    Args:
        spark_schema: the log's columns, as Spark's JSON.
        table_schema: the table's columns with their metadata, as Delta keeps them.
        table: the table's URL, for the advice.
        properties: the table's properties.
    """
    alter = f"ALTER TABLE delta.`{table}`"
    in_log = {name.lower() for name in columns(spark_schema)}
    for field in json.loads(table_schema)["fields"]:
        name, metadata = field["name"], field.get("metadata") or {}
        if name.lower() not in in_log:
            continue
        column = quoted(name)
        for path, broken in _required(field, ""):
            advice = f"{alter} ALTER COLUMN {path} DROP NOT NULL"
            yield RowRule(broken, f"column {path} is NOT NULL", advice)
        declared = str(metadata.get(DECLARED_TYPE, ""))
        if limit := _LIMITED.fullmatch(declared):
            yield RowRule(
                f"length({column}) > {limit[1]}",
                f"column {name!r} is {declared.upper()}",
                f"{alter} ALTER COLUMN {column} TYPE STRING",
            )
        if expression := metadata.get(GENERATED):
            yield RowRule(
                f"NOT ({column} <=> ({expression}))",
                f"column {name!r} is GENERATED ALWAYS AS ({expression})",
                "leave the column out of the log, and Delta computes it",
            )
    for key, expression in properties.items():
        if key.startswith(_CHECK):
            name = key.removeprefix(_CHECK)
            # For Delta a null breaks a rule.
            yield RowRule(
                f"NOT coalesce(({expression}), false)",
                f"the rule {name!r} is CHECK ({expression})",
                f"{alter} DROP CONSTRAINT {name}",
            )


def _required(
    field: Mapping[str, Any], parent: str, present: str = ""
) -> Iterator[tuple[str, str]]:
    """The columns and fields of structs that are NOT NULL, and when a row breaks that.

    Args:
        field: the column or field.
        parent: the path of its struct, "" for a column.
        present: a condition that its struct is not null, "" for a column.
    """
    path = f"{parent}.{quoted(field['name'])}" if parent else quoted(field["name"])
    if not field.get("nullable", True):
        yield path, f"{present}{path} IS NULL"
    if isinstance(field["type"], Mapping) and field["type"]["type"] == "struct":
        for inner in field["type"]["fields"]:
            yield from _required(inner, path, f"{present}{path} IS NOT NULL AND ")
