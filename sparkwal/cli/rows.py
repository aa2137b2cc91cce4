"""`sparkwal cat`, `head`, `tail` and `sql`: rows of a log, and answers about it.

Nothing here needs pyarrow until a command runs: its help is there at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sparkwal.cli.forms import Form, takes_form, writer
from sparkwal.console.exit_codes import EXIT_CODES, Refused
from sparkwal.console.options import (
    as_moment,
    first_and_last,
    named_or_all,
    takes_log,
    time_with_unit,
)
from sparkwal.options.types import duration

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkwal.cli.open_logs import Damage
    from sparkwal.cli.tailing import Shown
    from sparkwal.reading.log_range import LogRange


def takes_range(command: Callable[..., None]) -> Callable[..., None]:
    """The options of logs and of a range of them; the command gets `path`, `given`, which says
    where to begin and to end, and `sequencers`."""
    options = [
        click.option("--start", type=click.IntRange(0), metavar="POSITION",
                     help="The first position.  [default: the log's floor]"),
        click.option("--end", type=click.IntRange(0), metavar="POSITION",
                     help="The last position.  [default: the head]"),
        click.option("--since", callback=as_moment, metavar="TIME",
                     help="Commits from this time on; 1h: an hour ago."),
        click.option("--until", callback=as_moment, metavar="TIME",
                     help="Commits up to this time."),
        click.option("--sequencers", metavar="a,b",
                     help="These logs under PATH, in the order of their commits' times."),
        click.option("--all", "every", is_flag=True, help="All logs under PATH, so too."),
    ]  # fmt: skip

    @functools.wraps(command)
    def read(
        given: dict[str, str], start: int | None, end: int | None, since: int | None,
        until: int | None, sequencers: str | None, every: bool, **others: Any,
    ) -> None:  # fmt: skip
        bounds = {
            "startingPosition": start, "endingPosition": end,
            "startingTimestamp": since, "endingTimestamp": until,
        }  # fmt: skip
        given.update({name: str(value) for name, value in bounds.items() if value is not None})
        command(given=given, sequencers=named_or_all(sequencers, every), **others)

    for option in reversed(options):
        read = option(read)
    return takes_log(read)


@dataclass(frozen=True)
class _Asked:
    """What of each row, and in which form."""

    columns: str | None
    metadata: bool
    where: str | None
    sequencers: str | None
    form: Form


def _takes_rows(command: Callable[..., None]) -> Callable[..., None]:
    """As `takes_range`, and what of each row: the command gets `path`, `given` and `asked`."""
    options = [
        click.option("--columns", metavar="a,b",
                     help="Only these, in this order; _wal_… columns may be among them."),
        click.option("--metadata", is_flag=True,
                     help="Add the _wal_… columns: where each row came from."),
        click.option("--where", metavar="CONDITION",
                     help="Only rows for which it is true, in DuckDB's SQL: "
                     "\"delay > 30 AND origin = 'JFK'\"."),
    ]  # fmt: skip

    @functools.wraps(command)
    def read(
        columns: str | None, metadata: bool, where: str | None, sequencers: str | None, form: Form,
        **others: Any,
    ) -> None:  # fmt: skip
        if columns is not None and metadata:
            raise Refused("--columns names the _wal_… columns too: leave --metadata out")
        command(asked=_Asked(columns, metadata, where, sequencers, form), **others)

    for option in reversed(options):
        read = option(read)
    return takes_range(takes_form("table", "json", "csv", "arrow")(read))


def notify(message: str) -> None:
    """What people should know, beside the rows."""
    click.echo(message, err=True)


@dataclass(frozen=True)
class _Opened:
    """The logs that were asked for, and how their rows are shown."""

    logs: Sequence[LogRange]
    asked: _Asked
    damage: Damage

    def now(self) -> Shown:
        """Of the columns that the logs had when they were looked at. Raises as `shown`."""
        from sparkwal.sql.rows import known_columns

        return self.shown(known_columns(log.spark_schema for log in self.logs))

    def shown(self, known: pa.Schema) -> Shown:
        """Of logs with these columns. Raises Refused, OptionError."""
        from sparkwal.cli.tailing import Shown, shown_columns
        from sparkwal.sql.database import Condition

        asked = self.asked
        columns = shown_columns(known, asked.columns, asked.metadata, len(self.logs) > 1)
        return Shown(known, columns, Condition(asked.where, known) if asked.where else None)


def _open(path: str, given: dict[str, str], asked: _Asked) -> _Opened:
    from sparkwal.cli.open_logs import Damage, open_logs

    damage = Damage()
    return _Opened(open_logs(path, given, asked.sequencers, damage), asked, damage)


def _show(opened: _Opened, rows: Iterator[tuple[Shown, pa.RecordBatch | None]], end: Shown) -> None:
    """Print rows; None among them stands for a pause, in which nothing is held back."""
    from sparkwal.cli.open_logs import check

    with writer(opened.asked.form, notify) as out:
        for shown, batch in rows:
            if batch is None:
                out.flush()
            else:
                out.write(batch.select(list(shown.columns)))
        out.end(end.target.empty_table().select(list(end.columns)).schema)
        # A file that lacks rows does not appear.
        check(opened.damage.lines())


@click.command("cat", epilog=EXIT_CODES)
@_takes_rows
@click.argument("range", required=False)
def cat(path: str, given: dict[str, str], asked: _Asked, range: str | None) -> None:
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
        if "startingPosition" in given or "endingPosition" in given:
            raise Refused("a range and --start or --end: give one of them")
        bounds = {"startingPosition": start, "endingPosition": end}
        given.update({name: str(value) for name, value in bounds.items() if value is not None})
    opened = _open(path, given, asked)
    from sparkwal.cli.tailing import kept
    from sparkwal.sql.database import together
    from sparkwal.sql.rows import rows

    shown = opened.now()
    every = rows(opened.logs, shown.target, shown.needs)
    # A condition is asked of many rows at once.
    batches = every if shown.where is None else kept(together(every), shown)
    _show(opened, ((shown, batch) for batch in batches), shown)


@click.command("head", epilog=EXIT_CODES)
@_takes_rows
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
def head(path: str, given: dict[str, str], asked: _Asked, count: int) -> None:
    """Reads no further than it must: with --where until so many rows are found."""
    opened = _open(path, given, asked)
    from sparkwal.cli.tailing import first_rows

    shown = opened.now()
    _show(opened, ((shown, batch) for batch in first_rows(opened.logs, shown, count)), shown)


@click.command("tail", epilog=EXIT_CODES)
@_takes_rows
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
@click.option("-f", "--follow", is_flag=True, help="Then those that come, each once, until Ctrl-C.")
@click.option(
    "--interval", default="1s", show_default=True, metavar="TIME", callback=time_with_unit,
    help="How often -f looks; a look that finds nothing is 1 GET.",
)  # fmt: skip
def tail(
    path: str, given: dict[str, str], asked: _Asked, count: int, follow: bool, interval: str
) -> None:
    """Reads back from the head, no more records than it must: 2 LIST and 2 GET, 1 GET for each
    record, and of an appender's log maxInFlightRequests − 1 to be sure of its head.

    -f goes on over a new leader, a floor that moves (it says what it missed) and a store that is
    away for a while; a log that was recreated ends it with exit code 1. Logs that begin under
    PATH meanwhile are not followed.
    """
    if follow and asked.form.out is not None:
        raise Refused("-f has no end at which a file would be whole: send it to a pipe instead")
    if follow and {"endingPosition", "endingTimestamp"} & given.keys():
        raise Refused("-f has no end: leave --end and --until out")
    opened = _open(path, given, asked)
    from sparkwal.cli.tailing import followed, last_rows

    shown = opened.now()

    def rows() -> Iterator[tuple[Shown, pa.RecordBatch | None]]:
        for batch in last_rows(opened.logs, shown, count):
            yield shown, batch
        if follow:
            for line in opened.damage.lines():
                notify(f"not shown: {line}")
            yield from followed(opened.logs, opened.shown, duration(interval), notify)

    _show(opened, rows(), shown)


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
    import pyarrow as pa

    from sparkwal.cli.open_logs import open_logs
    from sparkwal.lifecycle.consumers import consumer_infos
    from sparkwal.lifecycle.snapshot import Current, current
    from sparkwal.sql.database import answer
    from sparkwal.sql.relations import relations

    logs = [log for log in open_logs(path, given, sequencers) if log.log_id is not None]

    def now() -> Current:
        return current({log.name: log.log for log in logs}, logs[0].options, None)

    rows = answer(relations(logs, consumer_infos, now), query)
    try:
        with writer(form, notify) as out:
            for batch in rows:
                out.write(batch)
            out.end(rows.schema)
    except pa.ArrowNotImplementedError as error:
        raise Refused(f"--format {form.name} has no form for a column: cast it ({error})") from None
