"""A stream of logs as Spark 4.0 and 4.1 call it, without a Spark session: in the order of calls
that was seen there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import sparkwal
from sparkwal import events
from sparkwal.errors import OptionError
from sparkwal.lifecycle.consumers.consumer_list import consumers
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.spark.interfaces import HeadFirst, to_struct
from sparkwal.spark.registering import _warn_of_untried
from sparkwal.spark.source import StreamReader

SCHEMA = StructType([StructField("v", LongType())])
Offset = dict[str, Any]


if issubclass(StreamReader, HeadFirst):
    Older = StreamReader
else:

    class Older(HeadFirst, StreamReader):
        """A StreamReader as on Spark 4.0 and 4.1."""


class Query:
    """Spark's side of a query over the log in `folder`: its checkpoint, and each row that came."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.options = {name: str(value) for name, value in options.items()}
        self.offsets: list[Offset] = []
        self.committed = 0
        self.rows: list[list[int]] = []

    def write(self, *values: int, sequencer: str = "default") -> None:
        """One commit for each value."""
        schema = pa.schema([("v", pa.int64())])
        path = str(self.folder / "log")
        with sparkwal.Appender(path, schema, producer_id="p", sequencer=sequencer) as wal:
            for value in values:
                wal.append([{"v": value}]).result()

    def open(self) -> Older:
        options = parse(SourceOptions, {"path": str(self.folder / "log"), **self.options})
        return Older(options, SCHEMA)

    def start(self) -> Older:
        """A run, up to the end of a microbatch that had failed."""
        reader = self.open()
        self.go_on(reader)
        return reader

    def go_on(self, reader: Older) -> None:
        if self.offsets:
            reader.partitions(self.offsets[-1], self.offsets[-1])
        if self.committed < len(self.offsets):
            self.run(reader)

    def trigger(self, reader: Older, end: Offset | None = None, fails: bool = False) -> bool:
        """One microbatch, to `end` or to the end that the source gives. Returns whether it ran."""
        if end is None:
            end = kept(reader.latestOffset())
        if self.offsets and self.offsets[-1] == end:
            return False
        if self.committed:
            reader.commit(self.offsets[-1])
        self.offsets.append(end)
        if not fails:
            self.run(reader)
        return True

    def run(self, reader: Older) -> None:
        before, end = (
            [kept(reader.initialOffset()), *self.offsets][-2:]
            if (len(self.offsets) == 1)
            else self.offsets[-2:]
        )
        found: list[int] = []
        for task in reader.partitions(before, end):
            for batch in reader.read(task):
                found += pa.table(batch).column("v").to_pylist()
        self.rows.append(found)
        self.committed = len(self.offsets)

    def available_now(self, fails: bool = False) -> None:
        """A whole run with the trigger availableNow, as Spark's wrapper makes it."""
        reader = self.open()
        end = kept(reader.latestOffset())
        self.go_on(reader)
        while True:
            if not self.offsets:
                reader.initialOffset()
            # It reports how far the source is.
            reader.latestOffset()
            if not self.trigger(reader, end, fails) or fails:
                return


def kept(offset: Offset) -> Offset:
    found: Offset = json.loads(json.dumps(offset))
    return found


@contextmanager
def heard() -> Iterator[list[events.Event]]:
    found: list[events.Event] = []
    forget = events.subscribe(found.append)
    yield found
    forget()


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_a_query_reads_each_row_once_over_restarts(query: Query) -> None:
    query.write(1, 2)
    reader = query.start()
    assert query.trigger(reader) and not query.trigger(reader)
    query.write(3)
    assert query.trigger(reader)
    query.write(4, 5)
    query.trigger(reader, fails=True)
    reader = query.start()
    query.write(6)
    assert query.trigger(reader) and not query.trigger(reader)
    assert query.rows == [[1, 2], [3], [4, 5], [6]]


def test_limits_count_from_the_second_microbatch_of_a_run_on(tmp_path: Path) -> None:
    query = Query(tmp_path, maxCommitsPerTrigger=1)
    query.write(1, 2)
    with heard() as found:
        reader = query.start()
        query.trigger(reader)
        query.write(3, 4)
        while query.trigger(reader):
            pass
        query.write(5, 6)
        reader = query.start()
        query.trigger(reader)
        query.write(7, 8)
        while query.trigger(reader):
            pass
    assert query.rows == [[1, 2], [3], [4], [5, 6], [7], [8]]
    warned = [event for event in found if isinstance(event, events.LimitsLater)]
    assert [event.limits for event in warned] == 2 * ["maxCommitsPerTrigger=1"]


def test_available_now_ends_at_the_head_of_its_start(tmp_path: Path) -> None:
    query = Query(tmp_path, maxCommitsPerTrigger=1)
    query.write(1, 2, 3)
    query.available_now()
    assert query.rows == [[1, 2, 3]]
    query.available_now()
    assert query.rows == [[1, 2, 3]]
    query.write(4, 5)
    query.available_now(fails=True)
    query.write(6)
    # First what had failed.
    query.available_now()
    assert query.rows == [[1, 2, 3], [4, 5], [6]]


