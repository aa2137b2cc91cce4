"""The whole of a log's life, with a table and a store in memory: every step may be the last."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sparkwal import events
from sparkwal.errors import CompactionError, ConfirmError, PlanError, ReadError
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import MERGE, Promise, Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import Policy
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import LogStore, Page
from sparkwal.testing.memory import MemoryStore
from tests.chains import newest
from tests.consumers import consumer, join, publish
from tests.lifecycle.table import Died, ModelTable, dying_at
from tests.lifecycle.timed_log import TimedLog

TARGET = Target("memory://table")
AT_ONCE = Policy(late_window_seconds=0)
GRACE_MS = 3_600_000


class Mortal(MemoryStore):
    """A store whose client dies before or after its n-th call."""

    def __init__(self, under: MemoryStore, lives: int, answered: bool) -> None:
        self._under = under
        self._lives = lives
        self._answered = answered

    def __getattribute__(self, name: str) -> Any:
        found = getattr(object.__getattribute__(self, "_under"), name)
        if not callable(found) or name == "now_ms":
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            lives = object.__getattribute__(self, "_lives") - 1
            object.__setattr__(self, "_lives", lives)
            if lives < 0 or (lives == 0 and not object.__getattribute__(self, "_answered")):
                raise Died
            result = found(*args, **kwargs)
            if lives == 0:
                raise Died
            return result

        return call


class Life:
    """A log, its table, and processes that come and go."""

    def __init__(self) -> None:
        self.timed = TimedLog()
        self.timed.store.now_ms = self.timed.clock.now_ms
        self.table = ModelTable(self.timed.log)
        self.second = 0

    @property
    def log(self) -> LogStore:
        return self.timed.log

    @property
    def written(self) -> list[int]:
        return self.timed.values

    def write(self, commits: int) -> None:
        for _ in range(commits):
            self.second += 1
            self.timed.write(self.second)

    def process(self, store: MemoryStore | None = None, **others: Any) -> Coordinator:
        log = LogStore(store, "wal") if store is not None else self.log
        arguments = {"policy": AT_ONCE, "table": self.table, **others}
        arguments = {"gc_grace_ms": GRACE_MS, "clock": self.timed.clock, **arguments}
        return Coordinator(log, host="here", **arguments)

    def later(self, ms: int) -> None:
        self.timed.clock.wall_ms += ms
        self.timed.clock.since_boot_ms += ms
        self.second += ms // 1000


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.mark.proves("floor-below-cut")
def test_rows_go_to_the_table_and_the_floor_follows(life: Life) -> None:
    life.write(5)
    run = life.process().run_once()
    assert run.found == "no lifecycle"
    assert run.compacted is not None
    gap = find_head(life.log).gap
    assert (run.compacted.k, run.compacted.start, run.compacted.end) == (1, 0, gap)
    assert run.floor == gap and life.table.rows == life.written
    state = newest(life.log)
    assert state is not None and (state.cut, state.to, state.floor) == (gap, gap, gap)
    again = life.process().run_once()
    assert again.found == "at rest" and again.compacted is None
    assert newest(life.log) == state


def test_each_range_is_one_version(life: Life) -> None:
    for _ in range(3):
        life.write(2)
        life.process().run_once()
    assert life.table.ranges == [1, 2, 3] and life.table.rows == life.written


@pytest.mark.parametrize("answered", [True, False])
def test_a_kill_at_every_store_call_is_survived(answered: bool) -> None:
    for lives in range(1, 200):
        life = Life()
        life.write(4)
        life.process().run_once()
        life.write(3)
        try:
            life.process(Mortal(life.timed.store, lives, answered)).run_once()
        except Died:
            pass
        else:
            assert lives > 10
            return
        life.process().run_once()
        life.write(1)
        life.process().run_once()
        assert life.table.rows == life.written, lives
        assert sorted(life.table.ranges) == list(range(1, len(life.table.ranges) + 1))
        state = newest(life.log)
        assert state is not None and state.cut == state.to == find_head(life.log).gap
    pytest.fail("it never ended")


@pytest.mark.parametrize("step", ["prepare", "look", "write", "written"])
def test_a_kill_at_every_call_of_the_table_is_survived(life: Life, step: str) -> None:
    for nth in range(4):
        life.write(2)
        with dying_at(life.table, step, nth), contextlib.suppress(Died):
            life.process().run_once()
        found = life.process().recover()
        assert found.found in ("no lifecycle", "at rest", "an open range")
        life.process().run_once()
        assert life.table.rows == life.written


@pytest.mark.proves("table-knows-k")
def test_recovery_finishes_a_range_whether_it_was_written_or_not(life: Life) -> None:
    life.write(3)

    for step in ("write", "written"):
        with dying_at(life.table, step), pytest.raises(Died):
            life.process().run_once()
        found = life.process().recover()
        assert found.found == "an open range" and found.finished is not None
        assert found.finished.end == found.cut == find_head(life.log).gap
        life.write(2)


@pytest.mark.proves("range-is-fixed")
def test_a_compactor_that_slept_in_its_write_does_no_harm(life: Life) -> None:
    life.write(3)
    once: list[str] = []

    def others_go_on(step: str) -> None:
        if step == "write" and not once:
            once.append(step)
            life.process().run_once()
            life.write(2)
            life.process().run_once()

    life.table.before = others_go_on
    life.process().run_once()
    assert life.table.rows == life.written and life.table.ranges == [1, 2]


def test_a_conflict_is_tried_again_with_the_same_number(life: Life) -> None:
    life.write(3)
    times: list[str] = []

    def optimize(step: str) -> None:
        if step == "write" and len(times) < 2:
            times.append(step)
            life.table.optimize()

    life.table.before = optimize
    life.process().run_once()
    assert life.table.rows == life.written and life.table.ranges == [1]


def test_a_range_finished_and_collected_by_another_is_no_failure_of_a_sleeper(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[events.Event] = []
    write = life.table.write

    def slept(promise: Promise) -> None:
        monkeypatch.setattr(life.table, "write", write)
        life.process().run_once()
        raise ReadError(f"positions {promise.ranges} cannot be read")

    life.write(2)
    monkeypatch.setattr(life.table, "write", slept)
    stop = events.subscribe(reported.append)
    try:
        run = life.process().run_once()
    finally:
        stop()
    assert run.found == "at rest" and life.table.ranges == [1]
    assert not any(isinstance(each, events.CompactionSuspended) for each in reported)


def test_it_pauses_only_where_another_writer_was_faster(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(life.timed.clock, "sleep", slept.append)
    life.write(2)
    life.process().run_once()
    assert slept == []

    def optimize(step: str) -> None:
        if step == "write" and len(slept) < 2:
            life.table.optimize()

    life.table.before = optimize
    life.write(2)
    life.process().run_once()
    assert slept == [0.5, 1] and life.table.ranges == [1, 2]


def test_a_table_that_was_restored_suspends_it_until_someone_accepts(life: Life) -> None:
    life.write(2)
    life.process().run_once()
    life.write(2)
    life.table.restore(0)
    before = dict(life.timed.store.objects)
    with pytest.raises(ConfirmError, match="is a RESTORE.*--accept-table"):
        life.process().run_once()
    life.later(2 * GRACE_MS)
    with pytest.raises(ConfirmError, match="is a RESTORE"):
        life.process().collect(dry_run=False)
    after = life.timed.store.objects
    assert {key for key in before if "/batches/" in key} <= set(after)
    life.table.restore(1)
    life.process().accept_table()
    life.process().run_once()
    assert life.table.rows == life.written


def test_a_recreated_table_suspends_compaction(life: Life) -> None:
    life.write(2)
    life.process().run_once()
    life.table.make_again()
    life.write(1)
    with pytest.raises(ConfirmError, match="dropped and recreated"):
        life.process().run_once()
    life.table.versions = ()
    with pytest.raises(ConfirmError, match="does not exist any more"):
        life.process().run_once()


def test_a_missing_table_is_not_recreated_by_a_look(life: Life) -> None:
    life.write(2)
    life.process().run_once()
    life.table.versions = ()
    life.write(1)
    with pytest.raises(ConfirmError, match="does not exist any more"):
        life.process().run_once()
    assert life.table.versions == ()


def test_how_it_is_compacted_is_fixed_by_the_first_run(life: Life) -> None:
    life.write(2)
    life.process().run_once()
    other = Target("memory://table", MERGE, ("id",))
    with pytest.raises(PlanError, match="mode: append there, merge here; keys: none there"):
        life.process(table=ModelTable(life.log, other)).run_once()


def test_a_log_recreated_at_the_same_path_is_not_compacted_into_the_old_table(life: Life) -> None:
    life.write(3)
    life.process().run_once()
    for key in [key for key in life.timed.store.objects if "/batches/" in key]:
        life.timed.store.delete(key)
    life.write(3)
    with pytest.raises(PlanError, match="deleted and recreated"):
        life.process().run_once()


@pytest.mark.proves("grace-before-delete")
def test_no_object_is_deleted_within_the_grace(life: Life) -> None:
    life.write(5)
    assert life.process().run_once().collection is None or not _collected(life)
    life.later(GRACE_MS - 2000)
    life.process().run_once()
    assert not _collected(life)


def _collected(life: Life) -> bool:
    return life.log.key(keys.slot(0, 1000)) not in life.timed.store.objects


@pytest.mark.proves("keep-slots")
def test_slot_records_below_the_bound_go_but_for_the_last_thousand(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkwal.lifecycle.collecting.collection.KEPT_SLOTS", 5)
    life.write(20)
    life.process().run_once()
    gap = find_head(life.log).gap
    life.later(GRACE_MS + 5000)
    dry = life.process().collect(dry_run=True)
    assert dry is not None and dry.objects == gap - 5 and not _collected(life)
    run = life.process().run_once()
    assert run.collection is not None and run.collection.objects == dry.objects
    kept = [key for key in life.timed.store.objects if "/batches/" in key]
    assert sorted(kept) == sorted(life.log.key(keys.slot(p, 1000)) for p in range(gap - 5, gap))


def test_an_object_put_during_a_collection_stays(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = life.timed.store
    everything = store.list
    remove = store.delete_many
    freed = life.log.key(keys.slot(1, 1000))

    def etag(key: str) -> str:
        return hashlib.md5(store.objects[key]).hexdigest()

    def shown(prefix: str, limit: int = 1000, after: str = "") -> Page:
        page = everything(prefix, limit, after)
        return Page([replace(each, etag=etag(each.key)) for each in page.entries], page.more)

    def conditional(names: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        """As S3 deletes objects with an ETag."""
        store.objects[freed] = b"somebody's"
        same = [key for key, listed in zip(names, etags, strict=True) if listed == etag(key)]
        remove(same)
        return [key for key in names if key not in same]

    monkeypatch.setattr("sparkwal.lifecycle.collecting.collection.KEPT_SLOTS", 0)
    monkeypatch.setattr(store, "list", shown)
    monkeypatch.setattr(store, "delete_many", conditional)
    life.write(20)
    life.process().run_once()
    life.later(GRACE_MS + 5000)
    dry = life.process().collect(dry_run=True)
    assert dry is not None and not dry.failure
    collected = dry.objects
    process = life.process()
    collection = process.collect(dry_run=False)
    assert [key for key in store.objects if "/batches/" in key] == [freed]
    assert collection is not None and (collection.kept, collection.objects) == (1, collected - 1)
    assert "the store kept 1 objects" in collection.failure


def test_retention_without_a_table_moves_the_floor_by_age(life: Life) -> None:
    policy = Policy(retain_seconds=100)
    life.write(3)
    life.later(200_000)
    life.write(2)
    run = life.process(policy=policy, table=None).run_once()
    assert 0 < run.floor < find_head(life.log).gap and life.table.rows == []


def test_retention_waits_for_a_table_that_has_got_nothing_yet(life: Life) -> None:
    life.write(3)
    life.later(200_000)
    life.write(2)
    run = life.process(policy=Policy(late_window_seconds=1000, retain_seconds=100)).run_once()
    assert run.compacted is None and run.floor == 0


def test_a_table_that_comes_after_retention_begins_at_the_floor(life: Life) -> None:
    life.write(3)
    life.later(200_000)
    life.write(2)
    alone = life.process(policy=Policy(retain_seconds=100), table=None).run_once()
    run = life.process(policy=Policy(late_window_seconds=0)).run_once()
    assert run.compacted is not None and run.compacted.start == alone.floor > 0
    assert life.process().recover().cut == find_head(life.log).gap
    assert len(life.table.rows) == 2


def test_whole_compacts_every_row(life: Life) -> None:
    life.write(3)
    # Dated a little ahead of the clock here: the policy would let it wait.
    life.timed.clock.wall_ms -= 2000
    assert life.process(policy=Policy()).run_once(whole=True).compacted is not None
    assert life.table.rows == life.written
    assert life.process(policy=Policy()).run_once(whole=True).compacted is None


def test_a_limit_emits_one_event_when_it_is_reached(life: Life) -> None:
    reported: list[str] = []
    stop = events.subscribe(
        lambda event: reported.append(event.option) if isinstance(event, events.SizeLimit) else None
    )
    policy = Policy(soft_limit=1, hard_limit=10**9)
    process = life.process(policy=policy, table=None)
    try:
        for _ in range(3):
            life.write(1)
            process.run_once()
    finally:
        stop()
    assert reported == ["softLimitBytes"]


def test_a_collection_names_the_holder_of_its_bound(life: Life) -> None:
    life.write(3)
    life.process().run_once()
    young = life.process().collect(dry_run=True)
    assert young is not None and (young.bound, young.held_by) == (0, "the grace")
    life.later(GRACE_MS + 5000)
    log_id = newest(life.log).log_id  # type: ignore[union-attr]
    publish(life.log, consumer("reports", 1, log_id))
    held = life.process().collect(dry_run=True)
    assert held is not None and (held.bound, held.held_by) == (1, "reports")


def test_a_log_without_a_lifecycle_and_no_log_at_all(life: Life) -> None:
    assert life.process().run_once().found == "no log"
    assert life.process().collect(dry_run=True) is None
    life.write(1)
    quiet = life.process(policy=Policy(late_window_seconds=10_000)).run_once()
    assert quiet.found == "no lifecycle" and quiet.compacted is None
    assert newest(life.log) is None


def test_every_failure_names_its_stage() -> None:
    stages = {kind.stage for kind in CompactionError.__subclasses__()}
    assert stages == {"plan", "read", "write", "confirm", "publish"}


def test_a_grace_is_never_shortened(life: Life) -> None:
    life.write(3)
    life.process(gc_grace_ms=24 * GRACE_MS).run_once()
    life.write(1)
    life.process(gc_grace_ms=GRACE_MS).run_once()
    life.later(2 * GRACE_MS)
    # Readers of a record rely on the grace that it names.
    assert life.process(gc_grace_ms=GRACE_MS).run_once().collection is None
    life.later(24 * GRACE_MS)
    assert life.process(gc_grace_ms=GRACE_MS).run_once().collection is not None


def test_collection_removes_leases_that_expired(life: Life) -> None:
    life.write(3)
    life.process().run_once()
    state = newest(life.log)
    assert state is not None
    now_ms = life.timed.clock.now_ms()
    lease = consumer("lease-1", 0, state.log_id, timestamp_ms=now_ms, expires_ms=1000)
    assert join(life.log, lease) == {"default": state.floor}
    life.later(2 * GRACE_MS)
    life.process().run_once()
    assert keys.consumer_key("wal", lease.name) not in life.timed.store.objects
