"""`sparkwal doctor`: why a stream does not write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

import click

from sparkwal.cli import doctor_log, doctor_machine, doctor_store
from sparkwal.cli.asking import as_json, key_values, takes_log_options, takes_sequencer
from sparkwal.cli.findings import Line, to_do
from sparkwal.cli.probing import stores_at, takes_endpoints, told_line
from sparkwal.cli.telling import print_json
from sparkwal.errors import SparkWalError
from sparkwal.store.base import Transient


@click.command()
@click.argument("path")
@takes_endpoints
@takes_sequencer
@click.option("--checkpoint", metavar="LOCATION", help="The query's checkpointLocation.")
@click.option(
    "--spark-conf",
    "spark_conf",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of Spark, or an option of the query; repeatable.",
)
@takes_log_options()
@as_json
def command(
    path: str, endpoints: tuple[str, ...], sequencer: str | None, checkpoint: str | None,
    spark_conf: tuple[str, ...], given: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Why a stream does not write to PATH: each line is ok, or says what to do.

    Looks at this machine, the credentials, the bucket, every endpoint, the checkpoint and the
    log. Writes small objects under {PATH}/proof/, with a name of its own, and deletes them, also
    after Ctrl-C; fences nobody. What cannot be found out (no permission to ask) is said, and is
    no error. Prints no secret.

    Exit code 0: nothing to do; 1: a line says what.
    """
    conf = key_values(spark_conf, "--spark-conf")
    stores, prefix = stores_at(path, given, endpoints)
    if endpoints:
        given = {**given, "endpoint": endpoints[0]}
    if sequencer is not None:
        given = {**given, "sequencer": sequencer}
    asked: list[Callable[[], Iterator[Line]]] = [
        partial(doctor_machine.versions, conf),
        partial(doctor_machine.settings, conf),
        partial(doctor_store.look, stores, prefix),
        partial(doctor_log.checkpoint, path, given, checkpoint or conf.get(_LOCATION)),
        partial(doctor_log.look, path, given),
    ]
    told = []
    for line in (line for each in asked for line in _whole(each)):
        told.append(line)
        if not as_json:
            told_line(line.outcome, line.about, line.said, line.advice)
    left = sum(line.outcome == "to do" for line in told)
    if as_json:
        print_json({"path": path, "ok": not left, "lines": [asdict(line) for line in told]})
    else:
        click.echo()
        click.echo(f"{left} to do" if left else "nothing to do")
    if left:
        raise click.exceptions.Exit(1)


_LOCATION = "spark.sql.streaming.checkpointLocation"


def _whole(asked: Callable[[], Iterator[Line]]) -> Iterator[Line]:
    """The lines; an error of the library is the last of them."""
    try:
        yield from asked()
    except (SparkWalError, Transient) as error:
        yield to_do("error", str(error))
