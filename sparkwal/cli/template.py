"""--template: a row as the text that its user lays out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from sparkwal.cli.exits import Refused
from sparkwal.cli.values import bare_texts, json_rows
from sparkwal.errors import OptionError
from sparkwal.reading.metadata import unknown_column

# Each letter, the column that it needs, and what it stands for.
LETTERS = {
    "p": ("_wal_position", "position of the commit"),
    "t": ("_wal_timestamp", "its time, ISO 8601 in UTC"),
    "k": ("_wal_partition", "partition that wrote the row"),
    "r": ("_wal_row", "number of the row in its commit and partition, from 0"),
    "q": ("_wal_query_id", "query or producer"),
    "b": ("_wal_batch_id", "its batch"),
    "s": ("_wal_sequencer", "sequencer"),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "e": "\x1b"}
_TOKEN = re.compile(r"%\{([^}]*)\}|%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|([^%\\]+)", re.DOTALL)

Part = tuple[str, str]


def parse_template(text: str) -> list[Part]:
    """("text" | "column" | "row", what it is) in order. Raises Refused."""
    parts: list[Part] = []
    for match in _TOKEN.finditer(text):
        name, letter, code, escape, plain = match.groups()
        if name is not None:
            parts.append(("column", name))
        elif letter is not None:
            parts.append(_letter(letter))
        elif code is not None:
            parts.append(("text", chr(int(code, 16))))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise Refused(
                    f"--template has \\{escape}; \\n \\t \\r \\0 \\e \\\\ and \\x41 are known"
                )
            parts.append(("text", _ESCAPES[escape]))
        else:
            parts.append(("text", plain))
    if not parts:
        raise Refused("--template is empty: it would print nothing")
    return parts


def _letter(letter: str) -> Part:
    if letter == "%":
        return "text", "%"
    if letter == "v":
        return "row", ""
    if letter in LETTERS:
        return "column", LETTERS[letter][0]
    known = " ".join(f"%{each}" for each in [*LETTERS, "v"])
    raise Refused(f"--template has %{letter}; {known} %{{column}} and %% are known")


def columns_of(parts: Sequence[Part], known: Sequence[str], shown: Sequence[str]) -> set[str]:
    """The columns that a template names. Raises OptionError for one that is not known."""
    names = {what for kind, what in parts if kind == "column"}
    for name in sorted(names):
        if name not in known:
            raise OptionError(f"--template: {unknown_column(name, shown, known)}")
    return names


def filled(parts: Sequence[Part], batch: pa.RecordBatch, row: Sequence[str]) -> list[str]:
    """Each row of the batch as text; a null is empty.

    Args:
        row: the columns that %v shows.
    """
    made: list[Sequence[str]] = []
    for kind, what in parts:
        if kind == "text":
            made.append([what] * batch.num_rows)
        elif kind == "row":
            made.append(json_rows(batch.select(list(row))))
        else:
            made.append([text or "" for text in bare_texts(batch.column(what))])
    return ["".join(texts) for texts in zip(*made, strict=True)]
