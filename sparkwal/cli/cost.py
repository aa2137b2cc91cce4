"""`sparkwal cost`: what writing and keeping a log cost."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from sparkwal.cli.asking import as_json, takes_logs
from sparkwal.cli.exits import Failed
from sparkwal.cli.looking import no_log
from sparkwal.cli.looking_back import dollars, looked_back, requests_text, takes_time, within
from sparkwal.cli.telling import moment, print_json, shown, size
from sparkwal.cli.times import length
from sparkwal.format.keys import ROOT
from sparkwal.history.cost import (
    UNTOLD,
    Line,
    Projection,
    WholeRead,
    lines,
    projection,
    total,
    whole_read,
)
from sparkwal.history.looking import Looked
from sparkwal.history.prices import OF, Prices
from sparkwal.history.series import Series
from sparkwal.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.sequencers import all_logs


@click.command()
@takes_logs
@takes_time
@click.option("--by", type=click.Choice(["hour", "day", "month"]), default="day",
              show_default=True, help="One line for each of these, in UTC.")  # fmt: skip
@as_json
def command(
    path: str,
    given: dict[str, str],
    since: int | None,
    until: int | None,
    prices: Prices,
    by: str,
    as_json: bool,
) -> None:
    """What the log at PATH costs, by period: its writers' requests and its storage, at list prices.

    The requests are those that the records prove; one GET is made for each record. PATH may lie on
    any store: the prices are S3's.
    """
    options = within(from_keywords(SourceOptions, path, given), since, until)
    logs = [found for each in _each(options) if (found := looked_back(each, by)) is not None]
    if not logs:
        raise no_log(path)
    since_ms, until_ms = min(x.since_ms for x in logs), max(x.until_ms for x in logs)
    periods = Series(by)
    for each in logs:
        assert each.history.periods is not None
        periods.join(each.history.periods)
    every = lines(periods, sum(each.held for each in logs), since_ms, until_ms, prices)
    whole = total(every, since_ms, until_ms)
    month, read = projection(logs, prices), whole_read(logs, prices)
    if as_json:
        print_json(_document(logs, every, whole, month, read, prices))
    else:
        _show(logs, by, every, whole, month, read)
    damage = [each.damage for each in logs if each.damage]
    if damage:
        raise Failed(f"what comes after it is not counted: {damage[0]}")


def _each(options: SourceOptions) -> list[SourceOptions]:
    """The options of each log that is asked for."""
    if not options.sequencers:
        return [options]
    names = all_logs(open_log(replace(options, sequencer=ROOT), fail_fast=True))
    return [replace(options, sequencers=None, sequencer=name) for name in names]


def _document(
    logs: list[Looked],
    every: list[Line],
    whole: Line,
    month: Projection | None,
    read: WholeRead,
    prices: Prices,
) -> dict[str, Any]:
    return {
        "prices": {"of": OF, "currency": "USD", **asdict(prices)},
        "logs": [
            {"sequencer": each.sequencer, "start": each.start, "end": each.history.after,
             "floor": each.floor, "stored": each.stored, "objects": each.objects,
             "damage": each.damage or None}
            for each in logs
        ],
        "periods": [_line(line) for line in every],
        "total": _line(whole),
        "month": asdict(month) if month else None,
        "whole_read": asdict(read),
        "not_told": list(UNTOLD),
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    return {
        **asdict(line), "cost": line.cost,
        "start": moment(line.start_ms), "end": moment(line.end_ms),
    }  # fmt: skip


def _show(
    logs: list[Looked],
    by: str,
    every: list[Line],
    whole: Line,
    month: Projection | None,
    read: WholeRead,
) -> None:
    columns = [by, ">commits", ">PUT", ">GET", ">LIST", ">requests", ">stored", ">storage", ">sum"]
    rows = [_cells(_name(line, by), line) for line in every]
    shown(f"Cost in dollars, {OF}", columns, [*rows, _cells("total", whole)])
    if month is None:
        click.echo("a month at this rate: there is less than an hour to tell it from")
    else:
        cost = dollars(month.request_cost + month.storage_cost)
        click.echo(
            f"a month at the rate of the last {length(month.span_ms)}: {cost} "
            f"({dollars(month.request_cost)} for {requests_text(month.requests)}; "
            f"{dollars(month.storage_cost)} for {size(month.stored)} if nothing is collected)"
        )
    click.echo(f"one whole read: {dollars(read.cost)} ({requests_text(read.requests)}, "
               f"{size(read.bytes)})")  # fmt: skip
    if any(each.floor for each in logs):
        click.echo("the log begins at its floor: what was collected is not counted")
    click.echo(f"no record tells, and this does not count: {'; '.join(UNTOLD)}")


def _name(line: Line, by: str) -> str:
    digits = {"hour": 13, "day": 10, "month": 7}[by]
    first = moment(line.start_ms)[:digits].replace("T", " ")
    last = moment(max(line.end_ms - 1, line.start_ms))[:digits].replace("T", " ")
    return first if first == last else f"{first} … {last}"


def _cells(name: str, line: Line) -> list[str]:
    requests = [f"{line.requests.get(kind, 0):,}" for kind in ("PUT", "GET", "LIST")]
    return [
        name, f"{line.commits:,}", *requests, dollars(line.request_cost),
        size(line.stored), dollars(line.storage_cost), dollars(line.cost),
    ]  # fmt: skip
