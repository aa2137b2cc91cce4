"""Two processes append to one log over HTTP: a race that goes back and forth, and a leader that
sleeps while it is fenced. Every acknowledged append is in the log once and in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sparkwal import Log, verify
from sparkwal.format.header import CommitHeader
from sparkwal.testing.proxy import Fault, S3Proxy

SEED = int(os.environ.get("SPARKWAL_SEED", "0"))

CHILD = Path(__file__).with_name("racing_writer.py")


class Writer:
    """A process that appends, and what it has reported.

    Attributes:
        acknowledged: (sequence, position) in the order in which it learned.
    """

    def __init__(self, script: Path, path: str, endpoint: str, name: str, again: str) -> None:
        self.name = name
        self.opened = 0
        self.fenced = 0
        self.acknowledged: list[tuple[int, int]] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            [sys.executable, script, path, endpoint, name, again, f"{SEED}-{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                match line.split():
                    case ["durable", sequence, position]:
                        self.acknowledged.append((int(sequence), int(position)))
                    case ["opened"]:
                        self.opened += 1
                    case ["fenced"]:
                        self.fenced += 1
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it has reported what makes `holds` true."""
        with self._changed:
            self._changed.wait_for(lambda: holds() or self._ended)
        assert holds(), f"{self.name} ended"

    def appended(self, count: int) -> None:
        """Wait until so many more of its appends are durable."""
        wanted = len(self.acknowledged) + count
        self.until(lambda: len(self.acknowledged) >= wanted)

    def end(self) -> int:
        """Let it finish; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._listener.join()
        return self.process.wait()


Start = Callable[[str, str], Writer]


@pytest.fixture
def start(
    tmp_path: Path, s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy
) -> Iterator[Start]:
    """Starts writers of one log; those that are still there in the end are killed."""
    print(f"seed {SEED}")
    writers: list[Writer] = []

    def started(name: str, again: str) -> Writer:
        writers.append(Writer(CHILD, s3_path[0], s3_proxy.url, name, again))
        return writers[-1]

    yield started
    for writer in writers:
        writer.process.kill()
        writer.process.wait()


def check_in_log_once(path: str, options: dict[str, str], *writers: Writer) -> None:
    """Each acknowledged append is at its position, once, and nothing is out of order."""
    report = verify(path, **options)
    assert report.ok, str(report)
    log = Log(path, **options)
    rows = log.to_pandas()
    commits = [record for record in log.records() if isinstance(record, CommitHeader)]
    for writer in writers:
        assert list(rows["v"][rows["producer"] == writer.name]) == list(
            range(int((rows["producer"] == writer.name).sum()))
        )
        own = [record for record in commits if record.query_id == writer.name]
        last = [record.batch_id for record in own]
        stands = [
            (sequence, own[bisect_left(last, sequence)].position)
            for sequence, _ in writer.acknowledged
        ]
        assert writer.acknowledged == stands == sorted(set(stands))


def _was_fenced_and_went_on(writer: Writer) -> bool:
    return writer.fenced >= 2 and writer.opened > 2 and len(writer.acknowledged) >= 60


@pytest.mark.proves("seal-the-zone", "refused-seal-fences")
def test_two_processes_that_take_one_log_from_each_other_lose_and_double_nothing(
    start: Start, s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    s3_proxy.faults = [
        Fault("lost_reply", kind="PUT", key_contains="batches/", probability=0.05),
        Fault("error", kind="PUT", key_contains="batches/", probability=0.05, status=503),
        Fault("delay", kind="PUT", key_contains="batches/", probability=0.2, seconds=0.03),
    ]
    writers = [start("one", "again"), start("two", "again")]
    for writer in writers:
        writer.until(partial(_was_fenced_and_went_on, writer))
    # A writer that is fenced while the other ends has nothing under way.
    assert [writer.end() for writer in writers] == [0, 0]
    path, options = s3_path
    check_in_log_once(path, options, *writers)


@pytest.mark.proves("refused-read-back", "never-skip-slot")
def test_a_leader_that_sleeps_through_a_takeover_is_fenced_when_it_wakes(
    start: Start, s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    s3_proxy.faults = [Fault("delay", kind="PUT", key_contains="batches/", seconds=0.02)]
    sleeper = start("sleeper", "once")
    sleeper.appended(50)
    # With up to four requests under way: the store may have carried out any of them.
    sleeper.process.send_signal(signal.SIGSTOP)
    successor = start("successor", "once")
    successor.appended(50)
    sleeper.process.send_signal(signal.SIGCONT)
    assert sleeper.process.wait() == 0
    sleeper.until(lambda: sleeper.fenced == 1)
    successor.appended(50)
    assert successor.end() == 0
    assert (sleeper.opened, successor.opened, successor.fenced) == (1, 1, 0)
    check_in_log_once(*s3_path, sleeper, successor)
