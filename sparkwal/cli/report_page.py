"""The HTML page of `sparkwal report`.

The page shows the JSON document as tables, and charts that matplotlib draws. It loads nothing and
runs no script.
"""

import base64
import hashlib
import html
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sparkwal.cli.output import format_name, format_value, length, moment
from sparkwal.errors import escape

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
    elif (life := document["lifecycle"]) and life["to"] > life["cut"]:
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
