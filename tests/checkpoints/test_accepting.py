"""A folder that is rebuilt from a forged record holds no orders for Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from isal.isal_zlib import crc32

from sparkwal.checkpoints import packing
from sparkwal.checkpoints.accepting import accepted, check_listed
from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import SlotHeader
from tests.checkpoints.conftest import Room

TIMES = {"batchWatermarkMs": 0, "batchTimestampMs": 1}
LIST = b'v1\n{"path":"file:///data/in/a","timestamp":1,"batchId":3}'


def plan(conf: object = None, offset: str = '{"logOffset":2}', **more: object) -> bytes:
    metadata = {**TIMES, "conf": {} if conf is None else conf, **more}
    return f"v1\n{json.dumps(metadata)}\n{offset}".encode()


def settings(files: dict[str, bytes], name: str = "offsets/7") -> object:
    return json.loads(files[name].splitlines()[1])["conf"]


def test_a_plan_keeps_the_settings_that_spark_writes() -> None:
    conf = {
        "spark.sql.shuffle.partitions": "200",
        "spark.sql.streaming.join.stateFormatVersion": "2",
        "spark.sql.streaming.multipleWatermarkPolicy": "min",
    }
    files = {"offsets/7": plan(conf), "offsets/6": plan(conf), "commits/6": b"v1\n{}"}
    assert accepted(files, 7, "here") == files


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.streaming.stateStore.providerClass", "evil.Provider"),
        ("spark.sql.streaming.stateStore.compression.codec", "evil.Codec"),
        ("spark.sql.extensions", "evil.Extensions"),
        ("spark.sql.shuffle.partitions", "evil.Class"),
        ("spark.sql.shuffle.partitions", 7),
        ("spark.sql.shuffle.partitions", "9" * 40),
        ("spark.sql.shuffle.partitions", "0"),
        ("spark.sql.shuffle.partitions", "100001"),
        ("spark.sql.streaming.internal.stateStore.partitions", "2000000000"),
        ("spark.sql.streaming.aggregation.stateFormatVersion", "9" * 41),
    ],
)
@pytest.mark.parametrize("at", ["offsets/7", "offsets/6"])
def test_a_plan_loses_any_other_setting(at: str, name: str, value: object) -> None:
    allowed = {"spark.sql.streaming.join.stateFormatVersion": "2"}
    files = {"offsets/7": plan(), "offsets/6": plan(), at: plan({**allowed, name: value})}
    taken = accepted(files, 7, "here")
    assert settings(taken, at) == allowed
    assert taken[at].splitlines()[2] == files[at].splitlines()[2]
    assert json.loads(taken[at].splitlines()[1]) == {**TIMES, "conf": allowed}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"v1",
        b"v1\n",
        b"v1\n[]\n-",
        b'v1\n{"conf":[]}\n-',
        b'v1\n{"conf":null}\n-',
        b'v1\n{"conf":{"a":"b"},"conf":{}}\n-',
        b'v1\n{"conf":{"a":"b","a":"c"}}\n-',
        b"v1\n" + b"[" * 100_000 + b"\n-",
        b"v1\n\xff\n-",
    ],
)
def test_other_bytes_than_a_plan_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidLogError, match="here: 'offsets/6' in its checkpoint is no plan"):
        accepted({"offsets/7": plan(), "offsets/6": text}, 7, "here")


@pytest.mark.parametrize("name", ["offsets/8", "offsets/5", "commits/7", "commits/8"])
def test_a_plan_of_another_microbatch_is_refused(name: str) -> None:
    with pytest.raises(InvalidLogError, match=f"microbatch 7 holds '{name}'"):
        accepted({"offsets/7": plan(), name: plan()}, 7, "here")


def test_a_list_of_files_that_the_plan_has_not_read_is_left_out() -> None:
    read = {f"sources/0/{number}": LIST for number in range(3)}
    later = {f"sources/0/{number}": LIST for number in (3, 10**18)}
    files = {"offsets/7": plan(), **read}
    assert accepted({**files, **later}, 7, "here") == files
    named = b'v2\n{"conf":{}}\norders:{"logOffset":2}'
    files = {"offsets/7": named, "sources/orders/2": LIST}
    assert accepted({**files, "sources/orders/3": LIST}, 7, "here") == files


def test_a_compacted_list_of_files_that_the_plan_has_not_read_is_refused() -> None:
    assert accepted({"offsets/7": plan(), "sources/0/2.compact": LIST}, 7, "here")
    with pytest.raises(InvalidLogError, match="'sources/0/9.compact' lists"):
        accepted({"offsets/7": plan(), "sources/0/9.compact": LIST}, 7, "here")


def listing(path: str, entry: str = "") -> dict[str, bytes]:
    entry = entry or json.dumps({"path": path, "timestamp": 1, "batchId": 2})
    return {"offsets/7": plan(), "sources/0/2": f"v1\n{entry}".encode()}


OWN = ("s3://bucket/wal", "/data/checkpoint")


@pytest.mark.parametrize(
    ("path", "roots"),
    [
        ("file:///in/a.csv", ["/in"]),
        ("file:/in/day=1/a%20b.csv", ["s3://b/x", "file:///in/"]),
        ("s3a://bucket/in/a.csv", ["s3://bucket/in"]),
        ("hdfs://nn:9000/in/a", ["hdfs://nn:9000/"]),
    ],
)
def test_a_list_may_name_files_below_the_folders_of_its_source(path: str, roots: list[str]) -> None:
    check_listed(listing(path), roots, OWN)


@pytest.mark.parametrize(
    "path",
    [
        *("file:///home/precious", "file:///input/a", "file:///in/../home/a", "/home/a", "in/a"),
        *("file:///in/%2e%2e/home/a", "file:///in/..%2Fhome/a", "s3://in/a", "hdfs://nn/in/a"),
        *("file://host/in/a", "FILE:/home/a", "", "//in/a"),
    ],
)
def test_a_list_that_names_another_file_is_refused(path: str) -> None:
    with pytest.raises(InvalidLogError, match="'sources/0/2' in the checkpoint"):
        check_listed(listing(path), ["/in"], OWN)


def listings(*paths: str) -> dict[str, bytes]:
    """A list of one file for each microbatch."""
    lists = {f"sources/0/{number}": listing(path) for number, path in enumerate(paths)}
    return {name: files["sources/0/2"] for name, files in lists.items()}


@pytest.mark.parametrize(
    "paths",
    [
        ("s3a://bucket/in/a",),
        ("s3a://bucket/in/a", "s3n://bucket/in/day=1/b"),
        ("s3://other/a", "s3://other/wal/b"),
        ("file:///data/in/a", "file:///data/in/..b"),
        ("file:///home/user/in/a",),
        ("file:///usr2/in/a",),
        ("hdfs://nn/in/a", "hdfs://nn/in2/b"),
    ],
)
def test_without_files_under_a_sources_files_share_a_folder(
    monkeypatch: pytest.MonkeyPatch, paths: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    check_listed(listings(*paths), (), OWN)
    # Each source has its own.
    check_listed(
        {**listings(*paths), "sources/1/0": listing("gs://b/in/a")["sources/0/2"]}, (), OWN
    )


@pytest.mark.parametrize(
    "paths",
    [
        ("s3a://bucket/in/a", "s3a://bucket/precious"),
        ("s3a://bucket/in/a", "s3a://other/in/b"),
        ("s3a://bucket/in/a", "file:///data/in/b"),
        ("s3a://bucket/wal/batches/a",),
        ("file:///data/checkpoint/offsets/1",),
        ("file:///data/in/a", "file:///data/precious"),
        ("file:///a",),
        ("file:///home/user/notes",),
        ("file:///home/user/.ssh/id",),
        ("file:///home/other/a", "file:///home/user/in/a"),
        ("file:///etc/passwd",),
        ("file:///proc/self/environ",),
        ("in/a",),
        ("file:///data/in/../a",),
    ],
)
def test_without_files_under_files_of_no_one_folder_are_refused(
    monkeypatch: pytest.MonkeyPatch, paths: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    with pytest.raises(InvalidLogError, match="find out who wrote its record"):
        check_listed(listings(*paths), (), OWN)


@pytest.mark.parametrize(
    "entry",
    [
        '{"path":"file:///home/a","path":"file:///in/a","batchId":2}',
        '{"path":5,"batchId":2}',
        '{"path":"file:///in/a"}{"path":"file:///home/a"}',
    ],
)
def test_a_list_that_two_parsers_may_read_differently_is_refused(entry: str) -> None:
    with pytest.raises(InvalidLogError, match="is no list of files"):
        check_listed(listing("", entry), ["/in"], OWN)


@pytest.mark.parametrize(
    "offset", ["-", "2", '{"logOffset": 9}', '{"logOffset":9 }', '{"other":1}', ""]
)
def test_a_list_of_files_without_a_plan_of_it_is_left_out(offset: str) -> None:
    escaped = LIST.replace(b"path", b"p\\u0061th")
    files = {"offsets/7": plan(offset=offset), "sources/0/0": LIST, "sources/0/1": escaped}
    assert accepted(files, 7, "here").keys() == {"offsets/7"}


@pytest.mark.parametrize(
    "line",
    [
        # Spark's parser ignores what follows an object, and takes the first of two names.
        b'{"path":"file:///data/in/a","timestamp":1,"batchId":3} and more',
        b'{"path":"file:///etc/passwd","path":{},"timestamp":1,"batchId":3}',
        b'\xef\xbb\xbf {"path":"file:///data/in/a","timestamp":1,"batchId":3}',
        b'{"path":"file:///etc/\xff","timestamp":1,"batchId":3}',
        b'{"path":7,"timestamp":1,"batchId":3}',
        b'{"path":"file:///etc/passwd","timestamp":NaN1}',
        b'{"a":' * 100_000,
    ],
)
def test_a_line_that_spark_may_take_for_a_file_is_left_out(line: bytes) -> None:
    files = {"offsets/7": plan(offset="-"), "sources/0/0": b"v1\n" + line}
    assert accepted(files, 7, "here").keys() == {"offsets/7"}


def test_files_of_other_sources_stay() -> None:
    files = {
        "offsets/7": plan(offset='{"topic":{"0":5}}\n-'),
        "sources/0/0": b'v1\n{"path":{"0":0}}',
        "sources/1/0": b"\0\xff",
        "sources/1/deep/er/1": LIST,
        "_schema_log_1/0": b"v1\n{}",
    }
    assert accepted(files, 7, "here") == files


def forge(
    room: Room, position: int, query_id: str, files: dict[str, bytes], **files_at: int
) -> None:
    """Put a record of a query that carries these files."""
    record = room.commits()[-1]
    block = packing.encode(files)
    entry = record.checkpoints[query_id]
    elsewhere = {name: (at, len(LIST)) for name, at in files_at.items()}
    vars(entry).update(bytes=len(block), crc32=crc32(block), files=elsewhere)
    put(room, record, block)


def put(room: Room, header: SlotHeader, block: bytes) -> None:
    key = keys.key("wal", header.number)
    opened = arrowfile.open_front(room.store.objects[key], "here")
    vars(header).update(inline=(), rows=0)
    room.store.objects[key] = arrowfile.encode(header, opened.spark_schema, block)


def test_a_folder_made_from_a_forged_record_reads_no_file_that_it_names(room: Room) -> None:
    folder = room.checkpoint()
    stream = room.stream(folder)
    stream.run(range(3))
    files = {
        "offsets/2": plan({"spark.sql.streaming.stateStore.providerClass": "evil.Provider"}),
        "offsets/1": plan(offset='{"logOffset":1}'),
        "commits/1": b"v1\n{}",
        **{f"sources/0/{number}": LIST for number in range(9)},
    }
    forge(room, 3, stream.query_id, files)
    shutil.rmtree(folder)
    rebuilt = Path(room.checkpoint())
    assert sorted(file.name for file in (rebuilt / "sources/0").iterdir()) == ["0", "1", "2"]
    assert "evil" not in (rebuilt / "offsets/2").read_text()


def test_a_forged_record_that_names_a_file_beside_the_folder_makes_no_folder(room: Room) -> None:
    folder = room.checkpoint()
    stream = room.stream(folder)
    stream.run(range(3))
    precious = listing(f"file://{Path(folder).parent}/precious")["sources/0/2"]
    files = {
        "offsets/2": plan(),
        "offsets/1": plan(offset='{"logOffset":1}'),
        "commits/1": b"v1\n{}",
        "sources/0/2": precious,
    }
    forge(room, 3, stream.query_id, files)
    shutil.rmtree(folder)
    with pytest.raises(InvalidLogError, match="/precious': find out who wrote its record"):
        room.checkpoint()
    assert not Path(folder).exists()


def test_a_file_that_its_record_lacks_is_an_error_with_its_name(room: Room) -> None:
    folder = room.checkpoint()
    stream = room.stream(folder)
    stream.run(range(3))
    files = {"offsets/2": plan(), "offsets/1": plan(), "commits/1": b"v1\n{}"}
    forge(room, 3, stream.query_id, files, **{"sources/0/9.compact": 1})
    shutil.rmtree(folder)
    with pytest.raises(InvalidLogError, match="position 1 of .* 'sources/0/9.compact'"):
        room.checkpoint()


def test_a_file_at_a_position_that_no_log_has_is_an_error(room: Room) -> None:
    folder = room.checkpoint()
    stream = room.stream(folder)
    stream.run(range(3))
    files = {"offsets/2": plan(), "offsets/1": plan(), "commits/1": b"v1\n{}"}
    forge(room, 3, stream.query_id, files, **{"sources/0/9.compact": 2**63 - 1})
    shutil.rmtree(folder)
    with pytest.raises(InvalidLogError, match="no log comes to position"):
        room.checkpoint()
