"""Delete conditions without Spark: their meaning, and the refused ones."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.errors import OptionError
from sparkwal.lifecycle.merging.keyed import holds

ROWS = pa.table(
    {
        "op": ["d", "u", None],
        "n": pa.array([1, 2, None], pa.int32()),
        "Gone": [True, False, None],
        "day": [date(2024, 1, 1), date(2024, 1, 2), None],
        "dec": pa.array([Decimal("1.50"), Decimal("2.00"), None], pa.decimal128(9, 2)),
        "s": [{"op": "d"}, {"op": "u"}, None],
        "odd name": ["it", "x", None],
        "f": [1.0, 2.0, None],
    }
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("", "000"),
        ("op = 'd'", "100"),
        ("OP == 'd'", "100"),
        ("'d' = op", "100"),
        ("op <> 'd'", "010"),
        ("op != 'd'", "010"),
        ("not op = 'd'", "010"),
        ("op is null", "001"),
        ("op IS NOT NULL and n >= 2", "010"),
        ("n < 2 or op is null", "101"),
        ("op is null or n = 1 and op = 'u'", "001"),
        ("(op is null or n = 1) and n is null", "001"),
        ("op in ('d', 'x')", "100"),
        ("op not in ('d', 'x')", "010"),
        ("n = -1", "000"),
        ("n in (2, 7)", "010"),
        ("op IS NOT NULL and n = 2", "010"),
        ("n = 1 or op is null", "101"),
        ("gone = false or (gone and n = 1)", "110"),
        ("day = '2024-01-02'", "010"),
        ("dec in (2, 1.50)", "110"),
        ("n > -1", "110"),
        ("gone", "100"),
        ("not gone", "010"),
        ("gone = true", "100"),
        ("gone <=> false", "010"),
        ("true", None),
        ("day = '2024-01-01'", "100"),
        ("day > '2024-01-01'", "010"),
        ("dec = 1.5", "100"),
        ("dec >= 2", "010"),
        ("s.op = 'd'", None),
        ("`odd name` = 'it'", "100"),
        ("gone or op = 'u'", "110"),
        ("gone and null_is_no_column", None),
        ("op = 1", None),
        ("n = '1'", None),
        ("n = 1.5", None),
        ("f = 1", None),
        ("op", None),
        ('op = "d"', None),
        ("op = 'a\\'b'", None),
        ("lower(op) = 'd'", None),
        ("op like 'd%'", "100"),
        ("op = 'd' op", None),
        ("op =", None),
        ("n = 99999999999999999999", None),
        ("day = 'no day'", None),
        ("op = n", None),
        ("1 = 1", None),
        ("op in ()", None),
        ("op in ('d'", None),
        ("n = 1e3", None),
        ("n = null", "000"),
        ("n = 1 2", None),
        ("n = 2 -1", None),
        ("op = 'd' 'x'", None),
        ("op = 'd''x'", None),
        ("op = ('d', 'x')", None),
        ("gone gone", None),
        ("gone = gone", None),
        ("op = 'd' = true", None),
        ("op is 'd'", None),
        ("op in ('x', null)", "000"),
        ("op in ('d', null)", "100"),
        ("not op in ('x', null)", "000"),
        ("not (op is null or n = 2)", "100"),
        ("2 > n", "100"),
        ("op >= 'd' and op < 'e'", "100"),
        ("op <=> null", "001"),
        ("op not like '_'", "000"),
        ("gone <> true", "010"),
        ("gone > false", None),
        ("n like '1'", None),
        ("dec in (2.00, 7)", "010"),
        ("n = true", None),
        ("coalesce(gone, true)", None),
        ("java_method('java.lang.System', 'exit', 1) = 'x'", None),
        ("exists (select 1)", None),
    ],
)
def test_a_condition_means_what_it_means_in_spark_or_is_refused(
    condition: str, expected: str | None
) -> None:
    if expected is None:
        with pytest.raises(OptionError, match="without Spark"):
            holds(condition, ROWS)
    else:
        found = holds(condition, ROWS).to_pylist()
        assert found == [each == "1" for each in expected]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("op = 'd' or " * 400 + "gone", "4804 characters, and the limit is 4096"),
        ("(" * 33 + "gone" + ")" * 33, "more than 32 levels"),
        ("not " * 33 + "gone", "more than 32 levels"),
        ("lower(" * 33 + "op" + ")" * 33 + " = 'd'", "more than 32 levels"),
        ("(" * 4000, "more than 32 levels"),
        ("reflect('a', 'b') = 'c'", "it calls reflect; it may call coalesce"),
        ("op = 'd' -- all", "'-- all' is no part"),
        ("op = 'd' /* all */", "is no part"),
        ('op = "d"', "is no part"),
        ("n = 1e400", "1e400 is no number"),
        ("n = 1234567890123456789", "too many digits"),
    ],
)
def test_a_condition_that_a_log_cannot_hold_names_the_cause(condition: str, reason: str) -> None:
    with pytest.raises(OptionError, match=re.escape(reason)):
        holds(condition, ROWS)


@given(st.text(max_size=60) | st.text("ndop=<>!'`(),. 1aorntil", max_size=60))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    with suppress(OptionError):
        assert len(holds(text, ROWS)) == len(ROWS)


def test_no_rows_are_a_condition_away_from_nothing() -> None:
    assert holds("op = 'd'", ROWS.slice(0, 0)).to_pylist() == []
