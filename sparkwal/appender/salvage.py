"""Lists what damage of a journal's files has lost, and reads the intact entries of such files."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sparkwal.errors import JournalReadError
from sparkwal.journal.disk import DiskReader
from sparkwal.journal.quarantine import Quarantine
from sparkwal.journal.segment import Invalid, intact


@dataclass(frozen=True)
class Incident:
    """One damage of a journal's files, and the accepted appends that the journal lost by it.

    Attributes:
        lost: the sequences of these appends.
        unknown: those at the end of `lost` that may never have been appended.
        waiting: those of `lost` that were not appended again yet.
        held: those of `lost` whose rows are intact in `files`.
        files: the paths of the damaged files in quarantine.
        reason: the fault.
    """

    lost: range
    unknown: range
    waiting: range
    held: list[int]
    files: list[str]
    reason: str


def incidents_of(quarantine: Quarantine, last: int) -> list[Incident]:
    """List every incident of a journal, the oldest first.

    Args:
        quarantine: the journal's damaged files.
        last: the newest sequence of the journal.

    Returns:
        The incidents, the oldest first.

    Raises:
        JournalReadError: a file in quarantine is unreadable.
    """
    waiting = dict(quarantine.waiting(last))
    incidents = []
    for incident in quarantine.incidents:
        lost = range(incident.first, incident.last + 1)
        intact_sequences = {
            sequence for sequence, _ in quarantine.read_files(incident) if sequence in lost
        }
        incidents.append(
            Incident(
                lost=lost,
                unknown=range(incident.known + 1, incident.last + 1),
                waiting=waiting.get(incident, range(0)),
                held=sorted(intact_sequences),
                files=[f"{quarantine.folder.path}/{name}" for name in incident.files],
                reason=incident.reason,
            )
        )
    return incidents


def intact_rows(path: str | Path) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read each intact entry of a journal's file, also those after damage, and change nothing.

    Args:
        path: a file `….wal` of a journal, its quarantine or a copy.

    Yields:
        The sequence and the rows of each entry.

    Raises:
        JournalReadError: the file's header is damaged, or the file is unreadable.
    """
    try:
        with closing(DiskReader(Path(path))) as reader:
            header, entries = intact(reader)
            schema = pa.ipc.read_schema(pa.py_buffer(header.schema))
            for sequence, content in entries:
                yield sequence, pa.ipc.read_record_batch(pa.py_buffer(content), schema)
    except (Invalid, OSError, pa.ArrowException) as error:
        raise JournalReadError(f"{path} cannot be read: {error}") from error
