"""`sparkwal.checkpoint(…, fork=…)`: a query that begins at a place of another log."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

import sparkwal
from sparkwal import CollectedError, DivergedCheckpointError, InvalidLogError, OptionError, events
from sparkwal.checkpoints import folder, fork, rebuild, unread
from sparkwal.checkpoints.queries import read_queries
from sparkwal.format import keys
from sparkwal.protocol.clock import SYSTEM
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from sparkwal.store.s3_errors import Denied
from tests.chains import beginning, put_next
from tests.checkpoints.forks import Logs, OffsetStream, fork_of
from tests.checkpoints.stateful import StatefulStream
from tests.checkpoints.stream import FileStream
from tests.protocol.query import Query, StoppedClock


@pytest.mark.parametrize("at", [1, 5, 10, 11, 20, 24, 25])
def test_a_fork_writes_exactly_the_source_after_its_position(logs: Logs, at: int) -> None:
    logs.written(25)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(at))
    logs.stream("wal-v2", place).run(range(40))
    # Position 0 is the leader record, so position `at` holds file `at` − 1.
    assert logs.values("wal-v2") == [*range(at, 40)]
    assert logs.values("wal") == [*range(25)]
    numbers = [commit.batch_id for commit in logs.commits("wal-v2")]
    assert numbers == [*range(at, 40)]
    ids = {commit.query_id for name in ("wal", "wal-v2") for commit in logs.commits(name)}
    assert len(ids) == 2


def test_the_line_stays_in_the_job(logs: Logs) -> None:
    logs.written(12)
    for files in (12, 14, 14, 20):
        place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(7))
        logs.stream("wal-v2", place).run(range(files))
    # Another machine rebuilds from the new log, also without the fork.
    for machine, line in (("two", fork_of(7)), ("three", None)):
        place = logs.checkpoint("wal-v2", "orders-v2", machine, line)
        logs.stream("wal-v2", place).run(range(22 + len(machine)))
    assert logs.values("wal-v2") == [*range(7, 27)]
    (origin,) = {commit.checkpoints[commit.query_id].origin for commit in logs.commits("wal-v2")}
    assert origin is not None
    assert (origin.name, origin.at, origin.position, origin.batch_id) == ("orders", "7", 7, 6)


def test_a_folder_that_is_lost_before_the_first_commit_is_forked_again(logs: Logs) -> None:
    logs.written(12)
    first = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(7))
    names = sorted(path.name for path in first.rglob("*"))
    assert logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(7)) == first
    assert sorted(path.name for path in first.rglob("*")) == names
    shutil.rmtree(first)
    logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(7))
    assert sorted(path.name for path in first.rglob("*")) == names
    # Another place before the first commit: the folder is made anew.
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(9))
    logs.stream("wal-v2", place).run(range(13))
    assert logs.values("wal-v2") == [*range(9, 13)]


@pytest.mark.parametrize(
    "other",
    [fork_of(8), fork_of("2026-01-31T12:00:00Z"), fork_of(7, name="bills")],
    ids=["position", "moment", "name"],
)
def test_another_fork_of_a_query_that_has_begun_is_refused(logs: Logs, other: Any) -> None:
    logs.written(12)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(7))
    logs.stream("wal-v2", place).run(range(13))
    with pytest.raises(OptionError) as error:
        logs.checkpoint("wal-v2", "orders-v2", fork=other)
    assert "'orders' at position 7" in str(error.value) and other.text in str(error.value)


def test_a_query_that_began_without_a_fork_is_not_forked(logs: Logs) -> None:
    logs.written(5)
    logs.stream("wal-v2", logs.checkpoint("wal-v2", "orders-v2")).run(range(2))
    with pytest.raises(OptionError, match="began with the first rows of its source"):
        logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(3))


@pytest.mark.parametrize("same", [True, False], ids=["the same place", "other places"])
@pytest.mark.parametrize("begun", [True, False], ids=["a log of another query", "no log"])
@pytest.mark.proves("same-fork", "checkpoint-of-this-log")
def test_two_machines_fork_at_once(logs: Logs, same: bool, begun: bool) -> None:
    logs.written(12)
    if begun:
        Query(logs.store, Hints("wal-v2", logs.tmp / "other"), prefix="wal-v2").microbatch(0, (90,))
    one = logs.checkpoint("wal-v2", "orders-v2", "one", fork_of(3))
    two = logs.checkpoint("wal-v2", "orders-v2", "two", fork_of(3 if same else 8))
    winner, loser = logs.stream("wal-v2", one), logs.stream("wal-v2", two)
    winner.step(range(12), each=4)
    with pytest.raises(DivergedCheckpointError):
        loser.run(range(14))
    before = [90] if begun else []
    assert logs.values("wal-v2") == [*before, *range(3, 7)]
    # The next start of the loser continues.
    again = logs.checkpoint("wal-v2", "orders-v2", "two", fork_of(3))
    logs.stream("wal-v2", again).run(range(14))
    assert logs.values("wal-v2") == [*before, *range(3, 14)]


@pytest.mark.proves("same-fork")
def test_a_folder_without_a_fork_does_not_continue_a_forked_query(logs: Logs) -> None:
    logs.written(9)
    Query(logs.store, Hints("wal-v2", logs.tmp / "other"), prefix="wal-v2").microbatch(0, (90,))
    late = logs.checkpoint("wal-v2", "orders-v2", "late", fork_of(6))
    early = logs.stream("wal-v2", logs.checkpoint("wal-v2", "orders-v2", "early"))
    early.step(range(9))
    with pytest.raises(DivergedCheckpointError, match="with the first rows of its source"):
        logs.stream("wal-v2", late).run(range(9))
    assert logs.values("wal-v2") == [90, 0]


def test_a_fork_that_begins_without_rows_records_where_it_began(logs: Logs) -> None:
    logs.written(9)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(4))
    logs.stream("wal-v2", place, hidden=frozenset({4, 5})).run(range(6))
    assert [commit.rows for commit in logs.commits("wal-v2")] == [0]
    shutil.rmtree(place)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(4))
    logs.stream("wal-v2", place, hidden=frozenset({4, 5})).run(range(9))
    assert logs.values("wal-v2") == [6, 7, 8]


def test_a_fork_of_a_fork(logs: Logs) -> None:
    logs.written(20)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(8))
    logs.stream("wal-v2", place).run(range(24))
    again = fork_of(5, "s3://bucket/wal-v2", "orders-v2")
    third = logs.checkpoint("wal-v3", "orders-v3", fork=again)
    logs.stream("wal-v3", third).run(range(26))
    # Positions 1 … 5 of the second log hold the files 8 … 12.
    assert logs.values("wal-v3") == [*range(13, 26)]


def test_a_fork_at_a_position_between_two_leaders(logs: Logs) -> None:
    place = logs.checkpoint("wal", "orders")
    for files in (3, 6, 9):
        logs.stream("wal", place).run(range(files))
    # Each application begins with a leader record: positions 0, 4 and 8.
    assert [commit.position for commit in logs.commits("wal")][3] == 5
    for at, begin in ((4, 3), (8, 6), (12, 9)):
        line = fork_of(at) if at < 12 else fork_of(11)
        prefix = f"wal-{at}"
        logs.stream(prefix, logs.checkpoint(prefix, "new", fork=line)).run(range(10))
        assert logs.values(prefix) == [*range(begin, 10)]


def test_a_fork_into_another_sequencer(logs: Logs) -> None:
    logs.written(6)
    options = {"sequencer": "v2", "folder": logs.tmp / "v2", "fork": fork_of(2)}
    place = Path(sparkwal.checkpoint("s3://bucket/wal", "orders", **options))
    logs.stream("wal/sequencers/v2", place).run(range(6))
    assert logs.values("wal/sequencers/v2") == [2, 3, 4, 5]


def test_a_moment_works_as_starting_timestamp(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(1_790_000_000_000, 250)
    monkeypatch.setattr(StoppedClock, "now_ms", lambda _: next(times))
    logs.written(9)
    times_of = [commit.timestamp_ms for commit in logs.commits("wal")]
    for late, begin in ((0, 4), (1, 5)):
        moment = datetime.fromtimestamp((times_of[4] + late) / 1000, UTC)
        for at in (moment, moment.isoformat(), str(times_of[4] + late)):
            line = sparkwal.Fork("s3://bucket/wal", "orders", at=at)
            place = logs.checkpoint(f"wal-{begin}", "orders-v2", fork=line)
        logs.stream(f"wal-{begin}", place).run(range(9))
        assert logs.values(f"wal-{begin}") == [*range(begin, 9)]
        logs.checkpoint(f"wal-{begin}", "orders-v2", "elsewhere", line)
    with pytest.raises(OptionError, match="nothing that was written before 1999"):
        logs.checkpoint("wal-v2", "new", fork=fork_of("1999-12-31"))
    # Without a record at the moment or later, the next start would find another place.
    last = datetime.fromtimestamp(times_of[-1] / 1000, UTC)
    logs.checkpoint("wal-v3", "new", fork=sparkwal.Fork("s3://bucket/wal", "orders", at=last))
    with pytest.raises(OptionError, match="last position, 9, or at an earlier moment"):
        late = last + timedelta(milliseconds=1)
        logs.checkpoint("wal-v2", "new", fork=sparkwal.Fork("s3://bucket/wal", "orders", at=late))


@pytest.mark.parametrize(("source", "version"), [("0", 1), ("orders", 2), ("0", 2)])
def test_offsets_of_kafka(logs: Logs, source: str, version: int) -> None:
    more: Any = {"source": source, "version": version}
    first = logs.checkpoint("wal", "orders")
    hints = Hints("wal", logs.tmp / "hints-wal")
    OffsetStream(logs.log("wal"), first, hints, **more).run(range(30), each=3)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(4))
    hints = Hints("wal-v2", logs.tmp / "hints-v2")
    # The new query takes more rows at a time.
    OffsetStream(logs.log("wal-v2"), place, hints, **more).run(range(40), each=5)
    assert logs.values("wal-v2") == [*range(12, 40)]


@pytest.mark.parametrize("version", [1, 2])
def test_two_sources(logs: Logs, version: int) -> None:
    other = '{"default":17,"log_id:default":"abc"}'
    more: Any = {"version": version, "source": "orders", "others": {"in": other}}
    first = logs.checkpoint("wal", "orders")
    OffsetStream(logs.log("wal"), first, Hints("wal", logs.tmp / "h"), **more).run(range(9))
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(4))
    text = (place / "offsets/3").read_text()
    assert other in text and '{"orders":{"0":4}}' in text
    OffsetStream(logs.log("wal-v2"), place, Hints("v2", logs.tmp / "g"), **more).run(range(9))
    assert logs.values("wal-v2") == [*range(4, 9)]


# Refusals


def test_the_forked_log_itself_is_refused(logs: Logs) -> None:
    logs.written(3)
    with pytest.raises(OptionError, match="is the log that is forked"):
        logs.checkpoint("wal", "orders-v2", fork=fork_of(2))


def test_a_query_that_never_wrote_there_is_refused(logs: Logs) -> None:
    logs.written(3)
    with pytest.raises(OptionError, match=r"'bills' wrote nothing up to position 2.*'orders'"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(2, name="bills"))
    with pytest.raises(OptionError, match="no query wrote anything up to position 0"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(0))
    with pytest.raises(OptionError, match="the last position of .* is 3"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(4))
    with pytest.raises(OptionError, match="there is no log"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(4, "s3://bucket/none"))
    assert not (logs.tmp / "new-wal-v2").exists()


def test_commits_without_offsets_are_refused(logs: Logs) -> None:
    query = Query(logs.store, Hints("wal", logs.tmp / "hints"))
    query.microbatch(0, (1,))
    with pytest.raises(OptionError, match="as an appender, as a batch"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(1, name=query.query_id))


def test_a_record_that_carries_no_checkpoint_is_refused(logs: Logs) -> None:
    logs.written(9)
    place = logs.checkpoint("wal", "orders")
    logs.stream("wal", place, max_bytes=150).run(range(12))
    with pytest.raises(OptionError, match=r"9.compact was larger than checkpointMaxBytes"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(12))
    # A position before is fine.
    logs.checkpoint("wal-v2", "new", fork=fork_of(9))


@pytest.mark.parametrize("reason", ["stateful", "remote"])
def test_a_stateful_or_remote_query_is_refused(
    logs: Logs, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = logs.tmp / "first"
    stream = logs.stream("wal", first)
    if reason == "stateful":
        (first / "state/0/0").mkdir(parents=True)
    else:
        monkeypatch.setattr(folder, "local_folder", lambda _: None)
    stream.run(range(3))
    monkeypatch.undo()
    expected = "its state is not in the log" if reason == "stateful" else "not on the driver's disk"
    monkeypatch.setattr(rebuild, "open_log", lambda options, **_: _opened(logs, options))
    monkeypatch.setattr(fork, "open_log", lambda options, **_: _opened(logs, options))
    with pytest.raises(OptionError, match=expected):
        logs.checkpoint("wal-v2", "new", fork=fork_of(2, name=stream.query_id))


def _opened(logs: Logs, options: Any) -> LogStore:
    return logs.log(options.path.removeprefix("s3://bucket/"))


def test_a_file_that_the_fork_must_read_again_is_missing(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.written(25)
    gone = {f"file:///data/in/{number:06d}.json" for number in (4, 17, 21)}
    monkeypatch.setattr(unread, "is_missing", gone.__contains__)
    with pytest.raises(OptionError, match=r"000017.json, .*000021.json after position 9.* 2 of"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(9))
    with heard() as found:
        line = sparkwal.Fork("s3://bucket/wal", "orders", at=9, ignore_missing_files=True)
        logs.checkpoint("wal-v4", "new", fork=line)
    (event,) = found
    assert event.query == "orders" and "their rows are left out" in event.reason
    logs.checkpoint("wal-v2", "new", fork=fork_of(22))
    with pytest.raises(OptionError, match=r"000004.json"):
        logs.checkpoint("wal-v3", "new", fork=fork_of(4))


@pytest.mark.parametrize("place", [2, 13, 25])
def test_a_file_that_a_stateful_query_repeats_is_missing(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Spark passes over it. The state would lack its keys, and the query write them again."""
    hints = Hints("wal", logs.tmp / "hints")
    folder = logs.checkpoint("wal", "orders")
    StatefulStream(logs.log(), folder, hints).run(range(25))
    gone = {f"file:///data/in/{place - 1:06d}.json"}
    monkeypatch.setattr(unread, "is_missing", gone.__contains__)
    line = sparkwal.Fork("s3://bucket/wal", "orders", at=place, ignore_missing_files=True)
    with pytest.raises(OptionError, match=rf"repeats microbatch {place - 1}.*{place - 1:06}.json"):
        logs.checkpoint("wal-v2", "new", fork=line)
    for other in {2, 13, 25} - {place}:
        line = sparkwal.Fork("s3://bucket/wal", "orders", at=other, ignore_missing_files=True)
        logs.checkpoint(f"wal-v{other}", "new", fork=line)
    # The folder that is there needs nothing.
    assert logs.checkpoint("wal", "orders") == folder
    if place == 25:
        with pytest.raises(OptionError, match="cleanSource"):
            logs.checkpoint("wal", "orders", machine="another")


