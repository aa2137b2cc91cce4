"""What writing and keeping logs cost: queries over their past."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwal.sql.past import Past
from sparkwal.sql.prices import MONTH_MS, Prices

HOUR, DAY = 3_600_000, 86_400_000
_REQUESTS = """
SELECT date_trunc($by, time) AS began, count(*) FILTER (kind = 'commit') AS commits,
    coalesce(sum(rows), 0)::BIGINT AS rows, coalesce(sum(bytes), 0)::BIGINT AS bytes,
    sum(puts + dead)::BIGINT AS "PUT", sum(gets)::BIGINT AS "GET", sum(lists)::BIGINT AS "LIST"
FROM steps WHERE ms >= $since GROUP BY 1
UNION ALL
SELECT date_trunc($by, time), 0, 0, 0, count(*), 0, 0 FROM chain WHERE epoch_ms(time) >= $since
GROUP BY 1
"""
_STORED = """
SELECT date_trunc($by, time) AS began, sum(o.bytes)::BIGINT AS stored,
    sum(o.bytes::DOUBLE * (ms - $since)) AS moved
FROM objects o ASOF JOIN steps s
    ON o.sequencer = s.sequencer AND o.position <= s.position
WHERE o.position >= start AND ms >= $since GROUP BY 1
"""
_LINES = f"""
SELECT epoch_ms(began) AS period, epoch_ms(began + $step::INTERVAL) AS following,
    sum(commits)::BIGINT AS commits, sum(rows)::BIGINT AS rows, sum(bytes)::BIGINT AS bytes,
    sum("PUT")::BIGINT AS "PUT", sum("GET")::BIGINT AS "GET", sum("LIST")::BIGINT AS "LIST",
    coalesce(sum(stored), 0)::BIGINT AS stored, coalesce(sum(moved), 0) AS moved
FROM (SELECT began, sum(COLUMNS(* EXCLUDE began)) FROM ({_REQUESTS}) GROUP BY began)
LEFT JOIN ({_STORED}) USING (began) GROUP BY began ORDER BY 1
"""


@dataclass(frozen=True)
class Line:
    """The cost of a time, in dollars. `stored` bytes of what is there now are there at its end;
    `requests` are those of the writers that the records prove, by kind."""

    start_ms: int
    end_ms: int
    commits: int
    rows: int
    bytes: int
    stored: int
    requests: Mapping[str, int]
    request_cost: float
    storage_cost: float

    @property
    def cost(self) -> float:
        return self.request_cost + self.storage_cost


def lines(past: Past, prices: Prices, by: str) -> list[Line]:
    """One line for each hour, day or month (UTC) with writes, and one for each time between."""
    found: list[Line] = []
    held, reached = sum(log.held for log in past.logs), past.since_ms

    def add(start: int, end: int, row: Mapping[str, Any]) -> None:
        nonlocal held
        stored = row.get("stored", 0)
        # Since each object was written, up to the end of the line.
        lasted = max(stored * (end - past.since_ms) - row.get("moved", 0), 0)
        requests = {kind: row[kind] for kind in ("PUT", "GET", "LIST") if row.get(kind)}
        held += stored
        found.append(Line(
            start_ms=start, end_ms=end, commits=row.get("commits", 0), rows=row.get("rows", 0),
            bytes=row.get("bytes", 0), stored=held, requests=requests,
            request_cost=prices.of(requests),
            storage_cost=prices.of_storage((held - stored) * (end - start) + lasted),
        ))  # fmt: skip

    for row in past.ask(_LINES, by=by, step=f"1 {by}", since=past.since_ms):
        start = max(row["period"], past.since_ms)
        if start > reached:
            add(reached, start, {})
        reached = max(min(row["following"], past.until_ms), start)
        add(start, reached, row)
    if past.until_ms > reached or not found:
        add(reached, past.until_ms, {})
    return found


def month(past: Past, prices: Prices) -> dict[str, Any] | None:
    """A month at the rate of the last day, or of all that there is; None for less than an hour.
    `stored` is a mean of the month, if nothing is collected."""
    recent = max(past.since_ms, past.until_ms - DAY)
    first = past.value("SELECT epoch_ms(min(time)) FROM records")
    if first is not None and all(log.start <= log.floor for log in past.logs):
        recent = max(recent, first)  # nothing was written before it
    span = past.until_ms - recent
    if span < HOUR:
        return None
    given = {"by": "year", "since": recent}
    kinds = ", ".join(f'coalesce(sum("{kind}"), 0)::BIGINT AS "{kind}"'
                      for kind in ("PUT", "GET", "LIST"))  # fmt: skip
    (made,) = past.ask(f"SELECT {kinds} FROM ({_REQUESTS})", **given)
    monthly = {kind: round(n * MONTH_MS / span) for kind, n in made.items() if n}
    growing = past.value(f"SELECT coalesce(sum(stored), 0)::BIGINT FROM ({_STORED})", **given)
    mean = sum(log.stored for log in past.logs) + growing / span * MONTH_MS / 2
    return {
        "span_ms": span, "requests": monthly, "stored": round(mean),
        "request_cost": prices.of(monthly), "storage_cost": prices.of_storage(mean * MONTH_MS),
    }  # fmt: skip


def whole_read(past: Past, prices: Prices) -> dict[str, Any]:
    """What a reader of all that is counted pays; within the region bytes cost nothing."""
    (read,) = past.ask(
        "SELECT coalesce(sum(read_gets + dead), 0)::BIGINT AS gets, "
        "coalesce(sum(bytes), 0)::BIGINT AS bytes FROM steps"
    )
    # The head, which is among the records where all is read, and the floor.
    beside = sum((each.end < each.log.gap) + (each.chain is not None) for each in past.logs)
    requests = {"LIST": 2 * len(past.logs), "GET": read["gets"] + beside}
    return {"requests": requests, "bytes": read["bytes"], "cost": prices.of(requests)}


def total(every: Sequence[Line]) -> Line:
    requests = dict(sum((Counter(line.requests) for line in every), Counter[str]()))
    return Line(
        start_ms=every[0].start_ms, end_ms=every[-1].end_ms,
        commits=sum(each.commits for each in every), rows=sum(each.rows for each in every),
        bytes=sum(each.bytes for each in every), stored=every[-1].stored, requests=requests,
        request_cost=sum(each.request_cost for each in every),
        storage_cost=sum(each.storage_cost for each in every),
    )  # fmt: skip


# What no record knows, for people.
UNCOUNTED = (
    "requests of readers",
    "requests that were refused or repeated, and those of a task that Spark ran again",
    "a checkpoint on s3a, and the requests of compaction and collection but for the chain's PUTs",
    "positions that were collected, while they were there",
)
