"""`sparkwal status`: one look at a log."""

from __future__ import annotations

import click

from sparkwal.cli.asking import as_json, takes_log
from sparkwal.cli.exits import Failed
from sparkwal.cli.telling import facts, moment, print_json
from sparkwal.log import Log


@click.command()
@takes_log
@as_json
def command(path: str, given: dict[str, str], as_json: bool) -> None:
    """How far the log at PATH is, who leads it, and what of it is in its table."""
    head = Log(path, **given).head()
    if head is None:
        raise Failed(f"there is no log at {path}; check the path")
    if as_json:
        print_json({
            "position": head.position, "log_id": head.log_id, "term": head.term,
            "leader_id": head.leader_id, "timestamp": moment(head.timestamp_ms),
        })  # fmt: skip
        return
    facts({
        "head": f"{head.position:,}", "last record": moment(head.timestamp_ms),
        "leader": f"{head.leader_id}, term {head.term}", "log": head.log_id,
    })  # fmt: skip
