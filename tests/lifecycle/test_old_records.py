"""Old records of the chain are deleted. A PUT at a freed number does not count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkwal.format import keys
from sparkwal.format.lifecycle_record import FLOOR, encode
from sparkwal.lifecycle.collecting import collection
from sparkwal.protocol import chain
from sparkwal.protocol.chain import newest_record
from sparkwal.protocol.recovery import find_head, trace_of_log
from sparkwal.reading.listing import list_logs
from sparkwal.reading.sequencers import all_logs
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore
from tests.chains import Seen, changed, newest, put_next
from tests.lifecycle.test_coordinator import GRACE_MS, Life

KEPT = 10


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    """A log whose chain keeps ten records, and loses older ones after each five."""
    monkeypatch.setattr(chain, "KEPT_RECORDS", KEPT)
    monkeypatch.setattr(collection, "KEPT_RECORDS", KEPT)
    monkeypatch.setattr(collection, "EVERY", 5)
    return Life()


def numbers(life: Life) -> list[int]:
    """The numbers of the chain's objects, newest first, counted from the first record."""
    prefix = keys.lifecycle_prefix(life.log.prefix)
    names = sorted(key for key in life.timed.store.objects if key.startswith(prefix))
    return [keys.MAX - int(key.removeprefix(prefix)) for key in names]


def head(life: Life) -> Seen:
    state = newest(life.log)
    assert state is not None
    return state


def advance(life: Life, records: int) -> None:
    for _ in range(records):
        assert put_next(life.log, head(life), FLOOR, life.timed.clock, "here") is not None


@pytest.mark.proves("chain-newest-kept", "chain-record-age")
def test_the_number_of_records_is_bounded_and_collection_continues(life: Life) -> None:
    for _ in range(20):
        life.write(1)
        run = life.process().run_once()
        life.later(GRACE_MS)
    newest = numbers(life)[0]
    assert newest > 50
    # The first one, ten, and what is new since the last delete or younger than twice the grace.
    assert numbers(life)[-1] == 0 and len(numbers(life)) <= 1 + KEPT + 5 + 6
    assert numbers(life)[:KEPT] == [*range(newest, newest - KEPT, -1)]
    assert life.table.rows == life.written
    # The floor of the last run but one.
    assert run.collection is not None and run.collection.bound == run.floor - 2
    assert trace_of_log(life.log) is not None


def test_objects_of_other_programs_harm_nothing_and_stay(life: Life) -> None:
    names = ("", ".DS_Store", ".nfs00000001", "Thumbs.db", "sub/", "~lock")
    foreign = {f"{life.log.prefix}/{folder}/{name}" for folder in keys.FOLDERS for name in names}
    for key in foreign:
        life.timed.store.put(key, b"")
    for _ in range(20):
        life.write(1)
        life.process().run_once()
        life.later(GRACE_MS)
    assert foreign <= {*life.timed.store.objects}
    own = [*filter(None, (keys.listed(key.rpartition("/")[2]) for key in life.timed.store.objects))]
    assert len(own) < 100
    assert life.table.rows == life.written
    report = verify_store(life.log, "log")
    assert report.ok and report.foreign == sorted(k for k in foreign if "/batches/" in k)
    assert all_logs(life.log) == ["default"] and [*list_logs(life.log)] == ["default"]


@pytest.mark.parametrize("name", ["", ".DS_Store", "sub/x"])
def test_a_folder_with_objects_of_other_programs_only_is_no_log(life: Life, name: str) -> None:
    log = LogStore(life.timed.store, "other")
    log.store.put(f"other/batches/{name}", b"")
    assert all_logs(log) == [] == [*list_logs(log)]
    assert find_head(log).live is None


