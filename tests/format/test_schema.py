"""A schema that an object holds: anybody may have written it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, schema
from sparkwal.format.header import CRC_KEY, HEADER_KEY, SCHEMA_KEY, crc_hex, to_json
from tests.headers import LEADER

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


LIST = pa.list_(pa.string())
MAP = pa.map_(pa.string(), LIST)
WITHOUT_ELEMENTS = [
    pa.list_(LIST),
    pa.list_(MAP),
    pa.map_(pa.string(), LIST),
    pa.struct([("a", pa.list_(pa.list_(LIST)))]),
    pa.list_(pa.struct([("a", LIST), ("b", MAP)])),
]


def without_offsets(kind: pa.DataType, length: int) -> pa.Array:
    """Empty lists, as Arrow for Java 18 writes them: offsets of an array of length 0 are left
    out."""
    if pa.types.is_struct(kind):
        children = [without_offsets(field.type, length) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if not kind.num_fields:
        return pa.array([""] * length, kind)
    entries = kind.value_type if pa.types.is_list(kind) else pa.struct([*entries_of(kind)])
    offsets = pa.py_buffer(bytes(4 * (length + 1) if length else 0))
    return pa.Array.from_buffers(
        kind, length, [None, offsets], children=[without_offsets(entries, 0)]
    )


def entries_of(kind: pa.MapType) -> tuple[pa.Field, pa.Field]:
    return kind.key_field, kind.item_field


@pytest.mark.parametrize("kind", WITHOUT_ELEMENTS, ids=str)
def test_lists_without_elements_that_java_wrote_have_a_size(kind: pa.DataType) -> None:
    """Of Spark 4.0 and 4.1; pyarrow ends the process that asks for it."""
    batch = pa.record_batch([without_offsets(kind, 3)], names=["c"])
    sent = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    conformed = schema.conform(sent, batch.schema)
    assert conformed.nbytes > 0 and conformed.to_pylist() == batch.to_pylist()
    stored = pa.ipc.read_record_batch(conformed.serialize(), batch.schema)
    assert stored.nbytes == conformed.nbytes and stored.equals(batch)
    assert [part.num_rows for part in schema.cut(stored.slice(1), 1)] == [1, 1]