@contextmanager
def heard() -> Iterator[list[events.ForkNotChecked]]:
    """The events of forks whose files were not checked."""
    found: list[events.ForkNotChecked] = []

    def add(event: events.Event) -> None:
        if isinstance(event, events.ForkNotChecked):
            found.append(event)

    stop = events.subscribe(add)
    try:
        yield found
    finally:
        stop()


def damage(logs: Logs, position: int, how: str) -> None:
    """Damage the record at a position of `wal`.

    Args:
        how: cut, empty or delete it; or flip a byte in its middle or in its header.
    """
    key = logs.log().key(keys.slot(position, 1000))
    body = logs.store.objects[key]
    if how == "delete":
        logs.store.delete(key)
        return
    middle = 300 if how == "header" else len(body) // 2
    flipped = body[:middle] + bytes([body[middle] ^ 0x55]) + body[middle + 1 :]
    logs.store.objects[key] = {"cut": body[:middle], "empty": b""}.get(how, flipped)


@pytest.mark.parametrize("how", ["cut", "empty"])
@pytest.mark.parametrize("end", ["the record", "the log", "a damaged record"])
def test_a_fork_at_a_record_that_was_cut_off_later_does_not_begin_before_it(
    logs: Logs, how: str, end: str
) -> None:
    """The fork would write its microbatch again, and the restored log holds it too."""
    logs.written(25)
    for position in {"the record": [15], "the log": [25], "a damaged record": [15, 16]}[end]:
        damage(logs, position, how if position != 16 else "flip")
    at = 25 if end == "the log" else 15
    # If nothing shows that the last record was whole, the log ends before it.
    expected: tuple[type[Exception], str] = (InvalidLogError, "restore the object")
    if end == "the log":
        expected = (OptionError, "the last position of .* is 24")
    with pytest.raises(expected[0], match=expected[1]):
        logs.checkpoint("wal-v2", "new", fork=fork_of(at))
    if end == "the record":
        with pytest.raises(InvalidLogError, match="restore the object"):
            read_queries(logs.log(), 15)
    logs.checkpoint("wal-v3", "new", fork=fork_of(14))


