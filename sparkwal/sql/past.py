"""The past of logs: their records and what lies in their store, as tables to be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkwal.format import keys
from sparkwal.format.header import SlotHeader
from sparkwal.format.lifecycle import LifecycleRecord, decode
from sparkwal.protocol import chain
from sparkwal.reading.log_range import LogRange
from sparkwal.sql.database import connect
from sparkwal.sql.needs import Needs
from sparkwal.sql.relations import RECORDS, in_batches, records
from sparkwal.store.base import NotFound
from sparkwal.store.listing import all_entries
from sparkwal.store.parallel import run_parallel

# The last moment that a calendar knows; later ones count as it.
LAST_MS = 253_402_300_799_999
# What else lies under a log's path at rest.
_BESIDE = ("lifecycle", "txns", "consumers")
_OBJECTS = pa.schema([("sequencer", pa.string()), ("position", pa.int64()), ("bytes", pa.int64())])
# A record with what came before it: dead positions are those that hold none, and each was a PUT.
# What is damaged has the time of the record before it.
_STEPS = """
CREATE TEMP VIEW steps AS SELECT *, epoch_ms(time) AS ms FROM (
    SELECT * REPLACE (last_value(time IGNORE NULLS) OVER earlier AS time),
        position - 1 - coalesce(lag(position) OVER earlier, start - 1) AS dead
    FROM records JOIN logs USING (sequencer)
    WINDOW earlier AS (PARTITION BY sequencer ORDER BY position)
) WHERE time IS NOT NULL
"""


@dataclass(frozen=True)
class Looked:
    """One log: start … end−1 are covered. `stored` bytes in `objects` are in the store now, `held`
    of them of positions before `start`. `chain` is the newest record of its lifecycle."""

    log: LogRange
    start: int
    end: int
    head: SlotHeader
    floor: int
    chain: LifecycleRecord | None
    stored: int
    objects: int
    held: int


class Past:
    """Logs in the tables `records`, `objects` and `chain` of a database.

    The options of the logs, which have looked, say which range is covered, and `progress` is called
    with how many records were read, and of how many. `since_ms` … `until_ms` is the time that is
    covered. `passed_over` of a log gets what is damaged there; without one damage is an error.
    """

    def __init__(self, logs: Sequence[LogRange], progress: Callable[[int, int], None]) -> None:
        self._connection = connect()
        self.ask("CREATE TEMP TABLE logs (sequencer VARCHAR, start BIGINT)")
        for name, schema in (("records", RECORDS), ("objects", _OBJECTS)):
            self._connection.register("_new", schema.empty_table())
            self.ask(f"CREATE TEMP TABLE {name} AS FROM _new")
        self.ask("CREATE TEMP TABLE chain (sequencer VARCHAR, time TIMESTAMPTZ)")
        self.ask(_STEPS)
        options = logs[0].options
        heads = [_head(log) for log in logs]
        # A log's clock may be ahead of this one; times that have not come are not covered.
        newest = max(min(head.timestamp_ms, LAST_MS) for head in heads)
        self.until_ms = max(time.time_ns() // 1_000_000, newest)
        if options.ending_timestamp_ms is not None:
            self.until_ms = min(self.until_ms, options.ending_timestamp_ms)
        self.logs = [self._take(log, progress) for log in logs]
        since = options.starting_timestamp_ms
        if since is None:
            # Nothing above the floor: what lies below it is there, and paid.
            since = self.value("SELECT epoch_ms(min(time)) FROM records")
        self.since_ms: int = min(newest if since is None else since, self.until_ms)
        for each in self.logs:
            if each.chain is not None:
                self._take_chain(each.log, each.chain)

    def ask(self, query: str, **given: Any) -> list[dict[str, Any]]:
        """The rows of a query over `records`, `steps`, `objects`, `chain` and `logs`."""
        found = self._connection.execute(query, given)
        names = [each[0] for each in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def value(self, query: str, **given: Any) -> Any:
        return next(iter(self.ask(query, **given)[0].values()))

    def _insert(self, table: str, rows: pa.RecordBatch) -> None:
        self._connection.register("_new", pa.table(rows))
        self.ask(f"INSERT INTO {table} FROM _new")

    def _take(self, log: LogRange, progress: Callable[[int, int], None]) -> Looked:
        start, end = log.start(), log.end()
        self.ask("INSERT INTO logs VALUES ($name, $start)", name=log.name, start=start)
        for batch in records([log], Needs()):
            self._insert("records", batch)
            progress(batch.column("position")[-1].as_py() + 1 - start, end - start)
        # What is left before the end is dead.
        self.ask(
            "INSERT INTO records BY NAME SELECT $name AS sequencer, $end AS position, "
            "'end' AS kind, max(time) AS time, 0 AS puts, 0 AS gets, 0 AS lists, 0 AS read_gets "
            "FROM records WHERE sequencer = $name HAVING max(time) IS NOT NULL",
            name=log.name, end=end,
        )  # fmt: skip
        for batch in in_batches(_listed(log), _OBJECTS, 10_000):
            self._insert("objects", batch)
        (counted,) = self.ask(
            "SELECT coalesce(sum(bytes), 0)::BIGINT AS stored, count(*) AS objects, "
            "coalesce(sum(bytes) FILTER (position < $start), 0)::BIGINT AS held "
            "FROM objects WHERE sequencer = $name",
            name=log.name, start=start,
        )  # fmt: skip
        newest = chain.look(log.log, log.log_id)
        return Looked(log, start, end, _head(log), log.floor.current(), newest, **counted)

    def _take_chain(self, log: LogRange, newest: LifecycleRecord) -> None:
        """When the records of the chain were put, the newest first: 1 GET for each."""
        store = log.log.store

        def fetch(number: int) -> LifecycleRecord | None:
            key = keys.lifecycle_key(log.log.prefix, number)
            try:
                return decode(store.get(key), f"{store.url}/{key}")
            except NotFound:
                return None

        for record in run_parallel(store, fetch, range(newest.number, keys.MAX + 1)):
            if record is None or record.timestamp_ms < self.since_ms:
                return
            if record.log_id == newest.log_id and record.timestamp_ms <= self.until_ms:
                self.ask(
                    "INSERT INTO chain VALUES ($name, make_timestamptz($time))",
                    name=log.name, time=min(record.timestamp_ms, LAST_MS) * 1000,
                )  # fmt: skip


def _head(log: LogRange) -> SlotHeader:
    assert log.live is not None
    return log.live.header


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
