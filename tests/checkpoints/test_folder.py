"""Which files of a checkpoint matter, and when two of them plan the same input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkwal.checkpoints import folder, names


def fill(place: Path, *names: str) -> Path:
    """Files that hold their own names."""
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    return place


def test_a_file_source_needs_its_last_compacted_list_and_all_later_ones(tmp_path: Path) -> None:
    lists = [*map(str, range(9)), "9.compact", *map(str, range(10, 19)), "19.compact", "20", "21"]
    fill(tmp_path, "metadata", "offsets/30", "offsets/29", "offsets/28", "commits/29", "commits/28")
    fill(tmp_path, *(f"sources/0/{name}" for name in lists))
    expected = ["offsets/30", "offsets/29", "commits/29"]
    expected += [f"sources/0/{name}" for name in ("19.compact", "20", "21")]
    sizes = folder.microbatch_files(tmp_path, 30)
    assert sizes == {name: len(name) for name in expected}


def test_checksums_and_files_that_are_being_written_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "offsets/0", "offsets/.0.crc", "sources/0/0", "sources/0/.0.crc")
    fill(tmp_path, "sources/0/.1.5d0c3f0e-9b3e-4d2a-8a43-0c1f0d9a6a11.tmp", "commits/.0.crc")
    assert folder.microbatch_files(tmp_path, 0).keys() == {"offsets/0", "sources/0/0"}
    assert folder.latest(tmp_path, "offsets") == 0 and folder.latest(tmp_path, "commits") == -1


def test_only_the_source_with_a_compacted_list_leaves_out_older_lists(tmp_path: Path) -> None:
    kafka, other = ["sources/1/0"], ["sources/2/_log/schema-1", "sources/2/_log/7"]
    fill(tmp_path, "offsets/0", "sources/0/8", "sources/0/9.compact", *kafka, *other)
    found = folder.microbatch_files(tmp_path, 0).keys()
    assert found == {"offsets/0", "sources/0/9.compact", *kafka, *other}


def test_a_query_without_a_folder_of_sources_has_only_its_plan(tmp_path: Path) -> None:
    assert folder.microbatch_files(tmp_path, 0) == {}
    fill(tmp_path, "offsets/0")
    assert folder.microbatch_files(tmp_path, 0).keys() == {"offsets/0"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id":5}', "\xff"])
def test_a_torn_metadata_file_names_no_query(tmp_path: Path, text: str) -> None:
    (tmp_path / "metadata").write_text(text, encoding="latin-1")
    (tmp_path / names.OWNER).write_text(text, encoding="latin-1")
    assert folder.query_of(tmp_path) is None and folder.owner_of(tmp_path) is None


def test_an_owner_comes_back_and_one_of_another_version_does_not(tmp_path: Path) -> None:
    owner = folder.Owner("s3://b/wal", "0" * 32, "nächtlich")
    (tmp_path / names.OWNER).write_bytes(folder.owner_text(owner))
    assert folder.owner_of(tmp_path) == owner
    more = {**json.loads(folder.owner_text(owner)), "more": 1}
    (tmp_path / names.OWNER).write_text(json.dumps(more))
    assert folder.owner_of(tmp_path) is None


def offsets(source: str = '{"logOffset":1}', ms: int = 1) -> bytes:
    return f'v1\n{{"batchTimestampMs":{ms}}}\n{source}'.encode()


def write(place: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


THEIRS = {
    "offsets/3": offsets(),
    "offsets/2": offsets("{}"),
    "commits/2": b"v1\n{}",
    "sources/0/2": b"a",
}


def test_the_same_input_planned_at_another_time_is_the_same(tmp_path: Path) -> None:
    write(tmp_path, {**THEIRS, "offsets/3": offsets(ms=2), "commits/2": b"v1\n{1}"})
    write(tmp_path, {"sources/0/3": b"of the next microbatch"})
    assert folder.other_input(THEIRS, {}, tmp_path, 3) is None
    # Spark keeps the last hundred, and no commit is an input.
    (tmp_path / "offsets/2").unlink()
    (tmp_path / "commits/2").unlink()
    assert folder.other_input(THEIRS, {}, tmp_path, 3) is None


@pytest.mark.parametrize(
    "name, data",
    [
        ("offsets/3", offsets('{"logOffset":2}')),
        ("offsets/3", offsets() + b"\n{}"),  # with one more source
        ("offsets/3", b""),
        ("offsets/3", b"v1\n{}"),
        ("offsets/3", offsets()[:-1]),
        ("offsets/3", None),
        ("offsets/2", offsets('{"logOffset":0}')),
        ("offsets/2", b""),
        ("sources/0/2", b"b"),
        ("sources/0/2", None),
    ],
)
def test_other_input_is_named(tmp_path: Path, name: str, data: bytes | None) -> None:
    write(tmp_path, THEIRS)
    (tmp_path / name).unlink()
    write(tmp_path, {} if data is None else {name: data})
    assert folder.other_input(THEIRS, {}, tmp_path, 3) == name


def test_two_torn_files_are_not_the_same(tmp_path: Path) -> None:
    torn = {"offsets/3": b"v1"}
    assert folder.other_input(torn, {}, write(tmp_path, torn), 3) == "offsets/3"


def test_the_size_of_files_in_earlier_records_counts(tmp_path: Path) -> None:
    write(tmp_path, {**THEIRS, "sources/0/9.compact": b"12345"})
    assert folder.other_input(THEIRS, {"sources/0/9.compact": (1, 5)}, tmp_path, 3) is None
    for elsewhere in ({"sources/0/9.compact": (1, 6)}, {"sources/0/19.compact": (1, 5)}):
        assert folder.other_input(THEIRS, elsewhere, tmp_path, 3) == next(iter(elsewhere))


@pytest.mark.parametrize(
    "location, expected",
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b/", "/a/b"),
        (" /a/ü %20[1] ", "/a/ü %20[1]"),
        ("s3a://bucket/ck", None),
        ("hdfs:///ck", None),
        ("file://host/a", None),
        ("", None),
        (" ", None),
    ],
)
def test_a_location_is_a_folder_only_on_this_disk(location: str, expected: str | None) -> None:
    assert folder.local_folder(location) == (Path(expected) if expected else None)
