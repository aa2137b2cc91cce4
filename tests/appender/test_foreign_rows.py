"""Rows from outside: malformed, changed after they were accepted, of values no column holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.rows import RowSchema
from sparkwal.errors import BackPressureError, OptionError
from tests.appender.faulty_store import FaultyStore, stored
from tests.appender.interrupts import interrupted
from tests.logs import rows, until


def buffers(kind: pa.DataType, length: int, *parts: bytes | None) -> pa.Array:
    """An array that Arrow has not looked at."""
    return pa.Array.from_buffers(kind, length, [p if p is None else pa.py_buffer(p) for p in parts])


def int32(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


NO_UTF8 = buffers(pa.string(), 1, None, int32(0, 2), b"\xff\xfe")

MALFORMED = {
    "no UTF-8": NO_UTF8,
    "offsets out of the data": buffers(pa.string(), 2, None, int32(0, 2**30, 3), b"abc"),
    "too many digits": buffers(pa.decimal128(3, 1), 1, None, (10**9).to_bytes(16, "little")),
    "no such entry": pa.DictionaryArray.from_arrays(pa.array([5]), pa.array(["a"]), safe=False),
    "no UTF-8 in a dictionary": pa.DictionaryArray.from_arrays(pa.array([0]), NO_UTF8, safe=False),
    "no UTF-8 in a struct": pa.StructArray.from_arrays([NO_UTF8], ["x"]),
    "a view out of its data": buffers(pa.string_view(), 1, None, int32(20, -1, 7, 100), b"x" * 10),
    "later than midnight": buffers(pa.time64("ns"), 1, None, (10**17).to_bytes(8, "little")),
}


@pytest.mark.parametrize("what", MALFORMED)
@pytest.mark.parametrize("make", [pa.record_batch, pa.table])
def test_malformed_arrow_rows_are_refused_when_they_are_appended(
    what: str, make: Callable[..., Any]
) -> None:
    array = MALFORMED[what]
    good = RowSchema(pa.schema([("c", array.type)]))
    with pytest.raises(OptionError, match="malformed"):
        good.accept(make([array], names=["c"]))


def test_only_a_malformed_append_itself_fails(
    faulty: FaultyStore,
) -> None:
    schema = pa.schema([("s", pa.string())])
    from sparkwal.appender.appender import Appender
    from sparkwal.store.base import LogStore

    with Appender(LogStore(faulty.retrying(), "s"), schema, producer_id="p") as wal:
        tickets = [wal.append(pa.record_batch({"s": ["a"]}))]
        with pytest.raises(OptionError, match="malformed.*UTF8"):
            wal.append(pa.record_batch([NO_UTF8], names=["s"]))
        tickets.append(wal.append(pa.record_batch({"s": ["b"]})))
        assert [ticket.sequence for ticket in tickets] == [0, 1]
        for ticket in tickets:
            ticket.result()
        assert wal.error is None


@given(st.data())
def test_a_body_with_flipped_bytes_is_refused_or_readable(data: st.DataObject) -> None:
    schema = pa.schema([("s", pa.string()), ("l", pa.list_(pa.int64()))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([["ab", None, "ä"], [[1], [], None]], schema=schema))
    body = bytearray(sink.getvalue().to_pybytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place] = data.draw(st.integers(0, 255))
    try:
        table = pa.ipc.open_stream(bytes(body)).read_all()
    except (pa.ArrowException, OSError, ValueError):
        return
    rows = RowSchema(schema)
    try:
        accepted = rows.accept(table)
    except OptionError:
        return
    batches, rejected = rows.convert([accepted[0]])
    assert not rejected
    for batch in batches:
        batch.validate(full=True)
        batch.to_pylist()


def _changes() -> dict[str, tuple[Any, Callable[[], None]]]:
    """Values to append, each with a function that changes its memory afterwards."""
    numbers = np.array([1, 2])
    in_table = np.array([1, 2])
    frame = pd.DataFrame({"v": np.array([1, 2])})
    listed = [{"v": 1}, {"v": 2}]
    zero = np.array(1)

    def change(array: Any) -> Callable[[], None]:
        return lambda: array.__setitem__(slice(None), 9)

    def change_frame() -> None:
        frame.iloc[:, 0].to_numpy()[:] = 9
        frame["v"].array._ndarray[:] = 9

    def change_list() -> None:
        listed[0]["v"] = 9
        listed.clear()

    return {
        "a table over numpy": (pa.table([pa.array(in_table)], ["v"]), change(in_table)),
        "a frame": (frame, change_frame),
        "a list": (listed, change_list),
        "numpy's scalars": ([{"v": value} for value in numbers], change(numbers)),
        "an array of one": ([{"v": zero}, {"v": 2}], lambda: zero.__setitem__((), 9)),
    }


@pytest.mark.parametrize("what", _changes())
def test_accepted_rows_do_not_change_afterwards(faulty: FaultyStore, what: str) -> None:
    given_rows, change = _changes()[what]
    with faulty.appender(maxInFlightRequests=1, batchSizeThreshold="1mb") as wal:
        first = faulty.gap()
        faulty.hold(first)
        wal.append(rows(0))
        wal.append(given_rows)
        change()
        faulty.release(first)
    assert stored(faulty.inner) == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "value", "change", "kept"),
    [
        (pa.binary(), bytearray(b"ab"), lambda v: v.__setitem__(0, 0), b"ab"),
        (pa.binary(), memoryview(bytearray(b"ab")), lambda v: v.__setitem__(0, 0), b"ab"),
        (pa.list_(pa.int64()), [1, 2], lambda v: v.append(3), [1, 2]),
        (pa.list_(pa.int64()), np.array([1, 2]), lambda v: v.__setitem__(0, 9), [1, 2]),
        (pa.list_(pa.list_(pa.int64())), [[1]], lambda v: v[0].append(3), [[1]]),
        (
            pa.struct([("a", pa.binary())]),
            {"a": bytearray(b"a")},
            lambda v: v["a"].__setitem__(0, 0),
            {"a": b"a"},
        ),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, lambda v: v.update(b=2), [("a", 1)]),
    ],
)
def test_an_accepted_row_does_not_change_afterwards(
    kind: pa.DataType, value: Any, change: Callable[[Any], None], kept: Any
) -> None:
    rows = RowSchema(pa.schema([("c", kind)]))
    accepted = rows.accept([{"c": value}])
    change(value)
    batches, rejected = rows.convert([accepted[0]])
    assert not rejected and batches[0].to_pylist() == [{"c": kept}]


def test_rows_of_another_schema_that_come_in_between_share_no_memory() -> None:
    """Another thread accepts them before every instruction of a function in turn."""
    plain = pa.table({"v": pa.array([1])})
    for skip in range(1000):
        rows = RowSchema(pa.schema([("v", pa.int64())]))
        numbers = np.array([7])
        coded = pa.table({"v": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(numbers))})
        kept: list[CheckedRows] = []
        came = interrupted(
            lambda rows=rows, coded=coded, kept=kept: kept.append(rows.accept(coded)),  # type: ignore[misc]
            "_accept_arrow",
            skip,
            lambda rows=rows: rows.accept(plain),  # type: ignore[misc]
        )
        numbers[0] = 9
        assert rows.convert([kept[0][0]])[0][0].to_pylist() == [{"v": 7}]
        if not came:
            assert skip, "the function never ran"
            return


def test_a_slice_of_a_large_batch_does_not_keep_all_of_it() -> None:
    rows = RowSchema(pa.schema([("v", pa.int64())]))
    before = pa.total_allocated_bytes()
    kept = []
    for _ in range(20):
        large = pa.record_batch([pa.array(range(100_000))], names=["v"])
        kept.append(rows.accept(large.slice(5, 1)))
        del large
    assert pa.total_allocated_bytes() - before < 100_000
    assert all(held < 10_000 for _, _, held in kept)


ROOT = str(Path(__file__).parents[2])
FILL = Path(__file__).with_name("fill_buffer.py")


@pytest.mark.process
@pytest.mark.parametrize("kind", ["arrow", "dict"])
def test_room_for_small_appends_counts_what_they_take_in_memory(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(FILL), kind],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, ROOT])},
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.5


def test_a_full_room_sends_its_batch_though_that_is_small_and_young(faulty: FaultyStore) -> None:
    # By size and age this batch would not close: a few rows of 8 bytes, and a minute.
    with faulty.appender(
        batchTimeoutMs="1min", batchSizeThreshold="1kb", maxBufferedBytes="2kb"
    ) as wal:
        first = faulty.gap()
        faulty.hold(first)
        wal.append(rows(0))
        until(lambda: first in faulty.arrived)
        with pytest.raises(BackPressureError):
            for value in range(1, 50):
                wal.append(rows(value), block=False)
        until(lambda: first + 1 in faulty.arrived)
        faulty.release(first)


def kept(kind: pa.DataType, value: Any) -> Any:
    """The values of a column after an append, or OptionError."""
    rows = RowSchema(pa.schema([("c", kind)]))
    batches, rejected = rows.convert([rows.accept([{"c": value}])[0]])
    return rejected[0] if rejected else batches[0].column("c")[0].as_py()


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        (pa.date32(), np.datetime64("2026-01-01"), date(2026, 1, 1)),
        (pa.timestamp("us"), np.datetime64("2026-01-01T05", "us"), datetime(2026, 1, 1, 5)),
        (pa.duration("us"), np.timedelta64(1, "s"), timedelta(seconds=1)),
        (pa.list_(pa.timestamp("us")), np.array(["2026-01-01"], "M8[s]"), [datetime(2026, 1, 1)]),
        (pa.timestamp("us"), np.datetime64("2026-01-01", "ns"), None),
        (pa.int64(), np.datetime64("2026-01-01", "ns"), None),
        (pa.list_(pa.int64()), np.array(["2026-01-01"], "M8[ns]"), None),
        (pa.timestamp("us"), np.datetime64("NaT"), None),
    ],
)
def test_a_numpy_time_is_stored_exactly_or_refused(
    kind: pa.DataType, value: Any, held: Any
) -> None:
    found = kept(kind, value)
    assert isinstance(found, OptionError) if held is None else found == held


def test_an_array_of_objects_may_change_after_it_was_accepted() -> None:
    inner, named = [1], {"a": [2]}
    array = np.empty(1, object)
    array[0] = inner
    kinds = {"c": pa.list_(pa.list_(pa.int64())), "d": pa.struct([("a", pa.list_(pa.int64()))])}
    named["a"] = np.array([2], object)  # type: ignore[assignment]
    schema = RowSchema(pa.schema(list(kinds.items())))
    accepted = schema.accept([{"c": array, "d": named}])
    inner.append(9)
    named["a"][0] = 9
    batches, rejected = schema.convert([accepted[0]])
    assert not rejected
    assert batches[0].to_pylist() == [{"c": [[1]], "d": {"a": [2]}}]


class Stream:
    """An object with Arrow's C stream interface, like a polars Series, that is no table."""

    def __arrow_c_stream__(self, requested: object = None) -> object:
        return pa.chunked_array([[1]]).__arrow_c_stream__(requested)


