"""How an appender with a journal ends: by a signal's handler, with the interpreter, in a fork, at
the limit of its log."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkwal import Appender, Log, verify
from sparkwal.appender import appender
from sparkwal.errors import JournalSyncError, OptionError, SparkWalError
from tests.appender import inside
from tests.appender.away import OutageStore
from tests.appender.faulty_store import stored
from tests.appender.forks import is_refused
from tests.appender.interrupts import interrupted
from tests.appender.test_limits import Limited
from tests.journal.disk import MemoryFolder
from tests.logs import SCHEMA, rows, until

# Signals.

# A handler may run at each instruction of a function that holds a lock, in the appending thread.
PLACES = [
    ("sparkwal/appender/journal_intake", "begin"),
    ("sparkwal/appender/journal_intake", "_ticket"),
    ("sparkwal/journal/journal", "write"),
    ("sparkwal/journal/journal", "sync"),
    ("sparkwal/journal/journal", "_sync_once"),
    ("sparkwal/journal/journal", "_have_synced"),
    ("sparkwal/journal/open_segments", "append"),
    ("sparkwal/journal/disk", "append"),
    ("sparkwal/journal/disk", "sync"),
]
ROTATING = [
    ("sparkwal/journal/journal", "write"),
    ("sparkwal/journal/journal", "_rotate"),
    ("sparkwal/journal/open_segments", "rotate"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder, in memory if possible, so that syncs are cheap."""
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=shared) as path:
        yield Path(path)


# Every instruction takes a minute.
EACH = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])


@EACH
@pytest.mark.parametrize(("where", "function"), PLACES)
def test_a_signals_handler_is_refused_wherever_an_append_is(
    where: str, function: str, step: int, folder: Path
) -> None:
    """The handler comes before every instruction of a function in turn, as a signal does."""
    for skip in range(0, 1000, step):
        faulty = OutageStore()
        wal = faulty.journaled(None, journal=str(folder / str(skip)))
        if not closed_before(faulty, wal, where, function, skip):
            assert skip, "the function never ran"
            return


@EACH
@pytest.mark.parametrize(("where", "function"), ROTATING)
def test_a_signals_handler_is_refused_where_an_append_begins_a_segment(
    where: str, function: str, step: int, folder: Path
) -> None:
    for skip in range(0, 1000, step):
        faulty = OutageStore()
        small = {"journalSegmentBytes": "64kb", "journalMaxBytes": "1mb"}
        wal = faulty.journaled(None, journal=str(folder / str(skip)), **small)
        for _ in range(2):
            wal.append(rows(*[-1] * 3000))
        if not closed_before(faulty, wal, where, function, skip, [-2] * 3000):
            assert skip, "the function never ran"
            return


