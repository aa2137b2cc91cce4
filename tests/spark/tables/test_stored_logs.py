"""Spark continues the stored logs of tests/stored: a query, and a compaction that was cut off."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import sparkwal
from tests.stored import streaming
from tests.stored.place import LOG, PLACE
from tests.stored.test_stored import ARCHIVES, Stored, name_of, scanned
from tests.stored.test_stored import stored as stored
from tests.stored.writing import Row, row


def archives(name: str) -> pytest.MarkDecorator:
    """One case for each state that stored a log of this name."""
    cases = [
        pytest.param(archive, id=archive.parent.name)
        for archive in ARCHIVES
        if name_of(archive) == name
    ]
    return pytest.mark.parametrize("stored", cases, indirect=True)


@archives("files")
def test_a_query_continues_from_a_stored_checkpoint(delta: SparkSession, stored: Stored) -> None:
    sparkwal.register(delta)
    before = stored.logs["default"]
    streaming.put_input(len(before))
    query = streaming.ingest(delta, LOG, streaming.orders())
    query.awaitTermination()
    # The files that the query had read are not read again.
    assert scanned() == [*before, row(len(before))]
    assert sparkwal.verify(str(LOG)).ok


@archives("lake")
def test_a_compaction_finishes_the_open_range_of_a_stored_log(
    delta: SparkSession, stored: Stored
) -> None:
    def in_table() -> list[Row]:
        found = delta.read.format("delta").load(str(PLACE / "table")).orderBy("id").collect()
        return [each.asDict() for each in found]

    logs = stored.expected["current"]
    # The newest rows of both logs are not there yet.
    assert in_table() == [*logs["a"][:-1], *logs["b"][:-1]]
    runs = [
        sparkwal.Lifecycle(
            str(LOG), sequencer=name, spark=delta, table=str(PLACE / "table")
        ).run_once(whole=True)
        for name in ("b", "a")
    ]
    assert [run.found for run in runs] == ["an open range", "at rest"]
    assert runs[0].finished is not None and runs[1].compacted is not None
    assert in_table() == [*logs["a"], *logs["b"]]
