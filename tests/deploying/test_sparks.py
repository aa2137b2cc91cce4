"""Each Spark that is supported, in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lifecycle.lakes import Lake

import sparkwal

from .environments import ROOT, make, reaches, run

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.slow]

STEPS = [
    "register",
    "stream write",
    "batch read",
    "stream read",
    "restart",
    "checkpoint from the log",
    "batch append, once",
    "SQL",
    "verify",
]


def environment(python: Path) -> dict[str, str]:
    """Of a Spark that is not the tests' own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "SPARK_SUBMIT_OPTS" or not name.startswith(("SPARK_", "PYSPARK_", "AWS_"))
    }
    # Alone: where it is installed the tests' own Spark lies beside it.
    source = python.parents[1] / "source"
    source.mkdir()
    (source / "sparkwal").symlink_to(Path(sparkwal.__file__).parent)
    return {**kept, "PYTHONPATH": str(source), "PYSPARK_PYTHON": str(python)}


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0"])
def test_a_logs_whole_life(
    version: str, tmp_path: Path, ministack_url: str, s3_bucket: str
) -> None:
    python = make(tmp_path / "venv", f"pyspark=={version}", sees_tests=True)
    done = run(
        python,
        ROOT / "tests/deploying/whole_life.py",
        f"s3://{s3_bucket}/logs",
        tmp_path,
        env={**environment(python), **reaches(ministack_url)},
        cwd=tmp_path,
    )
    reported = done.stdout.splitlines()
    assert reported[0] == f"Spark {version}, Python {sys.version.split()[0]}"
    assert reported[1:] == [f"did {step}" for step in STEPS]


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4"])
def test_an_older_spark_is_refused_in_a_line_and_takes_what_a_log_gives(
    version: str, tmp_path: Path
) -> None:
    python = make(tmp_path / "venv", f"pyspark=={version}", sees_tests=True)
    done = run(
        python,
        ROOT / "tests/deploying/older_spark.py",
        tmp_path,
        env=environment(python),
        cwd=tmp_path,
    )
    refused, rows = done.stdout.splitlines()
    assert refused.startswith(
        f"refused: sparkwal needs Spark 4.2 or 4.3, pyspark here is {version}"
    )
    assert rows == "rows 2"


def test_a_spark_that_delta_has_no_jars_for_is_refused_where_there_is_a_table(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    lake.append([{"id": 1, "v": "v1"}])
    lake.compact()
    python = make(tmp_path / "venv", "pyspark==4.3.0", sees_tests=True)
    own = environment(python)
    script = ROOT / "tests/deploying/delta_refused.py"
    done = run(python, script, lake.path, lake.table, env=own, cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        assert line.startswith("refused: Delta Lake 4.4 is for Spark up to 4.2, and this is 4.3.0")
    job = [ROOT / "jobs/compact.py", lake.path, lake.table, "--now"]
    reported = subprocess.run(
        [str(each) for each in (python, *job)], env=own, capture_output=True, text=True
    )
    assert reported.returncode == 2
    assert "Delta Lake 4.4 is for Spark up to 4.2, and this is 4.3.0" in reported.stderr
