"""How a stream reports its position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal import events
from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.format import keys, limits
from sparkwal.lifecycle.consumers.objects import ConsumerObject, forget, read
from sparkwal.lifecycle.consumers.publishing import Publisher
from sparkwal.protocol.holds import Holds
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.consumers import bound
from tests.protocol.query import StoppedClock

MINUTE = 60_000


class Stream:
    """Runs of streams over one log, and one clock for all."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.clock = StoppedClock()
        self.holds = Holds(folder)
        self.log = LogStore(self.store, "wal")

    def run(self, at: int, log_id: str = "log-1", machine: str = "") -> Publisher:
        holds = replace(self.holds, state=(self.holds.state or Path()) / machine)
        publisher = Publisher("daily", MINUTE, holds, self.clock)
        assert publisher.join([(self.log, log_id, at)]) == {"default": at}
        self.store.counts.clear()
        return publisher

    def pass_ms(self, ms: int) -> None:
        self.clock.since_boot_ms += ms

    @property
    def stored(self) -> ConsumerObject:
        return ConsumerObject(self.log, "daily")

    @property
    def positions(self) -> dict[str, int]:
        """The published positions, by the names of the logs."""
        found = read(self.stored)
        assert found is not None
        return {name: log.position for name, log in found.logs.items()}

    @property
    def reported(self) -> int:
        (position,) = self.positions.values()
        return position


@contextmanager
def down(store: MemoryStore) -> Iterator[None]:
    """The store takes no object."""

    def fail(*_: object) -> bool:
        raise StoreUnavailableError("the store is down")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("put", "put_if_absent", "replace"):
            patch.setattr(store, name, fail)
        yield


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path)


@pytest.fixture
def warned() -> Iterator[list[events.Event]]:
    found: list[events.Event] = []
    unsubscribe = events.subscribe(found.append)
    yield found
    unsubscribe()


def test_a_stream_publishes_its_first_commit_at_once(
    stream: Stream,
) -> None:
    run = stream.run(0)
    run.committed({"default": 3})
    assert stream.reported == 3
    stream.pass_ms(MINUTE - 1)
    stream.store.counts.clear()
    run.committed({"default": 5})
    assert not stream.store.counts
    assert stream.reported == 3
    stream.pass_ms(1)
    stream.store.counts.clear()
    run.committed({"default": 8})
    assert dict(stream.store.counts) == {"GET": 1, "PUT": 1}
    assert stream.reported == 8


def test_a_stream_that_ends_publishes_its_last_commit(stream: Stream) -> None:
    run = stream.run(0)
    run.committed({"default": 3})
    run.committed({"default": 5})
    run.catch_up()
    assert stream.reported == 5
    stream.store.counts.clear()
    run.catch_up()
    assert not stream.store.counts


def test_a_run_without_new_rows_publishes_its_start(stream: Stream) -> None:
    """Spark commits the last microbatch of a run only in the next one that has rows."""
    stream.run(0).catch_up()
    run = stream.run(7)
    assert stream.reported == 0
    run.catch_up()
    assert stream.reported == 7


def test_a_crashed_stream_continues(stream: Stream) -> None:
    stream.run(0).committed({"default": 5})
    run = stream.run(9)
    assert stream.reported == 5
    run.committed({"default": 9})
    assert stream.reported == 9


def test_a_stream_publishes_only_to_logs_that_it_joined(stream: Stream) -> None:
    run = Publisher("daily", MINUTE, stream.holds, stream.clock)
    assert run.join([(stream.log, None, 3)]) == {"default": 3}
    run.committed({"default": 5})
    run.catch_up()
    assert not stream.store.counts


def test_a_stream_of_all_logs_protects_new_ones_now_and_then(
    stream: Stream, warned: list[events.Event]
) -> None:
    run = Publisher("daily", MINUTE, stream.holds, stream.clock)
    # Not without it at the beginning.
    with down(stream.store), pytest.raises(StoreUnavailableError):
        run.protect_new_logs(stream.log)
    for expected in (1, 0):
        stream.store.counts.clear()
        run.protect_new_logs(stream.log)
        assert stream.store.counts["PUT"] == expected
    stream.pass_ms(MINUTE)
    with down(stream.store):
        run.protect_new_logs(stream.log)
    assert [event.name for event in warned] == ["consumer_not_published"]
    stream.store.counts.clear()
    Publisher("", MINUTE, stream.holds, stream.clock).protect_new_logs(stream.log)
    assert not stream.store.counts


