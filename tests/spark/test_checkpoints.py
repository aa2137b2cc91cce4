"""Spark's own checkpoint folders, lost, restored and mixed up: each input row is stored once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from reading.collected import move_floor

import sparkwal
from sparkwal import events
from sparkwal.checkpoints import folder
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.errors import OptionError
from sparkwal.options.spark_versions import checkpoint_file_manager
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from sparkwal.testing.proxy import S3Proxy
from tests.consumers import bound
from tests.spark.queries import (
    append,
    assert_one_error,
    commits,
    numbers,
    objects,
    refused,
    wait_for,
)

COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


@pytest.fixture(autouse=True)
def fast_files(spark: SparkSession) -> Iterator[None]:
    """Apply the settings of docs/operations.md."""
    spark.conf.set(FILE_MANAGER, checkpoint_file_manager(spark.version))
    yield
    spark.conf.unset(FILE_MANAGER)
    spark.conf.unset(COMPACT_INTERVAL)


def add(source: Path, files: range) -> None:
    """Files of ten values each: file n holds 10 n … 10 n + 9."""
    source.mkdir(exist_ok=True)
    for file in files:
        lines = "".join(f"{value}\n" for value in range(10 * file, 10 * file + 10))
        draft = source / f".{file:05d}"
        draft.write_text(lines)
        draft.rename(source / f"{file:05d}.txt")


def read_files(spark: SparkSession, source: Path, each: int = 1, **options: object) -> DataFrame:
    reader = spark.readStream.option("maxFilesPerTrigger", each).options(**options)  # type: ignore[arg-type]
    return reader.text(str(source)).selectExpr("cast(value as bigint) as value")


def stored(path: object, **options: object) -> list[int]:
    """The values in the log, sorted."""
    return sorted(sparkwal.Log(str(path), **options).to_pandas()["value"].tolist())


def checkpoint(path: object, place: Path, name: str = "orders", **options: object) -> Path:
    return Path(sparkwal.checkpoint(str(path), name, folder=place, **options))


@pytest.mark.proves("compare-replay", "same-offsets")
def test_the_third_of_many_backups_is_refused_and_the_log_brings_all_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    place = tmp_path / "ck"
    source = tmp_path / "in"
    add(source, range(3))
    append(read_files(spark, source), log, checkpoint(log, place))
    shutil.copytree(place, tmp_path / "backup")
    add(source, range(3, 12))
    append(read_files(spark, source), log, checkpoint(log, place))
    assert len(commits(log)) == 12
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    add(source, range(12, 14))
    # Without sparkwal.checkpoint, as many files at once as there are.
    shown = refused(lambda: append(read_files(spark, source, 100), log, place))
    assert_one_error(shown, "DivergedCheckpointError", "no row is lost", "sparkwal.checkpoint")
    assert stored(log) == list(range(120))
    append(read_files(spark, source, 100), log, checkpoint(log, place))
    assert stored(log) == list(range(140))
    assert sparkwal.verify(str(log)).ok


@pytest.mark.slow
def test_a_users_own_checkpoint_is_refused_for_another_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, other, place, source = (tmp_path / name for name in ("log", "other", "ck", "in"))
    add(source, range(3))
    append(read_files(spark, source), log, place)
    add(source, range(3, 4))
    shown = refused(lambda: append(read_files(spark, source), other, place))
    assert_one_error(shown, "DivergedCheckpointError", "there is no log at", "sparkwal.checkpoint")
    with sparkwal.Appender(str(other), pa.schema([("value", pa.int64())]), producer_id="p") as wal:
        wal.append([{"value": 0}]).result()
    shown = refused(lambda: append(read_files(spark, source), other, place))
    assert_one_error(shown, "DivergedCheckpointError", "belongs to the log", "sparkwal.checkpoint")
    append(read_files(spark, source), log, place)
    assert stored(log) == list(range(40))
    assert stored(other) == [0]


@pytest.mark.proves("rebuild-from-last", "carry-source-files")
def test_the_folder_is_lost_again_and_again_and_each_run_costs_a_few_requests(
    spark: SparkSession, tmp_path: Path, s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy
) -> None:
    path, options = s3_path
    options = {**options, "endpoint": s3_proxy.url}
    spark.conf.set(COMPACT_INTERVAL, "3")
    source, place = tmp_path / "in", tmp_path / "ck"

    def counted() -> Counter[str]:
        counts = Counter(each.kind for each in s3_proxy.requests if "/proof/" not in each.key)
        s3_proxy.reset()
        return counts

    done = 0
    # At a compacted list (every third), on both sides of it, and beyond the next.
    for more in (1, 2, 1, 1, 3):
        add(source, range(done, done + more))
        place = checkpoint(path, tmp_path / "ck", **options)
        rebuilt = counted()
        assert rebuilt["LIST"] == 1 and rebuilt["GET"] <= 3 and rebuilt.keys() <= {"LIST", "GET"}
        append(read_files(spark, source), path, place, **options)
        # One PUT for each microbatch, of rows and checkpoint together. Before the first a cold
        # start, with a look whose path it is, and two GETs which prove that there is no log. Later
        # a look at the head and at the leader record: this application is the leader already; and,
        # as a run has ended, one at the next slot, which an appender may have taken.
        first = {"LIST": 2, "GET": 2, "PUT": 1 + more}
        assert counted() == ({"LIST": 1, "GET": 3, "PUT": more} if done else first)
        done += more
        for file in source.iterdir():
            file.unlink()  # Archived: no query can read them a second time.
        shutil.rmtree(place)
    assert stored(path, **options) == list(range(10 * done))
    assert sparkwal.verify(path, **options).ok


def test_a_log_is_copied_to_a_log_by_machines_that_lose_their_disks(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    schema = pa.schema([("value", pa.int64())])
    for begin in (0, 20, 40):
        with sparkwal.Appender(str(first), schema, producer_id="p") as wal:
            for value in range(begin, begin + 20, 10):
                wal.append([{"value": each} for each in range(value, value + 10)]).result()
        stream = spark.readStream.format("weaselwal").option("maxCommitsPerTrigger", 1)
        place = checkpoint(second, tmp_path / "ck")
        append(stream.load(str(first)), second, place)
        shutil.rmtree(place)
    assert stored(second) == list(range(60))


@pytest.mark.parametrize(
    "lost", ["the folder", pytest.param("its last microbatch", marks=pytest.mark.slow)]
)
def test_a_rate_source_of_numbers_continues_at_the_end_of_the_log(
    spark: SparkSession, tmp_path: Path, lost: str
) -> None:
    log = tmp_path / "log"
    for _ in range(3):
        place = checkpoint(log, tmp_path / "ck")
        append(numbers(spark, 10, 2), log, place)
        if lost == "the folder":
            shutil.rmtree(place)
        else:
            last = max(
                int(each.name) for each in (place / "offsets").iterdir() if each.name[0] != "."
            )
            for kind in ("offsets", "commits"):
                (place / kind / str(last)).unlink()
    assert stored(log) == list(range(30))


@pytest.mark.slow
def test_a_rate_source_of_times_continues_at_the_end_of_the_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It counts from the moment of its first start, which only its checkpoint knows."""
    log = tmp_path / "log"

    def written() -> int:
        return len([each for each in commits(log) if each.rows]) if log.exists() else 0

    for _ in range(3):
        place = checkpoint(log, tmp_path / "ck")
        before = written()
        rows = spark.readStream.format("rate").option("rowsPerSecond", 7).load()
        query = (
            rows.writeStream.format("weaselwal")
            .option("checkpointLocation", str(place))
            .start(str(log))
        )
        try:
            wait_for(lambda: written() > before)  # noqa: B023
        finally:
            query.stop()
        shutil.rmtree(place)
    found = stored(log)
    assert len(found) >= 21 and found == list(range(len(found)))


