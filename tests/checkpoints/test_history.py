"""The queries of a log, and the audit of their input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkwal import CollectedError, OptionError
from sparkwal.checkpoints import folder, query_state
from sparkwal.checkpoints.audit import Break, audit_log, complete_until
from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.checkpoints.forkable import COLLECTED
from sparkwal.checkpoints.queries import read_queries
from sparkwal.format import keys
from sparkwal.protocol import archive
from sparkwal.protocol.archive import named_records
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.verification import verify_store
from tests.checkpoints.forks import Logs, OffsetStream, fork_of
from tests.checkpoints.stateful import StatefulStream
from tests.protocol.query import Query
from tests.reading.collected import collect, move_floor


def kafka(logs: Logs, prefix: str = "wal", **more: Any) -> OffsetStream:
    """A query over a topic with one partition."""
    hints = Hints(prefix, logs.tmp / f"hints-{prefix}")
    return OffsetStream(logs.log(prefix), logs.checkpoint(prefix, "orders"), hints, **more)


def breaks(logs: Logs, prefix: str = "wal", **more: Any) -> list[Break]:
    return [
        each for audit in audit_log(logs.log(prefix), "default", **more) for each in audit.breaks
    ]


def test_the_queries_of_a_log(logs: Logs) -> None:
    kafka(logs).run(range(7), each=2)
    Query(logs.store, Hints("wal", logs.tmp / "other")).microbatch(0, (90,))
    logs.stream("wal", logs.checkpoint("wal", "files")).run(range(3))
    orders, files = read_queries(logs.log())
    assert (orders.name, orders.batch_id, orders.position, orders.rows) == ("orders", 3, 4, 1)
    assert orders.sources == {"0": {"orders": {"0": 7}}}
    assert (files.name, files.sources, files.rows) == ("files", {"0": {"logOffset": 2}}, 1)
    # The first position whose record names the query.
    assert (orders.fork_from, orders.fork_until) == (1, 10)
    assert (files.fork_from, files.fork_until) == (8, 10)
    logs.checkpoint("new", "new", fork=fork_of(files.fork_from or 0, name="files"))
    with pytest.raises(OptionError, match="wrote nothing"):
        logs.checkpoint("new", "new", fork=fork_of(7, name="files"))


def test_a_checkpoint_that_moved_into_the_archive_is_not_forgotten(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST", 1)
    monkeypatch.setattr(archive, "KEPT", 1)
    kafka(logs).run(range(4), each=2)
    for name in ("a", "b"):
        Query(logs.store, Hints("wal", logs.tmp / name), name).microbatch(0, (1,))
    live = find_head(logs.log()).live
    assert live is not None
    header = live.header
    assert header.txns_archive and not header.checkpoints
    assert verify_store(logs.log(), "wal").problems == []
    logs.store.objects[keys.archive_key("wal", header.txns_archive)] = b"damaged"
    assert len(verify_store(logs.log(), "wal").problems) == 1


def test_the_queries_of_then(logs: Logs) -> None:
    kafka(logs).run(range(7), each=2)
    (then,) = read_queries(logs.log(), 2)
    assert (then.batch_id, then.position, then.sources) == (1, 2, {"0": {"orders": {"0": 4}}})
    assert (then.fork_from, then.fork_until) == (1, 2)
    with pytest.raises(OptionError, match="the last position of .* is 4"):
        read_queries(logs.log(), 9)
    assert read_queries(logs.log(), 0) == []


def forkable(logs: Logs, name: str = "orders") -> list[int]:
    """The positions at which a fork is accepted."""
    found = []
    for at in range(find_head(logs.log()).gap):
        try:
            logs.checkpoint(f"new-{at}", "new", fork=fork_of(at, name=name))
        except (OptionError, CollectedError):
            continue
        found.append(at)
    return found


@pytest.mark.parametrize("begin", ["remote", "too large", "whole, then too large"])
def test_queries_names_only_positions_that_a_fork_accepts(
    logs: Logs, begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = logs.checkpoint("wal", "orders")
    if begin == "remote":
        with monkeypatch.context() as patch:
            patch.setattr(StreamCheckpoint, "_folder", lambda _: None)
            logs.stream("wal", place).run(range(3))
    else:
        if begin != "too large":
            logs.stream("wal", place).run(range(9))
        logs.stream("wal", place, max_bytes=150).run(range(12))
    logs.stream("wal", place).run(range(17))
    (orders,) = read_queries(logs.log())
    assert orders.fork_from is not None and orders.fork_until is not None
    accepted = forkable(logs)
    assert {*range(orders.fork_from, orders.fork_until + 1)} <= {*accepted}
    assert orders.fork_from - 1 not in accepted


def test_queries_names_the_first_position_after_a_collection(logs: Logs) -> None:
    """The head names a newer record of the query, so the one that the floor names was deleted."""
    logs.written(12)
    other = Query(logs.store, Hints("wal", logs.tmp / "other"))
    for number in range(1100):
        other.microbatch(number, (number,))
    log = logs.log()
    floor = move_floor(log, find_head(log).gap).floor
    for number in range(1100, 1110):
        other.microbatch(number, (number,))
    logs.written(26)
    head = find_head(log)
    assert head.live is not None
    collect(log, floor, kept=named_records(log, head.live.header))
    orders = next(each for each in read_queries(log) if each.name == "orders")
    assert orders.fork_from is not None and floor < orders.fork_from < head.position
    for at in range(orders.fork_from, head.gap):
        logs.checkpoint(f"new-{at}", "new", fork=fork_of(at))
    for at in (floor, orders.fork_from - 1):
        with pytest.raises(CollectedError, match=f"position from {orders.fork_from} on") as error:
            logs.checkpoint("none", "new", fork=fork_of(at))
        assert error.value.floor == orders.fork_from
    (then,) = (each for each in read_queries(log, floor) if each.name == "orders")
    assert (then.fork_from, then.not_forkable) == (None, COLLECTED)


def test_queries_names_the_first_position_whose_large_state_is_complete(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large state begins with a copy that several records carry."""
    place = logs.checkpoint("wal", "orders")
    stream = StatefulStream(logs.log(), place, Hints("wal", logs.tmp / "hints"))
    with monkeypatch.context() as patch:
        patch.setattr(query_state, "WHOLE", 200)
        patch.setattr(query_state, "MOST", 200)
        stream.run(range(6))
        # The folder begins to carry its state anew.
        (place / "sparkwal-state.json").unlink()
        stream.run(range(16))
    (orders,) = read_queries(logs.log())
    assert orders.fork_from is not None and orders.fork_until is not None
    accepted = forkable(logs)
    assert {*range(orders.fork_from, orders.fork_until + 1)} <= {*accepted}
    assert orders.fork_from - 1 not in accepted and orders.fork_from > 8