def test_young_records_stay(life: Life) -> None:
    for _ in range(10):
        life.write(1)
        life.process().run_once()
        life.later(GRACE_MS // 10)
    newest = numbers(life)[0]
    assert newest > 2 * KEPT and numbers(life) == [*range(newest, -1, -1)]


def test_only_a_run_that_passes_a_multiple_asks_for_old_records(life: Life) -> None:
    life.write(1)
    life.process().run_once()
    advance(life, 30)
    life.later(3 * GRACE_MS)
    process = life.process()
    process.run_once()
    before = numbers(life)
    life.timed.store.counts.clear()
    process.run_once()
    assert numbers(life) == before and life.timed.store.counts["delete"] == 0


@pytest.mark.proves("chain-put-in-time")
def test_a_put_at_a_freed_number_does_not_count(life: Life) -> None:
    life.write(1)
    life.process().run_once()
    old = head(life)
    advance(life, 20)
    life.later(3 * GRACE_MS)
    life.write(1)
    life.process().run_once()
    assert keys.MAX - old.number + 1 not in numbers(life)
    assert put_next(life.log, old, FLOOR, life.timed.clock, "a sleeper") is None
    # The stray object changes no state.
    assert keys.MAX - old.number + 1 in numbers(life)
    state = head(life)
    life.write(1)
    run = life.process().run_once()
    assert run.compacted is not None and run.compacted.start == state.cut
    life.later(3 * GRACE_MS)
    life.write(1)
    assert life.process().run_once().collection is not None
    assert life.table.rows == life.written


def test_a_late_put_at_a_number_that_was_never_free_counts(life: Life) -> None:
    life.write(1)
    life.process().run_once()
    old = head(life)
    life.later(3 * GRACE_MS)
    assert put_next(life.log, old, FLOOR, life.timed.clock, "a sleeper") is not None
    advance(life, 3)
    assert put_next(life.log, old, FLOOR, life.timed.clock, "another") is None


def test_a_process_that_slept_between_look_and_put_begins_again(life: Life) -> None:
    life.write(1)
    life.process().run_once()
    life.write(1)
    slept = False

    def sleep(step: str) -> None:
        nonlocal slept
        if step == "prepare" and not slept:
            slept = True
            advance(life, 20)
            life.later(3 * GRACE_MS)
            newest = newest_record(life.log)
            assert newest is not None
            collection.forget_old_records(life.log, None, newest, GRACE_MS)

    life.table.before = sleep
    run = life.process().run_once()
    assert slept and run.compacted is not None and run.compacted.k == 2
    assert life.table.rows == life.written
    assert head(life).cut == run.compacted.end


def test_a_run_looks_once_at_the_chain(life: Life) -> None:
    process = life.process()
    life.write(1)
    process.run_once()
    life.write(1)
    prefix = keys.lifecycle_prefix(life.log.prefix)
    listed: list[str] = []
    list_ = life.timed.store.list

    def counted(asked: str, *rest: object, **more: object) -> object:
        if asked == prefix:
            listed.append(asked)
        return list_(asked, *rest, **more)  # type: ignore[arg-type]

    life.timed.store.list = counted  # type: ignore[method-assign,assignment]
    process.run_once()
    # Intent, done and floor are put in time: no second look.
    assert len(listed) == 1


def old_floor(life: Life, newest: int) -> int | None:
    record = collection.old_record(life.log, newest, GRACE_MS, {})
    part = record and record.log(life.log.name)
    return part.floor if part else None


def put_stray(life: Life, number: int, age_ms: int) -> None:
    """A record of a process that slept, at a freed number, with a floor that was never reached."""
    state = head(life)
    forged = changed(state, state.kind, floor=10**6, cut=10**6, to=10**6)
    key = keys.lifecycle_key(life.log.prefix, number)
    life.timed.store.objects[key] = encode(replace(forged, number=number))
    life.timed.store.modified[key] = life.timed.clock.now_ms() - age_ms


@pytest.mark.parametrize("young", [2, 2 * KEPT], ids=["few", "more than are kept"])
@pytest.mark.parametrize("strays", range(1, 4))
def test_no_floor_is_taken_from_late_puts_wherever_they_lie(
    life: Life, young: int, strays: int
) -> None:
    """Some younger than the grace hide the first older number from a binary search."""
    life.write(1)
    life.process().run_once()
    advance(life, 50)
    life.later(3 * GRACE_MS)
    life.write(1)
    life.process().run_once()
    life.later(GRACE_MS + 1)
    honest = head(life).floor
    advance(life, young)
    newest = head(life).number
    freed = [number for number in range(newest, keys.MAX) if keys.MAX - number not in numbers(life)]
    assert len(freed) > 20
    assert old_floor(life, newest) == honest
    for first in freed[: -strays - 1]:
        before = dict(life.timed.store.objects)
        for number in range(first, first + strays):
            put_stray(life, number, 0)
        put_stray(life, first + strays, 2 * GRACE_MS)
        assert old_floor(life, newest) in (honest, None), keys.MAX - first
        life.timed.store.objects.clear()
        life.timed.store.objects |= before
