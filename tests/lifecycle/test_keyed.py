"""The last row for each key, against a dictionary."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkwal.lifecycle import keyed
from sparkwal.lifecycle.keyed import merged, winners

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [0, 1, -1, 2**62, None]),
    "text": (pa.string(), ["", "a", "ä", None]),
    "bytes": (pa.binary(), [b"", b"\x00", None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-1.00"), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "float": (pa.float64(), [0.0, -0.0, 1.5, None]),
}


@pytest.mark.parametrize("by", ["", "n"])
@pytest.mark.parametrize("seed", range(8))
def test_a_merge_is_a_dictionary(seed: int, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both, table and tail, one row for each key is left, whatever is compared at once."""
    monkeypatch.setattr(keyed, "PART_ROWS", 7)
    random_ = random.Random(seed)
    names = random_.sample(sorted(KEYS), random_.randrange(1, 4))
    fields = [(name, KEYS[name][0]) for name in names]
    schema = pa.schema([*fields, ("n", pa.int64()), ("gone", pa.bool_()), ("row", pa.int64())])
    numbers = iter(range(10_000))

    def row() -> dict[str, Any]:
        return {
            **{name: random_.choice(KEYS[name][1]) for name in names},
            "n": random_.choice([1, 2, 3, None]),
            "gone": random_.random() < 0.3,
            "row": next(numbers),
        }

    def key(of: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(of[name] for name in names)

    def rank(of: dict[str, Any]) -> int:
        return of["n"] or 0

    table = {key(one): one for one in [row() for _ in range(20)]}
    tail = [row() for _ in range(random_.choice([0, 5, 60]))]
    last: dict[Any, dict[str, Any]] = {}
    for one in tail:
        if not by or rank(one) >= rank(last.get(key(one), one)):
            last[key(one)] = one
    expected = dict(table)
    for one in last.values():
        there = table.get(key(one))
        if by and there is not None and rank(there) > rank(one):
            continue
        expected.pop(key(one), None)
        if not one["gone"]:
            expected[key(one)] = one

    def batches(rows: list[dict[str, Any]]) -> Any:
        for start in range(0, len(rows), 3):
            yield pa.RecordBatch.from_pylist(rows[start : start + 3], schema)

    won = winners(batches(tail), schema, names, by)
    assert won.num_rows == len(last)
    found = merged(batches([*table.values()]), won, won.column("gone"), names, by)
    rows = [one["row"] for batch in found for one in batch.to_pylist()]
    assert sorted(rows) == sorted(one["row"] for one in expected.values())


def test_nan_is_one_key() -> None:
    schema = pa.schema([("k", pa.float64()), ("row", pa.int64())])
    nan = float("nan")
    table = pa.RecordBatch.from_pylist([{"k": nan, "row": 1}], schema)
    tail = pa.RecordBatch.from_pylist([{"k": nan, "row": 2}, {"k": -nan, "row": 3}], schema)
    won = winners(iter([tail]), schema, ["k"], "")
    no = pa.chunked_array([[False] * won.num_rows])
    found = pa.Table.from_batches(merged(iter([table]), won, no, ["k"], ""))
    assert found.column("row").to_pylist() == [3]
