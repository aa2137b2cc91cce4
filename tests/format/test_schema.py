"""A schema that an object holds: anybody may have written it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from headers import LEADER

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, schema
from sparkwal.format.header import CRC_KEY, HEADER_KEY, SCHEMA_KEY, crc_hex, to_json

LONG = '{"type":"struct","fields":[{"name":"v","type":"long","nullable":true,"metadata":{}}]}'


def of(kind: Any) -> bytes:
    return json.dumps({"type": "struct", "fields": [{"name": "v", "type": kind}]}).encode()


def nested(levels: int) -> bytes:
    begin, end = '{"type":"array","elementType":', ',"containsNull":true}'
    kind = begin * levels + '"long"' + end * levels
    return b'{"type":"struct","fields":[{"name":"v","type":%s}]}' % kind.encode()


DAMAGED: dict[str, bytes] = {
    "nothing": b"",
    "no UTF-8": b"\xff\xfe{}",
    "a name that is no UTF-8": LONG.replace("v", "\xff").encode("latin-1"),
    "a lone surrogate": LONG.replace("v", "\\ud800").encode(),
    "a list": b"[]",
    "a number": b"5",
    "a type alone": b'"long"',
    "no fields": b'{"type":"struct","fields":null}',
    "a field without a name": b'{"type":"struct","fields":[{"type":"long"}]}',
    "a name that is a number": b'{"type":"struct","fields":[{"name":5,"type":"long"}]}',
    "a name twice": b'{"type":"struct","fields":[{"name":"v","type":"long"},'
    b'{"name":"v","type":"long"}]}',
    "a type that is null": of(None),
    "a type that is a number": of(5),
    "a type without a name": of({}),
    "an unknown type": of("int8"),
    "a map without keys": of({"type": "map"}),
    "a decimal of 39 digits": of("decimal(39,0)"),
    "a decimal of 10^12 digits": of("decimal(999999999999,0)"),
    "a scale of 10^12": of("decimal(9,999999999999)"),
    "a decimal of digits that are not ASCII": of("decimal(\u0663,0)"),
    "a class to load": of(
        {"type": "udt", "class": "x", "pyClass": "os.system", "serializedClass": "gAN9Lg=="}
    ),
    "65 levels": nested(65),
    "900 levels": nested(900),
    "50,000 levels": nested(50_000),
    "more than 4 MiB": LONG.encode() + b" " * schema.LONGEST,
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_schema_that_no_log_has_is_an_invalid_log(case: str) -> None:
    text = DAMAGED[case]
    header = to_json(LEADER).replace(
        b'"schema_crc32":%d' % LEADER.schema_crc32, b'"schema_crc32":%d' % int(crc_hex(text), 16)
    )
    metadata = {HEADER_KEY: header, CRC_KEY: crc_hex(header), SCHEMA_KEY: text}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("v", pa.int64())]).with_metadata(metadata)):
        pass
    with pytest.raises(InvalidLogError, match="here: the Spark schema is damaged"):
        arrowfile.open_front(sink.getvalue().to_pybytes(), "here")


def test_a_schema_of_64_levels_is_read() -> None:
    assert schema.read(nested(63)).count("elementType") == 63


def test_expressions_are_left_out_of_a_stored_schema() -> None:
    """Delta Lake computes `generationExpression`, and Spark parses `CURRENT_DEFAULT`."""
    document = json.loads(LONG)
    document["fields"][0]["metadata"] = {
        "CURRENT_DEFAULT": "java_method('java.lang.System', 'exit', 1)",
        "delta.generationExpression": "reflect('java.lang.System', 'exit', 1)",
    }
    assert schema.read(json.dumps(document).encode()) == LONG
