"""The sections of the page, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwal.cli.looking_back import dollars, requests_text
from sparkwal.cli.page.charts import Curve, Time, band, bars
from sparkwal.cli.page.parts import definitions, section, strip, table, tiles
from sparkwal.cli.page.text import byte_size, count, lasting, milliseconds, safe, short, step, when

Document = dict[str, Any]
_LOOKS = "abcdef"
_TOO_SHORT = "less than an hour to tell it from"


def header(document: Document) -> str:
    """Which log this is, and what it comes to."""
    log, totals, cost = document["log"], document["totals"], document["cost"]
    last, put, month = log["last_commit_ms"], totals["put_ms"], cost["month"]
    told = [
        ("Last commit", f"{lasting(max(document['made_ms'] - last, 0))} ago" if last else "none",
         f"{when(last)}" if last else "no rows were written in this time"),
        ("Next position", count(log["next_position"]), f"term {log['term']}, on {log['host']}"),
        ("Commits", short(totals["commits"]), f"{count(totals['commits'])} in "
                                              f"{lasting(_span(document))}"),
        ("Rows", short(totals["rows"]), count(totals["rows"])),
        ("Bytes of rows", byte_size(totals["bytes"]),
         f"median commit {byte_size(totals['commit_bytes']['p50'])}"),
        ("In the store now", byte_size(document["stored"]["bytes"]),
         f"{count(document['stored']['objects'])} objects"),
        ("Object write, p99", milliseconds(put["p99"]),
         f"median {milliseconds(put['p50'])}" if put["count"] else "no data objects"),
        ("A month at this rate", _price(month), "requests and storage" if month else _TOO_SHORT),
    ]  # fmt: skip
    damage = document["damage"]
    banner = f'<p class="card banner"><b>Something is damaged.</b> {safe(damage)}</p>'
    kind = "" if log["sequencer"] == "default" else f" · sequencer {safe(log['sequencer'])}"
    return (
        f'<header><p class="name">sparkwal report{kind}</p><h1><bdi>{safe(log["url"])}</bdi></h1>'
        f'<p class="soft">{when(document["range"]["since_ms"])} to '
        f"{when(document['range']['until_ms'])} UTC</p>"
        f'{banner if damage else ""}<div class="tiles">{tiles(told)}</div></header>'
    )


def _price(paid: dict[str, Any] | None) -> str:
    return dollars(paid["request_cost"] + paid["storage_cost"]) if paid else "–"


def _parts(paid: dict[str, Any]) -> str:
    return f"{dollars(paid['request_cost'])} requests, {dollars(paid['storage_cost'])} storage"


def every(document: Document, time: Time, curves: dict[str, list[Curve]]) -> Iterator[str]:
    """The sections below the header."""
    yield _rate(document, time, curves)
    yield _terms(document)
    yield _pauses(document)
    yield _consumers(document)
    yield _lifecycle(document)
    yield _cost(document, time, curves)
    yield _schema(document)
    yield _facts(document)


def _span(document: Document) -> int:
    found: int = document["range"]["until_ms"] - document["range"]["since_ms"]
    return found


def _rate(document: Document, time: Time, curves: dict[str, list[Curve]]) -> str:
    if not document["series"]["buckets"]:
        return section("Rate", '<p class="card empty">Nothing was written in this time.</p>')
    each = f"in {step(time.width_ms)}"
    drawn = [
        bars("commits", "Commits", each, "count", time, curves["commits"]),
        bars("rows", "Rows", each, "count", time, curves["rows"]),
        bars("bytes", "Bytes of rows", each, "bytes", time, curves["bytes"]),
        band("sizes", "Size of a commit", "", "bytes", time, *curves["sizes"]),
    ]
    note = ""
    if document["totals"]["put_ms"]["count"]:
        drawn.append(
            band("latency", "Writing the data objects of a commit", "slowest task", "ms", time,
                 *curves["latency"])
        )  # fmt: skip
    else:
        note = (
            "No latency is shown: these rows travel in their commit records, and no data object "
            "was written. How long the PUT of a record took, <code>sparkwal metrics</code> and the "
            "event <code>durable</code> tell."
        )
    if document["totals"]["most_in_flight"]:
        drawn.append(
            bars("in_flight", "Records under way at once", "the most", "count", time,
                 curves["in_flight"])
        )  # fmt: skip
    if len(drawn) % 2:
        drawn[-1] = drawn[-1].replace('class="card chart"', 'class="card chart all"', 1)
    return section("Rate and latency", f'<div class="two">{"".join(drawn)}</div>', note)


def _terms(document: Document) -> str:
    terms = document["terms"]["newest"]
    if not terms:
        return section("Leaders", '<p class="card empty">No leader record in this time.</p>')
    end_ms = document["range"]["until_ms"]
    ends = [end_ms, *(term["timestamp_ms"] for term in terms[:-1])]
    hosts: dict[str, str] = {}
    for term in reversed(terms):
        hosts.setdefault(term["host"], _LOOKS[len(hosts) % len(_LOOKS)])
    first = terms[-1]["timestamp_ms"]
    runs = [
        (term["timestamp_ms"] - first, end - first, hosts[term["host"]],
         f"term {term['term']}, {term['host']}, {term['reason']}, {when(term['timestamp_ms'])}")
        for term, end in zip(terms, ends, strict=True)
    ]  # fmt: skip
    legend = "".join(
        f'<li class="{look}"><bdi>{safe(host)}</bdi></li>' for host, look in list(hosts.items())[:6]
    )
    more = f"<li>{len(hosts) - 6} more</li>" if len(hosts) > 6 else ""
    drawn = (
        f'<div class="card">{strip("terms", runs, end_ms - first)}'
        f'<div class="ends"><span>{when(first)}</span><span>{when(end_ms)}</span></div>'
        f'<ul class="hosts">{legend}{more}</ul></div>'
    )
    rows = [
        [when(term["timestamp_ms"]), count(term["term"]), term["host"], term["reason"],
         lasting(end - term["timestamp_ms"]), count(term["position"]), count(term["commits"]),
         count(term["seals"])]
        for term, end in zip(terms, ends, strict=True)
    ]  # fmt: skip
    heads = ("from.t", "term.n", "host", "reason", "led for.n", "position.n.wide",
             "commits.n", "seals.n.wide")  # fmt: skip
    told = document["terms"]["count"]
    note = f"The newest {len(terms):,} of {told:,} are shown." if told > len(terms) else ""
    return section("Leaders", drawn + table("terms", heads, rows), note)


def _pauses(document: Document) -> str:
    dead, usual = document["dead"], document["interval_ms"]
    rows = [
        [when(p["start_ms"]), lasting(p["length_ms"]), count(p["after"]), count(p["before"])]
        for p in document["pauses"]
    ]
    told = '<p class="card empty">No pause of ten times the usual interval, or more.</p>'
    if rows:
        told = table("pauses", ("from.t", "length.n", "after position.n", "until position.n"), rows)
    note = f"The median time between two commits is {milliseconds(usual['p50'])}. "
    note = note if usual["count"] else ""
    if dead["count"]:
        runs = [str(p) if n == 1 else f"{p} to {p + n - 1}" for p, n in dead["first"][:12]]
        held = sum(n for _, n in dead["first"][:12])
        more = " and others" if held < dead["count"] else ""
        note += (
            f"{count(dead['count'])} positions hold no live record: their writers had been fenced, "
            f"and nobody acknowledged them. {', '.join(runs)}{more}."
        )
    else:
        note += "Every position holds a live record."
    return section("Pauses and gaps", told, note)


def _consumers(document: Document) -> str:
    rows = [
        [each["name"], each["host"], count(each["position"]), count(each["lag"]),
         lasting(each["lag_ms"]) if each["lag_ms"] is not None else "–",
         lasting(each["age_ms"]), _standing(each)]
        for each in document["consumers"]
    ]  # fmt: skip
    if not rows:
        return ""
    heads = ("name", "host.wide", "next position.n", "lag, positions.n", "lag, time.n",
             "told before.n.wide", "the floor")  # fmt: skip
    return section("Consumers", table("consumers", heads, rows))


def _standing(consumer: dict[str, Any]) -> str:
    if not consumer["of_this_log"]:
        return "of another log"
    return "waits for it" if consumer["live"] else "passes it"


def _lifecycle(document: Document) -> str:
    life, gap = document["lifecycle"], document["log"]["next_position"]
    if life is None:
        return section(
            "Lifecycle",
            '<p class="card empty">The log has no lifecycle: it is not compacted, and nothing of '
            "it is collected.</p>",
        )
    floor, cut = life["floor"], max(life["cut"], life["floor"])
    runs = [(0, floor, "none", f"collected: below {floor:,}")] if floor else []
    if cut > floor:
        runs.append((floor, cut, "c", f"in the table: {floor:,} to {cut - 1:,}"))
    if gap > cut:
        runs.append((cut, gap, "a", f"in the log only: {cut:,} to {gap - 1:,}"))
    legend = "".join(f'<li class="{look}">{safe(told)}</li>' for _, _, look, told in runs)
    facts = {
        "floor": count(floor), "cut": count(life["cut"]), "ranges": count(life["k"]),
        "table": life["table"] or "none: the log is kept for a time or a size",
        "mode": " by ".join([life["mode"], ", ".join(life["keys"])] if life["keys"]
                            else [life["mode"] or "–"]),
        "table version": "–" if life["table_version"] is None else count(life["table_version"]),
        "last step": f"{life['kind']}, {when(life['timestamp_ms'])}, on {life['host']}",
    }  # fmt: skip
    if life["is_open"]:
        facts["under way"] = f"positions {life['cut']:,} to {life['to'] - 1:,} into the table"
    return section(
        "Lifecycle",
        f'<div class="card">{strip("lifecycle", runs, gap)}<ul class="hosts">{legend}</ul></div>'
        f'<div class="card more">{definitions(facts)}</div>',
    )


def _cost(document: Document, time: Time, curves: dict[str, list[Curve]]) -> str:
    cost = document["cost"]
    total, month, read = cost["total"], cost["month"], cost["whole_read"]
    told = [
        ("This time", _price(total), _parts(total)),
        ("A month at this rate", _price(month), _TOO_SHORT if month is None else (
            f"{_parts(month)} of {byte_size(month['stored'])} if nothing is collected; the rate "
            f"of the last {lasting(month['span_ms'])}")),
        ("One whole read", dollars(read["cost"]),
         f"{requests_text(read['requests'])}; {byte_size(read['bytes'])}"),
    ]  # fmt: skip
    chart = ""
    if document["series"]["buckets"]:
        chart = bars("cost", "Cost", f"in {step(time.width_ms)}", "dollars", time, curves["cost"])
    prices, requests = cost["prices"], total["requests"]
    rows = [
        [kind, count(number), f"${prices[kind.lower()]:g}",
         dollars(number * prices[kind.lower()] / 1000),
         count(month["requests"].get(kind, 0)) if month else "–"]
        for kind, number in sorted(requests.items()) if number
    ]  # fmt: skip
    heads = ("request", "made.n", "price of 1,000.n", "dollars.n", "in a month.n")
    note = (
        f"Prices: {safe(prices['of'])}, unless changed; a GB-month ${prices['storage']:g}. Counted "
        f"is what the records prove. No record tells: {safe('; '.join(cost['not_told']))}."
    )
    body = f'<div class="tiles three">{tiles(told)}</div><div class="more">{chart}</div>'
    return section("Cost", body + table("requests", heads, rows), note)


def _schema(document: Document) -> str:
    rows = [
        [("deep", min(each["depth"], 4), each["name"]), each["type"],
         "yes" if each["nullable"] else "no"]
        for each in document["schema"]
    ]  # fmt: skip
    if not rows:
        return ""
    return section("Schema", table("schema", ("column", "type", "nullable"), rows, 60))


def _facts(document: Document) -> str:
    log, totals = document["log"], document["totals"]
    start, end = document["range"]["start"], document["range"]["end"]
    facts = {
        "log": log["log_id"], "leader": log["leader_id"], "host": log["host"],
        "last record": when(log["last_ms"]), "window": count(log["window"]),
        "positions told of": f"{start:,} to {end - 1:,}" if end > start else "none",
        "floor": count(log["floor"]),
        "records": f"{count(totals['commits'])} commits, {count(totals['leaders'])} of leaders, "
                   f"{count(totals['dead'])} dead",
        "requests proved": requests_text(totals["requests"]),
    }  # fmt: skip
    return section("The log", f'<div class="card">{definitions(facts)}</div>')
