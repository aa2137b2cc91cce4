"""Record batches that somebody forged: refused before Arrow unpacks them or follows offsets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, frames, schema
from sparkwal.format.arrowfile import FileWriter
from tests.headers import DATA, ROWS, SPARK_SCHEMA

MANY = 1000  # rows: enough for the check of large record batches


def frame_of(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    spark_schema = schema.from_arrow(batch.schema)
    draft = replace(DATA, schema_crc32=arrowfile.schema_crc(spark_schema))
    return FileWriter(draft, spark_schema, codec).frame(batch)


def read(data: bytes, batch: pa.RecordBatch, *, texts: bool = True) -> list[pa.RecordBatch]:
    return [*arrowfile.read_frames(data, schema.from_arrow(batch.schema), "here", texts=texts)]


def offsets(numbers: Sequence[int]) -> pa.Buffer:
    return pa.py_buffer(struct.pack(f"<{len(numbers)}i", *numbers))


def column(kind: pa.DataType, places: Sequence[int], content: bytes) -> pa.Array:
    """Texts or bytes at these offsets of the content."""
    return pa.Array.from_buffers(
        kind, len(places) - 1, [None, offsets(places), pa.py_buffer(content)]
    )


def batch_of(array: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([array], names=["v"])


STEPS = [*range(MANY + 1)]
GOES_BEYOND = [*range(MANY // 2), 2**30, *range(MANY // 2, MANY)]
GOES_BACK = [*range(MANY // 2), 3, *range(MANY // 2, MANY)]
LETTERS = b"a" * MANY
NO_UTF8 = b"a" * (MANY - 1) + b"\xff"
WHOLE = column(pa.string(), STEPS, LETTERS)


def nested(places: Sequence[int], kind: str) -> pa.Array:
    """A list, map or struct with these offsets, or with texts that have them."""
    inner = column(pa.string(), places, LETTERS)
    if kind == "list":
        of_text = pa.list_(pa.string())
        return pa.Array.from_buffers(of_text, MANY, [None, offsets(places)], children=[WHOLE])
    if kind == "text in a list":
        return pa.ListArray.from_arrays(pa.array(STEPS, pa.int32()), inner)
    if kind == "text in a map":
        values = pa.array(range(MANY), pa.int64())
        return pa.MapArray.from_arrays(pa.array(STEPS, pa.int32()), inner, values)
    return pa.StructArray.from_arrays([inner], names=["text"])


WRONG_OFFSETS: dict[str, pa.Array] = {
    f"{where}: {kind}": array
    for where, places in (("beyond", GOES_BEYOND), ("back", GOES_BACK))
    for kind, array in {
        "text": column(pa.string(), places, LETTERS),
        "bytes": column(pa.binary(), places, LETTERS),
        "list": nested(places, "list"),
        "text in a list": nested(places, "text in a list"),
        "text in a map": nested(places, "text in a map"),
        "text in a struct": nested(places, "text in a struct"),
    }.items()
}


@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize("case", WRONG_OFFSETS)
def test_a_wrong_offset_in_a_large_record_batch_is_refused(case: str, texts: bool) -> None:
    batch = batch_of(WRONG_OFFSETS[case])
    with pytest.raises(InvalidLogError, match="here: a frame cannot be decoded"):
        read(frame_of(batch), batch, texts=texts)


@pytest.mark.parametrize("kind", ["text", "text in a list", "text in a map", "text in a struct"])
def test_a_text_that_is_no_utf8_in_a_large_record_batch_is_refused(kind: str) -> None:
    array = column(pa.string(), STEPS, NO_UTF8)
    steps = pa.array(STEPS, pa.int32())
    if kind == "text in a list":
        array = pa.ListArray.from_arrays(steps, array)
    elif kind == "text in a map":
        array = pa.MapArray.from_arrays(steps, WHOLE, array)
    elif kind == "text in a struct":
        array = pa.StructArray.from_arrays([array], names=["text"])
    batch = batch_of(array)
    data = frame_of(batch)
    with pytest.raises(InvalidLogError, match="UTF8|UTF-8"):
        read(data, batch)
    (found,) = read(data, batch, texts=False)
    assert found.num_rows == MANY


def test_a_text_whose_bytes_are_of_two_values_is_refused() -> None:
    """The content as a whole is UTF-8; an offset cuts through a letter."""
    batch = batch_of(
        column(pa.string(), [*range(MANY), MANY + 1], b"a" * (MANY - 1) + "é".encode())
    )
    read(frame_of(batch), batch)
    cut = batch_of(
        column(pa.string(), [*range(MANY + 1), MANY + 1], b"a" * (MANY - 1) + "é".encode())
    )
    with pytest.raises(InvalidLogError, match="UTF8|UTF-8"):
        read(frame_of(cut), cut)


VALUES = pa.record_batch(
    {
        "text": pa.array(["a", "é", None, "𝄞"] * MANY),
        "list": pa.array([["a"], [], None, ["b", None]] * MANY),
        "map": pa.array(
            [[("k", 1)], [], None, [("l", None)]] * MANY, pa.map_(pa.string(), pa.int64())
        ),
        "struct": pa.array([{"s": "x"}, None, {"s": None}, {"s": "y"}] * MANY),
        "flag": pa.array([True, False, None, True] * MANY),
        "nothing": pa.nulls(4 * MANY),
    }
)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_sound_values_of_every_shape_are_read(codec: str | None) -> None:
    expected = schema.conform(VALUES, schema.to_arrow(schema.from_arrow(VALUES.schema)))
    assert read(frame_of(expected, codec), VALUES) == [expected]


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_a_record_batch_announces_what_it_unpacks_to(codec: str | None) -> None:
    batch = schema.conform(VALUES, schema.to_arrow(schema.from_arrow(VALUES.schema)))
    found = [*frames.batches_in(frame_of(batch, codec) * 3)]
    assert len(found) == 3 and {each.rows for each in found} == {batch.num_rows}
    # An uncompressible buffer is stored raw, with its own length.
    assert all(0 <= each.unpacked - batch.get_total_buffer_size() < 200 for each in found)


def frame_of_any(batch: pa.RecordBatch, codec: str) -> bytes:
    """A frame that no writer of the log makes."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    end_of_stream = 8
    return sink.getvalue().to_pybytes()[len(batch.schema.serialize()) : -end_of_stream]


