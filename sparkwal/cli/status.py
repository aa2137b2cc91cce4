"""`sparkwal status`, `at`, `consumers` and `metrics`: print the state of a log."""

import time
from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from sparkwal.cli.exit_codes import Refused
from sparkwal.cli.flags import as_json, as_moment, takes_log, takes_logs, time_with_unit
from sparkwal.cli.open_logs import Damage, head_of, log_at, logs_at, no_log
from sparkwal.cli.output import facts, length, moment, print_json, rate, size, table
from sparkwal.errors import InvalidLogError
from sparkwal.format.header import host_of
from sparkwal.lifecycle.consumers.consumer_list import ConsumerInfo, consumer_infos
from sparkwal.metrics.following import Following
from sparkwal.metrics.prometheus import new_meter
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.types import duration
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.reading.estimates import Pace, pace_at_a_glance, pace_of, size_of
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.several import refresh_all
from sparkwal.store.base import Page, Refusal
from sparkwal.store.parallel import run_parallel

# The rates of `status` are those of this time.
_WINDOW_MS = 300_000


@click.command("consumers")
@takes_logs
@click.option(
    "--expiry",
    metavar="TIME",
    callback=time_with_unit,
    help="The expiry of your compaction, e.g. 7d. A consumer that has not published for longer "
    "does not hold the floor back.",
)
@as_json
def consumers(path: str, log_options: dict[str, str], expiry: str | None, *, as_json: bool) -> None:
    """Requests: 2 for each consumer, 1 more for one that lags; 2 LIST and 1 GET for each log."""
    infos = []
    damage = Damage()
    expiry_ms = None if expiry is None else duration(expiry)
    logs = logs_at(path, log_options, damage, read_heads=False)
    listed = refresh_all(logs, floor=False)
    heads = [(log.log, log.name, head_of(log)) for log in logs]
    for log, of_log in zip(logs, consumer_infos(heads, expiry_ms, listed), strict=True):
        if isinstance(of_log, InvalidLogError):
            damage.add(log.name, of_log)
        else:
            infos += of_log
    if as_json:
        for info in infos:
            print_json(vars(info))
    elif infos:
        table([vars(info) for info in infos])
    else:
        click.echo("no consumers")
    damage.check()


@click.command()
@takes_logs
@as_json
def command(path: str, log_options: dict[str, str], *, as_json: bool) -> None:
    """Rates are those of the last five minutes. The sign ≈ marks estimates from samples.

    Requests for each log: for its head 1 LIST and 1 GET (for an appender's log as many GETs as it
    may have in flight); for its lifecycle 1 LIST and 1 GET; for its size 1 LIST, and 4 more above a
    thousand objects; for its rates log₂ n + 16 GETs, none if it is idle; for its consumers 1 LIST,
    and 2 or 3 for each. With --all also 2 LISTs. Many logs share the LISTs of a thousand objects,
    and the rates of each take 1 GET.
    """
    now_ms = time.time_ns() // 1_000_000
    damage = Damage()
    logs = logs_at(path, log_options, damage, read_heads=False)
    listed = refresh_all(logs)
    heads = [(log.log, log.name, head_of(log)) for log in logs]
    infos: Sequence[list[ConsumerInfo] | InvalidLogError | None]
    try:
        infos = consumer_infos(heads, None, listed)
    except Refusal:
        # A reader or a writer may have no permission to see them.
        infos = [None] * len(heads)

    def look(of: tuple[LogRange, list[ConsumerInfo] | InvalidLogError | None]) -> dict[str, Any]:
        log, consumers = of
        seen = listed.get(log.log.name)
        if isinstance(consumers, InvalidLogError):
            damage.add(log.name, consumers)
            consumers = []
        pace = pace_at_a_glance if listed else pace_of
        status = _document(log, now_ms, pace(log, now_ms, _WINDOW_MS), seen.page if seen else None)
        return {**status, "consumers": consumers and [vars(consumer) for consumer in consumers]}

    looks = run_parallel(logs[0].log.store, look, zip(logs, infos, strict=True))
    for number, status in enumerate(looks):
        if as_json:
            print_json({**status, "damage": damage.lines(status["sequencer"])})
        else:
            readers = status["consumers"]
            if number:
                click.echo()
            _show(status)
            if readers:
                click.echo()
                table(readers)
            else:
                refused = "unknown: no permission to list them (sparkwal help security)"
                facts({"consumers": refused if readers is None else "none"})
    damage.check("counted")


def _document(log: LogRange, now_ms: int, pace: Pace, listed: Page | None) -> dict[str, Any]:
    head = head_of(log)
    assert head.live is not None
    header = head.live.header
    floor = log.floor.current()
    life = log.floor.state
    record = log.floor.record
    target = record.target_of(log.name) if record else None
    in_chain = record.tables[target.table] if record and target else None
    added = in_chain.added if in_chain else None
    stored = size_of(log, listed)
    return {
        "url": log.log.url,
        "sequencer": log.name,
        "log_id": header.log_id,
        "position": head.position,
        "timestamp": moment(header.timestamp_ms),
        "age_ms": max(now_ms - header.timestamp_ms, 0),
        "term": header.term,
        "leader_id": header.leader_id,
        "host": host_of(header),
        "commits_per_second": round(pace.commits, 3),
        "rows_per_second": round(pace.rows, 3),
        "rates_over_seconds": round(pace.seconds, 3),
        "bytes": stored.bytes,
        "objects": stored.objects,
        "exact": stored.exact,
        "floor": floor,
        "lifecycle": life
        and record
        and {
            "table": target and target.table,
            "mode": target and target.mode,
            "keys": target and target.keys,
            "ranges": in_chain.k if in_chain else 0,
            "cut": life.cut,
            "floor": life.floor,
            "added": added and vars(added),
            "rows_aside": life.rows_aside,
            "waits_since": moment(life.refused_ms) if life.refused_ms else None,
            "open_to": life.to if life.is_open and not life.again else None,
            "again": life.again,
            "gc_grace_ms": record.gc_grace_ms,
            "timestamp": moment(record.timestamp_ms),
        },
    }


