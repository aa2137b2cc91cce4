"""Records of a log as lines: of a table for people, of JSON for programs."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

from sparkwal.cli.plain import plain, takes_colours
from sparkwal.cli.telling import as_json_line, moment, size
from sparkwal.format.header import CommitHeader, SlotHeader
from sparkwal.reading.history import Collected, Found, Unreadable
from sparkwal.reading.log_range import LogRange


class Told:
    """The lines of one log.

    Attributes:
        coloured: whether lines hold the codes of colours.
        unreadable: how many positions could not be read.
    """

    def __init__(self, log: LogRange, as_json: bool) -> None:
        self._log, self._as_json = log, as_json
        terminal = sys.stdout.isatty()
        self.coloured = terminal and not as_json and takes_colours()
        self.unreadable = 0
        self._place = max(len("position"), len(str(log.gap)))
        # What comes before the last column, and how wide a line may be.
        self._room = shutil.get_terminal_size().columns - self._place - 57 if terminal else 400

    def heading(self) -> list[str]:
        """Of the columns."""
        if self._as_json:
            return []
        names = self._columns("position", "time (UTC)", "kind", "rows", "bytes", "term")
        return [self._style(f"{names}  query/batch", dim=True)]

    def line(self, found: Found) -> str:
        """One record, or what is there instead."""
        if isinstance(found, Unreadable):
            self.unreadable += 1
        if self._as_json:
            return as_json_line(document(found))
        if isinstance(found, Collected):
            text = f"{found.start}…{found.end - 1} were collected while this was read"
            return self._style(text, fg="cyan")
        if isinstance(found, Unreadable):
            text = self._columns(str(found.position), "", "damaged", "", "", "").rstrip()
            return self._style(f"{text}  {plain(found.why)}", fg="red")
        return self._record(found.header)

    def ending(self) -> list[str]:
        """What came before the oldest record, where that is not the first of all."""
        floor, state = self._log.floor.current(), self._log.floor.state
        if not floor or state is None:
            return []
        where = f": their rows are in {plain(state.target.table)}" if state.target else ""
        return [self._style(f"positions below {floor} were collected{where}", fg="cyan")]

    def _record(self, header: SlotHeader) -> str:
        place, time = str(header.position), moment(header.timestamp_ms)
        if isinstance(header, CommitHeader):
            counts = (f"{header.rows:,}", size(header.bytes), str(header.term))
            last = self._clipped(plain(header.query_id), f"/{header.batch_id}")
            return f"{self._columns(place, time, 'commit', *counts)}  {last}"
        columns = self._columns(place, time, "leader", "", "", str(header.term))
        last = self._clipped(f"{plain(header.host)}: {plain(header.reason)}", "")
        return self._style(f"{columns}  {last}", fg="yellow")

    def _columns(self, place: str, time: str, kind: str, rows: str, bytes_: str, term: str) -> str:
        return f"{place:>{self._place}} {time:<24} {kind:<6} {rows:>9} {bytes_:>8} {term:>4}"

    def _clipped(self, text: str, ending: str) -> str:
        room = max(self._room - len(ending), 6)
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1).rstrip() + "…"
        return text + ending

    def _style(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self.coloured else text


def document(found: Found) -> dict[str, Any]:
    """A record for programs."""
    if isinstance(found, Collected):
        return {"kind": "collected", "start": found.start, "end": found.end - 1}
    if isinstance(found, Unreadable):
        return {"position": found.position, "kind": "damaged", "error": found.why}
    header = found.header
    common = {
        "position": header.position, "kind": header.kind, "timestamp": moment(header.timestamp_ms),
        "term": header.term, "leader_id": header.leader_id,
    }  # fmt: skip
    if isinstance(header, CommitHeader):
        return {
            **common, "rows": header.rows, "bytes": header.bytes,
            "objects": len(header.batches) + 1,
            "query_id": header.query_id, "batch_id": header.batch_id,
        }  # fmt: skip
    return {**common, "host": header.host, "reason": header.reason}
