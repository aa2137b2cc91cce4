"""Reads what is intact in a journal's file, in quarantine or in a copy."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sparkwal.errors import JournalReadError
from sparkwal.journal.disk import DiskReader
from sparkwal.journal.quarantine import Quarantine
from sparkwal.journal.segment_format import Invalid, intact


@dataclass(frozen=True)
class Incident:
    """Accepted appends of a journal that one damage of its files took.

    Attributes:
        lost: their sequences.
        waiting: those not appended again; under the others the log gets what was appended since.
        held: those that `files` hold intact.
        files: paths of what is left of them, in quarantine.
        reason: what was wrong.
    """

    lost: range
    waiting: range
    held: list[int]
    files: list[str]
    reason: str


def incidents_of(quarantine: Quarantine, last: int) -> list[Incident]:
    """Every incident, the oldest first; `last`: the newest sequence. Raises JournalReadError."""
    waiting, path = dict(quarantine.waiting(last)), quarantine.folder.path
    found = []
    for each in quarantine.incidents:
        lost = range(each.first, each.last + 1)
        held = sorted({sequence for sequence, _ in quarantine.kept(each) if sequence in lost})
        paths = [f"{path}/{name}" for name in each.files]
        found.append(Incident(lost, waiting.get(each, range(0)), held, paths, each.reason))
    return found


def intact_rows(path: str | Path) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(sequence, rows) of each intact entry, also after damage. Changes nothing.

    Raises JournalReadError if the file's header is damaged or the file cannot be read.
    """
    try:
        with closing(DiskReader(Path(path))) as reader:
            header, entries = intact(reader)
            schema = pa.ipc.read_schema(pa.py_buffer(header.schema))
            for sequence, content in entries:
                yield sequence, pa.ipc.read_record_batch(pa.py_buffer(content), schema)
    except (Invalid, OSError, pa.ArrowException) as error:
        raise JournalReadError(f"{path} cannot be read: {error}") from error