def holds_itself() -> list[dict[str, Any]]:
    own: list[Any] = []
    own.append(own)
    return [{"0": own}]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Stream, "Stream"),
        (lambda: pd.DataFrame({0: [1]}), "column 0 of these rows is not in the schema"),
        (lambda: pd.DataFrame([[1, 2]], columns=["0", "0"]), "column '0' twice"),
        (lambda: pa.table([[1], [2]], names=["0", "0"]), "'0'"),
        (holds_itself, "contain themselves"),
    ],
)
def test_rows_that_cannot_be_read_are_refused_in_one_line(
    made: Callable[[], Any], says: str
) -> None:
    with pytest.raises(OptionError, match=says) as refused:
        RowSchema(pa.schema([("0", pa.int64())])).accept(made())
    assert "\n" not in str(refused.value)


ZONES = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "America/St_Johns"]).map(ZoneInfo),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))),
)
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES)


@given(MOMENTS)
@example(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))))
@example(datetime(2012, 3, 11, 2, 0, tzinfo=ZoneInfo("America/St_Johns")))
def test_a_moment_without_zone_keeps_its_clock_and_an_aware_one_its_moment(
    moment: datetime,
) -> None:
    local = kept(pa.timestamp("us"), moment)
    assert local == moment if moment.tzinfo is None else isinstance(local, OptionError)
    point = kept(pa.timestamp("us", "UTC"), moment)
    if not isinstance(point, OptionError):
        # In one zone: around a change of the clock Python finds times of two zones unequal.
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        assert point.astimezone(UTC) == aware.astimezone(UTC)
    else:
        assert moment.utcoffset().microseconds  # type: ignore[union-attr]


