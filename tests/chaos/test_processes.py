"""Drivers and Python workers that are killed, stopped and doubled: no row is lost or doubled."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

import sparkwal
from faults.processes import send, wait_until
from faults.storms import overload
from sparkwal.format.header import LeaderHeader


@pytest.mark.proves("replay-writes-nothing")
@pytest.mark.parametrize(
    "lives", [["batch"], pytest.param(["started", "batch"], marks=pytest.mark.slow)]
)
def test_drivers_killed_at_any_moment_lose_nothing(
    drivers, on_s3, rng: random.Random, lives: list[str]
) -> None:
    """Each driver dies at some moment after it wrote such a line."""
    drivers.start()
    for line in lives:
        driver = drivers.take()
        drivers.start()  # the next one, meanwhile
        inline = rng.choice(["0", "1mb"])
        driver.go(**on_s3.work(partitions=rng.randint(1, 3), inline=inline))
        driver.wait_line(line)
        time.sleep(rng.uniform(0, 1.5))
        driver.kill(orphans=line == "batch")
    last = drivers.take()
    last.go(**on_s3.work(batches=on_s3.stream().noted + 4))
    last.finish()
    found = on_s3.prove(least=4)
    assert found.leaders >= 2


@pytest.mark.parametrize("least", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_python_workers_killed_again_and_again_lose_nothing(
    drivers, on_s3, rng: random.Random, least: int
) -> None:
    on_s3.proxy.faults = overload(0.3)
    driver = drivers.take()
    # A killed planner or commit worker fails the query, and the driver starts it again.
    driver.go(**on_s3.work(partitions=3, restarts=1000, batches=least))
    driver.wait_batch(0)
    kills = 0
    while kills < least:
        time.sleep(rng.uniform(0.05, 0.4))
        workers = driver.workers()
        kills += bool(workers) and send(rng.choice(workers), SIGKILL)
    on_s3.proxy.faults = []
    driver.finish()
    on_s3.prove(least=least)


@pytest.mark.slow
def test_a_driver_that_slept_through_a_takeover_is_fenced_by_name(drivers, on_s3) -> None:
    sleeper, other = drivers.take(), drivers.take()
    sleeper.go(**on_s3.work(0))
    sleeper.wait_batch(1)
    sleeper.signal(SIGSTOP)
    try:
        other.go(**on_s3.work(1, batches=2))
        other.finish()
    finally:
        sleeper.signal(SIGCONT)
    sleeper.wait_line("ready")
    (error,) = sleeper.failures()
    leaders = [x for x in records(on_s3) if isinstance(x, LeaderHeader)]
    assert error.startswith("sparkwal.errors.FencedError: "), error
    where = (f"host {socket.gethostname()}", "holds position", "since 20")
    for part in (leaders[-1].leader_id, *where):
        assert part in error
    before = on_s3.prove(least=3)
    # A restart with the same checkpoint takes over again, with no row lost or doubled.
    sleeper.go(**on_s3.work(0, batches=on_s3.stream(0).noted + 3))
    sleeper.finish()
    assert on_s3.prove().commits > before.commits


def records(scene) -> list[object]:
    return list(sparkwal.Log(scene.log, **scene.options).records())


@pytest.mark.proves("fenced-run-stops")
@pytest.mark.parametrize(
    "second",
    [
        # A driver that starts late finds all microbatches done, and then there is one leader.
        pytest.param(0, id="the same checkpoint", marks=pytest.mark.slow),
        pytest.param(1, id="different checkpoints", marks=pytest.mark.slow),
    ],
)
def test_two_drivers_at_once_lose_and_double_no_row_with(drivers, on_s3, second: int) -> None:
    both = [drivers.take(), drivers.take()]
    for driver, stream in zip(both, (0, second), strict=True):
        driver.go(**on_s3.work(stream, batches=5, restarts=1000))
    for driver in both:
        driver.finish()
    found = on_s3.prove(least=5 * (1 + second))
    assert found.leaders >= 2


APPENDER = Path(__file__).with_name("appender_beside.py")


@pytest.mark.slow
def test_an_appender_killed_again_and_again_beside_a_sink_loses_nothing_of_either(
    drivers, on_s3, rng: random.Random
) -> None:
    driver = drivers.take()
    # Each takes the log over from the other: the sink whenever it was fenced.
    driver.go(**on_s3.work(restarts=1000))
    driver.wait_batch(0)
    command = [sys.executable, "-P", str(APPENDER), on_s3.log]
    command += [f"{name}={value}" for name, value in on_s3.writing.items()]
    durable, kills = -1, 0
    while kills < 3:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        reported = child.stdout.readline()  # empty: it was fenced before
        time.sleep(rng.uniform(0, 0.2))
        child.kill()
        durable = max([durable, *map(int, reported.split()), *map(int, child.stdout)])
        kills += bool(reported) and child.wait() == -SIGKILL
    driver.wait_batch(driver.batch() + 2)
    driver.kill()
    assert any("FencedError" in x for x in driver.failures())
    report = sparkwal.verify(on_s3.log, **on_s3.options)
    assert report.ok, str(report)
    values = list(sparkwal.Log(on_s3.log, **on_s3.options).to_pandas()["value"])
    appended = [-1 - value for value in values if value < 0]
    assert appended == list(range(len(appended)))
    assert len(appended) > durable
    streamed = sorted(value for value in values if value >= 0)
    assert streamed == list(range(len(streamed)))
    assert len(streamed) >= (on_s3.stream().noted + 1) * on_s3.rows


@pytest.mark.slow
def test_a_hint_folder_that_is_full_or_read_only_costs_cold_starts_and_nothing_else(
    drivers, on_disk
) -> None:
    driver = drivers.take()
    folder = driver.temporary / f"sparkwal-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    mount(folder, "size=64k,mode=0700")
    try:
        driver.go(**on_disk.work())
        driver.wait_batch(2)
        warm = leaders(on_disk)
        fill(folder / "ballast")
        driver.wait_batch(driver.batch() + 4)
        full = leaders(on_disk)
        mount(folder, "remount,ro")
        driver.wait_batch(driver.batch() + 4)
        assert driver.failures() == []
    finally:
        driver.end()
        unmount(folder)
    assert warm < full < leaders(on_disk)
    on_disk.prove(least=10)


def leaders(scene) -> int:
    return sum(isinstance(x, LeaderHeader) for x in records(scene))


def fill(file: Path) -> None:
    """Leave not a byte free."""
    with pytest.raises(OSError, match="No space"), file.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(512))


def mount(folder: Path, options: str) -> None:
    """A small filesystem in memory; skips the test without the right to mount it."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    def done() -> bool:
        return not subprocess.run(["umount", str(folder)], check=False).returncode

    wait_until(done, f"{folder} is unmounted", 30)
