"""`sparkwal checkpoint`, `collect` and `repair`: the commands that change files or objects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from sparkwal.checkpoints import rebuild
from sparkwal.cli import lifecycle_flags
from sparkwal.cli.flags import as_json, takes_log, takes_logs
from sparkwal.cli.open_logs import no_log, progress
from sparkwal.cli.output import print_json, table
from sparkwal.errors import SparkWalError, escape
from sparkwal.format.lifecycle_record import LogInChain, Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.known_log import Collection
from sparkwal.lifecycle.opening import CheckedTable
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.options.open import open_log
from sparkwal.protocol.chain import newest_record
from sparkwal.reading.repair import repair as repair_record


@click.command("checkpoint")
@takes_log
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder. The default is that of sparkwal.checkpoint, in ~/.local/state/sparkwal.",
)
@as_json
def checkpoint(
    path: str, log_options: dict[str, str], name: str, folder: Path | None, *, as_json: bool
) -> None:
    """NAME is the name that you pass to sparkwal.checkpoint, or the query's id. The command prints
    the folder. It does not change a folder that matches the end of the log. It rebuilds a folder
    that is missing, torn, old or of another log. It refuses a folder that holds anything else, and
    a query whose checkpoint is not in the log: started on a remote checkpointLocation, or too
    large. Stop the query, and run this on the machine of its driver.

    \b
    sparkwal checkpoint s3://bucket/wal orders

    Requests: 1 LIST and a few GETs; 1 GET for each record that carries a part of a query's state.
    Writes only to this machine's disk.
    """
    with progress("checkpoint") as done:
        checkpoint_folder, decision = rebuild.prepare_checkpoint(
            path, name, folder, log_options, done=done
        )
    if as_json:
        print_json(
            {
                "folder": str(checkpoint_folder),
                "made": decision.why is not None,
                "why": decision.why,
                "query_id": decision.query_id,
                "batch_id": decision.batch_id,
            }
        )
        return
    click.echo(checkpoint_folder)
    what = f"rebuilt: {escape(decision.why)}" if decision.why else "unchanged"
    last = f"its last batch is {decision.batch_id}" if decision.batch_id >= 0 else "it has no batch"
    click.echo(f"{what}; {last}", err=True)


@click.command("collect", epilog=lifecycle_flags.EXIT_CODES)
@takes_logs
@lifecycle_flags.takes_lifecycle_options(policy=False)
@click.option(
    "--delete", "deletes", is_flag=True, help="Delete them. Without this nothing is changed."
)
@click.option(
    "--look-again",
    "looks_again",
    is_flag=True,
    help="Read all records that stay, also those of which an earlier collection erased the rows, "
    "and the segments of deleted logs: a restore of the bucket from a backup brings rows back.",
)
@as_json
def collect(
    path: str,
    log_options: dict[str, str],
    *,
    deletes: bool,
    looks_again: bool,
    as_json: bool,
) -> None:
    """The log no longer needs an object if its floor passed the object's position longer ago than
    the grace, no live consumer waits for it, and the log's table holds its rows. You may stop this
    command at any moment; run it again to continue. Records that must stay lose their rows (erased)
    when their floor is twice as old. For a Delta table that is neither on a disk nor
    on S3 it needs delta-rs: the extra `lake` of sparkwal.

    \b
    sparkwal collect s3://bucket/wal
    sparkwal collect s3://bucket/wal --delete

    Requests: 4 LIST and 3 GET; log₂ n age checks for n lifecycle records; 2 for each consumer;
    1 LIST for a thousand objects below the floor, with --delete also 1 DELETE. Once for each record
    that stays: 1 GET, with --delete and rows 1 PUT. With --all many logs share the LISTs of a
    thousand objects.
    """
    all_sequencers = bool(log_options.pop("sequencers", None))
    settings = lifecycle_flags.parse_options(path, log_options, all_sequencers=all_sequencers)
    logs = lifecycle_flags.existing_logs(settings, all_sequencers=all_sequencers)
    chain = newest_record(next(iter(logs.values()))) if logs else None
    states = {name: chain.log(name) if chain else None for name in logs}
    if not states:
        raise no_log(open_log(settings))
    results: dict[str, Collection | SparkWalError | None] = dict.fromkeys(states)
    failures: dict[str, SparkWalError] = {}
    with lifecycle_flags.printing_events(Console(stderr=True)):
        for url, names in _by_table(states).items():
            target = chain.tables[url].target if chain and url else None
            coordinator = _coordinator(settings, target)
            try:
                if all_sequencers:
                    results |= coordinator.collect_all(
                        names, dry_run=not deletes, looks_again=looks_again
                    )
                else:
                    collection = coordinator.collect(dry_run=not deletes, looks_again=looks_again)
                    results[settings.sequencer] = collection
            except SparkWalError as error:
                results |= dict.fromkeys(names, error)
                others = f" and {len(names) - 1} others" if len(names) > 1 else ""
                failures[f"{names[0]}{others}"] = error
    rows: list[dict[str, Any]] = []
    for name, result in results.items():
        state = states[name]
        about = {"sequencer": name, "floor": state.floor if state else 0, "deleted": deletes}
        if isinstance(result, SparkWalError):
            if result not in failures.values():
                failures[name] = result
            if as_json:
                print_json({**about, "lifecycle": True, "error": str(result)})
            continue
        if deletes and result is not None and result.failure:
            failures[name] = SparkWalError(result.failure)
        row = {**about, **_row(result)}
        rows.append(row)
        if as_json:
            print_json(row)
    if rows and not as_json:
        table(rows, f"{settings.path}: {'deleted' if deletes else '--delete would delete'}")
    if failures:
        raise lifecycle_flags.Failures(failures, several=all_sequencers)


def _coordinator(settings: LifecycleOptions, target: Target | None) -> Coordinator:
    """The coordinator of the logs with this table; None for those without one."""
    return Coordinator(
        open_log(settings),
        settings,
        table=CheckedTable(target, settings) if target else None,
        gc_grace_ms=settings.gc_grace_ms,
        consumer_expiry_ms=settings.consumer_expiry_ms,
    )


def _row(collection: Collection | None) -> dict[str, Any]:
    """What a collection found and did; None for a log without a lifecycle, which has none."""
    held_by = collection.held_by if collection else "no lifecycle: nothing was released"
    counted = ("objects", "bytes", "uploads", "erased", "kept")
    return {
        "lifecycle": collection is not None,
        "below": collection and collection.bound,
        **{name: getattr(collection, name, 0) for name in counted},
        "with_rows": collection and collection.with_rows,
        "held_by": held_by or None,
    }


def _by_table(states: Mapping[str, LogInChain | None]) -> dict[str, list[str]]:
    """The names of the logs with a lifecycle, by the URL of their table; "" without one."""
    names: dict[str, list[str]] = {}
    for name, state in states.items():
        if state is not None:
            names.setdefault(state.table, []).append(name)
    return names


@click.command("repair")
@takes_log
@click.argument("position", type=click.IntRange(0))
@click.option(
    "--give-up",
    is_flag=True,
    help="Replace a lost record by a record without rows, so that readers and writers get past it. "
    "Its rows stay lost.",
)
def repair(path: str, log_options: dict[str, str], position: int, *, give_up: bool) -> None:
    """POSITION is the position in the error, or the number in the object's name. The command
    rebuilds the record's header from the copy in its footer, or a lost or damaged record from its
    segment. What no copy has it cannot repair: restore the object then. A damaged segment with this
    position is deleted if its records are sound. Stop all writers first. The command saves the
    repaired record under {PATH}/repaired/, so you may repeat a repair. It changes no sound record.

    \b
    sparkwal repair s3://bucket/wal 70412

    Requests: 1 GET, 2 PUT, 2 DELETE, and those that find the head. With a segment: 1,000 GET more.
    """
    if not repair_record(path, position, give_up=give_up, **log_options):
        click.echo(f"position {position}: it is sound, so nothing was changed")
        return
    done = "given up: it now holds a record without rows" if give_up else "repaired"
    click.echo(f"position {position}: {done}; check the log with sparkwal verify")
