"""Races for one key: many writers begin at the same time, and at most one may win."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from typing import Any

from sparkwal.store.base import Store, Transient
from sparkwal.store.conformance.suite import Observation, StoreUnderTest, content, must
from sparkwal.store.s3 import S3Store
from sparkwal.store.threads import run_in_thread

# Seconds that a racer waits for the others.
_PATIENCE = 30.0
# Seconds in which a server notices that a connection ended.
_ENDS_WITHIN = 0.2
# Large bodies reveal a store that checks the key before it has read the body, small bodies one that
# checks it afterwards. Delayed bodies must fit into sockets: the store may read one after another.
_SIZES = (32, 20_000, 300_000)
_DELAYED_SIZES = (32, 20_000)
# Waits until all racers have called it.
Meet = Callable[[], None]
# One attempt of a racer: returns whether it won.
Attempt = Callable[[Meet], object]
Racer = Callable[[Store, str, bytes, Meet], object]


def put_if_absent(tested: StoreUnderTest, sizes: Sequence[int] = _SIZES) -> Observation:
    """Puts that begin at the same moment, or whose last bytes arrive at the same moment."""

    def racers(number: int, key: str) -> dict[bytes, Attempt]:
        is_late = bool(tested.s3) and number % 2 == 1
        size = tested.rng.choice(_DELAYED_SIZES if is_late else sizes)
        return _field(tested, key, size, _delayed_put if is_late else _put)

    trial = tested.trial
    _race(tested, "race", trial.rounds, racers)
    return f"{trial.rounds} keys, {trial.threads} threads each: one winner each"


def slow_and_fast(tested: StoreUnderTest) -> Observation:
    """A put begins first and ends last, and another put runs in between."""

    def racers(_: int, key: str) -> dict[bytes, Attempt]:
        first, second = tested.rng.choices(tested.stores, k=2)
        size = tested.rng.choice(_DELAYED_SIZES)
        slow, fast = tested.body(size), tested.body(size)

        def overtake(meet: Meet) -> bool:
            meet()
            # Give the head of the slow put time to arrive.
            time.sleep(0.02)
            try:
                return second.put_if_absent(key, fast)
            finally:
                meet()

        return {slow: partial(_delayed_put, first, key, slow), fast: overtake}

    _race(tested, "slow", tested.trial.rounds, racers)
    return f"{tested.trial.rounds} keys: one of the two was refused"


def broken_off(tested: StoreUnderTest) -> Observation:
    """The store creates no object for a put whose client ends in the middle of the body."""
    for size in _SIZES:
        key, body = tested.key("broken"), tested.body(size)

        def half(sent: bytes = body) -> Iterator[bytes]:
            yield sent[: len(sent) // 2]
            raise ConnectionError("the client ends here")

        with suppress(Transient):
            _put_body(tested.s3[0], key, body, half())
        time.sleep(_ENDS_WITHIN)
        stored = content(tested.store, key)
        fault = f"{len(stored or b'')} of {size} bytes of a put that broke off are stored"
        must(stored is None, fault)
    return f"{len(_SIZES)} puts that ended half-way left nothing"


def endpoints(tested: StoreUnderTest) -> Observation:
    """All endpoints show the same objects, and refuse a put at a key taken at another endpoint."""
    if len(tested.stores) < 2:
        return None
    for first in tested.retrying:
        key, body = tested.key("endpoint"), tested.body(100)
        first.put_if_absent(key, body)
        for other in tested.retrying:
            shown = content(other, key) == body
            must(shown, f"an object that was put at {first.url} is not at {other.url}")
            refused = other is first or not other.put_if_absent(key, tested.body(100))
            must(refused, f"{other.url} took a second put at a key taken at {first.url}")
    return f"{len(tested.stores)} endpoints of one store; every race above ran over all of them"


def multipart(tested: StoreUnderTest) -> Observation:
    """CompleteMultipartUpload obeys If-None-Match, at a taken key and in races."""
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
        # In every second round half of the racers make puts, which must not be overwritten.
        return _field(tested, key, 30_000, complete, *[_put] * (number % 2))

    # A Complete takes longer than a put, which makes this the only race that some servers lose.
    rounds = 2 * tested.trial.rounds
    _race(tested, "multipart", rounds, racers)
    return f"{rounds} keys, {tested.trial.threads} uploads or puts each: one winner each"


def against_delete(tested: StoreUnderTest) -> Observation:
    """At most one put at a key that is being deleted wins, and its object stays."""

    def delete(store: Store, key: str, meet: Meet) -> None:
        meet()
        store.delete(key)

    def racers(_: int, key: str) -> dict[bytes, Attempt]:
        tested.store.put_if_absent(key, b"before")
        deleting = partial(delete, tested.rng.choice(tested.stores), key)
        return {b"before": deleting, **_field(tested, key, 32, _put)}

    _race(tested, "delete", tested.trial.rounds, racers, allowed=(None, b"before"))
    return f"{tested.trial.rounds} keys: never two winners, and the winner's object stayed"


def conflicts(tested: StoreUnderTest) -> Observation:
    """Describes the answers other than 200 and 412 to the racers."""
    if not tested.faults:
        return "none came; each request of the races was decided at once"
    faults = ", ".join(f"{count} × {fault}" for fault, count in tested.faults.most_common(3))
    return f"{faults}; each was repeated and decided"


def _field(tested: StoreUnderTest, key: str, size: int, *kinds: Racer) -> dict[bytes, Attempt]:
    """One racer for each thread, by its body: the kinds in turn, at endpoints in random order."""
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
    """Run races, one key for each round, and compare the winners with the stored object.

    Args:
        racers_of: the racers of a round, by their bodies.
        allowed: contents that the key may have if no racer won; None means no object.

    Raises:
        Wrong: two racers won, or the stored object is not the winner's.
    """
    for number in range(rounds):
        key = tested.key(name)
        racers = racers_of(number, key)
        # Racers that lost a reply, and may have won nevertheless.
        unsure: set[bytes] = set()
        run = partial(_run, tested, threading.Barrier(len(racers)), unsure)
        running = {body: run_in_thread(run, body, race) for body, race in racers.items()}
        # All racers must end before an error is raised: a late put would leave its object behind.
        wait(running.values())
        winners = [body for body, future in running.items() if future.result()]
        race = f"{len(racers)} raced for one key (round {number}, seed {tested.trial.seed})"
        must(
            len(winners) < 2,
            f"{len(winners)} got the answer that they created one object, when {race}",
        )
        stored, *others = {content(store, key) for store in tested.retrying}
        must(not others, f"two endpoints show two contents of one object, after {race}")
        if winners:
            must(
                stored == winners[0],
                f"one got the answer that it created an object, which is not stored: {race}",
            )
        else:
            possible = {*(racers if tested.repeats else unsure), *allowed}
            must(
                stored in possible,
                f"no racer got the answer that it created the object, when {race}",
            )


def _run(
    tested: StoreUnderTest, gate: threading.Barrier, unsure: set[bytes], body: bytes, race: Attempt
) -> bool:
    """Run one racer, and repeat temporary failures, as a writer does. Returns whether it won."""

    def meet() -> None:
        # A racer that repeats its request does not wait for others.
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


# The body of the PUT that this thread sends, in pieces.
_replacement = threading.local()


def _delayed_put(store: Store, key: str, body: bytes, meet: Meet) -> bool:
    """A `put_if_absent` that meets the other racers before it sends the last byte."""
    assert isinstance(store, S3Store)
    return _put_body(store, key, body, _delayed_pieces(body, meet))


def _put_body(store: S3Store, key: str, body: bytes, pieces: Iterator[bytes]) -> bool:
    """A `put_if_absent` of `body` that sends `pieces` instead."""
    with store.request(key) as client:
        client.meta.events.register(
            "before-send.s3.PutObject", _replace_body, unique_id="sparkwal-late"
        )
    _replacement.body = pieces
    try:
        return store.put_if_absent(key, body)
    finally:
        del _replacement.body


def _replace_body(request: Any, **_: object) -> None:
    # The request is signed already, and its head has the length of the original body.
    request.body = getattr(_replacement, "body", request.body)


def _delayed_pieces(body: bytes, meet: Meet) -> Iterator[bytes]:
    yield body[:-1]
    meet()
    # Another put may run between the two meetings.
    meet()
    yield body[-1:]
