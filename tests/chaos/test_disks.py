"""Drivers that are killed while Spark writes their checkpoint, or lose the disk that it is on."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

import pytest

import sparkwal
from faults.disks import FATES, add_files, back_up, befall, numbered_stream, on_a_new_machine
from faults.processes import Driver, send, wait_until
from sparkwal.checkpoints import folder
from sparkwal.format.header import CommitHeader
from tests.chaos.conftest import ROWS, ChaosLog, Drivers


def reading_files(scene: ChaosLog, files: int) -> dict[str, object]:
    """For `Driver.go`: a named query that reads so many more files."""
    if not scene.streams:
        scene.streams.append(numbered_stream(scene.folder, 0, ROWS))
    stream = scene.streams[0]
    add_files(stream, files)
    return scene.work(0, name=stream.name, files=str(stream.files), rows=stream.rows)


def being_written(place: Path, what: str) -> bool:
    """Whether a file of offsets, commits or sources/0 has its temporary name now."""
    try:
        return any(name.endswith(".tmp") for name in os.listdir(place / what))
    except FileNotFoundError:
        return False


def kill_while_writing(driver: Driver, place: Path, rng: random.Random) -> str:
    """SIGKILL in the middle of one of the checkpoint's writes, or just after; which it was."""
    (jvm,) = [x.pid for x in driver.members() if "SparkSubmit" in x.command]
    what, pause = rng.choice(["offsets", "commits", "sources/0"]), rng.choice([0, 0, 1e-4, 1e-3])
    deadline = time.monotonic() + 60
    for _ in range(rng.randint(1, 3)):
        while not being_written(place, what) and time.monotonic() < deadline:
            pass
        seen = time.monotonic() + pause
        while time.monotonic() < seen:
            pass
    send(jvm, SIGKILL)
    driver.kill()
    return what


def left_behind(place: Path) -> Counter[str]:
    """The signs of an unfinished write."""
    found: Counter[str] = Counter()
    for what in ("offsets", "commits", "sources/0"):
        with suppress(FileNotFoundError):
            names = set(os.listdir(place / what))
            found["temporary"] += sum(name.endswith(".tmp") for name in names)
            found["without checksum"] += sum(
                name[0] != "." and f".{name}.crc" not in names for name in names
            )
    return found


def rows_of(path: str) -> int:
    log = sparkwal.Log(path)
    if log.head() is None:
        return 0
    return sum(x.rows for x in log.records() if isinstance(x, CommitHeader))


@pytest.mark.slow
@pytest.mark.parametrize("lives", [3, 25])
@pytest.mark.timeout(1200)
def test_a_kill_in_the_middle_of_a_checkpoint_write_leaves_it_whole(
    drivers: Drivers, on_disk: ChaosLog, rng: random.Random, lives: int
) -> None:
    drivers.start()
    found: Counter[str] = Counter()
    for _ in range(lives):
        driver = drivers.take()
        drivers.start()  # the next one, meanwhile
        driver.go(**reading_files(on_disk, 30), per_trigger=rng.randint(1, 3))
        driver.wait_line("started")
        place = on_disk.stream().checkpoint
        found["killed in " + kill_while_writing(driver, place, rng)] += 1
        found += left_behind(place)
        # Each renamed file was whole. (This does not hold after a loss of power.)
        assert folder.torn(place) is None
        found["made anew"] += any(x.startswith("rebuilt ") for x in driver.lines())
    print(dict(found))
    last = drivers.take()
    last.go(**reading_files(on_disk, 2), per_trigger=10**6)
    everything = (30 * lives + 2) * on_disk.streams[0].rows
    wait_until(lambda: rows_of(on_disk.log) == everything, "all files are in the log")
    last.kill()
    assert on_disk.prove().rows == everything


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_query_continues_after_any_change_of_its_disk(
    drivers: Drivers, on_s3: ChaosLog, rng: random.Random, times: int
) -> None:
    driver = drivers.take()
    fates = [*FATES] * times
    rng.shuffle(fates)
    for fate in fates:
        for again in (False, True):
            work = reading_files(on_s3, 4)
            batches = on_s3.streams[0].noted + 2
            driver.go(**work, per_trigger=rng.randint(1, 2), batches=batches)
            driver.finish()
            if not again:  # so the backup is older than the log
                back_up(on_s3.streams[0])
        _, on_s3.streams[0] = befall(on_s3.streams[0], rng, fate)
    on_s3.streams, refused = on_a_new_machine(on_s3.log, on_s3.writing, on_s3.streams)
    assert refused == []
    on_s3.prove(least=2 * len(fates))
