"""Whole objects: an object that a reader would refuse is never given to a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys, limits
from sparkwal.format.header import Batch, Frame, Header, to_json
from sparkwal.protocol.task import MOST_PARTITIONS
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


def test_a_header_above_the_limit_is_neither_read_nor_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    header = replace(COMMIT, query_id="q" * 1000)
    record = plain(header)
    monkeypatch.setattr(limits, "HEADER", len(to_json(header)))
    assert arrowfile.open_front(record, "here").header == header
    monkeypatch.setattr(limits, "HEADER", len(to_json(header)) - 1)
    with pytest.raises(InvalidLogError, match="here: a header of"):
        arrowfile.open_front(record, "here")
    for make in (plain, with_rows):
        with pytest.raises(InvalidLogError, match=r"a header of .* was not written"):
            make(header)


def test_the_widest_commit_stays_below_the_limit_of_a_header() -> None:
    window = 1_000_000
    batches = [
        Batch(keys.data(1, window, partition), partition, 10**9, 10**9, 2**32 - 1, (frame,))
        for frame in [Frame(10**6, 10**9, 10**9, 2**32 - 1)]
        for partition in range(0, MOST_PARTITIONS, MOST_PARTITIONS // 1000)
    ]
    size = len(to_json(replace(COMMIT, batches=tuple(batches))))
    assert size / len(batches) * MOST_PARTITIONS < limits.HEADER * 0.8


def test_small_frames_are_compressed_by_lz4_and_large_ones_by_zstd() -> None:
    many = pa.concat_batches([ROWS] * 10_000)
    zstd, lz4 = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
    for rows, codec in ((ROWS, lz4), (many, zstd)):
        writer = arrowfile.FileWriter(replace(DATA, leader_id=" " * 100), SPARK_SCHEMA, "zstd")
        frame = writer.frame(rows)
        assert codec in frame
        (found,) = arrowfile.read_frames(frame, SPARK_SCHEMA, "here")
        assert found.equals(rows)