@pytest.mark.parametrize("kept_bytes", [0, 14, 400])
def test_a_fork_at_a_torn_record_that_a_leader_passed_over(logs: Logs, kept_bytes: int) -> None:
    logs.written(9)
    objects, log = logs.store.objects, logs.log()
    # A takeover of which the store kept a part.
    objects[log.key(keys.slot(10, 1000))] = objects[log.key(keys.slot(9, 1000))][:kept_bytes]
    logs.stream("wal", logs.checkpoint("wal", "orders")).run(range(12))
    for at in (10, 11, 12):
        prefix = f"wal-{at}"
        logs.stream(prefix, logs.checkpoint(prefix, "new", fork=fork_of(at))).run(range(14))
        assert logs.values(prefix) == [*range(10 if at == 12 else 9, 14)]
        (orders,) = read_queries(logs.log(), at)
        assert (orders.batch_id, orders.fork_from) == (9 if at == 12 else 8, 1)


@pytest.mark.parametrize(
    ("position", "how"), [(25, "flip"), (25, "cut"), (20, "flip"), (20, "cut"), (20, "delete")]
)
def test_a_damaged_record_that_the_fork_does_not_need(
    logs: Logs, position: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(1_790_000_000_000, 250)
    monkeypatch.setattr(StoppedClock, "now_ms", lambda _: next(times))
    logs.written(25)
    moment = str(logs.commits("wal")[12].timestamp_ms)
    damage(logs, position, how)
    with heard() as found:
        place = logs.checkpoint("wal-v2", "new", fork=fork_of(12))
    (event,) = found
    assert "newest" in event.reason
    logs.stream("wal-v2", place).run(range(25))
    assert logs.values("wal-v2") == [*range(12, 25)]
    place = logs.checkpoint("wal-v3", "new", fork=fork_of(moment))
    logs.stream("wal-v3", place).run(range(25))
    assert logs.values("wal-v3") == [*range(12, 25)]


@pytest.mark.parametrize("how", ["header", "delete", "cut"])
def test_the_time_of_a_damaged_record_is_unknown(
    logs: Logs, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(1_790_000_000_000, 250)
    monkeypatch.setattr(StoppedClock, "now_ms", lambda _: next(times))
    logs.written(9)
    moment = str(logs.commits("wal")[5].timestamp_ms)
    damage(logs, 6, how)
    with pytest.raises(InvalidLogError, match="Whether that record was written before .* unknown"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(moment))


@pytest.mark.parametrize(
    "folder_name", ["in 2026", "hour=10%3A00", "a+b", "what?", "n#1", "ü 東", "50%", "a;b", "a%20b"]
)
def test_a_file_in_an_oddly_named_folder_is_not_missing(
    logs: Logs, folder_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark lists a file by a URI."""
    monkeypatch.undo()
    file = logs.tmp / folder_name / "1.json"
    # As Java's URI does; it leaves other characters as they are.
    uri = quote(str(file), safe="/+;=:ü東")
    for scheme in ("file:", "file://", "file://localhost", ""):
        assert unread.is_missing(scheme + uri)
    file.parent.mkdir()
    file.touch()
    for scheme in ("file:", "file://", "file://localhost", ""):
        assert not unread.is_missing(scheme + uri)
    assert not unread.is_missing("file://another-host/nowhere")
    assert not unread.is_missing("s3a://bucket/nowhere")


def test_a_fork_without_its_line_before_its_first_record_is_refused(logs: Logs) -> None:
    """The query would begin with the first rows of its source, which the old log holds."""
    logs.written(10)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(10))
    logs.stream("wal-v2", place).run(range(10))
    with pytest.raises(OptionError, match="'orders' at position 10 .*give .* the same fork"):
        logs.checkpoint("wal-v2", "orders-v2")
    logs.stream("wal-v2", logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(10))).run(range(12))
    # From now on the log names the place.
    logs.stream("wal-v2", logs.checkpoint("wal-v2", "orders-v2")).run(range(13))
    assert logs.values("wal-v2") == [10, 11, 12]


@pytest.mark.parametrize("at", [7, np.int64(7), np.uint8(7), "7", " 07 ", pa.scalar(7)])
def test_a_position_of_any_integer_type(at: Any) -> None:
    line = sparkwal.Fork("s3://bucket/wal", "orders", at=at)
    assert (line.position, line.text) == (7, "7") and type(line.position) is int


def test_the_error_names_the_log_that_may_not_be_read(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.written(3)

    def refuse(key: str, *_: Any) -> bytes:
        raise Denied("https://host/bucket refused the request (403 AccessDenied)")

    place = logs.log("wal-v2")
    assert find_head(place).live is None
    monkeypatch.setattr(logs.store, "get_range", refuse)
    with pytest.raises(OptionError, match="/wal, the log that is forked.*403.*s3:GetObject"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(2))


def test_a_position_below_the_floor_whose_record_is_missing_is_refused(logs: Logs) -> None:
    logs.written(12)
    log = logs.log()
    log_id = find_head(log).live.header.log_id  # type: ignore[union-attr]
    put_next(log, beginning(log_id, "default", 1), "floor", SYSTEM, "host", floor=9)
    # Below the floor, and still there.
    logs.checkpoint("wal-v2", "new", fork=fork_of(5))
    for position in range(8):
        logs.store.delete(log.key(keys.slot(position, 1000)))
    with pytest.raises(CollectedError, match="below the log's floor 9") as error:
        logs.checkpoint("wal-v3", "new", fork=fork_of(5))
    assert error.value.floor == 9


def test_far_below_the_floor_only_a_record_counts_that_the_head_names(logs: Logs) -> None:
    logs.written(3)
    query = Query(logs.store, Hints("wal", logs.tmp / "other"))
    for number in range(1010):
        query.microbatch(number, (number,))
    log = logs.log()
    log_id = find_head(log).live.header.log_id  # type: ignore[union-attr]
    put_next(log, beginning(log_id, "default", 1), "floor", SYSTEM, "host", floor=1010)
    # A freed slot may hold the late PUT of a fenced writer.
    with pytest.raises(CollectedError, match="position 2 of .* below the log's floor 1010"):
        logs.checkpoint("wal-v2", "new", fork=fork_of(2))
    place = logs.checkpoint("wal-v2", "new", fork=fork_of(3))
    logs.stream("wal-v2", place).run(range(5))
    assert logs.values("wal-v2") == [3, 4]


def test_a_fork_of_a_log_with_wide_windows(logs: Logs) -> None:
    Query(logs.store, Hints("wal", logs.tmp / "other"), window=10_000).microbatch(0, (90,))
    logs.written(6)
    for at in (3, 5, 8):
        place = logs.checkpoint(f"wal-{at}", "new", fork=fork_of(at))
        logs.stream(f"wal-{at}", place).run(range(8))
        # A leader and a commit of each of the two queries come first.
        assert logs.values(f"wal-{at}") == [*range(at - 2, 8)]


@pytest.mark.parametrize(
    "at",
    [-1, True, np.True_, "yesterday", 1.5, np.float64(3), None, "-3", "1e3", np.arange(2), pa.NULL]
    # An Arabic digit, and a moment that is in the year 10000 in UTC.
    + ["\u0665", "9999-12-31T23:59:59-05:00"],
)
def test_a_wrong_place_is_refused(at: Any) -> None:
    with pytest.raises(OptionError, match="a position such as 70412 or a moment"):
        sparkwal.Fork("s3://bucket/wal", "orders", at=at)


def test_the_last_moment_of_the_calendar_is_a_place() -> None:
    fork = sparkwal.Fork("s3://bucket/wal", "orders", at=datetime.max)
    assert fork.text == "9999-12-31T23:59:59.999Z"


def test_a_fork_shows_no_secret() -> None:
    line = sparkwal.Fork("s3://bucket/wal", "orders", at=3, secretAccessKey="hidden")
    assert repr(line) == "Fork('s3://bucket/wal', 'orders', at='3')"


@pytest.mark.parametrize("how", ["header", "cut"])
def test_a_fork_of_a_log_with_an_appender_whose_last_record_is_damaged(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the place lies before the end of the log does not depend on that record."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = str(tmp_path / "wal")
    log = LogStore(LocalStore(path), "")
    stream = FileStream(log, Path(sparkwal.checkpoint(path, "orders")), Hints("l", tmp_path / "h"))
    stream.run(range(3))
    schema = pa.schema([("v", pa.int64())])
    with sparkwal.Appender(path, schema, producer_id="p", batchTimeoutMs=1) as wal:
        last = [wal.append([{"v": 100 + number}]).result() for number in range(3)][-1]
    assert last == 7
    file = Path(path) / log.key(keys.slot(last, 1000))
    body = file.read_bytes()
    file.write_bytes(body[:300] if how == "cut" else body[:300] + b"\0" + body[301:])
    for at in (3, 4, 6):
        place = sparkwal.checkpoint(f"{path}-{at}", "new", fork=fork_of(at, path))
        assert folder.latest(Path(place), "offsets") == 2
    with pytest.raises((InvalidLogError, OptionError)):
        sparkwal.checkpoint(f"{path}-7", "new", fork=fork_of(last, path))


# Requests


@pytest.mark.parametrize("at", [25, 20, 12, 9, 5])
def test_a_fork_costs_at_most_a_rebuild_and_two_requests(logs: Logs, at: int) -> None:
    logs.written(25)
    logs.store.counts.clear()
    logs.checkpoint("wal", "orders", "elsewhere")
    rebuilt = sum(logs.store.counts.values())
    logs.store.counts.clear()
    logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(at))
    assert sum(logs.store.counts.values()) <= rebuilt + 2


def test_a_fork_of_offsets_costs_at_most_a_rebuild_and_two_requests(logs: Logs) -> None:
    first = logs.checkpoint("wal", "orders")
    OffsetStream(logs.log("wal"), first, Hints("wal", logs.tmp / "h")).run(range(12))
    logs.store.counts.clear()
    logs.checkpoint("wal", "orders", "elsewhere")
    assert logs.store.counts == {"LIST": 1, "GET": 2}
    logs.store.counts.clear()
    logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(5))
    # The new log, the floor; the record.
    assert logs.store.counts == {"LIST": 2, "GET": 1}


def test_a_fork_that_the_log_names_costs_no_request(logs: Logs) -> None:
    logs.written(9)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(4))
    logs.stream("wal-v2", place).run(range(9))
    logs.store.counts.clear()
    logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(4))
    assert logs.store.counts == {"LIST": 1, "GET": 2}