def test_available_now_reads_no_commit_after_its_start(query: Query) -> None:
    query.write(1)
    reader = query.open()
    end = kept(reader.latestOffset())
    query.write(2)
    reader.initialOffset()
    reader.latestOffset()
    query.trigger(reader, end)
    assert query.rows == [[1]]
    query.available_now()
    assert query.rows == [[1], [2]]


def test_a_stream_from_the_latest_position_loses_nothing_between_two_calls(
    tmp_path: Path,
) -> None:
    query = Query(tmp_path, startingPosition="latest")
    query.write(1)
    reader = query.open()
    end = kept(reader.latestOffset())
    query.write(2)
    query.trigger(reader, end)
    query.trigger(reader)
    assert query.rows == [[], [2]]


def test_a_stream_waits_for_its_log(query: Query) -> None:
    reader = query.start()
    query.trigger(reader)
    query.write(1)
    query.trigger(reader)
    assert query.rows == [[], [1]]


def test_new_sequencers_are_read_from_their_first_row(tmp_path: Path) -> None:
    query = Query(tmp_path, sequencers="*")
    query.write(1, sequencer="a")
    query.available_now()
    query.write(2, sequencer="b")
    query.available_now()
    reader = query.start()
    query.write(3, sequencer="c")
    query.trigger(reader)
    assert query.rows == [[1], [2], [3]]


def test_a_starting_timestamp_in_the_past_is_honoured(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.write(1)
    (leader, commit) = sparkwal.Log(str(tmp_path / "log")).records()
    query.options["startingTimestamp"] = str(commit.timestamp_ms + 1)
    query.write(2)
    query.available_now()
    query.write(3)
    query.available_now()
    assert [row for rows in query.rows for row in rows] == [2, 3]


def test_a_starting_timestamp_in_the_future_names_the_spark_that_waits_for_it(
    tmp_path: Path,
) -> None:
    query = Query(tmp_path, startingTimestamp="2999-01-01")
    query.write(1)
    with pytest.raises(OptionError, match=r"Spark 4\.2 or newer"):
        query.open().latestOffset()


def test_a_checkpoint_of_a_newer_spark_that_waits_is_not_passed_over(query: Query) -> None:
    query.write(1)
    reader = query.start()
    query.trigger(reader)
    # As a stream of 4.2 leaves it that waits for its startingTimestamp.
    query.offsets[-1]["not before:default"] = "32472144000000"
    query.write(2)
    with pytest.raises(OptionError, match=r"Spark 4\.2 or newer, or once the trigger proc"):
        query.available_now()
    assert query.rows == [[1]] and len(query.offsets) == 1
    # With processingTime Spark gives the start first, and the stream waits.
    assert not query.trigger(query.start())


def test_a_type_that_this_spark_does_not_know_names_the_column_and_the_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(field: dict[str, object]) -> StructField:
        if "time" in str(field["type"]):
            raise ValueError("unable to parse datatype")
        return StructField(str(field["name"]), LongType())

    monkeypatch.setattr(StructField, "fromJson", unknown)
    fields = [{"name": "v", "type": "long"}, {"name": "at", "type": "time(6)"}]
    with pytest.raises(
        OptionError, match=r"column at is time\(6\), which .* use Spark 4\.1 or newer"
    ):
        to_struct(json.dumps({"type": "struct", "fields": fields}))


def test_a_consumer_is_registered_before_anything_is_read(tmp_path: Path) -> None:
    query = Query(tmp_path, consumer="me")
    query.write(1, 2)
    query.available_now()
    (consumer,) = consumers(str(tmp_path / "log"))
    assert consumer.name == "me"
    query.write(3)
    query.available_now()
    query.available_now()
    assert query.rows == [[1, 2], [3]]


def test_a_run_of_what_is_available_ends_without_a_lag(tmp_path: Path) -> None:
    query = Query(tmp_path, consumer="me")
    query.write(1, 2)

    def lag() -> int:
        (consumer,) = consumers(str(tmp_path / "log"))
        return consumer.lag

    query.available_now()
    assert lag() == 0
    query.write(3)
    query.available_now(fails=True)
    # Spark may ask for the microbatch that failed again.
    assert lag() > 0
    query.write(4)
    query.available_now()
    assert lag() == 0
    query.available_now()
    assert lag() == 0 and query.rows == [[1, 2], [3], [4]]


def test_a_running_stream_reports_no_microbatch_that_it_may_read_again(tmp_path: Path) -> None:
    query = Query(tmp_path, consumer="me")
    query.write(1)
    reader = query.start()
    query.trigger(reader)
    query.write(2)
    query.trigger(reader)
    # With asynchronous progress tracking a restart may begin before the last one.
    reader.latestOffset()
    (consumer,) = consumers(str(tmp_path / "log"))
    assert consumer.position == 2


def test_a_spark_newer_than_all_that_were_tried_is_one_warning() -> None:
    with heard() as found:
        for version in ("4.3.0", "4.9.0", "4.9.0"):
            _warn_of_untried(version)
    assert found == [events.UntriedSpark(version="4.9.0", newest="4.3")]
