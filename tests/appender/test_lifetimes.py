"""How an appender ends: rejections, callbacks, signals, forks, an interpreter that is done."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sparkwal import Log
from sparkwal.appender import appender
from sparkwal.appender.appender import Appender
from sparkwal.appender.intake import Intake
from sparkwal.errors import OptionError, SparkWalError
from sparkwal.protocol.pipeline import Pipeline
from tests.appender import inside
from tests.appender.faulty_store import FaultyStore, commits, stored
from tests.appender.forks import is_refused
from tests.appender.interrupts import interrupted
from tests.logs import rows, until


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore()


def held_back(faulty: FaultyStore, **options: Any) -> tuple[Appender, int]:
    """An appender whose first record is under way, and its position."""
    given = {"maxInFlightRequests": 1, "batchSizeThreshold": "1mb", **options}
    wal = faulty.appender(**given)
    first = faulty.gap()
    faulty.hold(first)
    wal.append(rows(0))
    until(lambda: first in faulty.arrived)
    return wal, first


# Rejections.


@pytest.mark.parametrize("end", ["flush", "close"])
def test_flush_and_close_raise_rejections_that_no_ticket_raised(
    faulty: FaultyStore, end: str
) -> None:
    wal = faulty.appender()
    wal.append(rows(0))
    wal.append([{"v": "x"}])
    wal.append(rows(1))
    with pytest.raises(OptionError, match=r"1 append was rejected.*sequence 1.*column 'v'"):
        getattr(wal, end)()
    # Once: then its user knows.
    wal.flush()
    wal.close()
    assert stored(faulty.inner) == [0, 1]


def test_a_rejection_that_its_ticket_raised_is_not_raised_again(faulty: FaultyStore) -> None:
    with faulty.appender() as wal:
        reported, unreported = (
            wal.append([{"v": "x"}]),
            [wal.append([{"v": "y"}]) for _ in range(1500)],
        )
        with pytest.raises(OptionError):
            reported.result()
        with pytest.raises(
            OptionError, match="1500 appends were rejected.*sequence 1, 2, 3, 4, 5, …"
        ):
            wal.flush()
        assert unreported[-1].done()


def test_last_sequence_passes_a_rejection_only_with_later_rows_and_never_without_a_word(
    faulty: FaultyStore,
) -> None:
    wal = faulty.appender()
    wal.append(rows(0)).result()
    wal.append([{"v": "x"}])
    with pytest.raises(OptionError):
        wal.flush()
    assert wal.last_sequence == 0
    wal.append(rows(1)).result()
    assert wal.last_sequence == 2
    wal.close()
    with faulty.appender() as again:
        assert again.last_sequence == 2
    assert [commit[2:] for commit in commits(faulty.inner)] == [(0, 1), (2, 1)]


# Callbacks.


def within(seconds: float, do: Callable[[], object]) -> None:
    """Fail instead of hanging."""
    done = threading.Event()
    threading.Thread(target=lambda: (do(), done.set()), daemon=True).start()
    assert done.wait(seconds), "it hangs"


def exits() -> None:
    sys.exit(3)


@pytest.mark.parametrize("act", ["append", "flush", "close", "exit", "result"])
def test_a_callback_may_append_flush_close_or_exit(faulty: FaultyStore, act: str) -> None:
    wal = faulty.appender()
    called = threading.Event()
    acts: dict[str, Callable[[], object]] = {
        "append": lambda: wal.append(rows(1)).result(),
        "flush": wal.flush,
        "close": wal.close,
        "exit": exits,
        "result": lambda: later[0].result(),
    }

    def back() -> None:
        called.set()
        acts[act]()

    first = faulty.gap()
    faulty.hold(first)
    ticket = wal.append(rows(0))
    ticket.when_done(back)
    later = [wal.append(rows(2))]
    faulty.release(first)
    within(30, later[0].result)
    assert called.wait(30)
    within(30, wal.close)
    assert 2 in stored(faulty.inner)


def test_callbacks_come_one_after_another_in_the_order_of_the_appends(faulty: FaultyStore) -> None:
    called: list[int] = []
    with faulty.appender() as wal:
        tickets = [wal.append(rows(i)) for i in range(200)]
        for number, ticket in enumerate(tickets):
            ticket.when_done(lambda number=number: called.append(number))  # type: ignore[misc]
    assert called == list(range(200))


def test_callbacks_of_one_batch_come_in_the_order_of_the_appends_too(faulty: FaultyStore) -> None:
    called: list[int] = []
    first = faulty.gap()
    with faulty.appender(batchSizeThreshold=2**20) as wal:
        faulty.hold(first)
        tickets = [wal.append(rows(number)) for number in range(4)]
        for number in (2, 3, 0, 1):
            tickets[number].when_done(partial(called.append, number))
        faulty.release(first)
    assert called == [0, 1, 2, 3]


def test_a_callback_of_an_early_failure_waits_for_earlier_batches(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch in flight may still become durable; a batch that was not sent never will."""
    called: list[int] = []
    wal, first = faulty.appender(maxInFlightRequests=2), faulty.gap()
    faulty.hold(first)
    sent = wal.append(rows(0))
    until(lambda: first in faulty.arrived)
    monkeypatch.setattr(Pipeline, "send", lambda *_: bytes(-1))
    failed = wal.append(rows(1))
    sent.when_done(partial(called.append, 0))
    failed.when_done(partial(called.append, 1))
    until(failed.done)
    faulty.release(first)
    with pytest.raises(SparkWalError):
        wal.close()
    assert called == [0, 1]


