"""A stream that begins with the rows of the table, without Spark's JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable

import sparkwal
from sparkwal.errors import NewerFormatError, OptionError, TableReadError
from sparkwal.format import versions
from sparkwal.lifecycle import from_table
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import Policy
from sparkwal.lifecycle.table_replay import TableRows
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.spark.source import StreamReader, log_schema
from tests.delta_rs_table import DeltaRsTable
from tests.lifecycle.lakes import Lake, value
from tests.lifecycle.table_runs import SEEDS, run_seed

Rows = list[tuple[Any, ...]]


def reader(path: str, **options: Any) -> StreamReader:
    given = {"startingPosition": "table", "consumer": "c", "includeMetadata": True, **options}
    settings = from_keywords(SourceOptions, path, given)
    return StreamReader(settings, log_schema(settings), 1)


def rows(stream: StreamReader, start: Any, end: Any) -> Rows:
    """The ids of a microbatch, with their positions."""
    found = []
    for task in stream.partitions(start, end):
        for batch in stream.read(task):
            found += [(row["id"], row["_wal_position"]) for row in batch.to_pylist()]
    return found


def read_all(stream: StreamReader) -> tuple[list[Rows], list[Any]]:
    """All microbatches, and the offsets."""
    offsets = [stream.initialOffset()]
    found = []
    while (end := stream.latestOffset(offsets[-1], ReadAllAvailable())) != offsets[-1]:
        found.append(rows(stream, offsets[-1], end))
        offsets.append(json.loads(json.dumps(end)))
    return found, offsets


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.mark.proves("version-of-its-end")
@pytest.mark.proves("held-then-chosen")
@pytest.mark.parametrize(
    "seed", [*range(SEEDS), *(pytest.param(n, marks=pytest.mark.slow) for n in range(SEEDS, 200))]
)
def test_each_row_comes_once_over_deaths_compactions_and_collections(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 200))]
)
def test_each_row_of_an_iceberg_table_and_its_log_comes_once(seed: int) -> None:
    run_seed(seed, iceberg=True)


@pytest.mark.parametrize("stage", ["none", "intent", "written", "done"])
def test_the_table_comes_first_and_then_the_log_at_every_stage(lake: Lake, stage: str) -> None:
    lake.append([value(1), value(2)], [value(3)])
    lake.compact()
    lake.append([value(4)])
    lake.compact(stage)
    lake.append([value(5)])
    batches, offsets = read_all(reader(lake.path))
    of_table = [1, 2, 3, 4] if stage in ("written", "done") else [1, 2, 3]
    assert sorted(batches[0]) == [(number, None) for number in of_table]
    assert [row[0] for batch in batches[1:] for row in batch] == [4, 5][len(of_table) - 3 :]
    # After the table, an offset is what it is without one.
    plain = reader(lake.path, startingPosition="earliest")
    assert offsets[-1] == plain.latestOffset(plain.initialOffset(), ReadAllAvailable())
    assert {name for name in offsets[1] if ":" in name} == {
        *("format:", "log_id:default"),
        *("table:file", "table:id", "table:url", "table:version"),
    }


def test_without_a_table_a_stream_begins_at_the_floor(lake: Lake) -> None:
    lake.append([value(1)], [value(2)])
    batches, _ = read_all(reader(lake.path))
    # The first microbatch has no rows: its end notes the start.
    assert [[row[0] for row in batch] for batch in batches] == [[], [1, 2]]


def test_limits_count_a_file_as_a_commit(lake: Lake) -> None:
    for number in range(1, 4):
        lake.append([value(number), value(10 * number)])
        lake.compact()
    stream = reader(lake.path, maxCommitsPerTrigger=2)
    start = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    first = stream.latestOffset(start, limit)
    second = stream.latestOffset(first, limit)
    assert [len(rows(stream, *pair)) for pair in ((start, first), (first, second))] == [4, 2]
    assert stream.reportLatestOffset() == {"default": lake.end, "table:file": 3}
    by_rows = reader(lake.path, maxRowsPerTrigger=3)
    assert len(rows(by_rows, start, by_rows.latestOffset(start, limit))) == 2
    by_bytes = reader(lake.path, maxBytesPerTrigger=1)
    assert len(rows(by_bytes, start, by_bytes.latestOffset(start, limit))) == 2


@pytest.mark.proves("version-of-its-end")
def test_a_restart_repeats_the_first_microbatch_with_the_version_that_its_end_names(
    lake: Lake,
) -> None:
    lake.append([value(1)])
    lake.compact()
    stream = reader(lake.path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    lake.append([value(2)])
    lake.compact()
    lake.delta().optimize.compact()
    again = reader(lake.path)
    # Spark asks for the first start again.
    assert again.initialOffset() != start
    assert rows(again, again.initialOffset(), end) == [(1, None)]
    after = again.latestOffset(end, ReadAllAvailable())
    assert [row[0] for row in rows(again, end, after)] == [2]


@pytest.mark.proves("held-then-chosen")
def test_the_log_keeps_what_the_version_lacks_while_the_table_is_read(lake: Lake) -> None:
    lake.append([value(1)])
    lake.compact()
    stream = reader(lake.path)
    start = stream.initialOffset()
    (mine,) = sparkwal.consumers(lake.path)
    assert mine.position <= start["default"]
    end = stream.latestOffset(start, ReadAllAvailable())
    stream.latestOffset(end, ReadAllAvailable())
    stream.commit(end)
    (mine,) = sparkwal.consumers(lake.path)
    assert mine.position == start["default"]


def test_a_consumer_shows_how_many_files_of_the_table_it_has_to_read(lake: Lake) -> None:
    for number in range(3):
        lake.append([value(number)])
        lake.compact()
    stream = reader(lake.path, maxCommitsPerTrigger=1, cursorInterval="1ms")
    offset = stream.initialOffset()
    left = [sparkwal.consumers(lake.path)[0].table_files]
    for _ in range(3):
        end = stream.latestOffset(offset, stream.getDefaultReadLimit())
        rows(stream, offset, end)
        stream.latestOffset(end, stream.getDefaultReadLimit())
        stream.commit(end)
        left.append(sparkwal.consumers(lake.path)[0].table_files)
        offset = end
    assert left == [None, 2, 1, None]


def test_a_stream_that_has_read_the_table_and_ends_shows_no_file(lake: Lake) -> None:
    lake.append([value(1)])
    lake.compact()
    lake.append([value(2)])
    lake.compact()
    stream = reader(lake.path, maxCommitsPerTrigger=1)
    start = stream.initialOffset()
    first = stream.latestOffset(start, stream.getDefaultReadLimit())
    rows(stream, start, first)
    end = stream.latestOffset(first, stream.getDefaultReadLimit())
    stream.commit(first)
    assert sparkwal.consumers(lake.path)[0].table_files == 1
    rows(stream, first, end)
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    stream.commit(end)
    stream.stop()
    assert sparkwal.consumers(lake.path)[0].table_files is None


def two_logs(folder: Path) -> tuple[str, Coordinator]:
    """Two logs with a row each, and their lifecycle into one table."""
    path = f"{folder}/log"
    for number, name in enumerate(("a", "b")):
        with sparkwal.Appender(path, Lake(folder).schema, producer_id="p", sequencer=name) as wal:
            wal.append([value(number)]).result()
    lake = Lake(folder)
    table = DeltaRsTable(lake.target, path, {})
    log = open_log(from_keywords(SourceOptions, path, {}))
    return path, Coordinator(log, Policy(late_window_seconds=0), table=table)


def test_one_log_of_a_table_of_several_is_refused(tmp_path: Path) -> None:
    path, lifecycle = two_logs(tmp_path)
    lifecycle.run_all(whole=True)
    with pytest.raises(OptionError, match="also holds rows of the sequencers b, and no column"):
        reader(path, sequencer="a").initialOffset()
    batches, offsets = read_all(reader(path, sequencers="*"))
    assert [sorted(batch) for batch in batches] == [[(0, None), (1, None)]]
    assert {name: at for name, at in offsets[-1].items() if isinstance(at, int)} == {"a": 2, "b": 2}


def test_a_log_that_begins_and_is_compacted_while_a_version_is_chosen_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lifecycle = two_logs(tmp_path)
    lifecycle.run_all(whole=True)
    stream = reader(path, sequencers="*")
    planned = from_table.plan_current
    late: list[Callable[[], None]] = [lambda: begin_late(path, tmp_path, lifecycle)]

    def plan(*arguments: Any, **more: Any) -> Any:
        if late:
            late.pop()()
        return planned(*arguments, **more)

    monkeypatch.setattr(from_table, "plan_current", plan)
    batches, _ = read_all(stream)
    assert sorted(row[0] for batch in batches for row in batch) == [0, 1, 7]


def begin_late(path: str, folder: Path, lifecycle: Coordinator) -> None:
    schema = Lake(folder).schema
    with sparkwal.Appender(path, schema, producer_id="p", sequencer="late") as wal:
        wal.append([value(7)]).result()
    lifecycle.run_all(whole=True)


def test_columns_that_only_the_table_has_are_read_and_are_null_in_rows_of_the_log(
    lake: Lake,
) -> None:
    lake.append([value(1)])
    lake.compact()
    import pyarrow as pa
    from deltalake import write_deltalake

    more = pa.table({"id": [9], "v": ["x"], "extra": ["own"]})
    write_deltalake(lake.target.table, more, mode="append", schema_mode="merge")
    lake.append([value(2)])
    stream = reader(lake.path)
    assert stream.spark_schema.names[:3] == ["id", "v", "extra"]
    offsets = read_all(stream)[1]
    found = {}
    for start, end in zip(offsets, offsets[1:], strict=False):
        for task in stream.partitions(start, end):
            for batch in stream.read(task):
                found |= {row["id"]: row["extra"] for row in batch.to_pylist()}
    assert found == {1: None, 9: "own", 2: None}


def test_what_a_stream_cannot_begin_with_is_refused(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="without a consumer"):
        settings = from_keywords(SourceOptions, lake.path, {"startingPosition": "table"})
        StreamReader(settings, None, 1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="there is no log"):
        reader(lake.path)
    lake.append([value(1)])
    with pytest.raises(OptionError, match="startingPosition=table is for spark.readStream"):
        lake.reader(startingPosition="table").scan()
    with pytest.raises(OptionError, match="remove failOnDataLoss"):
        reader(lake.path, failOnDataLoss=False)


def test_a_version_or_a_table_that_is_gone_is_an_error_that_says_what_to_do(lake: Lake) -> None:
    lake.append([value(1)])
    lake.compact()
    stream = reader(lake.path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    for file in Path(lake.target.table).glob("*.parquet"):
        file.unlink()
    with pytest.raises(TableReadError, match="a data file .* is gone: .* new checkpoint"):
        rows(stream, start, end)
    lake.append([value(2)])
    lake.compact()
    lake.delta().create_checkpoint()
    (Path(lake.target.table) / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(TableReadError, match="version 1 of the table .* is gone"):
        rows(reader(lake.path), start, end)
    other = {**end, "table:id": "another", "table:version": "2"}
    with pytest.raises(TableReadError, match="was dropped and recreated"):
        rows(reader(lake.path), start, other)


def test_an_older_version_refuses_the_offset_of_a_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append([value(1)])
    lake.compact()
    stream = reader(lake.path)
    start = stream.initialOffset()
    monkeypatch.setitem(versions.VERSIONS, versions.OFFSET, 1)
    with pytest.raises(NewerFormatError):
        stream.latestOffset(start, ReadAllAvailable())


def test_the_files_of_a_version_are_the_same_before_and_after_a_checkpoint(lake: Lake) -> None:
    for number in range(3):
        lake.append([value(number)])
        lake.compact()
    stream = reader(lake.path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    before = [task.value for task in stream.partitions(start, end)]
    DeltaTable(lake.target.table).create_checkpoint()
    lake.append([value(9)])
    lake.compact()
    after = [task.value for task in reader(lake.path).partitions(start, end)]
    assert [task.file.name for task in before] == [task.file.name for task in after]
    assert len(before) == 3


def replayed(log: sparkwal.Log, cursor: str | None, **options: Any) -> tuple[list[Any], list[str]]:
    """The ids of each item of a replay, in the end those of the log, and the cursors."""
    replay = log.replay(cursor, start="table", **options)
    items, cursors = [], [replay.cursor]
    for item in replay:
        ids = [row["id"] for batch in item.rows for row in batch.to_pylist()]
        items.append(("table" if isinstance(item, TableRows) else item.sequencer, ids))
        cursors.append(replay.cursor)
    assert replay.stopped is None
    return items, cursors


def test_a_replay_begins_with_the_table_and_continues_from_each_cursor(lake: Lake) -> None:
    for number in range(3):
        lake.append([value(number)])
        lake.compact()
    lake.append([value(3)], [value(4)])
    log = lake.reader()
    items, cursors = replayed(log, None)
    assert sorted(items[:3]) == [("table", [number]) for number in range(3)]
    assert items[3:] == [("default", [3]), ("default", [4])]
    lake.compact()
    lake.delta().optimize.compact()
    for passed, cursor in enumerate(cursors):
        assert replayed(log, cursor)[0] == items[passed:]
    # After the table it is a cursor like any other, and in it no replay passes over rows.
    assert [entry.sequencer for entry in log.replay(cursors[3])] == ["default"] * 2
    with pytest.raises(OptionError, match='continue it with replay\\(start="table"\\)'):
        log.replay(cursors[2])
    with pytest.raises(OptionError, match="the cursor is damaged"):
        replayed(log, cursors[0].replace("table:file", "table:fire"))


def test_a_replay_of_all_logs_begins_with_their_table(tmp_path: Path) -> None:
    path, lifecycle = two_logs(tmp_path)
    lifecycle.run_all(whole=True)
    begin_late(path, tmp_path, lifecycle)
    with sparkwal.Appender(path, Lake(tmp_path).schema, producer_id="p", sequencer="a") as wal:
        wal.append([value(5)]).result()
    log = sparkwal.Log(path, lease="1h")
    replay = log.replay(start="table", sequencers="*")
    (lease,) = sparkwal.consumers(path, sequencers="*")[:1]
    assert lease.expires_ms == 3_600_000
    ids = sorted(row["id"] for item in replay for b in item.rows for row in b.to_pylist())
    assert ids == [0, 1, 5, 7]
    assert sparkwal.consumers(path, sequencers="*") == []
    with pytest.raises(OptionError, match="also holds rows of the sequencers"):
        sparkwal.Log(path).replay(start="table", sequencers=["a", "b"])


def test_a_replay_that_goes_on_with_the_table_has_a_lease_of_its_own(lake: Lake) -> None:
    for number in range(2):
        lake.append([value(number)])
        lake.compact()
    log = sparkwal.Log(lake.path, lease="1h")
    first = log.replay(start="table")
    ids = [row["id"] for batch in next(first).rows for row in batch.to_pylist()]
    # The lease of the first process expires.
    (lease,) = sparkwal.consumers(lake.path)
    sparkwal.forget_consumer(lake.path, lease.name)
    again = log.replay(first.cursor, start="table")
    assert [each.expires_ms for each in sparkwal.consumers(lake.path)] == [3_600_000]
    ids += [row["id"] for item in again for batch in item.rows for row in batch.to_pylist()]
    assert sorted(ids) == [0, 1]
    assert not sparkwal.consumers(lake.path)


def test_a_replay_without_a_table_is_one_of_the_log(lake: Lake) -> None:
    lake.append([value(1)])
    assert replayed(lake.reader(), None)[0] == [("default", [1])]
    with pytest.raises(OptionError, match="start is 'log'"):
        lake.reader().replay(start="log")  # type: ignore[call-overload]
