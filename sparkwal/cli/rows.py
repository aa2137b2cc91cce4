"""`sparkwal cat`, `head`, `tail` and `sql`: rows of a log, and answers about it."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import click
import pyarrow as pa

from sparkwal.cli.exit_codes import EXIT_CODES, Refused
from sparkwal.cli.flags import named_or_all, options, takes_interval
from sparkwal.cli.forms import Form, takes_form, writer
from sparkwal.cli.open_logs import Damage, logs_at, notify, takes_range
from sparkwal.cli.tailing import Shown, first_rows, followed, kept, last_rows
from sparkwal.lifecycle.consumers import consumer_infos
from sparkwal.lifecycle.snapshot import Current
from sparkwal.options.reading import CONSUMERS, TRIGGERS
from sparkwal.options.store import refuse
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import METADATA, selected
from sparkwal.sql.database import Condition, join_batches, run_query
from sparkwal.sql.relations import ORIGIN, all_columns, relations, rows

# As `takes_range`, of several logs too: the command gets `names`.
_takes_logs = options(
    lambda sequencers, every: {"names": named_or_all(sequencers, every)},
    takes_range,
    click.option(
        "--sequencers",
        metavar="a,b",
        help="These logs under PATH, in the order of their commits' times.",
    ),
    click.option("--all", "every", is_flag=True, help="All logs under PATH, in that order too."),
)


def _open(
    path: str, given: dict[str, str], names: str | None, damage: Damage | None
) -> list[LogRange]:
    logs = logs_at(path, given, damage, names)
    asked = logs[0].options
    refuse(asked, "does not go with a command", *TRIGGERS, *CONSUMERS, "minPartitions", "lease")
    return logs


def _mention_tables(logs: Sequence[LogRange]) -> None:
    """Tell the user where the rows below the floor are, if no range was asked for."""
    for log in logs:
        options = log.options
        has_start = options.starting_position is not None or options.starting_timestamp_ms
        if not has_start and (table := log.table_below_floor()):
            notify(
                f"note: {log.log.url} begins at position {log.floor.current()}; the rows before "
                f"are in the table {table}. sparkwal sql PATH 'FROM current' reads both"
            )


@dataclass(frozen=True)
class _Asked:
    path: str
    given: dict[str, str]
    names: str | None
    columns: str | None
    metadata: bool
    where: str | None
    form: Form
    damage: Damage = field(default_factory=Damage)

    def __post_init__(self) -> None:
        if self.columns is not None and self.metadata:
            raise Refused("--columns names the _wal_… columns too: leave --metadata out")

    @functools.cached_property
    def logs(self) -> list[LogRange]:
        logs = _open(self.path, self.given, self.names, self.damage)
        _mention_tables(logs)
        return logs

    def shown(self, spark_schemas: Sequence[str | None]) -> Shown:
        """Raises OptionError for a column that is not there, Refused for one asked for twice."""
        known = all_columns(spark_schemas)
        own = [name for name in known.names if name not in ORIGIN.names]
        sequencer = ["_wal_sequencer"] if len(spark_schemas) > 1 else []
        names = [*own, *([*METADATA, *sequencer] if self.metadata else [])]
        if self.columns is not None:
            names = [name.strip() for name in self.columns.split(",")]
            selected(known, names)
            if len({*names}) < len(names):
                raise Refused(f"--columns {self.columns} names a column twice")
        kept = Condition(self.where, known) if self.where is not None else None
        return Shown(known, tuple(names), kept)

    def print(self, rows: Callable[[Shown], Iterable[pa.RecordBatch | None]]) -> None:
        """None among the rows stands for a pause, in which nothing is held back."""
        shown = self.shown([log.spark_schema for log in self.logs])
        with writer(self.form, shown.schema) as out:
            for batch in rows(shown):
                if batch is None:
                    out.flush()
                else:
                    out.write(batch)
            out.end()
            # A file that lacks rows does not appear.
            self.damage.check()


# As `_takes_logs`, and what of each row: the command gets `asked`.
_takes_rows = options(
    lambda **given: {"asked": _Asked(**given)},
    _takes_logs,
    takes_form("table", "json", "csv", "arrow"),
    click.option(
        "--columns",
        metavar="a,b",
        help="Only these, in this order; _wal_… columns may be among them.",
    ),
    click.option(
        "--metadata", is_flag=True, help="Add the _wal_… columns: where each row came from."
    ),
    click.option(
        "--where",
        metavar="CONDITION",
        help="Only rows for which it is true, in DuckDB's SQL: \"delay > 30 AND origin = 'JFK'\".",
    ),
    names=("path", "given", "names", "columns", "metadata", "where", "form"),
)


@click.command("cat", epilog=EXIT_CODES)
@_takes_rows
@click.argument("positions", metavar="[RANGE]", required=False)
def cat(asked: _Asked) -> None:
    """RANGE is positions, inclusive: 100..199, 100.., ..199 or 100. Without one, all rows that the
    log holds, from its floor on.

    \b
    sparkwal cat s3://bucket/wal --where "dep_delay > 30 AND origin = 'JFK'" --columns id,origin
    sparkwal cat s3://bucket/wal 100..199 --json
    """

    def every(shown: Shown) -> Iterator[pa.RecordBatch]:
        found = rows(asked.logs, shown.target, shown.pushdown)
        # A condition is asked of many rows at once.
        return found if shown.where is None else kept(join_batches(found), shown)

    asked.print(every)


@click.command("head", epilog=EXIT_CODES)
@_takes_rows
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
def head(asked: _Asked, count: int) -> None:
    """Reads no further than it must: with --where until so many rows are found."""
    asked.print(lambda shown: first_rows(asked.logs, shown, count))


@click.command("tail", epilog=EXIT_CODES)
@_takes_rows
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Then those that come, each once, until Ctrl-C. A log that appears later is not followed.",
)
@takes_interval("1s", "How often -f looks; a look that finds nothing is 1 GET.")
def tail(asked: _Asked, count: int, follow: bool, interval: int) -> None:
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

    def newest(shown: Shown) -> Iterator[pa.RecordBatch | None]:
        yield from last_rows(asked.logs, shown, count)
        if follow:
            for line in asked.damage.lines():
                notify(f"not shown: {line}")
            asked.damage.report = notify
            yield from followed(asked.logs, asked.shown, interval, notify)

    asked.print(newest)


@click.command("sql", epilog=EXIT_CODES)
@_takes_logs
@click.argument("query")
@takes_form("table", "json", "csv", "arrow", "parquet")
def sql(path: str, given: dict[str, str], names: str | None, query: str, form: Form) -> None:
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
    sparkwal sql s3://bucket/wal "SELECT max(last_put_ms) FROM records"
    sparkwal sql s3://bucket/wal "SELECT count(*) FROM log" --format parquet -o x.parquet

    Requests: for head and floor as sparkwal log, and log₂ n GETs for each end of a range of times;
    1 GET for each record, and as many as its rows take; twice where a query reads them twice.
    """
    if form.name == "parquet" and form.out is None:
        raise Refused("--format parquet is a file: name it with -o FILE")
    logs = _open(path, given, names, None)
    _mention_tables(logs)

    stores = {log.name: log.log for log in logs}
    now = functools.partial(Current, stores, logs[0].options, None)
    answered = run_query(relations(logs, consumer_infos, now), query)
    try:
        with writer(form, answered.schema) as out:
            for batch in answered:
                out.write(batch)
            out.end()
    except pa.ArrowNotImplementedError as error:
        raise Refused(f"--format {form.name} has no form for a column: cast it ({error})") from None
