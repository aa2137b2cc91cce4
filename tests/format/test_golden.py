"""Objects stored once and for all: a log of format 1 must stay readable, byte by byte."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal.format import arrowfile
from sparkwal.format.header import (
    CRC_KEY,
    HEADER_KEY,
    CommitHeader,
    Header,
    crc_hex,
    from_metadata,
    to_json,
)
from tests.headers import COMMIT, DATA, DECIDED, LEADER, ROWS, SPARK_SCHEMA, golden

FOLDER = Path(__file__).parent / "golden"
# Objects of versions that had no `decided`.
OLDER = FOLDER / "before_decided"
OF_OLDER: dict[str, Header] = {"leader": LEADER, "commit_batches": COMMIT, "data": DATA}
EXPECTED = {name: replace(header, decided=DECIDED) for name, header in OF_OLDER.items()}
NAMES = ["leader", "commit_batches", "commit_inline", "data"]


def stored(name: str) -> bytes:
    return (FOLDER / f"{name}.arrow").read_bytes()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_stored_object_decodes_to_exactly_its_header(name: str) -> None:
    opened = arrowfile.open_front(stored(name), name)
    assert opened.header == EXPECTED[name]
    assert opened.spark_schema == SPARK_SCHEMA


@pytest.mark.parametrize("name", NAMES)
def test_an_older_object_decodes_and_claims_nothing(name: str) -> None:
    data = (OLDER / f"{name}.arrow").read_bytes()
    opened = arrowfile.open_front(data, name)
    assert "decided" not in json.loads(pa.ipc.open_file(data).schema.metadata[HEADER_KEY])
    assert opened.header.decided == -1 and opened.spark_schema == SPARK_SCHEMA
    assert opened.header == OF_OLDER.get(name, opened.header)
    assert pa.ipc.open_file(data).read_all().num_rows == (
        0 if name in ("leader", "commit_batches") else ROWS.num_rows
    )


def test_a_stored_inline_record_decodes_to_its_header_and_rows() -> None:
    data = stored("commit_inline")
    opened = arrowfile.open_front(data, "commit_inline")
    assert isinstance(opened.header, CommitHeader)
    (inline,) = opened.header.inline
    assert (inline.partition, inline.rows, inline.record_batches) == (3, 3, 1)
    rows = data[opened.body : opened.body + inline.bytes]
    assert zlib.crc32(rows) == inline.crc32
    assert list(arrowfile.read_frames(rows, SPARK_SCHEMA, "commit_inline")) == [ROWS]


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_header_is_encoded_byte_by_byte_the_same(name: str) -> None:
    metadata = pa.ipc.open_stream(stored(name)[8:]).schema.metadata
    header, _ = from_metadata(metadata, name)
    text = metadata[HEADER_KEY]
    # Rows are counted during the write, so this header is padded before its last brace.
    assert text[:-1].rstrip(b" ") + b"}" == to_json(header)
    assert metadata[CRC_KEY] == crc_hex(text)


@pytest.mark.parametrize("name", NAMES)
def test_any_arrow_reader_opens_a_stored_object(name: str) -> None:
    with pa.ipc.open_file(FOLDER / f"{name}.arrow") as file:
        expected = [] if name in ("leader", "commit_batches") else ROWS.to_pylist()
        assert file.read_all().to_pylist() == expected
        header = json.loads(file.schema.metadata[b"weaselwal"])
    assert header["format"] == 1
    assert header["kind"] == name.partition("_")[0]
    assert header["number"] in ("18446744073709544615", "18446744073709544609")


def test_the_objects_of_today_have_the_headers_of_the_stored_ones() -> None:
    for name, data in golden().items():
        today, then = (arrowfile.open_front(d, name) for d in (data, stored(name)))
        assert (today.header, today.spark_schema) == (then.header, then.spark_schema)
