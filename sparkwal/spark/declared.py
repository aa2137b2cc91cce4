"""The columns that a caller declares for a read, with .schema(…) or in CREATE TEMPORARY VIEW.

Spark uses such a declaration as it is. If a column that is declared NOT NULL holds a null, `IS
NULL` is false for it, and other expressions crash.
"""

import re
from typing import Any

from pyspark.sql.types import StructType

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.spark.interfaces import to_struct

# The flag of a nested type that tells whether it holds nulls.
_NULLS = {"array": "containsNull", "map": "valueContainsNull"}
_CHARS = re.compile(r"(var)?char\(\d+\)")


def nullable(declared: StructType) -> StructType:
    """The same columns, all nullable and without metadata.

    Raises:
        OptionError: a log cannot hold a column.
    """
    return to_struct(schema.normalize(declared.jsonValue()))


def no_not_null(column: str) -> OptionError:
    """The error for a column, or a part of it, that is declared without nulls."""
    return OptionError(
        f"{column} is declared NOT NULL, and each column of a log may hold null: declare it "
        "nullable"
    )


def check_declared(declared: StructType) -> None:
    """Check that the columns of a read promise nothing that a log does not keep.

    Raises:
        OptionError: a column is declared NOT NULL, or CHAR or VARCHAR.
    """
    _check(declared.jsonValue(), "")


def _check(kind: Any, column: str) -> None:
    if isinstance(kind, str):
        if _CHARS.fullmatch(kind):
            raise OptionError(
                f"column {column!r} is declared {kind}, and Spark cannot read that from a Python "
                "data source: declare it string"
            )
        return
    if kind["type"] == "struct":
        for field in kind["fields"]:
            name = f"{column}.{field['name']}".removeprefix(".")
            if not field["nullable"]:
                raise no_not_null(f"column {name!r}")
            _check(field["type"], name)
    elif kind["type"] in _NULLS:
        if not kind[_NULLS[kind["type"]]]:
            raise no_not_null(f"what column {column!r} holds")
        for _, inner in schema.inside(kind):
            _check(inner, column)
