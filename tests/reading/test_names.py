"""Columns that are asked for by a name that the log does not have."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import Appender, Log, OptionError
from sparkwal.format import schema
from sparkwal.reading.metadata import check_projection

SCHEMA = pa.schema([("id", pa.int64()), ("Name", pa.string())])
LOG = schema.from_arrow(SCHEMA)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("ID", "column 'ID' is 'id' in the log; use that spelling"),
        ("name", "column 'name' is 'Name' in the log; use that spelling"),
        ("_WAL_position", "column '_WAL_position' is '_wal_position' in the log"),
        ("other", "column 'other' is not in the log; it has id, Name"),
    ],
)
def test_a_name_that_differs_in_case_is_answered_with_the_logs_own(
    tmp_path: Path, asked: str, message: str
) -> None:
    with Appender(str(tmp_path), SCHEMA, producer_id="p") as wal:
        wal.append([{"id": 1, "Name": "x"}])
    with pytest.raises(OptionError) as refused:
        Log(str(tmp_path)).scan(columns=[asked])
    assert message in str(refused.value)
    with pytest.raises(OptionError) as refused:
        check_projection(schema.from_arrow(pa.schema([(asked, pa.int64())])), LOG)
    assert message in str(refused.value)


def test_the_metadata_name_the_query_that_wrote_a_row(tmp_path: Path) -> None:
    with Appender(str(tmp_path), SCHEMA, producer_id="gateway") as wal:
        wal.append([{"id": 1, "Name": "x"}])
    rows = Log(str(tmp_path), includeMetadata=True).scan().read_all().to_pylist()
    assert [row["_wal_query_id"] for row in rows] == ["gateway"]
