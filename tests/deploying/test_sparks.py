"""Each supported Spark, in a separate Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import sparkwal
from tests import capabilities
from tests.deploying.environments import ROOT, make, reaches, run
from tests.lifecycle.lakes import Lake

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.slow]

VERSIONS = ["4.0.4", "4.1.4", "4.2.0", "4.2.1", "4.3.0"]
STEPS = [
    "register",
    "stream write",
    "batch read",
    "stream read",
    "restart",
    "checkpoint from the log",
    "batch append, once",
    "SQL",
    "limits of each microbatch",
    "Delta table by keys",
    "verify",
]
# The steps that not each Spark has, and their capabilities.
NEEDS = {"limits of each microbatch": "READ_LIMITS", "Delta table by keys": capabilities.DELTA}


def environment(python: Path) -> dict[str, str]:
    """The environment of a Spark other than the tests' own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "SPARK_SUBMIT_OPTS" or not name.startswith(("SPARK_", "PYSPARK_", "AWS_"))
    }
    # Alone: its environment also holds the tests' own Spark.
    source = python.parents[1] / "source"
    source.mkdir()
    (source / "sparkwal").symlink_to(Path(sparkwal.__file__).parent)
    return {**kept, "PYTHONPATH": str(source), "PYSPARK_PYTHON": str(python)}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_spark_takes_a_log_through_its_whole_life(
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
    missing = {step for step, needed in NEEDS.items() if not capabilities.has(needed, version)}
    expected = ["lacks" if step in missing else "did" for step in STEPS]
    lines = [line.partition(":")[0] for line in done.stdout.splitlines()[1:]]
    assert lines == [f"{what} {step}" for what, step in zip(expected, STEPS, strict=True)]


# Each step up, an upgrade over all of them, and back from 4.2 and from 4.3.
CHAIN = ["4.0.4", "4.1.4", "4.2.0", "4.0.4", "4.3.0", "4.0.4"]


@pytest.mark.timeout(3600)
def test_a_log_that_each_spark_continues_and_hands_to_the_next(tmp_path: Path) -> None:
    pythons = {
        version: make(tmp_path / version / "venv", f"pyspark=={version}", sees_tests=True)
        for version in dict.fromkeys(CHAIN)
    }
    own = {version: environment(python) for version, python in pythons.items()}
    folder = tmp_path / "chain"
    for number, version in enumerate(CHAIN):
        script = ROOT / "tests/deploying/continue_log.py"
        command = [str(pythons[version]), str(script), str(folder), str(number)]
        done = subprocess.run(
            command, env=own[version], cwd=tmp_path, capture_output=True, text=True
        )
        # It killed its JVM in the middle of a stream.
        assert done.returncode == 9, (done.stdout + done.stderr)[-6000:]
        has_delta = capabilities.has(capabilities.DELTA, version)
        assert ("current True" in done.stdout) == has_delta, done.stdout
        assert ("refused: Delta Lake 4.4.0 is for Spark up to 4.2" in done.stdout) != has_delta
        if number == 1:
            # The next one makes its checkpoint from the log.
            shutil.rmtree(folder / "checkpoint")
    for name in ("wal", "copy"):
        assert sparkwal.verify(str(folder / name)).ok
    rows = sorted(sparkwal.Log(str(folder / "copy")).to_pandas()["value"])
    assert rows == [*range(len(rows))]
    nightly = sparkwal.Log(str(folder / "wal"), sequencer="nightly").to_pandas()["id"]
    assert sorted(nightly) == [*range(len(CHAIN))]
    current = sorted(sparkwal.Log(str(folder / "wal")).current().to_pandas()["value"])
    assert current == [*range(len(current))]


def test_a_spark_without_delta_jars_is_refused_for_a_log_with_a_table(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    lake.append([{"id": 1, "v": "v1"}])
    lake.compact()
    python = make(tmp_path / "venv", "pyspark==4.3.0", sees_tests=True)
    own = environment(python)
    script = ROOT / "tests/deploying/delta_refused.py"
    done = run(python, script, lake.path, lake.target.table, env=own, cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        assert line.startswith("refused: Delta Lake 4.4.0 is for Spark up to 4.2, and this is 4.3")
        assert "sparkwal.Log(path).current() reads table and log without Spark" in line
    job = [ROOT / "jobs/compact.py", lake.path, lake.target.table, "--now"]
    refused = subprocess.run(
        [str(each) for each in (python, *job)], env=own, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "Delta Lake 4.4.0 is for Spark up to 4.2, and this is 4.3.0" in refused.stderr
