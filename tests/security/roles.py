"""Every request that each role makes to a log, by the project's own code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql.types import LongType, StructField, StructType

import sparkwal
from sparkwal.cli.main import main
from sparkwal.errors import FencedError
from sparkwal.format import keys
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.protocol import archive
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.handover import Lookout, Requests
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.task import TaskAttempt, write_partition
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import make_segments
from sparkwal.spark.source import StreamReader
from tests.consumers import consumer, publish
from tests.protocol.query import LIMITS, SCHEMA, Query, hints_in
from tests.protocol.query import rows as rows_of
from tests.reading.collected import move_floor
from tests.simulation.configuration import bounding
from tests.spark.queries import append, numbers, write

ROWS = pa.schema([("v", pa.int64())])
# The policy of a consumer is for one name.
CONSUMER = "daily"
# The floor of the log of `furnish`.
FLOOR = 4


@dataclass(frozen=True)
class Place:
    """A log, and how the one whose role it is reaches it."""

    path: str
    options: dict[str, Any]
    folder: Path
    spark: Any = None

    def query(self, name: str = "query", **limits: Any) -> Query:
        """A stream without Spark."""
        options = from_keywords(SinkOptions, self.path, self.options)
        log = open_log(options)
        return Query(
            log.store,
            hints_in(self.folder / name),
            name,
            prefix=log.prefix,
            spark_schema=SCHEMA,
            limits=replace(LIMITS, **limits),
        )


def appended(place: Place, options: dict[str, Any], producer: str, *values: int) -> None:
    with sparkwal.Appender(place.path, ROWS, producer_id=producer, **options) as wal:
        for value in values:
            wal.append([{"v": value}]).result()


@contextmanager
def short_memory() -> Iterator[None]:
    """Shorten the records' memory, so that all queries but one are in an archive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "MOST", 1)
        patch.setattr(archive, "KEPT", 1)
        yield


