"""`sparkwal bench`: how fast a log on this store is, from here."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import as_json, takes_log


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
    """This command WRITES: to a new log PATH/_bench-…, which it deletes at the end, also after
    Ctrl-C. Logs that are there are not touched. The first line shows its path: delete it
    yourself where this process was killed. With --json that is a line of its own, {"path": …},
    and the figures are the last line.

    \b
    sparkwal bench s3://bucket/any --seconds 30 --rows-per-append 1000
    """
    from sparkwal.cli.benching import Bench, Figures, deleted_after, fresh_path
    from sparkwal.console.output import facts, print_json

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
    with (
        deleted_after(bench, keep),
        Console(stderr=True, quiet=as_json).status("appending") as status,
    ):
        bench.append(figures, seconds, in_flight, lambda: status.update(_so_far(figures.summary())))
        status.update("reading back")
        bench.read(figures)
    if as_json:
        print_json({"path": bench.path, "kept": keep, **figures.summary()})
    else:
        facts(_rows(figures.summary()))


def _so_far(summary: dict[str, Any]) -> str:
    return f"{summary['appends']:,} appends, {summary['appends_per_s']:,.1f} a second"


def _rows(summary: dict[str, Any]) -> dict[str, str]:
    from sparkwal.cli.cost import requests_text

    rows = {
        "appends": f"{summary['appends']:,} in {summary['seconds']:.1f} s",
        "appends a second": f"{summary['appends_per_s']:,.1f}",
        "rows": f"{summary['rows_per_s']:,.0f}/s, {summary['mb_per_s']:,.2f} MB/s",
        "PUTs": f"{summary['puts_per_s']:,.1f}/s",
        "acknowledged after": " ".join(
            f"{name} {summary[f'{name}_ms']:,.1f} ms"
            for name in ("p50", "p99", "max") if summary[f"{name}_ms"] is not None
        ),
        "retries": f"{summary['retries']:,}",
        "requests": requests_text(summary["requests"]),
    }  # fmt: skip
    if summary["appends"]:
        rows["a million appends"] = f"${summary['dollars_per_million_appends']:,.2f} of requests"
        rows["a million rows"] = f"${summary['dollars_per_million_rows']:,.4f}"
    read = summary["read"]
    rows["read back"] = (
        f"{read['rows_per_s']:,.0f} rows/s, {read['mb_per_s']:,.2f} MB/s, "
        f"in {read['seconds']:.1f} s"
    )
    return rows
