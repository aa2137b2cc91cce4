"""`sparkwal cost`, and `report`: the past of a log as one HTML page and as a JSON document.

The page shows the JSON document as tables, and charts that matplotlib draws. It loads nothing and
runs no script.
"""

import base64
import hashlib
import html
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from sparkwal.cli.exit_codes import Refused
from sparkwal.cli.flags import as_json, key_values, options, takes_log, takes_logs
from sparkwal.cli.forms import atomic_file
from sparkwal.cli.open_logs import Damage, log_at, logs_at, progress, takes_times
from sparkwal.cli.output import (
    escape,
    format_name,
    format_value,
    length,
    moment,
    print_json,
    table,
)
from sparkwal.errors import InvalidLogError
from sparkwal.format.header import host_of
from sparkwal.format.schema import columns, type_name
from sparkwal.lifecycle.consumers import consumer_infos
from sparkwal.sql.past import (
    PRICES_OF,
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
_STYLE = """
:root { color-scheme: light dark }
body { margin: 0 auto; max-width: 1500px; padding: 16px 24px; overflow-wrap: anywhere }
body { font: 15px/1.5 system-ui, sans-serif }
img { width: 100%; background: #fff }
.verdict { font-size: 1.25em }
.bad { color: #c22 }
.good { color: #282 }
.parts { display: grid; gap: 0 40px }
.parts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)) }
.table { overflow: auto; max-height: 70vh }
table { border-collapse: collapse }
th { font-weight: normal; opacity: 0.7 }
th, td { text-align: left; padding: 4px 16px 4px 0 }
th, td { border-bottom: 1px solid #8885; overflow-wrap: normal }
"""
# A chart of one column shows sums as bars, a chart of two columns shows percentiles as lines.
_CHARTS = {
    "commits": ["commits"],
    "rows": ["rows"],
    "bytes of rows": ["bytes"],
    "bytes of a commit": ["size_p50", "size_p99"],
    "PUT of a record": ["put_p50", "put_p99"],
    "writing the objects of a commit": ["write_p50", "write_p99"],
    "most records in flight": ["most_in_flight"],
    "cost of requests": ["request_cost"],
}
_CHART_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 8,
    "date.converter": "concise",
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
    "axes.titlelocation": "left",
    "lines.linewidth": 0.8,
    "lines.markersize": 2,
}
_TITLES = {
    "totals": "What was written",
    "rates": "Per second",
    "stored": "Stored now",
    "interval_ms": "Time between two commits, in ms",
    "newest": "Leaders, newest first",
    "pauses": "Longest pauses",
    "dead": "Dead positions",
    "lifecycle": "Compaction and floor",
    "range": "What the report covers",
}
# Labels on the page, for names of the JSON document that people may not understand.
_LABELS = {
    "put": "PUT of a record",
    "write": "writing a commit's objects",
    "size": "size of a commit",
    "puts_timed": "PUTs with a time",
    "writes_timed": "commits with a time",
    "puts": "PUT requests",
    "gets": "GET requests",
    "lists": "LIST requests",
    "p50": "median",
    "p99": "99th percentile",
    "dead": "dead positions",
    "log_id": "log's id",
    "leader_id": "leader's id",
    "made_ms": "made",
    "k": "ranges",
    "cut": "in the table below position",
    "to": "promised below position",
    "gc_grace_ms": "grace before deletion",
}
# Without a commit for this time, the page calls the writer idle.
_IDLE_MS = 300_000