def _show(status: dict[str, Any]) -> None:
    about = "" if status["exact"] else "≈ "
    above = " above the floor" if status["floor"] and not status["exact"] else ""
    seconds, life = round(status["rates_over_seconds"] * 1000), status["lifecycle"]
    pace = (
        f"≈ {rate(status['commits_per_second'])} commits/s, {rate(status['rows_per_second'])} "
        f"rows/s, over the last {length(seconds)}"
    )
    facts(
        {
            "log": Text.assemble(status["url"], "  ", (status["log_id"], "dim")),
            "head": Text.assemble(
                (str(status["position"]), "bold"),
                f", {length(status['age_ms'])} ago  ",
                (status["timestamp"], "dim"),
            ),
            "leader": f"{status['leader_id']} on {status['host']}, term {status['term']}",
            "rate": pace if status["age_ms"] < _WINDOW_MS else "idle for five minutes",
            "size": f"{about}{size(status['bytes'])} in {about}{status['objects']:,} "
            f"objects{above}",
            **(_life(life, status) if life else {"lifecycle": "none: the log has no table"}),
        }
    )


def _life(life: dict[str, Any], status: dict[str, Any]) -> dict[str, str | Text]:
    lines: dict[str, str | Text] = {"table": "none: the policy alone releases old positions"}
    cut = life["cut"]
    open_to = life["open_to"]
    if life["table"]:
        by = f" by {', '.join(life['keys'])}" if life["keys"] else ""
        lines["table"] = f"{life['table']}  ({life['mode']}{by})"
        waiting = status["position"] + 1 - cut
        lines["cut"] = f"{cut}: the table has all rows below; {waiting:,} positions wait"
    if added := life["added"]:
        lines["last range"] = (
            f"{size(added['bytes'])}, files: {added['files']:,}, commits: {added['versions']}"
        )
    if open_to is not None:
        promised = f"{cut}…{open_to - 1} is promised to the table as range {life['ranges']}"
        lines["open"] = Text(promised, "yellow")
    if life["again"]:
        again = f"refused rows are promised to the table again as range {life['again']}"
        lines["open"] = Text(again, "yellow")
    if life["rows_aside"]:
        count = f"{life['rows_aside']:,} rows stepped aside into {life['table']}_refused"
        lines["refused"] = Text(count, "yellow")
    if life["waits_since"]:
        waits = f"the table refuses rows from position {cut} on, since {life['waits_since']}"
        lines["waits"] = Text(waits, "yellow")
    grace = length(life["gc_grace_ms"])
    lines["floor"] = f"{status['floor']}: objects below it may be deleted {grace} after it passed"
    return lines


@click.command("at")
@takes_log
@click.argument("timestamp", metavar="TIME", callback=as_moment)
@as_json
def at(path: str, log_options: dict[str, str], timestamp: int, *, as_json: bool) -> None:
    """TIME is 1h (an hour ago), 30min, 2026-01-31T12:00:00Z or milliseconds since 1970.

    \b
    sparkwal at s3://bucket/wal 1h

    Requests: for head and floor as sparkwal log, and log₂ n GETs. A GET that meets a record of a
    former leader costs as many more as that leader had in flight.
    """
    damage = Damage()
    log = log_at(path, log_options, damage)
    head = head_of(log)
    floor = log.floor.current()
    assert head.live is not None
    position = log.at(timestamp)
    record_time = None
    if position < log.gap:
        try:
            record = read_slot(log.log, position, head.window, GLANCE)
            record_time = None if record is None else moment(record.header.timestamp_ms)
        except InvalidLogError as error:
            damage.add(log.name, error)
    at_floor = 0 < floor == position
    if as_json:
        print_json(
            {
                "position": position,
                "timestamp": record_time,
                "asked": moment(timestamp),
                "before_the_floor": at_floor,
            }
        )
    else:
        about = f"of {record_time}" if record_time else "which is unreadable"
        if position == log.gap:
            about = "not written yet"
        if at_floor and (record_time or timestamp <= head.live.header.timestamp_ms):
            about += ": the floor; older positions may be collected at any time"
        facts(
            {
                "time": moment(timestamp),
                "position": f"{position}, {about}",
                "to read": f'.option("startingPosition", {position})',
            }
        )
    damage.check()


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> object:
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter("expected HOST:PORT or :PORT")
    # Loopback by default: metrics reveal the traffic of a log.
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command("metrics")
@takes_logs
@click.option(
    "--serve",
    "address",
    callback=_address,
    metavar="[HOST]:PORT",
    help="Answer GET /metrics until a signal; without HOST on this machine only. Port 0 picks a "
    "free port and prints it.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=30.0,
    show_default=True,
    help="With --serve: seconds between two updates.",
)
@click.option(
    "--backlog",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="How many of the newest records to count at the start: 1 GET for each.",
)
def metrics(
    path: str,
    log_options: dict[str, str],
    address: tuple[str, int] | None,
    interval: float,
    backlog: int,
) -> None:
    # Check the options: an option called `backlog` would reach `Following` as its argument.
    settings = from_keywords(SourceOptions, path, log_options)
    meter = new_meter()
    damage = Damage()
    on_damage = damage.add if address is None else None
    following = Following(path, meter, backlog=backlog, on_damage=on_damage, **log_options)
    if address is None:
        following.update()
        if not following.has_log:
            raise no_log(open_log(settings))
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
            following.try_update()
            time.sleep(interval)
    finally:
        stop()
