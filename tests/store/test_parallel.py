"""Many requests at once: in order, bounded, and ended when the reader stops."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from sparkwal.store import threads as store_threads
from sparkwal.store.base import Front, NotFound
from sparkwal.store.parallel import Range, get_many, run_parallel
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

    class Napping(MemoryStore):
        def get_range(self, key: str, offset: int, length: int) -> bytes:
            time.sleep(naps[int(key)])
            if int(key) % 7 == 0:
                raise NotFound(key)
            return key.encode()[offset : offset + length]

    def wanted(number: int) -> Range | None:
        return Range(f"{number}", 0, number % 3 * 2**22) if number % 5 else None

    items = [(number, wanted(number)) for number in range(200)]
    found = [*get_many(Napping(concurrency=8), items, at_once=at_once)]
    for number, body in found:
        is_there = number % 5 and number % 7
        assert body == (f"{number}".encode()[: number % 3 * 9] if is_there else None)
    assert [number for number, _ in found] == [*range(200)]


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
    work = get_many(WIDE, ((item, None) for item in items()))
    assert next(work) == (0, None) and taken == [0]


def test_results_at_hand_and_a_single_item_need_no_thread() -> None:
    class Naming(MemoryStore):
        def get_range(self, key: str, offset: int, length: int) -> bytes:
            return threading.current_thread().name.encode()

    store = Naming(concurrency=8)
    caller = store.get_range("", 0, 1)
    assert [*run_parallel(store, lambda key: store.get_range(key, 0, 1), "a")] == [caller]
    assert [*get_many(store, [("a", Range("a", 0, 1))])] == [("a", caller)]
    mixed = [*get_many(store, [(n, Range("a", 0, 1) if n % 2 else None) for n in range(9)])]
    assert all((body is None) == (n % 2 == 0) and body != caller for n, body in mixed)


class Fronts(MemoryStore):
    """Objects of given sizes; notes what is asked for."""

    def __init__(self, sizes: Sequence[int], *, reports_sizes: bool) -> None:
        super().__init__(concurrency=64)
        self.sizes = sizes
        self.reports_sizes = reports_sizes
        self.asked: dict[int, int] = {}

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.asked[int(key)] = length
        size = self.sizes[int(key)]
        body = bytes(min(length, size))
        return Front.of(body, offset, length, size if self.reports_sizes else None)

    def read(self, wanted: int) -> list[int]:
        """The bytes of each front."""
        items = [(n, Range(f"{n}", 0, wanted, is_front=True)) for n in range(len(self.sizes))]
        return [len(body or b"") for _, body in get_many(self, items)]


@pytest.mark.parametrize("reports_sizes", [True, False])
def test_small_fronts_are_asked_for_in_small_requests_until_one_is_larger(
    reports_sizes: bool,
) -> None:
    mib = 2**20
    store = Fronts([100] * 200 + [3 * mib] + [100] * 200, reports_sizes=reports_sizes)
    found = store.read(4 * mib)
    lengths = [length for _, length in sorted(store.asked.items())]
    assert {*lengths[:32]} == {4 * mib} and {*lengths[100:201]} == {2 * mib}
    assert {*lengths[300:]} == {4 * mib}
    # The reader gets the bytes that came.
    assert found == [100] * 200 + [2 * mib] + [100] * 200


def test_a_range_that_is_no_front_is_asked_for_whole() -> None:
    store = Fronts([100] * 200, reports_sizes=True)
    items = [(n, Range(f"{n}", 0, 2**20)) for n in range(200)]
    assert len([*get_many(store, items)]) == 200
    assert {*store.asked.values()} == {2**20}


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