takes_prices = options(
    lambda price_pairs: {"prices": override_prices(key_values(price_pairs, "--price"))},
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
def cost(path: str, log_options: dict[str, str], prices: Prices, by: str, *, as_json: bool) -> None:
    """This counts the requests that the records prove. It makes one GET for each record. PATH may
    be on any store; the prices are those of S3.
    """
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
    table([*periods, sums["total"]], f"Cost in dollars, {PRICES_OF}; the last line is the total")
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
    path: str, log_options: dict[str, str], output: Path | None, prices: Prices, *, as_json: bool
) -> None:
    """The page is one file that loads nothing. The command makes one GET for each record. With
    --json it prints the numbers of the page, and writes the page only with -o.
    """
    if output is None and not as_json:
        raise Refused("name the page: -o report.html")
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
    (intervals,) = past.query(
        f"{_GAPS} SELECT count(length_ms) AS count, quantile_disc(length_ms, 0.5) AS p50, "
        "quantile_disc(length_ms, 0.99) AS p99, max(length_ms) AS max FROM gaps"
    )
    pauses = past.query(
        f"{_GAPS} FROM gaps WHERE length_ms >= greatest(1000, 10 * $usual) "
        "ORDER BY length_ms DESC LIMIT 10",
        usual=intervals["p50"] or 0,
    )
    terms = past.query(_TERMS)
    dead = past.query(
        "SELECT position - dead AS first, dead FROM steps WHERE dead > 0 ORDER BY 1 LIMIT 100"
    )
    readers = []
    try:
        readers = consumer_infos(log.log, log.name, log.head, None)
    except InvalidLogError as error:
        damage.add(log.name, error)
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
        "interval_ms": intervals,
        "pauses": pauses,
        "dead": {"count": totals["dead"], "first": [list(row.values()) for row in dead]},
        "consumers": [asdict(reader) for reader in readers],
        "lifecycle": chain and {**asdict(chain), "is_open": chain.is_open},
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


def _series(past: Past, prices: Prices) -> dict[str, Any]:
    span = past.value("SELECT max(ms) - min(ms) FROM steps") or 0
    width = next(width for width in _WIDTHS_MS if width * 200 > span)
    query = (
        "SELECT ms // $width * $width AS start_ms, coalesce(sum(puts * $put + gets * $get + "
        f"lists * $list) / 1000, 0) AS request_cost, {_SUMS} GROUP BY 1 ORDER BY 1"
    )
    price_of = {name: prices[name] for name in ("put", "get", "list")}
    return {"width_ms": width, "buckets": past.query(query, width=width, **price_of)}


def page(document: Mapping[str, Any]) -> str:
    """The HTML page of a report."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    url = safe(document["log"]["url"])
    time = format_value("last_ms", document["made_ms"])
    parts = [
        f"<section>{_part(name, value)}</section>"
        for name, value in document.items()
        if name not in ("format", "made_ms", "damage", "series")
    ]
    # Without "<" no text in it can end the script element.
    data = json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'sha256-{digest}';
 base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{url} · sparkwal report</title>
<style>{_STYLE}</style>
<h1><bdi>{url}</bdi></h1>
{_verdict(document)}
{_table([{"what": name, "is": value} for name, value in _status(document).items()])}
{_charts(**document["series"])}
<div class="parts">{"".join(parts)}</div>
<p>Made {time} by <code>sparkwal report</code>. All times are UTC.
The exact numbers are in this file as JSON, in the element <code>#report</code>.</p>
<script type="application/json" id="report">{data}</script>
"""


def _verdict(document: Mapping[str, Any]) -> str:
    """The first sentence of the page: does anything need attention?"""
    if document["damage"]:
        damage = safe("; ".join(document["damage"]))
        sentence = f"Damaged objects, which are not counted: {damage}"
    elif (life := document["lifecycle"]) and life["is_open"]:
        end = life["to"] - 1
        sentence = f"Compaction is not finished: positions {life['cut']}…{end} are promised"
    else:
        return '<p class="verdict good">Sound: every record in this range is readable.</p>'
    return f'<p class="verdict bad"><bdi>{sentence}</bdi></p>'


def _status(document: Mapping[str, Any]) -> dict[str, str]:
    """The facts that an operator looks for first."""
    log = document["log"]
    totals = document["totals"]
    life = document["lifecycle"]
    idle_ms = document["made_ms"] - log["last_ms"]
    state = f"idle for {length(idle_ms)}" if idle_ms > _IDLE_MS else "writing"
    behind = [f"{reader['name']}: {reader['lag']:,}" for reader in document["consumers"]]
    status = {
        "head": f"position {log['next_position'] - 1:,}, at {moment(log['last_ms'])}",
        "writer": f"{state}, on {log['host']}, term {log['term']}",
        "written": f"{totals['rows']:,} rows in {totals['commits']:,} commits, "
        f"{totals['takeovers']:,} takeovers",
        "PUT of a record": f"median {format_value('put_p50', totals['put_p50'])}, "
        f"99th percentile {format_value('put_p99', totals['put_p99'])}",
        "floor": f"position {log['floor']:,}",
    }
    if life and life["target"]:
        status["table"] = f"{life['target']['table']}, all rows below position {life['cut']:,}"
    if behind:
        status["positions that consumers have to read"] = "; ".join(behind)
    if month := document["cost"]["month"]:
        status["cost of a month at this rate"] = format_value("cost", month["cost"])
    return status


