"""`sparkwal bench`: how fast a log on this store is, from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import as_json, takes_log

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@takes_log
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True,
              help="How long it appends.")  # fmt: skip
@click.option("--row-bytes", type=click.IntRange(8, 2**20), default=100, show_default=True,
              help="Of each row; random, so that nothing compresses.")  # fmt: skip
@click.option("--rows-per-append", type=click.IntRange(1, 10**6), default=100, show_default=True,
              help="Rows of each append.")  # fmt: skip
@click.option("--in-flight", type=click.IntRange(1, 1000), default=50, show_default=True,
              help="Appends that wait for their acknowledgement at once, and PUTs.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Do not delete the log at the end.")
@as_json
def command(
    path: str, given: dict[str, str], seconds: float, row_bytes: int, rows_per_append: int,
    in_flight: int, keep: bool, as_json: bool,
) -> None:  # fmt: skip
    """How fast a log on this store is from here: appending, latency, reading back.

    This command WRITES: to a new log PATH/_bench-…, which it deletes at the end, also after
    Ctrl-C. Logs that are there are not touched. The first line tells its path: delete it
    yourself where this process was killed. With --json that is a line of its own, {"path": …},
    and the figures are the last line.

    \b
    sparkwal bench s3://bucket/any --seconds 30 --rows-per-append 1000
    """
    from sparkwal.cli.benching import Bench, Figures, deleted_after, fresh_path
    from sparkwal.console.output import print_json

    if "sequencer" in {name.lower() for name in given}:
        raise Refused("the bench makes a log of its own: leave --sequencer out")
    if rows_per_append * row_bytes > 2**26:
        raise Refused("--rows-per-append × --row-bytes is above 64 MB: lower one of them")
    bench = Bench(fresh_path(path), {"maxInFlightRequests": str(in_flight), **given})
    bench.check()
    figures = Figures(row_bytes, rows_per_append)
    end = "it stays" if keep else "deleted at the end; after a kill delete it yourself"
    if as_json:
        print_json({"path": bench.path, "kept": keep})
    else:
        click.echo(f"writes to {bench.path} ({end})", err=True)
    with deleted_after(bench, keep), _Live(figures, as_json) as live:
        bench.append(figures, seconds, in_flight, live.show)
        bench.read(figures)
        live.show()
    if as_json:
        print_json({"path": bench.path, "kept": keep, **figures.told()})
    else:
        live.print()


class _Live:
    """The figures while they come, on a terminal."""

    def __init__(self, figures: Any, quiet: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._figures = figures
        console = Console(stderr=True)
        shows = console.is_terminal and not quiet
        self._live = Live(console=console, transient=True, auto_refresh=False) if shows else None

    def __enter__(self) -> _Live:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> None:
        """Bring the display up to date."""
        if self._live is not None:
            self._live.update(_table(self._figures.told()), refresh=True)

    def print(self) -> None:
        """The figures, for good."""
        from sparkwal.console.output import out

        out().print(_table(self._figures.told()))


def _table(told: dict[str, Any]) -> Table:
    from rich import box
    from rich.table import Table

    from sparkwal.cli.cost import requests_text

    table = Table(box=box.SIMPLE, show_header=False)
    rows = {
        "appends": f"{told['appends']:,} in {told['seconds']:.1f} s",
        "appends a second": f"{told['appends_per_s']:,.1f}",
        "rows": f"{told['rows_per_s']:,.0f}/s, {told['mb_per_s']:,.2f} MB/s",
        "PUTs": f"{told['puts_per_s']:,.1f}/s",
        "acknowledged after": " ".join(
            f"{name} {told[f'{name}_ms']:,.1f} ms"
            for name in ("p50", "p99", "max") if told[f"{name}_ms"] is not None
        ),
        "retries": f"{told['retries']:,}",
        "requests": requests_text(told["requests"]),
    }  # fmt: skip
    if told["appends"]:
        rows["a million appends"] = f"${told['dollars_per_million_appends']:,.2f} of requests"
        rows["a million rows"] = f"${told['dollars_per_million_rows']:,.4f}"
    if "read" in told:
        read = told["read"]
        rows["read back"] = (
            f"{read['rows_per_s']:,.0f} rows/s, {read['mb_per_s']:,.2f} MB/s, "
            f"in {read['seconds']:.1f} s"
        )
    for name, text in rows.items():
        table.add_row(name, text)
    return table
