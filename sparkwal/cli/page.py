"""The page of a report: tables, and charts that matplotlib draws. Nothing that it needs lies
elsewhere, and no script runs in it."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import matplotlib
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from sparkwal.console.output import dollars, length, moment, rate, requests_text, size
from sparkwal.sql.past import LAST_MS

Document = dict[str, Any]
# What is no text, or turns the direction of what follows it.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_COLOURS = ("#2f6be4", "#e0791b")
_SHOWN = 12
_STYLE = """
:root { color-scheme: light dark }
body { margin: 0 auto; max-width: 1100px; padding: 16px; font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
th, figcaption { font-weight: normal; opacity: 0.7 } .bad { color: #c22 }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 12px }
figure { margin: 0 } figure img { width: 100%; background: #fff } .table { overflow-x: auto }
table { border-collapse: collapse } th, td { text-align: left; padding: 4px 16px 4px 0; border-bottom: 1px solid #8885 }
"""  # noqa: E501


def page(document: Document) -> str:
    """The HTML of `report.document`."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    log, made = safe(document["log"]["url"]), when(document["made_ms"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{log} · sparkwal report</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<h1><bdi>{log}</bdi></h1>
{chr(10).join(_sections(document))}
<p>Made {made} UTC by <code>sparkwal report</code>. All times are UTC. The exact numbers stand in this file as JSON, in the element <code>#report</code>.</p>
<script type="application/json" id="report">{_data(document)}</script>
</body>
</html>
"""  # noqa: E501


def _data(value: Any) -> str:
    """JSON that no text in it ends: neither a tag nor a comment begins."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def safe(value: object) -> str:
    """For an element or in quotes; what cannot be seen is shown as a mark."""
    return html.escape(_UNSEEN.sub("\ufffd", str(value)))


def when(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return "–"
    return moment(min(timestamp_ms, LAST_MS))[:19].replace("T", " ")


def count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def took(value: float | None) -> str:
    """Milliseconds, to three digits."""
    return "–" if value is None else f"{value:.3g} ms" if value < 1000 else f"{value / 1000:,.3g} s"


def _sections(document: Document) -> Iterator[str]:
    log, totals, cost = document["log"], document["totals"], document["cost"]
    if document["damage"]:
        damage = safe("; ".join(document["damage"]))
        yield f'<p class="bad">Something is damaged, and not counted: <bdi>{damage}</bdi></p>'
    yield _table("Summary", (), _summary(document))
    yield "<h2>Rate, latency, cost</h2>" + _charts(document)
    ends = [document["range"]["until_ms"]]
    ends += [term["timestamp_ms"] for term in document["terms"]["newest"]]
    yield _table("Leaders", ("from", "term", "host", "reason", "led for", "position", "commits"), [
        (when(term["timestamp_ms"]), count(term["term"]), term["host"], term["reason"],
         length(max(end - term["timestamp_ms"], 0)), count(term["position"]),
         count(term["commits"]))
        for term, end in zip(document["terms"]["newest"], ends, strict=False)
    ])  # fmt: skip
    yield _table("Pauses", ("from", "length", "after position", "until position"), [
        (when(each["start_ms"]), length(each["length_ms"]), count(each["after"]),
         count(each["before"])) for each in document["pauses"]
    ], f"The median time between two commits is {took(document['interval_ms']['p50'])}. "
       f"{count(totals['dead'])} positions hold no live record.")  # fmt: skip
    yield _table("Consumers", ("name", "host", "next position", "lag", "behind", "the floor"), [
        (each["name"], each["host"], count(each["position"]), count(each["lag"]),
         "–" if each["lag_ms"] is None else length(each["lag_ms"]),
         "of another log" if not each["of_this_log"]
         else "waits for it" if each["live"] else "passes it")
        for each in document["consumers"]
    ])  # fmt: skip
    yield _table("Lifecycle", (), [*_life(document).items()])
    yield _table("Cost", ("request", "made", "price of 1,000", "dollars"), [
        (kind, count(n), f"${cost['prices'][kind.lower()]:g}",
         dollars(n * cost["prices"][kind.lower()] / 1000))
        for kind, n in sorted(cost["total"]["requests"].items())
    ], f"{cost['prices']['of']}; a GB-month ${cost['prices']['storage']:g}. "
       f"Not counted: {'; '.join(cost['not_counted'])}.")  # fmt: skip
    yield _table("Schema", ("column", "type", "nullable"), [
        ("· " * each["depth"] + each["name"], each["type"], "yes" if each["nullable"] else "no")
        for each in document["schema"]
    ])  # fmt: skip
    yield _table("The log", (), [
        ("log", log["log_id"]), ("leader", log["leader_id"]), ("host", log["host"]),
        ("last record", when(log["last_ms"])), ("window", count(log["window"])),
        ("positions", f"{document['range']['start']:,} to {document['range']['end'] - 1:,}"),
        ("records", f"{count(totals['commits'])} commits, {count(totals['leaders'])} of leaders"),
    ])  # fmt: skip


def _summary(document: Document) -> list[tuple[str, str, str]]:
    log, totals, rates = document["log"], document["totals"], document["rates"]
    cost, month = document["cost"], document["cost"]["month"]
    read = cost["whole_read"]
    during = f"in the {length(rates['written_ms'])} from the first commit to the last"
    return [
        ("next position", count(log["next_position"]),
         f"floor {log['floor']:,}, term {log['term']}"),
        ("commits", count(totals["commits"]), f"{rate(rates['commits'])} a second {during}"),
        ("rows", count(totals["rows"]), f"{rate(rates['rows'])} a second"),
        ("stored", size(document["stored"]["bytes"]), f"{document['stored']['objects']:,} objects"),
        ("PUT of a record, p50", took(totals["put_p50"]),
         f"p99 {took(totals['put_p99'])}, the longest {took(totals['put_max'])}"),
        ("cost", _price(cost["total"]), requests_text(cost["total"]["requests"])),
        ("a month at this rate", _price(month), "less than an hour to compute it from"
         if month is None else f"the rate of the last {length(month['span_ms'])}"),
        ("one whole read", dollars(read["cost"]), requests_text(read["requests"])),
    ]  # fmt: skip


def _price(cost: Document | None) -> str:
    return "–" if cost is None else dollars(cost["request_cost"] + cost["storage_cost"])


def _life(document: Document) -> dict[str, str]:
    life = document["lifecycle"]
    if life is None:
        return {"lifecycle": "none: nothing of the log is in a table, and nothing is collected"}
    return {
        "floor": count(life["floor"]), "cut": f"{life['cut']:,}: below it all is in the table",
        "table": life["table"] or "none: the log is kept for a time or a size",
        "mode": " by ".join(filter(None, [life["mode"], ", ".join(life["keys"])])) or "–",
        "last step": f"{life['kind']}, {when(life['timestamp_ms'])}, on {life['host']}",
    }  # fmt: skip


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    if not rows:
        return f"<h2>{title}</h2><p>None. {safe(note)}</p>"
    top = "".join(f"<th>{safe(head)}</th>" for head in heads)

    def drawn(some: Iterable[Sequence[str]]) -> str:
        body = "".join(
            "<tr>" + "".join(f"<td><bdi>{safe(cell)}</bdi></td>" for cell in row) + "</tr>"
            for row in some
        )
        return f'<div class="table"><table><tr>{top}</tr>{body}</table></div>'

    rest = rows[_SHOWN:]
    more = f"<details><summary>{len(rest):,} more</summary>{drawn(rest)}</details>" if rest else ""
    return f"<h2>{title}</h2>{drawn(rows[:_SHOWN])}{more}<p>{safe(note)}</p>"


def _charts(document: Document) -> str:
    buckets, width = document["series"]["buckets"], document["series"]["width_ms"]
    if not buckets:
        return "<p>Nothing was written in this time.</p>"
    start = buckets[0]["start_ms"]
    slots = {(each["start_ms"] - start) // width: each for each in buckets}
    # A step ends where the next one begins.
    places = range(max(slots) + 2)
    # matplotlib needs some centuries at the end of the calendar.
    ends = (min(start + place * width, LAST_MS - 3 * 10**13) for place in places)
    times = [datetime.fromtimestamp(end / 1000, UTC) for end in ends]
    each = f"in {length(width).replace('.0', '')}"
    prices = document["cost"]["prices"]
    for bucket in buckets:
        made = {"put": bucket["puts"], "get": bucket["gets"], "list": bucket["lists"]}
        bucket["request_cost"] = sum(prices[name] * n / 1000 for name, n in made.items())
    wanted: list[tuple[str, list[str], Callable[[float | None], str]]] = [
        (f"commits {each}", ["commits"], count), (f"rows {each}", ["rows"], count),
        (f"bytes of rows {each}", ["bytes"], _bytes),
        ("bytes of a commit", ["size_p50", "size_p99"], _bytes),
        ("PUT of a record", ["put_p50", "put_p99"], took),
        ("writing the objects of a commit", ["write_p50", "write_p99"], took),
        ("most records in flight", ["most_in_flight"], count),
        (f"cost of requests {each}", ["request_cost"], lambda value: dollars(value or 0)),
    ]  # fmt: skip
    drawn = []
    for title, names, form in wanted:
        if all(bucket[name] is None for bucket in buckets for name in names):
            continue
        curves = [[slots.get(place, {}).get(name) for place in places] for name in names]
        picture = base64.b64encode(_drawn(times, names, curves, form).encode()).decode()
        drawn.append(f'<figure><figcaption>{title}</figcaption><img alt="{title}" '
                     f'src="data:image/svg+xml;base64,{picture}"></figure>')  # fmt: skip
    return f'<div class="grid">{"".join(drawn)}</div>'


def _bytes(value: float | None) -> str:
    return "–" if value is None else size(round(value))


def _drawn(
    times: Sequence[datetime], names: Sequence[str], curves: Sequence[Sequence[float | None]],
    form: Callable[[float | None], str],
) -> str:  # fmt: skip
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sparkwal", "font.size": 8,
                                "path.simplify": True}):  # fmt: skip
        figure = Figure((4.4, 2.1), layout="constrained")
        axes = figure.subplots()
        for name, curve, colour in zip(names, curves, _COLOURS, strict=False):
            if len(names) == 1:
                filled = [value or 0 for value in curve]
                axes.fill_between(times, filled, step="post", color=colour, linewidth=0.4)  # type: ignore[arg-type]
            else:
                there = [(time, value) for time, value in zip(times, curve, strict=True)
                         if value is not None]  # fmt: skip
                axes.plot(*zip(*there, strict=True), ".-", ms=2, lw=0.8, color=colour,
                          label=name.rpartition("_")[2])  # fmt: skip
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        named = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(named)
        axes.spines[["top", "right"]].set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