def _label(name: str) -> str:
    """A name of the JSON document in words."""
    if name in _LABELS:
        return _LABELS[name]
    first, _, last = name.rpartition("_")
    if last in ("p50", "p99", "max") and first in _LABELS:
        return f"{_LABELS[first]}, {_LABELS.get(last, 'longest' if first != 'size' else 'largest')}"
    return format_name(name)


def safe(value: object) -> str:
    """A value as HTML text or attribute, with invisible characters escaped."""
    return html.escape(escape(str(value)))


def _part(name: str, value: Any, level: int = 2) -> str:
    """A part of the JSON document: a table of its plain values, then the nested parts."""
    title = f"<h{level}>{_TITLES.get(name) or _label(name).capitalize()}</h{level}>"
    if not value:
        return f"{title}<p>None.</p>"
    if isinstance(value, list):
        return title + _table(value)
    plain = []
    nested = ""
    for key, item in value.items():
        match item:
            case dict() | [dict(), *_] if key != "requests":
                nested += _part(key, item, 3)
            case _:
                plain.append({"what": _label(key), "is": format_value(key, item)})
    return title + _table(plain) + nested


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = "".join(f"<th>{_label(name)}</th>" for name in rows[0])
    body = ""
    for row in rows:
        cells = (safe(format_value(name, value)) for name, value in row.items())
        body += f"<tr>{''.join(f'<td><bdi>{cell}</bdi></td>' for cell in cells)}</tr>"
    return f'<div class="table"><table><tr>{heads}</tr>{body}</table></div>'


def _charts(width_ms: int, buckets: Sequence[Mapping[str, Any]]) -> str:
    """The charts in two columns, as one SVG picture."""
    import matplotlib
    from matplotlib.figure import Figure

    charts = {
        title: names
        for title, names in _CHARTS.items()
        if any(bucket[name] is not None for bucket in buckets for name in names)
    }
    if not charts:
        return "<p>Nothing was written in this time.</p>"
    # Matplotlib pads the axis with later years, and Python's dates end with the year 9999.
    seconds = [min(bucket["start_ms"], 22 * 10**13) / 1000 for bucket in buckets]
    starts: Any = [datetime.fromtimestamp(second, UTC) for second in seconds]
    width: Any = timedelta(milliseconds=width_ms)
    out = io.BytesIO()
    with matplotlib.rc_context(_CHART_STYLE):
        lines = -(-len(charts) // 2)
        figure = Figure((11, 1.9 * lines))
        grid = [*figure.subplots(lines, 2, sharex=True, squeeze=False).flat]
        for axes in grid[len(charts) :]:
            axes.remove()
        for axes, (title, names) in zip(grid, charts.items(), strict=False):
            for name in names:
                values = [bucket[name] for bucket in buckets]
                if len(names) == 1:
                    axes.bar(starts, [value or 0 for value in values], width, align="edge")
                else:
                    axes.plot(starts, values, ".-", label=name.rpartition("_")[2])
                    axes.legend()
            axes.set(title=title, ylim=(0, None))
            axes.tick_params(labelbottom=True)
            axes.yaxis.set_major_formatter(
                lambda value, _, name=names[0]: format_value(name, value)
            )
        figure.savefig(out, format="svg")
    picture = base64.b64encode(out.getvalue()).decode()
    source = f"data:image/svg+xml;base64,{picture}"
    return f'<h2>Steps of {length(width_ms)}</h2><img alt="{", ".join(charts)}" src="{source}">'