@given(st.one_of(st.floats(), st.integers(-(2**130), 2**130)))
@example(1e39)
@example(2.0**128 - 2.0**103)
@example(-(2.0**128 - 2.0**103))
@example(2**53 + 1)
def test_numbers_are_exact_nearest_or_refused(value: float) -> None:
    double = kept(pa.float64(), value)
    assert isinstance(double, OptionError) or double == value or double != double
    single = kept(pa.float32(), value)
    if not isinstance(single, OptionError) and value == value:
        assert np.isinf(single) == (isinstance(value, float) and np.isinf(value))
        if isinstance(value, int):
            assert single == value
    long = kept(pa.int64(), value)
    assert isinstance(long, OptionError) or long == value


@given(st.decimals())
@example(Decimal("1.25"))
@example(Decimal("NaN"))
@example(Decimal("1.20"))
@example(Decimal("1e-40"))
@example(Decimal("9.9999999999999171299511215384480235E-35"))
@example(Decimal("144927536231882856955813355629681.5"))
@example(10**9)
def test_decimals_are_exact_or_refused(value: Decimal) -> None:
    found = kept(pa.decimal128(10, 1), value)
    assert isinstance(found, OptionError) or (found == value and abs(found) < 10**9)


@pytest.mark.parametrize("text", ["1.20", "-1.2", "1E+3", "0", "0.0", "0e-30", "-999999999.9"])
def test_decimals_that_fit_their_column_are_stored(text: str) -> None:
    assert kept(pa.decimal128(10, 1), Decimal(text)) == Decimal(text)


