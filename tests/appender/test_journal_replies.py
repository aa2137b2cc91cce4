"""A proxy answers instead of the store: no entry leaves the journal before the log has it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import Appender, Log
from sparkwal.appender.salvage import intact_rows
from sparkwal.errors import InvalidLogError
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.testing.proxy import Fault, S3Proxy
from tests.logs import until

SCHEMA = pa.schema([("v", pa.int64())])
# Some of these fill a segment.
ROWS = 3000


def held(journal: Path) -> list[int]:
    """The first value of each append that the journal holds."""
    found = [rows for file in sorted(journal.glob("*.wal")) for rows in intact_rows(file)]
    return [rows.column("v")[0].as_py() for _, rows in found]


@pytest.mark.s3
@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_journal_keeps_rows_that_a_foreign_reply_calls_stored(
    s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy, tmp_path: Path, in_flight: int
) -> None:
    path, options = s3_path
    journal = tmp_path / "journal"
    wal = Appender(
        path,
        SCHEMA,
        producer_id="p",
        journal=str(journal),
        journalSegmentBytes="64kb",
        batchSizeThreshold=1,
        maxInFlightRequests=in_flight,
        maxRetryAttempts=1,
        retryBaseDelayMs=1,
        **{**options, "endpoint": s3_proxy.url},
    )
    with wal:
        wal.append([{"v": 0}]).result(60)
        s3_proxy.faults = [Fault("error", kind="PUT", key_contains="batches/", status=200)]
        tickets = [wal.append([{"v": value}] * ROWS) for value in range(1, 9)]
        until(lambda: wal.is_store_away)
        assert not any(ticket.done() for ticket in tickets)
        assert held(journal)[-8:] == list(range(1, 9))
        s3_proxy.faults = []
        wal.flush(60)
    assert Log(path, **options).to_pandas()["v"].tolist() == [
        0,
        *(value for value in range(1, 9) for _ in range(ROWS)),
    ]


@pytest.mark.s3
def test_a_hole_in_the_log_leaves_the_journal_unchanged(
    s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    """A store said that it stored a record, and did not."""
    path, options = s3_path
    journal = tmp_path / "journal"
    named = {"producer_id": "p", "journal": str(journal), "batchSizeThreshold": 1}
    with Appender(path, SCHEMA, **named, **options) as wal:
        positions = [wal.append([{"v": value}]).result(60) for value in range(4)]
    log = open_log(from_keywords(SourceOptions, path, options))
    log.store.delete(log.key(2**64 - 1 - 1000 * positions[1]))
    before = held(journal)
    with pytest.raises(InvalidLogError, match=f"the record of position {positions[1]} is missing"):
        Appender(path, SCHEMA, **named, **options)
    assert held(journal) == before == [0, 1, 2, 3]
