"""Consumers of a log, and the positions kept for them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import sparkwal
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import keys
from sparkwal.format.consumer_record import Consumer, LogPosition, decode, encode
from sparkwal.format.lifecycle_record import FLOOR
from sparkwal.lifecycle.consumers.consumer_list import ConsumerInfo
from sparkwal.lifecycle.consumers.objects import ConsumerObject, forget, read
from sparkwal.lifecycle.consumers.readers import look_at_readers
from sparkwal.sql.relations import CONSUMERS
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from sparkwal.testing.memory import MemoryStore
from tests.chains import beginning, newest, put_next
from tests.consumers import bound, bounds, consumer, consumers_and_ages, join, publish
from tests.protocol.query import Query, StoppedClock, hints_in

CLOCK = StoppedClock()
NAMED = consumer("daily", 7)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def log(store: MemoryStore) -> LogStore:
    return LogStore(store, "wal")


def at(position: int | dict[str, int], name: str = "daily", **more: Any) -> Consumer:
    return consumer(name, position, **more)


def of_one(log: LogStore) -> Consumer | None:
    return read(ConsumerObject(log, "daily"))


def of_all(log: LogStore, name: str = "daily") -> Consumer | None:
    return read(ConsumerObject(log, name, is_of_all=True))


def older(store: MemoryStore, name: str, age_ms: int) -> None:
    store.modified[keys.consumer_key("wal", name)] -= age_ms


def move_floor(log: LogStore, floor: int) -> None:
    head = newest(log) or beginning("log-1", "default", 1000)
    assert put_next(log, head, FLOOR, CLOCK, "here", floor=floor)


def requests(store: MemoryStore) -> dict[str, int]:
    found = dict(store.counts)
    store.counts.clear()
    return found


def test_a_published_consumer_is_read_back(log: LogStore) -> None:
    assert of_one(log) is None
    publish(log, NAMED)
    publish(log, at(9))
    assert of_one(log) == at(9)
    forget(ConsumerObject(log, "daily"))
    forget(ConsumerObject(log, "daily"))
    assert of_one(log) is None


def test_a_damaged_consumer_object_is_refused() -> None:
    body = encode(replace(NAMED, expires_ms=5), "default")
    assert decode(body, "here", "default") == replace(NAMED, expires_ms=5)
    for damaged in (body[:-9], body.replace(b":7,", b":9,"), b"", b"\n00000000\n"):
        with pytest.raises(InvalidLogError, match="here: this is no"):
            decode(damaged, "here", "default")


@pytest.mark.proves("floor-below-consumers")
def test_the_floor_passes_no_consumer(log: LogStore) -> None:
    assert bound(log, "log-1", 50, None) == 50
    publish(log, at(30, "a"))
    publish(log, at(20, "b"))
    publish(log, at(90, "c"))
    assert bound(log, "log-1", 50, None) == 20
    assert bound(log, "log-1", 10, None) == 10


def test_all_of_more_consumers_than_one_page_shows_count() -> None:
    store = MemoryStore(page=2)
    log = LogStore(store, "wal")
    for position in (40, 30, 20, 10, 60):
        publish(log, at(position, f"c{100 - position}"))
    assert bound(log, "log-1", 50, None) == 10
    positions = [found.logs["default"].position for found, _ in consumers_and_ages(log)]
    assert positions == [60, 40, 30, 20, 10]


def test_a_consumer_expires_only_with_an_expiry(log: LogStore, store: MemoryStore) -> None:
    publish(log, at(20))
    older(store, "daily", 10_000)
    assert bound(log, "log-1", 50, None) == 20
    assert bound(log, "log-1", 50, 60_000) == 20
    assert bound(log, "log-1", 50, 9_999) == 50


def test_a_lease_expires_by_its_own_time(log: LogStore, store: MemoryStore) -> None:
    assert join(log, at(20, "lease-1", expires_ms=5_000)) == {"default": 20}
    assert bound(log, "log-1", 50, 0) == 20
    older(store, "lease-1", 10_000)
    assert bound(log, "log-1", 50, None) == 50
    assert bound(log, "log-1", 50, 60_000) == 50


def test_leases_that_count_no_more_are_deleted(log: LogStore, store: MemoryStore) -> None:
    publish(log, at(20))
    for name in ("old", "new"):
        publish(log, at(20, name, expires_ms=5_000))
    older(store, "old", 10_000)
    older(store, "daily", 10_000)
    publish(log, at({"a": 20}, name="lease-old", expires_ms=5_000), is_of_all=True)
    older(store, "lease-old.all", 10_000)
    look_at_readers([log]).forget_expired_leases()
    assert {consumer.name for consumer, _ in consumers_and_ages(log)} == {"daily", "new"}
    assert of_all(log, "lease-old") is None


def test_a_consumer_that_publishes_during_the_age_check_is_alive(
    log: LogStore, store: MemoryStore
) -> None:
    """Between the GET of an old consumer and the question for its age it reports again."""
    publish(log, at(20))
    older(store, "daily", 10_000)
    get = store.get

    def get_and_report(key: str) -> bytes:
        body = get(key)
        publish(log, at(25))
        return body

    store.get = get_and_report  # type: ignore[method-assign]
    assert bound(log, "log-1", 50, 5_000) == 20


def test_a_damaged_consumer_is_never_no_consumer(log: LogStore, store: MemoryStore) -> None:
    publish(log, at(20, "a"))
    key = keys.consumer_key("wal", "a")
    store.objects[key] = store.objects[key].replace(b'"position":20', b'"position":90')
    for look_at in (lambda: bound(log, "log-1", 50, None), lambda: consumers_and_ages(log)):
        with pytest.raises(InvalidLogError, match="wal/consumers/a: .*delete it"):
            look_at()


def test_a_copied_consumer_is_refused(log: LogStore, store: MemoryStore) -> None:
    store.put(keys.consumer_key("wal", "b"), encode(NAMED, "default"))
    with pytest.raises(InvalidLogError, match="wal/consumers/b: .*'daily'"):
        bound(log, "log-1", 50, None)


def test_an_unknown_object_among_the_consumers_is_named(log: LogStore, store: MemoryStore) -> None:
    store.put("wal/consumers/notes", b"")
    with pytest.raises(InvalidLogError, match="wal/consumers/notes: this is no intact consumer"):
        bound(log, "log-1", 50, None)


def test_a_consumer_of_a_former_log_does_not_count(log: LogStore) -> None:
    publish(log, at(20))
    assert bound(log, "log-2", 50, None) == 50
    assert look_at_readers([log]).holders(log, "log-2", 20, None) == []
    assert look_at_readers([log]).holders(log, "log-1", 20, None) == ["daily"]


@pytest.mark.proves("unseen-logs-held")
def test_a_consumer_of_all_logs_holds_one_that_it_has_not_seen(log: LogStore) -> None:
    seen, unseen = log.sequencer("a"), log.sequencer("b")
    publish(log, at({"a": 20}), is_of_all=True)
    assert [bound(each, "log-1", 50, None) for each in (seen, unseen, log)] == [20, 0, 0]
    # A log that was recreated is one that it has not seen.
    assert bound(seen, "log-2", 50, None) == 0
    publish(log, at({"a": 20, "b": 3, "default": 4}), is_of_all=True)
    assert [bound(each, "log-1", 50, None) for each in (seen, unseen, log)] == [20, 3, 4]
    ((found, _),) = consumers_and_ages(log.sequencer("c"), "log-3")
    assert (found.name, found.logs["c"]) == ("daily", LogPosition("log-3", 0))
    assert consumers_and_ages(log.sequencer("c")) == []
    forget(ConsumerObject(log, "daily", is_of_all=True))
    assert bound(unseen, "log-1", 50, None) == 50


def test_a_lease_of_all_logs_holds_those_of_its_map_only(log: LogStore) -> None:
    publish(log, at({"a": 20}, expires_ms=60_000), is_of_all=True)
    assert bound(log.sequencer("a"), "log-1", 50, None) == 20
    assert bound(log.sequencer("a"), "log-2", 50, None) == 50
    assert bound(log.sequencer("b"), "log-1", 50, None) == 50
    assert consumers_and_ages(log.sequencer("b"), "log-1") == []


def test_a_consumer_of_all_logs_expires_as_others_do(log: LogStore, store: MemoryStore) -> None:
    publish(log, at({}), is_of_all=True)
    older(store, "daily.all", 10_000)
    unseen = log.sequencer("b")
    assert bound(unseen, "log-1", 50, 60_000) == 0
    assert bound(unseen, "log-1", 50, 9_999) == 50
    look_at_readers([unseen, log]).forget_expired_leases()
    assert bound(unseen, "log-1", 50, None) == 0


def test_a_consumer_of_many_logs_is_one_object(log: LogStore, store: MemoryStore) -> None:
    names = [f"log-{number}" for number in range(100)]
    wanted = [(log.sequencer(name), "log-1", 50) for name in names]
    joined = join(log, at(dict.fromkeys(names, 7)), is_of_all=True)
    assert joined == dict.fromkeys(names, 7)
    assert requests(store) == {"GET": 1, "PUT": 1, "LIST": 1}
    assert bounds(wanted, 60_000) == [7] * 100
    # One LIST for each log and one at the path, the object and its age.
    assert requests(store) == {"LIST": 101, "GET": 2}


def test_consumers_of_all_logs_cost_a_sequencer_one_list(log: LogStore, store: MemoryStore) -> None:
    seen = log.sequencer("a")
    publish(log, at(1, "of-the-root"))
    publish(log, at({"a": 20}), is_of_all=True)
    requests(store)
    bound(seen, "log-1", 50, None)
    assert requests(store) == {"LIST": 2, "GET": 1}
    bound(log, "log-1", 50, None)
    assert requests(store) == {"LIST": 1, "GET": 2}


def test_a_damaged_consumer_of_all_logs_stops_every_floor(
    log: LogStore, store: MemoryStore
) -> None:
    publish(log.sequencer("b"), at({"b": 20}))
    store.put(keys.consumer_key("wal", "all.all"), b"{}")
    for floor in bounds([(log.sequencer(name), "log-1", 50) for name in "ab"], None):
        assert isinstance(floor, InvalidLogError)
        assert "wal/consumers/all.all: " in str(floor) and "delete it" in str(floor)


def test_a_damaged_consumer_of_a_log_stops_only_its_floor(
    log: LogStore, store: MemoryStore
) -> None:
    publish(log.sequencer("a"), at({"a": 20}))
    store.put(keys.consumer_key("wal/sequencers/b", "daily"), b"{}")
    found = bounds([(log.sequencer(name), "log-1", 50) for name in "abc"], None)
    assert (found[0], found[2]) == (20, 50) and isinstance(found[1], InvalidLogError)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (at({"a/b": 1}), "'a/b' is no name of a log"),
        (at({"..": 1}), "'..' is no name of a log"),
        (at({"a": 2**63 - 1}), "no log has so many positions"),
        (at({"a": -1}), "here: "),
        (at({"a": 1}, name=3), "here: "),
        (replace(at({}), logs={"a": 7}), "here: "),
        (replace(at({}), logs=[]), "here: "),
    ],
)
def test_a_wrong_map_of_logs_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidLogError, match=message):
        decode(encode(wrong, None), "here", None)


def test_a_map_of_logs_is_no_consumer_of_one_and_the_other_way_round() -> None:
    with pytest.raises(InvalidLogError, match="here: .*log_id"):
        decode(encode(at({"a": 1}), None), "here", "a")
    with pytest.raises(InvalidLogError, match="here: .*logs"):
        decode(encode(at({"a": 1}), "a"), "here", None)


def test_the_bytes_of_both_forms_are_those_that_are_stored() -> None:
    lease = at({"a": 7}, expires_ms=5)
    assert encode(lease, "a") == (
        b'{"format":1,"name":"daily","log_id":"log-1","position":7,"timestamp_ms":1700000000000,'
        b'"host":"here","run_id":"run-1","expires_ms":5}\n8e759da0\n'
    )
    more = replace(lease, logs={"default": LogPosition("log-1", 7), "a": LogPosition("log-2", 0)})
    assert encode(more, None) == (
        b'{"format":1,"name":"daily","logs":{"default":{"log_id":"log-1","position":7},'
        b'"a":{"log_id":"log-2","position":0}},"timestamp_ms":1700000000000,"host":"here",'
        b'"run_id":"run-1","expires_ms":5}\nc793c534\n'
    )
    for only in ("a", None):
        body = encode(replace(lease, expires_ms=None), only)
        assert b'"run_id":"run-1","expires_ms":null}' in body


@pytest.mark.proves("lowest-stays")
def test_a_join_keeps_the_lower_position_of_each_log(log: LogStore) -> None:
    publish(log, at({"a": 10, "b": 30, "gone": 1}), is_of_all=True)
    joined = join(log, at({"a": 12, "b": 20, "c": 5}, run_id="run-2"), is_of_all=True)
    assert joined == {"a": 12, "b": 20, "c": 5}
    assert of_all(log) == at({"a": 10, "b": 20, "c": 5}, run_id="run-2")


@pytest.mark.proves("join-then-floor")
def test_a_consumer_of_all_logs_begins_at_the_floors_that_moved(
    log: LogStore, store: MemoryStore
) -> None:
    move_floor(log, 5)
    other = log.sequencer("a")
    assert join(log, at({"default": 3, "a": 2}), is_of_all=True) == {"default": 5, "a": 2}
    assert bound(log, "log-1", 50, None) == 5 and bound(other, "log-1", 50, None) == 2


def test_a_new_consumer_begins_where_it_asks(log: LogStore, store: MemoryStore) -> None:
    assert join(log, at(3)) == {"default": 3}
    assert requests(store) == {"GET": 1, "PUT": 1, "LIST": 1}
    assert of_one(log) == at(3)


def test_a_new_consumer_begins_at_the_floor_that_moved_before_it_was_seen(log: LogStore) -> None:
    move_floor(log, 5)
    assert join(log, at(3)) == {"default": 5}
    assert bound(log, "log-1", 50, None) == 5


@pytest.mark.proves("join-then-floor")
def test_the_floor_that_moves_while_a_consumer_joins(log: LogStore, store: MemoryStore) -> None:
    """Each time the consumer has published, and before it looks, a floor appears that was
    decided before that."""
    floors = iter((5, 8))
    create, replace = store.put_if_absent, store.replace

    def move(key: str) -> None:
        if "/consumers/" in key and (floor := next(floors, None)) is not None:
            move_floor(log, floor)

    def create_then_move(key: str, body: bytes) -> bool:
        created = create(key, body)
        move(key)
        return created

    def replace_then_move(key: str, body: bytes, etag: str) -> bool:
        replaced = replace(key, body, etag)
        move(key)
        return replaced

    store.put_if_absent = create_then_move  # type: ignore[method-assign]
    store.replace = replace_then_move  # type: ignore[method-assign]
    assert join(log, at(3)) == {"default": 8}
    assert bound(log, "log-1", 50, None) == 8
    assert (head := newest(log)) is not None and head.floor == 8


def test_a_returning_consumer_keeps_its_position(log: LogStore) -> None:
    publish(log, at(10))
    assert join(log, at(12, run_id="run-2")) == {"default": 12}
    assert of_one(log) == at(10, run_id="run-2")


def test_a_consumer_that_comes_back_from_an_older_checkpoint_needs_more(log: LogStore) -> None:
    move_floor(log, 2)
    publish(log, at(10))
    assert join(log, at(4)) == {"default": 4}
    assert bound(log, "log-1", 50, None) == 4


def test_a_returning_consumer_of_a_recreated_log_begins_at_its_start(log: LogStore) -> None:
    publish(log, at(10, log_id="log-0"))
    assert join(log, at(12)) == {"default": 12}
    assert of_one(log) == at(12)


def test_one_that_expired_and_comes_back_does_not_hold_the_floor_down(log: LogStore) -> None:
    publish(log, at(4))
    move_floor(log, 8)
    assert join(log, at(10, run_id="run-2")) == {"default": 10}
    assert bound(log, "log-1", 50, None) == 8


def test_a_bound_asks_for_the_age_of_those_only_that_hold_it_down(
    log: LogStore, store: MemoryStore
) -> None:
    publish(log, at(20, "a"))
    publish(log, at(90, "b"))
    requests(store)
    bound(log, "log-1", 50, None)
    assert requests(store) == {"LIST": 1, "GET": 2}
    bound(log, "log-1", 50, 1000)
    assert requests(store) == {"LIST": 1, "GET": 3}


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, LogStore, str]:
    """A log of a leader record and three commits, a second apart; its path and its id."""
    clock = StoppedClock()
    query = Query(
        LocalStore(tmp_path / "log", fsync=False), hints_in(tmp_path), prefix="", clock=clock
    )
    for batch in range(3):
        query.microbatch(batch, (batch,))
        clock.wall_ms += 1000
    path = str(tmp_path / "log")
    head = sparkwal.Log(path).head()
    assert head is not None
    return path, LogStore(query.store, query.prefix), head.log_id


def test_consumers_are_listed_with_their_lag(written: tuple[str, LogStore, str]) -> None:
    path, log, log_id = written
    publish(log, at(1, "behind", log_id=log_id))
    publish(log, at(4, "there", log_id=log_id))
    publish(log, at(2, "before", log_id="another"))
    before, behind, there = sparkwal.consumers(path)
    assert (behind.name, behind.lag, behind.lag_ms, behind.live) == ("behind", 3, 2000, True)
    assert (there.name, there.lag, there.lag_ms, there.live) == ("there", 0, 0, True)
    assert (before.name, before.of_this_log, before.live, before.lag_ms) == (
        "before",
        False,
        False,
        None,
    )
    assert behind.host == "here" and behind.sequencer == "default" and behind.age_ms >= 0
    assert [each.live for each in sparkwal.consumers(path, expiry="1d")] == [False, True, True]
    sparkwal.forget_consumer(path, "behind")
    assert [each.name for each in sparkwal.consumers(path)] == ["before", "there"]


def test_consumers_of_all_sequencers_are_listed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store = LocalStore(tmp_path / "log", fsync=False)
        query = Query(store, hints_in(tmp_path / name), prefix=f"sequencers/{name}")
        query.microbatch(0, (1,))
        head = sparkwal.Log(str(tmp_path / "log"), sequencer=name).head()
        assert head is not None
        publish(LogStore(store, query.prefix), at({name: 1}, log_id=head.log_id))
    path = str(tmp_path / "log")
    reported = sparkwal.consumers(path, sequencers="*")
    assert [(each.sequencer, each.name, each.lag) for each in reported] == [
        ("a", "daily", 1),
        ("b", "daily", 1),
    ]
    sparkwal.forget_consumer(path, "daily", sequencer="a")
    assert [each.sequencer for each in sparkwal.consumers(path, sequencers="*")] == ["b"]
    sparkwal.forget_consumer(path, "daily", sequencers="*")
    assert sparkwal.consumers(path, sequencers="*") == []


def test_a_log_without_records_has_consumers_of_none(tmp_path: Path) -> None:
    assert sparkwal.consumers(str(tmp_path)) == []


def test_wrong_names_and_times_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="consumer is 'a/b'; a name of at most 200 letters"):
        sparkwal.forget_consumer(str(tmp_path), "a/b")
    with pytest.raises(OptionError, match="consumerExpiry is 'soon'; a time such as"):
        sparkwal.consumers(str(tmp_path), expiry="soon")


def test_the_relation_of_consumers_has_every_published_field() -> None:
    assert [each.name for each in fields(ConsumerInfo)] == CONSUMERS.names
