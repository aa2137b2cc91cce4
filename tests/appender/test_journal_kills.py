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
from tests.logs import SCHEMA, rows

SEED = int(os.environ.get("SPARKWAL_SEED", "0"))

WORKER = Path(__file__).with_name("journal_worker.py")


class AppenderRuns:
    """Runs of an appender with a journal, one after another, and their reports.

    Attributes:
        accepted: the last sequence that a run reported as accepted.
        reports: the number of reports of each kind.
    """

    def __init__(self, folder: Path, path: str, endpoint: str = "-") -> None:
        self._end = [path, endpoint, str(folder / "journal")]
        self.accepted, self.reports = -1, {}  # type: ignore[var-annotated]
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._pid, self._rest = -1, b""

    def begin(self, *, pause: float = 0.0, count: int = 10**6, **options: object) -> None:
        """Begin another run."""
        given = [f"{name}={value}" for name, value in options.items()]
        self._ask(" ".join([*self._end, str(pause), str(count), *given]))
        self.wait_for("pid")

    def end(self) -> None:
        """Wait for the end of the run."""
        self._ask("wait")
        self.wait_for("dead")

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def wait_for(self, *words: str, seconds: float = 60.0) -> str:
        """Wait for one of these reports. Raises TimeoutError."""
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
                raise TimeoutError(f"the process wrote no line; it wrote {self.reports}")
            read = os.read(self._process.stdout.fileno(), 2**16)
            assert read, "the nursery ended"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        word, _, more = line.decode().partition(" ")
        self.reports[word] = self.reports.get(word, 0) + 1
        if word == "pid":
            self._pid = int(more)
        elif word == "accepted":
            sequence = int(more)
            assert sequence == self.accepted + 1, f"{sequence} after {self.accepted}"
            self.accepted = sequence
        elif word == "opened":
            last, lost = map(int, more.split())
            assert not lost and last >= self.accepted, f"{more} after {self.accepted}"
            self.accepted = last  # it was accepted, and the run ended before its report
        elif word == "dead" and int(more) == SIGKILL:
            self.reports["killed"] = self.reports.get("killed", 0) + 1
        elif word in ("refused", "stopped", "failed"):
            self.errors.append(more)
        assert word != "broken", more
        return word

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


def check_in_log_once(path: str, accepted: int, **options: str) -> None:
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
def runs(folder: Path) -> Iterator[AppenderRuns]:
    runs = AppenderRuns(folder, str(folder / "log"))
    yield runs
    runs.close()


OPTIONS = [
    {},
    {"journalSync": "interval", "journalSyncInterval": "5ms"},
    {"journalSync": "none"},
    {"journalSegmentBytes": "64kb", "journalMaxBytes": "192kb"},
    {"journalSlots": 100, "maxInFlightRequests": 2},
    {"batchSizeThreshold": 1, "maxInFlightRequests": 8},
]


def kill(runs: AppenderRuns, rng: random.Random, kills: int) -> None:
    """Runs of all kinds: most are killed at a random moment, some end by themselves."""
    while runs.reports.get("killed", 0) < kills:
        options = rng.choice(OPTIONS) | {"journalSlots": rng.choice([100, 5000])}
        count = rng.choice([10**6, 10**6, rng.randrange(200)])
        runs.begin(pause=rng.choice([0, 0, 0.001]), count=count, **options)
        if rng.random() < 0.8:
            runs.wait_for("opened", "refused")
        runs.listen(rng.uniform(0, 0.15))
        if rng.random() < 0.15:
            runs.signal(SIGSTOP)
            runs.listen(0.05)
            if rng.random() < 0.5:
                runs.signal(SIGCONT)
                runs.listen(0.05)
        runs.signal(SIGKILL)
        runs.end()
    assert runs.reports["accepted"] > 10 * kills, runs.reports


def end(runs: AppenderRuns) -> None:
    """One more life, in peace, which sends the rest."""
    runs.begin(count=10, journalSlots=5000)
    runs.wait_for("closed")
    runs.end()


@pytest.mark.proves("send-from-log-end", "accepted-not-torn")
@pytest.mark.process
def test_killed_at_any_moment_it_loses_and_doubles_nothing(
    runs: AppenderRuns, folder: Path
) -> None:
    print(f"seed {SEED}")
    kill(runs, random.Random(SEED), 30)
    end(runs)
    print(runs.reports)
    check_in_log_once(str(folder / "log"), runs.accepted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_hundreds_of_times_it_loses_and_doubles_nothing(
    runs: AppenderRuns, folder: Path, seed: int
) -> None:
    print(f"seed {SEED + seed}")
    kill(runs, random.Random(SEED + seed), 200)
    end(runs)
    print(runs.reports)
    check_in_log_once(str(folder / "log"), runs.accepted)


@pytest.mark.slow
@pytest.mark.process
def test_stopped_while_another_takes_the_log_it_is_fenced_and_loses_nothing(
    runs: AppenderRuns, folder: Path
) -> None:
    path = str(folder / "log")
    runs.begin(pause=0.001, journalSlots=1000)
    runs.wait_for("opened")
    runs.listen(0.1)
    runs.signal(SIGSTOP)
    with Appender(path, SCHEMA, producer_id="another") as other:
        other.append(rows(-1)).result()
        runs.signal(SIGCONT)
        runs.wait_for("stopped")
        assert "FencedError" in runs.errors[-1]
        runs.end()
        other.append(rows(-2)).result()
    end(runs)
    report = verify(path)
    assert report.ok, str(report)
    values = list(Log(path).to_pandas()["v"])
    assert [value for value in values if value < 0] == [-1, -2]
    assert [value for value in values if value >= 0] == list(range(runs.accepted + 1))


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
    check_storm(network, s3_path, folder, SEED, 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_killed_for_long_while_the_store_comes_and_goes_it_loses_and_doubles_nothing(
    network: Network, s3_path: tuple[str, dict[str, str]], folder: Path, seed: int
) -> None:
    check_storm(network, s3_path, folder, SEED + seed, 60)


def check_storm(
    network: Network,
    s3_path: tuple[str, dict[str, str]],
    folder: Path,
    seed: int,
    kills: int,
) -> None:
    print(f"seed {seed}")
    path, options = s3_path
    rng = random.Random(seed)
    runs = AppenderRuns(folder, path, network.url)
    try:
        for number in range(kills):
            network.cut()
            network.mend(FAULTS)
            # With faults and two retries an opening may be refused: its caller tries it again.
            while True:
                runs.begin(pause=0.001, journalSlots=50_000, maxInFlightRequests=4)
                if runs.wait_for("opened", "refused") == "opened":
                    break
                runs.end()
            runs.listen(rng.uniform(0.05, 0.3))
            # An outage begins during one run, which keeps accepting, and may end during it.
            network.cut()
            for _ in range(rng.randrange(1, 200)):
                runs.wait_for("accepted")
            if number % 3:
                network.mend(FAULTS)
                runs.listen(rng.uniform(0.0, 1.0))
            runs.signal(SIGKILL)
            runs.end()
        network.cut()
        network.mend([])
        end(runs)
        print(runs.reports)
    finally:
        runs.close()
    check_in_log_once(path, runs.accepted, **options)


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
    check_in_log_once(path, count, **options)


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
    check_in_log_once(path, 1)
