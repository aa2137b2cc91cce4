"""The refused rows of a log that a range writes again, as rows of the table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.format import schema
from sparkwal.format.json_values import converted, parsed
from sparkwal.format.lifecycle_record import Promise
from sparkwal.lifecycle.range_rows import REASON
from sparkwal.reading.metadata import COLUMNS, COMMIT_TIME, PARTITION, POSITION, ROW, name_text
from sparkwal.reading.planning import folded_names

# The place of a refused row in its log, and the time of its commit: their names in the table of
# refused rows, and those of `range_rows.PLACED`.
PLACES = {
    "position": POSITION,
    "partition": PARTITION,
    "row": ROW,
    "commit_time": COMMIT_TIME,
}


@dataclass(frozen=True)
class WaitingRows:
    """The rows that the open range writes again, as `range_rows.RangeRows` has those of a log.

    Attributes:
        promise: the promise.
        spark_schema: the columns of the table that some of the rows have.
        common: the columns that all of them have, in lower case.
        rows: the rows in their order, with COLUMNS and PLACED.
        unread: those that cannot be converted to the columns of the table, without values, with
            PLACED and REASON.
    """

    promise: Promise
    spark_schema: str
    common: frozenset[str]
    rows: pa.Table
    unread: pa.Table

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        yield from self.rows.select(self._columns).to_batches()

    def placed(self) -> Iterator[pa.RecordBatch]:
        """The rows with PLACED."""
        yield from self.rows.select([*self._columns, *PLACES.values()]).to_batches()

    def in_order(self) -> Iterator[pa.RecordBatch]:
        """The rows with COLUMNS."""
        yield from self.rows.select([*self._columns, COLUMNS]).to_batches()

    @property
    def _columns(self) -> list[str]:
        return [*schema.columns(self.spark_schema)]


def waiting_rows(promise: Promise, waiting: pa.Table, table: str) -> WaitingRows:
    """Convert the JSON of refused rows to the values that a table stores.

    Args:
        promise: the promise.
        waiting: the refused rows in their order: PLACES and `values`.
        table: the columns of the table, with types of a log.
    """
    documents = [_document(text) for text in waiting["values"].to_pylist()]
    kinds = schema.columns(table)
    names = {name for document in documents for name in document or ()}
    own = [name for name in kinds if name.lower() in names] or [*kinds]
    fields = [field for field in json.loads(table)["fields"] if field["name"] in own]
    spark_schema = schema.normalize({"fields": fields})
    reasons = [_no_columns(document, kinds) for document in documents]
    columns: dict[str, Any] = {}
    for field in schema.to_arrow(spark_schema):
        values = [(document or {}).get(field.name.lower()) for document in documents]
        columns[field.name], misfits = converted(values, field.type)
        why = f"its {field.name} is no {schema.type_name(kinds[field.name])}"
        for number in misfits:
            reasons[number] = reasons[number] or why
    texts = [" ".join(map(name_text, sorted(document or ()))) for document in documents]
    columns[COLUMNS] = pa.array(texts, pa.string())
    columns |= {new: waiting[old] for old, new in PLACES.items()}
    columns[REASON] = pa.array(reasons, pa.string())
    rows = pa.table(columns)
    is_read = pc.is_null(rows[REASON])
    read = [frozenset(document) for document in documents if document is not None]
    return WaitingRows(
        promise,
        spark_schema,
        frozenset.intersection(*read) if read else folded_names(own),
        rows.filter(is_read).drop_columns([REASON]),
        rows.filter(pc.invert(is_read)).select([*PLACES.values(), REASON]),
    )


def _document(text: str | None) -> dict[str, Any] | None:
    """The values of a row, by the names of their columns in lower case; None if it is no JSON."""
    try:
        values = parsed(text or "")
    except ValueError:
        return None
    if not isinstance(values, dict):
        return None
    document: dict[str, Any] = {}
    for name, value in values.items():
        # The table may have spelled a column in two ways.
        if document.get(name.lower()) is None:
            document[name.lower()] = value
    return document


def _no_columns(document: Mapping[str, Any] | None, kinds: Iterable[str]) -> str | None:
    """Why the columns of a table cannot take all values of a row; None if they can."""
    if document is None:
        return "its values are no JSON object"
    in_table = folded_names(kinds)
    lacking = [name for name, value in document.items() if value is not None]
    lacking = [name for name in lacking if name not in in_table]
    return f"the table has no column {lacking[0]} of a type that a log has" if lacking else None
