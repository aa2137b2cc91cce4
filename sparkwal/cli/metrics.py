"""`sparkwal metrics`: a log's numbers for Prometheus, from its records."""

import time

import click

from sparkwal.cli.open_logs import Damage, no_log
from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import takes_logs
from sparkwal.metrics.following import Following
from sparkwal.metrics.prometheus import separate


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> object:
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter("HOST:PORT or :PORT is expected")
    # Loopback, unless a person opens it: metrics show how much a log takes.
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command()
@takes_logs
@click.option("--serve", "address", callback=_address, metavar="[HOST]:PORT",
              help="Answer GET /metrics until a signal comes; without HOST to this machine only. "
              "0 picks a free port and prints it.")  # fmt: skip
@click.option("--interval", type=click.FloatRange(0.1), default=30.0, show_default=True,
              help="With --serve: seconds between two looks at the log.")  # fmt: skip
@click.option("--backlog", type=click.IntRange(0), default=1000, show_default=True,
              help="How many of the newest records to count at the start: 1 GET for each.")  # fmt: skip  # noqa: E501
def command(
    path: str, given: dict[str, str], address: tuple[str, int] | None, interval: float, backlog: int
) -> None:
    meter = separate()
    damage = Damage()
    passed_over = damage.add if address is None else None
    following = Following(path, meter, backlog=backlog, passed_over=passed_over, **given)
    if address is None:
        following.look()
        if not following.is_there:
            raise no_log(path)
        click.echo(meter.text(), nl=False)
        damage.check("counted")
        return
    host, port = address
    try:
        port, stop = meter.serve(host, port)
    except OSError as error:
        raise Refused(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    try:
        click.echo(f"listening on http://{host}:{port}/metrics", err=True)
        while True:
            following.try_look()
            time.sleep(interval)
    finally:
        stop()
