"""Races for one key: many begin at once, and one may win."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import cycle
from typing import Any

from sparkwal.store.base import NotFound, Store, Transient
from sparkwal.store.conformance.suite import Found, StoreUnderTest, content, must
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_errors import KeyTaken

_PATIENCE = 30.0
# Large bodies catch a store that looks at a key before it has read all of one, small bodies one
# that looks after it. What is held back must fit into sockets: bodies may be read in turn.
_SIZES, _DELAYED_SIZES = (32, 20_000, 300_000), (32, 20_000)
# One attempt of a racer, who meets the others by calling the argument: whether it won.
Meet = Callable[[], None]
Attempt = Callable[[Meet], object]


def put_if_absent(tested: StoreUnderTest, sizes: Sequence[int] = _SIZES) -> Found:
    """Puts that begin at the same moment, or whose last bytes arrive at the same moment."""

    def racers(number: int, key: str) -> dict[bytes, Attempt]:
        if not tested.s3 or number % 2 == 0:
            return _field(tested, key, tested.rng.choice(sizes), _put)
        size = tested.rng.choice(_DELAYED_SIZES)
        return _field(tested, key, size, lambda *where: partial(_delayed_put, *where))

    trial = tested.trial
    _race(tested, "race", trial.rounds, racers)
    kind = ", half of them with the last byte held back" * bool(tested.s3)
    said = f"{trial.rounds} keys, {trial.threads} threads each{kind}: one winner each"
    return f"{said} (seed {trial.seed})"


def slow_and_fast(tested: StoreUnderTest) -> Found:
    """A put begins first and ends last; another one comes and goes meanwhile."""

    def racers(_: int, key: str) -> dict[bytes, Attempt]:
        first, second = tested.rng.choices(tested.stores, k=2)
        size, is_done = tested.rng.choice(_DELAYED_SIZES), threading.Event()
        slow, fast = tested.body(size), tested.body(size)

        def begin(meet: Meet) -> bool:
            def wait() -> None:
                meet()
                is_done.wait(_PATIENCE)

            return _delayed_put(first, key, slow, wait)

        def overtake(meet: Meet) -> bool:
            meet()
            # The head of the other one has to arrive, not only to be sent.
            time.sleep(0.02)
            try:
                return second.put_if_absent(key, fast)
            finally:
                is_done.set()

        return {slow: begin, fast: overtake}

    _race(tested, "slow", tested.trial.rounds, racers)
    return f"{tested.trial.rounds} keys: one of the two was refused"


def endpoints(tested: StoreUnderTest) -> Found:
    if len(tested.stores) < 2:
        return None
    for first in tested.retrying:
        key, body = tested.key("endpoint"), tested.body(100)
        first.put_if_absent(key, body)
        for other in tested.retrying:
            same = content(other, key) == body
            must(same, f"what was put at {first.url} is not at {other.url}")
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

    def begun(store: Store, key: str, body: bytes) -> Attempt:
        upload = tested.upload(store, key)
        upload.part(1, 0, body)
        return partial(_at_once, upload.complete)

    def racers(number: int, key: str) -> dict[bytes, Attempt]:
        tested.end_uploads()
        # In every second round some of them put, and none of those may be overwritten.
        return _field(tested, key, 30_000, begun, *[_put] * (number % 2))

    # Who looks first holds it for long here; in some servers that is the only race to see.
    rounds = 2 * tested.trial.rounds
    _race(tested, "multipart", rounds, racers)
    return f"{rounds} keys, {tested.trial.threads} uploads or puts each: one winner each"


def against_delete(tested: StoreUnderTest) -> Found:
    """Puts at a taken key while it is deleted: at most one wins, and then it stays."""

    def racers(_: int, key: str) -> dict[bytes, Attempt]:
        tested.store.put_if_absent(key, b"before")
        delete = partial(tested.rng.choice(tested.stores).delete, key)
        return {b"before": partial(_at_once, delete), **_field(tested, key, 32, _put)}

    _race(tested, "delete", tested.trial.rounds, racers, allowed=(None, b"before"))
    return f"{tested.trial.rounds} keys: never two winners, and what won stayed"


def conflicts(tested: StoreUnderTest) -> Found:
    """How the store answered those who came at the same moment, beside 200 and 412."""
    if not tested.faults:
        return "none came; each request of the races was decided at once"
    seen = ", ".join(f"{count} × {what}" for what, count in tested.faults.most_common(3))
    return f"{seen}; each was repeated, and the repeats were decided"


def _field(
    tested: StoreUnderTest, key: str, size: int, *makers: Callable[[Store, str, bytes], Attempt]
) -> dict[bytes, Attempt]:
    """Racers by what they write, of each kind in turn, at endpoints in an order left to chance."""
    count, stores = max(2, tested.trial.threads), tested.stores
    lanes = [stores[number % len(stores)] for number in range(count)]
    tested.rng.shuffle(lanes)
    bodies = [tested.body(size) for _ in lanes]
    kinds = cycle(makers)
    return {body: next(kinds)(store, key, body) for store, body in zip(lanes, bodies, strict=True)}


def _at_once(request: Callable[[], object], meet: Meet) -> object:
    meet()
    return request()


def _put(store: Store, key: str, body: bytes) -> Attempt:
    return partial(_at_once, partial(store.put_if_absent, key, body))


def _race(
    tested: StoreUnderTest, name: str, rounds: int,
    racers_of: Callable[[int, str], Mapping[bytes, Attempt]],
    allowed: Collection[bytes | None] = (),
) -> None:  # fmt: skip
    """One key a round, and racers by what they write. Raises Wrong unless all that happened says
    the same. `allowed` may be there when nobody won."""
    for number in range(rounds):
        key = tested.key(name)
        racers = racers_of(number, key)
        won, unsure = _run(tested, key, racers)
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
    tested: StoreUnderTest, key: str, racers: Mapping[bytes, Attempt]
) -> tuple[list[bytes], set[bytes]]:
    """Run all at once; what fails in passing is repeated, as a writer does. Who won, and who may
    have won when its answer was lost."""
    gate = threading.Barrier(len(racers))
    unsure: set[bytes] = set()

    def run(body: bytes) -> bool:
        def meet() -> None:
            # Whoever comes again, after a failure, runs alone.
            if body not in unsure:
                with suppress(threading.BrokenBarrierError):
                    gate.wait(_PATIENCE)

        def attempt() -> object:
            try:
                return racers[body](meet)
            except Transient as fault:
                unsure.add(body)
                tested.faults[" ".join(fault.reason.split()[:2])] += 1
                raise

        return bool(tested.store.attempt("put", key, attempt, writes=True))

    # All end before the first failure is raised: a late put would leave its object behind.
    with ThreadPoolExecutor(len(racers), thread_name_prefix="sparkwal-proof") as pool:
        running = {body: pool.submit(run, body) for body in racers}
    return [body for body, each in running.items() if each.result()], unsure


class _DelayedBody(BytesIO):
    """A body that calls `wait` before its last byte, once it is sent: `sending` is set when the
    signature, which reads it too, is made."""

    def __init__(self, body: bytes, wait: Meet) -> None:
        super().__init__(body)
        self._wait, self._size, self.sending = wait, len(body), False

    def read(self, size: int | None = -1) -> bytes:
        left = self._size - self.tell()
        if self.sending and left > 1:
            size = left - 1 if size is None or size < 0 else min(size, left - 1)
        elif self.sending and left == 1:
            self._wait()
        return super().read(size)


def _delayed_put(store: Store, key: str, body: bytes, meet: Meet) -> bool:
    """As `put_if_absent`; it meets the others when only the last byte is not yet sent."""
    assert isinstance(store, S3Store)
    try:
        with store.request(key) as client:
            client.meta.events.register(
                "before-send.s3.PutObject", _sending, unique_id="sparkwal-delayed"
            )
            sent = {**store.sent(key, body), "Body": _DelayedBody(body, meet)}
            client.put_object(**sent, IfNoneMatch="*")
    except KeyTaken:
        return False
    except NotFound:
        raise Transient("404 to a PUT") from None
    return True


def _sending(request: Any, **_: object) -> None:
    if isinstance(request.body, _DelayedBody):
        request.body.sending = True
