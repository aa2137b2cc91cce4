"""Processes that append with a journal and are killed, stopped and cut off from the store:
every row that they reported as accepted is in the log once and in order."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from sparkwal import Appender, Log, verify
from sparkwal.errors import FencedError
from sparkwal.testing.proxy import Fault, S3Proxy

from .plot import SCHEMA, rows

SEED = int(os.environ.get("SPARKWAL_SEED", "0"))

# Has all modules in memory, and forks a process for each life: it begins in milliseconds.
NURSERY = """
import os, sys, tempfile, time
import pyarrow as pa
import sparkwal
from sparkwal.errors import SparkWalError
from sparkwal.testing.servers import log_options

schema = pa.schema([("v", pa.int64())])

def report(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

def live(path, endpoint, journal, pause, count, *given):
    options = dict(each.split("=") for each in given)
    if endpoint != "-":
        options |= dict(retryBaseDelayMs=1, maxRetryAttempts=2, **log_options(endpoint))
    try:
        wal = sparkwal.Appender(path, schema, producer_id="p", journal=journal, **options)
    except SparkWalError as error:
        report("refused", type(error).__name__, error)
        return
    value = wal.last_sequence
    report("opened", value, len(wal.lost))
    for value in range(value + 1, value + 1 + int(count)):
        try:
            sequence = wal.append([{"v": value}]).sequence
        except SparkWalError as error:
            report("stopped", type(error).__name__, error)
            break
        report("accepted", sequence)
        assert sequence == value
        time.sleep(float(pause))
    try:
        wal.close(20)
        report("closed", wal.unacknowledged)
    except (SparkWalError, TimeoutError) as error:
        report("failed", type(error).__name__, error)

# What is imported at the first append, pandas too, is not imported anew by each life.
with tempfile.TemporaryDirectory() as folder:
    with sparkwal.Appender(folder + "/log", schema, producer_id="p", journal=folder + "/j") as wal:
        wal.append([{"v": 0}]).result()

while line := sys.stdin.readline():
    child = os.fork()
    if child == 0:
        report("pid", os.getpid())
        try:
            live(*line.split())
        except BaseException as error:
            report("broken", type(error).__name__, error)
        os._exit(0)
    # Not before it is asked to: until then no other process gets its number.
    sys.stdin.readline()
    _, status = os.waitpid(child, 0)
    report("dead", status)
"""


class Lives:
    """One life after another, and what they said.

    Attributes:
        accepted: the last sequence of which one said that it was accepted.
        said: how often each thing was said.
    """

    def __init__(self, folder: Path, path: str, endpoint: str = "-") -> None:
        script = folder / "nursery.py"
        script.write_text(NURSERY)
        self._end = [path, endpoint, str(folder / "journal")]
        self.accepted, self.said = -1, {}  # type: ignore[var-annotated]
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._pid, self._rest = -1, b""

    def begin(self, *, pause: float = 0.0, count: int = 10**6, **options: object) -> None:
        """One more life."""
        given = [f"{name}={value}" for name, value in options.items()]
        self._ask(" ".join([*self._end, str(pause), str(count), *given]))
        self.hear("pid")

    def end(self) -> None:
        """Wait for the end of a life."""
        self._ask("wait")
        self.hear("dead")

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def hear(self, *words: str, seconds: float = 60.0) -> str:
        """Listen until one of these is said. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while True:
            word = self._line(end)
            if word in words:
                return word

    def listen(self, seconds: float) -> None:
        """For so long."""
        end = time.monotonic() + seconds
        try:
            while True:
                self._line(end)
        except TimeoutError:
            pass

    def _line(self, end: float) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError(f"the process wrote no line; it wrote {self.said}")
            read = os.read(self._process.stdout.fileno(), 2**16)
            assert read, "the nursery ended"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        word, _, more = line.decode().partition(" ")
        self.said[word] = self.said.get(word, 0) + 1
        if word == "pid":
            self._pid = int(more)
        elif word == "accepted":
            sequence = int(more)
            assert sequence == self.accepted + 1, f"{sequence} after {self.accepted}"
            self.accepted = sequence
        elif word == "opened":
            last, lost = map(int, more.split())
            assert not lost and last >= self.accepted, f"{more} after {self.accepted}"
            self.accepted = last  # it was accepted, and the life ended before it said so
        elif word == "dead" and int(more) == SIGKILL:
            self.said["killed"] = self.said.get("killed", 0) + 1
        elif word in ("refused", "stopped", "failed"):
            self.errors.append(more)
        assert word != "broken", more
        return word

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


def prove(path: str, accepted: int, **options: str) -> None:
    """Each accepted row is in the log once and in order, and the log is sound."""
    report = verify(path, **options)
    assert report.ok, str(report)
    values = list(Log(path, **options).to_pandas()["v"])
    assert values == list(range(accepted + 1))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder, in memory if possible: it survives a kill of the process as a disk does."""
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=shared) as path:
        yield Path(path)


@pytest.fixture
def lives(folder: Path) -> Iterator[Lives]:
    lives = Lives(folder, str(folder / "log"))
    yield lives
    lives.close()


OPTIONS = [
    {},
    {"journalSync": "interval", "journalSyncInterval": "5ms"},
    {"journalSync": "none"},
    {"journalSegmentBytes": "64kb", "journalMaxBytes": "192kb"},
    {"journalSlots": 100, "maxInFlightRequests": 2},
    {"batchSizeThreshold": 1, "maxInFlightRequests": 8},
]


def kill(lives: Lives, rng: random.Random, kills: int) -> None:
    """Lives of all kinds, each killed at a random moment but some, which end by themselves."""
    while lives.said.get("killed", 0) < kills:
        options = rng.choice(OPTIONS) | {"journalSlots": rng.choice([100, 5000])}
        count = rng.choice([10**6, 10**6, rng.randrange(200)])
        lives.begin(pause=rng.choice([0, 0, 0.001]), count=count, **options)
        if rng.random() < 0.8:
            lives.hear("opened", "refused")
        lives.listen(rng.uniform(0, 0.15))
        if rng.random() < 0.15:
            lives.signal(SIGSTOP)
            lives.listen(0.05)
            if rng.random() < 0.5:
                lives.signal(SIGCONT)
                lives.listen(0.05)
        lives.signal(SIGKILL)
        lives.end()
    assert lives.said["accepted"] > 10 * kills, lives.said


def end(lives: Lives) -> None:
    """One more life, in peace, which sends the rest."""
    lives.begin(count=10, journalSlots=5000)
    lives.hear("closed")
    lives.end()


@pytest.mark.proves("send-from-log-end", "accepted-not-torn")
@pytest.mark.process
def test_killed_at_any_moment_it_loses_and_doubles_nothing(lives: Lives, folder: Path) -> None:
    print(f"seed {SEED}")
    kill(lives, random.Random(SEED), 30)
    end(lives)
    print(lives.said)
    prove(str(folder / "log"), lives.accepted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_hundreds_of_times_it_loses_and_doubles_nothing(
    lives: Lives, folder: Path, seed: int
) -> None:
    print(f"seed {SEED + seed}")
    kill(lives, random.Random(SEED + seed), 200)
    end(lives)
    print(lives.said)
    prove(str(folder / "log"), lives.accepted)


@pytest.mark.slow
@pytest.mark.process
def test_stopped_while_another_takes_the_log_it_is_fenced_and_loses_nothing(
    lives: Lives, folder: Path
) -> None:
    path = str(folder / "log")
    lives.begin(pause=0.001, journalSlots=1000)
    lives.hear("opened")
    lives.listen(0.1)
    lives.signal(SIGSTOP)
    with Appender(path, SCHEMA, producer_id="another") as other:
        other.append(rows(-1)).result()
        lives.signal(SIGCONT)
        lives.hear("stopped")
        assert "FencedError" in lives.errors[-1]
        lives.end()
        other.append(rows(-2)).result()
    end(lives)
    report = verify(path)
    assert report.ok, str(report)
    values = list(Log(path).to_pandas()["v"])
    assert [value for value in values if value < 0] == [-1, -2]
    assert [value for value in values if value >= 0] == list(range(lives.accepted + 1))


class Network:
    """A proxy that can simulate an outage: it closes its port and every connection."""

    def __init__(self, upstream: str) -> None:
        self._upstream, self._proxy = upstream, S3Proxy(upstream)
        self._proxy.__enter__()
        self.url = self._proxy.url

    def cut(self) -> None:
        self._proxy.close()

    def mend(self, faults: list[Fault]) -> None:
        port = int(self.url.rpartition(":")[2])
        for _ in range(100):
            try:
                self._proxy = S3Proxy(self._upstream, port=port)
                break
            except OSError:
                time.sleep(0.05)
        self._proxy.faults = faults
        self._proxy.__enter__()


@pytest.fixture
def network(ministack_url: str) -> Iterator[Network]:
    network = Network(ministack_url)
    yield network
    network.cut()


FAULTS = [
    Fault("lost_reply", kind="PUT", key_contains="batches/", probability=0.05),
    Fault("error", kind="PUT", key_contains="batches/", probability=0.05, status=503),
]


def test_killed_while_the_store_comes_and_goes_it_loses_and_doubles_nothing(
    network: Network, s3_path: tuple[str, dict[str, str]], folder: Path
) -> None:
    storm(network, s3_path, folder, SEED, 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_killed_for_long_while_the_store_comes_and_goes_it_loses_and_doubles_nothing(
    network: Network, s3_path: tuple[str, dict[str, str]], folder: Path, seed: int
) -> None:
    storm(network, s3_path, folder, SEED + seed, 60)


def storm(
    network: Network,
    s3_path: tuple[str, dict[str, str]],
    folder: Path,
    seed: int,
    kills: int,
) -> None:
    print(f"seed {seed}")
    path, options = s3_path
    rng = random.Random(seed)
    lives = Lives(folder, path, network.url)
    try:
        for number in range(kills):
            network.cut()
            network.mend(FAULTS)
            # With faults and two retries an opening may be refused: its caller tries it again.
            while True:
                lives.begin(pause=0.001, journalSlots=50_000, maxInFlightRequests=4)
                if lives.hear("opened", "refused") == "opened":
                    break
                lives.end()
            lives.listen(rng.uniform(0.05, 0.3))
            # An outage begins during one run, which keeps accepting, and may end during it.
            network.cut()
            for _ in range(rng.randrange(1, 200)):
                lives.hear("accepted")
            if number % 3:
                network.mend(FAULTS)
                lives.listen(rng.uniform(0.0, 1.0))
            lives.signal(SIGKILL)
            lives.end()
        network.cut()
        network.mend([])
        end(lives)
        print(lives.said)
    finally:
        lives.close()
    prove(path, lives.accepted, **options)


def test_an_outage_of_seconds_delays_no_append(
    network: Network, s3_path: tuple[str, dict[str, str]], folder: Path
) -> None:
    """One process, no kill: thousands of appends in an outage, then all are in the log."""
    path, options = s3_path
    local = {**options, "endpoint": network.url, "retryBaseDelayMs": 1, "maxRetryAttempts": 2}
    with Appender(path, SCHEMA, producer_id="p", journal=str(folder / "journal"), **local) as wal:
        wal.append(rows(0)).result(timeout=30)
        network.cut()
        ends, count = time.monotonic() + 3.0, 0
        done = threading.Semaphore(0)
        while time.monotonic() < ends:
            count += 1
            ticket = wal.append(rows(count))
            if count % 100 == 0:
                ticket.when_done(done.release)
        assert wal.unacknowledged >= count - 1 and wal.error is None
        network.mend([])
        wal.flush(timeout=60)
        for _ in range(count // 100):
            assert done.acquire(timeout=30)
    print(f"{count} appends")
    prove(path, count, **options)


@pytest.mark.process
def test_a_journal_of_many_megabytes_is_not_loaded_when_it_is_opened(
    tmp_path: Path,
) -> None:
    """As buffers that were read whole at the start: memory is that of one block."""
    path, folder = str(tmp_path / "log"), str(tmp_path / "journal")
    with Appender(path, SCHEMA, producer_id="p"):
        pass
    script = """
import resource, sys
import pyarrow as pa
import sparkwal
from sparkwal.errors import FencedError
path, folder, what = sys.argv[1:]
schema = pa.schema([("v", pa.int64())])
wal = sparkwal.Appender(path, schema, producer_id="p", journal=folder, journalSync="none",
                        journalMaxBytes="600mb")
if what == "fill":
    block = pa.RecordBatch.from_arrays([pa.array(range(200_000), pa.int64())], schema=schema)
    wal._backend.sender._wake.set = lambda: None  # nothing is sent
    wal._backend.journal.on_accepted = lambda: None
    for _ in range(120):
        wal.append(block)
else:
    print(wal.last_sequence, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
sys.stdout.flush()
import os
os._exit(0)
"""
    megabytes = []
    for what in ("empty", "fill", "full"):
        done = subprocess.run(
            [sys.executable, "-c", script, path, folder, what],
            check=True,
            timeout=120,
            capture_output=True,
            text=True,
        )
        if what != "fill":
            last, size = map(int, done.stdout.split())
            megabytes.append(size)
    assert last >= 100
    assert sum(x.stat().st_size for x in (tmp_path / "journal").iterdir()) > 150 * 2**20
    print(f"{megabytes} MB")
    # Blocks of the scan, and what the session takes to send at once.
    assert megabytes[1] < megabytes[0] + 150


def test_a_fenced_appender_reports_it_and_the_next_one_sends_its_rows(tmp_path: Path) -> None:
    path, folder = str(tmp_path / "log"), str(tmp_path / "journal")
    wal = Appender(path, SCHEMA, producer_id="p", journal=folder)
    with Appender(path, SCHEMA, producer_id="another"):
        ticket = wal.append(rows(0))
        with pytest.raises(FencedError, match="in the log or in the journal"):
            ticket.result(timeout=30)
        wal.close()
    with Appender(path, SCHEMA, producer_id="p", journal=folder) as wal:
        assert wal.last_sequence == 0
        wal.append(rows(1))
    prove(path, 1)
