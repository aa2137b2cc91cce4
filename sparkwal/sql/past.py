"""The past of logs: their records and what lies in their store, as tables to be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from sparkwal.format import keys
from sparkwal.format.lifecycle import LifecycleRecord, decode
from sparkwal.protocol.chain import look
from sparkwal.reading.log_range import LogRange
from sparkwal.sql.database import connect
from sparkwal.sql.needs import Needs
from sparkwal.sql.relations import CALENDAR_MS, RECORDS, TIME, in_batches, record_rows
from sparkwal.store.base import NotFound
from sparkwal.store.listing import all_entries
from sparkwal.store.parallel import run_parallel

# What else lies under a log's path at rest.
_BESIDE = ("lifecycle", "txns", "consumers")
_TABLES = {
    "logs": pa.schema([("sequencer", pa.string()), ("start", pa.int64()), ("end", pa.int64())]),
    "records": RECORDS,
    "objects": pa.schema(
        [("sequencer", pa.string()), ("position", pa.int64()), ("bytes", pa.int64())]
    ),
    "chain": pa.schema([("time", TIME)]),
}
# A record with what came before it: dead positions are those that hold none, and each was a PUT.
# What is damaged has the time of the record before it; what is left before the end is dead.
_STEPS = """
CREATE TEMP TABLE steps AS
SELECT * REPLACE (
        coalesce(puts, 0) + dead AS puts, coalesce(gets, 0) AS gets, coalesce(lists, 0) AS lists,
        coalesce(read_gets, 0) + dead AS read_gets
    ), epoch_ms(time) AS ms
FROM (
    SELECT * REPLACE (last_value(time IGNORE NULLS) OVER earlier AS time),
        position - 1 - coalesce(lag(position) OVER earlier, start - 1) AS dead
    FROM (FROM records UNION ALL BY NAME SELECT sequencer, "end" AS position FROM logs)
        JOIN logs USING (sequencer)
    WINDOW earlier AS (PARTITION BY sequencer ORDER BY position)
) WHERE time IS NOT NULL
"""


@dataclass(frozen=True)
class Looked:
    """One log: start … end−1 are covered; `chain` is the newest record of its lifecycle."""

    log: LogRange
    start: int
    end: int
    chain: LifecycleRecord | None


class Past:
    """Logs in the tables `logs`, `records`, `steps`, `objects` and `chain` of a database.

    The options of the logs, which have looked, say which range is covered, and `progress` is called
    with how many records were read, and of how many. `since_ms` … `until_ms` is the time that is
    covered. `passed_over` of a log gets what is damaged there; without one damage is an error.
    """

    def __init__(self, logs: Sequence[LogRange], progress: Callable[[int, int], None]) -> None:
        self._connection = connect()
        options = logs[0].options
        # A log's clock may be ahead of this one; times that have not come are not covered.
        newest = max(min(log.live.header.timestamp_ms, CALENDAR_MS) for log in logs if log.live)
        self.until_ms = max(time.time_ns() // 1_000_000, newest)
        if options.ending_timestamp_ms is not None:
            self.until_ms = min(self.until_ms, options.ending_timestamp_ms)
        self.logs = [Looked(log, log.start(), log.end(), look(log.log, log.log_id)) for log in logs]
        self._fill("logs", (
            {"sequencer": each.log.name, "start": each.start, "end": each.end} for each in self.logs
        ))  # fmt: skip
        self._fill("records", chain.from_iterable(_read(each, progress) for each in self.logs))
        self._fill("objects", chain.from_iterable(map(_listed, logs)))
        self.ask(_STEPS)
        since = options.starting_timestamp_ms
        if since is None:
            # Nothing above the floor: what lies below it is there, and paid.
            since = self.value("SELECT min(ms) FROM steps")
        self.since_ms: int = min(newest if since is None else since, self.until_ms)
        self._fill("chain", chain.from_iterable(map(self._chain, self.logs)))

    def ask(self, query: str, **given: Any) -> list[dict[str, Any]]:
        found = self._connection.execute(query, given)
        names = [each[0] for each in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def value(self, query: str, **given: Any) -> Any:
        return next(iter(self.ask(query, **given)[0].values()))

    def stored(self, looked: Looked) -> dict[str, int]:
        """What of one log lies in the store now."""
        query = (
            "SELECT coalesce(sum(bytes), 0) AS stored, count(*) AS objects FROM objects "
            "WHERE sequencer = $name"
        )
        return self.ask(query, name=looked.log.name)[0]

    def _fill(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        schema = _TABLES[table]
        self._connection.register("_new", schema.empty_table())
        self.ask(f"CREATE TEMP TABLE {table} AS FROM _new")
        for batch in in_batches(iter(rows), schema):
            self._connection.register("_new", pa.table(batch))
            self.ask(f"INSERT INTO {table} FROM _new")

    def _chain(self, looked: Looked) -> Iterator[dict[str, Any]]:
        """When the records of the chain were put, the newest first: 1 GET for each."""
        store, prefix = looked.log.log.store, looked.log.log.prefix

        def fetch(number: int) -> LifecycleRecord | None:
            key = keys.lifecycle_key(prefix, number)
            try:
                return decode(store.get(key), f"{store.url}/{key}")
            except NotFound:
                return None

        numbers = range(looked.chain.number, keys.MAX + 1) if looked.chain else range(0)
        for record in run_parallel(store, fetch, numbers):
            if record is None or record.timestamp_ms < self.since_ms:
                return
            if record.log_id == looked.log.log_id and record.timestamp_ms <= self.until_ms:
                yield {"time": min(record.timestamp_ms, CALENDAR_MS) * 1000}


def _read(looked: Looked, progress: Callable[[int, int], None]) -> Iterator[dict[str, Any]]:
    for row in record_rows(looked.log, Needs()):
        progress(row["position"] + 1 - looked.start, looked.end - looked.start)
        yield row


def _listed(log: LogRange) -> Iterator[dict[str, Any]]:
    """What lies in the store; what is not of one position has none."""
    store, prefix = log.log.store, keys.batches_prefix(log.log.prefix)
    for entry in all_entries(store, prefix):
        if (number := keys.decode(entry.key.removeprefix(prefix))) is not None:
            position = keys.position(number, log.window)
            yield {"sequencer": log.name, "position": position, "bytes": entry.size}
    for name in _BESIDE:
        for entry in all_entries(store, keys.join_key(log.log.prefix, name) + "/"):
            yield {"sequencer": log.name, "bytes": entry.size}
