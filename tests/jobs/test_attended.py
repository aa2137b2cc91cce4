"""Work in a thread, and signals that come meanwhile."""

from __future__ import annotations

import signal
import threading

import pytest
from click.exceptions import Exit
from rich.console import Console

from support.follow import Meter, Signals, attended


@pytest.fixture
def meter() -> Meter:
    return Meter(Console(quiet=True), "test")


def test_work_returns_or_raises(meter: Meter) -> None:
    assert attended(lambda: 7, meter, Signals(), None, 60, lambda: "") == 7

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        attended(fail, meter, Signals(), None, 60, lambda: "")


def test_after_one_signal_the_work_ends(meter: Meter) -> None:
    with Signals() as signals:
        may_end = threading.Event()

        def note() -> str:
            if signals.received is None:
                signal.raise_signal(signal.SIGTERM)
            else:
                may_end.set()
            return ""

        def work() -> str:
            assert may_end.wait(60)
            return "done"

        assert attended(work, meter, signals, None, 60, note) == "done"
        assert signals.received == signal.SIGTERM


@pytest.mark.parametrize(("times", "seconds"), [(2, 60.0), (1, 0.0)])
def test_a_second_signal_or_the_end_of_the_time_ends_it_at_once(
    meter: Meter, times: int, seconds: float
) -> None:
    with Signals() as signals:
        never = threading.Event()

        def note() -> str:
            if signals.times < times:
                signal.raise_signal(signal.SIGTERM)
            return ""

        try:
            with pytest.raises(Exit) as stopped:
                attended(lambda: never.wait(60), meter, signals, None, seconds, note)
        finally:
            never.set()
        assert stopped.value.exit_code == 143
