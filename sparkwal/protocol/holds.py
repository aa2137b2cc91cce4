"""Positions that a rebuilt checkpoint would read again: none may be released (PROTOCOL §12)."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwal.errors import OptionError
from sparkwal.protocol.hint import short_hash

# Where a rebuild begins to read, and how far the query has come without a row.
Span = tuple[int, int]
# In a stream's offsets, this and a sequencer's name are the key of that log's id.
LOG_ID = "log_id:"


def lowest(spans: Iterable[Span], position: int) -> int:
    """The position that a reader at `position` may report. A span holds back no position beyond its
    end: since then the sink wrote a record, or it would have made the span longer."""
    held = (need for need, upto in spans if need < position <= upto)
    # SAFETY(hold-for-rebuild) §12: a consumer reports nothing above what a rebuild here would read
    return min(held, default=position)


@dataclass(frozen=True)
class Holds:
    """The spans of this machine's queries, a file for each checkpoint and log; None: no home."""

    state: Path | None

    def set(self, checkpoint: str, spans: Mapping[str, Sequence[Span]]) -> None:
        """Replace what a query holds of each log, by `log_id`. Raises OSError."""
        if self.state is None:
            raise FileNotFoundError("this user has no home folder")
        for log_id, held in spans.items():
            file = self._files(log_id, short_hash(checkpoint))
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps({"checkpoint": checkpoint, "spans": held}))
            os.replace(draft, file)

    def lowest(self, log_id: str, position: int) -> int:
        """`lowest` over the spans of all queries. Raises OptionError for a damaged file."""
        if self.state is None:
            return position
        pattern = self._files(log_id, "*")
        spans: list[Span] = []
        for file in pattern.parent.glob(pattern.name):
            try:
                held = json.loads(file.read_bytes())["spans"]
                spans += [(int(need), int(upto)) for need, upto in held]
            except (OSError, ValueError, TypeError, KeyError):
                raise OptionError(
                    f"{file} is damaged: it says what a query on this machine would read again "
                    "of this log if its checkpoint was lost. Delete it when that query runs again"
                ) from None
        return lowest(spans, position)

    def _files(self, log_id: str, checkpoint: str) -> Path:
        return (self.state or Path()) / "holds" / f"{short_hash(log_id)}-{checkpoint}.json"