def closed_before(
    faulty: OutageStore,
    wal: Appender,
    where: str,
    function: str,
    skip: int,
    more: list[int] | None = None,
) -> bool:
    """Append, and close in a handler before instruction `skip` of `function`."""
    values = [2, *(more or [])]
    tickets = [wal.append(rows(1))]
    path, came = wal.options.journal, False

    def close() -> None:
        nonlocal came
        came = True
        with pytest.raises(OptionError, match="set a flag in the handler"):
            wal.close(timeout=20)

    interrupted(lambda: tickets.append(wal.append(rows(*values))), function, skip, close, where)
    wal.close(timeout=20)
    assert [ticket.result(timeout=20) >= 0 for ticket in tickets] == [True, True]
    with faulty.journaled(None, journal=path) as again:
        assert again.last_sequence == tickets[-1].sequence
    assert [value for value in stored(faulty.inner) if value > 0] == [1, 2]
    return came


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Set what a signal's handler does."""
    before = signal.getsignal(signal.SIGUSR1)

    def handle(act: Callable[[], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: act())

    yield handle
    signal.signal(signal.SIGUSR1, before)


def test_a_signals_handler_that_closes_what_appends_as_fast_as_it_can_loses_no_row(
    tmp_path: Path, on_alarm: Callable[[Callable[[], None]], None]
) -> None:
    for delay in (0.0, 0.001, 0.01, 0.05, 0.1):
        faulty = OutageStore()
        path = str(tmp_path / str(delay))
        wal = faulty.journaled(None, journal=path, journalSlots=1000)
        accepted = -1
        on_alarm(lambda wal=wal: wal.close(timeout=20))  # type: ignore[misc]
        timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(OptionError, match="set a flag in the handler|is closed"):
            while True:
                accepted = wal.append(rows(accepted + 1)).sequence
        timer.join()
        wal.close(timeout=20)
        with faulty.journaled(None, journal=path) as again:
            assert again.last_sequence >= accepted
        have = stored(faulty.inner)
        assert have == list(range(len(have))) and len(have) > accepted


@pytest.mark.parametrize(("where", "function"), [("rows", "_convert"), ("values", "column")])
def test_append_raises_the_error_of_a_handler_that_ran_during_conversion(
    where: str, function: str
) -> None:
    faulty = OutageStore()

    def refused() -> None:
        raise OptionError("from a handler")

    with faulty.journaled(MemoryFolder()) as wal:
        for skip in range(1000):
            try:
                if not interrupted(
                    lambda: wal.append(rows(1)),
                    function,
                    skip,
                    refused,
                    f"sparkwal/appender/{where}",
                ):
                    break
            except OptionError as error:
                assert "from a handler" in str(error)
            else:
                pytest.fail(f"what was raised before instruction {skip} is gone")
    assert skip and stored(faulty.inner) == [1]


# The end of the interpreter.

ENDS = """
import sys
import pyarrow as pa
import sparkwal
wal = sparkwal.Appender(sys.argv[1], pa.schema([("v", pa.int64())]), producer_id="p",
                        journal=sys.argv[2])
for value in range(100):
    wal.append([{"v": value}])
"""


@pytest.mark.process
def test_an_appender_that_is_open_when_the_interpreter_ends_sends_what_it_has(
    tmp_path: Path,
) -> None:
    log, journal = str(tmp_path / "log"), str(tmp_path / "journal")
    subprocess.run([sys.executable, "-c", ENDS, log, journal], check=True, timeout=60)
    assert list(Log(log).to_pandas()["v"]) == list(range(100))
    assert verify(log).ok
    with Appender(log, SCHEMA, producer_id="p", journal=journal) as wal:
        assert wal.last_sequence == 99


def test_close_reports_the_entries_that_stay_in_the_journal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store stopped answering, and the appender has not noticed yet."""
    monkeypatch.setattr(appender, "_EXIT_SECONDS", 0.05)
    faulty = OutageStore()
    wal = faulty.journaled(MemoryFolder())
    first = faulty.gap()
    faulty.hold(first)
    wal.append(rows(0))
    inside.end_interpreter(wal)
    assert "1 appends were accepted and are in its journal: TimeoutError" in caplog.text
    faulty.release(first)
    wal.close(timeout=30)


# Forks.


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_gets_an_error_at_once_and_the_parent_continues(tmp_path: Path) -> None:
    faulty = OutageStore()
    path = str(tmp_path / "journal")
    wal = faulty.journaled(None, journal=path)
    faulty.is_away = True
    ticket = wal.append(rows(0))
    assert is_refused(wal, ticket)
    # The child's end has not let the folder go.
    with pytest.raises(OptionError, match="is held by"):
        faulty.journaled(None, journal=path)
    faulty.is_away = False
    assert ticket.result(timeout=30) >= 0
    wal.append(rows(1))
    wal.close(timeout=30)
    assert stored(faulty.inner) == [0, 1]


# The limit of the log.


def test_at_the_hard_limit_it_accepts_and_a_close_leaves_the_rest_in_the_journal() -> None:
    faulty, folder = Limited(), MemoryFolder()
    one = faulty.one()
    wal = faulty.open(hardLimitBytes=str(4 * one), folder=folder, journal="x", journalSlots=1000)
    for value in range(50):
        wal.append(rows(value))
        # Batches that were sent before the limit are still written: these may be all of them.
        until(lambda: inside.takes_nothing(wal) or not wal.unacknowledged)
    assert inside.takes_nothing(wal)
    assert wal.last_sequence == 49 and len(stored(faulty.inner)) < 20
    wal.close(timeout=30)
    left = folder.after_kill()
    faulty.compacted()
    with faulty.open(folder=left, journal="x", journalSlots=1000) as again:
        again.flush(timeout=30)
    assert stored(faulty.inner) == [-1, *range(50)]


def test_at_the_hard_limit_it_continues_after_a_compaction() -> None:
    faulty, folder = Limited(), MemoryFolder()
    one = faulty.one()
    with faulty.open(
        hardLimitBytes=str(8 * one), folder=folder, journal="x", journalSlots=1000
    ) as wal:
        for value in range(30):
            wal.append(rows(value))
        while wal.unacknowledged:
            until(lambda: inside.takes_nothing(wal) or not wal.unacknowledged)
            faulty.compacted()
            if (watch := inside.size_watch(wal)) is not None:
                faulty.clock.since_boot_ms += 60_000
                watch.wake()
        wal.flush(timeout=30)
    assert stored(faulty.inner) == [-1, *range(30)]


def test_a_full_disk_at_the_start_is_reported_and_loses_no_row() -> None:
    faulty, folder = OutageStore(), MemoryFolder()
    wal = faulty.journaled(folder)
    faulty.is_away = True
    for value in range(20):
        wal.append(rows(value))
    left = folder.after_kill()
    wal.close(timeout=30)
    faulty.is_away = False
    left.room = left.used()
    # A disk that is full of what waits is made empty by sending it.
    with faulty.journaled(left) as again:
        again.flush(timeout=30)
    assert stored(faulty.inner) == list(range(20))


def test_an_interrupt_in_a_wait_for_the_log_ends_the_wait(
    on_alarm: Callable[[Callable[[], None]], None],
) -> None:
    """Ctrl-C interrupts a wait for an unreachable store."""
    faulty = OutageStore()
    wal = faulty.journaled(MemoryFolder())
    faulty.is_away = True
    ticket = wal.append(rows(0))

    class Interrupted(BaseException):
        pass

    def interrupt() -> None:
        raise Interrupted

    on_alarm(interrupt)
    for wait in (lambda: ticket.result(), lambda: wal.flush()):
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Interrupted):
            wait()
    wal.close(timeout=30)
    with pytest.raises(SparkWalError):
        ticket.result(timeout=30)


def test_a_failing_sync_in_close_is_raised_once_and_emitted() -> None:
    faulty, folder = OutageStore(), MemoryFolder()
    for _ in range(20):  # either thread may be first
        reported: list[str] = []
        wal = faulty.journaled(folder, journalSync="none")
        wal.subscribe(lambda event, reported=reported: reported.append(event.name))  # type: ignore[misc]
        wal.append(rows(0)).result(timeout=30)
        folder.faults["sync"] = [errno.EIO]
        wal.append(rows(1))
        with pytest.raises(JournalSyncError):
            wal.close(timeout=30)
        wal.close(timeout=30)
        assert reported.count("stopped") == 1 and wal.error is not None
        folder = folder.after_kill()


@pytest.mark.parametrize(
    "fails",
    [
        "sparkwal.appender.journal_backend.write_sender",
        "sparkwal.appender.journal_sender.Session",
        "sparkwal.appender.journal_sender.JournalSender._start",
        "sparkwal.journal.files.keep_mark",
        "sparkwal.journal.files.keep_reserve",
        "sparkwal.journal.opening.Segments",
    ],
)
def test_an_opening_that_fails_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def open_it() -> Appender:
        return Appender(
            str(tmp_path / "wal"),
            SCHEMA,
            producer_id="p",
            journal=str(tmp_path / "j"),
            journalSync="interval",
        )

    def fail(*_: object, **__: object) -> None:
        raise JournalSyncError("the disk failed")

    with open_it() as wal:
        wal.append(rows(0))
    journal = str(tmp_path / "j")
    threads = set(threading.enumerate())
    monkeypatch.setattr(fails, fail)
    with pytest.raises(JournalSyncError, match="the disk failed"):
        open_it()
    links = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    assert [each for each in links if each.startswith(journal)] == []
    until(lambda: not {each for each in threading.enumerate() if each not in threads})
    monkeypatch.undo()
    with open_it() as wal:
        assert wal.append(rows(1)).sequence == 1
