"""Stateful queries whose drivers and executors are killed at any moment write each row once.

A seed repeats the kills, not the moments at which they fall: pytest -k "[3-20]".
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.stateful_lives import Lives, LivesOnCluster, LivesOnMachines, choose_providers
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.spark import s3a
from sparkwal.testing.servers import log_options
from tests import classes
from tests.clusters import standalone
from tests.spark.tables.session import s3a as s3a_settings

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def on_machines(tmp_path: Path, rng: random.Random) -> Iterator[LivesOnMachines]:
    lives = LivesOnMachines(tmp_path, rng, choose_providers(rng), str(tmp_path / "logs"), {})
    try:
        yield lives
    finally:
        report(lives)


@pytest.fixture
def on_cluster(
    tmp_path: Path, rng: random.Random, ministack_url: str, s3_bucket: str
) -> Iterator[LivesOnCluster]:
    environment = classes.with_delta()
    with standalone(tmp_path, {**os.environ, **environment}) as master:
        settings = {
            "spark.master": master,
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.pyspark.python": sys.executable,
            FILE_MANAGER: s3a.FILE_MANAGER,
        }
        hadoop = {f"spark.hadoop.{k}": v for k, v in s3a_settings(ministack_url).items()}
        lives = LivesOnCluster(
            tmp_path,
            rng,
            choose_providers(rng),
            f"s3://{s3_bucket}/logs",
            log_options(ministack_url),
            url=f"s3a://{s3_bucket}/checkpoints",
            settings={**settings, **hadoop},
            environment=environment,
        )
        try:
            yield lives
        finally:
            report(lives)


def report(lives: Lives) -> None:
    print(lives.providers, f"{lives.files} files", dict(lives.counted), sep="\n")
    lives.close()


@pytest.mark.parametrize(
    ("seed", "kills", "ahead"),
    [(0, 2, 3), *((seed, 20, 15) for seed in (1, 2, 3))],
)
def test_stateful_queries_killed_at_any_moment_write_each_row_once(
    on_machines: LivesOnMachines, seed: int, kills: int, ahead: int
) -> None:
    on_machines.ahead = ahead
    for _ in range(kills):
        on_machines.kill_next()
    on_machines.finish()


@pytest.mark.parametrize(("seed", "kills"), [(0, 4), (1, 4), (2, 4)])
def test_stateful_queries_on_a_cluster_whose_processes_die_write_each_row_once(
    on_cluster: LivesOnCluster, seed: int, kills: int
) -> None:
    for _ in range(kills):
        on_cluster.kill_next()
    on_cluster.finish()