@pytest.mark.parametrize("small", [2**18, 200])
def test_queries_names_the_positions_whose_state_a_collection_left(
    logs: Logs, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state at a position may lie in records before it, and a newer copy replaces them."""
    monkeypatch.setattr(query_state, "SMALL", small)
    hints = Hints("wal", logs.tmp / "hints")

    def run(files: int) -> None:
        StatefulStream(logs.log(), logs.checkpoint("wal", "orders"), hints).run(range(files))

    run(6)
    other = Query(logs.store, Hints("wal", logs.tmp / "other"))
    for number in range(1100):
        other.microbatch(number, (number,))
    log = logs.log()
    floor = move_floor(log, find_head(log).gap).floor
    run(20)
    head = find_head(log)
    assert head.live is not None
    collect(log, floor, kept=named_records(log, head.live.header))
    orders = next(each for each in read_queries(log) if each.name == "orders")
    assert orders.fork_from is not None
    is_replaced = small == 200
    assert (orders.fork_from > floor) == is_replaced
    for at in range(floor, head.gap):
        fork = fork_of(at)
        if at >= orders.fork_from:
            logs.checkpoint(f"new-{at}", "new", fork=fork)
        else:
            with pytest.raises(CollectedError, match=f"position from {orders.fork_from} on"):
                logs.checkpoint("none", "new", fork=fork)


def test_queries_shows_the_others_if_the_record_of_one_is_damaged(logs: Logs) -> None:
    kafka(logs).run(range(3))
    logs.stream("wal", logs.checkpoint("wal", "files")).run(range(3))
    key = logs.log().key(keys.slot(3, 1000))
    body = bytearray(logs.store.objects[key])
    body[300] ^= 0x55
    logs.store.objects[key] = bytes(body)
    orders, files = read_queries(logs.log())
    assert orders.fork_from is None and "position 3" in orders.not_forkable
    assert (files.fork_from, files.fork_until) == (5, 7)


def test_a_query_that_cannot_be_forked_says_why(logs: Logs) -> None:
    kafka(logs, max_bytes=0).run(range(2))
    (orders,) = read_queries(logs.log())
    assert orders.fork_from is None and "checkpointMaxBytes" in orders.not_forkable


@pytest.mark.parametrize("version", [1, 2])
def test_a_whole_query(logs: Logs, version: int) -> None:
    stream = kafka(logs, version=version, source="0" if version == 1 else "in")
    stream.run(range(20), each=3)
    kafka(logs, version=version, source=stream.source).run(range(22), each=3)
    (audit,) = audit_log(logs.log(), "default")
    assert audit.breaks == [] and audit.microbatches == 8
    assert (audit.rows, audit.offsets, audit.counted, audit.differ) == (22, 19, 7, 0)
    assert audit.watermark_ms == complete_until([audit]) == 22_000


def test_a_whole_query_over_files(logs: Logs) -> None:
    logs.written(25)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(13))
    logs.stream("wal-v2", place).run(range(31), each=2)
    assert breaks(logs) == breaks(logs, "wal-v2") == []
    (audit,) = audit_log(logs.log("wal-v2"), "default")
    assert audit.begin == {"0": {"logOffset": 12}}


@pytest.mark.parametrize(("begin", "kind"), [(8, "hole"), (4, "overlap")], ids=["lost", "doubled"])
def test_a_planted_stretch_is_named(logs: Logs, begin: int, kind: str) -> None:
    stream = kafka(logs)
    stream.run(range(6), each=2)
    # The plan before the next says another end.
    text = (stream.place / "offsets/2").read_text()
    (stream.place / "offsets/2").write_text(text.replace('"0":6', f'"0":{begin}'))
    stream.plan_to(3, 10)
    _without_checks(stream, 3)
    (found,) = breaks(logs)
    assert (found.kind, found.source) == (kind, "0/orders/0")
    assert (found.before, found.position, found.expected, found.actual) == (3, 4, 6, begin)
    assert breaks(logs, query="orders") == [found] and breaks(logs, query="bills") == []


def test_a_lost_and_a_doubled_stretch(logs: Logs) -> None:
    stream = kafka(logs)
    stream.run(range(6), each=2)
    for number, (last, begin, end) in enumerate([(6, 9, 12), (12, 11, 14)], 3):
        file = stream.place / f"offsets/{number - 1}"
        file.write_text(file.read_text().replace(f'"0":{last}', f'"0":{begin}'))
        stream.plan_to(number, end)
        _without_checks(stream, number)
    kinds = [(each.kind, each.position, each.expected, each.actual) for each in breaks(logs)]
    assert kinds == [("hole", 4, 6, 9), ("overlap", 5, 12, 11)]


def _without_checks(stream: OffsetStream, number: int) -> None:
    """Commit a microbatch that continues after other input than the log holds."""
    patch = pytest.MonkeyPatch()
    patch.setattr("sparkwal.checkpoints.carry.StreamCheckpoint._check_same_input", lambda *_: None)
    stream.commit(number, stream.input(number))
    stream.write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
    patch.undo()


def test_a_microbatch_without_a_record_is_not_proven(logs: Logs) -> None:
    kafka(logs, hidden=frozenset({3, 4})).run(range(8))
    (found,) = breaks(logs)
    assert (found.kind, found.expected, found.actual) == ("no record", 3, 5)
    assert breaks(logs, allow_empty=True) == []
    (audit,) = audit_log(logs.log(), "default")
    assert audit.without_record == 2


def test_a_file_that_was_read_twice(logs: Logs) -> None:
    logs.written(4)
    stream = logs.stream("wal", logs.checkpoint("wal", "orders"))
    stream.plan(4, range(5), 1)
    entry = json.dumps({"path": "file:///data/in/000001.json", "timestamp": 1, "batchId": 4})
    stream.write("sources/0/4", f"v1\n{entry}")
    stream.commit(4, [1])
    (found,) = breaks(logs)
    assert (found.kind, found.actual) == ("read twice", ["file:///data/in/000001.json"])


def test_records_without_offsets_are_not_proven(logs: Logs) -> None:
    stream = logs.stream("wal", logs.tmp / "own")
    (stream.place / "state/0/0").mkdir(parents=True)
    stream.run(range(2))
    assert folder.owner_of(stream.place) is None
    (found,) = breaks(logs)
    assert (found.kind, found.actual) == ("not carried", "stateful")
    assert (found.position, found.until, found.records) == (1, 2, 2)


def test_a_hole_is_seen_between_records_that_carry_nothing(logs: Logs) -> None:
    """A stateful query beside another: each of its records was a break of its own."""
    (logs.tmp / "own/state/0/0").mkdir(parents=True)
    for number in range(1, 5):
        logs.stream("wal", logs.tmp / "own").run(range(number * 3))
        if number < 3:
            kafka(logs).run(range(number))
    stream = kafka(logs)
    text = (stream.place / "offsets/1").read_text()
    (stream.place / "offsets/1").write_text(text.replace('"0":2', '"0":5'))
    stream.plan_to(2, 7)
    _without_checks(stream, 2)
    one, other = audit_log(logs.log(), "default")
    (nothing,) = one.breaks
    assert (nothing.kind, nothing.records) == ("not carried", 12)
    assert [each.kind for each in other.breaks] == ["hole"]


def test_rows_that_a_query_drops_are_counted(logs: Logs) -> None:
    kafka(logs, hidden=frozenset({3})).run(range(8), each=2)
    (audit,) = audit_log(logs.log(), "default")
    assert (audit.rows, audit.offsets, audit.differ, audit.differing) == (7, 6, 1, [2])
    assert audit.breaks == []


def test_complete_until_is_the_least_of_all_logs(logs: Logs) -> None:
    kafka(logs).run(range(9), each=3)
    kafka(logs, "wal/sequencers/b").run(range(4), each=3)
    both = audit_log(logs.log(), "default") + audit_log(logs.log("wal/sequencers/b"), "b")
    assert complete_until(both) == 4000
    logs.stream("wal-v2", logs.checkpoint("wal-v2", "orders")).run(range(2))
    assert complete_until(both + audit_log(logs.log("wal-v2"), "c")) is None


def test_an_audit_reads_each_record_once(logs: Logs) -> None:
    kafka(logs).run(range(50))
    logs.store.counts.clear()
    audit_log(logs.log(), "default")
    # Head and floor, and each record.
    assert logs.store.counts == {"LIST": 2, "GET": 52}
