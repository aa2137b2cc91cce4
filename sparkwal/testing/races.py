"""Races for one key: many begin at once, and one may win."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sparkwal.errors import StoreUnavailableError
from sparkwal.store.base import NotFound, Store, Transient, Upload
from sparkwal.store.s3 import S3Store
from sparkwal.testing.ground import Found, Ground, Wrong
from sparkwal.testing.held import put_held

_PATIENCE = 30.0
_ATTEMPTS = 8
# A store that looks at a key before it has read all of a body is caught by large ones, one
# that looks after it by small ones. What is held back must fit into the buffers of sockets: a
# store may read one body after the other.
_SIZES, _HELD_SIZES = (32, 20_000, 300_000), (32, 20_000)


class Ran(NamedTuple):
    """How a racer ended: whether it was told that it won, and whether an answer before was lost."""

    won: bool
    uncertain: bool


@dataclass
class _Racer:
    store: Store
    body: bytes


def put_if_absent(ground: Ground) -> Found:
    """Puts that begin at the same moment, or whose last bytes arrive at the same moment."""
    trial, told, held = ground.trial, 0, 0
    for number in range(trial.rounds):
        key = ground.key("race")
        holds = number % 2 == 1 and all(isinstance(each, S3Store) for each in ground.stores)
        racers = _racers(ground, ground.rng.choice(_HELD_SIZES if holds else _SIZES))
        gate = threading.Barrier(len(racers))
        if holds:
            held += 1
            ran = _run(ground, [_held(racer, key, gate) for racer in racers])
        else:
            ran = _run(ground, [_at_once(racer, key, gate) for racer in racers])
        told += _one_winner(ground, key, racers, ran, f"round {number}")
    kind = f", {held} of them with the last byte held back" if held else ""
    return (
        f"{trial.rounds} keys, {trial.threads} threads each{kind}: {told} told, one winner each "
        f"(seed {trial.seed})"
    )


def slow_and_fast(ground: Ground) -> Found:
    """A put begins first and ends last; another one comes and goes meanwhile."""
    if not all(isinstance(store, S3Store) for store in ground.stores):
        return None
    for number in range(ground.trial.rounds):
        key = ground.key("slow")
        slow, fast = _racers(ground, ground.rng.choice(_HELD_SIZES))[:2]
        begun, go_on = threading.Event(), threading.Event()

        def wait(begun: threading.Event = begun, go_on: threading.Event = go_on) -> None:
            begun.set()
            go_on.wait(_PATIENCE)

        def late(slow: _Racer = slow, key: str = key, wait: Callable[[], None] = wait) -> bool:
            assert isinstance(slow.store, S3Store)
            return put_held(slow.store, key, slow.body, wait)

        def early(
            fast: _Racer = fast, key: str = key,
            begun: threading.Event = begun, go_on: threading.Event = go_on,
        ) -> bool:  # fmt: skip
            begun.wait(_PATIENCE)
            # The head of the other one has to arrive, not only to be sent.
            time.sleep(0.02)
            try:
                return fast.store.put_if_absent(key, fast.body)
            finally:
                go_on.set()

        _one_winner(ground, key, [slow, fast], _run(ground, [late, early]), f"round {number}")
    return f"{ground.trial.rounds} keys: one of the two was refused"


def endpoints(ground: Ground) -> Found:
    """What one endpoint has, all have at once."""
    if len(ground.stores) < 2:
        return None
    for number, first in enumerate(ground.retrying):
        key, body = ground.key("endpoint"), ground.body(100)
        first.put_if_absent(key, body)
        for other in ground.retrying:
            if _content(other, key) != body:
                raise Wrong(f"what was put at {first.url} is not at {other.url}")
            if other is not first and other.put_if_absent(key, ground.body(100)):
                raise Wrong(f"{other.url} took a second put at a key taken at {first.url}")
        if number == 0:
            ground.store.delete(key)
    return f"{len(ground.stores)} endpoints of one store; every race above ran over all of them"


def multipart(ground: Ground) -> Found:
    """CompleteMultipartUpload with If-None-Match: at a taken key, and raced."""
    key, body = ground.key("multipart"), ground.body(1000)
    upload = ground.store.upload(key)
    upload.part(1, 0, ground.body(1000))
    ground.store.put_if_absent(key, body)
    if upload.complete() or _content(ground.store, key) != body:
        raise Wrong("it completed an upload to a taken key")
    upload.abort()
    # Who looks first holds it for long here; in some servers that is the only race to see.
    rounds = 2 * ground.trial.rounds
    for number in range(rounds):
        key = ground.key("multipart")
        racers = _racers(ground, 30_000)
        gate = threading.Barrier(len(racers))
        uploads: list[Upload] = []
        work: list[Callable[[], bool]] = []
        for place, racer in enumerate(racers):
            # In every second round some of them put, and none of those may be overwritten.
            if number % 2 and place % 2:
                work.append(_at_once(racer, key, gate))
                continue
            begun = racer.store.upload(key)
            begun.part(1, 0, racer.body)
            uploads.append(begun)
            work.append(_meeting(gate, begun.complete))
        ran = _run(ground, work)
        for begun in uploads:
            begun.abort()
        _one_winner(ground, key, racers, ran, f"round {number}")
    return f"{rounds} keys, {ground.trial.threads} uploads or puts each: one winner each"


def against_delete(ground: Ground) -> Found:
    """Puts at a taken key while it is deleted: at most one wins, and then it stays."""
    for number in range(ground.trial.rounds):
        key = ground.key("delete")
        ground.store.put_if_absent(key, b"before")
        racers = _racers(ground, 32)
        gate = threading.Barrier(len(racers))
        # The first one deletes instead.
        work = [_at_once(racer, key, gate) for racer in racers[1:]]
        delete = _meeting(gate, partial(racers[0].store.delete, key))
        ran = _run(ground, [*work, delete])[:-1]
        _one_winner(ground, key, racers[1:], ran, f"round {number}", none=True)
    return f"{ground.trial.rounds} keys: never two winners, and what won stayed"


def against_overwrite(ground: Ground) -> Found:
    """Puts at a free key while it is written without a condition: that one stays."""
    for number in range(ground.trial.rounds):
        key = ground.key("overwrite")
        racers = _racers(ground, 32)
        gate = threading.Barrier(len(racers))
        work = [_at_once(racer, key, gate) for racer in racers[1:]]
        write = _meeting(gate, partial(racers[0].store.put, key, racers[0].body))
        _run(ground, [*work, write])
        if _content(ground.store, key) != racers[0].body:
            raise Wrong(
                f"round {number}: a put with the condition replaced what one without it had written"
            )
    return f"{ground.trial.rounds} keys: the condition never replaced what was there"


def conflicts(ground: Ground) -> Found:
    """How the store answered those who came at the same moment, beside 200 and 412."""
    if not ground.faults:
        return "none came; each request of the races was decided at once"
    seen = ", ".join(f"{count} × {what}" for what, count in ground.faults.most_common(3))
    return f"{seen}; each was repeated, and the repeats were decided"


def _racers(ground: Ground, size: int) -> list[_Racer]:
    stores = ground.stores
    found = [
        _Racer(stores[number % len(stores)], ground.body(size))
        for number in range(max(2, ground.trial.threads))
    ]
    ground.rng.shuffle(found)
    return found


def _meeting(gate: threading.Barrier, act: Callable[[], bool | None]) -> Callable[[], bool]:
    """`act`, once the others are at the gate too; whether it won."""
    meet = _once(gate)

    def run() -> bool:
        meet()
        return bool(act())

    return run


def _at_once(racer: _Racer, key: str, gate: threading.Barrier) -> Callable[[], bool]:
    return _meeting(gate, partial(racer.store.put_if_absent, key, racer.body))


def _held(racer: _Racer, key: str, gate: threading.Barrier) -> Callable[[], bool]:
    def put() -> bool:
        assert isinstance(racer.store, S3Store)
        return put_held(racer.store, key, racer.body, meet)

    meet = _once(gate)
    return put


def _once(gate: threading.Barrier) -> Callable[[], None]:
    """To meet the others at the gate; whoever comes again, after a failure, runs alone."""
    met = threading.Event()

    def meet() -> None:
        if not met.is_set():
            met.set()
            with suppress(threading.BrokenBarrierError):
                gate.wait(_PATIENCE)

    return meet


def _run(ground: Ground, work: Sequence[Callable[[], bool]]) -> list[Ran]:
    """Run all at once; what fails in passing is repeated, as a writer does."""

    def attempt(once: Callable[[], bool]) -> Ran | Exception:
        uncertain = False
        for pause in range(_ATTEMPTS):
            try:
                return Ran(once(), uncertain)
            except Transient as fault:
                uncertain = True
                ground.faults[" ".join(fault.reason.split()[:2])] += 1
                time.sleep(0.02 * 2**pause)
            except Exception as error:
                # All racers end before the objects are removed.
                return error
        return StoreUnavailableError(f"a request of a race failed {_ATTEMPTS} times")

    with ThreadPoolExecutor(len(work), thread_name_prefix="sparkwal-proof") as pool:
        ended = list(pool.map(attempt, work))
    for each in ended:
        if isinstance(each, Exception):
            raise each
    return [each for each in ended if isinstance(each, Ran)]


def _one_winner(
    ground: Ground, key: str, racers: Sequence[_Racer], ran: Sequence[Ran], where: str,
    *, none: bool = False,
) -> int:  # fmt: skip
    """How many were told how they ended. Raises Wrong unless all say the same of the key."""
    winners = [racer.body for racer, each in zip(racers, ran, strict=True) if each.won]
    where = f"{where}, seed {ground.trial.seed}"
    if len(winners) > 1:
        raise Wrong(
            f"{len(winners)} of {len(racers)} were told that they created one object ({where})"
        )
    contents = {_content(store, key) for store in ground.retrying}
    if len(contents) > 1:
        raise Wrong(f"two endpoints show two contents of one object ({where})")
    content = contents.pop()
    if winners and content != winners[0]:
        raise Wrong(f"one was told that it created the object, and it is not there ({where})")
    if winners:
        return len(racers)
    unsure = {racer.body for racer, each in zip(racers, ran, strict=True) if each.uncertain}
    if content is None and none:
        return len(racers)
    if content not in unsure and not (none and content == b"before"):
        raise Wrong(f"nobody was told that it created the object ({where})")
    return len(racers)


def _content(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except NotFound:
        return None
