"""The notes of a process about each operation, and the history of all notes together.

A process notes the begin of an operation before it starts and the end after it returned, each as
one JSON line in one write. A killed process leaves operations without an end: their outcome is
unknown. All times are nanoseconds of CLOCK_MONOTONIC, which the processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

Operation = dict[str, Any]


class Recorder:
    """Notes the operations of one process in a file."""

    def __init__(self, path: Path, process: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = process
        self._numbers = count()

    def begin(self, op: str, **about: object) -> int:
        """Note the begin of an operation.

        Returns:
            The operation's number.
        """
        number = next(self._numbers)
        self._note(number, begin=time.monotonic_ns(), op=op, **about)
        return number

    def note(self, number: int, **about: object) -> None:
        """Note something about an operation that has not ended."""
        self._note(number, **about)

    def end(self, number: int, outcome: str, **about: object) -> None:
        """Note the end of an operation: its outcome is "ok", "failed" or "unknown"."""
        self._note(number, end=time.monotonic_ns(), outcome=outcome, **about)

    def _note(self, number: int, **about: object) -> None:
        line = json.dumps({"process": self._process, "number": number, **about})
        os.write(self._file, line.encode() + b"\n")


def merged(paths: Iterable[Path]) -> list[Operation]:
    """The operations of all processes, in the order in which they began."""
    operations: dict[tuple[str, int], Operation] = {}
    for path in paths:
        for note in _notes(path):
            key = note["process"], note["number"]
            operations.setdefault(key, {"outcome": "unknown", "end": None}).update(note)
    return sorted(operations.values(), key=lambda operation: operation["begin"])


def _notes(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().split(b"\n"):
        # A kill may tear the last line.
        if line.endswith(b"}"):
            yield json.loads(line)


def write_history(path: Path, about: dict[str, object], operations: list[Operation]) -> None:
    """Write a history: one line about the run, then one line for each operation."""
    lines = [{"op": "history", **about}, *operations]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
