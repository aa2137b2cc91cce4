"""`sparkwal cat`, `head`, `tail` and `sql`: print rows of a log, and results of queries."""

import csv
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import click
import pyarrow as pa

from sparkwal.cli.exit_codes import EXIT_CODES, Refused
from sparkwal.cli.flags import named_or_all, options, takes_interval
from sparkwal.cli.forms import Form, open_writer, takes_form
from sparkwal.cli.open_logs import Damage, logs_at, notify, takes_range
from sparkwal.cli.tailing import Selection, first_rows, follow_rows, last_rows, matching_rows
from sparkwal.lifecycle.consumers.consumer_list import consumer_infos
from sparkwal.lifecycle.current_rows import Current
from sparkwal.options.reading import CONSUMERS, TRIGGERS
from sparkwal.options.store import refuse
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import METADATA, selected
from sparkwal.sql.database import Condition, join_batches, run_query
from sparkwal.sql.relations import ORIGIN, all_columns, relations, rows

# Adds --sequencers and --all to `takes_range`. The command receives `names`.
_takes_logs = options(
    lambda sequencers, all_sequencers: {
        "names": named_or_all(sequencers, all_sequencers=all_sequencers)
    },
    takes_range,
    click.option(
        "--sequencers",
        metavar="a,b",
        help="These logs under PATH, in the order of their commits' times.",
    ),
    click.option(
        "--all",
        "all_sequencers",
        is_flag=True,
        help="All logs under PATH, in the order of their commits' times.",
    ),
)


def _open(
    path: str, log_options: dict[str, str], names: str | None, damage: Damage | None
) -> list[LogRange]:
    logs = logs_at(path, log_options, damage, names)
    parsed = logs[0].options
    refuse(parsed, "does not go with a command", *TRIGGERS, *CONSUMERS, "minPartitions", "lease")
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
class _RowsCommand:
    """The options of `cat`, `head` and `tail`, and the logs that they read.

    Attributes:
        names: the sequencers, as `logs_at` takes them.
        metadata: print the `_wal_…` columns.
        condition: the SQL of --where.
        damage: the unreadable records and objects.
    """

    path: str
    log_options: dict[str, str]
    names: str | None
    columns: str | None
    metadata: bool
    condition: str | None
    form: Form
    damage: Damage = field(default_factory=Damage)

    def __post_init__(self) -> None:
        if self.columns is not None and self.metadata:
            raise Refused("--columns names the _wal_… columns too: leave --metadata out")

    @functools.cached_property
    def logs(self) -> list[LogRange]:
        logs = _open(self.path, self.log_options, self.names, self.damage)
        _mention_tables(logs)
        return logs

    def selection(self, spark_schemas: Sequence[str | None]) -> Selection:
        """The columns and rows to print of logs with these Spark schemas.

        Raises:
            OptionError: --columns names a column that does not exist.
            Refused: --columns names a column twice.
        """
        columns = all_columns(spark_schemas)
        in_log = [name for name in columns.names if name not in ORIGIN.names]
        sequencer = ["_wal_sequencer"] if len(spark_schemas) > 1 else []
        names = [*in_log, *([*METADATA, *sequencer] if self.metadata else [])]
        if self.columns is not None:
            names = _names_in(self.columns, columns.names)
            selected(columns, names)
            if len({*names}) < len(names):
                raise Refused(f"--columns {self.columns} names a column twice")
        condition = Condition(self.condition, columns) if self.condition is not None else None
        return Selection(columns, tuple(names), condition)

    def print(self, rows: Callable[[Selection], Iterable[pa.RecordBatch | None]]) -> None:
        """Print the rows that a function reads. If it yields None, flush the output."""
        selection = self.selection([log.spark_schema for log in self.logs])
        with open_writer(self.form, selection.schema) as out:
            for batch in rows(selection):
                if batch is None:
                    out.flush()
                else:
                    out.write(batch)
            out.end()
            # Inside of the context: an error here keeps an incomplete file from appearing.
            self.damage.check()


def _names_in(text: str, columns: Sequence[str]) -> list[str]:
    """The names in a list with commas. Quotes, as in CSV, keep a comma or a space of a name."""
    try:
        (names,) = csv.reader([text], skipinitialspace=True)
    except csv.Error:
        raise Refused(f"--columns {text!r}: put quotes around a name with a line break") from None
    return [name if name in columns else name.strip() for name in names]


