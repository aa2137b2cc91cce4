"""What a log does not need any more: show it, or delete it."""

from __future__ import annotations

try:
    import support.installed  # noqa: F401
except ModuleNotFoundError:
    raise SystemExit(
        "the folder jobs/support is not beside this file: keep them together, or give it to "
        "spark-submit --py-files (sparkwal/docs/deploying.md)"
    ) from None

# isort: split
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sparkwal.cli.asking import key_values, takes_log_options
from sparkwal.cli.collect import Collecting, failures_of
from sparkwal.cli.exits import Refused, Stopped
from sparkwal.cli.lifecycles import (
    EXIT_CODES,
    Failures,
    checked,
    takes_delete,
    takes_lifecycle_options,
    takes_sequencers,
    told_by,
)
from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle import Target
from sparkwal.lifecycle.options import LifecycleOptions
from sparkwal.lifecycle.table import Table
from support import jvm
from support.attended import attended
from support.follow import Meter, Signals
from support.session import as_exit, need_delta, need_spark, start_session
from support.tables import jars, packages, s3a_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

console = Console(stderr=True)


@click.command(epilog=EXIT_CODES)
@click.argument("path")
@takes_log_options()
@takes_lifecycle_options(policy=False)
@takes_sequencers
@takes_delete
@click.option(
    "--spark", "with_spark", is_flag=True,
    help="Look at the log's table by Spark also where delta-rs is installed.",
)  # fmt: skip
@click.option(
    "--conf", multiple=True, metavar="NAME=VALUE",
    help="A setting of Spark, as spark-submit takes it; repeatable.",
)  # fmt: skip
@click.option(
    "--drain-timeout", type=click.FloatRange(0), default=60.0, show_default=True,
    help="Seconds a signal waits for the end.",
)  # fmt: skip
def main(
    path: str, given: dict[str, str], sequencer: str | None, every: bool, deletes: bool,
    with_spark: bool, conf: tuple[str, ...], drain_timeout: float,
) -> None:  # fmt: skip
    """Show, or with --delete delete, what the log at PATH does not need any more.

    That is what its floor has passed for longer than the grace, no live consumer waits for, and
    its table holds. jobs/compact.py does the same after each run. Stop it at any moment and run
    it again: it goes on.

    \b
    python jobs/collect.py s3://bucket/wal
    python jobs/collect.py s3://bucket/wal --delete
    """
    spark: SparkSession | None = None
    try:
        settings = checked(path, given, sequencer, every)
        configured = key_values(conf, "--conf")
        if configured and jvm.started_by_spark_submit():
            raise Refused("--conf here is too late: give it to spark-submit")
        work = Collecting(settings, every, deletes)
        work.look()
    except SparkWalError as error:
        raise as_exit(error) from None
    targets = work.targets()
    if targets and (with_spark or importlib.util.find_spec("deltalake") is None):
        need_spark()
        need_delta("a table")
        first = targets[0].table
        spark = start_session(
            "sparkwal collect", delta=True, packages=packages(first),
            jars=jars(first),
            settings={**s3a_settings(first, settings), **configured},
        )  # fmt: skip
        work.table_of = _by_spark(spark, settings)
    doing = "deleting" if deletes else "counting"
    try:
        with Signals() as signals, Meter(console, "collect") as meter, told_by(console):
            found = attended(work.run, meter, signals, spark, drain_timeout, lambda: doing)
    except SparkWalError as error:
        raise as_exit(error) from None
    finally:
        if spark is not None:
            jvm.end(spark)
    work.show(found)
    failures = failures_of(found)
    if failures:
        raise Failures(failures, every)
    if signals.received is not None:
        raise Stopped(signals.received)


def _by_spark(spark: SparkSession, settings: LifecycleOptions) -> Callable[[Target], Table]:
    from sparkwal.spark.delta import SparkDeltaTable

    return lambda target: SparkDeltaTable(spark, target, {"path": settings.path})


if __name__ == "__main__":
    main()
