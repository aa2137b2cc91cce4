"""A value is found in each format that objects of a log and of its table have."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkwal.format.finding import CannotTell, Value, is_found

NAME = "Zaphod O'Beeble-ß 4711"
ID = "7f0c4c5a-57d3-4c53-9a44-6f0f8f0f6a11"


def arrow(column: pa.Array, compression: str | None = "zstd") -> bytes:
    sink = io.BytesIO()
    table = pa.table({"v": column})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def parquet(column: pa.Array, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"v": column}), sink, **options)
    return sink.getvalue()


def packed(text: bytes) -> bytes:
    return bytes(pa.compress(text, codec="zstd", asbytes=True))


COLUMNS = [
    (NAME, pa.array(["x", f"I am {NAME}!", None])),
    (NAME, pa.array([NAME], pa.large_string()).dictionary_encode()),
    (NAME, pa.array([NAME.encode()], pa.binary())),
    (NAME, pa.array([[{"a": NAME}], None], pa.list_(pa.struct([("a", pa.string())])))),
    (NAME, pa.array([[(NAME, 1)]], pa.map_(pa.string(), pa.int64()))),
    (NAME, pa.array([json.dumps({"who": [NAME]})])),
    (NAME, pa.array([packed(NAME.encode())])),
    ("4711", pa.array([1, 4711, None], pa.int32())),
    ("4711", pa.array([4711.0])),
    ("4711.50", pa.array([Decimal("4711.5")], pa.decimal128(20, 4))),
    ("1979-10-12", pa.array([dt.date(1979, 10, 12)])),
    ("1979-10-12", pa.array([dt.datetime(1979, 10, 12, 5)])),
    (ID, pa.array([UUID(ID).bytes], pa.binary(16))),
    ("0x00ff10", pa.array([b"a\x00\xff\x10b"])),
]


@pytest.mark.parametrize(("value", "column"), COLUMNS, ids=str)
@pytest.mark.parametrize("made", [arrow, parquet])
def test_a_value_in_a_column_is_found(value: str, column: pa.Array, made: Any) -> None:
    assert is_found("o", made(column), Value.of(value))
    assert not is_found("o", made(column[:0]), Value.of(value))
    assert not is_found("o", made(column), Value.of("Arthur 12"))


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "none"])
def test_compression_hides_nothing(compression: str) -> None:
    body = parquet(pa.array([f"{n}" for n in range(999)] + [NAME]), compression=compression)
    assert is_found("o", body, Value.of(NAME))


STATISTICS = {"numRecords": 42, "minValues": {"name": NAME, "seq": 4711}}
TEXTS = [
    {"add": {"path": "a", "stats": json.dumps(STATISTICS)}},
    {"commitInfo": {"operationParameters": {"predicate": f'["(name = {NAME})"]'}}},
    {"commitInfo": {"predicate": "name = 'Zaphod O\\'Beeble-ß 4711'"}},
    {"add": {"partitionValues": {"name": NAME}}},
    {"add": {"path": "name=Zaphod%20O%27Beeble-%C3%9F%204711/a.parquet"}},
]


@pytest.mark.parametrize("action", TEXTS, ids=str)
def test_a_value_in_a_transaction_log_is_found(action: Any) -> None:
    for ascii_only in (True, False):
        body = b'{"protocol":{}}\n' + json.dumps(action, ensure_ascii=ascii_only).encode()
        assert is_found("_delta_log/1.json", body, Value.of(NAME))
        assert is_found("_delta_log/1.json", gzip.compress(body), Value.of(NAME))
        assert is_found("_delta_log/1.json", packed(body), Value.of(NAME))
        assert not is_found("_delta_log/1.json", body, Value.of("Arthur"))
    assert is_found("c.parquet", parquet(pa.array([json.dumps(action)])), Value.of(NAME))


def test_statistics_that_are_cut_off_are_found() -> None:
    long = "a very long name of a person who is to be erased"
    body = json.dumps({"add": {"stats": json.dumps({"minValues": {"n": long[:32]}})}}).encode()
    assert is_found("_delta_log/1.json", body, Value.of(long))


def test_a_number_is_found_among_values_of_rows_and_not_among_counts() -> None:
    body = json.dumps({"size": 42, "add": {"stats": json.dumps(STATISTICS)}}).encode()
    assert is_found("_delta_log/1.json", body, Value.of("4711"))
    assert not is_found("_delta_log/1.json", body, Value.of("42"))
    assert not is_found("o", arrow(pa.array(["x47110", "4711.5"])), Value.of("47"))


def test_a_name_of_an_object_is_found() -> None:
    assert is_found("consumers/zaphod", b"{}", Value.of("zaphod"))
    assert is_found("name=Zaphod%20B/part-0.parquet", b"", Value.of("Zaphod B"))


@pytest.mark.parametrize(
    "body",
    [
        arrow(pa.array([NAME]))[:-30],
        parquet(pa.array([NAME]))[:-30],
        b"\x00\xff\xfe unknown",
        gzip.compress(NAME.encode())[:-3],
        packed(NAME.encode() * 99)[:-3],
    ],
    ids=["arrow", "parquet", "unknown", "gzip", "zstd"],
)
def test_of_bytes_that_cannot_be_read_nobody_can_tell(body: bytes) -> None:
    with pytest.raises(CannotTell):
        is_found("o", body, Value.of("Arthur"))


def test_a_value_in_bytes_that_cannot_be_read_is_found_all_the_same() -> None:
    assert is_found("o", b"\xff\xfe" + NAME.encode(), Value.of(NAME))


def test_a_deletion_vector_holds_no_value() -> None:
    assert not is_found("deletion_vector_1.bin", b"\x01\xff", Value.of(NAME))


def test_the_checksums_of_a_file_hold_no_value() -> None:
    body = b"crc\0" + (512).to_bytes(4, "big") + b"\xff\xfe\x80\x01"
    assert not is_found("t/_delta_log/.00000000000000000001.json.crc", body, Value.of("Zaphod"))


def test_no_message_has_the_value() -> None:
    value = Value.of(NAME)
    assert "Zaphod" not in repr(value) + str(value)
    assert value.without("t/name=Zaphod%20O%27Beeble-%C3%9F%204711/a") == "t/name=***/a"
    assert value.without("consumers/daily") == "consumers/daily"
