"""The rows of a journal's entries."""

from __future__ import annotations

import pyarrow as pa

from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.rows import RowSchema
from sparkwal.errors import OptionError


def entry_rows(content: memoryview, schema: pa.Schema, rows: RowSchema) -> CheckedRows:
    """The rows of an entry, ready to append; newer columns are null. Raises OptionError,
    ArrowException."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(content), schema)
    if not schema.equals(rows.arrow):
        for field in schema:
            index = rows.arrow.get_field_index(field.name)
            if index < 0:
                raise OptionError(f"column {field.name!r} is not in the schema any more")
            if rows.arrow.field(index).type != field.type:
                raise OptionError(
                    f"column {field.name!r} is {field.type} here, and "
                    f"{rows.arrow.field(index).type} in the schema"
                )
        columns = [
            batch.column(field.name)
            if field.name in schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in rows.arrow
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=rows.arrow)
    return rows.whole(batch)
