"""The cases of rows whose records have different columns: docs/lifecycle.md lists them."""

from __future__ import annotations

from tests.lifecycle.partial_model import Row

V, W = {"v": 1}, {"w": [1]}
GONE = {"gone": True}
TABLE = {**V, **W, "own": "own"}
# The table's row of a key, the rows of the log with the columns that their records have, and the
# table's row after them.
CASES: dict[str, tuple[Row | None, list[Row], Row | None]] = {
    "no record has a column": (
        TABLE,
        [{"v": 2, "w": [2]}],
        {"v": 2, "w": [2], "own": "own"},
    ),
    "the record lacks a column": (
        TABLE,
        [{"v": 2}],
        {**TABLE, "v": 2},
    ),
    "null is a value": (TABLE, [{"v": None, "w": None}], {"own": "own"}),
    "also in an earlier row": (TABLE, [{"w": None}, {"v": 2}], {"v": 2, "own": "own"}),
    "each column's newest value": (
        TABLE,
        [{"w": [2]}, {"v": 3}, {"w": [4]}],
        {**TABLE, "v": 3, "w": [4]},
    ),
    "a new key, two rows": (None, [W, V], {**V, **W}),
    "a new key, one row": (None, [V], V),
    "a deleted row of the table": (TABLE, [GONE, {"v": 2}], {"v": 2}),
    "a deleted row of the log": (None, [{**V, **W}, GONE, {"v": 2}], {"v": 2}),
    "a delete with values": (TABLE, [{**GONE, "w": [2]}, {"v": 2}], {"v": 2}),
    "the last row deletes": (TABLE, [{"v": 2}, GONE], None),
}
# The same with a sequence `n`.
LATE: dict[str, tuple[Row | None, list[Row], Row | None]] = {
    "older than the table's row": (
        {**TABLE, "n": 5.0},
        [{"n": 4.0, "w": [2]}, {"n": 6.0, "v": 2}],
        {**TABLE, "n": 6.0, "v": 2},
    ),
    "older than a row before": (
        None,
        [{"n": 3.0, **W}, {"n": 1.0, "w": [2]}, {"n": 4.0, **V}],
        {"n": 4.0, **V, **W},
    ),
    "the same sequence": (
        {**TABLE, "n": 5.0},
        [{"n": 5.0, "v": 2}],
        {**TABLE, "n": 5.0, "v": 2},
    ),
    "a late delete": (
        {**TABLE, "n": 5.0},
        [{"n": 4.0, **GONE}, {"n": 6.0, "v": 2}],
        {**TABLE, "n": 6.0, "v": 2},
    ),
}
