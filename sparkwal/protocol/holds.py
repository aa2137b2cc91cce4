"""The positions that a rebuilt checkpoint would read again, which no consumer may release (§12)."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwal.errors import OptionError
from sparkwal.format import versions
from sparkwal.format.limits import json_in
from sparkwal.protocol.hint import short_hash

# The position at which a rebuild begins to read, and the query's position without a row since.
Span = tuple[int, int]
# In a stream's offsets, this prefix and a sequencer's name are the key of that log's id.
LOG_ID = "log_id:"


def lowest(spans: Iterable[Span], position: int) -> int:
    """The position that a reader at `position` may report.

    A span holds back no position after its end: since then the sink has written a record, or it
    would have made the span longer.
    """
    begins = (begin for begin, end in spans if begin < position <= end)
    # SAFETY(hold-for-rebuild) §12: a consumer reports nothing above what a rebuild here would read
    return min(begins, default=position)


@dataclass(frozen=True)
class Holds:
    """The spans of this machine's queries, in one file for each checkpoint and log.

    Without a home folder `state` is None.
    """

    state: Path | None

    def set(self, checkpoint: str, spans: Mapping[str, Sequence[Span]]) -> None:
        """Replace the spans of a query in each log, by `log_id`.

        Raises:
            OSError: the disk refused a write.
        """
        if self.state is None:
            raise FileNotFoundError("this user has no home folder")
        for log_id, log_spans in spans.items():
            file = self._files(log_id, short_hash(checkpoint))
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps({"checkpoint": checkpoint, "spans": log_spans}))
            os.replace(draft, file)

    def lowest(self, log_id: str, position: int) -> int:
        """`lowest` over the spans of all queries.

        Raises:
            OptionError: a file is damaged.
        """
        return self.lowest_of({log_id: position})[log_id]

    def lowest_of(self, positions: Mapping[str, int]) -> dict[str, int]:
        """As `lowest`, for positions by `log_id`.

        Raises:
            OptionError: a file is damaged.
        """
        log_ids = {short_hash(log_id): log_id for log_id in positions}
        spans: dict[str, list[Span]] = {log_id: [] for log_id in positions}
        files = [] if self.state is None else (self.state / "holds").glob("*.json")
        for file in files:
            log_id = log_ids.get(file.name.partition("-")[0])
            if log_id is None:
                continue
            try:
                document = json_in(file.read_bytes())
                versions.check_optional(versions.NOTE, document, str(file))
                file_spans = document["spans"]
                spans[log_id] += [(int(begin), int(end)) for begin, end in file_spans]
            except (OSError, ValueError, TypeError, KeyError):
                raise OptionError(
                    f"{file} is damaged: it holds the positions of this log that a query on this "
                    "machine would read again if its checkpoint was lost. Delete it when that "
                    "query runs again"
                ) from None
        return {log_id: lowest(spans[log_id], position) for log_id, position in positions.items()}

    def _files(self, log_id: str, checkpoint: str) -> Path:
        return (self.state or Path()) / "holds" / f"{short_hash(log_id)}-{checkpoint}.json"