@pytest.mark.process
@pytest.mark.parametrize("exponent", [-50_000_000, -999_999_999, -2_147_483_640, 999_999_999])
def test_a_decimal_at_whose_exponent_arrow_crashes_is_refused(exponent: int) -> None:
    value = Decimal(f"1e{exponent}")
    code = f"""
from decimal import Decimal
import pyarrow as pa
from sparkwal.appender.rows import RowSchema
for kind in (pa.decimal128(10, 2), pa.list_(pa.decimal128(38, 18))):
    rows = RowSchema(pa.schema([("c", kind)]))
    value = Decimal("{value}")
    given = [value] if pa.types.is_list(kind) else value
    print(len(rows.convert([rows.accept([{{"c": given}}])[0]])[1]))
"""
    # In a separate process: a crash must fail this test only.
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["1", "1"], (run.returncode, run.stderr)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.time64("us"), time(1, 2, tzinfo=UTC)), (pa.float32(), 1e39), (pa.float32(), -1e39)],
)
def test_a_value_that_would_change_is_refused(kind: pa.DataType, value: Any) -> None:
    assert isinstance(kept(kind, value), OptionError)


MOMENT = pd.to_datetime(["2026-01-01T05:00:00"])


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.timestamp("us"), MOMENT.tz_localize("Europe/Berlin")),
        (pa.date32(), MOMENT),
        (pa.time64("us"), MOMENT),
        (pa.int64(), MOMENT),
        (pa.timestamp("us"), [5]),
        (pa.bool_(), [2]),
        (pa.bool_(), [0.5]),
        (pa.int64(), [True]),
        (pa.int64(), [pd.Timedelta(days=1)]),
        (pa.float32(), [1e39]),
        (pa.float64(), [2**53 + 1]),
        (pa.binary(), pd.Series(["a"], dtype="string")),
    ],
)
def test_a_frame_is_never_changed_to_fit(kind: pa.DataType, column: Any) -> None:
    rows = RowSchema(pa.schema([("c", kind)]))
    with pytest.raises(OptionError):
        rows.accept(pd.DataFrame({"c": column}))


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        (pa.int32(), [5], 5),
        (pa.int64(), [5.0], 5),
        (pa.float64(), [5], 5.0),
        (pa.float32(), [float("inf")], float("inf")),
        (pa.string(), pd.Series(["a"], dtype="category"), "a"),
        (pa.string(), pd.Series(["a"], dtype="string"), "a"),
        (pa.timestamp("us"), MOMENT, datetime(2026, 1, 1, 5)),
        (pa.timestamp("us", "UTC"), MOMENT.tz_localize("UTC"), datetime(2026, 1, 1, 5, tzinfo=UTC)),
        (pa.duration("us"), [pd.Timedelta(days=1)], timedelta(days=1)),
        (pa.bool_(), [True], True),
    ],
)
def test_a_frame_that_fits_is_taken(kind: pa.DataType, column: Any, value: Any) -> None:
    rows = RowSchema(pa.schema([("c", kind)]))
    accepted = rows.accept(pd.DataFrame({"c": column}))
    assert rows.convert([accepted[0]])[0][0].to_pylist() == [{"c": value}]


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore()
