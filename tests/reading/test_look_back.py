"""How far readers look back for the term of the records they begin with."""

from __future__ import annotations

import pyarrow as pa

from sparkwal.appender.appender import Appender
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore

SCHEMA = pa.schema([("v", pa.int64())])


def test_a_stream_over_an_appenders_log_looks_back_once_and_not_at_every_trigger() -> None:
    log = LogStore(MemoryStore(), "wal")
    with Appender(log, SCHEMA, producer_id="p", maxInFlightRequests=50) as wal:
        for value in range(100):
            wal.append([{"v": value}]).result()
        stream = LogRange(parse(SourceOptions, {"path": "memory"}), "default", log)
        begin, triggers = stream.refresh() - 10, []
        for value in range(3):
            wal.append([{"v": value}]).result()
            log.store.counts.clear()  # type: ignore[attr-defined]
            end = stream.refresh()
            found = [record.header.position for record in stream.records(begin, end)]
            assert found == list(range(begin, end))
            stream.forget(end)
            begin = end
            triggers.append(log.store.counts["GET"])  # type: ignore[attr-defined]
    # One GET that answers 404. The new head has no later leader, so no look back follows.
    assert triggers[0] < 20 and triggers[1:] == [2, 2]
