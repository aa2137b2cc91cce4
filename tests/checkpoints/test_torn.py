"""A checkpoint folder after a loss of power, or deleted while its query runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparkwal
from sparkwal.checkpoints import folder, names
from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.checkpoints.folder import Owner
from sparkwal.checkpoints.rebuild import State, why_rebuild
from sparkwal.errors import DivergedCheckpointError
from sparkwal.format.header import REMOTE, STATEFUL, Checkpoint
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore

# The verdict on a whole folder, by a log without a microbatch of its query.
AHEAD = "it is ahead of the log"
QUERY = "1b4e28ba-2fa1-4a4c-9d7e-1f0c5a7c7f55"
OURS = Owner("log", "log-id", "orders")
OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"logOffset":%d}\n-\n'
DONE = b'v1\n{"nextBatchWatermarkMs":0}'
FILES = {
    names.METADATA: b'{"id":"%s"}' % QUERY.encode(),
    names.OWNER: folder.owner_text(OURS),
    "offsets/6": OFFSETS % 6,
    "offsets/7": OFFSETS % 7,
    "offsets/8": OFFSETS % 8,
    "commits/6": DONE,
    "commits/7": DONE,
    "sources/0/5": b"\0v1\n5",  # as Kafka's source writes it
    "sources/0/8": b'v1\n{"path":"file:///in/8"}',
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Microbatch 8 is planned, 7 was the last that was done."""
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def why(place: Path, last: int, *, log_id: str | None = "log-id") -> str | None:
    """The reason for a rebuild without a log: torn files are found before the log is read."""
    state = State(QUERY, log_id, 1000, last, None)
    return why_rebuild(LogStore(MemoryStore(), "wal"), state, place, OURS)


def test_a_whole_folder_is_not_torn(place: Path) -> None:
    assert folder.torn(place) is None
    assert why(place, -1) == AHEAD


@pytest.mark.parametrize(
    "name",
    ["offsets/8", "offsets/7", "commits/7", "sources/0/5", "sources/0/8", names.METADATA],
)
@pytest.mark.parametrize("content", [b"", bytes(20), None], ids=["empty", "zeros", "cut"])
def test_a_file_that_lost_its_content_is_found(
    place: Path, name: str, content: bytes | None
) -> None:
    if content is None and name.startswith("sources/"):
        content = FILES[name][:-4] + bytes(4)  # a source's own text is not ours to read
    (place / name).write_bytes(FILES[name][:12] if content is None else content)
    for last in (-1, 6, 7, 8):
        assert why(place, last) == f"it is incomplete: {name}"
    assert why(place, -1, log_id=None) == f"it is incomplete: {name}"


@pytest.mark.parametrize("name", ["offsets/8", "commits/7"])
def test_a_file_that_is_nested_too_deeply_is_torn(place: Path, name: str) -> None:
    (place / name).write_bytes(b'v1\n{"a":' + b"[" * 100_000)
    assert folder.torn(place) == name


def test_a_missing_plan_that_spark_needs_is_found(place: Path) -> None:
    (place / "offsets/7").unlink()
    assert why(place, 7) == "it is incomplete: offsets/7"


def test_a_note_without_its_plan_is_found(place: Path) -> None:
    for number in (6, 7, 8):
        (place / f"offsets/{number}").unlink()
    assert why(place, -1) == "it is incomplete: offsets/7"


@pytest.mark.parametrize("left", ["nothing", "older lists", "an empty folder"])
def test_a_plan_of_files_without_the_list_of_them_is_found(place: Path, left: str) -> None:
    """Spark would stop at every start: batch 8 doesn't exist."""
    (place / "sources/0/8").unlink()
    if left != "older lists":
        (place / "sources/0/5").unlink()
    if left == "nothing":
        (place / "sources/0").rmdir()
        (place / "sources").rmdir()
    for last in (-1, 6, 7, 8):
        assert why(place, last) == "it is incomplete: sources/0"


def test_the_list_of_files_that_a_later_one_repeats_may_be_gone(place: Path) -> None:
    (place / "sources/0/8").rename(place / "sources/0/9.compact")
    assert why(place, -1) == AHEAD


def test_a_source_that_keeps_no_list_needs_none(place: Path) -> None:
    for name in ("sources/0/5", "sources/0/8"):
        (place / name).unlink()
    for number in (6, 7, 8):
        (place / f"offsets/{number}").write_bytes(b'v1\n{"batchWatermarkMs":0}\n{"default":8}\n')
    assert why(place, -1) == AHEAD


def test_a_query_whose_first_plan_was_killed_in_the_middle_begins_again(
    spark, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"value":7}')
    log = str(tmp_path / "wal")
    checkpoint = sparkwal.checkpoint(log, "orders", folder=tmp_path / "checkpoint")
    left = Path(checkpoint) / "offsets"
    left.mkdir()
    for name in (".0.0fb5a830-eb53-4111-820c-79afb7b5d31e.tmp", "..0.0fb5a830.tmp.crc"):
        (left / name).write_bytes(b"v1")
    # Spark begins only in an empty folder, without hidden files.
    assert sparkwal.checkpoint(log, "orders", folder=tmp_path / "checkpoint") == checkpoint
    rows = spark.readStream.schema("value BIGINT").json(str(tmp_path / "in"))
    writer = rows.writeStream.format("weaselwal").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(log).awaitTermination()
    assert list(sparkwal.Log(log).to_pandas()["value"]) == [7]


def test_files_that_spark_does_not_read_at_a_start_may_be_torn(place: Path) -> None:
    for name in ("offsets/6", "commits/6", "sources/0/.8.crc", "offsets/.9.0b5c.tmp"):
        (place / name).write_bytes(b"")
    assert why(place, -1) == AHEAD


def carried(position: int, size: int, reason: str = "") -> Checkpoint:
    return Checkpoint(position, 1, size, 0, reason, {}, {})


@pytest.mark.parametrize("left", ["nothing", "a plan"])
def test_a_folder_that_is_deleted_under_its_query_stops_it(place: Path, left: str) -> None:
    checkpoint = StreamCheckpoint(str(place), QUERY, 10**6)
    for name in FILES:
        (place / name).unlink()
    if left == "a plan":
        (place / "offsets/8").write_bytes(OFFSETS % 8)  # Spark makes it again
    with pytest.raises(DivergedCheckpointError, match="was deleted while query") as error:
        checkpoint.capture(8, carried(7, 100))
    assert "sparkwal wrote nothing" in str(error.value)


@pytest.mark.parametrize("last", [None, carried(7, 0, REMOTE), carried(7, 0, STATEFUL)])
def test_a_checkpoint_that_was_never_on_this_disk_is_remote(
    tmp_path: Path, last: Checkpoint | None
) -> None:
    checkpoint = StreamCheckpoint(str(tmp_path / "in hdfs"), QUERY, 10**6)
    assert checkpoint.capture(8, last).reason == REMOTE


def test_a_query_may_move_its_checkpoint_to_an_object_store() -> None:
    checkpoint = StreamCheckpoint("s3a://bucket/checkpoint", QUERY, 10**6)
    assert checkpoint.capture(8, carried(7, 100)).reason == REMOTE
