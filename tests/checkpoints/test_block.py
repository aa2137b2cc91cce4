"""The block of files in a commit record: decoding gives the encoded files, or an error."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars
import pyarrow as pa
import pytest

import sparkwal
from sparkwal.checkpoints import packing
from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys, limits
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.slots import read_slot
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.checkpoints.conftest import Room
from tests.checkpoints.stream import FileStream
from tests.logs import record
from tests.protocol.query import SCHEMA

FILES = {
    "offsets/0": b'v1\n{"a":1}\n{"logOffset":0}',
    "commits/9223372036854775807": b"",
    "sources/0/0": bytes(range(256)),
    "sources/1/deep/er/n\xc3\xa4me.compact".encode().decode(): "é\u2028\U0001d11e".encode(),
}


def test_decoding_gives_the_encoded_files() -> None:
    assert packing.decode(packing.encode(FILES), "here") == FILES
    assert packing.decode(packing.encode({}), "here") == {}


def raw(document: object) -> bytes:
    return bytes(pa.compress(json.dumps(document).encode(), codec="zstd", asbytes=True))


HOSTILE_NAMES = [
    "",
    "offsets",
    "offsets/",
    "offsets/-1",
    "offsets/x",
    "offsets/1/2",
    "offsets/" + "1" * 20,
    "metadata",
    "sparkwal.json",
    "state/0/0/1.delta",
    "sources/0",
    "/etc/passwd",
    "~/x",
    "../offsets/1",
    "sources/../offsets",
    "sources/0/../../../x",
    "sources/./0",
    "sources/0/..",
    "sources//0",
    "sources/0/",
    "/sources/0/0",
    "offsets/1\n",
    "sources/0/a\0b",
    "sources/0/a\nb",
    "sources/0/\ud800",
    "sources/0/" + "x" * 256,
    "sources/0/" + "é" * 128,
    "offsets/١",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_name_that_spark_does_not_give_is_refused(name: str) -> None:
    with pytest.raises(InvalidLogError, match="here: its checkpoint"):
        packing.decode(raw({"offsets/0": "", name: ""}), "here")


def test_a_file_that_is_also_a_folder_is_refused() -> None:
    with pytest.raises(InvalidLogError, match="sources/0/a"):
        packing.decode(raw({"sources/0/a/b": "", "sources/0/a": ""}), "here")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        raw([]),
        raw(None),
        raw("text"),
        raw({"offsets/0": 1}),
        raw({"offsets/0": "€"}),
        raw({"offsets/0": ["a"]}),
        raw({"offsets/0": None}),
        packing.encode(FILES)[:-3],
        bytes(pa.compress(b"[" * 100_000, codec="zstd", asbytes=True)),
        bytes(pa.compress(b"\xff\xfe", codec="zstd", asbytes=True)),
        bytes(pa.compress(b'{"offsets/0":""}', codec="gzip", asbytes=True)),
    ],
    ids=lambda data: ascii(data[:12]),
)
def test_bytes_that_no_writer_makes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidLogError, match="here: its checkpoint cannot be decoded"):
        packing.decode(data, "here")


def test_damaged_bytes_raise_an_error_or_give_other_files() -> None:
    """The CRC-32 in the header finds it before; this is what is left if that is forged."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    intact = packing.encode(FILES)
    for _ in range(500):
        data = bytearray(intact)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            files = packing.decode(bytes(data), "here")
        except InvalidLogError:
            continue
        assert all(isinstance(content, bytes) for content in files.values())


def test_a_block_that_unpacks_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = raw({"sources/0/0": "a" * 2**25})
    assert len(bomb) < 2**13
    assert len(packing.decode(bomb, "here")["sources/0/0"]) == 2**25
    monkeypatch.setattr(limits, "CHECKPOINT", 2**24)
    with pytest.raises(InvalidLogError, match="cannot be decoded: .* unpack to more than 16777216"):
        packing.decode(bomb, "here")


def test_a_block_with_too_many_files_is_refused_and_never_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {f"sources/0/{number}": b"" for number in range(10)}
    assert packing.decode(packing.encode(files), "here") == files
    monkeypatch.setattr(limits, "CHECKPOINT_FILES", 9)
    with pytest.raises(InvalidLogError, match="more than 9 files"):
        packing.decode(packing.encode(files), "here")
    carried = packing.pack(dict.fromkeys(files, 0), files.__getitem__, {}, 2**20)
    assert len(packing.decode(carried.block, "here")) == 9


@pytest.mark.parametrize(
    "text",
    [
        '{"offsets/0": "a", "offsets/0": "b"}',
        '{"offsets/0": "\\u20ac"}',
        '{"offsets/0": "a\\ud800"}',
        '{"offsets/0": "a',
        '{"offsets/0": "a"',
        '{"offsets/0": "a"} ',
        '{"offsets/0": [[[[]]]]}',
        '{"offsets/0": "\n"}',
        '{"offsets/0":"a"}',
        '{"offsets/0"',
        "{",
        "",
    ],
)
def test_a_text_that_no_writer_makes_is_refused(text: str) -> None:
    block = bytes(pa.compress(text.encode(), codec="zstd", asbytes=True))
    with pytest.raises(InvalidLogError, match="here: its checkpoint cannot be decoded"):
        packing.decode(block, "here")


