"""`sparkwal refused --again`: writes refused rows into their tables again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from sparkwal.cli.flags import with_flags
from sparkwal.cli.lifecycle_flags import Failures, existing_logs, parse_options, printing_events
from sparkwal.cli.open_logs import no_log
from sparkwal.cli.output import print_json, table
from sparkwal.errors import OptionError, PlanError, SparkWalError
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.known_log import Again
from sparkwal.lifecycle.merging import condition
from sparkwal.lifecycle.opening import check_again, check_place, needs_spark
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.options.open import open_log
from sparkwal.protocol.chain import newest_record
from sparkwal.spark import jvm, sessions
from sparkwal.spark.delta_lifecycle import Lifecycle, arguments_of


def write_again(path: str, log_options: dict[str, str], *, as_json: bool) -> None:
    """Write the refused rows of logs into their tables again, log by log, and print the results.

    Args:
        path: the path of the logs.
        log_options: the options; `sequencers` stands for all logs under the path.
        as_json: print a JSON line for each log.

    Raises:
        Refused: there is no log.
        OptionError: Spark is not installed, or a table is at a place that the options do not name.
        SparkWalError: Spark did not start, or the chain is unreadable.
        Failures: a log failed.
    """
    all_sequencers = bool(log_options.pop("sequencers", None))
    settings = parse_options(path, log_options, all_sequencers=all_sequencers)
    logs = existing_logs(settings, all_sequencers=all_sequencers)
    if not logs:
        raise no_log(open_log(settings))
    record = newest_record(next(iter(logs.values())))
    targets: dict[str, Target] = {}
    for name in logs:
        target = record.target_of(name) if record else None
        if record and target is not None and record.tables[target.table].refused is not None:
            targets[name] = target
    results: dict[str, Again] = {name: Again(0, 0) for name in logs.keys() - targets.keys()}
    failures: dict[str, SparkWalError] = {}
    for name, target in [*targets.items()]:
        try:
            _check(target, settings)
        except SparkWalError as error:
            failures[name] = error
            del targets[name]
    with printing_events(Console(stderr=True)), _spark_for(targets.values(), settings) as spark:
        for name, target in targets.items():
            options = with_flags(log_options, sequencer=name)
            arguments: dict[str, Any] = {**options, **arguments_of(target), "spark": spark}
            try:
                results[name] = Lifecycle(path, **arguments).refused_again()
            except SparkWalError as error:
                failures[name] = error
    _print(path, [name for name in logs if name in results], results, failures, as_json=as_json)
    if failures:
        raise Failures(failures, several=all_sequencers)


def _check(target: Target, settings: LifecycleOptions) -> None:
    """Check that this process writes refused rows into a table that only the log names.

    Raises:
        OptionError: it does not.
    """
    try:
        check_again(target)
    except PlanError as error:
        raise OptionError(str(error)) from None
    if not needs_spark(target):
        return
    check_place(target.table, settings)
    try:
        if target.delete_when:
            condition.parse(target.delete_when)
    except ValueError as error:
        raise OptionError(
            f"the log's delete condition {target.delete_when[:200]!r} is more than this command "
            f"takes from a log, because Spark would run it: {error}. If you trust it, give it "
            "yourself: sparkwal.Lifecycle(path, spark=spark, table=…, keys=…, sequence_by=…, "
            "delete_when=…).refused_again()"
        ) from None


@contextmanager
def _spark_for(targets: Iterable[Target], settings: LifecycleOptions) -> Iterator[Any]:
    """Start a session, and end it at the end. If no table needs Spark, it is None.

    Raises:
        OptionError: Spark is not installed, or has no Delta Lake.
        SparkWalError: it did not start.
    """
    tables = [target.table for target in targets if needs_spark(target)]
    if not tables:
        yield None
        return
    sessions.need_spark()
    sessions.need_delta(tables[0])
    spark = sessions.start_session(
        "sparkwal refused",
        delta=True,
        packages=sorted({package for url in tables for package in sessions.packages(url)}),
        settings={
            name: text
            for url in tables
            for name, text in sessions.store_settings(url, settings).items()
        },
    )
    try:
        yield spark
    finally:
        jvm.end(spark)


def _print(
    path: str,
    names: Iterable[str],
    results: Mapping[str, Again],
    failures: Mapping[str, SparkWalError],
    *,
    as_json: bool,
) -> None:
    rows = [
        {"sequencer": name, "written": results[name].written, "refused": results[name].refused}
        for name in names
    ]
    if as_json:
        for row in rows:
            print_json(row)
        for name, error in failures.items():
            print_json({"sequencer": name, "error": str(error)})
    elif rows:
        table(rows, f"{path}: rows written again, and rows still refused")