def test_a_frame_that_unpacks_to_more_than_readers_take_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "LARGEST", 2**20)
    batch = batch_of(pa.array([0] * 2**18, pa.int64()))
    data = frame_of_any(batch, "zstd")
    assert len(data) < 2000
    with pytest.raises(
        InvalidLogError, match=rf"{len(data)} bytes announce 262144 rows and unpack"
    ):
        read(data, batch)
    # Stored raw, it takes no more memory than it has bytes.
    assert read(frame_of_any(batch, "lz4"), batch) == [batch]


def test_a_row_that_compresses_too_well_for_readers_is_stored_raw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "LARGEST", 2**20)
    batch = batch_of(pa.array([b"\0" * 2**22]))
    data = frame_of(batch, "zstd")
    assert len(data) > 2**22 and read(data, batch) == [batch]


def test_rows_without_a_buffer_stay_within_the_readers_limit() -> None:
    nothing = batch_of(pa.Array.from_buffers(pa.null(), 2**31 - 1, [None]))
    with pytest.raises(InvalidLogError, match="announce 2147483647 rows"):
        read(frame_of_any(nothing, "lz4"), nothing)


FRAME = frame_of(ROWS, "zstd")


@given(st.data())
def test_changed_bytes_are_refused_or_read(data: st.DataObject) -> None:
    places = st.integers(0, len(FRAME) - 1)
    changes = data.draw(st.dictionaries(places, st.integers(0, 255), min_size=1, max_size=6))
    changed = bytearray(FRAME)
    for place, value in changes.items():
        changed[place] = value
    try:
        for batch in arrowfile.read_frames(bytes(changed), SPARK_SCHEMA, "here"):
            assert len(batch.to_pylist()) == batch.num_rows
    except InvalidLogError:
        pass


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_frame(data: bytes) -> None:
    for candidate in (data, FRAME[:8] + data, FRAME[:100] + data):
        if candidate:
            with pytest.raises(InvalidLogError, match="here: a frame cannot be decoded"):
                list(arrowfile.read_frames(candidate, SPARK_SCHEMA, "here"))


def test_a_footer_that_names_other_record_batches_is_reported() -> None:
    writer = FileWriter(DATA, SPARK_SCHEMA, None)
    stored = [writer.frame(ROWS) for _ in range(2)]
    prefix, tail, _ = writer.finish(DATA)
    whole = prefix + b"".join(stored) + tail
    arrowfile.check_footer(whole, "here")
    first, second = (struct.pack("<q", len(prefix) + n * len(stored[0])) for n in range(2))
    assert tail.count(first) == 1
    with pytest.raises(InvalidLogError, match="its footer differs"):
        arrowfile.check_footer(whole[: -len(tail)] + tail.replace(first, second), "here")
