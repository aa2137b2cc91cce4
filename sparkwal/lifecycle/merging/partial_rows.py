"""Merges rows whose records have different columns, with Arrow and without Spark.

A row is partial if its record lacks a column of other records or of the table. Such a column
keeps the value of the row before it of the same key, in the log or in the table, unless that row
was deleted. So a range gives the same rows as one range for each of its rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import pyarrow as pa

from sparkwal.format.lifecycle_record import Target
from sparkwal.format.schema import columns
from sparkwal.lifecycle.merging.keyed import KeyIndex, is_later, sorted_by, winners
from sparkwal.reading.metadata import COLUMNS, name_text
from sparkwal.reading.planning import folded_names


@dataclass
class _Merged:
    """The rows of one key, merged so far.

    Attributes:
        rank: the rank of the sequence of the last row that counted.
        row: the number of that row.
        sources: for each partial column the number of the row with its value. A column without one
            keeps the table's value.
        was_deleted: a row before deleted the key, so nothing of the table is kept.
    """

    rank: int = -1
    row: int = -1
    sources: dict[str, int] = field(default_factory=dict)
    was_deleted: bool = False


def partial_columns(
    target: Target, common: frozenset[str], spark_schema: str, in_table: Iterable[str]
) -> frozenset[str]:
    """Find the columns that not all records of a range have.

    Args:
        target: how the rows go into the table.
        common: the columns that all records have, in lower case.
        spark_schema: all columns of the logs.
        in_table: the columns of the table that it does not compute. They count if a row may delete
            another: nothing of the deleted row is kept.

    Returns:
        Their names in lower case.
    """
    names = folded_names(columns(spark_schema))
    if target.delete_when:
        names |= folded_names(in_table)
    return names - common


def merge_partial(
    rows: pa.Table,
    deletes: pa.ChunkedArray,
    keys: Sequence[str],
    sequence_by: str,
    partial: Sequence[str],
) -> tuple[pa.Table, pa.ChunkedArray]:
    """Merge the rows of each key in their order, as one range for each row would.

    Args:
        rows: rows of the log in its order, with COLUMNS, without those that are older than the
            table's row of their key.
        deletes: which of them delete their key.
        keys: the key columns.
        sequence_by: the column whose greater value wins, or "".
        partial: the columns that not all records have.

    Returns:
        One row for each key, with the names of the columns that it has, and which of them delete
            their key.
    """
    one_of_each = winners(rows.to_batches(), rows.schema, keys, "")
    numbers = KeyIndex(one_of_each, keys).find(rows).to_pylist()
    ranks = _ranks(rows[sequence_by]) if sequence_by else repeat(0)
    texts = rows[COLUMNS].to_pylist()
    names_of = {
        text: [name for name in partial if name_text(name) in text] for text in dict.fromkeys(texts)
    }
    merged = [_Merged() for _ in range(one_of_each.num_rows)]
    steps = zip(numbers, ranks, deletes.to_pylist(), texts, strict=False)
    for row, (number, rank, is_delete, text) in enumerate(steps):
        key = merged[number]
        # Compare ranks, because the sequences may be NaN or null.
        if rank < key.rank:
            continue
        key.rank = rank
        key.row = row
        if is_delete:
            key.sources.clear()
            key.was_deleted = True
        else:
            key.sources.update(dict.fromkeys(names_of[text], row))
    result = rows.take(pa.array([key.row for key in merged], pa.int64()))
    for name in partial:
        sources = pa.array([key.sources.get(name) for key in merged], pa.int64())
        position = result.schema.get_field_index(name)
        result = result.set_column(position, result.field(position), rows[name].take(sources))
    own_names = [_columns_of(key, texts[key.row], rows.column_names) for key in merged]
    position = result.schema.get_field_index(COLUMNS)
    result = result.set_column(position, result.field(position), pa.array(own_names, pa.string()))
    return result, deletes.take(pa.array([key.row for key in merged], pa.int64()))


def _columns_of(key: _Merged, own: str, names: Sequence[str]) -> str:
    """The names of the columns whose values in the table are replaced, as `names_text`.

    Args:
        key: the rows of a key.
        own: the names of the columns of its last row's record.
        names: the names of all columns.
    """
    if key.was_deleted:
        return " ".join(map(name_text, names))
    return " ".join([own, *map(name_text, key.sources)])


def _ranks(sequence: pa.ChunkedArray) -> list[int]:
    """The rank of each value among all of them; equal values have one rank."""
    order = sorted_by(sequence)
    values = sequence.take(order)
    is_new = is_later(values.slice(1), values.slice(0, max(len(values) - 1, 0))).to_pylist()
    ranks = [0] * len(values)
    rank = 0
    for row, is_greater in zip(order.to_pylist(), [False, *is_new], strict=False):
        rank += is_greater
        ranks[row] = rank
    return ranks
