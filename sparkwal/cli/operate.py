"""`sparkwal checkpoint` and `collect`: the commands that change something."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from sparkwal.checkpoints import rebuild
from sparkwal.cli import lifecycle_flags
from sparkwal.cli.flags import as_json, takes_log, takes_logs
from sparkwal.cli.open_logs import no_log
from sparkwal.cli.output import escape, print_json, table
from sparkwal.errors import SparkWalError
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.snapshot import NewestLake
from sparkwal.protocol.chain import look
from sparkwal.reading.repair import repair as repair_record


@click.command("checkpoint")
@takes_log
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where; by default where sparkwal.checkpoint makes it, in ~/.local/state/sparkwal.",
)
@as_json
def checkpoint(
    path: str, given: dict[str, str], name: str, folder: Path | None, as_json: bool
) -> None:
    """NAME as sparkwal.checkpoint was given, or the query's id. Prints the folder. One that goes on
    where the log ends is left as it is; one that is missing, torn, old or another log's is made
    from the log. Refused is a folder that holds anything else, and a query whose checkpoint the log
    does not carry: stateful, started on a remote checkpointLocation, or too large. Run it where the
    query's driver runs, while the query does not.

    \b
    sparkwal checkpoint s3://bucket/wal orders

    Requests: 1 LIST and a few GETs. Writes to this machine's disk alone.
    """
    place, how = rebuild.prepare_checkpoint(path, name, folder, given)
    if as_json:
        print_json(
            {
                "folder": str(place),
                "made": how.why is not None,
                "why": how.why,
                "query_id": how.query_id,
                "batch_id": how.batch_id,
            }
        )
        return
    click.echo(place)
    last = f"batch {how.batch_id} is its last" if how.batch_id >= 0 else "nothing of it is there"
    click.echo(f"{f'made anew: {escape(how.why)}' if how.why else 'as it was'}; {last}", err=True)


@click.command("collect", epilog=lifecycle_flags.EXIT_CODES)
@takes_logs
@lifecycle_flags.takes_lifecycle_options(policy=False)
@click.option(
    "--delete", "deletes", is_flag=True, help="Delete it. Without this nothing is changed."
)
@as_json
def collect(path: str, given: dict[str, str], deletes: bool, as_json: bool) -> None:
    """That is what its floor has passed for longer than the grace, no live consumer waits for, and
    its table holds. Stop it at any moment and run it again: it goes on. A Delta table that is not
    on a disk or on S3 is looked at by delta-rs: pip install 'sparkwal[lake]'.

    \b
    sparkwal collect s3://bucket/wal
    sparkwal collect s3://bucket/wal --delete

    Requests: 4 LIST and 3 GET; as many age checks as halving the lifecycle's records takes; 2 for
    each consumer; 1 LIST for a thousand objects below the floor, with --delete 1 DELETE too.
    """
    every = bool(given.pop("sequencers", None))
    settings = lifecycle_flags.checked(path, given, every)
    states = {name: (log, look(log)) for name, log in lifecycle_flags.logs(settings, every).items()}
    if not states:
        raise no_log(settings.log_path)
    found: list[dict[str, Any]] = []
    failures: dict[str, SparkWalError] = {}
    with lifecycle_flags.narrated(Console(stderr=True)):
        for name, (log, state) in states.items():
            about = {"sequencer": name, "floor": state.floor if state else 0, "deleted": deletes}
            try:
                target = state.target if state else None
                lake = NewestLake(target.table, settings) if target else None
                life = Coordinator(
                    log,
                    settings,
                    sequencer=name,
                    table=lake,
                    gc_grace_ms=settings.gc_grace_ms,
                    consumer_expiry_ms=settings.consumer_expiry_ms,
                )
                done = life.collect(dry_run=not deletes)
                # A log without a lifecycle has no collection.
                found.append(
                    {
                        **about,
                        "lifecycle": done is not None,
                        "below": done and done.bound,
                        **{
                            name: getattr(done, name, 0) for name in ("objects", "bytes", "uploads")
                        },
                        "held_by": done.held_by or None
                        if done
                        else "no lifecycle: nothing was let go",
                    }
                )
            except SparkWalError as error:
                failures[name] = error
                if as_json:
                    print_json({**about, "lifecycle": True, "error": str(error)})
    if as_json:
        for each in found:
            print_json(each)
    elif found:
        table(found, f"{settings.path}: {'deleted' if deletes else 'this would be deleted'}")
    if failures:
        raise lifecycle_flags.Failures(failures, every)


@click.command("repair")
@takes_log
@click.argument("position", type=click.IntRange(0))
@click.option(
    "--give-up",
    is_flag=True,
    help="The record is lost: put one without rows in its place, so that readers and writers get "
    "past it. Its rows stay lost.",
)
def repair(path: str, given: dict[str, str], position: int, give_up: bool) -> None:
    """POSITION as the error names it, or the number that is the object's name. The record is made
    again from the copy of its header in its footer. A footer or rows that are damaged too cannot
    be repaired: restore the object. No writer may run meanwhile. The damaged object is saved under
    {PATH}/repaired/ first, so you may repeat a repair.

    \b
    sparkwal repair s3://bucket/wal 70412

    Requests: 1 GET, 2 PUT, 2 DELETE, and those that find the head.
    """
    repair_record(path, position, give_up=give_up, **given)
    done = "given up: a record without rows is there now" if give_up else "repaired"
    click.echo(f"position {position}: {done}; check the log with sparkwal verify")