@pytest.mark.slow
def test_swapped_folders_of_two_queries_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sources = {name: tmp_path / f"in-{name}" for name in ("orders", "bills")}
    add(sources["orders"], range(2))
    add(sources["bills"], range(100, 102))
    for name, source in sources.items():
        append(read_files(spark, source), log, checkpoint(log, tmp_path / name, name))
    (tmp_path / "orders").rename(tmp_path / "x")
    (tmp_path / "bills").rename(tmp_path / "orders")
    (tmp_path / "x").rename(tmp_path / "bills")
    add(sources["orders"], range(2, 3))
    for name, source in sources.items():
        with pytest.raises(OptionError, match="is the checkpoint of query"):
            checkpoint(log, tmp_path / name, name)
        append(read_files(spark, source), log, checkpoint(log, tmp_path / f"new-{name}", name))
    assert stored(log) == [*range(30), *range(1000, 1020)]


@pytest.mark.slow
def test_a_log_is_deleted_and_recreated_under_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    log, source = tmp_path / "log", tmp_path / "in"
    add(source, range(3))
    place = checkpoint(log, tmp_path / "ck")
    append(read_files(spark, source), log, place)
    shutil.rmtree(log)
    append(numbers(spark, 10).selectExpr("value + 1000 as value"), log, tmp_path / "another")
    add(source, range(3, 4))
    before = objects(log)
    # The writer of the new log is the leader; a takeover must recognize the log's beginning.
    refused(lambda: append(read_files(spark, source), log, place))
    shown = refused(lambda: append(read_files(spark, source), log, place))
    assert_one_error(shown, "DivergedCheckpointError", "deleted and recreated")
    assert objects(log) == before
    append(read_files(spark, source), log, checkpoint(log, tmp_path / "ck"))
    assert stored(log) == [*range(40), *range(1000, 1010)]
    # And the folder of that log is no folder of another one.
    with pytest.raises(OptionError, match="is the checkpoint of query 'orders'"):
        checkpoint(tmp_path / "other", tmp_path / "ck")


