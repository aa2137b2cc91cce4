"""Executors that are processes of their own: killed, and racing for the same partition."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest

from faults.processes import Driver, send, wait_until
from sparkwal.format import keys
from sparkwal.protocol.recovery import DEFAULT_WINDOW
from sparkwal.testing.proxy import Fault
from tests.clusters import standalone

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.slow]


def attempts(scene) -> set[tuple[str, ...]]:
    """(stage, partition, attempt, executor) of every task that began, as they noted it."""
    file = scene.stream().checkpoint.with_suffix(".attempts")
    lines = file.read_text().splitlines() if file.exists() else []
    return {tuple(line.split()) for line in lines}


def again(scene) -> int:
    """How many tasks were begun once more."""
    return sum(attempt != "0" for _, _, attempt, _ in attempts(scene))


def test_an_executor_killed_at_work_costs_a_retry_elsewhere_and_nothing_else(
    on_s3, rng: random.Random, tmp_path: Path
) -> None:
    driver = Driver("driver", tmp_path, "--master", "local-cluster[2,1,2048]")
    try:
        driver.go(**on_s3.work(partitions=3, slow=0.5, restarts=5))
        driver.wait_batch(0)
        begun = len(attempts(on_s3))
        wait_until(lambda: len(attempts(on_s3)) > begun, "a task begins")
        assert send(rng.choice(driver.executors()), SIGKILL)
        driver.wait_batch(driver.batch() + 3)
    finally:
        driver.end()
    assert again(on_s3)
    on_s3.prove(least=4)


def test_a_shuffle_that_is_computed_again_leaves_each_row_once(on_s3, tmp_path: Path) -> None:
    on_s3.rows = 30_000
    # Microbatch 1, partition 0: stored, and the reply never reaches the task.
    number = keys.encode(keys.data(2, DEFAULT_WINDOW, 0))
    on_s3.proxy.faults = [
        Fault("error_after", kind="PUT", key_contains=number, times=1, status=503),
        Fault("delay", kind="PUT", key_contains=number, times=1, seconds=30),
    ]
    settings = ["--conf", "spark.shuffle.io.retryWait=200ms"]
    driver = Driver("driver", tmp_path, "--master", "local-cluster[2,1,2048]", *settings)
    try:
        driver.go(**on_s3.work(partitions=8, shuffle=3, slow=0.01, batches=4))
        wait_until(lambda: on_s3.proxy.injected["delay"], "the object is stored")
        stage = max(int(each[0]) for each in attempts(on_s3))
        (executor,) = {each[3] for each in attempts(on_s3) if each[:2] == (str(stage), "0")}
        assert send(int(executor), SIGKILL)
        driver.finish()
    finally:
        driver.end()
    # Its part of the shuffle was lost with it.
    assert "FetchFailed(" in driver.errors()
    assert len({each[3] for each in attempts(on_s3) if each[:2] == (str(stage), "0")}) == 2
    found = on_s3.gather()
    # A shuffle keeps no order within a partition.
    assert [each for each in found.problems if " comes after " not in each] == []
    assert found.commits == 4
    # The object of the killed task was adopted, although the rows came in another order.
    assert (found.orphans, driver.failures()) == (0, [])


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with standalone(tmp_path) as url:
        yield url


def test_speculative_attempts_and_retries_on_a_standalone_cluster_store_each_row_once(
    on_s3, master: str, tmp_path: Path
) -> None:
    confs = {
        "spark.speculation": "true",
        "spark.speculation.efficiency.enabled": "false",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "50ms",
        "spark.pyspark.python": sys.executable,
    }
    given = [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
    driver = Driver("driver", tmp_path, "--master", master, *given)
    try:
        # About as slow as it takes another attempt to be started: some races are close.
        for seconds in (0.8, 0.3):
            batches = on_s3.stream().noted + 4
            driver.go(**on_s3.work(partitions=3, slow=seconds, batches=batches))
            driver.finish()
        time.sleep(1)  # attempts that lost may still be writing
    finally:
        driver.end()
    assert again(on_s3)
    on_s3.prove(least=6)
