"""`sparkwal collect`: what a log does not need any more, counted or deleted."""

from __future__ import annotations

import click
from rich.console import Console

from sparkwal.cli.asking import as_json, takes_logs
from sparkwal.cli.collecting import Collecting, failures_of
from sparkwal.cli.lifecycles import (
    EXIT_CODES,
    Failures,
    checked,
    takes_lifecycle_options,
    told_by,
)
from sparkwal.cli.telling import print_json


@click.command(epilog=EXIT_CODES)
@takes_logs
@takes_lifecycle_options(policy=False)
@click.option("--confirm", is_flag=True, help="Delete it. Without this nothing is changed.")
@as_json
def command(path: str, given: dict[str, str], confirm: bool, as_json: bool) -> None:
    """What the log at PATH does not need any more; with --confirm it is deleted.

    That is what its floor has passed for longer than the grace, no live consumer waits for, and
    its table holds. Stop it at any moment and run it again: it goes on. The log's Delta table is
    looked at by delta-rs: pip install 'sparkwal[lake]'.

    \b
    sparkwal collect s3://bucket/wal
    sparkwal collect s3://bucket/wal --confirm

    Requests: 4 LIST and 3 GET; as many age checks as halving the lifecycle's records takes; 2 for
    each consumer; 1 LIST for a thousand objects below the floor, with --confirm 1 DELETE too.
    """
    sequencers = given.pop("sequencers", None)
    settings = checked(path, given, None, sequencers)
    work = Collecting(settings, bool(sequencers), confirm)
    work.look()
    with told_by(Console(stderr=True)):
        found = work.run()
    if as_json:
        for document in work.documents(found):
            print_json(document)
    else:
        work.show(found)
    if failures := failures_of(found):
        raise Failures(failures, bool(sequencers))
