"""The part of a state in a record: it may be forged, cut, or of another copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkwal import InvalidLogError
from sparkwal.checkpoints import names, query_state
from sparkwal.checkpoints.query_state import Piece
from sparkwal.format import limits
from sparkwal.format.header import QueryState

BASE = 7


def part(*pieces: tuple[Piece, bytes]) -> bytes:
    return query_state.encode([piece for piece, _ in pieces], [content for _, content in pieces])


def change(name: str, content: bytes) -> tuple[Piece, bytes]:
    return Piece(name, 0, len(content), len(content), 0), content


def of_copy(name: str, offset: int, content: bytes, size: int, copy: int) -> tuple[Piece, bytes]:
    return Piece(name, offset, len(content), size, copy), content


def state(version: int) -> QueryState:
    return QueryState(version, 0, 0, ((0, 9),), BASE, 1, 1)


@pytest.mark.parametrize(
    "name, is_allowed",
    [
        ("state/0/3/7.delta", True),
        ("state/0/3/left-keyToNumValues/7.snapshot", True),
        ("state/0/3/7_6972c9cc-a8d3-415d-8425-0b8cdd38502e.changelog.crc", True),
        ("state/0/3/7.zip", True),
        ("state/0/3/SSTs/000008-667609e2.sst", True),
        ("state/0/3/../7.delta", False),
        ("state/0/3/a/b/7.delta", False),
        ("state/0/3/SSTs/../../../offsets", False),
        ("state/0/3/SSTs/.hidden", False),
        ("state/0/_metadata/metadata", False),
        ("offsets/7", False),
        ("/state/0/3/7.delta", False),
        ("state/0/3/7.delta\n", False),
        ("state/0/3/7.sh", False),
    ],
)
def test_a_part_names_only_files_of_the_state(name: str, is_allowed: bool) -> None:
    assert names.is_of_state(name) == is_allowed
    encoded = part(change(name, b"LZ4"))
    if is_allowed:
        assert query_state.decode(encoded, "record")[0][0].name == name
    else:
        with pytest.raises(InvalidLogError, match="record: the state in it cannot be decoded"):
            query_state.decode(encoded, "record")


@pytest.mark.parametrize("cut", [0, 3, 4, 10, -1])
def test_a_cut_part_is_an_error(cut: int) -> None:
    encoded = part(change("state/0/0/1.delta", b"LZ4Block"))
    with pytest.raises(InvalidLogError, match="cannot be decoded"):
        query_state.decode(encoded[:cut], "record")


def test_a_piece_outside_of_its_file_is_an_error() -> None:
    encoded = part(of_copy("state/0/0/1.delta", 5, b"LZ4", 7, BASE))
    with pytest.raises(InvalidLogError, match="no part of a file"):
        query_state.decode(encoded, "record")


def test_a_state_is_written_from_its_copy_and_its_changes(tmp_path: Path) -> None:
    parts = [
        part(
            of_copy("state/0/0/1.snapshot", 0, b"LZ4", 8, BASE), change("state/0/0/2.delta", b"2")
        ),
        part(of_copy("state/0/0/1.snapshot", 0, b"other", 5, BASE + 1)),
        part(of_copy("state/0/0/1.snapshot", 3, b"Block", 8, BASE)),
    ]
    query_state.write(tmp_path, state(2), [(f"record {n}", part) for n, part in enumerate(parts)])
    assert (tmp_path / "state/0/0/1.snapshot").read_bytes() == b"LZ4Block"
    assert (tmp_path / "state/0/0/2.delta").read_bytes() == b"2"


@pytest.mark.parametrize("lost", [0, 2])
def test_a_state_whose_copy_lacks_a_part_is_an_error(tmp_path: Path, lost: int) -> None:
    contents = [(0, b"LZ4"), (3, b"Blo"), (6, b"ck")]
    parts = [part(of_copy("state/0/0/1.snapshot", at, data, 8, BASE)) for at, data in contents]
    del parts[lost]
    with pytest.raises(InvalidLogError, match="lack a part of"):
        query_state.write(tmp_path, state(1), [("record", part) for part in parts])


def test_a_state_that_lacks_a_version_is_an_error(tmp_path: Path) -> None:
    parts = [part(change("state/0/0/1.delta", b"1")), part(change("state/0/0/3.delta", b"3"))]
    with pytest.raises(InvalidLogError, match="state/0/0 lacks version 2"):
        query_state.write(tmp_path, state(3), [("record", part) for part in parts])


def described(*paths: str) -> bytes:
    store = {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [*paths]}
    fields = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [store]}
    return b"v2\n" + json.dumps(fields).encode()


def test_a_schema_is_named_where_the_folder_is_now(tmp_path: Path) -> None:
    place = tmp_path / 'a "new" place'
    name = "state/0/_stateSchema/default/0_9c90"
    moved = query_state.moved("state/0/_metadata/v2/0", described(f"file:/old/ck/{name}"), place)
    (store,) = json.loads(moved.splitlines()[1])["stateStoreInfo"]
    assert store["stateSchemaFilePaths"] == [f"file:{place}/{name}"]
    assert store["numPartitions"] == 2 and moved.startswith(b"v2\n")


@pytest.mark.parametrize(
    "path",
    ["file:/etc/passwd", "s3a://other/state/0/_stateSchema/../../x", "", "state/0/0/1.delta"],
)
def test_a_schema_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidLogError, match="a schema that is not in it"):
        query_state.moved("state/0/_metadata/v2/0", described(path), tmp_path)


def test_a_state_in_too_many_records_is_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        QueryState(1, 0, 0, ((0, limits.STATE_RECORDS),), BASE, 1, 1)
    for runs in (((3, 2),), ((5, 6), (1, 2))):
        with pytest.raises(ValueError, match="no order"):
            QueryState(1, 0, 0, runs, BASE, 1, 1)
