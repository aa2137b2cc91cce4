"""What writing and keeping logs cost: queries over their past."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sparkwal.sql.past import Past
from sparkwal.sql.prices import MONTH_MS, Prices

# The cost of a time, in dollars: `stored` bytes of what is there now are there at its end;
# `requests` are those of the writers that the records prove, by kind.
Line = dict[str, Any]
HOUR, DAY = 3_600_000, 86_400_000
_KINDS = ("PUT", "GET", "LIST")
# What was added when: requests, and `came` bytes, which lie there since.
_ADDED = """
WITH added AS (
    SELECT ms, time, (kind = 'commit')::INT AS commits, rows, bytes,
        puts AS "PUT", gets AS "GET", lists AS "LIST"
    FROM steps
    UNION ALL BY NAME SELECT epoch_ms(time) AS ms, time, 1 AS "PUT" FROM chain
    UNION ALL BY NAME
    SELECT ms, time, o.bytes AS came, o.bytes::HUGEINT * ms AS came_ms
    FROM objects o ASOF JOIN steps s ON o.sequencer = s.sequencer AND o.position <= s.position
    WHERE o.position >= start
)
"""
# One for each period with writes, and one for each time between.
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
)
SELECT start_ms, end_ms, coalesce(COLUMNS(* EXCLUDE (start_ms, end_ms, came, came_ms)), 0),
    $held + coalesce(sum(came) OVER (ORDER BY start_ms, end_ms), 0) AS stored,
    stored * (end_ms - start_ms) + coalesce(came * start_ms - came_ms, 0) AS byte_ms
FROM (FROM busy UNION ALL BY NAME SELECT began AS start_ms, ended AS end_ms FROM idle)
ORDER BY start_ms, end_ms
"""


def lines(past: Past, prices: Prices, by: str) -> list[Line]:
    """One line for each hour, day or month (UTC) with writes, and one for each time between."""
    held = past.value(
        "SELECT coalesce(sum(bytes), 0) FROM objects JOIN logs USING (sequencer) "
        "WHERE position < start"
    )
    found = past.ask(
        _LINES, by=by, step=f"1 {by}", since=past.since_ms, until=past.until_ms, held=held
    )
    return [_with_costs(each, each.pop("byte_ms"), prices) for each in found]


def _with_costs(row: dict[str, Any], byte_ms: float, prices: Prices) -> Line:
    requests = {kind: count for kind in _KINDS if (count := row.pop(kind))}
    costs = {"request_cost": prices.of(requests), "storage_cost": prices.of_storage(byte_ms)}
    return {**row, "requests": requests, **costs, "cost": sum(costs.values())}


def total(every: Sequence[Line]) -> Line:
    added = ("commits", "rows", "bytes", "request_cost", "storage_cost", "cost")
    requests = sum((Counter(line["requests"]) for line in every), Counter[str]())
    return {
        "start_ms": every[0]["start_ms"], "end_ms": every[-1]["end_ms"],
        "stored": every[-1]["stored"], "requests": dict(requests),
        **{name: sum(line[name] for line in every) for name in added},
    }  # fmt: skip


def month(past: Past, prices: Prices) -> Line | None:
    """A month at the rate of the last day, or of all that there is; None for less than an hour.
    `stored` is a mean of the month, if nothing is collected."""
    recent = max(past.since_ms, past.until_ms - DAY)
    first = past.value("SELECT min(ms) FROM steps")
    if first is not None and all(each.start <= each.log.floor.current() for each in past.logs):
        recent = max(recent, first)  # nothing was written before it
    span = past.until_ms - recent
    if span < HOUR:
        return None
    (made,) = past.ask(
        f"{_ADDED} SELECT coalesce(sum(COLUMNS('^(PUT|GET|LIST|came)$')), 0) FROM added "
        "WHERE ms >= $since",
        since=recent,
    )
    growing = made.pop("came") / span * MONTH_MS
    mean = past.value("SELECT coalesce(sum(bytes), 0) FROM objects") + growing / 2
    monthly = {kind: round(count * MONTH_MS / span) for kind, count in made.items()}
    return _with_costs({"span_ms": span, "stored": round(mean), **monthly}, mean * MONTH_MS, prices)


def whole_read(past: Past, prices: Prices) -> dict[str, Any]:
    """What a reader of all that is counted pays; within the region bytes cost nothing."""
    (read,) = past.ask(
        "SELECT coalesce(sum(read_gets), 0) AS gets, coalesce(sum(bytes), 0) AS bytes FROM steps"
    )
    # The head, which is among the records where all is read, and the floor.
    beside = sum((each.end < each.log.gap) + (each.chain is not None) for each in past.logs)
    requests = {"LIST": 2 * len(past.logs), "GET": read["gets"] + beside}
    return {"requests": requests, "bytes": read["bytes"], "cost": prices.of(requests)}


# What no record knows, for people.
UNCOUNTED = (
    "requests of readers",
    "requests that were refused or repeated, and those of a task that Spark ran again",
    "a checkpoint on s3a, and the requests of compaction and collection but for the chain's PUTs",
    "positions that were collected, while they were there",
)
