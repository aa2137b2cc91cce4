"""`sparkwal cost`, and `report`: the past of a log as one HTML page and as a JSON document."""

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sparkwal.cli.exit_codes import Refused
from sparkwal.cli.flags import as_json, key_values, options, takes_log, takes_logs
from sparkwal.cli.forms import atomic_file
from sparkwal.cli.open_logs import Damage, log_at, logs_at, progress, takes_times
from sparkwal.cli.output import format_name, format_value, moment, print_json, table
from sparkwal.cli.report_page import page
from sparkwal.errors import InvalidLogError
from sparkwal.format.header import host_of
from sparkwal.format.lifecycle_record import ChainRecord
from sparkwal.format.schema import columns, type_name
from sparkwal.lifecycle.consumers.consumer_list import consumer_infos
from sparkwal.sql.past import (
    UNCOUNTED,
    Line,
    Past,
    Prices,
    costs,
    lines,
    override_prices,
)
from sparkwal.sql.relations import CALENDAR_MS

# A chart has at most 200 steps, each of one of these widths: from a second to 64 years.
_WIDTHS_MS = (
    1000,
    5000,
    15_000,
    60_000,
    300_000,
    900_000,
    3_600_000,
    14_400_000,
    86_400_000,
    604_800_000,
    2_419_200_000,
    31_449_600_000,
    64 * 31_449_600_000,
)
_SUMS = """
    count(*) FILTER (kind = 'commit') AS commits, count(*) FILTER (kind = 'leader') AS takeovers,
    coalesce(sum(COLUMNS('^(rows|bytes|dead|puts|gets|lists)$')), 0),
    max(in_flight) AS most_in_flight, count(last_put_ms) AS puts_timed,
    quantile_disc(last_put_ms, 0.5) AS put_p50, quantile_disc(last_put_ms, 0.99) AS put_p99,
    max(last_put_ms) AS put_max, count(write_ms) AS writes_timed,
    quantile_disc(write_ms, 0.5) AS write_p50, quantile_disc(write_ms, 0.99) AS write_p99,
    max(write_ms) AS write_max, quantile_disc(bytes, 0.5) AS size_p50,
    quantile_disc(bytes, 0.99) AS size_p99, max(bytes) AS size_max
FROM steps
"""
# The time between the first and the last commit, and not up to now.
_RATES = """
SELECT min(ms) AS first_ms, max(ms) AS last_ms, coalesce(last_ms - first_ms, 0) AS written_ms,
    count(*) * 1000 / nullif(written_ms, 0) AS commits,
    sum(COLUMNS('^(rows|bytes)$')) * 1000 / nullif(written_ms, 0)
FROM steps WHERE kind = 'commit'
"""
_GAPS = """
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
    count(*) FILTER (kind = 'seal') AS seals, count(*) FILTER (kind = 'commit') AS commits
FROM steps WHERE term IS NOT NULL GROUP BY term
HAVING bool_or(kind = 'leader') ORDER BY term DESC
"""


takes_prices = options(
    lambda price_pairs: {"price_texts": key_values(price_pairs, "--price")},
    click.option(
        "--price",
        "price_pairs",
        multiple=True,
        metavar="NAME=DOLLARS",
        help="put, list, get or delete for 1,000 requests, storage for a GB-month; repeatable.",
    ),
)


@click.command("cost")
@takes_logs
@takes_times
@takes_prices
@click.option(
    "--by",
    type=click.Choice(["hour", "day", "month"]),
    default="day",
    show_default=True,
    help="Print a line for each period, in UTC.",
)
@as_json
def cost(
    path: str, log_options: dict[str, str], price_texts: dict[str, str], by: str, *, as_json: bool
) -> None:
    """This counts the requests that the records prove. It makes one GET for each record. PATH may
    be on any store; the prices are those of S3, Azure or Google.
    """
    prices = override_prices(price_texts, path)
    damage = Damage()
    with progress("read") as done:
        past = Past(logs_at(path, log_options, damage), done)
    periods = lines(past, prices, by)
    sums = costs(past, prices, periods)
    if as_json:
        logs = [
            {
                "sequencer": looked.log.name,
                "start": looked.start,
                "end": looked.end,
                "floor": looked.log.floor.current(),
                **past.stored(looked),
                "damage": damage.lines(looked.log.name),
            }
            for looked in past.logs
        ]
        dated = {"periods": [*map(_dated, periods)], "total": _dated(sums["total"])}
        print_json({**sums, "logs": logs, **dated})
    else:
        _show_cost(past, periods, sums)
    damage.check("counted")


def _dated(line: Line) -> Line:
    return {**line, "start": moment(line["start_ms"]), "end": moment(line["end_ms"])}


def _show_cost(past: Past, periods: list[Line], sums: dict[str, Any]) -> None:
    table(
        [*periods, sums["total"]],
        f"Cost in dollars, {sums['prices']['of']}; the last line is the total",
    )
    for name, label in (("month", "a month at this rate"), ("whole_read", "one whole read")):
        numbers = (sums[name] or {}).items()
        texts = [f"{format_name(key)} {format_value(key, value)}" for key, value in numbers]
        click.echo(f"{label}: {', '.join(texts) or 'unknown, the log covers less than an hour'}")
    if any(looked.log.floor.current() for looked in past.logs):
        click.echo("not counted: positions below the floor")
    click.echo(f"not counted: {'; '.join(UNCOUNTED)}")