@pytest.mark.parametrize("content", [b"\\u20ac", b"\\\\u20ac", b"\\", b'"', b"\xff\x00", b"\\\\"])
def test_content_that_looks_like_an_escape_is_not_changed(content: bytes) -> None:
    files = {"日本/_schema_log_本/0": content, "offsets/0": content * 3}
    assert packing.decode(packing.encode(files), "here") == files


@pytest.fixture(params=[2**16, 0], ids=["inlined", "in an object"])
def local(tmp_path: Path, request: pytest.FixtureRequest) -> FileStream:
    """A query whose log is on the disk; its last record is that of file 2, at position 3."""
    log = LogStore(LocalStore(tmp_path / "wal"), "")
    hints = Hints("wal", tmp_path / "hints")
    stream = FileStream(log, tmp_path / "ck", hints, inline=request.param)
    stream.run(range(3))
    return stream


def test_other_programs_read_a_record_with_a_block_as_an_arrow_file(
    local: FileStream, tmp_path: Path
) -> None:
    file = record(tmp_path / "wal", 3)
    data = file.read_bytes()
    carried = packing.read_block(local.log, 1000, local.query_id, 3)
    assert carried["offsets/2"] == (tmp_path / "ck/offsets/2").read_bytes()
    inlined = [2] if local.inline else []
    assert pa.ipc.open_file(data).read_all().column("v").to_pylist() == inlined
    assert pa.ipc.open_stream(data[8:]).read_all().column("v").to_pylist() == inlined
    assert polars.read_ipc(file)["v"].to_list() == inlined
    assert polars.read_ipc(io.BytesIO(data))["v"].to_list() == inlined
    assert polars.read_ipc_stream(io.BytesIO(data[8:]))["v"].to_list() == inlined
    assert sparkwal.Log(str(tmp_path / "wal")).to_pandas()["v"].tolist() == [0, 1, 2]


def test_verify_reports_any_damage_of_the_block(local: FileStream, tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    assert sparkwal.verify(path).ok
    header = list(sparkwal.Log(path).records())[3]
    entry = header.checkpoints[local.query_id]
    file = record(tmp_path / "wal", 3)
    intact = file.read_bytes()
    start = intact.index(b"\xff\xff\xff\xff\0\0\0\0") + 8
    assert intact[start : start + 4] == b"\x28\xb5\x2f\xfd"  # zstd
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    middle = rng.sample(range(start + 1, start + entry.bytes - 1), 20)
    for at in [start, *middle, start + entry.bytes - 1]:
        data = bytearray(intact)
        data[at] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        (problem,) = sparkwal.verify(path).problems
        assert "the checkpoint in it does not match its CRC-32" in problem
        assert str(keys.slot(3, 1000)) in problem
        with pytest.raises(InvalidLogError, match="does not match its CRC-32"):
            packing.read_block(local.log, 1000, local.query_id, 3)
        # Reads of rows do not need it.
        assert sparkwal.Log(path).to_pandas()["v"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("position, expected", [(0, "carries no checkpoint"), (4, "is missing")])
def test_a_missing_record_or_one_without_a_checkpoint_raises(
    local: FileStream, position: int, expected: str
) -> None:
    with pytest.raises(InvalidLogError, match=expected):
        packing.read_block(local.log, 1000, local.query_id, position)
    with pytest.raises(InvalidLogError, match="carries no checkpoint of query other"):
        packing.read_block(local.log, 1000, "other", 3)


def test_a_block_beyond_the_first_bytes_of_a_record_costs_one_more_get(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = room.stream(room.checkpoint())
    stream.run(range(1))
    room.store.counts.clear()
    block = packing.read_block(room.log, 1000, stream.query_id, 1)
    assert room.store.counts == {"GET": 1}
    data = room.store.objects[room.log.key(keys.slot(1, 1000))]
    start = data.index(b"\xff\xff\xff\xff\0\0\0\0") + 8
    # After the block, in it, at its start, before it.
    for size in (start + 10**6, start + 20, start, start - 1):
        monkeypatch.setattr(packing, "read_slot", partial(read_slot, size=size))
        room.store.counts.clear()
        assert packing.read_block(room.log, 1000, stream.query_id, 1) == block
        assert room.store.counts == {"GET": 1 if size > len(data) else 2}


def test_verify_reports_a_record_without_the_position_of_a_checkpoint(
    local: FileStream, tmp_path: Path
) -> None:
    """Another leader's: it was made of a head that it did not read."""
    path = tmp_path / "wal"
    sparkwal.Appender(str(path), pa.schema([("v", pa.int64())]), producer_id="p").close()
    assert sparkwal.verify(str(path)).ok
    (leader, *_) = [r for r in sparkwal.Log(str(path)).records() if r.position == 4]
    assert leader.checkpoints.keys() == {local.query_id}
    data = arrowfile.encode(replace(leader, checkpoints={}), SCHEMA)
    record(tmp_path / "wal", 4).write_bytes(data)
    (problem,) = sparkwal.verify(str(path)).problems
    assert f"position 4: it forgets the position of the checkpoint of {local.query_id}" in problem
