"""Which rows an append takes, how they are measured, and how much a bad value rejects."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal import Appender, Log
from sparkwal.appender.rows import RowSchema
from sparkwal.errors import OptionError

ARROW = pa.schema([("id", pa.int64()), ("name", pa.large_string()), ("at", pa.timestamp("s"))])
ROW = {"id": 1, "name": "Ada", "at": datetime(2026, 1, 1)}


def nested(levels: int) -> pa.DataType:
    kind: pa.DataType = pa.int64()
    for number in range(levels - 1):
        kind = pa.struct([("a", kind)]) if number % 2 else pa.list_(kind)
    return kind


@pytest.fixture
def rows() -> RowSchema:
    return RowSchema(ARROW)


def converted(rows: RowSchema, *appends: Any) -> list[dict[str, Any]]:
    batches, rejected = rows.convert([rows.accept(append)[0] for append in appends])
    assert not rejected
    assert all(batch.schema.equals(rows.arrow, check_metadata=True) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_dicts_tables_batches_and_frames_give_the_same_rows(rows: RowSchema) -> None:
    table = pa.Table.from_pylist([ROW, ROW], schema=ARROW)
    frame = pd.DataFrame([ROW, ROW])
    for given_rows in ([ROW, ROW], (ROW, ROW), table, table.to_batches()[0], frame):
        assert converted(rows, given_rows) == [ROW, ROW]


def test_order_is_kept_over_kinds(rows: RowSchema) -> None:
    def batch(number: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{**ROW, "id": number}], schema=ARROW)

    mixed = [[{"id": 0}], batch(1), batch(2), [{"id": 3}, {"id": 4}], pa.table(batch(5)), []]
    assert [row["id"] for row in converted(rows, *mixed)] == [0, 1, 2, 3, 4, 5]


def test_many_small_appends_become_one_record_batch(rows: RowSchema) -> None:
    batch = pa.RecordBatch.from_pylist([ROW], schema=ARROW)
    batches, _ = rows.convert([batch, [ROW], batch.slice(0, 1)] * 100)
    assert [b.num_rows for b in batches] == [300]


def test_columns_of_arrow_rows_may_come_in_any_order_and_any_equal_type(rows: RowSchema) -> None:
    given_rows = pa.table(
        {"name": pa.array(["Ada"]).dictionary_encode(), "at": pa.nulls(1), "id": pa.array([1])}
    )
    assert converted(rows, given_rows) == [{"id": 1, "name": "Ada", "at": None}]


def test_columns_that_dicts_leave_out_are_null(rows: RowSchema) -> None:
    assert converted(rows, [{}]) == [{"id": None, "name": None, "at": None}]


def test_a_dict_may_be_used_again_at_once(rows: RowSchema) -> None:
    row = dict(ROW)
    payload = rows.accept([row])[0]
    row["id"] = 2
    batches, _ = rows.convert([payload])
    assert batches[0].column("id").to_pylist() == [1]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([{"idd": 1}], "column 'idd' of row 0 is not in the schema; it has id, name, at"),
        ([[1, "Ada"]], "row 0 is a list; a dict for each row"),
        ({"id": 1}, "rows are a dict"),
        ("id", "rows are a str"),
        (None, "rows are a NoneType"),
        (pa.table({"id": [1]}), "column 'name' of the schema is missing"),
        (pa.table({"id": [1], "name": ["a"], "at": pa.nulls(1), "x": [1]}), "'x' of these rows"),
        (
            pa.table({"id": ["1"], "name": ["a"], "at": pa.nulls(1)}),
            "'id' is bigint in the schema and string in these rows; cast it",
        ),
        (pa.table({"id": pa.array([1], pa.uint64())}), "'id' has the Arrow type uint64"),
        (pd.DataFrame({"id": [1]}), "column 'name' of the schema is missing"),
        (pd.DataFrame({"id": ["x"], "name": ["a"], "at": [None]}), "value of type str"),
        (pd.DataFrame({"id": [1.5], "name": ["a"], "at": [None]}), "a value that bigint cannot"),
    ],
)
def test_rows_that_cannot_fit_are_refused_at_once(rows: RowSchema, wrong: Any, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        rows.accept(wrong)
    assert says in str(caught.value)


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("mine")

    __repr__ = __index__ = __str__


@pytest.mark.parametrize(
    ("value", "kind"),
    [("x", "str"), (2**70, "int"), (1.5, "float"), ([1], "list"), (Hostile(), "Hostile")],
)
def test_a_bad_value_fails_its_own_append_only(rows: RowSchema, value: Any, kind: str) -> None:
    appends = [[{"id": 0}], [{"id": 1}, {"id": value}], [{"id": 2}]]
    batches, rejected = rows.convert([rows.accept(append)[0] for append in appends])
    assert [v for batch in batches for v in batch.column("id").to_pylist()] == [0, 2]
    assert list(rejected) == [1]
    message = str(rejected[1])
    assert "row 1: column 'id' is bigint" in message and f"type {kind}" in message
    # A log line must not show what was in the rows.
    assert not isinstance(value, str) or repr(value) not in message


SEVEN_AND_NULL = pa.DictionaryArray.from_arrays([0, 1], pa.array([7, None]))
REQUIRED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.mark.parametrize(
    "wrong",
    [
        pa.record_batch({"id": [1, None], "name": ["a", "b"]}),
        pa.table({"id": pa.chunked_array([[1], [None]], pa.int64()), "name": pa.nulls(2)}),
        pa.table({"id": pa.nulls(2), "name": pa.nulls(2)}),
        pa.table({"id": SEVEN_AND_NULL, "name": pa.nulls(2)}),
        pd.DataFrame({"id": [1.0, None], "name": ["a", "b"]}),
        pd.DataFrame({"id": pd.array([1, None], dtype="Int64"), "name": ["a", "b"]}),
    ],
)
def test_rows_without_a_value_that_the_schema_requires_are_refused_at_once(wrong: Any) -> None:
    rows = RowSchema(REQUIRED)
    with pytest.raises(OptionError, match="column 'id' is not nullable .* null") as caught:
        rows.accept(wrong)
    assert "row 1" in str(caught.value) or wrong["id"].null_count == 2
    assert rows.accept(pa.table({"id": [1], "name": pa.nulls(1)}))[0].num_rows == 1


@pytest.mark.parametrize("row", [{"id": None, "name": "a"}, {"name": "a"}])
def test_a_dict_without_a_value_that_the_schema_requires_fails_its_own_append_only(
    row: dict[str, Any],
) -> None:
    rows = RowSchema(REQUIRED)
    appends = [[{"id": 0}], [{"id": 1}, row], [{"id": 2}]]
    batches, rejected = rows.convert([rows.accept(append)[0] for append in appends])
    assert [v for batch in batches for v in batch.column("id").to_pylist()] == [0, 2]
    assert list(rejected) == [1]
    assert "row 1: column 'id' is not nullable" in str(rejected[1])


def test_a_null_in_a_nullable_column_beside_a_required_one_is_kept() -> None:
    assert converted(RowSchema(REQUIRED), [{"id": 1}]) == [{"id": 1, "name": None}]


def test_a_bad_value_in_a_record_batch_names_its_column(rows: RowSchema) -> None:
    good = pa.RecordBatch.from_pylist([ROW], schema=ARROW)
    far = pa.array([2**60], pa.timestamp("s"))
    bad = pa.record_batch([pa.array([1]), pa.array(["a"]), far], names=["id", "name", "at"])
    batches, rejected = rows.convert([good, bad, good])
    assert sum(batch.num_rows for batch in batches) == 2
    assert list(rejected) == [1] and "column 'at' of type timestamp[s]" in str(rejected[1])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), Decimal("1.5")),
        (pa.int64(), True),
        (pa.int64(), nan),
        (pa.float64(), True),
        (pa.float64(), "1"),
        (pa.string(), b"x"),
        (pa.string(), 1),
        (pa.binary(), "x"),
        (pa.date32(), datetime(2026, 1, 1, 5)),
        (pa.date32(), 3),
        (pa.timestamp("us"), 3),
        (pa.timestamp("us"), pd.Timestamp(1)),
        (pa.duration("us"), pd.Timedelta(1)),
        (pa.time64("ns"), 3),
        (pa.decimal128(3, 1), 1.5),
        (pa.decimal128(3, 1), Decimal("1.55")),
        (pa.list_(pa.int64()), b"ab"),
        (pa.list_(pa.int64()), [1.5]),
        (pa.list_(pa.int64()), {1}),
        (pa.struct([("a", pa.int64())]), {"b": 1}),
        (pa.struct([("a", pa.int64())]), {"a": 1.5}),
        (pa.map_(pa.string(), pa.int64()), {"a": 1.5}),
        (pa.map_(pa.string(), pa.int64()), {1: 1}),
    ],
)
def test_a_value_is_never_changed_to_fit(kind: pa.DataType, value: Any) -> None:
    rows = RowSchema(pa.schema([("c", kind)]))
    batches, rejected = rows.convert([[{"c": None}], [{"c": value}]])
    assert [b.num_rows for b in batches] == [1] and list(rejected) == [1]


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (pa.int64(), 2.0, 2),
        (pa.int64(), np.int32(3), 3),
        (pa.float64(), 2, 2.0),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.bool_(), np.True_, True),
        (pa.timestamp("us"), pd.Timestamp("2026-01-01"), datetime(2026, 1, 1)),
        (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
        (pa.list_(pa.int64()), (1, None), [1, None]),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1}, {"a": 1, "b": None}),
    ],
)
def test_the_same_value_in_another_class_is_taken(kind: pa.DataType, value: Any, kept: Any) -> None:
    rows = RowSchema(pa.schema([("c", kind)]))
    assert converted(rows, [{"c": value}]) == [{"c": kept}]


def test_nulls_of_pandas_are_nulls() -> None:
    rows = RowSchema(pa.schema([("i", pa.int64()), ("s", pa.string())]))
    frame = pd.DataFrame({"i": [1, None], "s": ["a", nan]})
    assert converted(rows, frame) == [{"i": 1, "s": "a"}, {"i": None, "s": None}]


@given(st.lists(st.lists(st.one_of(st.integers(-9, 9), st.text(max_size=2)), max_size=3)))
def test_rows_that_are_not_rejected_are_written_in_order(appends: list[list[Any]]) -> None:
    rows = RowSchema(pa.schema([("id", pa.int64())]))
    batches, rejected = rows.convert([[{"id": value} for value in a] for a in appends])
    bad = [i for i, a in enumerate(appends) if any(isinstance(value, str) for value in a)]
    assert sorted(rejected) == bad
    good = [value for i, a in enumerate(appends) if i not in rejected for value in a]
    assert [v for batch in batches for v in batch.column("id").to_pylist()] == good


def test_a_weight_is_near_to_what_arrow_stores() -> None:
    rows = RowSchema(
        pa.schema([("a", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.float64()))])
    )
    many = [{"a": i, "s": "x" * 50, "l": [1.0, 2.0]} for i in range(1000)]
    payload, weight, _ = rows.accept(many)
    real = rows.convert([payload])[0][0].nbytes
    assert real / 2 < weight < real * 2


@pytest.mark.parametrize("value", ["x" * 10_000, b"x" * 10_000, [0] * 10_000, {"x": "x" * 10_000}])
def test_memory_of_a_value_that_its_column_cannot_hold_is_counted(value: Any) -> None:
    _, _, held = RowSchema(pa.schema([("v", pa.int64())])).accept([{"v": value}])
    assert held > 10_000


def test_slices_weigh_what_they_hold_not_what_they_share() -> None:
    rows = RowSchema(pa.schema([("v", pa.int64())]))
    big = pa.record_batch([pa.array(range(100_000))], names=["v"])
    weights = [rows.accept(big.slice(i, 10))[1] for i in range(0, 1000, 10)]
    assert 0 < max(weights) < 1000


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("v bigint", "a pyarrow.Schema is expected"),
        (pa.schema([("v", pa.uint64())]), "decimal128(20, 0)"),
        (pa.schema([("v", pa.timestamp("ns"))]), "cast it to the unit us"),
        (pa.schema([("_wal_position", pa.int64())]), "rename"),
        (pa.schema([("_wal_order", pa.int64())]), "reserved"),
        (pa.schema([("_WAL_anything", pa.int64())]), "reserved"),
        (pa.schema([("v", pa.int64()), ("v", pa.int64())]), "appears twice"),
        (pa.schema([]), "no columns"),
        (pa.schema([("v", pa.null())]), "cast it to the type that it will have"),
        (pa.schema([("v", nested(65))]), "'v' is nested 65 levels deep; 64"),
        (pa.schema([("v", pa.map_(pa.string(), nested(63)))]), "'v' is nested 65 levels deep"),
        (pa.schema([("v", pa.int64()), ("V", pa.int64())]), "differ only in case"),
    ],
)
def test_a_schema_that_the_log_cannot_keep_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        RowSchema(wrong)
    assert says in str(caught.value)


def test_values_of_every_type_survive() -> None:
    row = {
        "b": True,
        "i": -5,
        "u": 2**32 - 1,
        "f": 1.5,
        "s": "ä",
        "y": b"\0",
        "d": datetime(2026, 1, 1).date(),
        "t": datetime(2026, 1, 1, tzinfo=UTC),
        "m": Decimal("1.50"),
        "l": [1, None],
        "k": [("a", 1)],
        "o": {"x": ["y"]},
    }
    rows = RowSchema(
        pa.schema(
            [
                ("b", pa.bool_()),
                ("i", pa.int8()),
                ("u", pa.uint32()),
                ("f", pa.float32()),
                ("s", pa.large_string()),
                ("y", pa.binary()),
                ("d", pa.date32()),
                ("t", pa.timestamp("ms", "UTC")),
                ("m", pa.decimal128(10, 2)),
                ("l", pa.large_list(pa.int32())),
                ("k", pa.map_(pa.string(), pa.int64())),
                ("o", pa.struct([("x", pa.list_(pa.string()))])),
            ]
        )
    )
    assert converted(rows, [row]) == [row]


def test_columns_as_deep_as_arrow_writes_them_are_written(tmp_path: Path) -> None:
    schema = pa.schema([("v", nested(64)), ("m", pa.map_(pa.string(), nested(62)))])
    with Appender(str(tmp_path / "wal"), schema, producer_id="p") as wal:
        nulls = [pa.nulls(1, kind) for kind in schema.types]
        wal.append(pa.RecordBatch.from_arrays(nulls, schema=schema))
    assert Log(str(tmp_path / "wal")).scan().read_all().num_rows == 1


@pytest.mark.parametrize("fails", ["pyarrow.array", "sparkwal.format.schema.conform"])
def test_memory_that_is_missing_is_no_fault_of_the_rows(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = RowSchema(ARROW)
    batch = pa.RecordBatch.from_pylist([ROW], schema=ARROW)
    payload = rows.accept([ROW] if fails == "pyarrow.array" else batch)[0]

    def fail(*_: object, **__: object) -> None:
        raise pa.lib.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(fails, fail)
    for convert in (lambda: rows.convert([payload]), lambda: rows.convert_one(payload)):
        with pytest.raises(MemoryError):
            convert()
