"""`sparkwal cost`: what a log cost, by period."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import click

from sparkwal.cli.open_logs import Damage, bounds, head_of, logs_at, progress
from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import as_json, as_moment, key_values, takes_logs
from sparkwal.console.output import dollars, length, moment, print_json, requests_text, shown, size
from sparkwal.reading.log_range import LogRange
from sparkwal.sql.cost import UNCOUNTED, Line, lines, month, total, whole_read
from sparkwal.sql.past import Past
from sparkwal.sql.prices import OF, Prices, changed


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


def past_of(logs: list[LogRange]) -> Past:
    """The past of logs; on a terminal it shows how far it is."""
    for log in logs:
        log.look()
        head_of(log)
    with progress("read") as done:
        return Past(logs, done)


def costs(past: Past, prices: Prices, every: list[Line]) -> dict[str, Any]:
    """What all that is covered cost, at which prices."""
    return {
        "prices": {"of": OF, "currency": "USD", **asdict(prices)}, "total": total(every),
        "month": month(past, prices), "whole_read": whole_read(past, prices),
        "not_counted": list(UNCOUNTED),
    }  # fmt: skip


@click.command()
@takes_logs
@takes_time
@click.option("--by", type=click.Choice(["hour", "day", "month"]), default="day",
              show_default=True, help="One line for each of these, in UTC.")  # fmt: skip
@as_json
def command(path: str, given: dict[str, str], prices: Prices, by: str, as_json: bool) -> None:
    """The requests are those that the records prove; one GET is made for each record. PATH may lie
    on any store: the prices are S3's.
    """
    damage = Damage()
    past = past_of(logs_at(path, given, damage))
    every = lines(past, prices, by)
    found = costs(past, prices, every)
    if as_json:
        logs = [
            {"sequencer": each.log.name, "start": each.start, "end": each.end,
             "floor": each.log.floor.current(), **past.stored(each),
             "damage": damage.lines(each.log.name)}
            for each in past.logs
        ]  # fmt: skip
        periods, whole = map(_dated, every), _dated(found["total"])
        print_json({**found, "logs": logs, "periods": list(periods), "total": whole})
    else:
        _show(past, every, by, found)
    damage.check("counted")


def _dated(line: Line) -> Line:
    return {**line, "start": moment(line["start_ms"]), "end": moment(line["end_ms"])}


def _show(past: Past, every: list[Line], by: str, found: dict[str, Any]) -> None:
    columns = [by, ">commits", ">PUT", ">GET", ">LIST", ">requests", ">stored", ">storage", ">sum"]
    rows = [_cells(_name(line, by), line) for line in every]
    shown(f"Cost in dollars, {OF}", columns, [*rows, _cells("total", found["total"])])
    if (monthly := found["month"]) is None:
        click.echo("a month at this rate: there is less than an hour to compute it from")
    else:
        click.echo(
            f"a month at the rate of the last {length(monthly['span_ms'])}: "
            f"{dollars(monthly['cost'])} ({dollars(monthly['request_cost'])} for "
            f"{requests_text(monthly['requests'])}; {dollars(monthly['storage_cost'])} for "
            f"{size(monthly['stored'])} if nothing is collected)"
        )
    read = found["whole_read"]
    click.echo(f"one whole read: {dollars(read['cost'])} ({requests_text(read['requests'])}, "
               f"{size(read['bytes'])})")  # fmt: skip
    if any(each.log.floor.current() for each in past.logs):
        click.echo("the log begins at its floor: what was collected is not counted")
    click.echo(f"not counted: {'; '.join(UNCOUNTED)}")


def _name(line: Line, by: str) -> str:
    digits = {"hour": 13, "day": 10, "month": 7}[by]
    ends = line["start_ms"], max(line["end_ms"] - 1, line["start_ms"])
    first, last = (moment(end)[:digits].replace("T", " ") for end in ends)
    return first if first == last else f"{first} … {last}"


def _cells(name: str, line: Line) -> list[str]:
    requests = [f"{line['requests'].get(kind, 0):,}" for kind in ("PUT", "GET", "LIST")]
    return [
        name, f"{line['commits']:,}", *requests, dollars(line["request_cost"]),
        size(line["stored"]), dollars(line["storage_cost"]), dollars(line["cost"]),
    ]  # fmt: skip
