"""JSON lines become exactly the values that they write, or are refused with row and column."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkwal.errors import OptionError
from support.json_rows import JsonRows, parse_schema


def read(kind: str, body: str | bytes) -> list[Any]:
    """The column `v` of this type, from these lines."""
    lines = body if isinstance(body, bytes) else body.encode()
    return [
        value
        for batch in JsonRows(parse_schema(f"v {kind}")).batches(lines)
        for value in batch["v"].to_pylist()
    ]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (
            "decimal(38,18)",
            "12345678901234567890.123456789012345678",
            Decimal("12345678901234567890.123456789012345678"),
        ),
        ("decimal(10,2)", "0.1", Decimal("0.10")),
        ("decimal(10,2)", '"1.50"', Decimal("1.50")),
        ("bigint", "9223372036854775807", 2**63 - 1),
        ("bigint", "9007199254740993.0", 2**53 + 1),
        ("int", "1e3", 1000),
        ("double", "0.1", 0.1),
        ("double", "1e308", 1e308),
        ("float", "3.4028234663852886e38", 3.4028234663852886e38),
        (
            "timestamp",
            '"2026-01-31T12:00:00.123456+02:00"',
            datetime(2026, 1, 31, 10, 0, 0, 123456, UTC),
        ),
        ("timestamp", '"2026-01-31T12:00:00"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("timestamp_ntz", '"2026-01-31T12:00:00.1234560"', datetime(2026, 1, 31, 12, 0, 0, 123456)),
        ("date", '"2026-01-31"', date(2026, 1, 31)),
        ("time(6)", '"12:30:00.5"', time(12, 30, 0, 500_000)),
        ("binary", '"AAE="', b"\0\1"),
        ("boolean", "true", True),
        ("string", '"naïve"', "naïve"),
        ("double", "null", None),
    ],
)
def test_a_value_equals_its_text(kind: str, text: str, value: Any) -> None:
    assert read(kind, f'{{"v":{text}}}') == [value]


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("decimal(10,2)", "1.005", "decimal(10,2)"),
        ("decimal(10,2)", "1e999999999", "decimal(10,2)"),
        ("decimal(10,2)", "1e-999999999", "decimal(10,2)"),
        ("decimal(10,2)", '"NaN"', "decimal(10,2)"),
        ("decimal(10,2)", "true", "true or false"),
        ("float", "1e39", "beyond the largest"),
        ("double", "1e400", "beyond the largest"),
        ("double", "true", "true or false"),
        ("double", '"1"', "text"),
        ("bigint", "9223372036854775808", "bigint"),
        ("bigint", "1.5", "bigint"),
        ("bigint", "1e999999999", "bigint"),
        ("bigint", "true", "true or false"),
        ("boolean", "1", "number"),
        ("string", "1.50", "number"),
        ("string", '"\\ud800"', "string"),
        ("timestamp_ntz", '"2026-01-31T12:00:00+02:00"', "no time zone"),
        ("timestamp_ntz", '"2026-01-31T12:00:00Z"', "no time zone"),
        ("timestamp", '"2026-01-31T12:00:00.1234567Z"', "microseconds"),
        ("timestamp", '"2026-01-31T12:00:00,1234567Z"', "microseconds"),
        ("timestamp", "1700000000", "number"),
        ("time(6)", '"12:30:00+01:00"', "no time zone"),
        ("date", '"2026-01-31T12:00:00"', "date"),
        ("binary", '"AAE"', "binary"),
        ("interval day to second", '"1"', "send Arrow"),
    ],
)
def test_a_value_that_would_change_is_refused(kind: str, text: str, why: str) -> None:
    with pytest.raises(OptionError, match=r"^row 1: column 'v' is ") as refused:
        read(kind, f'{{"v":null}}\n{{"v":{text}}}')
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"v":1,"v":2}', "twice"),
        (b'{"w":1}', "'w'"),
        (b"[1]", "not a JSON object"),
        (b"{'v':1}", "not JSON"),
        (b'{"v":"\xff"}', "not JSON"),
        ('{"v":1}'.encode("utf-16"), "not JSON"),
        (b'{"v":' + b"[" * 100_000, "not JSON"),
        (b'{"v":' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
def test_a_line_that_is_no_row_is_refused(line: bytes, says: str) -> None:
    with pytest.raises(OptionError) as refused:
        read("bigint", line)
    assert str(refused.value).startswith("row 0") and says in str(refused.value)


def test_a_byte_order_mark_before_the_first_line_is_skipped() -> None:
    assert read("bigint", b'\xef\xbb\xbf{"v":1}\n{"v":2}\n') == [1, 2]
    with pytest.raises(OptionError, match="row 1 is not JSON"):
        read("bigint", b'{"v":1}\n\xef\xbb\xbf{"v":2}\n')


@pytest.mark.parametrize(
    "text",
    [
        "n bigint not null, v string",
        '{"type":"struct","fields":[{"name":"n","type":"long","nullable":false,"metadata":{}},'
        '{"name":"v","type":"string"}]}',
    ],
)
def test_a_column_that_takes_no_null_stays_one(text: str) -> None:
    assert parse_schema(text) == pa.schema(
        [pa.field("n", pa.int64(), nullable=False), pa.field("v", pa.string())]
    )


def test_nested_types_are_given_as_json() -> None:
    with pytest.raises(OptionError, match="column 'm' is nested: give Spark's schema JSON"):
        parse_schema("id bigint, m map<string,int>")


def test_values_within_others_are_as_exact() -> None:
    schema = pa.schema(
        [
            ("a", pa.list_(pa.decimal128(20, 10))),
            ("m", pa.map_(pa.string(), pa.float32())),
            ("s", pa.struct([("x", pa.int32()), ("y", pa.timestamp("us"))])),
        ]
    )
    rows = JsonRows(schema)
    [batch] = rows.batches(
        b'{"a":[0.1234567891,null],"m":{"k":0.5},"s":{"x":1,"y":"2026-01-31T00:00:00"}}'
    )
    assert batch.to_pylist() == [
        {
            "a": [Decimal("0.1234567891"), None],
            "m": [("k", 0.5)],
            "s": {"x": 1, "y": datetime(2026, 1, 31)},
        }
    ]
    for line, says in (
        (b'{"a":[0.12345678912]}', "'a'"),
        (b'{"m":{"k":1e39}}', "beyond the largest"),
        (b'{"s":{"x":1,"z":2}}', "no field 'z'"),
        (b'{"s":{"y":"2026-01-31T00:00:00Z"}}', "no time zone"),
    ):
        with pytest.raises(OptionError, match=r"row 0: column '[ams]'") as refused:
            list(rows.batches(line))
        assert says in str(refused.value)


def test_a_row_is_named_by_its_place_in_the_whole_body() -> None:
    body = '{"v":1}\n\n' * 5000
    assert len(read("bigint", body)) == 5000
    with pytest.raises(OptionError, match="row 5000: column 'v'"):
        read("bigint", body + '{"v":3e9999}')
    with pytest.raises(OptionError, match="row 5000: column 'v'"):
        read("int", body + '{"v":3000000000}')
