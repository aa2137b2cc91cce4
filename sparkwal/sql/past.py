"""Loads the records and stored objects of logs into SQL tables, and computes costs from them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import ChainRecord
from sparkwal.protocol.chain import newest_record, record_at
from sparkwal.reading.log_range import LogRange
from sparkwal.sql.database import Pushdown, connect
from sparkwal.sql.relations import CALENDAR_MS, RECORDS, TIME, bounds, in_batches, record_rows
from sparkwal.store.base import NotFound, all_entries, numbered
from sparkwal.store.parallel import run_parallel
from sparkwal.store.path import kind_of_store

# AWS counts 2^30 bytes as a GB, and bills them by the hour: 730 make a month.
MONTH_MS = 730 * 3_600_000
_TABLES = {
    "logs": pa.schema([("sequencer", pa.string()), ("start", pa.int64()), ("end", pa.int64())]),
    "records": RECORDS,
    "objects": pa.schema(
        [("sequencer", pa.string()), ("position", pa.int64()), ("bytes", pa.int64())]
    ),
    "chain": pa.schema([("time", TIME)]),
}
# One row for each record, with the number of dead positions since the previous record. Each of them
# was one PUT, and a takeover leaves at most 999. A damaged record gets the time of the previous
# record. The last row of a log counts the dead positions before its end.
_STEPS = """
CREATE TEMP TABLE steps AS
SELECT * REPLACE (
        coalesce(puts, 0) + dead AS puts, coalesce(gets, 0) AS gets, coalesce(lists, 0) AS lists,
        coalesce(read_gets, 0) + dead AS read_gets
    ), epoch_ms(time) AS ms
FROM (
    SELECT * REPLACE (last_value(time IGNORE NULLS) OVER earlier AS time),
        least(position - 1 - coalesce(lag(position) OVER earlier, start - 1), 999) AS dead
    FROM (FROM records UNION ALL BY NAME SELECT sequencer, "end" AS position FROM logs)
        JOIN logs USING (sequencer)
    WINDOW earlier AS (PARTITION BY sequencer ORDER BY position)
) WHERE time IS NOT NULL
"""
# The cost of one period, in dollars. `stored`: the bytes that existed at the end of the period and
# exist now. `requests`: the writers' requests that the records prove, by kind.
Line = dict[str, Any]
HOUR = 3_600_000
DAY = 86_400_000
# Requests, and the bytes of new objects (`new_bytes`), by time. `new_byte_ms` is bytes times the
# object's time: a period subtracts it, because the bytes are stored only from that time on.
_ADDED = """
WITH added AS (
    SELECT ms, time, (kind = 'commit')::INT AS commits, rows, bytes,
        puts AS "PUT", gets AS "GET", lists AS "LIST"
    FROM steps
    UNION ALL BY NAME SELECT epoch_ms(time) AS ms, time, 1 AS "PUT" FROM chain
    UNION ALL BY NAME
    SELECT ms, time, o.bytes AS new_bytes, o.bytes::HUGEINT * ms AS new_byte_ms
    FROM objects o ASOF JOIN steps s ON o.sequencer = s.sequencer AND o.position <= s.position
    WHERE o.position >= start
)
"""
# One line for each period with writes, and one for each gap between them. `below_floor` is the size
# of the objects below the floor: each period stores them.
_LINES = f"""
{_ADDED}, busy AS (
    SELECT greatest(epoch_ms(date_trunc($by, time)), $since) AS start_ms,
        least(epoch_ms(date_trunc($by, time) + $step::INTERVAL), $until) AS end_ms,
        sum(COLUMNS(* EXCLUDE (ms, time)))
    FROM added WHERE ms >= $since GROUP BY ALL
), idle AS (
    SELECT lag(end_ms, 1, $since) OVER (ORDER BY start_ms) AS began, start_ms AS ended
    FROM (FROM busy UNION ALL BY NAME SELECT $until AS start_ms)
    QUALIFY ended > began OR count(*) OVER () = 1
), older AS (
    SELECT coalesce(sum(bytes), 0) AS below_floor
    FROM objects JOIN logs USING (sequencer) WHERE position < start
)
SELECT start_ms, end_ms, coalesce(
        COLUMNS(* EXCLUDE (start_ms, end_ms, new_bytes, new_byte_ms, below_floor)), 0
    ),
    below_floor + coalesce(sum(new_bytes) OVER (ORDER BY start_ms, end_ms), 0) AS stored,
    stored * (end_ms - start_ms) + coalesce(new_bytes * start_ms - new_byte_ms, 0) AS byte_ms
