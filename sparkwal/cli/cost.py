"""`sparkwal cost`: what writing and keeping a log cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from sparkwal.cli.open_logs import Damage, check, head_of, logs_at
from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import as_json, as_moment, key_values, length, takes_logs
from sparkwal.console.output import moment, print_json, shown, size
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
        if since is not None:
            given["startingTimestamp"] = moment(since)
        if until is not None:
            given["endingTimestamp"] = moment(until)
        try:
            prices = changed(Prices(), key_values(given_prices, "--price"))
        except ValueError as wrong:
            raise Refused(str(wrong)) from None
        command(given=given, prices=prices, **others)

    return read


def past_of(path: str, given: Mapping[str, str], damage: Damage) -> Past:
    """The past of one log, or with sequencers=* of all; on a terminal it shows how far it is."""
    logs = logs_at(path, given, damage)
    for log in logs:
        log.look()
        head_of(log)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("records", total=None)

        def advance(done: int, of: int) -> None:
            progress.update(task, completed=done, total=of)

        return Past(logs, advance)


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
    past = past_of(path, given, damage)
    every = lines(past, prices, by)
    if as_json:
        print_json(_document(past, every, prices, damage))
    else:
        _show(past, every, by, prices)
    check(damage.lines(), "counted")


def _document(past: Past, every: list[Line], prices: Prices, damage: Damage) -> dict[str, Any]:
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


def _show(past: Past, every: list[Line], by: str, prices: Prices) -> None:
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
    first = moment(line.start_ms)[:digits].replace("T", " ")
    last = moment(max(line.end_ms - 1, line.start_ms))[:digits].replace("T", " ")
    return first if first == last else f"{first} … {last}"


def _cells(name: str, line: Line) -> list[str]:
    requests = [f"{line.requests.get(kind, 0):,}" for kind in ("PUT", "GET", "LIST")]
    return [
        name, f"{line.commits:,}", *requests, dollars(line.request_cost),
        size(line.stored), dollars(line.storage_cost), dollars(line.cost),
    ]  # fmt: skip


def dollars(amount: float) -> str:
    """Dollars for people: cents, and below ten of them two digits that count."""
    if amount == 0 or amount >= 0.0995:
        return f"${amount:,.2f}"
    return f"${amount:#.2g}" if amount >= 0.0001 else "< $0.0001"


def requests_text(requests: Mapping[str, int]) -> str:
    counted = [f"{count:,} {kind}" for kind, count in sorted(requests.items()) if count]
    return ", ".join(counted) or "none"