@contextmanager
def short_blocks() -> Iterator[None]:
    """Segments of two positions, so that this short log can have some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "BLOCK", 2)
        yield


def write_streams(place: Place) -> None:
    """A stream of Spark, inlined and as objects; a batch."""
    rows = numbers(place.spark, 3, 2).selectExpr("value as v")
    folder = sparkwal.checkpoint(place.path, "rows", folder=place.folder / "c", **place.options)
    append(rows, place.path, Path(folder), **place.options)
    append(rows, place.path, Path(folder), inlineThreshold=0, **place.options)
    sparkwal.checkpoint(place.path, "rows", folder=place.folder / "anew", **place.options)
    one = place.spark.range(1).selectExpr("id as v")
    for _ in range(2):
        write(one, place.path, txnAppId="nightly", txnVersion=1, **place.options)
    write_rows(place)


def write_rows(place: Place) -> None:
    """Streams without Spark; appenders that take over; a request to hand the log over."""
    # A large object in parts, and another attempt of its task, which gives its own up.
    query = place.query("large", multipart_threshold=5 * 2**20, codec=None)
    plan = query.plan()
    values = range(700_000)
    for again in (False, True):
        reported = write_partition(
            query.open,
            plan.for_tasks(),
            TaskAttempt("large", 0, 0, run_id=query.run_id, attempt=int(again), is_retry=again),
            iter([rows_of(*values)]),
            query.limits,
        )
    query.commit([reported])
    with short_memory():
        for producer in ("c", "d", "c"):
            appended(place, place.options, producer, 1)
    appended(place, {**place.options, "softLimitBytes": 1}, "a", 2)
    # A newcomer asks a busy appender for its log.
    log = open_log(from_keywords(SinkOptions, place.path, place.options))
    live = find_head(log).live
    assert live is not None
    newcomer = Requests(log, "newcomer")
    newcomer.ask(live.header)
    leader = Lookout(log, live.header.log_id, live.header.term, Clock())
    with suppress(FencedError):
        leader.check()
    newcomer.withdraw()
    leader.check()


def read_rows(place: Place) -> None:
    """Batches, streams, positions and times, what was compacted, and the proof of all of it."""
    log = sparkwal.Log(place.path, **place.options)
    head = log.head()
    assert head is not None
    with short_blocks():
        assert list(log.records())[-1].position == head.position
    assert sparkwal.verify(place.path, **place.options).ok
    list(log.replay())
    later = sparkwal.Log(place.path, startingTimestamp=1000, failOnDataLoss=False, **place.options)
    assert len(log.to_pandas()) == len(later.to_pandas())
    turns(place)
    look(place)


def read_frames(place: Place) -> None:
    """The same, and a batch of Spark."""
    frame = place.spark.read.format("weaselwal").options(**place.options).load(place.path)
    assert frame.count() == len(sparkwal.Log(place.path, **place.options).to_pandas())
    read_rows(place)


def turns(place: Place, **options: Any) -> None:
    """A stream that is offered all there is, and then nothing."""
    given = from_keywords(SourceOptions, place.path, {**place.options, **options})
    reader = StreamReader(given, StructType([StructField("v", LongType())]))
    start = reader.begin({})
    for _ in range(2):
        end = reader.advance(start, limited=False)
        for task in reader.plan(start, end) if start != end else []:
            list(reader.read(task))
        reader.commit(end)
        start = end
    reader.stop()


def read_all(place: Place) -> None:
    """All logs under a path."""
    names = sparkwal.list_sequencers(place.path, **place.options)
    assert sorted(names) == ["backfill", "default"]
    turns(place, sequencers="*")


def read_frames_of_all(place: Place) -> None:
    """The same, and a batch of Spark."""
    frame = place.spark.read.format("weaselwal").options(**place.options)
    assert frame.option("sequencers", "*").load(place.path).count() > 0
    read_all(place)


def consume(place: Place) -> None:
    """A stream that the log waits for."""
    turns(place, consumer=CONSUMER, cursorInterval="1ms")
    sparkwal.forget_consumer(place.path, CONSUMER, **place.options)


def consume_all(place: Place) -> None:
    """A stream of all logs that they wait for, also those that come later."""
    turns(place, sequencers="*", consumer=CONSUMER, cursorInterval="1ms")
    sparkwal.forget_consumer(place.path, CONSUMER, **{**place.options, "sequencers": "*"})


def read_with_a_lease(place: Place) -> None:
    """A long read that the log waits for."""
    log = sparkwal.Log(place.path, lease="1h", **place.options)
    assert log.scan().read_all().num_rows > 0


def compact(place: Place) -> None:
    """Segments, and retention, which moves the floor as a compaction into a table does."""
    settings = from_keywords(SourceOptions, place.path, place.options)
    log = LogRange(settings, settings.sequencer, open_log(settings))
    log.refresh()
    with short_blocks():
        assert make_segments(log, most=1).blocks
        keeps = sparkwal.Lifecycle(place.path, collects=False, **place.options)
        assert keeps.run_once().segments > 0
    life = sparkwal.Lifecycle(place.path, collects=False, retainBytes=1, **place.options)
    assert life.run_once().floor > 4
    assert life.recover().found == "at rest"


def collect(place: Place) -> None:
    """Everything below a floor that is old enough, by the clock of the store."""
    settings = from_keywords(LifecycleOptions, place.path, place.options)
    life = Coordinator(open_log(settings), settings, gc_grace_ms=0)
    bound = uploads = erased = 0
    with bounding(1):
        # A segment beyond the head goes at once, the objects below the floor and the old records of
        # the chain when they are old enough. The store's clock has whole seconds, so a first
        # collection may know only one of the earlier floors.
        while bound < FLOOR:
            found = life.collect(dry_run=False)
            if found is not None:
                bound = found.bound
                uploads += found.uploads
                erased += found.erased
            time.sleep(0.1)
    # Azure and Google keep no parts of uploads.
    assert uploads == place.path.startswith("s3://")
    assert erased > 0


def run(place: Place, *commands: tuple[str, ...]) -> None:
    """Run commands of `sparkwal` on the log; each must succeed."""
    file = place.folder / "options"
    file.write_text("".join(f"{name} = {value}\n" for name, value in place.options.items()))
    file.chmod(0o600)
    for name, *more in commands:
        ended = CliRunner().invoke(main, [name, place.path, *more, "--options-file", str(file)])
        assert ended.exit_code == 0, (name, ended.output)


def look(place: Place) -> None:
    """The commands that a reader may run."""
    page = str(place.folder / "page.html")
    run(
        place,
        *(("status",), ("log",), ("show", "5"), ("at", "1h"), ("consumers",), ("queries",)),
        *(("verify",), ("cost",), ("report", "-o", page), ("cat",), ("head",), ("tail",)),
        *(("metrics",), ("sql", "SELECT count(*) FROM log, records, consumers")),
    )


def operate(place: Place) -> None:
    """Every command that changes nothing of the log; `collect` lists what it would delete."""
    look(place)
    run(
        place,
        *(("status", "--all"), ("consumers", "--all"), ("collect", "--all")),
        *(("doctor",), ("prove-store",)),
        ("checkpoint", "fresh", "--to", str(place.folder / "checkpoint")),
    )


ROLES: dict[str, Callable[[Place], None]] = {
    "writer": write_streams,
    "reader": read_frames,
    "reader-of-all": read_frames_of_all,
    "consumer": consume,
    "consumer-of-all": consume_all,
    "lease": read_with_a_lease,
    "compactor": compact,
    "collector": collect,
    "operator": operate,
}


# The same without a session of Spark.
WITHOUT_SPARK = {**ROLES, "writer": write_rows, "reader": read_rows, "reader-of-all": read_all}


def furnish(place: Place) -> None:
    """A log after some days: objects, a chain, consumers, an ended lease, an open upload."""
    place.query("small", inline_threshold=2**20).microbatch(0, (0,))
    place.query(inline_threshold=0).microbatch(0, (1, 2), (3,))
    with short_memory():
        appended(place, place.options, "a", 4)
        appended(place, place.options, "b", 5)
    appended(place, {**place.options, "sequencer": "backfill"}, "b", 6)
    settings = from_keywords(SourceOptions, place.path, place.options)
    log = open_log(settings)
    head = find_head(log)
    assert head.live is not None
    log.store.upload(log.key(keys.data(1, head.window, 7))).part(1, 0, b"left")
    now_ms = Clock().now_ms()
    publish(log, consumer("lease-1", 9, head.live.header.log_id, timestamp_ms=now_ms, expires_ms=1))
    for floor in range(1, FLOOR + 1):
        move_floor(log, floor, grace_ms=0)
    # A segment beyond the head, as an earlier log leaves it, and a damaged one at the head.
    log.store.put(keys.segment_key(log.prefix, 0, head.window), b"left")
    with short_blocks():
        log.store.put(keys.segment_key(log.prefix, head.position // 2, head.window), b"damaged")
    at_the_end = sparkwal.Log(place.path, lease="1h", **place.options)
    assert at_the_end.scan().read_all().num_rows == 2
