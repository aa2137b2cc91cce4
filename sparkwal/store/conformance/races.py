"""Races for one key: many begin at once, and one may win."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from typing import Any

from sparkwal.store.base import Store, Transient
from sparkwal.store.conformance.suite import Found, StoreUnderTest, content, must
from sparkwal.store.s3 import S3Store

_PATIENCE = 30.0
# Seconds in which a server notices that a connection ended.
_ENDS_WITHIN = 0.2
# Large bodies catch a store that looks at a key before it has read all of one, small bodies one
# that looks after it. What is held back must fit into sockets: bodies may be read in turn.
_SIZES, _DELAYED_SIZES = (32, 20_000, 300_000), (32, 20_000)
# One attempt of a racer, who meets the others by calling the last argument: whether it won.
Meet = Callable[[], None]
Attempt = Callable[[Meet], object]
Racer = Callable[[Store, str, bytes, Meet], object]


def put_if_absent(tested: StoreUnderTest, sizes: Sequence[int] = _SIZES) -> Found:
    """Puts that begin at the same moment, or whose last bytes arrive at the same moment."""

    def racers(number: int, key: str) -> dict[bytes, Attempt]:
        is_late = bool(tested.s3) and number % 2 == 1
        size = tested.rng.choice(_DELAYED_SIZES if is_late else sizes)
        return _field(tested, key, size, _delayed_put if is_late else _put)

    trial = tested.trial
    _race(tested, "race", trial.rounds, racers)
    return f"{trial.rounds} keys, {trial.threads} threads each: one winner each"


def slow_and_fast(tested: StoreUnderTest) -> Found:
    """A put begins first and ends last; another one comes and goes meanwhile."""

    def racers(_: int, key: str) -> dict[bytes, Attempt]:
        first, second = tested.rng.choices(tested.stores, k=2)
        size = tested.rng.choice(_DELAYED_SIZES)
        slow, fast = tested.body(size), tested.body(size)

        def overtake(meet: Meet) -> bool:
            meet()
            # The head of the other one has to arrive, not only to be sent.
            time.sleep(0.02)
            try:
                return second.put_if_absent(key, fast)
            finally:
                meet()

        return {slow: partial(_delayed_put, first, key, slow), fast: overtake}

    _race(tested, "slow", tested.trial.rounds, racers)
    return f"{tested.trial.rounds} keys: one of the two was refused"


def broken_off(tested: StoreUnderTest) -> Found:
    """A client that ends in the middle of a put: the store keeps nothing of the body."""
    for size in _SIZES:
        key, body = tested.key("broken"), tested.body(size)

        def half(sent: bytes = body) -> Iterator[bytes]:
            yield sent[: len(sent) // 2]
            raise ConnectionError("the client ends here")

        with suppress(Transient):
            _put_body(tested.s3[0], key, body, half())
        time.sleep(_ENDS_WITHIN)
        found = content(tested.store, key)
        kept = f"{len(found or b'')} of {size} bytes of a put that broke off are there"
        must(found is None, kept)
    return f"{len(_SIZES)} puts that ended half-way left nothing"


def endpoints(tested: StoreUnderTest) -> Found:
    if len(tested.stores) < 2:
        return None
    for first in tested.retrying:
        key, body = tested.key("endpoint"), tested.body(100)
        first.put_if_absent(key, body)
        for other in tested.retrying:
            must(content(other, key) == body, f"what was put at {first.url} is not at {other.url}")
            refused = other is first or not other.put_if_absent(key, tested.body(100))
            must(refused, f"{other.url} took a second put at a key taken at {first.url}")
    return f"{len(tested.stores)} endpoints of one store; every race above ran over all of them"


def multipart(tested: StoreUnderTest) -> Found:
    """CompleteMultipartUpload with If-None-Match: at a taken key, and raced."""
    key, body = tested.key("multipart"), tested.body(1000)
    upload = tested.upload(tested.store, key)
    upload.part(1, 0, tested.body(1000))
    tested.store.put_if_absent(key, body)
    refused = not upload.complete() and content(tested.store, key) == body
    must(refused, "it completed an upload to a taken key")

    def complete(store: Store, key: str, body: bytes, meet: Meet) -> bool:
        upload = tested.upload(store, key)
        upload.part(1, 0, body)
        meet()
        return upload.complete()

    def racers(number: int, key: str) -> dict[bytes, Attempt]:
        # In every second round some of them put, and none of those may be overwritten.
        return _field(tested, key, 30_000, complete, *[_put] * (number % 2))

    # Who looks first holds it for long here; in some servers that is the only race to see.
    rounds = 2 * tested.trial.rounds
    _race(tested, "multipart", rounds, racers)
    return f"{rounds} keys, {tested.trial.threads} uploads or puts each: one winner each"


def against_delete(tested: StoreUnderTest) -> Found:
    """Puts at a taken key while it is deleted: at most one wins, and then it stays."""

    def delete(store: Store, key: str, meet: Meet) -> None:
        meet()
        store.delete(key)

    def racers(_: int, key: str) -> dict[bytes, Attempt]:
        tested.store.put_if_absent(key, b"before")
        deleting = partial(delete, tested.rng.choice(tested.stores), key)
        return {b"before": deleting, **_field(tested, key, 32, _put)}

    _race(tested, "delete", tested.trial.rounds, racers, allowed=(None, b"before"))
    return f"{tested.trial.rounds} keys: never two winners, and what won stayed"


def conflicts(tested: StoreUnderTest) -> Found:
    """How the store answered those who came at the same moment, beside 200 and 412."""
    if not tested.faults:
        return "none came; each request of the races was decided at once"
    seen = ", ".join(f"{count} × {what}" for what, count in tested.faults.most_common(3))
    return f"{seen}; each was repeated and decided"


def _field(tested: StoreUnderTest, key: str, size: int, *kinds: Racer) -> dict[bytes, Attempt]:
    """Racers by what they write, of each kind in turn, at endpoints in an order left to chance."""
    lanes = [*islice(cycle(tested.stores), max(2, tested.trial.threads))]
    tested.rng.shuffle(lanes)
    bodies = (tested.body(size) for _ in lanes)
    racers = zip(lanes, bodies, cycle(kinds), strict=False)
    return {body: partial(race, store, key, body) for store, body, race in racers}


def _put(store: Store, key: str, body: bytes, meet: Meet) -> bool:
    meet()
    return store.put_if_absent(key, body)


def _race(
    tested: StoreUnderTest,
    name: str,
    rounds: int,
    racers_of: Callable[[int, str], Mapping[bytes, Attempt]],
    allowed: Collection[bytes | None] = (),
) -> None:
    """One key a round, and racers by what they write. Raises Wrong unless all that happened says
    the same. `allowed` may be there when nobody won."""
    for number in range(rounds):
        key = tested.key(name)
        racers = racers_of(number, key)
        # Who may have won when its answer was lost.
        unsure: set[bytes] = set()
        run = partial(_run, tested, threading.Barrier(len(racers)), unsure)
        # All end before the first failure is raised: a late put would leave its object behind.
        with ThreadPoolExecutor(len(racers), thread_name_prefix="sparkwal-proof") as pool:
            running = {body: pool.submit(run, body, race) for body, race in racers.items()}
        won = [body for body, each in running.items() if each.result()]
        where = f"{len(racers)} raced for one key (round {number}, seed {tested.trial.seed})"
        must(len(won) < 2, f"{len(won)} got the answer that they created one object, when {where}")
        found, *others = {content(store, key) for store in tested.retrying}
        must(not others, f"two endpoints show two contents of one object, after {where}")
        if won:
            must(found == won[0], f"one got the answer that it created what is not there: {where}")
        else:
            known = {*(racers if tested.repeats else unsure), *allowed}
            must(found in known, f"nobody got the answer that it created the object, when {where}")


def _run(
    tested: StoreUnderTest, gate: threading.Barrier, unsure: set[bytes], body: bytes, race: Attempt
) -> bool:
    """One racer: what fails in passing is repeated, as a writer does. Whether it won."""

    def meet() -> None:
        # Whoever comes again, after a failure, runs alone.
        if body not in unsure:
            with suppress(threading.BrokenBarrierError):
                gate.wait(_PATIENCE)

    def attempt() -> object:
        try:
            return race(meet)
        except Transient as fault:
            unsure.add(body)
            tested.faults[" ".join(fault.reason.split()[:2])] += 1
            raise

    return bool(tested.store.attempt("put", tested.keys[-1], attempt, writes=True))


# The body of the PUT that a thread sends.
_here = threading.local()


def _delayed_put(store: Store, key: str, body: bytes, meet: Meet) -> bool:
    """As `put_if_absent`; it meets the others when only the last byte is not yet sent."""
    assert isinstance(store, S3Store)
    return _put_body(store, key, body, _held_back(body, meet))


def _put_body(store: S3Store, key: str, body: bytes, sent: Iterator[bytes]) -> bool:
    """As `put_if_absent` of `body`, of which `sent` is sent."""
    with store.request(key) as client:
        client.meta.events.register("before-send.s3.PutObject", _sending, unique_id="sparkwal-late")
    _here.body = sent
    try:
        return store.put_if_absent(key, body)
    finally:
        del _here.body


def _sending(request: Any, **_: object) -> None:
    # It is signed, and its head has its length.
    request.body = getattr(_here, "body", request.body)


def _held_back(body: bytes, meet: Meet) -> Iterator[bytes]:
    yield body[:-1]
    meet()
    # Between the two another one may come and go.
    meet()
    yield body[-1:]
