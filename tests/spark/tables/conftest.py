"""Tests with Delta Lake run in a process of their own: see tests/spark/test_delta.py.

A JVM has one Spark context, and that of the other tests has no Delta Lake.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkwal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore_glob = [] if os.environ.get("SPARKWAL_TABLES") else ["test_*.py"]


@pytest.fixture(scope="session")
def delta() -> Iterator[SparkSession]:
    """Spark with Delta Lake."""
    from tests.spark.tables.session import start

    source = str(Path(sparkwal.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", source, prepend=os.pathsep)
        session = start({})
        yield session
        session.stop()


@pytest.fixture
def bucket(delta: SparkSession, ministack_url: str, s3_bucket: str) -> Iterator[str]:
    """One that S3A reaches: an endpoint of a bucket is a setting of Hadoop's."""
    from tests.spark.tables.session import s3a

    conf = delta._jsc.hadoopConfiguration()
    given = s3a(ministack_url)
    for name, value in given.items():
        conf.set(name, value)
    yield s3_bucket
    for name in given:
        conf.unset(name)
