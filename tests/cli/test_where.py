"""--where against a reading of the same expression row by row, in Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import click
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.cli.where import Where
from sparkwal.errors import OptionError

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int32()),
        ("f", pa.float64()),
        ("d", pa.decimal128(12, 2)),
        ("s", pa.string()),
        ("t", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("n", pa.struct([("x", pa.int64())])),
    ]
)
LARGE = 2**53 + 1
INTEGERS = st.sampled_from([-LARGE, -7, -1, 0, 1, 2, 3, LARGE, 2**63 - 1])
FRACTIONS = st.sampled_from(["0.5", "-1.5", "2.0", "3.14", "0.1", "1e19", "-2.345"])
TEXTS = st.sampled_from(["", "a", "ab", "B", "é", "a%", "'"])
MOMENTS = st.sampled_from(
    [datetime(2026, 1, 31, tzinfo=UTC), datetime(1969, 5, 1, 1, 2, tzinfo=UTC)]
)
DAYS = st.sampled_from([date(2026, 1, 31), date(1969, 5, 1)])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "a": st.none() | INTEGERS,
            "b": st.none() | st.integers(-3, 3),
            "f": st.none() | st.sampled_from([0.1, -1.5, 2.0, float("inf"), float("nan")]),
            "d": st.none() | st.decimals(-10, 10, places=2),
            "s": st.none() | TEXTS,
            "t": st.none() | st.booleans(),
            "at": st.none() | MOMENTS,
            "day": st.none() | DAYS,
            "n": st.none() | st.fixed_dictionaries({"x": st.none() | INTEGERS}),
        }
    ),
    max_size=8,
)

Row = dict[str, Any]
Told = tuple[str, Callable[[Row], Any]]  # an expression, and what it is for a row
SIGNS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
         ">": operator.gt, ">=": operator.ge}  # fmt: skip


def column(name: str) -> Told:
    return name, lambda row: row[name]


def literal(text: str, value: Any) -> Told:
    return text, lambda row: value


NUMBERS = st.one_of(
    st.sampled_from([column("a"), column("b"), column("d")]),
    st.just(("n.x", lambda row: row["n"] and row["n"]["x"])),
    INTEGERS.map(lambda n: literal(str(n), n)),
    FRACTIONS.map(lambda text: literal(text, Decimal(text))),
)
OTHERS = [
    (column("s"), TEXTS.map(lambda x: literal(repr(x), x))),
    (column("at"), MOMENTS.map(lambda x: literal(repr(x.isoformat()), x))),
    (column("day"), DAYS.map(lambda x: literal(repr(x.isoformat()), x))),
    (column("f"), FRACTIONS.map(lambda x: literal(x, float(x)))),
]


def compare(left: Told, sign: str, right: Told) -> Told:
    def of(row: Row) -> bool | None:
        a, b = left[1](row), right[1](row)
        return None if a is None or b is None else bool(SIGNS[sign](a, b))

    return f"{left[0]} {sign} {right[0]}", of


@st.composite
def atoms(draw: st.DrawFn) -> Told:
    sign = draw(st.sampled_from(list(SIGNS)))
    match draw(st.integers(0, 6)):
        case 0:
            return compare(draw(NUMBERS), sign, draw(NUMBERS))
        case 1:
            one, others = draw(st.sampled_from(OTHERS))
            pair = [one, draw(others)]
            return (
                compare(*(pair[0], sign, pair[1]))
                if draw(st.booleans())
                else compare(pair[1], sign, pair[0])
            )
        case 2:
            return column("t")
        case 3:
            name = draw(st.sampled_from(["a", "s", "n", "f"]))
            if draw(st.booleans()):
                return f"{name} is null", lambda row: row[name] is None
            return f"{name} is not null", lambda row: row[name] is not None
        case 4:
            among = draw(st.lists(st.none() | INTEGERS, min_size=1, max_size=3))
            text = ", ".join("null" if x is None else str(x) for x in among)

            def inside(row: Row) -> bool | None:
                if row["a"] is None:
                    return None
                return True if row["a"] in among else None if None in among else False

            return f"a in ({text},)", inside
        case 5:
            part = draw(TEXTS)
            return (
                f"startswith(s, {part!r})",
                lambda row: None if row["s"] is None else row["s"].startswith(part),
            )
        case _:
            number = draw(st.integers(-3, 3))
            text = f"b * 2 + {number} {sign} b % 2"

            def calculated(row: Row) -> bool | None:
                if row["b"] is None:
                    return None
                rest = abs(row["b"]) % 2 * (1 if row["b"] > 0 else -1)
                return bool(SIGNS[sign](row["b"] * 2 + number, rest))

            return text, calculated


def negated(told: Told) -> Told:
    def of(row: Row) -> bool | None:
        found = told[1](row)
        return None if found is None else not found

    return f"not ({told[0]})", of


def joined(left: Told, word: str, right: Told) -> Told:
    decides = word == "or"

    def of(row: Row) -> bool | None:
        found = [left[1](row), right[1](row)]
        if decides in found:
            return decides
        return None if None in found else not decides

    return f"({left[0]}) {word} ({right[0]})", of


CONDITIONS = st.recursive(
    atoms(),
    lambda inner: st.one_of(
        inner.map(negated), st.builds(joined, inner, st.sampled_from(["and", "or"]), inner)
    ),
    max_leaves=5,
)


@given(CONDITIONS, ROWS)
def test_a_condition_keeps_the_rows_that_python_would(told: Told, rows: list[Row]) -> None:
    text, of = told
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    places = batch.append_column("place", pa.array(range(len(rows)), pa.int64()))
    kept = Where(text, places.schema, SCHEMA.names).of(places).column("place").to_pylist()
    assert kept == [place for place, row in enumerate(rows) if of(row) is True]


def kept(text: str, rows: list[Row], schema: pa.Schema = SCHEMA) -> list[Any]:
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    return Where(text, schema, schema.names).of(batch).column(0).to_pylist()


def test_what_no_row_by_row_test_covers() -> None:
    rows = [{"a": n, "s": s} for n, s in [(1, "abc"), (2, "ÄBC"), (0, None)]]
    assert kept("1 < a <= 2 and lower(s) == 'äbc'", rows) == [2]
    assert kept("length(s) == 3 and like(s, '%b_')", rows) == [1]
    assert kept("endswith(s, 'BC') or contains(s, 'b') or matches(s, '^z')", rows) == [1, 2]
    assert kept("10 / a > 5", rows) == [1]  # by nothing: unknown
    assert kept("10 % a == 0 or -a == 0", rows) == [1, 2, 0]
    assert kept("col('a') == 1 and true and null or null", [{"a": 1}]) == []
    assert kept("isnan(f)", [{"a": 1, "f": float("nan")}, {"a": 2, "f": 1.0}, {"a": 3}]) == [1]
    odd = pa.schema([("two words", pa.int64()), ("null", pa.binary()), ("ünï", pa.int64())])
    row = {"two words": 7, "null": b"\x00", "ünï": 1}
    assert kept("col('two words') == 7 and null == b'\\x00' and ünï == 1", [row], odd) == [7]


def test_a_name_is_the_one_that_is_written() -> None:
    odd = pa.schema([("ﬁ", pa.int64()), ("fi", pa.int64())])
    assert kept("ﬁ == 7 and fi == 1", [{"ﬁ": 7, "fi": 1}], odd) == [7]


def test_a_column_of_decimals_is_divided() -> None:
    rows = [{"a": 1, "d": Decimal("1.50")}, {"a": 2, "d": Decimal(0)}, {"a": 3}]
    assert kept("d / 2 > 0.7", rows) == [1]
    assert kept("a / d > 0", rows) == [1]  # by nothing: unknown


def test_no_digit_of_a_number_is_lost() -> None:
    long = Decimal("-1.2345678901234567890123456789012345678")
    odd = pa.schema([("d", pa.decimal128(38, 37))])
    assert kept(f"d == {long}", [{"d": long}], odd) == [long]
    assert kept(f"d == 0 + {long}", [{"d": long}], odd) == [long]
    most = Decimal("9" * 38)
    whole = pa.schema([("d", pa.decimal128(38, 0))])
    assert kept(f"d > {int(most) - 1}.5", [{"d": most}], whole) == [most]


@pytest.mark.parametrize(
    "number",
    ["1e99999999", "-1e99999999", "1e9999999999999999999", "d * 1e-2000", "0x" + "f" * 5000],
)
@pytest.mark.parametrize("name", ["a", "d", "f", "s"])
def test_a_number_beyond_all_is_told(name: str, number: str) -> None:
    with pytest.raises(click.ClickException, match="beyond all"):
        kept(f"{name} < {number}", [{"a": 1}])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("c > 1", "not in the log; it has a, b, f"),
        ("A > 1", "'a' in the log"),
        ("a = 1", "equal is =="),
        ("a <> 1", "not equal is !="),
        ("a > 1 AND b > 1", "small letters"),
        ("a > 'x'", "compares bigint with 'x'"),
        ("a > s", "compares bigint with string"),
        ("at > 'yesterday'", "2026-01-31T12:00:00"),
        ("a == null", "is null"),
        ("a", "bigint and no condition"),
        ("5", "no condition"),
        ("n.y == 1", "it has x"),
        ("s.startswith('a')", "write startswith(s, …)"),
        ("startswith(a, 'b')", "startswith(text, 'begin')"),
        ("__import__('os')", "no function __import__"),
        ("(lambda: 1)()", "cannot have"),
        ("[x for x in a]", "cannot have"),
        ("2 ** 9 ** 9 ** 9 > a", "+ - * / and %"),
        ("s + 'x' == 'ax'", "no number"),
        ("a in b", "in brackets"),
        ("a is 1", "goes with null"),
        ("", "no expression"),
        ("(" * 5000 + "a" + ")" * 5000, "no expression"),
        ("a == 1" + " + 1" * 20_000, ""),
    ],
)
def test_what_is_wrong_is_told(text: str, said: str) -> None:
    with pytest.raises((click.ClickException, OptionError)) as told:
        kept(text, [])
    assert said in str(
        told.value.message if isinstance(told.value, click.ClickException) else told.value
    )


def test_an_overflow_is_told_and_no_row_is_lost_in_silence() -> None:
    with pytest.raises(click.ClickException, match="overflow"):
        kept("a * 3 > 0", [{"a": 2**62}])