@click.command()
@takes_log
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of the page. An existing file is replaced.",
)
@takes_times
@takes_prices
@as_json
def command(
    path: str,
    log_options: dict[str, str],
    output: Path | None,
    price_texts: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """The page is one file that loads nothing. The command makes one GET for each record. With
    --json it prints the numbers of the page, and writes the page only with -o.
    """
    if output is None and not as_json:
        raise Refused("name the page: -o report.html")
    prices = override_prices(price_texts, path)
    damage = Damage()
    with atomic_file(output) if output is not None else nullcontext() as file:
        with progress("read") as done:
            past = Past([log_at(path, log_options, damage)], done)
        numbers = document(past, prices, damage)
        if file is not None:
            file.write(page(numbers).encode())
    if as_json:
        print_json(numbers)
    else:
        click.echo(f"{output}: {numbers['totals']['commits']:,} commits")
    damage.check("in the report")


def _lifecycle(record: ChainRecord, name: str) -> dict[str, Any]:
    """The lifecycle of a log as JSON takes it."""
    log = record.logs[name]
    promise = record.promise(log.table)
    ranges = promise.ranges if promise else ()
    table = asdict(promise.table) if promise else {}
    return {
        "kind": record.kind,
        "number": record.number,
        "record_id": record.record_id,
        "sequencer": name,
        **asdict(log),
        "target": None,
        "k": 0,
        **table,
        "is_open": bool(ranges),
        "others": [asdict(range_) for range_ in ranges if range_.sequencer != name],
        "gc_grace_ms": record.gc_grace_ms,
        "timestamp_ms": record.timestamp_ms,
        "host": record.host,
    }


def document(past: Past, prices: Prices, damage: Damage) -> dict[str, Any]:
    """The JSON document of a report.

    Times are milliseconds since 1970, costs are dollars, and no number is NaN. Long lists are cut
    to the newest terms, the longest pauses and the first dead positions.
    """
    (looked,) = past.logs
    log, chain = looked.log, looked.chain
    assert log.head is not None and log.live is not None and log.spark_schema is not None
    head = log.live.header
    stored = past.stored(looked)
    periods = lines(past, prices, "day")
    sums = costs(past, prices, periods)
    (totals,) = past.query(f"SELECT {_SUMS}")
    (rates,) = past.query(_RATES)
    terms = past.query(_TERMS)
    dead = past.query(
        "SELECT position - dead AS first, dead FROM steps WHERE dead > 0 ORDER BY 1 LIMIT 100"
    )
    (readers,) = consumer_infos([(log.log, log.name, log.head)], None)
    if isinstance(readers, InvalidLogError):
        damage.add(log.name, readers)
        readers = []
    return {
        "format": 4,
        "made_ms": past.until_ms,
        "damage": damage.lines(),
        "totals": {**totals, "requests": sums["total"]["requests"]},
        "rates": rates,
        "stored": {"bytes": stored["stored"], "objects": stored["objects"]},
        "series": _series(past, prices),
        "cost": {**sums, "lines": periods},
        "terms": {"count": len(terms), "newest": terms[:200]},
        **_pauses(past),
        "dead": {"count": totals["dead"], "first": [list(row.values()) for row in dead]},
        "consumers": [asdict(reader) for reader in readers],
        "lifecycle": chain and _lifecycle(chain, log.name),
        "log": {
            "url": log.log.url,
            "sequencer": log.name,
            "log_id": head.log_id,
            "next_position": log.gap,
            "floor": log.floor.current(),
            "term": head.term,
            "leader_id": head.leader_id,
            "host": host_of(head),
            "window": head.window,
            "last_ms": min(head.timestamp_ms, CALENDAR_MS),
            "last_commit_ms": rates["last_ms"],
        },
        "range": {
            "start": looked.start,
            "end": looked.end,
            "since_ms": past.since_ms,
            "until_ms": past.until_ms,
        },
        "schema": [
            {"name": name, "type": type_name(kind)}
            for name, kind in columns(log.spark_schema).items()
        ],
    }


def _pauses(past: Past) -> dict[str, Any]:
    """The usual time between two commits, and the longest ones."""
    (intervals,) = past.query(
        f"{_GAPS} SELECT count(length_ms) AS count, quantile_disc(length_ms, 0.5) AS p50, "
        "quantile_disc(length_ms, 0.99) AS p99, max(length_ms) AS max FROM gaps"
    )
    pauses = past.query(
        f"{_GAPS} FROM gaps WHERE length_ms >= greatest(1000, 10 * $usual) "
        "ORDER BY length_ms DESC LIMIT 10",
        usual=intervals["p50"] or 0,
    )
    return {"interval_ms": intervals, "pauses": pauses}


def _series(past: Past, prices: Prices) -> dict[str, Any]:
    span = past.value("SELECT max(ms) - min(ms) FROM steps") or 0
    width = next(width for width in _WIDTHS_MS if width * 200 > span)
    query = (
        "SELECT ms // $width * $width AS start_ms, coalesce(sum(puts * $put + gets * $get + "
        f"lists * $list) / 1000, 0) AS request_cost, {_SUMS} GROUP BY 1 ORDER BY 1"
    )
    price_of = {name: prices[name] for name in ("put", "get", "list")}
    return {"width_ms": width, "buckets": past.query(query, width=width, **price_of)}
