"""What the commands share that tell of a log's past: their flags, and reading with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from sparkwal.cli.asking import key_values
from sparkwal.cli.exits import Refused
from sparkwal.cli.times import as_moment
from sparkwal.history.looking import Looked, look_back
from sparkwal.history.prices import Prices, changed
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import SystemClock


def takes_time(command: Callable[..., None]) -> Callable[..., None]:
    """--since and --until, in milliseconds since 1970 or None, and --price as `prices`."""
    since = click.option(
        "--since",
        metavar="TIME",
        callback=as_moment,
        help="Only from then on: 7d, 2026-01-31T12:00Z.",
    )
    until = click.option("--until", metavar="TIME", callback=as_moment, help="Only up to then.")
    price = click.option(
        "--price", "given_prices", multiple=True, metavar="NAME=DOLLARS",
        help="put, list, get, delete of 1,000 requests, storage of a GB-month; repeatable.",
    )  # fmt: skip

    @functools.wraps(command)
    def read(given_prices: Iterable[str], **others: Any) -> None:
        try:
            prices = changed(Prices(), key_values(given_prices, "--price"))
        except ValueError as wrong:
            raise Refused(str(wrong)) from None
        command(prices=prices, **others)

    return since(until(price(read)))


def within(options: SourceOptions, since: int | None, until: int | None) -> SourceOptions:
    """The options with the times of --since and --until."""
    if since is not None and until is not None and until < since:
        raise Refused("--until lies before --since")
    if since is not None:
        options = replace(options, starting_timestamp_ms=since)
    if until is not None:
        options = replace(options, ending_timestamp_ms=until)
    options.check()
    return options


def looked_back(options: SourceOptions, by: str | None = None) -> Looked | None:
    """`look_back`, and on a terminal how far it is."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("records", total=None)

        def told(done: int, of: int) -> None:
            progress.update(task, completed=done, total=of)

        return look_back(options, SystemClock(), by, told)


def dollars(amount: float) -> str:
    """Dollars for people: cents, and below ten of them two digits that count."""
    if amount == 0 or amount >= 0.0995:
        return f"${amount:,.2f}"
    return f"${amount:#.2g}" if amount >= 0.0001 else "< $0.0001"


def requests_text(requests: Mapping[str, int]) -> str:
    """Requests for people."""
    told = [f"{count:,} {kind}" for kind, count in sorted(requests.items()) if count]
    return ", ".join(told) or "none"
