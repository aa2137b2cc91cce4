"""`sparkwal cat`, `head`, `tail` and `sql`: rows of a log, and answers about it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import pyarrow as pa

from sparkwal.cli.forms import Form, takes_form, writer
from sparkwal.cli.open_logs import Damage, bounds, open_logs
from sparkwal.cli.tailing import Shown, first_rows, followed, kept, last_rows, shown_columns
from sparkwal.console.exit_codes import EXIT_CODES, Refused
from sparkwal.console.options import (
    as_moment,
    first_and_last,
    named_or_all,
    takes_log,
    time_with_unit,
)
from sparkwal.lifecycle.consumers import consumer_infos
from sparkwal.lifecycle.snapshot import Current, current
from sparkwal.options.types import duration
from sparkwal.reading.log_range import LogRange
from sparkwal.sql.database import Condition, answer, together
from sparkwal.sql.relations import relations
from sparkwal.sql.rows import known_columns, rows


def takes_range(command: Callable[..., None]) -> Callable[..., None]:
    """The options of logs and of a range of them; the command gets `path`, `given`, which says
    where to begin and to end, and `sequencers`."""

    @takes_log
    @click.option("--start", type=click.IntRange(0), metavar="POSITION",
                  help="The first position.  [default: the log's floor]")  # fmt: skip
    @click.option("--end", type=click.IntRange(0), metavar="POSITION",
                  help="The last position.  [default: the head]")  # fmt: skip
    @click.option("--since", callback=as_moment, metavar="TIME",
                  help="Commits from this time on; 1h: an hour ago.")  # fmt: skip
    @click.option("--until", callback=as_moment, metavar="TIME", help="Commits up to this time.")
    @click.option("--sequencers", metavar="a,b",
                  help="These logs under PATH, in the order of their commits' times.")  # fmt: skip
    @click.option("--all", "every", is_flag=True, help="All logs under PATH, in that order too.")
    @functools.wraps(command)
    def read(
        given: dict[str, str], start: int | None, end: int | None, since: int | None,
        until: int | None, sequencers: str | None, every: bool, **others: Any,
    ) -> None:  # fmt: skip
        given.update(bounds(start, end, since, until))
        command(given=given, sequencers=named_or_all(sequencers, every), **others)

    return read


@dataclass(frozen=True)
class _Asked:
    path: str
    given: dict[str, str]
    sequencers: str | None
    columns: str | None
    metadata: bool
    where: str | None
    form: Form
    damage: Damage = field(default_factory=Damage)

    def logs(self) -> list[LogRange]:
        return open_logs(self.path, self.given, self.sequencers, self.damage)

    def shown(self, spark_schemas: Sequence[str | None]) -> Shown:
        known = known_columns(spark_schemas)
        columns = shown_columns(known, self.columns, self.metadata, len(spark_schemas) > 1)
        return Shown(known, columns, Condition(self.where, known) if self.where else None)


def _takes_rows(command: Callable[..., None]) -> Callable[..., None]:
    """As `takes_range`, and what of each row: the command gets `asked`."""

    @takes_range
    @takes_form("table", "json", "csv", "arrow")
    @click.option("--columns", metavar="a,b",
                  help="Only these, in this order; _wal_… columns may be among them.")  # fmt: skip
    @click.option(
        "--metadata", is_flag=True, help="Add the _wal_… columns: where each row came from."
    )
    @click.option("--where", metavar="CONDITION",
                  help="Only rows for which it is true, in DuckDB's SQL: "
                  "\"delay > 30 AND origin = 'JFK'\".")  # fmt: skip
    @functools.wraps(command)
    def read(
        path: str, given: dict[str, str], sequencers: str | None, columns: str | None,
        metadata: bool, where: str | None, form: Form, **others: Any,
    ) -> None:  # fmt: skip
        if columns is not None and metadata:
            raise Refused("--columns names the _wal_… columns too: leave --metadata out")
        asked = _Asked(path, given, sequencers, columns, metadata, where, form)
        command(asked=asked, **others)

    return read


def notify(message: str) -> None:
    click.echo(message, err=True)


def _show(asked: _Asked, rows: Iterator[tuple[Shown, pa.RecordBatch | None]], end: Shown) -> None:
    """Print rows; None among them stands for a pause, in which nothing is held back."""
    with writer(asked.form, notify) as out:
        for shown, batch in rows:
            if batch is None:
                out.flush()
            else:
                out.write(batch.select(list(shown.columns)))
        out.end(end.target.empty_table().select(list(end.columns)).schema)
        # A file that lacks rows does not appear.
        asked.damage.check()


@click.command("cat", epilog=EXIT_CODES)
@_takes_rows
@click.argument("range", required=False)
def cat(asked: _Asked, range: str | None) -> None:
    """RANGE is positions, inclusive: 100..199, 100.., ..199 or 100. Without one, all rows that the
    log holds, from its floor on.

    \b
    sparkwal cat s3://bucket/wal --where "dep_delay > 30 AND origin = 'JFK'" --columns id,origin
    sparkwal cat s3://bucket/wal 100..199 --json
    """
    if range is not None:
        try:
            start, end = first_and_last(range)
        except ValueError as expected:
            raise Refused(str(expected)) from None
        if "startingPosition" in asked.given or "endingPosition" in asked.given:
            raise Refused("a range and --start or --end: give one of them")
        asked.given.update(bounds(start, end, None, None))
    logs = asked.logs()
    shown = asked.shown([log.spark_schema for log in logs])
    every = rows(logs, shown.target, shown.needs)
    # A condition is asked of many rows at once.
    batches = every if shown.where is None else kept(together(every), shown)
    _show(asked, ((shown, batch) for batch in batches), shown)


@click.command("head", epilog=EXIT_CODES)
@_takes_rows
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
def head(asked: _Asked, count: int) -> None:
    """Reads no further than it must: with --where until so many rows are found."""
    logs = asked.logs()
    shown = asked.shown([log.spark_schema for log in logs])
    _show(asked, ((shown, batch) for batch in first_rows(logs, shown, count)), shown)


@click.command("tail", epilog=EXIT_CODES)
@_takes_rows
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
@click.option("-f", "--follow", is_flag=True, help="Then those that come, each once, until Ctrl-C.")
@click.option(
    "--interval", default="1s", show_default=True, metavar="TIME", callback=time_with_unit,
    help="How often -f looks; a look that finds nothing is 1 GET.",
)  # fmt: skip
def tail(asked: _Asked, count: int, follow: bool, interval: str) -> None:
    """Reads back from the head, no more records than it must: 2 LIST and 2 GET, 1 GET for each
    record, and of an appender's log maxInFlightRequests − 1 to be sure of its head.

    -f goes on over a new leader, a floor that moves (it says what it missed) and a store that is
    away for a while; a log that was recreated ends it with exit code 1. Logs that begin under
    PATH meanwhile are not followed.
    """
    if follow and asked.form.out is not None:
        raise Refused("-f has no end at which a file would be whole: send it to a pipe instead")
    if follow and {"endingPosition", "endingTimestamp"} & asked.given.keys():
        raise Refused("-f has no end: leave --end and --until out")
    logs = asked.logs()
    shown = asked.shown([log.spark_schema for log in logs])

    def newest() -> Iterator[tuple[Shown, pa.RecordBatch | None]]:
        for batch in last_rows(logs, shown, count):
            yield shown, batch
        if follow:
            for line in asked.damage.lines():
                notify(f"not shown: {line}")
            yield from followed(logs, asked.shown, duration(interval), notify)

    _show(asked, newest(), shown)


@click.command("sql", epilog=EXIT_CODES)
@takes_range
@click.argument("query")
@takes_form("table", "json", "csv", "arrow", "parquet")
def sql(path: str, given: dict[str, str], sequencers: str | None, query: str, form: Form) -> None:
    """\b
    log        its rows, with the _wal_… columns
    records    one row for each record: position, time, kind, leader, rows, bytes, last_put_ms, …
    consumers  who reads it
    current    its table and the log after it as one; needs sparkwal[lake]

    "DESCRIBE records" shows their columns. What QUERY does not need is not read: no rows where it
    names none of their columns, and no positions outside of the ranges of _wal_position and
    _wal_timestamp (of records: position and time) in its WHERE. It reads nothing else: no file, no
    network.

    \b
    sparkwal sql s3://bucket/wal "SELECT max(last_put_ms) FROM records WHERE time > now() - INTERVAL 1 DAY"
    sparkwal sql s3://bucket/wal "SELECT origin, count(*) FROM log GROUP BY ALL" --format parquet -o x.parquet

    Requests: for head and floor as sparkwal log, and log₂ n GETs for each end of a range of times;
    1 GET for each record, and as many as its rows take; twice where a query reads them twice.
    """  # noqa: E501
    if form.name == "parquet" and form.out is None:
        raise Refused("--format parquet is a file: name it with -o FILE")
    logs = [log for log in open_logs(path, given, sequencers) if log.log_id is not None]

    def now() -> Current:
        return current({log.name: log.log for log in logs}, logs[0].options, None)

    answered = answer(relations(logs, consumer_infos, now), query)
    try:
        with writer(form, notify) as out:
            for batch in answered:
                out.write(batch)
            out.end(answered.schema)
    except pa.ArrowNotImplementedError as error:
        raise Refused(f"--format {form.name} has no form for a column: cast it ({error})") from None