class OfAll(Stream):
    """Runs of streams over all logs of a path."""

    def begin(self, machine: str = "", **positions: int) -> Publisher:
        """A run that reads logs from these positions."""
        holds = replace(self.holds, state=(self.holds.state or Path()) / machine)
        publisher = Publisher("daily", MINUTE, holds, self.clock)
        publisher.protect_new_logs(self.log)
        self.joined = self.join(publisher, **positions)
        self.store.counts.clear()
        return publisher

    def join(self, publisher: Publisher, **positions: int) -> dict[str, int]:
        logs = positions.items()
        return publisher.join(
            [(self.log.sequencer(name), f"log-{name}", position) for name, position in logs]
        )

    @property
    def stored(self) -> ConsumerObject:
        return ConsumerObject(self.log, "daily", is_of_all=True)


@pytest.fixture
def of_all(tmp_path: Path) -> OfAll:
    return OfAll(tmp_path)


def test_a_stream_over_all_logs_publishes_one_object(of_all: OfAll) -> None:
    names = [f"s{number}" for number in range(50)]
    run = of_all.begin(**dict.fromkeys(names, 1))
    assert of_all.positions == dict.fromkeys(names, 1)
    of_all.store.counts.clear()
    run.committed(dict.fromkeys(names, 10))
    assert dict(of_all.store.counts) == {"GET": 1, "PUT": 1}
    assert of_all.positions == dict.fromkeys(names, 10)
    assert [*of_all.store.objects] == ["wal/consumers/daily.all"]
    of_all.store.counts.clear()
    run.committed(dict.fromkeys(names, 20))
    run.protect_new_logs(of_all.log)
    assert not of_all.store.counts
    of_all.pass_ms(MINUTE)
    # An idle stream stays live, and what it committed meanwhile is published.
    run.protect_new_logs(of_all.log)
    assert dict(of_all.store.counts) == {"GET": 1, "PUT": 1}
    assert of_all.positions == dict.fromkeys(names, 20)


def test_a_start_of_a_stream_over_all_logs_costs_the_same_for_any_number(of_all: OfAll) -> None:
    run = Publisher("daily", MINUTE, of_all.holds, of_all.clock)
    run.protect_new_logs(of_all.log)
    assert dict(of_all.store.counts) == {"GET": 1, "PUT": 1}
    of_all.store.counts.clear()
    of_all.join(run, **{f"s{number}": number for number in range(50)})
    # The floors of all logs are in one record.
    assert dict(of_all.store.counts) == {"GET": 1, "PUT": 1, "LIST": 1}


def test_a_start_keeps_what_was_published_until_its_sources_have_joined(of_all: OfAll) -> None:
    before = of_all.begin(a=3, b=4)
    before.committed({"a": 5, "b": 6})
    del before
    run = Publisher("daily", MINUTE, of_all.holds, of_all.clock)
    run.protect_new_logs(of_all.log)
    assert of_all.positions == {"a": 5, "b": 6}
    of_all.pass_ms(MINUTE)
    run.protect_new_logs(of_all.log)
    assert of_all.positions == {"a": 5, "b": 6}
    of_all.join(run, a=9, b=8)
    assert of_all.positions == {"a": 5, "b": 6}
    of_all.pass_ms(MINUTE)
    run.protect_new_logs(of_all.log)
    assert of_all.positions == {"a": 5, "b": 6}
    run.committed({"a": 9, "b": 8})
    assert of_all.positions == {"a": 9, "b": 8}


def test_a_log_that_joins_later_changes_no_other(of_all: OfAll) -> None:
    run = of_all.begin(a=3)
    run.committed({"a": 5})
    assert of_all.join(run, a=5, b=2) == {"a": 5, "b": 2}
    assert of_all.positions == {"a": 5, "b": 2}
    # Its first commit is published at once.
    run.committed({"a": 6, "b": 4})
    assert of_all.positions == {"a": 6, "b": 4}
    assert bound(of_all.log.sequencer("c"), "log-c", 99, None) == 0


