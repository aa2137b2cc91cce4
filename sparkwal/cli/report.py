"""`sparkwal report`: the past of a log as one HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sparkwal.cli.cost import past_of, takes_time
from sparkwal.cli.forms import whole_file
from sparkwal.cli.open_logs import Damage, check, head_of, logs_at
from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import as_json, takes_log
from sparkwal.console.output import print_json
from sparkwal.errors import InvalidLogError, need
from sparkwal.format.header import host_of
from sparkwal.lifecycle.consumers import ConsumerInfo, consumer_infos
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions, one_log
from sparkwal.sql.cost import UNCOUNTED, Line, lines, month, total, whole_read
from sparkwal.sql.past import LAST_MS, Looked, Past
from sparkwal.sql.prices import OF, Prices

FORMAT = 2
# A chart has at most so many steps, each of one of these widths or twice the last, and so on.
STEPS = 200
WIDTHS_MS = (1000, 5000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000, 86_400_000,
             604_800_000, 2_419_200_000, 31_449_600_000)  # fmt: skip
# Kept of what there may be any number of: the newest terms, the longest pauses, the first dead.
TERMS, PAUSES, DEAD = 200, 10, 100

_COMMITS = """
SELECT count(*) FILTER (kind = 'commit') AS commits, coalesce(sum(rows), 0)::BIGINT AS rows,
    coalesce(sum(bytes), 0)::BIGINT AS bytes, count(*) FILTER (kind = 'leader') AS leaders,
    coalesce(sum(dead), 0)::BIGINT AS dead, max(in_flight) AS most_in_flight,
    count(last_put_ms) AS puts_timed, quantile_disc(last_put_ms, 0.5) AS put_p50,
    quantile_disc(last_put_ms, 0.99) AS put_p99, max(last_put_ms) AS put_max,
    count(write_ms) AS writes_timed, quantile_disc(write_ms, 0.5) AS write_p50,
    quantile_disc(write_ms, 0.99) AS write_p99, max(write_ms) AS write_max,
    quantile_disc(bytes, 0.5) AS size_p50, quantile_disc(bytes, 0.99) AS size_p99,
    max(bytes) AS size_max, coalesce(sum(puts + dead), 0)::BIGINT AS puts,
    coalesce(sum(gets), 0)::BIGINT AS gets, coalesce(sum(lists), 0)::BIGINT AS lists
FROM steps
"""
_INTERVALS = """
WITH gaps AS (
    SELECT position AS before, lag(position) OVER w AS after, lag(ms) OVER w AS start_ms,
        ms - lag(ms) OVER w AS length_ms
    FROM steps WHERE kind = 'commit' WINDOW w AS (ORDER BY position)
)
"""
_TERMS = """
SELECT term, min(position) FILTER (kind = 'leader') AS position, min(ms) AS timestamp_ms,
    min_by(leader, position) AS leader_id, min_by(host, position) AS host,
    min_by(reason, position) AS reason,
    count(*) FILTER (kind = 'leader') - 1 AS seals, count(*) FILTER (kind = 'commit') AS commits
