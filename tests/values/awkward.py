"""Values and names that one reader holds and another may not. A new one is one line."""

from __future__ import annotations

import math
import string
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

LAST = 2**63 - 1
FIRST = -(2**63)
# Microseconds since 1970: the first and last moments of Python's calendar, and one before 1582.
YEAR_1 = -62_135_596_800_000_000
YEAR_9999 = 253_402_300_799_999_999
YEAR_1500 = -14_800_000_000_000_001
UTC = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")
SPAN = pa.duration("us")
CLOCK = pa.time64("ns")
LONG = pa.int64()
TEXT = pa.string()
DAY = 86_400_000_000


def of(kind: pa.DataType, *numbers: int | None) -> pa.Array:
    """An array of a type whose values are numbers in memory."""
    width = pa.int32() if kind.bit_width == 32 else LONG
    return pa.array(numbers, width).view(kind)


def lists(inner: pa.Array, *lengths: int) -> pa.Array:
    ends = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inner)


def maps(keys: pa.Array, *lengths: int) -> pa.Array:
    ends = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, pa.array(range(len(keys))))


def structs(**fields: pa.Array) -> pa.Array:
    return named(fields)


def named(fields: dict[str, pa.Array]) -> pa.Array:
    return pa.StructArray.from_arrays([*fields.values()], names=[*fields])


def deep(levels: int) -> pa.Array:
    array = pa.array([1])
    for level in range(levels - 1):
        array = lists(array, 1) if level % 2 else structs(s=array)
    return array


def floats(*words: int) -> pa.Array:
    return pa.array(words, pa.uint64()).view(pa.float64())


CANONICAL_NAN = 0x7FF8000000000000
OTHER_NANS = (0x7FF8000000000123, 0xFFF0000000000001)
# As signed numbers.
NANS = (CANONICAL_NAN, *floats(*OTHER_NANS).view(LONG).to_pylist())


def entry_twice(keys: pa.Array) -> pa.Array:
    return maps(keys, len(keys))


BYTES = bytes(range(256))
TEXTS = [
    "",
    "\0",
    "a\0b",
    "\U0001f600",
    "line\nline\r\n",
    '"',
    ' ,;\t"',
    "null",
    "NaN",
    "\u2028\ufeff\u202e",
    "é",
    "e\u0301",
    "\x1b[31m",
    "\\n",
    "long" * 2_500_000,
]
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)

