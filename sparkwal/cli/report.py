"""`sparkwal cost` and `report`: what a log cost, and its past as one HTML page."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sparkwal.cli.forms import whole_file
from sparkwal.cli.open_logs import Damage, bounds, head_of, logs_at, progress
from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import as_json, as_moment, key_values, takes_log, takes_logs
from sparkwal.console.output import dollars, length, moment, print_json, requests_text, shown, size
from sparkwal.errors import InvalidLogError, need
from sparkwal.format.header import host_of
from sparkwal.format.lifecycle import LifecycleRecord
from sparkwal.lifecycle.consumers import ConsumerInfo, consumer_infos
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions, one_log
from sparkwal.sql.cost import UNCOUNTED, Line, lines, month, total, whole_read
from sparkwal.sql.past import LAST_MS, Past
from sparkwal.sql.prices import OF, Prices, changed

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


def takes_time(command: Callable[..., None]) -> Callable[..., None]:
    """--since and --until as options of reading in `given`, and --price as `prices`."""

    @click.option("--since", metavar="TIME", callback=as_moment,
                  help="Only from then on: 7d, 2026-01-31T12:00Z.")  # fmt: skip
    @click.option("--until", metavar="TIME", callback=as_moment, help="Only up to then.")
    @click.option(
        "--price", "given_prices", multiple=True, metavar="NAME=DOLLARS",
        help="put, list, get, delete of 1,000 requests, storage of a GB-month; repeatable.",
    )  # fmt: skip
    @functools.wraps(command)
    def read(
        given: dict[str, str], since: int | None, until: int | None, given_prices: Iterable[str],
        **others: Any,
    ) -> None:  # fmt: skip
        if since is not None and until is not None and until < since:
            raise Refused("--until lies before --since")
        try:
            prices = changed(Prices(), key_values(given_prices, "--price"))
        except ValueError as wrong:
            raise Refused(str(wrong)) from None
        command(given=given | bounds(None, None, since, until), prices=prices, **others)

    return read


def past_of(path: str, given: Mapping[str, str], damage: Damage) -> Past:
    """The past of one log, or with sequencers=* of all; on a terminal it shows how far it is."""
    logs = logs_at(path, given, damage)
    for log in logs:
        log.look()
        head_of(log)
    with progress("read") as done:
        return Past(logs, done)


@click.command("cost")
@takes_logs
@takes_time
@click.option("--by", type=click.Choice(["hour", "day", "month"]), default="day",
              show_default=True, help="One line for each of these, in UTC.")  # fmt: skip
@as_json
def cost(path: str, given: dict[str, str], prices: Prices, by: str, as_json: bool) -> None:
    """The requests are those that the records prove; one GET is made for each record. PATH may lie
    on any store: the prices are S3's.
    """
    damage = Damage()
    past = past_of(path, given, damage)
    every = lines(past, prices, by)
    if as_json:
        print_json(_cost(past, every, prices, damage))
    else:
        _show_cost(past, every, by, prices)
    damage.check("counted")


def _cost(past: Past, every: list[Line], prices: Prices, damage: Damage) -> dict[str, Any]:
    return {
        "prices": {"of": OF, "currency": "USD", **asdict(prices)},
        "logs": [
            {"sequencer": each.log.name, "start": each.start, "end": each.end,
             "floor": each.floor, "stored": each.stored, "objects": each.objects,
             "damage": damage.lines(each.log.name)}
            for each in past.logs
        ],
        "periods": [_line(line) for line in every],
        "total": _line(total(every)),
        "month": month(past, prices),
        "whole_read": whole_read(past, prices),
        "not_counted": list(UNCOUNTED),
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    return {
        **asdict(line), "cost": line.cost,
        "start": moment(line.start_ms), "end": moment(line.end_ms),
    }  # fmt: skip


def _show_cost(past: Past, every: list[Line], by: str, prices: Prices) -> None:
    columns = [by, ">commits", ">PUT", ">GET", ">LIST", ">requests", ">stored", ">storage", ">sum"]
    rows = [_cells(_name(line, by), line) for line in every]
    shown(f"Cost in dollars, {OF}", columns, [*rows, _cells("total", total(every))])
    monthly, read = month(past, prices), whole_read(past, prices)
    if monthly is None:
        click.echo("a month at this rate: there is less than an hour to compute it from")
    else:
        cost = dollars(monthly["request_cost"] + monthly["storage_cost"])
        click.echo(
            f"a month at the rate of the last {length(monthly['span_ms'])}: {cost} "
            f"({dollars(monthly['request_cost'])} for {requests_text(monthly['requests'])}; "
            f"{dollars(monthly['storage_cost'])} for {size(monthly['stored'])} if nothing is "
            "collected)"
        )
    click.echo(f"one whole read: {dollars(read['cost'])} ({requests_text(read['requests'])}, "
               f"{size(read['bytes'])})")  # fmt: skip
    if any(each.floor for each in past.logs):
        click.echo("the log begins at its floor: what was collected is not counted")
    click.echo(f"not counted: {'; '.join(UNCOUNTED)}")


def _name(line: Line, by: str) -> str:
    digits = {"hour": 13, "day": 10, "month": 7}[by]
    ends = line.start_ms, max(line.end_ms - 1, line.start_ms)
    first, last = (moment(end)[:digits].replace("T", " ") for end in ends)
    return first if first == last else f"{first} … {last}"


def _cells(name: str, line: Line) -> list[str]:
    requests = [f"{line.requests.get(kind, 0):,}" for kind in ("PUT", "GET", "LIST")]
    return [
        name, f"{line.commits:,}", *requests, dollars(line.request_cost),
        size(line.stored), dollars(line.storage_cost), dollars(line.cost),
    ]  # fmt: skip


@click.command("report")
@takes_log
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
              help="Where the page goes; what is there is replaced.")  # fmt: skip
@takes_time
@as_json
def report(
    path: str, given: dict[str, str], output: Path | None, prices: Prices, as_json: bool
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
            commits = numbers["totals"]["commits"]
            click.echo(f"{output}: {commits:,} commits, {output.stat().st_size:,} bytes")
    if as_json:
        print_json(numbers)
    damage.check("in the report")


def document(
    past: Past, prices: Prices, readers: Sequence[ConsumerInfo], damage: Sequence[str]
) -> dict[str, Any]:
    """All of a report. Times are milliseconds since 1970, costs dollars; no number is NaN."""
    (looked,) = past.logs
    head, chain = looked.head, looked.chain
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
        "log": {
            "url": looked.log.log.url, "sequencer": looked.log.name, "log_id": head.log_id,
            "next_position": looked.log.gap, "floor": looked.floor, "term": head.term,
            "leader_id": head.leader_id, "host": host_of(head), "window": head.window,
            "last_ms": min(head.timestamp_ms, LAST_MS), "last_commit_ms": span["last"],
        },
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
        "lifecycle": chain and _lifecycle(chain),
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


def _lifecycle(chain: LifecycleRecord) -> dict[str, Any]:
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
    match kind:
        case {"type": "struct"}:
            parts = [(each["name"], each["type"], each["nullable"]) for each in kind["fields"]]
        case {"type": "array"}:
            parts = [("element", kind["elementType"], kind["containsNull"])]
        case {"type": "map"}:
            parts = [("key", kind["keyType"], False),
                     ("value", kind["valueType"], kind["valueContainsNull"])]  # fmt: skip
    for name, inner, nullable in parts:
        plain = inner if isinstance(inner, str) else inner.get("type", "")
        yield {"name": name, "type": plain, "nullable": nullable, "depth": depth}
        yield from columns(inner, depth + 1)
