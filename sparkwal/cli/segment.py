"""`sparkwal segment`: makes the segments that a log lacks."""

from typing import Any

import click

from sparkwal.cli.flags import as_json, takes_logs
from sparkwal.cli.open_logs import Damage, logs_at, notify, progress
from sparkwal.cli.output import print_json, table
from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.reading.segmenting import Made, make_segments
from sparkwal.sql.past import price


@click.command("segment")
@takes_logs
@as_json
def command(path: str, log_options: dict[str, str], *, as_json: bool) -> None:
    """A segment is a copy of a thousand old records and of their small rows. Readers of a long
    range take it in place of the records: a few GETs for a thousand. The command makes the segments
    that are missing, and replaces those that are damaged or outdated. You may stop it at any
    moment, and run it twice at once. A log whose rows leave for a table every few minutes needs no
    segments.

    \b
    sparkwal segment s3://bucket/wal

    Requests: 3 LIST; 2 GET for each segment; 1,001 GET and 1 PUT for each one that it makes.
    """
    rows: list[dict[str, Any]] = []
    damage = Damage()
    for log in logs_at(path, log_options):
        with progress("segments") as done:
            run = make_segments(log, done=done)
        rows.append({"sequencer": log.name, **_about(run)})
        for block, reason in run.skipped.items():
            first = block * keys.BLOCK
            notify(f"{log.name}: positions {first}…{first + keys.BLOCK - 1}: no segment: {reason}")
        for reason in run.damaged.values():
            damage.add(log.name, InvalidLogError(reason))
    if as_json:
        for row in rows:
            print_json(row)
    else:
        table(rows, f"{path}: segments of {keys.BLOCK:,} records")
    damage.check("copied")


def _about(run: Made) -> dict[str, Any]:
    new = len(run.blocks)
    requests = {"GET": new * (keys.BLOCK + 1) + 2 * (run.others + len(run.replaced)), "PUT": new}
    return {
        "made": new,
        "replaced": len(run.replaced),
        "before": run.others,
        "skipped": len(run.skipped) + len(run.damaged),
        "bytes": run.bytes,
        "requests": sum(requests.values()),
        "dollars": round(price(requests), 6),
    }
