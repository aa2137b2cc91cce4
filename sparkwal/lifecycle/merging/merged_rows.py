"""Merges rows of the log into rows of a table, with Arrow and without Spark.

A row is partial if its record lacks a column of other records or of the table. Such a column
keeps the value of the row before it of the same key, in the log or in the table, unless that row
was deleted. So a range gives the same rows as one range for each of its rows. The cases are a table
in docs/lifecycle.md.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.format.lifecycle_record import Target
from sparkwal.format.schema import columns, gathered
from sparkwal.lifecycle.merging.keyed import (
    PART_BYTES,
    PART_ROWS,
    KeyIndex,
    ranks,
    winners,
)
from sparkwal.reading.metadata import COLUMNS, name_text
from sparkwal.reading.planning import folded_names

# Temporary columns, which neither the log nor the table has.
_KEY = "_wal_key"
_DELETES = "_wal_deletes"


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


def merged(
    batches: Iterable[pa.RecordBatch],
    rows: pa.Table,
    deletes: pa.ChunkedArray,
    keys: Sequence[str],
    sequence_by: str,
    *,
    only_newer: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of a table after a MERGE of rows of the log, as one range for each row leaves them.

    Args:
        batches: the table's rows, with the columns of `rows` but COLUMNS.
        rows: rows of the log in its order, with COLUMNS.
        deletes: which of them delete their key.
        keys: the key columns.
        sequence_by: the column whose greater value wins, or "".
        only_newer: a row of the log replaces no row of the table with the same sequence.

    Raises:
        OptionError: only Spark can compare the values of a column.
    """
    if not rows.num_rows:
        yield from batches
        return
    # With the sequence, because one that only Spark compares is refused.
    one_of_each = winners(rows.to_batches(), rows.schema, keys, sequence_by)
    index = KeyIndex(one_of_each, keys)
    log = rows.append_column(_DELETES, deletes).append_column(_KEY, index.find(rows))
    in_table = pa.array([], pa.int32())
    for part in gathered(batches, PART_BYTES, PART_ROWS):
        key_numbers = index.find(part)
        yield from part.filter(key_numbers.is_null()).to_batches()
        before = part.append_column(_KEY, key_numbers).filter(key_numbers.is_valid())
        same_keys = pc.unique(before[_KEY])
        newer = log.filter(pc.is_in(log[_KEY], value_set=same_keys))
        replaced = _replaced(before, newer, sequence_by, only_newer=only_newer)
        yield from replaced.to_batches()
        in_table = pa.concat_arrays([in_table, same_keys])
    others = log.filter(pc.invert(pc.is_in(log[_KEY], value_set=in_table)))
    nothing = others.slice(0, 0).drop_columns([COLUMNS, _DELETES])
    yield from _replaced(nothing, others, sequence_by, only_newer=only_newer).to_batches()


def _replaced(before: pa.Table, log: pa.Table, sequence_by: str, *, only_newer: bool) -> pa.Table:
    """Apply rows of the log, one after another, to each row of the table with their key.

    Args:
        before: rows of the table with the numbers of their keys. The table may have a key twice.
        log: rows of the log of these keys, or of keys that the table does not have.
        sequence_by: the column whose greater value wins, or "".
        only_newer: as for `merged`.
    """

    def both(name: str) -> pa.ChunkedArray:
        chunks = [*before[name].chunks, *log[name].chunks]
        return pa.chunked_array(chunks, log.schema.field(name).type)

    steps = _steps(before[_KEY], log[_KEY])
    if sequence_by:
        # Compare ranks, because the sequences may be NaN or null.
        in_order = pc.multiply(ranks(both(sequence_by)), 2)
        if only_newer:
            # A row of the table comes after one of the log with the same sequence.
            is_before = pa.chunked_array(
                [pa.repeat(1, before.num_rows), pa.repeat(0, log.num_rows)]
            )
            in_order = pc.add(in_order, is_before)
        in_group = in_order.take(steps["row"])
        first = pc.multiply(steps["group"], 2 * (before.num_rows + log.num_rows + 1))
        rank = pc.add(first, in_group)
        steps = steps.filter(pc.equal(rank, pc.cumulative_max(rank)))
    no = pa.repeat(False, before.num_rows)
    is_delete = pa.chunked_array([no, *log[_DELETES].chunks])
    deleted_at = _last(steps.filter(is_delete.take(steps["row"])), steps["group"])
    steps = steps.filter(pc.greater(steps["row"], pc.fill_null(deleted_at, -1)))
    groups = pc.unique(steps["group"])
    last = _last(steps, groups)
    values = {}
    for name in before.drop_columns([_KEY]).column_names:
        in_record = pc.match_substring(log[COLUMNS], name_text(name))
        sources = last
        if not pc.all(in_record, min_count=0).as_py():
            has_it = pa.chunked_array([pc.invert(no), *in_record.chunks])
            sources = _last(steps.filter(has_it.take(steps["row"])), groups)
        values[name] = both(name).take(sources)
    return pa.table(values, before.drop_columns([_KEY]).schema)


def _steps(in_table: pa.ChunkedArray, in_log: pa.ChunkedArray) -> pa.Table:
    """What happens to each row of a table, in groups: the row, then the log's rows of its key.

    The rows of a key that the table does not have are a group too.

    Args:
        in_table: the numbers of the keys of the table's rows.
        in_log: the same of the log's rows, in their order.

    Returns:
        In the order of the groups and their rows: the number of the group, and of the row, which is
            counted over the table's rows and then the log's.
    """
    count = len(in_table)
    numbers = pa.array(range(count + len(in_log)), pa.int64())
    own = pa.table({"group": numbers[:count], "row": numbers[:count]})
    of_log = pa.table({"key": in_log, "row": numbers[count:]})
    of_table = pa.table({"key": in_table, "group": numbers[:count]})
    pairs = of_log.join(of_table, "key", join_type="left outer")
    group = pc.coalesce(pairs["group"], pc.add(pairs["key"].cast(pa.int64()), count))
    steps = pa.concat_tables([own, pa.table({"group": group, "row": pairs["row"]})])
    return steps.sort_by([("group", "ascending"), ("row", "ascending")])


def _last(steps: pa.Table, groups: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """The last row of these steps in each group; null without one."""
    last = steps.group_by("group").aggregate([("row", "max")])
    return last["row_max"].take(pc.index_in(groups, value_set=last["group"].combine_chunks()))