def test_two_streams_of_one_machine_publish_the_lower_position_of_each_log(
    of_all: OfAll, warned: list[events.Event]
) -> None:
    one = of_all.begin(a=0, b=0)
    other = of_all.begin(a=0, b=0)
    for turn in range(1, 4):
        of_all.pass_ms(MINUTE)
        one.committed({"a": 10 * turn, "b": 10 * turn + 5})
        other.committed({"a": 10 * turn + 5, "b": 10 * turn})
        assert of_all.positions == {"a": 10 * turn, "b": 10 * turn}
    del one
    of_all.pass_ms(MINUTE)
    other.committed({"a": 50, "b": 60})
    assert of_all.positions == {"a": 50, "b": 60} and warned == []


@pytest.mark.proves("lowest-stays")
def test_the_lowest_position_of_each_log_counts_for_two_machines(
    of_all: OfAll, warned: list[events.Event]
) -> None:
    slow = of_all.begin(a=10, b=100)
    fast = of_all.begin(machine="m", a=100, b=10)
    assert of_all.positions == {"a": 10, "b": 10}
    for turn in range(1, 4):
        of_all.pass_ms(MINUTE)
        slow.committed({"a": 10 + turn, "b": 200})
        fast.committed({"a": 200, "b": 10 + turn})
        positions = of_all.positions
        assert positions["a"] <= 10 + turn and positions["b"] <= 10 + turn
    assert {event.name for event in warned} == {"consumer_shared"}
    # The slow stream ended.
    for _ in range(2):
        of_all.pass_ms(MINUTE)
        fast.committed({"a": 300, "b": 301})
    assert of_all.positions == {"a": 300, "b": 301}


