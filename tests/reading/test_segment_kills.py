"""Makers of segments that are killed at any moment, two at once, beside a writer and a reader."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.synchronize import Event

import pytest

from sparkwal import Appender, Log, verify
from sparkwal.format import keys
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import make_segments, segment_of
from sparkwal.reading.segments import listed_blocks
from tests.logs import SCHEMA, rows

pytestmark = [pytest.mark.process, pytest.mark.slow]
SEED = int(os.environ.get("SPARKWAL_SEED", "0"))
ROUNDS = 6
# Each block takes a maker some milliseconds.
BLOCK = 16
COMMITS = 2 * BLOCK


def range_of(path: str, options: dict[str, str]) -> LogRange:
    settings = from_keywords(SourceOptions, path, options)
    log = LogRange(settings, "default", open_log(settings, fail_fast=True))
    log.refresh()
    return log


def make_forever(
    path: str, options: dict[str, str], block: int, begun: Event, *, every: bool
) -> None:
    """A maker that ends when it is killed. It sets `begun` before it makes the first segment."""
    keys.BLOCK = block
    begun.set()
    while True:
        make_segments(range_of(path, options), every=every)


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "BLOCK", BLOCK)


def values_in(path: str, options: dict[str, str]) -> list[int]:
    return Log(path, **options).scan().read_all().column("v").to_pylist()


def segments_of(log: LogRange) -> Iterator[tuple[int, bytes]]:
    """Each segment of a log, by block."""
    for block in listed_blocks(log.log, log.window, 0, log.gap):
        key = keys.segment_key(log.log.prefix, block, log.window)
        yield block, log.log.store.get(key)


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_makers_that_are_killed_leave_whole_segments_or_none(
    seed: int, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    draw = random.Random(seed)
    processes = get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    expected: list[int] = []
    limits = {"maxInFlightRequests": 8, "batchSizeThreshold": 1}
    killed = 0
    for number in range(ROUNDS):
        begun = [processes.Event() for _ in range(2)]
        makers = [
            processes.Process(
                target=make_forever,
                args=(path, options, BLOCK, each),
                kwargs={"every": draw.random() < 0.7},
            )
            for each in begun
        ]
        with Appender(path, SCHEMA, producer_id=f"p{number % 2}", **limits, **options) as wal:
            for value in range(len(expected), len(expected) + COMMITS):
                wal.append(rows(value))
                expected.append(value)
                if value % COMMITS == COMMITS // 3:
                    wal.flush()
                    for maker in makers:
                        maker.start()
        assert all(event.wait(60) for event in begun)
        # Of two new blocks none or one has a segment then.
        least = 2 * number + draw.randint(0, 1)
        while len(dict(segments_of(range_of(path, options)))) < least:
            time.sleep(0.01)
        for maker in makers:
            time.sleep(draw.random() / 10)
            maker.kill()
            maker.join()
            killed += maker.exitcode == -9
            assert values_in(path, options) == expected
    assert killed == 2 * ROUNDS, "a maker failed before it was killed"
    log = range_of(path, options)
    left = dict(segments_of(log))
    # A segment of a maker that was killed is whole, so none is replaced.
    assert len(left) >= 2 * ROUNDS - 2
    made = make_segments(log)
    assert not made.replaced and not made.skipped and made.others == len(left)
    assert values_in(path, options) == expected
    log = range_of(path, options)
    for block, body in segments_of(log):
        assert body == segment_of(log, block)
        assert left.get(block, body) == body
    assert verify(path, **options).ok
