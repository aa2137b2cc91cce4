"""Whatever Spark lets a caller ask for: it is taken, or refused before a record is put."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparkwal
from tests.spark.ways import NAME, WAYS, Place, Way

pytestmark = pytest.mark.spark


def _cases() -> list[object]:
    return [
        pytest.param(
            way,
            id=f"{kind}: {way.name}",
            marks=[pytest.mark.capability(way.since)] if way.since else [],
        )
        for kind, ways in WAYS.items()
        for way in ways
    ]


@pytest.mark.parametrize("way", _cases())
def test_a_way_is_taken_or_refused_with_one_sentence(
    spark: SparkSession, tmp_path: Path, way: Way
) -> None:
    place = Place(spark, tmp_path)
    try:
        if way.refused:
            with pytest.raises(Exception) as caught:
                way.ask(place)
            assert way.refused in " ".join(str(caught.value).split())
        else:
            way.ask(place)
        assert _rows(place.log) == (place.rows_before if way.refused else way.rows)
        assert not spark.catalog.tableExists(NAME) or spark.catalog.dropTempView(NAME)
    finally:
        spark.catalog.dropTempView(NAME)


def _rows(log: str) -> int | None:
    """The rows of a log; None if nothing is there."""
    return sparkwal.Log(log).scan().read_all().num_rows if Path(log).exists() else None
