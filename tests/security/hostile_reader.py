"""Reads logs that somebody forged, with little memory; prints what came of each.

python hostile_reader.py FOLDER
"""

from __future__ import annotations

import resource
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import sparkwal
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import Batch, CommitHeader, DataHeader, Frame, Inline, LeaderHeader
from sparkwal.format.schema import from_arrow

# The address space of the process; Python and Arrow take half a GB of it.
MEMORY = 3 * 2**30
SCHEMA = from_arrow(pa.schema([("v", pa.int64())]))
ROWS = pa.record_batch([pa.array(range(10_000), pa.int64())], names=["v"])


def common(position: int) -> dict[str, object]:
    return {
        "number": keys.slot(position, 1000),
        "position": position,
        "window": 1000,
        "leader_id": "forger",
        "term": 1,
        "plan_id": "p",
        "in_flight_limit": 1,
        "timestamp_ms": 1_700_000_000_000,
        "schema_crc32": arrowfile.schema_crc(SCHEMA),
        "log_id": "forged",
        "txns": {},
    }


def put(folder: Path, number: int, data: bytes) -> None:
    file = folder / keys.key("", number)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def begin(folder: Path) -> None:
    header = LeaderHeader(**common(0), prev_position=-1, reason="", host="h")  # type: ignore[arg-type]
    put(folder, header.number, arrowfile.encode(header, SCHEMA))


def commit(
    folder: Path,
    rows: int,
    batches: tuple[Batch, ...],
    inline: tuple[Inline, ...],
    body: bytes = b"",
) -> None:
    header = CommitHeader(
        **common(1),
        query_id="q",
        batch_id=0,
        rows=rows,
        bytes=rows,
        batches=batches,
        inline=inline,
        metrics={},
    )  # type: ignore[arg-type]
    data = arrowfile.encode(header, SCHEMA)
    at = arrowfile.needed(data)
    put(folder, header.number, data[:at] + body + data[at:])


def frame_of(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, ROWS.schema, options=options) as writer:
        writer.write_batch(ROWS)
    end_of_stream = 8
    return sink.getvalue().to_pybytes()[len(ROWS.schema.serialize()) : -end_of_stream]


def many_rows_inlined(folder: Path) -> None:
    commit(folder, 2**60, (), (Inline(0, 2**60, 1, 2**60, 0),))


def many_rows_in_an_object(folder: Path) -> None:
    number = keys.data(1, 1000, 0)
    put(folder, number, b"x" * 1000)
    frames = tuple(Frame(2**50 * n, 2**50, 2**50, 0) for n in range(100))
    rows = 100 * 2**50
    commit(folder, rows, (Batch(number, 0, rows, 2**60, 0, frames),), ())


def a_buffer_that_claims_a_petabyte(folder: Path) -> None:
    frame = frame_of("zstd")
    # A compressed buffer begins with its length before compression.
    size = (8 * ROWS.num_rows).to_bytes(8, "little")
    assert frame.count(size) >= 1
    forged = frame.replace(size, (2**50).to_bytes(8, "little"))
    crc = zlib.crc32(forged)
    commit(folder, 10_000, (), (Inline(0, 10_000, 1, len(forged), crc),), forged)


def a_header_of_two_gigabytes(folder: Path) -> None:
    put(folder, keys.slot(1, 1000), b"ARROW1\0\0" + b"\xff\xff\xff\xff" + b"\xff\xff\xff\x7f" * 99)


def a_header_of_less_than_nothing(folder: Path) -> None:
    put(folder, keys.slot(1, 1000), b"ARROW1\0\0" + b"\xff\xff\xff\xff" + b"\xff\xff\xff\xff" * 99)


def other_rows_than_it_says(folder: Path) -> None:
    frame = frame_of("zstd")
    commit(folder, 1, (), (Inline(0, 1, 1, len(frame), zlib.crc32(frame)),), frame)


def one_object_of(folder: Path, position: int) -> tuple[int, bytes, tuple[Frame, ...]]:
    """ROWS as the object of partition 0 of a position: its number, its bytes, its frames."""
    number = keys.data(position, 1000, 0)
    fields = {**common(position), "number": number, "rows": ROWS.num_rows}
    del fields["txns"]
    header = DataHeader(**fields, query_id="q", batch_id=0, partition=0, stage_attempt=0)  # type: ignore[arg-type]
    writer = arrowfile.FileWriter(header, SCHEMA, "zstd")
    body = writer.frame(ROWS)
    prefix, tail, _ = writer.finish(header)
    data = prefix + body + tail
    put(folder, number, data)
    return number, data, tuple(writer.frames)


def one_object_under_500_partitions(folder: Path) -> None:
    number, data, frames = one_object_of(folder, 1)
    rows = ROWS.num_rows
    batches = tuple(
        Batch(number, partition, rows, len(data), zlib.crc32(data), frames)
        for partition in range(500)
    )
    commit(folder, 500 * rows, batches, ())


def one_object_under_two_positions(folder: Path) -> None:
    number, data, frames = one_object_of(folder, 2)
    batch = Batch(number, 0, ROWS.num_rows, len(data), zlib.crc32(data), frames)
    commit(folder, ROWS.num_rows, (batch,), ())


FORGED: list[Callable[[Path], None]] = [
    many_rows_inlined,
    many_rows_in_an_object,
    a_buffer_that_claims_a_petabyte,
    a_header_of_two_gigabytes,
    a_header_of_less_than_nothing,
    other_rows_than_it_says,
    one_object_under_500_partitions,
    one_object_under_two_positions,
]


def main(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for forge in FORGED:
        log = folder / forge.__name__
        begin(log)
        forge(log)
        try:
            came = f"{sum(batch.num_rows for batch in sparkwal.Log(str(log)).scan())} rows"
        except Exception as error:
            came = type(error).__name__
        print(forge.__name__, came, sparkwal.verify(str(log)).ok, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