def test_a_stream_of_more_logs_than_an_object_holds_does_not_start(
    of_all: OfAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONSUMER_OF_ALL", 300)
    of_all.begin(a=1)
    with pytest.raises(OptionError, match="divide the logs"):
        of_all.begin(**{f"s{number}": 1 for number in range(10)})


def test_a_stream_continues_when_it_cannot_publish(
    stream: Stream, warned: list[events.Event]
) -> None:
    run = stream.run(0)
    with down(stream.store):
        run.committed({"default": 3})
        run.committed({"default": 4})
    assert stream.reported == 0
    (event,) = warned
    assert str(event).startswith("consumer_not_published path=memory://store/wal consumer=daily")
    stream.pass_ms(MINUTE)
    run.committed({"default": 5})
    assert stream.reported == 5


def test_a_damaged_consumer_is_not_overwritten(stream: Stream, warned: list[events.Event]) -> None:
    run = stream.run(0)
    key = keys.consumer_key("wal", "daily")
    stream.store.put(key, b"?")
    run.committed({"default": 3})
    assert stream.store.objects[key] == b"?"
    assert [event.name for event in warned] == ["consumer_not_published"]


def test_a_consumer_that_was_forgotten_while_it_runs_registers_again(stream: Stream) -> None:
    run = stream.run(0)
    forget(stream.stored)
    run.committed({"default": 3})
    assert stream.reported == 3


def test_two_streams_of_one_machine_publish_the_lower_position(
    stream: Stream, warned: list[events.Event]
) -> None:
    runs = [stream.run(0), stream.run(0)]
    for turn in range(1, 5):
        stream.pass_ms(MINUTE)
        runs[0].committed({"default": 10 * turn})
        runs[1].committed({"default": 10 * turn + 5})
        assert stream.reported == 10 * turn
    del runs[0]
    stream.pass_ms(MINUTE)
    runs[0].committed({"default": 99})
    assert stream.reported == 99 and warned == []


def test_a_stream_that_joins_a_namesake_of_its_machine_holds_its_own_position(
    stream: Stream, warned: list[events.Event]
) -> None:
    fast = stream.run(50)
    slow = stream.run(20)
    fast.committed({"default": 70})
    assert stream.reported == 20
    slow.committed({"default": 60})
    assert stream.reported == 60 and warned == []


def test_a_stream_whose_namesake_cannot_be_read_publishes_nothing(
    stream: Stream, warned: list[events.Event]
) -> None:
    one, other = stream.run(0), stream.run(0)
    for file in (stream.holds.state or Path()).glob("readers/*/*"):
        file.write_bytes(b"%020d %020d" % (1, 2))
    one.committed({"default": 9})
    assert stream.reported == 0
    assert [event.name for event in warned] == ["consumer_not_published"]
    del other


@pytest.mark.parametrize("others", [1, 2])
def test_the_lowest_position_of_streams_with_one_name_counts(
    stream: Stream, warned: list[events.Event], others: int
) -> None:
    slow = stream.run(10)
    fast = [stream.run(100 + n, machine=f"m{n}") for n in range(others)]
    for turn in range(1, 5):
        stream.pass_ms(MINUTE)
        slow.committed({"default": 10 + turn})
        for n, run in enumerate(fast):
            run.committed({"default": 200 + turn + n})
        assert bound(stream.log, "log-1", 999, None) <= 10 + turn
    assert {event.name for event in warned} == {"consumer_shared"}
    warned.clear()
    # The slow stream ended: one or several others remain.
    stream.pass_ms(MINUTE)
    fast[0].committed({"default": 300})
    stream.pass_ms(MINUTE)
    fast[0].committed({"default": 301})
    assert stream.reported == 301


def test_a_stream_of_a_recreated_log_publishes_nothing(
    stream: Stream, warned: list[events.Event]
) -> None:
    old = stream.run(90)
    new = stream.run(0, "log-2")
    new.committed({"default": 4})
    old.catch_up()
    assert bound(stream.log, "log-2", 50, None) == 4
    assert [event.name for event in warned] == ["consumer_not_published"]


def test_a_stream_publishes_the_position_that_a_rebuild_would_read_from(
    stream: Stream, warned: list[events.Event]
) -> None:
    """A query that passes over rows: its sink's last record lies at position 3 of this log."""
    run = stream.run(0)
    for upto in (5, 7):
        stream.holds.set("/ck", {"log-1": [(3, upto)]})
        run.committed({"default": upto})
        assert stream.reported == 3
        stream.pass_ms(MINUTE)
    # Its sink has written a record since.
    run.committed({"default": 9})
    assert stream.reported == 9
    assert warned == []


def test_a_hold_of_another_log_does_not_count(stream: Stream) -> None:
    stream.holds.set("/ck", {"log-2": [(3, 9)]})
    stream.run(0).committed({"default": 7})
    assert stream.reported == 7


def test_the_lowest_of_all_that_is_held_counts(stream: Stream) -> None:
    stream.holds.set("/one", {"log-1": [(3, 9), (8, 9)]})
    stream.holds.set("/two", {"log-1": [(2, 8)]})
    assert [stream.holds.lowest("log-1", at) for at in (2, 3, 8, 9, 10)] == [2, 2, 2, 3, 10]


def test_a_stream_that_comes_back_registers_what_a_rebuild_would_read_again(
    stream: Stream,
) -> None:
    stream.holds.set("/ck", {"log-1": [(3, 7)]})
    stream.run(7)
    assert stream.reported == 3
    assert bound(stream.log, "log-1", 7, None) == 3


def test_a_damaged_hold_is_reported_and_nothing_is_let_go(
    stream: Stream, warned: list[events.Event]
) -> None:
    run = stream.run(0)
    stream.holds.set("/ck", {"log-1": [(3, 7)]})
    (file,) = (stream.holds.state or Path()).glob("holds/*.json")
    file.write_bytes(bytes(20))
    run.committed({"default": 7})
    assert stream.reported == 0
    (warning,) = warned
    assert isinstance(warning, events.ConsumerNotPublished) and str(file) in warning.reason


def test_a_user_without_a_home_holds_nothing() -> None:
    homeless = Holds(None)
    assert homeless.lowest("log-1", 5) == 5
    with pytest.raises(OSError, match="no home"):
        homeless.set("/ck", {"log-1": [(3, 7)]})