@pytest.mark.parametrize(
    "keep", [pytest.param("an older folder", marks=pytest.mark.slow), "nothing"]
)
def test_microbatches_without_rows_are_in_no_log(
    spark: SparkSession, tmp_path: Path, keep: str
) -> None:
    log, source = tmp_path / "log", tmp_path / "in"
    place = tmp_path / "ck"
    hidden = {1, 2, 4}
    done = 0
    for more in (2, 3, 1):
        add(source, range(done, done + more))
        done += more
        checkpoint(log, place)
        if keep == "an older folder":
            shutil.copytree(place, tmp_path / "copy")
        tens = ",".join(map(str, hidden))
        rows = read_files(spark, source).where(f"value div 10 not in ({tens})")
        append(rows, log, place)
        shutil.rmtree(place)
        if keep == "an older folder":
            (tmp_path / "copy").rename(place)
    expected = [v for v in range(10 * done) if v // 10 not in hidden]
    assert stored(log) == expected


def test_each_of_several_sources_is_remembered(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    one = tmp_path / "one"
    two = tmp_path / "two"
    spark.conf.set(COMPACT_INTERVAL, "3")
    for number in range(3):
        add(one, range(number, number + 1))
        add(two, range(100 + 2 * number, 102 + 2 * number))
        place = checkpoint(log, tmp_path / "ck")
        counted = numbers(spark, 10).selectExpr("value + 10000 as value")
        rows = read_files(spark, one).union(read_files(spark, two)).union(counted)
        append(rows.coalesce(1), log, place)
        names = {each.split("/")[1] for each in objects(place) if each.startswith("sources/")}
        assert names >= {"0", "1"}
        shutil.rmtree(place)
    found = stored(log)
    files = [*range(30), *range(1000, 1060)]
    # How many microbatches a run has, and so how many numbers, is for the slowest source to say.
    assert found == files + list(range(10000, 10000 + len(found) - len(files)))
    assert len(found) >= len(files) + 30


@pytest.mark.slow
def test_a_checkpoint_that_is_too_large_stays_in_its_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, source = tmp_path / "log", tmp_path / "in"
    place = checkpoint(log, tmp_path / "ck")
    for number in range(2):
        add(source, range(number, number + 1))
        append(read_files(spark, source), log, checkpoint(log, place), checkpointMaxBytes=100)
    assert commits(log)[-1].checkpoints[folder.query_of(place) or ""].bytes <= 100
    with pytest.raises(OptionError, match=r"larger than checkpointMaxBytes"):
        checkpoint(log, tmp_path / "new")
    add(source, range(2, 3))
    append(read_files(spark, source), log, checkpoint(log, place))
    add(source, range(3, 4))
    append(read_files(spark, source), log, checkpoint(log, tmp_path / "new"))
    assert stored(log) == list(range(40))


def test_a_crash_between_the_log_and_sparks_note_costs_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, source = tmp_path / "log", tmp_path / "in"
    for number in range(3):
        add(source, range(number, number + 1))
        place = checkpoint(log, tmp_path / "ck")
        append(read_files(spark, source), log, place)
        (place / "commits" / str(number)).unlink()
    assert stored(log) == list(range(30))
    # The microbatch that Spark repeats is skipped: it plans no other input.
    assert [each.batch_id for each in commits(log)] == [0, 1, 2]


@pytest.mark.slow
def test_another_machine_continues_while_the_first_still_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, source = tmp_path / "log", tmp_path / "in"
    add(source, range(2))
    first = checkpoint(log, tmp_path / "one")
    rows = read_files(spark, source)
    query = (
        rows.writeStream.format("weaselwal")
        .option("checkpointLocation", str(first))
        .start(str(log))
    )
    try:
        query.processAllAvailable()
        second = checkpoint(log, tmp_path / "two")
        add(source, range(2, 4))
        query.processAllAvailable()
        # The second folder does not know of the last two microbatches, and makes them one.
        shown = refused(lambda: append(read_files(spark, source, 2), log, second))
        assert_one_error(shown, "DivergedCheckpointError", "another machine continued the query")
    finally:
        query.stop()
    add(source, range(4, 5))
    append(read_files(spark, source, 2), log, checkpoint(log, second))
    assert stored(log) == list(range(50))


def test_a_checkpoint_among_the_objects_of_the_log_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    append(numbers(spark, 10), log, tmp_path / "beside")
    before = objects(log)
    place = log / "batches" / "ck"
    shown = refused(lambda: append(numbers(spark, 10), log, place))
    assert_one_error(shown, "OptionError", "the folder of the log's objects", "no row was written")
    shutil.rmtree(place)
    assert objects(log) == before


@pytest.mark.slow
def test_a_query_that_rarely_matches_reads_nothing_again_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, source = tmp_path / "log", tmp_path / "in"
    reported: list[events.Event] = []
    unsubscribe = events.subscribe(reported.append)
    try:
        for files in (range(1), range(1, 4), range(4, 6), range(6, 7)):
            add(source, files)
            place = checkpoint(log, tmp_path / "ck")
            rows = read_files(spark, source).where("value < 10 or value >= 60")
            query = append(rows, log, place)
            assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [
                10 for _ in files
            ]
    finally:
        unsubscribe()
    assert len([each for each in reported if isinstance(each, events.CheckpointRebuilt)]) == 1
    assert stored(log) == [*range(10), *range(60, 70)]
    assert [(each.batch_id, each.rows) for each in commits(log)] == [(0, 10), (6, 10)]


@pytest.mark.slow
def test_a_disk_is_lost_after_rows_that_a_consumer_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The floor of the log that the query reads is as high as its consumer lets it be."""
    first, second = tmp_path / "first", tmp_path / "second"
    reader = LogStore(LocalStore(first, fsync=False), "")
    schema = pa.schema([("value", pa.int64())])

    def grow(values: range) -> None:
        with sparkwal.Appender(str(first), schema, producer_id="p") as wal:
            for value in values:
                wal.append([{"value": value}]).result()

    def run() -> None:
        options = {"maxCommitsPerTrigger": 1, "consumer": "copy", "cursorInterval": "1ms"}
        rows = spark.readStream.format("weaselwal").options(**options).load(str(first))
        append(rows.where("value in (0, 12)"), second, checkpoint(second, tmp_path / "ck"))

    for begin in (0, 4, 8):
        grow(range(begin, begin + 4))
        run()
    (consumer,) = sparkwal.consumers(str(first))
    head = sparkwal.Log(str(first)).head()
    assert head is not None
    assert 0 < consumer.position < head.position
    move_floor(reader, bound(reader, head.log_id, head.position, None))
    shutil.rmtree(tmp_path / "ck")
    grow(range(12, 14))
    run()
    assert stored(second) == [0, 12]
    # And when rows have come the cursor moves on.
    grow(range(14, 15))
    run()
    (after,) = sparkwal.consumers(str(first))
    assert after.position > head.position
