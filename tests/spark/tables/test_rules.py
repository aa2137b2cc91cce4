"""The rules of a table, for the Delta table that Spark writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.lifecycle.lakes import Lake
from tests.lifecycle.test_table_rules import *  # noqa: F403
from tests.lifecycle.test_table_rules import COLUMNS, Delta, Format, MakeFormat


@pytest.fixture
def make_format(delta: SparkSession, tmp_path: Path) -> MakeFormat:
    """Makes a log with a table that Spark writes."""

    def make(*keys: str, **target: Any) -> Format:
        return Delta(Lake(tmp_path, *keys, spark=delta, schema=COLUMNS, **target))

    return make
