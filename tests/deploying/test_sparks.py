"""Each Spark that is supported, in a Python of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

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


def environment(s3: str) -> dict[str, str]:
    """Of a Spark that is not the tests' own."""
    kept = {name: value for name, value in os.environ.items()
            if name == "SPARK_SUBMIT_OPTS" or not name.startswith(("SPARK_", "PYSPARK_", "AWS_"))
            }  # fmt: skip
    source = str(Path(sparkwal.__file__).parents[1])
    return {**kept, **reaches(s3), "PYTHONPATH": source}


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0"])
def test_a_logs_whole_life(
    version: str, tmp_path: Path, ministack_url: str, s3_bucket: str
) -> None:
    python = make(tmp_path / "venv", f"pyspark=={version}", sees_tests=True)
    done = run(
        python, ROOT / "tests/deploying/whole_life.py", f"s3://{s3_bucket}/logs", tmp_path,
        env={**environment(ministack_url), "PYSPARK_PYTHON": str(python)}, cwd=tmp_path,
    )  # fmt: skip
    told = done.stdout.splitlines()
    assert told[0] == f"Spark {version}, Python {sys.version.split()[0]}"
    assert told[1:] == [f"did {step}" for step in STEPS]
