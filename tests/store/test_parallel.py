"""Many requests at once: in order, bounded, and ended when the reader stops."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator

import pytest

from sparkwal.store import threads as store_threads
from sparkwal.store.parallel import Range, read_parallel, run_parallel
from sparkwal.testing.memory import MemoryStore

WIDE = MemoryStore(concurrency=8)


def ours() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "sparkwal-request"}


@pytest.fixture(autouse=True)
def _idle_threads_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "_IDLE", 0.05)


def wait_for_no_thread_but(before: set[threading.Thread]) -> None:
    until = time.monotonic() + 30
    while ours() - before:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("at_once", [None, 1, 4, 100])
def test_results_come_in_the_order_of_their_items(at_once: int | None) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    naps = [rng.random() / 500 for _ in range(200)]

    def nap(number: int) -> int:
        time.sleep(naps[number])
        return number

    results = read_parallel(
        WIDE,
        lambda number, _: nap(number),
        range(200),
        first_range=lambda number: Range("key", 0, 1, 1) if number % 5 else None,
        at_once=at_once,
        weigh=lambda number: number % 3,
        capacity=7,
    )
    assert [*results] == [*range(200)]


def test_no_more_is_begun_than_a_reader_has_shown_to_want() -> None:
    begun: list[int] = []
    work = run_parallel(WIDE, lambda item: begun.append(item) or item, range(50), at_once=1)
    for item in work:
        assert len(begun) <= min(2 * item + 1, item + WIDE.concurrency)


def test_an_item_is_taken_when_it_is_needed() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(50):
            taken.append(item)
            yield item

    first = next(run_parallel(WIDE, lambda item: item, items(), at_once=1))
    assert first == 0 and taken == [0]
    taken.clear()
    work = read_parallel(WIDE, lambda item, _: item, items(), first_range=lambda _: None)
    assert next(work) == 0 and taken == [0]


def test_results_at_hand_and_a_single_item_need_no_thread() -> None:
    def who(_: int) -> str:
        return threading.current_thread().name

    caller = who(0)
    assert [*run_parallel(WIDE, who, range(1))] == [caller]
    mixed = [
        *read_parallel(
            WIDE,
            lambda number, _: who(number),
            range(9),
            first_range=lambda number: Range("key", 0, 1, 1) if number % 2 else None,
        )
    ]
    assert mixed[::2] == [caller] * 5 and caller not in mixed[1::2]


def test_calls_inside_calls_share_the_threads_of_their_store() -> None:
    """Fifty logs with 64 requests each would need thousands of threads."""
    caller = threading.current_thread()
    store = MemoryStore(concurrency=8)
    lock = threading.Lock()
    running: set[threading.Thread] = set()
    highest = 0

    def run(number: int) -> int:
        nonlocal highest
        with lock:
            running.add(threading.current_thread())
            highest = max(highest, len(running - {caller}))
        time.sleep(0.0005)
        with lock:
            running.discard(threading.current_thread())
        return number

    def of_log(log: int) -> int:
        return sum(run_parallel(store, run, range(40)))

    assert [*run_parallel(store, of_log, range(50))] == [sum(range(40))] * 50
    assert highest <= 8
    # All places are free again: so many calls meet at once.
    meeting = threading.Barrier(8)
    assert len([*run_parallel(store, lambda _: meeting.wait(30), range(8))]) == 8


@pytest.mark.process
def test_a_forked_child_has_all_threads_of_a_store() -> None:
    store = MemoryStore(concurrency=8)
    ends = threading.Event()
    meeting = threading.Barrier(8)
    work = run_parallel(store, lambda number: number == 0 or ends.wait(30), range(9))
    assert next(work)
    child = os.fork()
    if child == 0:
        met = [*run_parallel(store, lambda _: meeting.wait(30), range(8))]
        os._exit(0 if len(met) == 8 else 1)
    assert os.waitpid(child, 0)[1] == 0
    ends.set()
    assert all(work)


def test_an_error_comes_where_its_item_stands() -> None:
    def fail(number: int) -> int:
        if number in (5, 6):
            raise ValueError(number)
        time.sleep(0.01 * (number < 5))
        return number

    before = ours()
    delivered = []
    with pytest.raises(ValueError, match="5"):
        for number in run_parallel(WIDE, fail, range(50)):
            delivered.append(number)
    assert delivered == [0, 1, 2, 3, 4]
    wait_for_no_thread_but(before)


def test_a_reader_that_stops_early_leaves_no_thread() -> None:
    before, begun = ours(), []
    work = run_parallel(WIDE, lambda item: begun.append(item) or item, range(1000))
    assert next(work) == 0
    work.close()  # type: ignore[attr-defined]
    wait_for_no_thread_but(before)
    assert len(begun) <= 1 + WIDE.concurrency


@pytest.mark.process
def test_a_forked_child_reads_the_rest_of_its_parents_requests() -> None:
    work = run_parallel(WIDE, lambda number: number, range(20))
    assert [next(work), next(work)] == [0, 1]
    child = os.fork()
    if child == 0:
        os._exit(0 if [*work] == [*range(2, 20)] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [*work] == [*range(2, 20)]
