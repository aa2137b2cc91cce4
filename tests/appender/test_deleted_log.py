"""A log is deleted, or deleted and recreated, under its live appender: the error says what of the
acknowledged lies in the hole, since when, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparkwal import Appender
from sparkwal.errors import InvalidLogError
from sparkwal.format.lifecycle import FLOOR
from sparkwal.protocol import chain, recovery
from sparkwal.protocol.recovery import find_head
from sparkwal.store.log_store import LogStore

from ..protocol.query import StoppedClock
from .plot import PREFIX, SCHEMA, Plot, rows

TTL_MS = 60_000


@pytest.fixture
def plot() -> Plot:
    return Plot()


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


def opened(plot: Plot, clock: StoppedClock) -> Appender:
    return Appender(
        LogStore(plot, PREFIX), SCHEMA, producer_id="p", clock=clock, planTtl="1min",
        maxInFlightRequests=4, batchSizeThreshold=1,
    )  # fmt: skip


def passes(clock: StoppedClock) -> None:
    clock.since_boot_ms += TTL_MS
    clock.wall_ms += TTL_MS


def delete_all(plot: Plot) -> None:
    for key in list(plot.inner.objects):
        plot.inner.delete(key)


def make_again(plot: Plot) -> None:
    delete_all(plot)
    with plot.appender("another") as other:
        other.append(rows(0)).result()


@pytest.mark.parametrize("happens", [delete_all, make_again])
def test_the_error_names_what_was_acknowledged_into_the_hole(
    plot: Plot, clock: StoppedClock, happens: Callable[[Plot], None]
) -> None:
    wal = opened(plot, clock)
    for sequence in range(3):
        wal.append(rows(sequence)).result()
    passes(clock)
    wal.append(rows(3)).result()  # at position 4, and the log was whole: it is 2023-11-14T22:14:20
    happens(plot)
    for sequence in (4, 5):
        assert wal.append(rows(sequence)).result() == 1 + sequence
    passes(clock)
    with pytest.raises(InvalidLogError) as caught:
        wal.append(rows(6)).result()
    said = str(caught.value)
    assert "deleted or recreated while this writer led it: there is no record at" in said
    assert "last seen whole at 2023-11-14T22:14:20+00:00" in said
    # The look was before sequence 3 was put.
    assert "sequences of p after 2, at positions up to 6" in said
    assert "send again what comes after sequence 2" in said
    assert "Nothing was written" not in said and "checkpoint" not in said


def test_a_log_that_was_never_looked_at_again_counts_from_the_opening(
    plot: Plot, clock: StoppedClock
) -> None:
    with plot.appender() as first:
        for sequence in range(3):
            first.append(rows(sequence)).result()
    wal = opened(plot, clock)
    delete_all(plot)
    wal.append(rows(3)).result()
    passes(clock)
    with pytest.raises(InvalidLogError, match="sequences of p after 2, .* after sequence 2"):
        wal.append(rows(4)).result()


def filled_after_deletion(plot: Plot, clock: StoppedClock, patch: pytest.MonkeyPatch) -> Appender:
    """More was put since than one LIST shows."""
    patch.setattr(recovery, "LIST_LIMIT", 5)
    wal = opened(plot, clock)
    wal.append(rows(0)).result()
    for key in [key for key in plot.inner.objects if "/batches/" in key]:
        plot.inner.delete(key)
    for sequence in range(1, 10):
        wal.append(rows(sequence)).result()
    passes(clock)
    return wal


def test_more_than_one_list_shows_was_put_since_the_log_was_deleted(
    plot: Plot, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = filled_after_deletion(plot, clock, monkeypatch)
    with pytest.raises(InvalidLogError, match="sequences of p after -1, at positions up to 10"):
        wal.append(rows(10)).result()


def test_a_beginning_that_was_collected_is_not_taken_for_deleted(
    plot: Plot, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = filled_after_deletion(plot, clock, monkeypatch)
    log = LogStore(plot.inner, PREFIX)
    live = find_head(log).live
    assert live is not None
    state = chain.beginning(live.header.log_id, "default", 0)
    assert chain.put_next(log, state, FLOOR, clock, "host", floor=2, cut=2, to=2) is not None
    with wal:
        assert wal.append(rows(10)).result() == 11
