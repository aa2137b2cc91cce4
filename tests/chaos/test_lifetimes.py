"""A stream is compacted and collected while all its processes are killed; see tests/soak.py."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from faults.lifetimes import Lifetimes
from faults.watching import Pace
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import make_bucket, start_ministack

# Windows so short that data is collected within the test. How large the log is then shows only how
# busy the machine is.
PACE = Pace(
    every=0.3,
    rows=100,
    late=1,
    age=2,
    grace=3.0,
    interval=3.0,
    look=1.0,
    driver=(8.0, 12.0),
    compactor=(10.0, 14.0),
    sleeper=(5.0, 8.0),
    nap=(1.0, 4.0),
    replica=(5.0, 8.0),
    read=(8.0, 10.0),
    limit=float("inf"),
)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_log_that_is_compacted_and_collected_under_kills_loses_nothing(
    tmp_path: Path, rng: random.Random
) -> None:
    with start_ministack() as server, S3Proxy(server.url) as proxy:
        make_bucket(server.url, "soak")
        soak = Lifetimes(rng.randrange(10**6), tmp_path, server.url, "soak", proxy, PACE)
        with closing(soak):
            soak.play(0.4, until=lambda counted: counted["collected_objects"] > 0)
    for what in ("driver_kills", "compactor_kills", "ranges", "rows_in_table"):
        assert soak.counted[what] > 0, soak.counted