def test_a_callback_that_is_asked_for_after_the_end_comes_too(faulty: FaultyStore) -> None:
    with faulty.appender() as wal:
        ticket = wal.append(rows(0))
    called: list[int] = []
    ticket.when_done(lambda: called.append(1))
    assert called == [1]


# Closing.


def test_closing_waits_for_its_timeout(faulty: FaultyStore) -> None:
    wal, first = held_back(faulty)
    ticket = wal.append(rows(1))
    with pytest.raises(TimeoutError, match="call close again"):
        wal.close(timeout=0)
    with pytest.raises(OptionError, match="is closed"):
        wal.append(rows(2))
    faulty.release(first)
    wal.close(timeout=60)
    assert ticket.done() and stored(faulty.inner) == [0, 1]


# Signals.


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Set what a signal's handler does."""
    before = signal.getsignal(signal.SIGUSR1)

    def handle(act: Callable[[], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: act())

    yield handle
    signal.signal(signal.SIGUSR1, before)


# A handler may run at each instruction of a function that holds the lock, in the main thread.
PLACES = ["add", "add_to_open", "close", "has_room", "newest", "next_sequence"]


@pytest.mark.parametrize("function", PLACES)
def test_a_signals_handler_is_refused_wherever_an_append_is(function: str) -> None:
    """The handler comes before every instruction of a function in turn, as a signal does."""
    for skip in range(1000):
        faulty = FaultyStore()
        if not _closed_before(faulty, faulty.appender(), function, skip):
            assert skip, "the function never ran"
            return


@pytest.mark.parametrize("function", ["append", "add_to_open", "__init__"])
def test_a_signals_handler_is_refused_wherever_an_append_to_the_open_batch_is(
    function: str,
) -> None:
    for skip in range(1000):
        faulty = FaultyStore()
        wal, first = held_back(faulty)
        if not _closed_before(faulty, wal, function, skip, first):
            assert skip, "the function never ran"
            return


def _closed_before(
    faulty: FaultyStore, wal: Appender, function: str, skip: int, *held: int
) -> bool:
    """Append, and close in a handler before instruction `skip` of `function`.

    Returns whether the handler ran. Delayed requests continue before it closes.
    """
    tickets = [wal.append(rows(1))]
    came = closed = False

    def close() -> None:
        nonlocal came, closed
        came = True
        faulty.release(*held)
        try:
            wal.close(timeout=30)
            closed = True
        except OptionError as error:
            assert "set a flag in the handler" in str(error)

    try:
        interrupted(lambda: tickets.append(wal.append(rows(2))), function, skip, close)
    except OptionError as error:
        assert closed and "is closed" in str(error)
    # Before and after it holds the lock an append is not interrupted by a close.
    assert not closed or function == "append"
    faulty.release(*held)
    wal.close(timeout=30)
    assert [ticket.result(timeout=30) >= 0 for ticket in tickets] == [True] * len(tickets)
    assert [value for value in stored(faulty.inner) if value] == [1, 2][: len(tickets)]
    return came


def test_a_handler_that_comes_before_a_call_may_close(faulty: FaultyStore) -> None:
    wal = faulty.appender()
    with pytest.raises(OptionError, match="this appender is closed"):
        interrupted(lambda: wal.append(rows(0)), "accept", 0, wal.close)
    assert stored(faulty.inner) == []


class Interrupted(BaseException):
    """Raised by a signal's handler, as KeyboardInterrupt is."""


@pytest.mark.parametrize(
    ("function", "size", "ahead"),
    [
        *product(["add", "next_sequence", "newest"], ["1", "1mb"], [False]),
        # Into the open batch.
        *product(["add_to_open", "__init__"], ["1mb"], [True]),
    ],
)
def test_a_handler_that_raises_in_an_append_shifts_no_verdict(
    function: str, size: str, ahead: bool
) -> None:
    """It raises before every instruction of a function in turn."""
    for skip in range(1000):
        faulty = FaultyStore()
        wal, first = held_back(faulty, **{"batchSizeThreshold": size, "batchTimeoutMs": "100ms"})
        begun = [0]
        if ahead:
            wal.append(rows(9))
            begun.append(9)
        came = _interrupted_before(lambda wal=wal: wal.append(rows(1)), function, skip)  # type: ignore[misc]
        bad, good = wal.append([{"v": "x"}]), wal.append(rows(3))
        faulty.release(first)
        with pytest.raises(OptionError, match="column 'v'"):
            bad.result(timeout=30)
        assert good.result(timeout=30) > first
        wal.flush(timeout=30)
        assert good.sequence == bad.sequence + 1 == wal.last_sequence
        assert (wal.unacknowledged, wal.buffered_bytes) == (0, 0)
        # The interrupted append is in the log with its own sequence, or not at all.
        assert stored(faulty.inner) in ([*begun, 3], [*begun, 1, 3])
        assert good.sequence == len(stored(faulty.inner))
        wal.close(timeout=30)
        if not came:
            assert skip, "the function never ran"
            return


def _interrupted_before(act: Callable[[], object], function: str, skip: int) -> bool:
    """Act; a handler raises before instruction `skip` of `function`. Whether it came."""

    def handler() -> None:
        raise Interrupted

    try:
        return interrupted(act, function, skip, handler)
    except Interrupted:
        return True


def test_a_handler_may_close_while_a_ticket_is_awaited(
    faulty: FaultyStore, on_alarm: Callable[[Callable[[], None]], None]
) -> None:
    wal, first = held_back(faulty)
    ticket = wal.append(rows(1))

    def release() -> None:
        faulty.release(first)
        wal.close(timeout=30)

    on_alarm(release)
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    assert ticket.result(timeout=30) == first + 1
    assert stored(faulty.inner) == [0, 1]


def test_a_handler_that_interrupts_a_close_is_refused_and_a_later_close_ends_it(
    faulty: FaultyStore, on_alarm: Callable[[Callable[[], None]], None]
) -> None:
    wal, first = held_back(faulty)
    on_alarm(wal.close)
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    with pytest.raises(OptionError, match="set a flag in the handler"):
        wal.close()
    faulty.release(first)
    wal.close(timeout=30)
    assert stored(faulty.inner) == [0]


def test_a_handler_may_use_nothing_of_an_appender_whose_append_it_interrupts(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty.appender() as wal:
        real, said = Intake.add, []

        def add(self: Intake, *args: Any) -> Any:
            monkeypatch.setattr(Intake, "add", real)
            for act in (lambda: wal.append(rows(9)), wal.flush, wal.close):
                with pytest.raises(OptionError, match="set a flag in the handler") as caught:
                    act()
                said.append(caught)
            return real(self, *args)

        monkeypatch.setattr(Intake, "add", add)
        wal.append(rows(0))
        assert len(said) == 3
    assert stored(faulty.inner) == [0]


# Forks.


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_gets_an_error_at_once_and_the_parent_continues(faulty: FaultyStore) -> None:
    wal, first = held_back(faulty)
    ticket = wal.append(rows(1))
    assert is_refused(wal, ticket)
    faulty.release(first)
    assert ticket.result(timeout=60) == first + 1
    wal.close()
    assert stored(faulty.inner) == [0, 1]


# The end of the interpreter.

LEFT_OPEN = """
import sys
import pyarrow as pa
import sparkwal

wal = sparkwal.Appender(sys.argv[1], pa.schema([("v", pa.int64())]), producer_id="p",
                        batchTimeoutMs="1min")
for value in range(1000):
    wal.append([{"v": value}])
"""

IN_A_CHILD = """
import multiprocessing, sys
import pyarrow as pa
import sparkwal

def work(path):
    global wal
    wal = sparkwal.Appender(path, pa.schema([("v", pa.int64())]), producer_id="p")
    for value in range(1000):
        wal.append([{"v": value}])

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=(sys.argv[1],))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.process
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise KeyError('mine')"])
def test_rows_of_an_appender_that_is_left_open_are_durable_when_the_interpreter_ends(
    tmp_path: Path, end: str
) -> None:
    path = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN + end, path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == ("raise" in end)
    assert ("KeyError" in done.stderr) == ("raise" in end)
    assert list(Log(str(path)).to_pandas()["v"]) == list(range(1000))


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_rows_of_an_appender_left_open_are_durable_when_a_multiprocessing_child_ends(
    tmp_path: Path, method: str
) -> None:
    path, script = tmp_path / "log", tmp_path / "script.py"
    script.write_text(IN_A_CHILD)
    done = subprocess.run(
        [sys.executable, script, path, method], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert list(Log(str(path)).to_pandas()["v"]) == list(range(1000))


def test_rows_that_cannot_be_written_at_the_interpreters_end_are_logged_with_their_number(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal, first = held_back(faulty)
    wal.append(rows(1))
    monkeypatch.setattr(appender, "_EXIT_SECONDS", 0.0)
    with caplog.at_level(logging.ERROR, "sparkwal"):
        inside.end_interpreter(wal)
    assert "2 appends were accepted and are not known to be durable" in caplog.text
    faulty.release(first)
    wal.close()


LATE = """
import asyncio, atexit, sys, threading, time
import pyarrow as pa
import sparkwal

path, when = sys.argv[1:]
schema = pa.schema([("v", pa.int64())])

async def append() -> None:
    journal = path + "-journal"
    async with sparkwal.AsyncAppender(path, schema, producer_id="q", journal=journal) as wal:
        await wal.append([{"v": 1}])

def work():
    with sparkwal.Appender(path, schema, producer_id="p") as wal:
        wal.append([{"v": 0}]).result()
    asyncio.run(append())
    log = sparkwal.Log(path)
    assert sparkwal.verify(path).ok
    assert log.sql("SELECT count(*) AS n FROM log").read_all().to_pylist() == [{"n": 2}]
    print(list(log.to_pandas()["v"]))

if when == "thread":
    threading.Thread(target=lambda: (threading.main_thread().join(), work())).start()
else:
    atexit.register(work)
"""


@pytest.mark.process
@pytest.mark.parametrize("when", ["thread", "atexit"])
def test_logs_and_appenders_open_after_the_main_thread_has_ended(tmp_path: Path, when: str) -> None:
    if when == "atexit" and sys.version_info >= (3, 12):
        pytest.skip("no thread can start there")
    done = subprocess.run(
        [sys.executable, "-c", LATE, tmp_path / "log", when],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "[0, 1]\n", done.stderr


def test_an_appender_that_can_start_no_thread_is_refused_in_one_sentence(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `atexit` from Python 3.12 on."""

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(OptionError, match="no thread can start"):
            faulty.appender()
    assert faulty.gap() == 0


def test_without_another_thread_the_last_rows_are_sent_all_the_same(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the interpreter ends, from Python 3.12 on."""
    wal = faulty.appender()

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    for value in range(5):
        wal.append(rows(value))
    wal.close()
    assert stored(faulty.inner) == [0, 1, 2, 3, 4]
