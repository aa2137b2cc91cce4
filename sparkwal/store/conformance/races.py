"""Races for one key: many begin at once, and one may win."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from sparkwal.store.base import Store, Transient, Upload
from sparkwal.store.conformance.s3 import delayed_put
from sparkwal.store.conformance.store_under_test import Found, StoreUnderTest, Wrong, content
from sparkwal.store.s3 import S3Store

_PATIENCE = 30.0
# Large bodies catch a store that looks at a key before it has read all of one, small bodies one
# that looks after it. What is held back must fit into sockets: bodies may be read in turn.
_SIZES, _DELAYED_SIZES = (32, 20_000, 300_000), (32, 20_000)


@dataclass
class Racer:
    """What it puts, and how it ended: whether its answer said that it won, and whether one before
    may have been lost. `act` is one attempt; a late one meets the others by its argument."""

    body: bytes
    act: Callable[..., object]
    late: bool = False
    won: bool = False
    uncertain: bool = False


def put_if_absent(tested: StoreUnderTest, sizes: Sequence[int] = _SIZES) -> Found:
    """Puts that begin at the same moment, or whose last bytes arrive at the same moment."""
    trial, delayed = tested.trial, 0
    for number in range(trial.rounds):
        key = tested.key("race")
        late = number % 2 == 1 and len(tested.s3) == len(tested.stores)
        delayed += late
        size = tested.rng.choice(_DELAYED_SIZES if late else sizes)
        racers = [_put(store, key, tested.body(size), late) for store in _lanes(tested)]
        _run(tested, key, racers)
        _one_winner(tested, key, racers, number)
    kind = f", {delayed} of them with the last byte held back" if delayed else ""
    return (
        f"{trial.rounds} keys, {trial.threads} threads each{kind}: one winner each "
        f"(seed {trial.seed})"
    )


def slow_and_fast(tested: StoreUnderTest) -> Found:
    """A put begins first and ends last; another one comes and goes meanwhile."""
    if len(tested.s3) < len(tested.stores):
        return None
    for number in range(tested.trial.rounds):
        key = tested.key("slow")
        racers = _slow_and_fast(tested, key)
        _run(tested, key, racers)
        _one_winner(tested, key, racers, number)
    return f"{tested.trial.rounds} keys: one of the two was refused"


def _slow_and_fast(tested: StoreUnderTest, key: str) -> list[Racer]:
    first, second = _lanes(tested)[:2]
    size = tested.rng.choice(_DELAYED_SIZES)
    begun, go_on = threading.Event(), threading.Event()
    slow, fast = tested.body(size), tested.body(size)

    def wait() -> None:
        begun.set()
        go_on.wait(_PATIENCE)

    def early() -> bool:
        begun.wait(_PATIENCE)
        # The head of the other one has to arrive, not only to be sent.
        time.sleep(0.02)
        try:
            return second.put_if_absent(key, fast)
        finally:
            go_on.set()

    assert isinstance(first, S3Store)
    return [Racer(slow, partial(delayed_put, first, key, slow, wait)), Racer(fast, early)]


def endpoints(tested: StoreUnderTest) -> Found:
    if len(tested.stores) < 2:
        return None
    for first in tested.retrying:
        key, body = tested.key("endpoint"), tested.body(100)
        first.put_if_absent(key, body)
        for other in tested.retrying:
            if content(other, key) != body:
                raise Wrong(f"what was put at {first.url} is not at {other.url}")
            if other is not first and other.put_if_absent(key, tested.body(100)):
                raise Wrong(f"{other.url} took a second put at a key taken at {first.url}")
    return f"{len(tested.stores)} endpoints of one store; every race above ran over all of them"


def multipart(tested: StoreUnderTest) -> Found:
    """CompleteMultipartUpload with If-None-Match: at a taken key, and raced."""
    key, body = tested.key("multipart"), tested.body(1000)
    upload = tested.store.upload(key)
    upload.part(1, 0, tested.body(1000))
    tested.store.put_if_absent(key, body)
    if upload.complete() or content(tested.store, key) != body:
        raise Wrong("it completed an upload to a taken key")
    upload.abort()
    # Who looks first holds it for long here; in some servers that is the only race to see.
    rounds = 2 * tested.trial.rounds
    for number in range(rounds):
        key = tested.key("multipart")
        uploads: list[Upload] = []
        racers: list[Racer] = []
        for place, store in enumerate(_lanes(tested)):
            body = tested.body(30_000)
            # In every second round some of them put, and none of those may be overwritten.
            if number % 2 and place % 2:
                racers.append(_put(store, key, body))
                continue
            begun = store.upload(key)
            begun.part(1, 0, body)
            uploads.append(begun)
            racers.append(Racer(body, begun.complete))
        _run(tested, key, racers)
        for begun in uploads:
            begun.abort()
        _one_winner(tested, key, racers, number)
    return f"{rounds} keys, {tested.trial.threads} uploads or puts each: one winner each"


def against_delete(tested: StoreUnderTest) -> Found:
    """Puts at a taken key while it is deleted: at most one wins, and then it stays."""
    for number in range(tested.trial.rounds):
        key = tested.key("delete")
        tested.store.put_if_absent(key, b"before")
        first, *others = _lanes(tested)
        racers = [_put(store, key, tested.body(32)) for store in others]
        delete = Racer(b"", partial(first.delete, key))
        _run(tested, key, [*racers, delete])
        _one_winner(tested, key, racers, number, (None, b"before"))
    return f"{tested.trial.rounds} keys: never two winners, and what won stayed"


def conflicts(tested: StoreUnderTest) -> Found:
    """How the store answered those who came at the same moment, beside 200 and 412."""
    if not tested.faults:
        return "none came; each request of the races was decided at once"
    seen = ", ".join(f"{count} × {what}" for what, count in tested.faults.most_common(3))
    return f"{seen}; each was repeated, and the repeats were decided"


def _lanes(tested: StoreUnderTest) -> list[Store]:
    """An endpoint for each racer, in an order left to chance."""
    stores = tested.stores
    found = [stores[number % len(stores)] for number in range(max(2, tested.trial.threads))]
    tested.rng.shuffle(found)
    return found


def _put(store: Store, key: str, body: bytes, late: bool = False) -> Racer:
    if not late:
        return Racer(body, partial(store.put_if_absent, key, body))
    assert isinstance(store, S3Store)
    return Racer(body, partial(delayed_put, store, key, body), late=True)


def _run(tested: StoreUnderTest, key: str, racers: Sequence[Racer]) -> None:
    """Run all at once; what fails in passing is repeated, as a writer does."""
    gate = threading.Barrier(len(racers))

    def run(racer: Racer) -> None:
        def meet() -> None:
            # Whoever comes again, after a failure, runs alone.
            if not racer.uncertain:
                with suppress(threading.BrokenBarrierError):
                    gate.wait(_PATIENCE)

        def attempt() -> object:
            try:
                if racer.late:
                    return racer.act(meet)
                meet()
                return racer.act()
            except Transient as fault:
                racer.uncertain = True
                tested.faults[" ".join(fault.reason.split()[:2])] += 1
                raise

        racer.won = bool(tested.store.attempt("put", key, attempt, writes=True))

    # All end before the first failure is raised: a late put would leave its object behind.
    with ThreadPoolExecutor(len(racers), thread_name_prefix="sparkwal-proof") as pool:
        running = [pool.submit(run, racer) for racer in racers]
    for each in running:
        each.result()


def _one_winner(
    tested: StoreUnderTest, key: str, racers: Sequence[Racer], number: int,
    allowed: Sequence[bytes | None] = (),
) -> None:  # fmt: skip
    """Raises Wrong unless all say the same. `allowed` may be there when nobody won."""
    where = f"{len(racers)} raced for one key (round {number}, seed {tested.trial.seed})"
    winners = [racer.body for racer in racers if racer.won]
    if len(winners) > 1:
        raise Wrong(f"{len(winners)} got the answer that they created one object, when {where}")
    found, *others = {content(store, key) for store in tested.retrying}
    if others:
        raise Wrong(f"two endpoints show two contents of one object, after {where}")
    if winners and found != winners[0]:
        raise Wrong(f"one got the answer that it created the object, and it is not there: {where}")
    unsure = {racer.body for racer in racers if racer.uncertain or tested.repeats}
    if not winners and found not in {*unsure, *allowed}:
        raise Wrong(f"nobody got the answer that it created the object, when {where}")
