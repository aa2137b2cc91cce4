"""What can still be read of a journal's file, one in quarantine or one of a copy.

for sequence, rows in intact_rows("/var/lib/app/wal/quarantine/00000000000000000003.wal"):
    ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from sparkwal.errors import JournalReadError
from sparkwal.journal.disk import DiskReader
from sparkwal.journal.segment import Invalid, Scan, read_content, read_header


def intact_rows(path: str | Path) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(sequence, rows) of each entry that is intact, those after damage too. Changes nothing.

    Raises JournalReadError where the file's header is damaged, or the disk does not give it.
    """
    try:
        with closing(DiskReader(Path(path))) as reader:
            header, begin = read_header(reader)
            schema = pa.ipc.read_schema(pa.py_buffer(header.schema))
            scan = Scan(reader, begin, header.salt)
            for entries in (scan, scan.rest()):
                for found in entries:
                    content = pa.py_buffer(read_content(reader, found, header.salt))
                    yield found.sequence, pa.ipc.read_record_batch(content, schema)
    except (Invalid, OSError, pa.ArrowException) as error:
        raise JournalReadError(f"{path} cannot be read: {error}") from error
