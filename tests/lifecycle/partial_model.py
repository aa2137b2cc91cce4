"""A table with keys, to which rows with different columns are applied one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.delta_rs_table import rank

Row = dict[str, Any]


class Model:
    """A table and its tombstones.

    Args:
        key: the key column.
        by: the column whose greater value wins, or "".
    """

    def __init__(self, key: str, by: str) -> None:
        self.key = key
        self.by = by
        self.rows: dict[Any, Row] = {}
        self.tombstones: dict[Any, Any] = {}

    def apply(self, row: Row) -> None:
        """Apply a row with the columns that its record has. It deletes if `gone` is true."""
        key = row[self.key]
        before = self.rows.get(key)
        sequence = row[self.by] if self.by else None
        if self.by:
            if before is not None and rank(sequence) < rank(before[self.by]):
                return
            if not row["gone"] and rank(sequence) < rank(self.tombstones.get(key)):
                return
        if not row["gone"]:
            self.rows[key] = {**(before or {}), **row}
            return
        self.rows.pop(key, None)
        if sequence is not None:
            self.tombstones[key] = max(sequence, self.tombstones.get(key), key=rank)


def counted(rows: Iterable[Row]) -> Counter[str]:
    """Rows to compare. A zero equals the negative one, and null a column that is missing."""
    return Counter(
        repr(sorted((k, 0.0 if v == 0 else v) for k, v in row.items() if v is not None))
        for row in rows
    )
