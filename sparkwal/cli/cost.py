"""`sparkwal cost`: what a log cost, by period."""

from collections.abc import Iterable
from typing import Any

import click

from sparkwal.cli.open_logs import Damage, bounds, logs_at, progress
from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import as_json, as_moment, key_values, options, takes_logs
from sparkwal.console.output import moment, print_json, table, text, words
from sparkwal.reading.log_range import LogRange
from sparkwal.sql.past import PRICES_OF, UNCOUNTED, Line, Past, Prices, changed, costs, lines


def _with_time(
    given: dict[str, str], since: int | None, until: int | None, given_prices: Iterable[str]
) -> dict[str, Any]:
    if since is not None and until is not None and until < since:
        raise Refused("--until lies before --since")
    prices = changed(Prices(), key_values(given_prices, "--price"))
    return {"given": given | bounds(None, None, since, until), "prices": prices}


# --since and --until as options of reading in `given`, and --price as `prices`.
takes_time = options(
    _with_time,
    click.option("--since", metavar="TIME", callback=as_moment,
                 help="Only from then on: 7d, 2026-01-31T12:00Z."),
    click.option("--until", metavar="TIME", callback=as_moment, help="Only up to then."),
    click.option("--price", "given_prices", multiple=True, metavar="NAME=DOLLARS",
                 help="put, list, get, delete of 1,000 requests, storage of a GB-month; "
                 "repeatable."),
)  # fmt: skip


def past_of(logs: list[LogRange]) -> Past:
    """The past of logs; on a terminal it shows how far it is."""
    with progress("read") as done:
        return Past(logs, done)


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
        _show(past, every, found)
    damage.check("counted")


def _dated(line: Line) -> Line:
    return {**line, "start": moment(line["start_ms"]), "end": moment(line["end_ms"])}


def _show(past: Past, every: list[Line], found: dict[str, Any]) -> None:
    table([*every, found["total"]], f"Cost in dollars, {PRICES_OF}; the last line is the total")
    for name, means in (("month", "a month at this rate"), ("whole_read", "one whole read")):
        about = [f"{words(key)} {text(key, value)}" for key, value in (found[name] or {}).items()]
        click.echo(f"{means}: {', '.join(about) or 'less than an hour to compute it from'}")
    if any(each.log.floor.current() for each in past.logs):
        click.echo("the log begins at its floor: what was collected is not counted")
    click.echo(f"not counted: {'; '.join(UNCOUNTED)}")