FROM steps WHERE term IS NOT NULL GROUP BY term
HAVING bool_or(kind = 'leader' AND reason <> 'seal') ORDER BY term DESC
"""


@click.command()
@takes_log
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
              help="Where the page goes; what is there is replaced.")  # fmt: skip
@takes_time
@as_json
def command(
    path: str,
    given: dict[str, str],
    output: Path | None,
    prices: Prices,
    as_json: bool,
) -> None:
    """The page is one file that loads nothing. One GET is made for each record. With --json the
    numbers of the page are printed; the page is then written only where -o says so.
    """
    if output is None and not as_json:
        raise Refused("name the page: -o report.html")
    if output is not None:
        need("matplotlib", "sparkwal[cli]")
        if not output.parent.is_dir():
            raise Refused(f"there is no folder {output.parent}; make it first")
        if output.exists() and not output.is_file():
            raise Refused(f"{output} is no file that could be replaced; name another")
    one_log(from_keywords(SourceOptions, path, given))
    damage = Damage()
    past = past_of(path, given, damage)
    try:
        (log,) = logs_at(path, given, Damage())
        log.look(floor=False)
        readers = consumer_infos(log.log, log.name, head_of(log), None)
    except InvalidLogError as error:
        readers = []
        damage.of(log.name)(error)
    numbers = document(past, prices, readers, damage.lines())
    if output is not None:
        from sparkwal.cli.page import page

        with whole_file(output) as file:
            # What the log says of itself may hold halves of characters.
            file.write(page(numbers).encode(errors="replace"))
        if not as_json:
            commits, size = numbers["totals"]["commits"], output.stat().st_size
            click.echo(f"{output}: {commits:,} commits, {size:,} bytes")
    if as_json:
        print_json(numbers)
    check(damage.lines(), "in the report")


def document(
    past: Past, prices: Prices, readers: Sequence[ConsumerInfo], damage: Sequence[str]
) -> dict[str, Any]:
    """All of a report. Times are milliseconds since 1970, costs dollars; no number is NaN."""
    (looked,) = past.logs
    assert looked.log.spark_schema is not None
    every = lines(past, prices, "day")
    (totals,) = past.ask(_COMMITS)
    whole = total(every)
    (span,) = past.ask("SELECT min(ms) AS first, max(ms) AS last FROM steps WHERE kind = 'commit'")
    written = (span["last"] or 0) - (span["first"] or 0)
    (intervals,) = past.ask(
        f"{_INTERVALS} SELECT count(length_ms) AS count, quantile_disc(length_ms, 0.5) AS p50, "
        "quantile_disc(length_ms, 0.99) AS p99, max(length_ms) AS max FROM gaps"
    )
    terms = past.ask(_TERMS)
    return {
        "format": FORMAT,
        "made_ms": past.until_ms,
        "log": _log(looked, span["last"]),
        "range": {"start": looked.start, "end": looked.end,
                  "since_ms": past.since_ms, "until_ms": past.until_ms},
        "damage": list(damage),
        "totals": {**totals, "requests": dict(whole.requests)},
        # Over the time in which something was written, and not up to now.
        "rates": {
            "first_ms": span["first"], "last_ms": span["last"], "written_ms": written,
            **{name: totals[name] * 1000 / written if written else None
               for name in ("commits", "rows", "bytes")},
        },
        "series": _series(past, every),
        "interval_ms": intervals,
        "terms": {"count": len(terms), "newest": terms[:TERMS]},
        "pauses": past.ask(
            f"{_INTERVALS} FROM gaps WHERE length_ms >= greatest(1000, 10 * $usual) "
            "ORDER BY length_ms DESC LIMIT $most", usual=intervals["p50"] or 0, most=PAUSES,
        ),
        "dead": {"count": totals["dead"], "first": [
            list(run.values()) for run in past.ask(
                "SELECT position - dead AS first, dead FROM steps WHERE dead > 0 "
                "ORDER BY position LIMIT $most", most=DEAD)
        ]},
        "consumers": [asdict(each) for each in readers],
        "lifecycle": _lifecycle(looked),
        "stored": {"bytes": looked.stored, "objects": looked.objects},
        "cost": {
            "prices": {"of": OF, "currency": "USD", **asdict(prices)},
            "total": asdict(whole), "month": month(past, prices),
            "whole_read": whole_read(past, prices), "not_counted": list(UNCOUNTED),
            "lines": [asdict(line) for line in every],
        },
        "schema": list(columns(json.loads(looked.log.spark_schema))),
    }  # fmt: skip


def _series(past: Past, every: Sequence[Line]) -> dict[str, Any]:
    (span,) = past.ask("SELECT min(ms) AS first, max(ms) AS last FROM steps")
    if span["first"] is None:
        return {"width_ms": WIDTHS_MS[0], "buckets": []}
    wanted = (span["last"] - span["first"]) // STEPS + 1
    width = next((each for each in WIDTHS_MS if each >= wanted), WIDTHS_MS[-1])
    while width < wanted:
        width *= 2
    query = (
        f"SELECT ms // $width * $width AS start_ms, {_COMMITS.strip()[7:]} GROUP BY 1 ORDER BY 1"
    )
    return {"width_ms": width, "buckets": past.ask(query, width=width)}


def _log(looked: Looked, last_commit_ms: int | None) -> dict[str, Any]:
    head = looked.head
    return {
        "url": looked.log.log.url, "sequencer": looked.log.name, "log_id": head.log_id,
        "next_position": looked.log.gap, "floor": looked.floor, "term": head.term,
        "leader_id": head.leader_id, "host": host_of(head), "window": head.window,
        "last_ms": min(head.timestamp_ms, LAST_MS), "last_commit_ms": last_commit_ms,
    }  # fmt: skip


def _lifecycle(looked: Looked) -> dict[str, Any] | None:
    chain = looked.chain
    if chain is None:
        return None
    target = chain.target
    return {
        "kind": chain.kind, "k": chain.k, "cut": chain.cut, "to": chain.to, "floor": chain.floor,
        "is_open": chain.is_open, "table": target.table if target else None,
        "mode": target.mode if target else None, "keys": list(target.keys) if target else [],
        "table_version": chain.table_version if target else None,
        "timestamp_ms": chain.timestamp_ms, "host": chain.host, "gc_grace_ms": chain.gc_grace_ms,
    }  # fmt: skip


def columns(kind: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The columns of a Spark schema, or the parts of a type, and what they are made of, outer ones
    first."""
    parts: list[tuple[str, Any, bool]] = []
    if isinstance(kind, dict) and kind["type"] == "struct":
        parts = [(each["name"], each["type"], each["nullable"]) for each in kind["fields"]]
    elif isinstance(kind, dict) and kind["type"] == "array":
        parts = [("element", kind["elementType"], kind["containsNull"])]
    elif isinstance(kind, dict) and kind["type"] == "map":
        parts = [("key", kind["keyType"], False),
                 ("value", kind["valueType"], kind["valueContainsNull"])]  # fmt: skip
    for name, inner, nullable in parts:
        plain = inner if isinstance(inner, str) else inner.get("type", "")
        yield {"name": name, "type": plain, "nullable": nullable, "depth": depth}
        yield from columns(inner, depth + 1)
