"""Whole objects: an object that a reader would refuse is never given to a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile
from sparkwal.format.header import Header
from tests.headers import COMMIT, DATA, LEADER, ROWS, SPARK_SCHEMA, plain

# Each is a header that a reader refuses.
REFUSED: dict[str, Header] = {
    "a batch id of 64 bits": replace(COMMIT, batch_id=2**63),
    "a term of 0": replace(LEADER, term=0),
    "a seal at another slot": replace(LEADER, position=LEADER.position + 1),
    "a transaction that is no number": replace(COMMIT, txns={"q": (1.5, 0)}),  # type: ignore[dict-item]
    "another schema": replace(COMMIT, schema_crc32=1),
    "rows that are not counted": replace(DATA, rows=-1),
    "a time before 1970": replace(DATA, timestamp_ms=-1),
}


def with_rows(header: Header) -> bytes:
    writer = arrowfile.FileWriter(replace(header, leader_id=" " * 100), SPARK_SCHEMA, "zstd")
    frame = writer.frame(ROWS)
    prefix, tail, _ = writer.finish(header)
    return prefix + frame + tail


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("make", [plain, with_rows])
def test_a_header_that_readers_would_refuse_is_never_encoded(
    name: str, make: Callable[[Header], bytes]
) -> None:
    with pytest.raises(InvalidLogError, match="was not written"):
        make(REFUSED[name])


def test_a_header_longer_than_readers_take_is_never_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrowfile, "LARGEST_FRONT", 1000)
    with pytest.raises(InvalidLogError, match="1000 bytes"):
        plain(replace(COMMIT, query_id="q" * 1000))


def test_small_frames_are_compressed_by_lz4_and_large_ones_by_zstd() -> None:
    many = pa.concat_batches([ROWS] * 10_000)
    zstd, lz4 = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
    for rows, codec in ((ROWS, lz4), (many, zstd)):
        writer = arrowfile.FileWriter(replace(DATA, leader_id=" " * 100), SPARK_SCHEMA, "zstd")
        frame = writer.frame(rows)
        assert codec in frame
        (found,) = arrowfile.read_frames(frame, SPARK_SCHEMA, "here")
        assert found.equals(rows)