# All writers take these.
VALUES: dict[str, pa.Array] = {
    "boolean": pa.array([True, False]),
    "byte": pa.array([-128, 127], pa.int8()),
    "long": pa.array([LAST, FIRST, 2**53 + 1]),
    "float": pa.array([-0.0, math.inf, -math.inf, 1.4e-45], pa.float32()),
    "double": pa.array([-0.0, math.inf, -math.inf, 5e-324]),
    "NaN": floats(CANONICAL_NAN),
    "NaN of other bits": floats(*OTHER_NANS),
    "decimal": pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38)], pa.decimal128(38, 0)),
    "fraction": pa.array([Decimal("0." + "9" * 38), Decimal("-1e-38")], pa.decimal128(38, 38)),
    "text": pa.array(TEXTS),
    "binary": pa.array([b"", b"\0", BYTES]),
    "date": of(pa.date32(), -719162, 2932896, -25567),
    "moment beyond the years 1 to 9999, a date": of(
        pa.date32(), 2**31 - 1, -(2**31), -719163, 2932897
    ),
    "nested moment beyond the years 1 to 9999, a date": lists(of(pa.date32(), 2**31 - 1), 1),
    "timestamp": of(UTC, YEAR_1, YEAR_9999, YEAR_1500, -1),
    "moment beyond the years 1 to 9999, a timestamp": of(
        UTC, LAST, FIRST + 1, YEAR_9999 + 1, YEAR_1 - 1
    ),
    "moment or interval of -2^63 µs, a timestamp": of(UTC, 0, FIRST),
    "timestamp_ntz": of(LOCAL, YEAR_1, YEAR_9999, YEAR_1500, -1),
    "moment beyond the years 1 to 9999, a timestamp_ntz": of(LOCAL, LAST, FIRST + 1),
    "nested moment beyond the years 1 to 9999, a timestamp": structs(at=of(UTC, YEAR_9999 + 1)),
    "moment or interval of -2^63 µs, in a list": lists(of(LOCAL, 0, FIRST), 1, 1),
    "time": of(CLOCK, 0, DAY * 1000 - 1000),
    "time with nanoseconds": of(CLOCK, 0, 1, DAY * 1000 - 1),
    "interval": of(SPAN, 0, -1, 1_500_000, 30 * DAY, -400 * DAY),
    "interval, long": of(SPAN, LAST, FIRST + 1, 300 * 365 * DAY, -(10**16), LAST // 1000 + 1),
    "moment or interval of -2^63 µs, an interval": of(SPAN, 0, FIRST),
    "nested interval, in a list": lists(of(SPAN, LAST, -(10**16), 1), 2, 0, 1),
    "nested interval, in a struct": structs(a=of(SPAN, LAST), b=lists(of(SPAN, 10**16), 1)),
    "nested interval, in a map": maps(of(SPAN, LAST, 10**16), 2),
    "list": pa.array([[], [None], [1]]),
    "struct": structs(a=pa.array([1, None]), b=pa.array(["", "x"])),
    "empty struct": pa.array([{}], pa.struct([])),
    "empty struct, in a list": pa.array([[{}, None], []], pa.list_(pa.struct([]))),
    "map": maps(pa.array(["", "a", "b"]), 2, 0, 1),
    "map whose keys are not text, but NaN": maps(pa.array([math.nan, 0.0, 1.0]), 3),
    "map whose keys are not text, but binary": maps(pa.array([b"\0", b""]), 2),
    "map whose keys are not text, but structs": maps(structs(k=pa.array([1, None])), 2),
    "map in a map": pa.array([[("x", [("a", 1)])]], pa.map_(TEXT, pa.map_(TEXT, LONG))),
    "variant": pa.array([{"value": b"\x0c\x01", "metadata": b"\x01\0\0"}], VARIANT),
    "60 levels": deep(60),
    "names inside": named(
        {name: pa.array([1]) for name in (" ", "a.b", "q`q", 'q"q', "é", "e\u0301")}
    ),
    "field without a name": named({"": pa.array([1])}),
    # Types that become another.
    "uint32": pa.array([2**32 - 1], pa.uint32()),
    "float16": pa.array([-0.0, math.inf, 65504.0], pa.float16()),
    "date64": pa.array([0]).cast(pa.date64()),
    "time, of seconds": of(pa.time32("s"), 86_399),
    "timestamp of seconds": of(pa.timestamp("s", "Asia/Tokyo"), YEAR_1 // 10**6),
    "interval, of seconds": of(pa.duration("s"), LAST // 10**6, -(LAST // 10**6)),
    "fixed-size binary": pa.array([b"\0\xff"], pa.binary(2)),
    "fixed-size list": pa.array([[1, None]], pa.list_(LONG, 2)),
    "large text": pa.array(["x"], pa.large_string()),
    "text view": pa.array(["x" * 20], pa.string_view()),
    "large list": pa.array([[1]], pa.large_list(LONG)),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
}
ROWS = max(map(len, VALUES.values()))


@dataclass(frozen=True)
class Refused:
    """A value that no writer takes. `says` is a part of the error."""

    rows: pa.Array
    says: str


# No writer takes these.
REFUSED: dict[str, Refused] = {
    "map with a key twice": Refused(entry_twice(pa.array(["a", "b", "a"])), "a key twice"),
    "map with a key twice, NaN": Refused(
        entry_twice(floats(CANONICAL_NAN, *OTHER_NANS)), "a key twice"
    ),
    "map with a key twice, 0.0 and -0.0": Refused(
        entry_twice(pa.array([0.0, -0.0])), "a key twice"
    ),
    "map with a key twice, a struct": Refused(
        entry_twice(structs(k=of(SPAN, LAST, LAST))), "a key twice"
    ),
    "map with a key twice, in a list": Refused(
        lists(structs(m=entry_twice(pa.array([1, 1]))), 1), "a key twice"
    ),
    "interval or timestamp beyond 292,000 years, an interval": Refused(
        of(pa.duration("s"), LAST), "cannot"
    ),
    "interval or timestamp beyond 292,000 years, a timestamp": Refused(
        of(pa.timestamp("s"), LAST), "cannot"
    ),
    "timestamp of nanoseconds": Refused(of(pa.timestamp("ns"), 1), "nanoseconds"),
    "Arrow type that Spark lacks, months": Refused(
        pa.array([pa.MonthDayNano([1, 1, 1])]), "no type"
    ),
    "uint64": Refused(pa.array([2**64 - 1], pa.uint64()), "64 unsigned bits"),
    "decimal of more than 38 digits or a negative scale, 256 bits": Refused(
        pa.array([Decimal(1)], pa.decimal256(76, 0)), "38 digits"
    ),
    "decimal of more than 38 digits or a negative scale, scale": Refused(
        pa.array([Decimal(100)], pa.decimal128(5, -2)), "38 digits"
    ),
    "type without values, null": Refused(pa.nulls(1), "type void"),
    "type without values, in a list": Refused(pa.array([[None]], pa.list_(pa.null())), "type void"),
    "Arrow type that Spark lacks, list view": Refused(
        pa.array([[1]], pa.list_view(LONG)), "no type"
    ),
    "Arrow type that Spark lacks, run-end encoded": Refused(
        pa.RunEndEncodedArray.from_arrays([1], ["a"]), "no type"
    ),
    "Arrow type that Spark lacks, union": Refused(
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "no type"
    ),
    "Arrow type that Spark lacks, uuid": Refused(pa.array([b"1" * 16], pa.uuid()), "no type"),
    "Arrow type that Spark lacks, json": Refused(pa.array(["{}"], pa.json_()), "no type"),
    "more than 64 levels": Refused(deep(80), "80 levels deep"),
    "two names that differ in case at most, the same": Refused(
        pa.StructArray.from_arrays([pa.array([1])] * 2, names=["a", "a"]), "appears twice"
    ),
    "two names that differ in case at most, of two cases": Refused(
        named({"s": pa.array([1]), "S": pa.array([1])}), "only in case"
    ),
    "name with a null character, inside": Refused(named({"a\0b": pa.array([1])}), "null character"),
    "text that is not UTF-8": Refused(
        pa.Array.from_buffers(
            TEXT, 1, [None, pa.py_buffer(struct.pack("<2i", 0, 1)), pa.py_buffer(b"\xff")]
        ),
        "UTF8",
    ),
}

# A log may have these from an older version. Readers that cannot hold one refuse only its column.
STORED: dict[str, pa.Array] = {
    **{name: REFUSED[name].rows for name in [*REFUSED][:5]},
    "name with a null character, inside": named({"a\0b": pa.array([1]), "a\0c": pa.array([2])}),
}

NAMES = [
    "",
    " ",
    "a b",
    "a.b",
    "a,b",
    'q"q',
    "q`q",
    "q'q",
    "x\ny\tz",
    "select",
    "rows",
    "records",
    "log",
    "_x",
    "_current",
    "_name",
    "é",
    "e\u0301",
    "ﬁ",
    "s",
    "ſ",
    "i",
    "ı",
    "ß",
    "\U0001f600",
    "\x1b[31m",
    "\u202e",
    "x" * 1000,
    "rowid",
    "*",
    "#",
    "1",
    "null",
    "a\\b",
    "__index_level_0__",
    *string.punctuation.replace("*", "").replace("#", ""),
]
# Each is refused beside the name "s".
NAMES_REFUSED = {
    "S": "only in case",
    "_wal_position": "reserved",
    "_WAL_x": "reserved",
    "n\0n": "null character",
}


def padded(array: pa.Array) -> pa.Array:
    """As many rows as all values have, with nulls at the end."""
    return pa.concat_arrays([array, pa.nulls(ROWS - len(array), array.type)])


def bits(array: pa.Array) -> list[Any]:
    """The values of an array with all their bits: −0.0, NaN, times that Python has no type for."""
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [bits(field) for field in array.flatten()]
        return [
            tuple(field[i] for field in fields) if valid else None
            for i, valid in enumerate(array.is_valid().to_pylist())
        ]
    if pa.types.is_nested(kind):
        return [
            None if row.values is None else bits(row.values)
            for row in (array[i] for i in range(len(array)))
        ]
    if pa.types.is_interval(kind):
        return [None if x is None else _microseconds(x) for x in array.to_pylist()]
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        return list(array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist())
    return list(array.to_pylist())


def _microseconds(interval: pa.MonthDayNano) -> int:
    assert not interval.months and not interval.nanoseconds % 1000
    return interval.days * DAY + interval.nanoseconds // 1000
