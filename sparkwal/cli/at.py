"""`sparkwal at`: the position of a moment."""

from __future__ import annotations

import click

from sparkwal.cli.asking import as_json, takes_log
from sparkwal.cli.looking import head_of, log_at
from sparkwal.cli.telling import facts, moment, print_json
from sparkwal.cli.times import as_moment
from sparkwal.protocol.replay import first_at_or_after
from sparkwal.protocol.slots import GLANCE, read_slot


@click.command()
@takes_log
@click.argument("timestamp", metavar="TIME", callback=as_moment)
@as_json
def command(path: str, given: dict[str, str], timestamp: int, as_json: bool) -> None:
    """The first position of the log at PATH that is not older than TIME.

    TIME is 1h (an hour ago), 30min, 2026-01-31T12:00:00Z or milliseconds since 1970.

    \b
    sparkwal at s3://bucket/wal 1h

    Requests: for head and floor as sparkwal log, and log₂ n GETs; at each that meets the records
    of a former leader as many more as that had in flight.
    """
    log = log_at(path, given)
    head, floor = head_of(log), log.floor.current()
    tolerant = log.options.tolerant
    position = first_at_or_after(log.log, head, timestamp, start=floor, tolerant=tolerant)
    record = read_slot(log.log, position, head.window, GLANCE) if position < head.gap else None
    found = None if record is None else moment(record.header.timestamp_ms)
    collected = 0 < floor == position
    if as_json:
        print_json({
            "position": position, "timestamp": found, "asked": moment(timestamp),
            "before_the_floor": collected,
        })  # fmt: skip
        return
    assert head.live is not None
    newest = head.live.header.timestamp_ms
    if found is None and timestamp <= newest:
        what = "not written yet: the floor, all older positions were collected"
    elif found is None:
        what = f"not written yet: the newest record is of {moment(newest)}"
    elif collected:
        what = f"of {found}: the floor, older positions were collected"
    else:
        what = f"of {found}"
    facts({
        "asked for": moment(timestamp), "position": f"{position}, {what}",
        "to read": f'.option("startingPosition", {position})',
    })  # fmt: skip
