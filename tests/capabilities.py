"""Tests of a capability that not each Spark has: skipped where the Spark of this run lacks it.

`@pytest.mark.capability("TIME")` names a difference of `sparkwal.options.spark_versions`, or DELTA.
No test compares versions itself.
"""

from __future__ import annotations

from importlib.metadata import version

import pytest

from sparkwal.options import spark_versions

DELTA = "DELTA"


def has(capability: str, spark: str = "") -> bool:
    """Whether a Spark, by default that of this run, has what the capability names."""
    spark = spark or version("pyspark")
    if capability == DELTA:
        return spark_versions.has_delta(spark)
    return spark_versions.has(getattr(spark_versions, capability), spark)


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Skips a test of what this Spark lacks, and notes the Spark for the support table."""
    wanted = [name for marker in item.iter_markers("capability") for name in marker.args]
    if wanted or item.get_closest_marker("spark"):
        item.user_properties.append(("spark", version("pyspark")))
    for name in wanted:
        if not has(name):
            # tests/docs/support.py reads the reason.
            item.add_marker(pytest.mark.skip(reason=f"Spark lacks {name}"))
