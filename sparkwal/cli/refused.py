"""`sparkwal refused`: shows the rows that a table refused, and writes them again."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from sparkwal.cli.flags import as_json, takes_logs
from sparkwal.cli.lifecycle_flags import EXIT_CODES
from sparkwal.cli.open_logs import head_of, logs_at, notify
from sparkwal.cli.output import print_json, table
from sparkwal.cli.written_again import write_again
from sparkwal.errors import TableReadError
from sparkwal.format.lifecycle_record import ChainRecord
from sparkwal.lifecycle.opening import open_table
from sparkwal.protocol.chain import newest_record
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.several import refresh_all

_COLUMNS = (
    "sequencer",
    "position",
    "partition",
    "row",
    "commit_time",
    "sequence",
    "range",
    "reason",
)

# The most reasons that are printed, the most common ones.
_MOST_REASONS = 50


@click.command("refused", epilog=EXIT_CODES)
@takes_logs
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="The most rows to print. All are counted.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Write them into the table again, after you changed it. A row that it still refuses stays "
    "where it is.",
)
@as_json
def command(
    path: str, log_options: dict[str, str], limit: int, *, again: bool, as_json: bool
) -> None:
    """With refusedRows=aside rows that the table refuses go into the table TABLE_refused. The
    command counts those of the log by reason, and prints the first ones. It needs the extra `lake`.
    With --again it writes them into the table as the compaction of the log does: into an Iceberg
    table in this process, and into a Delta table with Spark, which it starts on this machine. That
    needs Java and the extra `spark`, and the first time it downloads Delta Lake.

    \b
    sparkwal refused s3://bucket/wal --all --limit 5
    sparkwal refused s3://bucket/wal --again

    Requests: 1 LIST and 1 GET, and the read of that table. A log without a lifecycle also costs
    those that find its head. With --again they are those of a compaction.
    """
    if again:
        write_again(path, log_options, as_json=as_json)
        return
    logs = logs_at(path, log_options, read_heads=False)
    record = newest_record(logs[0].log)
    unknown = [log for log in logs if record is None or record.log(log.name) is None]
    refresh_all(unknown, floor=False)
    for log in unknown:
        # Raises if there is no log.
        head_of(log)
    counts: Counter[tuple[str, str]] = Counter()
    shown: list[Mapping[str, Any]] = []
    for row in _refused(record, logs) if record else ():
        counts[row["sequencer"], row["reason"]] += 1
        if len(shown) < limit:
            shown.append(row)
    if as_json:
        for row in shown:
            print_json(row)
        return
    if not counts:
        click.echo("no refused rows")
        return
    reasons = [
        {"log": name, "rows": count, "reason": reason}
        for (name, reason), count in counts.most_common(_MOST_REASONS)
    ]
    different = {reason for _, reason in counts}
    table(reasons, f"{path}: refused rows: {sum(counts.values()):,}, reasons: {len(different):,}")
    if shown:
        click.echo()
        table(shown)
    if sum(counts.values()) > len(shown):
        notify(f"{len(shown):,} of {sum(counts.values()):,} rows are printed: --limit prints more")
    notify("after you changed the table so that it takes them, --again writes them into it")


def _refused(record: ChainRecord, logs: Sequence[LogRange]) -> Iterator[Mapping[str, Any]]:
    """The rows of the logs that stepped aside from ranges that are done, and that the table does
    not have since.

    A row at or above the cut of its log belongs to an open range or to one that was given up, and
    the log still has it.

    Raises:
        TableReadError: a table of refused rows is unreadable, or does not exist any more.
    """
    of_table: dict[str, list[LogRange]] = {}
    for log in logs:
        state = record.log(log.name)
        if state is not None and state.table and record.tables[state.table].refused is not None:
            of_table.setdefault(state.table, []).append(log)
    for url, its in of_table.items():
        target = record.tables[url].target
        opened = open_table(replace(target, table=target.refused), its[0].options)
        snapshot = opened.snapshot("", None)
        if snapshot is None:
            rows = sum(record.logs[log.name].rows_aside for log in its)
            raise TableReadError(
                f"{target.refused} does not exist any more: {rows:,} rows of these logs stepped "
                "aside into it. Restore it"
            )
        states = [(log.name, record.logs[log.name]) for log in its]
        counting = {(name, log.log_id): (log.cut, log.taken) for name, log in states}
        read = opened.rows_at(snapshot.version)
        for batch in read([*_COLUMNS, "log_id", "values"]):
            for row in batch.to_pylist():
                cut, taken = counting.get((row["sequencer"], row.pop("log_id")), (0, 0))
                if row["position"] < cut and row["range"] >= taken:
                    time = row["commit_time"].isoformat(timespec="milliseconds")
                    yield {**row, "commit_time": time.replace("+00:00", "Z")}
