"""Fifty appenders in fifty processes lose no acknowledged row, and no row comes twice.

`SPARKWAL_FLEET_SECONDS=600 bash tests/run.sh -m slow tests/lifecycle/test_fleet.py` runs for ten
minutes; SPARKWAL_FLEET_SEED repeats the choices of a run.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

import sparkwal
from sparkwal.lifecycle.cycle import Run
from sparkwal.testing.servers import log_options, make_bucket
from tests.lifecycle.fleet import APPENDERS, BUCKET, LIFE, LIVES, PATH, coordinator

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("SPARKWAL_FLEET_SECONDS", 60))


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(SECONDS + 600)
def test_every_acknowledged_row_of_fifty_appenders_is_in_the_table_once(
    ministack_url: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SPARKWAL_FLEET_SEED", random.randrange(2**32)))
    print(f"SPARKWAL_FLEET_SEED={seed}")
    make_bucket(ministack_url, BUCKET)
    command = [sys.executable, "-P", "-m", "lifecycle.fleet", str(tmp_path), ministack_url]
    paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*command, str(seed), str(SECONDS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report.pop("failures") == []

    # Each row of the fleet goes into the table, also those that a killed process left.
    options = {**log_options(ministack_url)}
    runs = coordinator(str(tmp_path / "table"), options).run_all(whole=True)
    assert all(isinstance(run, Run) for run in runs.values()), runs
    acknowledged = [
        int(line)
        for file in tmp_path.glob("acknowledged-*")
        # A process may have been killed while it wrote its last line.
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
    in_table = Counter(DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["v"].to_pylist())
    print(f"{report}, {len(acknowledged)} acknowledged, {len(in_table)} in the table")
    assert set(in_table.values()) == {1}
    assert set(acknowledged) <= set(in_table)
    assert all(value // LIFE // LIVES < APPENDERS for value in in_table)
    # All other rows were on their way when their process was killed: at most one of each life.
    others = set(in_table) - set(acknowledged)
    assert len({value // LIFE for value in others}) == len(others)
    # The readers of table and logs agree with it.
    current = sparkwal.Log(PATH, **options).current(sequencers="*").to_arrow()
    assert Counter(current["v"].to_pylist()) == in_table
