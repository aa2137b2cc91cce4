"""The tombstones of a table: the keys that were deleted, with the sequences of their deletes."""

import json
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.format.lifecycle_record import Target
from sparkwal.format.schema import columns, conform
from sparkwal.lifecycle.merging.keyed import older_rows, resolve
from sparkwal.lifecycle.table import DELETED_AT, SEQUENCE


def tombstone_columns(target: Target, in_table: str) -> str:
    """The columns of tombstones: those of the keys, the sequence of the delete, and its time.

    Args:
        target: the table.
        in_table: its columns.
    """
    types = columns(in_table)
    names = resolve([*target.keys, target.sequence_by], [*types])
    spelled = [*names[:-1], SEQUENCE, DELETED_AT]
    kinds = [*(types[name] for name in names), "timestamp"]
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in zip(spelled, kinds, strict=True)
    ]
    return json.dumps({"type": "struct", "fields": fields})


def with_sequences(
    tombstones: Iterable[pa.RecordBatch], target: pa.Schema, by: str
) -> Iterator[pa.RecordBatch]:
    """Convert tombstones to columns of the log: the keys, and the sequence as the column `by`."""
    renamed = {SEQUENCE: by, **{name.lower(): name for name in target.names}}
    for batch in tombstones:
        names = (renamed.get(name.lower(), name) for name in batch.schema.names)
        # The sequence may be a key too.
        arrays = dict(zip(names, batch.columns, strict=True))
        rows = pa.RecordBatch.from_arrays([*arrays.values()], names=[*arrays])
        yield conform(rows, target)


def counting(
    rows: pa.Table,
    deletes: pa.ChunkedArray,
    tombstones: Iterable[pa.RecordBatch],
    keys: Sequence[str],
    by: str,
    *,
    only_newer: bool = False,
) -> pa.ChunkedArray:
    """Which rows count: those that delete their key, and those that no tombstone outlives.

    Args:
        rows: rows of the log.
        deletes: which of them delete their key: the table may hold an older row of it.
        tombstones: as `with_sequences` returns them.
        keys: the key columns.
        by: the column of the sequence.
        only_newer: a tombstone outlives a row with the same sequence.
    """
    # §10: a row that is older than the tombstone of its key is dropped
    is_late = older_rows(tombstones, rows, keys, by, only_newer=only_newer)
    return pc.or_(deletes, pc.invert(is_late))
