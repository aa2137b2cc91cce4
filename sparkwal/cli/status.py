"""`sparkwal status`: one look at a log."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.text import Text

from sparkwal.cli.asking import as_json, takes_logs
from sparkwal.cli.consumers import consumer_table
from sparkwal.cli.looking import head_of, logs_at
from sparkwal.cli.telling import facts, moment, print_json, size
from sparkwal.cli.times import length
from sparkwal.format.header import host_of
from sparkwal.format.lifecycle import LifecycleRecord
from sparkwal.lifecycle.consumers import ConsumerInfo, told
from sparkwal.reading.estimates import Pace, Size, pace_of, size_of
from sparkwal.reading.log_range import LogRange

_WINDOW_MS = 300_000


@click.command()
@takes_logs
@as_json
def command(path: str, given: dict[str, str], as_json: bool) -> None:
    """How far the log at PATH is, who leads it, and what of it is in its table.

    Rates are of the last five minutes. What is estimated from samples has a ≈ before it.

    Requests for each log: for its head 1 LIST and 1 GET (of an appender's log as many GETs as it
    may have in flight), for its lifecycle 1 and 1; for the size 1 LIST, and 4 more above a
    thousand objects; for the rates no GET of an idle log, 16 with up to 255 records in five
    minutes, 24 with up to 65,535; for consumers 1 LIST, and 2 or 3 requests each. To list the
    logs with --sequencers: 1 LIST for each, and 1.
    """
    now_ms = time.time_ns() // 1_000_000
    for place, log in enumerate(logs_at(path, given)):
        log.look()
        if as_json:
            print_json(_document(_Status(log, now_ms)))
        else:
            if place:
                click.echo()
            _tell(_Status(log, now_ms))


class _Status:
    """All that is told of one log."""

    def __init__(self, log: LogRange, now_ms: int) -> None:
        head = head_of(log)
        assert head.live is not None
        self.url, self.sequencer, self.now_ms = log.log.url, log.name, now_ms
        self.head, self.header = head, head.live.header
        self.floor = log.floor.current()
        self.life: LifecycleRecord | None = log.floor.state
        self.size: Size = size_of(log.log, head, self.floor)
        self.pace: Pace = pace_of(log.log, head, self.floor, now_ms, _WINDOW_MS)
        self.consumers: list[ConsumerInfo] = told(log.log, log.name, head, None)

    @property
    def host(self) -> str:
        return host_of(self.header)

    @property
    def age_ms(self) -> int:
        return max(self.now_ms - self.header.timestamp_ms, 0)


def _document(status: _Status) -> dict[str, Any]:
    header, life, pace = status.header, status.life, status.pace
    return {
        "url": status.url, "sequencer": status.sequencer, "log_id": header.log_id,
        "position": status.head.position, "timestamp": moment(header.timestamp_ms),
        "age_ms": status.age_ms, "term": header.term, "leader_id": header.leader_id,
        "host": status.host,
        "commits_per_second": round(pace.commits, 3), "rows_per_second": round(pace.rows, 3),
        "rates_over_seconds": round(pace.seconds, 3),
        "bytes": status.size.bytes, "objects": status.size.objects, "exact": status.size.exact,
        "floor": status.floor,
        "lifecycle": life and {
            "table": life.target and life.target.table, "mode": life.target and life.target.mode,
            "keys": life.target and life.target.keys, "ranges": life.k, "cut": life.cut,
            "floor": life.floor, "open_to": life.to if life.is_open else None,
            "gc_grace_ms": life.gc_grace_ms, "timestamp": moment(life.timestamp_ms),
        },
        "consumers": [vars(each) for each in status.consumers],
    }  # fmt: skip


def _tell(status: _Status) -> None:
    header, life, pace, stored = status.header, status.life, status.pace, status.size
    about = "" if stored.exact else "≈ "
    above = " above the floor" if status.floor and not stored.exact else ""
    rate = "idle for five minutes"
    if pace.commits:
        rate = f"≈ {_number(pace.commits)} commits/s, {_number(pace.rows)} rows/s"
        rate += f", over the last {length(round(pace.seconds * 1000))}"
    rows: dict[str, str | Text] = {
        "log": Text.assemble(status.url, "  ", (header.log_id, "dim")),
        "head": Text.assemble((str(status.head.position), "bold"),
                              f", {length(status.age_ms)} ago  ",
                              (moment(header.timestamp_ms), "dim")),
        "leader": f"{header.leader_id} on {status.host}, term {header.term}",
        "rate": rate,
        "size": f"{about}{size(stored.bytes)} in {about}{stored.objects:,} objects{above}",
        **(_life(life, status) if life else {"lifecycle": "none: nothing of it is in a table"}),
    }  # fmt: skip
    facts(rows)
    if status.consumers:
        click.echo()
        consumer_table(status.consumers)
    else:
        facts({"consumers": "none"})


def _life(life: LifecycleRecord, status: _Status) -> dict[str, str | Text]:
    found: dict[str, str | Text] = {"table": "none: old positions are let go by the policy alone"}
    if target := life.target:
        by = f" by {', '.join(target.keys)}" if target.keys else ""
        found["table"] = f"{target.table}  ({target.mode}{by})"
        waiting = status.head.gap - life.cut
        found["cut"] = f"{life.cut}: below it all is in the table; {waiting:,} positions wait"
    if life.is_open:
        promised = f"{life.cut}…{life.to - 1} is promised to the table as range {life.k}"
        found["open"] = Text(promised, "yellow")
    grace = length(life.gc_grace_ms)
    found["floor"] = f"{status.floor}: what is below goes {grace} after it was passed"
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
