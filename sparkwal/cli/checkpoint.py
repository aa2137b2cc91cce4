"""`sparkwal checkpoint`: a query's checkpoint folder, made from the log."""

from pathlib import Path

import click

from sparkwal import events
from sparkwal.checkpoints.rebuild import checkpoint
from sparkwal.console.options import as_json, takes_log
from sparkwal.console.output import escape, print_json
from sparkwal.events import Event


@click.command()
@takes_log
@click.argument("name")
@click.option(
    "--to", "folder", type=click.Path(path_type=Path), metavar="DIR",
    help="Where; by default where sparkwal.checkpoint makes it, in ~/.local/state/sparkwal.",
)  # fmt: skip
@as_json
def command(
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
    seen: list[Event] = []
    stop = events.subscribe(seen.append)
    try:
        made = checkpoint(path, name, folder=folder, **given)
    finally:
        stop()
    kinds = events.CheckpointRebuilt | events.CheckpointUsed
    how = next(each for each in seen if isinstance(each, kinds))
    why = how.reason if isinstance(how, events.CheckpointRebuilt) else None
    if as_json:
        print_json({
            "folder": made, "made": why is not None, "why": why,
            "query_id": how.query_id, "batch_id": how.batch_id,
        })  # fmt: skip
        return
    click.echo(made)
    last = f"batch {how.batch_id} is its last" if how.batch_id >= 0 else "nothing of it is there"
    click.echo(f"{f'made anew: {escape(why)}' if why else 'as it was'}; {last}", err=True)