# Adds the choice of columns and rows to `_takes_logs`. The command receives `command`.
_takes_rows = options(
    lambda **values: {"command": _RowsCommand(**values)},
    _takes_logs,
    takes_form("table", "json", "csv", "arrow"),
    click.option(
        "--columns",
        metavar="a,b",
        help="Only these columns, in this order; _wal_… columns may be among them.",
    ),
    click.option(
        "--metadata", is_flag=True, help="Add the _wal_… columns, the origin of each row."
    ),
    click.option(
        "--where",
        "condition",
        metavar="CONDITION",
        help="Only rows for which it is true, in DuckDB's SQL: \"delay > 30 AND origin = 'JFK'\".",
    ),
    names=("path", "log_options", "names", "columns", "metadata", "condition", "form"),
)


@click.command("cat", epilog=EXIT_CODES)
@_takes_rows
@click.argument("positions", metavar="[RANGE]", required=False)
def cat(command: _RowsCommand) -> None:
    """RANGE is a range of positions, inclusive: 100..199, 100.., ..199 or 100. Without a range,
    print all rows of the log from its floor on.

    \b
    sparkwal cat s3://bucket/wal --where "dep_delay > 30 AND origin = 'JFK'" --columns id,origin
    sparkwal cat s3://bucket/wal 100..199 --json
    """

    def all_rows(selection: Selection) -> Iterator[pa.RecordBatch]:
        batches = rows(command.logs, selection.target, selection.pushdown)
        if selection.condition is None:
            return batches
        # One call of the condition costs more than a small batch: join small batches.
        return matching_rows(join_batches(batches), selection)

    command.print(all_rows)


@click.command("head", epilog=EXIT_CODES)
@_takes_rows
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
def head(command: _RowsCommand, count: int) -> None:
    """This stops reading as soon as it has enough rows, also with --where."""
    command.print(lambda selection: first_rows(command.logs, selection, count))


@click.command("tail", epilog=EXIT_CODES)
@_takes_rows
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Then print new rows, each once, until Ctrl-C. A log that appears later is not followed.",
)
@takes_interval("1s", "How often -f looks for new records; without new records it makes 1 GET.")
def tail(command: _RowsCommand, count: int, interval: int, *, follow: bool) -> None:
    """This reads back from the head until it has enough rows: 2 LIST and 2 GET, 1 GET for each
    record, and for an appender's log maxInFlightRequests − 1 GETs that find the head.

    -f continues after a new leader, after a moved floor (it prints which positions it missed) and
    while the store does not answer. If the log is recreated, it ends with exit code 1. It does not
    follow logs that begin under PATH later.
    """
    if follow and command.form.file is not None:
        raise Refused("-f has no end, so its file would never be complete: use a pipe instead")
    if follow and {"endingPosition", "endingTimestamp"} & command.log_options.keys():
        raise Refused("-f has no end: leave --end and --until out")

    def newest(selection: Selection) -> Iterator[pa.RecordBatch | None]:
        yield from last_rows(command.logs, selection, count)
        if follow:
            for line in command.damage.lines():
                notify(f"not shown: {line}")
            command.damage.report = notify
            yield from follow_rows(command.logs, command.selection, interval, notify)

    command.print(newest)


@click.command("sql", epilog=EXIT_CODES)
@_takes_logs
@click.argument("query")
@takes_form("table", "json", "csv", "arrow", "parquet")
def sql(path: str, log_options: dict[str, str], names: str | None, query: str, form: Form) -> None:
    """\b
    log        the rows, with the _wal_… columns
    records    one row for each record: position, time, kind, leader, rows, bytes, last_put_ms, …
    consumers  the consumers
    current    the table and the newer rows of the log as one; needs sparkwal[lake]

    "DESCRIBE records" lists the columns of a relation. The command reads no rows if QUERY names no
    column of them, and no positions outside of the ranges of _wal_position and _wal_timestamp (for
    records: position and time) in its WHERE. QUERY has no access to files or the network.

    \b
    sparkwal sql s3://bucket/wal "SELECT max(last_put_ms) FROM records"
    sparkwal sql s3://bucket/wal "SELECT count(*) FROM log" --format parquet -o x.parquet

    Requests: for head and floor as sparkwal log, and log₂ n GETs for each end of a range of times;
    1 GET for each record, and those for its rows; twice if a query reads them twice.
    """
    if form.name == "parquet" and form.file is None:
        raise Refused("--format parquet is a file: name it with -o FILE")
    logs = _open(path, log_options, names, None)
    _mention_tables(logs)

    stores = {log.name: log.log for log in logs}
    now = functools.partial(Current, stores, logs[0].options, None)
    result = run_query(relations(logs, consumer_infos, now), query)
    with open_writer(form, result.schema) as out:
        for batch in result:
            out.write(batch)
        out.end()
