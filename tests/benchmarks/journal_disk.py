"""The cost of the journal on a disk, beside a bare file and SQLite."""

from __future__ import annotations

import itertools
import os
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring import SCHEMA, open_appender, rows_of
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.journal import ALWAYS, INTERVAL, NONE, Journal, Settings
from sparkwal.journal.opening import Opening, Owner
from sparkwal.journal.scanning import Contents, scan_folder

MIB = 2**20
# So many of one way, then of the next.
_TURN = 20
_THREADS = 8


def open_journal(folder: Path, **given: Any) -> Journal:
    """The journal in a folder, none of which the log has."""
    settings = Settings(max_bytes=2**40, **given)
    disk = DiskFolder(folder)
    return opened(disk, scan_folder(disk, settings), settings)


def opened(disk: DiskFolder, contents: Contents, settings: Settings) -> Journal:
    """Open the journal after `scan_folder`."""
    schema = SCHEMA.serialize().to_pybytes()
    owner = Owner("benchmark", "log", "benchmark", -1, schema)
    return Opening(disk, contents, owner).begin(settings, lambda event: None)


class BareFile:
    """Writes at the end of a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._end = 0

    def write(self, content: bytes | memoryview) -> None:
        self._end += os.pwrite(self._file, content, self._end)

    def write_synced(self, content: bytes | memoryview) -> None:
        self.write(content)
        os.fdatasync(self._file)

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def sqlite(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Inserts of one row, a transaction each, as durable as SQLite is in WAL mode."""
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE entries (sequence INTEGER PRIMARY KEY, content BLOB)")
    try:
        yield lambda content: base.execute("INSERT INTO entries (content) VALUES (?)", (content,))
    finally:
        base.close()


def measure_flush(folder: Path, count: int) -> dict[str, Any]:
    """fdatasync after a 4 KiB overwrite, on the disk and in memory; the flushes that each asks of
    the disk, those of other processes too."""
    names = {"disk": folder / "flush", "memory": Path("/dev/shm") / f"sparkwal-{os.getpid()}"}
    found: dict[str, list[float]] = {name: [] for name in names}
    block = os.urandom(4096)
    with ExitStack() as stack:
        files = {}
        for name, path in names.items():
            files[name] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(path.unlink)
            stack.callback(os.close, files[name])
            os.pwrite(files[name], block, 0)
            os.fsync(files[name])
        before = _flushes(folder)
        for name, file in files.items():
            for _ in range(count):
                began = time.perf_counter()
                os.pwrite(file, block, 0)
                os.fdatasync(file)
                found[name].append(time.perf_counter() - began)
        flushes, milliseconds = (b - a for a, b in zip(before, _flushes(folder), strict=True))
    spread = {name: _spread(seconds) for name, seconds in found.items()}
    return {
        **spread,
        "flushes": round(flushes / count, 2),
        "flush_ms": round(milliseconds / flushes, 3) if flushes else None,
        "caches": _write_caches(),
    }


def _flushes(folder: Path) -> tuple[int, int]:
    """How often the disk of a folder was asked to flush its cache, and the milliseconds it took."""
    device = folder.stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(stat[15]), int(stat[16])


def _write_caches() -> dict[str, str]:
    """The write cache of each disk: one in mode "write back" must be flushed."""
    files = sorted(Path("/sys/block").glob("*/queue/write_cache"))
    return {file.parts[3]: file.read_text().strip() for file in files}


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
    shown = {name: ordered[min(len(ordered) - 1, int(len(ordered) * q))] for name, q in at.items()}
    shown |= {"least": ordered[0], "mean": statistics.fmean(ordered), "most": ordered[-1]}
    return {name: round(value * 1000, 3) for name, value in shown.items()}