FROM (FROM busy UNION ALL BY NAME SELECT began AS start_ms, ended AS end_ms FROM idle), older
ORDER BY start_ms, end_ms
"""


# Dollars for 1,000 requests, and for a GB stored for a month. `put` counts PUT, COPY, POST and each
# request of a multipart upload; `get` counts GET, HEAD and all others.
Prices = Mapping[str, float]
PRICES: Prices = {"put": 0.005, "list": 0.005, "get": 0.0004, "delete": 0.0, "storage": 0.023}
# The default prices of each kind of store, and their source. No prices are looked up.
_PRICE_LISTS = {
    "s3": ("S3 Standard, us-east-1, list prices of 2025", PRICES),
    "azure": ("Azure Blob Storage, hot, LRS, East US, of 2023", {**PRICES, "storage": 0.0184}),
    "google": ("Cloud Storage, Standard, us-east1, of 2025", {**PRICES, "storage": 0.02}),
}


def price_list(path: str) -> tuple[str, Prices]:
    """The source and the default prices for a log's path or URL: S3's if the store has none."""
    return _PRICE_LISTS.get(kind_of_store(path), _PRICE_LISTS["s3"])


def price(requests: Mapping[str, float], prices: Prices = PRICES) -> float:
    """The price of requests in dollars, by the names of `prices` in upper or lower case."""
    return sum(prices[name.lower()] * number / 1000 for name, number in requests.items())


def override_prices(overrides: Mapping[str, str], path: str = "") -> Prices:
    """The default prices for a log's path with some replaced.

    Raises:
        OptionError: a name is unknown, or a price is not a number of dollars.
    """
    prices = {**price_list(path)[1]}
    for name, text in overrides.items():
        if name not in prices:
            raise OptionError(f"there is no price {name!r}; there are {', '.join(prices)}")
        try:
            prices[name] = float(text)
        except ValueError:
            prices[name] = -1.0
        if not 0 <= prices[name] < 1e9:
            raise OptionError(f"the price of {name} is no number of dollars from 0 on: {text!r}")
    return prices


@dataclass(frozen=True)
class CoveredLog:
    """Positions start … end−1 of one log; `chain` is the newest record of its chain."""

    log: LogRange
    start: int
    end: int
    chain: ChainRecord | None


def _chain_of(log: LogRange) -> ChainRecord | None:
    """The newest record of the chain, or None if the chain does not have the log."""
    record = newest_record(log.log)
    return record if record and record.log(log.name, log.log_id) else None


class Past:
    """Logs in the tables `logs`, `records`, `steps`, `objects` and `chain` of a database.

    Args:
        logs: the ranges to cover; their heads are known already. Their options decide whether
            damage is passed over or raised.
        progress: called with the number of records read, and the number of all.

    Attributes:
        since_ms, until_ms: the covered time, in milliseconds since 1970.
    """

    def __init__(self, logs: Sequence[LogRange], progress: Callable[[int, int], None]) -> None:
        self._connection = connect()
        options = logs[0].options
        # The writer's clock may be ahead of this machine's; cover its records all the same.
        newest = max(min(log.live.header.timestamp_ms, CALENDAR_MS) for log in logs if log.live)
        self.until_ms = max(time.time_ns() // 1_000_000, newest)
        if options.ending_timestamp_ms is not None:
            self.until_ms = min(self.until_ms, options.ending_timestamp_ms)
        self.logs = [CoveredLog(log, *bounds(log, from_floor=True), _chain_of(log)) for log in logs]
        ranges = [
            {"sequencer": covered.log.name, "start": covered.start, "end": covered.end}
            for covered in self.logs
        ]
        self._fill("logs", ranges)
        self._fill("records", chain.from_iterable(_read(log, progress) for log in self.logs))
        self._fill("objects", chain.from_iterable(map(_listed, logs)))
        self.query(_STEPS)
        since = options.starting_timestamp_ms
        first = self.value("SELECT min(ms) FROM steps")
        # The history begins at the first record above the floor: earlier requests are unknown.
        begins_at_floor = all(
            0 < covered.log.floor.current() == covered.start for covered in self.logs
        )
        if since is None or begins_at_floor:
            # A log without records above its floor still pays for the objects below it.
            since = newest if first is None else max(first, since or 0)
        self.since_ms: int = min(since, self.until_ms)
        # All logs of a path share one chain.
        self._fill("chain", self._chain())

    def query(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """The rows of a query with `$name` parameters."""
        result = self._connection.execute(query, parameters)
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def value(self, query: str, **parameters: Any) -> Any:
        """The first value of the first row."""
        return next(iter(self.query(query, **parameters)[0].values()))

    def stored(self, covered: CoveredLog) -> dict[str, int]:
        """The number and bytes of one log's objects in the store now."""
        query = (
            "SELECT coalesce(sum(bytes), 0) AS stored, count(*) AS objects FROM objects "
            "WHERE sequencer = $name"
        )
        return self.query(query, name=covered.log.name)[0]

    def _fill(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        schema = _TABLES[table]
        self._connection.register("_new", schema.empty_table())
        self.query(f"CREATE TEMP TABLE {table} AS FROM _new")
        for batch in in_batches(iter(rows), schema):
            self._connection.register("_new", pa.table(batch))
            self.query(f"INSERT INTO {table} FROM _new")

    def _chain(self) -> Iterator[dict[str, Any]]:
        """The times of the lifecycle records, newest first: 1 GET for each."""
        log = self.logs[0].log.log
        newest = min((part.chain.number for part in self.logs if part.chain), default=keys.MAX + 1)

        def fetch(number: int) -> list[ChainRecord | None]:
            try:
                record = record_at(log, number)
            except NotFound:
                return [None]
            return [record] if record is not None else []

        numbers = range(newest, keys.MAX + 1)
        log_ids = {part.log.log_id for part in self.logs}
        for record in chain.from_iterable(run_parallel(log.store, fetch, numbers)):
            if record is None or record.timestamp_ms < self.since_ms:
                return
            has_ours = not log_ids.isdisjoint(part.log_id for part in record.logs.values())
            if has_ours and record.timestamp_ms <= self.until_ms:
                yield {"time": min(record.timestamp_ms, CALENDAR_MS) * 1000}


def _read(covered: CoveredLog, progress: Callable[[int, int], None]) -> Iterator[dict[str, Any]]:
    for row in record_rows(covered.log, Pushdown(), covered.start, covered.end):
        progress(row["position"] + 1 - covered.start, covered.end - covered.start)
        yield row


def _listed(log: LogRange) -> Iterator[dict[str, Any]]:
    """One row for each object of the log in the store. Other objects than of `batches/` have no
    position."""
    store = log.log.store
    for number, entry in numbered(store, keys.batches_prefix(log.log.prefix)):
        position = keys.position(number, log.window)
        yield {"sequencer": log.name, "position": position, "bytes": entry.size}
    for name in ("lifecycle", "txns", "consumers"):
        for entry in all_entries(store, keys.join_key(log.log.prefix, name) + "/"):
            yield {"sequencer": log.name, "bytes": entry.size}


def lines(past: Past, prices: Prices, by: str) -> list[Line]:
    """One line for each hour, day or month (UTC) with writes, and one for each gap between them."""
    rows = past.query(_LINES, by=by, step=f"1 {by}", since=past.since_ms, until=past.until_ms)
    return [_with_costs(row, row.pop("byte_ms"), prices) for row in rows]


def _with_costs(row: dict[str, Any], byte_ms: float, prices: Prices) -> Line:
    requests = {kind: count for kind in ("PUT", "GET", "LIST") if (count := row.pop(kind))}
    request_cost = price(requests, prices)
    storage_cost = prices["storage"] * byte_ms / 2**30 / MONTH_MS
    costs = {
        "request_cost": request_cost,
        "storage_cost": storage_cost,
        "cost": request_cost + storage_cost,
    }
    return {**row, "requests": requests, **costs}


def _total(every: Sequence[Line]) -> Line:
    added = ("commits", "rows", "bytes", "request_cost", "storage_cost", "cost")
    requests = sum((Counter(line["requests"]) for line in every), Counter[str]())
    return {
        "start_ms": every[0]["start_ms"],
        "end_ms": every[-1]["end_ms"],
        "stored": every[-1]["stored"],
        "requests": dict(requests),
        **{name: sum(line[name] for line in every) for name in added},
    }


def _month(past: Past, prices: Prices) -> Line | None:
    """A month at the rate of the last day, or of the whole history if that is shorter.

    `stored` is the month's mean if nothing is collected. Returns None for less than an hour of
    history.
    """
    recent = max(past.since_ms, past.until_ms - DAY)
    first = past.value("SELECT min(ms) FROM steps")
    if first is not None and all(log.start <= log.log.floor.current() for log in past.logs):
        # The range holds the first record, so no writer was active before it.
        recent = max(recent, first)
    span = past.until_ms - recent
    if span < HOUR:
        return None
    (added,) = past.query(
        f"{_ADDED} SELECT coalesce(sum(COLUMNS('^(PUT|GET|LIST|new_bytes)$')), 0) FROM added "
        "WHERE ms >= $since",
        since=recent,
    )
    growth = added.pop("new_bytes") / span * MONTH_MS
    mean = past.value("SELECT coalesce(sum(bytes), 0) FROM objects") + growth / 2
    monthly = {kind: round(count * MONTH_MS / span) for kind, count in added.items()}
    return _with_costs({"span_ms": span, "stored": round(mean), **monthly}, mean * MONTH_MS, prices)


def _whole_read(past: Past, prices: Prices) -> dict[str, Any]:
    """The requests and price of one read of all covered positions, within the store's region."""
    (read,) = past.query(
        "SELECT coalesce(sum(read_gets), 0) AS gets, coalesce(sum(bytes), 0) AS bytes FROM steps"
    )
    # Besides the records a reader gets the floor, and the head if it is not among the records.
    more = sum((log.end < log.log.gap) + (log.chain is not None) for log in past.logs)
    requests = {"LIST": 2 * len(past.logs), "GET": read["gets"] + more}
    return {"requests": requests, "bytes": read["bytes"], "cost": price(requests, prices)}


def costs(past: Past, prices: Prices, every: list[Line]) -> dict[str, Any]:
    """The costs of the covered time, with the prices that were used."""
    # The URL of a log at an endpoint of its own does not show the kind of the store.
    path = past.logs[0].log.options.path if past.logs else ""
    return {
        "prices": {"of": price_list(path)[0], "currency": "USD", **prices},
        "total": _total(every),
        "month": _month(past, prices),
        "whole_read": _whole_read(past, prices),
        "not_counted": list(UNCOUNTED),
    }


# Costs that records cannot prove, as text for people.
UNCOUNTED = (
    "requests of readers",
    "requests that were refused or repeated, and those of a task that Spark ran again",
    "a checkpoint on s3a, and the requests of compaction and collection but for the chain's PUTs",
    "positions that were collected, while they were there",
)
