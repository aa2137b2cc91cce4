"""How a writer recognizes its log and its leadership: recreated logs, sleepers, rivals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import FencedError, InvalidLogError, StoreUnavailableError
from sparkwal.protocol import takeover
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.plan import cold_plan
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.takeover import Claim, lead
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, SCHEMA, TTL_MS, Query, StoppedClock, hints_in

INLINED = replace(LIMITS, inline_threshold=2**16)


def requests(store: MemoryStore) -> Counter[str]:
    """The requests to the store since the last call."""
    counts = Counter(store.counts)
    store.counts.clear()
    return counts


def delete_all(store: MemoryStore) -> None:
    for key in list(store.objects):
        store.delete(key)
    store.counts.clear()


def sound(store: MemoryStore) -> bool:
    return verify_store(LogStore(store, "wal"), "wal").ok


def test_the_query_that_lost_the_log_to_another_of_its_session_raises(
    query: Query, store: MemoryStore
) -> None:
    other = replace(query, query_id="other", leader_id="host:1:1:y", run_id="other")
    query.microbatch(0, (1,))
    other.microbatch(0, (2,))
    with pytest.raises(FencedError, match="host:1:1:y on host host"):
        query.microbatch(1, (3,))
    # It was fenced once; started again it takes the log over, and now the other is fenced.
    assert query.microbatch(1, (3,)) is not None
    with pytest.raises(FencedError, match="host:1:1:x on host host"):
        other.microbatch(1, (4,))
    assert sound(store)


def test_a_driver_that_slept_through_a_takeover_raises(
    query: Query, store: MemoryStore, tmp_path: Path
) -> None:
    query.microbatch(0, (1,))
    other = replace(query, leader_id="there:2:2:y", hints=hints_in(tmp_path / "other machine"))
    other.microbatch(1, (2,))
    query.clock.since_boot_ms += TTL_MS
    with pytest.raises(FencedError, match="there:2:2:y"):
        query.microbatch(2, (3,))
    assert requests(store)["DELETE"] == 0 and find_head(query.open()).position == 3
    assert query.microbatch(2, (3,)) == 5


def test_a_driver_that_slept_and_was_not_replaced_continues(query: Query) -> None:
    query.microbatch(0, (1,))
    query.clock.since_boot_ms += 10 * TTL_MS
    assert query.microbatch(1, (2,)) == 3


def test_its_own_leader_record_does_not_fence_a_planner_that_died_before_the_hint(
    query: Query, tmp_path: Path
) -> None:
    query.microbatch(0, (1,))
    query.clock.since_boot_ms += TTL_MS
    before = {file: file.read_bytes() for file in query.hints.folder.iterdir()}
    query.plan()
    for file, content in before.items():
        file.write_bytes(content)
    assert query.microbatch(1, (2,)) == 4


def test_a_fenced_commit_raises_once(query: Query, store: MemoryStore) -> None:
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    other = replace(query, leader_id="host:1:1:y")
    other.microbatch(0, (1,))
    with pytest.raises(FencedError, match="host:1:1:y"):
        query.commit(results)
    assert query.microbatch(1, (2,)) is not None
    assert sound(store)


def test_a_log_recreated_in_one_session_is_another_log(query: Query, store: MemoryStore) -> None:
    query.limits = INLINED
    for batch in range(3):
        query.microbatch(batch, (batch,))
    delete_all(store)
    # The same query is started again: another run, by the warm hint of the first.
    again = replace(query, run_id="second run", query_id="a new checkpoint")
    with pytest.raises(InvalidLogError, match="deleted or recreated"):
        again.microbatch(0, (7,))
    assert not store.objects
    assert again.microbatch(0, (7,)) == 1
    assert sound(store)


def test_no_object_is_written_into_the_hole_that_a_deleted_log_leaves(
    query: Query, store: MemoryStore
) -> None:
    for batch in range(3):
        query.microbatch(batch, (batch,))
    delete_all(store)
    again = replace(query, run_id="second run", query_id="a new checkpoint")
    with pytest.raises(InvalidLogError, match="deleted or recreated"):
        again.microbatch(0, (7,))
    assert not store.objects
    assert again.microbatch(0, (7,)) == 1


@pytest.mark.parametrize("limits", [LIMITS, INLINED], ids=["objects", "inlined"])
def test_the_next_run_finds_a_log_that_another_machine_recreated(
    query: Query, store: MemoryStore, tmp_path: Path, limits: object
) -> None:
    query = replace(query, limits=limits)  # type: ignore[arg-type]
    query.microbatch(0, (1,))
    delete_all(store)
    other = replace(query, leader_id="there", hints=hints_in(tmp_path / "other machine"))
    for batch in range(5):
        other.microbatch(batch, (batch,))
    again = replace(query, run_id="second run")
    with pytest.raises(InvalidLogError, match="deleted or recreated"):
        again.microbatch(1, (7,))
    assert other.microbatch(5, (5,)) == 6
    assert sound(store)


def test_a_skip_is_not_believed_of_a_log_that_was_deleted(query: Query, store: MemoryStore) -> None:
    query.microbatch(0, (1,))
    delete_all(store)
    again = replace(query, run_id="second run")
    with pytest.raises(InvalidLogError, match="deleted or recreated"):
        again.microbatch(0, (1,))
    assert again.microbatch(0, (1,)) == 1


def test_the_same_path_at_two_endpoints_is_two_logs(tmp_path: Path) -> None:
    here, there = (MemoryStore(f"memory://{name}") for name in ("here", "there"))
    folder = tmp_path / "hints"
    for batch in range(3):
        for store in (here, there):
            log = LogStore(store, "wal")
            query = Query(store, Hints(log.identity, folder))
            assert query.microbatch(batch, (batch,)) == 1 + batch
    assert sound(here) and sound(there)


def test_a_query_started_again_in_its_session_looks_at_the_log_once(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    requests(store)
    again = replace(query, run_id="second run")
    again.microbatch(1, (2,))
    # The task's glance, and the commit's look: at the head and at the leader record.
    assert requests(store) == {"PUT": 2, "GET": 3, "LIST": 1}
    again.microbatch(2, (3,))
    assert requests(store) == {"PUT": 2}


def test_an_empty_microbatch_of_a_new_run_does_not_vouch_for_the_log(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    delete_all(store)
    again = replace(query, run_id="second run")
    assert again.microbatch(1, ()) is None
    with pytest.raises(InvalidLogError, match="deleted or recreated"):
        again.microbatch(2, (3,))


def test_a_running_query_looks_at_its_log_again_once_every_plan_ttl(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    looks = []
    for batch in range(1, 9):
        query.clock.since_boot_ms += TTL_MS // 2
        requests(store)
        query.microbatch(batch, (batch,))
        looks.append(requests(store)["LIST"])
    assert looks == [0, 1] * 4
    delete_all(store)
    query.clock.since_boot_ms += TTL_MS // 2
    query.microbatch(9, (9,))  # into the hole; found out within planTtl
    query.clock.since_boot_ms += TTL_MS // 2
    with pytest.raises(InvalidLogError, match="deleted or recreated") as caught:
        query.microbatch(10, (10,))
    # The microbatch before looked last; the wall clock stood still.
    assert "last seen intact at 2023-11-14T22:03:20+00:00" in str(caught.value)
    assert "microbatches of query before 10, at positions up to 10" in str(caught.value)
    assert "restart with a new checkpoint" in str(caught.value)


@pytest.mark.proves("look-before-claim")
def test_a_leader_that_slept_before_its_put_looks_again(store: MemoryStore) -> None:
    clock = StoppedClock()

    class Sleepy(MemoryStore):
        def list(self, *arguments: object, **named: object) -> object:  # type: ignore[override]
            page = super().list(*arguments, **named)  # type: ignore[arg-type]
            if self.counts["LIST"] == 1:
                clock.since_boot_ms += TTL_MS
            return page

    sleepy = Sleepy()
    claim = Claim("a", "host", "1", SCHEMA, False, None, 1, "test")
    assert lead(LogStore(sleepy, "wal"), claim, clock, TTL_MS).term == 1
    assert sleepy.counts == {"LIST": 2, "GET": 4, "PUT": 1}


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), StoreUnavailableError("no answer")])
def test_a_newcomer_that_is_stopped_takes_its_request_back(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    class Stopping(StoppedClock):
        def sleep(self, seconds: float) -> None:
            asked.extend(key for key in store.objects if "handover/" in key)
            raise stop

    asked: list[str] = []
    claim = Claim("a", "host", "1", SCHEMA, False, None, 1, "test")
    lead(LogStore(store, "wal"), claim, Stopping(), TTL_MS)
    monkeypatch.setattr(takeover, "put_leader", lambda *_: False)
    with pytest.raises(type(stop)):
        lead(LogStore(store, "wal"), replace(claim, plan_id="2"), Stopping(), TTL_MS)
    assert len(asked) == 1 and asked[0] not in store.objects


@pytest.mark.proves("look-after-slow-put")
def test_a_leader_that_slept_in_its_put_and_was_replaced_is_fenced() -> None:
    clock = StoppedClock()

    class Slow(MemoryStore):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            created = super().put_if_absent(key, body)
            if self.counts["PUT"] == 1:
                lead(LogStore(self, "wal"), replace(claim, leader_id="b", plan_id="2"), clock, 1000)
                clock.since_boot_ms += 2000
            return created

    claim = Claim("a", "host", "1", SCHEMA, False, None, 1, "test")
    with pytest.raises(FencedError, match="leader b"):
        lead(LogStore(Slow(), "wal"), claim, clock, 1000)


def test_two_batch_writes_of_one_session_each_look_at_the_log(
    query: Query, store: MemoryStore
) -> None:
    claim = Claim("host:1:1:batch", "host", "1", SCHEMA, False, None, 1, "test")
    cold_plan(query.open(), claim, query.hints, query.clock, TTL_MS, None)
    delete_all(store)
    claim = replace(claim, plan_id="2")
    again = cold_plan(query.open(), claim, query.hints, query.clock, TTL_MS, None)
    assert again.position == 1 and again.leadership.log_id == "2"


def test_a_full_disk_does_not_make_a_leader_fence_itself(
    query: Query, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.microbatch(0, (1,))
    query.clock.since_boot_ms += TTL_MS

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert query.microbatch(1, (2,)) == 3
    # The hint of microbatch 0 would lead to the position of microbatch 1's leader record.
    query.clock.since_boot_ms -= TTL_MS
    assert query.microbatch(2, (3,)) is not None
    assert sound(store)


def test_no_writer_continues_a_log_whose_beginning_was_deleted(
    query: Query, store: MemoryStore
) -> None:
    for batch in range(5):
        query.microbatch(batch, (batch,))
    for key in sorted(store.objects)[-6:]:
        store.delete(key)
    objects = dict(store.objects)
    with pytest.raises(InvalidLogError, match="position 0 is missing.*beginning was deleted"):
        query.restarted().microbatch(5, (5,))
    assert store.objects == objects