def measure_latency(
    folder: Path, upstream: str, size: int, count: int, rate: float
) -> dict[str, Any]:
    """From the call to its return, of the same bytes and in turns: so many by one, then by the
    next ("turns"), and one each, `rate` a second of each ("paced").

    In turns an appender sends what it has accepted while it accepts more; paced it has sent
    everything before the next, and every way finds the processor's caches with something else.
    """
    rows = rows_of(size - 200)
    content = rows.serialize().to_pybytes()
    found: dict[str, Any] = {"bytes": len(content)}
    with ExitStack() as stack:
        bare = BareFile(folder / "bare")
        stack.callback(bare.close)
        insert = stack.enter_context(sqlite(folder / "sqlite"))
        journal = open_journal(folder / "journal")
        stack.callback(journal.close)
        wal = stack.enter_context(open_appender(upstream, 10, journal=str(folder / "appender")))
        ways: dict[str, Callable[[], object]] = {
            "disk": lambda: bare.write_synced(content),
            "journal": lambda: journal.wait(journal.write(content)),
            "appender": lambda: wal.append(rows),
            "sqlite": lambda: insert(content),
        }
        for name, run, pause in (("turns", _TURN, 0.0), ("paced", 1, 1 / (rate * len(ways)))):
            taken = _in_turns(ways, -(-count // run), run, pause, wal.flush)
            shown = {way: _spread(seconds) for way, seconds in taken.items()}
            disk = shown["disk"]["p50"]
            ratios = {way: round(shown[way]["p50"] / disk, 3) for way in ways}
            found[name] = {"ms": shown, "ratios": ratios, "samples": len(taken["disk"])}
    return found


def _in_turns(
    ways: dict[str, Callable[[], object]],
    turns: int,
    run: int,
    pause: float,
    between: Callable[[], object],
) -> dict[str, list[float]]:
    """Seconds of each; the first turn opens what is opened at first and does not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + turns):
        place = turn % len(ways)
        for name in [*ways][place:] + [*ways][:place]:
            seconds = [_seconds(ways[name]) for _ in range(run)]
            if turn:
                taken[name] += seconds
            between()  # keeps this run's requests out of the next measurement
            time.sleep(max(0.0, pause - sum(seconds)))
    return taken


def measure_bandwidth(folder: Path, megabytes: int, rounds: int) -> list[dict[str, Any]]:
    """Measure appends of 1 MiB at full speed.

    One thread syncs once at the end; several threads wait for the disk each time.
    """
    content = os.urandom(MIB - 500)
    numbers = itertools.count()

    def plain() -> float:
        bare = BareFile(folder / f"plain-{next(numbers)}")
        try:
            return _seconds(lambda: _one_thread(bare.write, bare.sync))
        finally:
            bare.close()

    def plain_synced() -> float:
        bare = [BareFile(folder / f"plain-{next(numbers)}") for _ in range(_THREADS)]
        try:
            return _seconds(lambda: _threads([each.write_synced for each in bare]))
        finally:
            for each in bare:
                each.close()

    def plain_synced_alone() -> float:
        bare = BareFile(folder / f"plain-{next(numbers)}")
        try:
            return _seconds(lambda: _one_thread(bare.write_synced, lambda: None))
        finally:
            bare.close()

    def journaled(sync: str) -> float:
        journal = open_journal(folder / f"journal-{next(numbers)}", sync=sync)
        try:
            if sync == ALWAYS:
                each = [lambda part: journal.wait(journal.write(part))] * _THREADS
                return _seconds(lambda: _threads(each))
            return _seconds(lambda: _one_thread(journal.write, journal.sync))
        finally:
            journal.close()

    def _one_thread(write: Callable[[bytes], object], sync: Callable[[], object]) -> None:
        for _ in range(megabytes):
            write(content)
        sync()

    def _threads(writes: Sequence[Callable[[bytes], object]]) -> None:
        left = iter(range(megabytes))

        def work(write: Callable[[bytes], object]) -> None:
            for _ in left:
                write(content)

        threads = [threading.Thread(target=work, args=[each]) for each in writes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ways: dict[str, Callable[[], float]] = {
        "plain writes, one fsync": plain,
        "journal, none": lambda: journaled(NONE),
        "journal, interval": lambda: journaled(INTERVAL),
        "plain write + fdatasync, 1 thread": plain_synced_alone,
        f"plain write + fdatasync, {_THREADS} threads, a file each": plain_synced,
        f"journal, always, {_THREADS} threads": lambda: journaled(ALWAYS),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(way())
            for each in folder.iterdir():
                _remove(each)
            os.sync()
    best = statistics.median(taken["plain writes, one fsync"])
    return [
        {
            "what": name,
            "mb_per_s": round(megabytes * len(content) / statistics.median(seconds) / 1e6, 1),
            "ratio": round(best / statistics.median(seconds), 3),
            "runs_s": [round(each, 3) for each in seconds],
        }
        for name, seconds in taken.items()
    ]


def _remove(path: Path) -> None:
    if path.is_dir():
        for each in path.iterdir():
            _remove(each)
        path.rmdir()
    else:
        path.unlink()


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
